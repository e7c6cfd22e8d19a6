"""The tables of algorithms side by side are of the stored runs."""

import re

import numpy as np
import pytest

from documents import ROOT
from fedpg.experiments.catalogue import EXPERIMENTS
from fedpg.experiments.panels import Curve, Panel
from fedpg.experiments.statistics import returns_at
from quoted import RESULTS, needs_results, number, stored, table_after

pytestmark = needs_results
CONDITIONS = ("10 honest agents", "3 of 10 flip signs", "3 of 10: ALIE, z = 1.5", "3 of 10 flip rewards")
HONEST = (
    *("natural steps, the server alone", "natural steps, one agent alone"),
    "natural steps, 10 honest agents, plain mean",
)
"""Floors and ceiling, which nobody lies to."""


def _curve(panel: Panel, label: str) -> Curve:
    return next(curve for curve in panel.curves if curve.label == label)


def quoted(task: str) -> tuple[np.ndarray, int, list[list[str]]]:
    """The marks and the number of seeds in the words above a table, and its rows."""
    head, *rows = table_after("docs/successors.md", "Side by side", f"**{task}**")
    found = re.fullmatch(r"at ([\d, ]+) trajectories, (\d+) seeds?", head[0])
    assert found is not None
    assert tuple(head[1:]) == CONDITIONS
    return np.array([float(mark) for mark in found[1].split(", ")]), int(found[2]), rows


@pytest.mark.parametrize("task", ["CartPole-v1", "LunarLander-v3", "HalfCheetah-v5"])
def test_every_rival_is_quoted_as_it_is_stored(task: str):
    marks, seeds, rows = quoted(task)
    panels = {panel.title: panel for panel in EXPERIMENTS["algorithms"].panels}
    methods = [curve.label for curve in panels[f"{task}, {CONDITIONS[0]}"].curves]
    assert [row[0] for row in rows] == methods, "a rival is left out"
    for method, *cells in rows:
        for condition, cell in zip(CONDITIONS, cells, strict=True):
            if not cell:
                assert condition != CONDITIONS[0], f"{task}, {method}: nothing is quoted"
                assert method in HONEST, f"{task}, {method}: nothing is quoted under attack"
                continue
            panel = panels[f"{task}, {condition}"]
            runs = [run for run in stored(panel, _curve(panel, method)) if run.seed < seeds]
            assert len(runs) == seeds, (method, condition)
            means = returns_at(runs, marks).mean(axis=0)
            assert [number(x) for x in cell.split("; ")] == [round(mean) for mean in means], (method, condition)


def test_what_a_value_function_buys_is_of_stored_runs():
    (_, *heads), *rows = table_after("docs/natural.md", "Advantages", "buys")
    panels = {panel.task: panel for panel in EXPERIMENTS["estimators"].panels}
    assert [row[0] for row in rows] == [curve.label for curve in panels["CartPole-v1"].curves]
    for at, head in enumerate(heads):
        found = re.fullmatch(r"(\S+), (\d+) seeds?, at ([\d, ]+)", head)
        assert found is not None
        seeds, marks = int(found[2]), np.array([float(mark) for mark in found[3].split(", ")])
        panel = panels[found[1]]
        for curve, (what, *cells) in zip(panel.curves, rows, strict=True):
            runs = [run for run in stored(panel, curve) if run.seed < seeds]
            assert len(runs) == seeds, (what, head)
            means = returns_at(runs, marks).mean(axis=0)
            assert [number(x) for x in cells[at].split("; ")] == [round(mean) for mean in means], (what, head)
    assert len(heads) == 3


def test_the_nearest_rival_on_halfcheetah_is_quoted_as_it_is_stored():
    (_, *marks), *rows = table_after("docs/successors.md", "Side by side", "five seeds of both")
    panel = next(p for p in EXPERIMENTS["algorithms"].panels if p.title == f"HalfCheetah-v5, {CONDITIONS[0]}")
    assert [row[0] for row in rows] == ["natural steps, compass", "N-PG-IGT"]
    for method, *cells in rows:
        runs = stored(panel, _curve(panel, method))
        assert len(runs) == 5
        found = returns_at(runs, np.array([float(mark) for mark in marks]))
        assert cells == [f"{mean:.0f} ± {error:.0f}" for mean, error in _mean_and_error(found)], method
    text = " ".join((ROOT / "docs" / "successors.md").read_text().split())
    far = re.search(r"by a divergence of ([\d.]+) a round \(median\), N-PG-IGT's by ([\d.]+)", text)
    assert far is not None
    study = (RESULTS / "studies" / "step-sizes-HalfCheetah-v5.txt").read_text()
    assert list(far.groups()) == re.findall(r"divergence of a round ([\d.]+)", study)
    later = re.search(r"with seeds 0 and 1 they have (\d+) and (\d+), N-PG-IGT (\d+) and (\d+)", text)
    assert later is not None
    pairs = [run for name, *_ in rows for run in stored(panel, _curve(panel, name)) if run.seed < 2]
    assert [int(x) for x in later.groups()] == [round(float(x)) for x in returns_at(pairs, np.array([600.0]))[:, 0]]


def _mean_and_error(found: np.ndarray) -> list[tuple[float, float]]:
    means, errors = found.mean(axis=0), found.std(axis=0, ddof=1) / len(found) ** 0.5
    return list(zip(means.tolist(), errors.tolist(), strict=True))
