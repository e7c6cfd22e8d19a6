"""The tables of docs/reproduction.md that quote stored runs of the paper's figures, and how these follow from them."""

import re

import numpy as np

from fedpg.experiments.catalogue import EXPERIMENTS
from fedpg.experiments.panels import Curve
from fedpg.experiments.paper import paper_curves
from fedpg.experiments.statistics import returns_at
from fedpg.experiments.store import Stored
from quoted import number, stored

Rows = list[list[str]]
ATTACKED = {"figure2": "", "figure3": ", FedPG attack", "figure-va": ", variance attack"}
"""Experiments -> what their rows say behind the panel's title."""


def said_of(curve: Curve, runs: tuple[Stored, ...], mark: float) -> str:
    """`ours / the paper's`, with how many seeds got there, where not all did; a dash if none did."""
    values = returns_at(runs, np.array([mark]))[:, 0]
    there = values[np.isfinite(values)]
    few = f" ({len(there)})" if len(there) < len(values) else ""
    ours = f"{round(there.mean())}{few}" if len(there) else "–"
    return ours if curve.paper is None else f"{ours} / {round(paper_curves()[curve.paper].at(mark)[0])}"


def figure_1(head: list[str], rows: Rows) -> Rows:
    """Every curve, at the marks of the head; a cell that is empty stays so."""
    curves = {(p.task.split("-")[0], c.label): (p, c) for p in EXPERIMENTS["figure1"].panels for c in p.curves}
    filled = []
    for what, _, *cells in rows:
        panel, curve = curves[*what.split(", ")]
        runs = stored(panel, curve)
        marks = zip(head[2:], cells, strict=True)
        filled.append([what, str(len(runs)), *(cell and said_of(curve, runs, number(mark)) for mark, cell in marks)])
    assert len(rows) == len(curves)
    return filled


def under_attack(head: list[str], rows: Rows) -> Rows:
    """Every algorithm under every attack, at the mark of the head, with the seeds that got there."""
    mark = number(head[0].split()[1])
    cells = {}
    for name, words in ATTACKED.items():
        for panel in EXPERIMENTS[name].panels:
            title = re.sub(r"-v\d(: )?", lambda found: ", " if found[1] else "", panel.title) + words
            for curve in panel.curves:
                if "B=3" in curve.label:
                    there = tuple(run for run in stored(panel, curve) if run.length >= mark)
                    cells[title, curve.label.split()[0]] = f"{said_of(curve, there, mark)} ({len(there)})"
    assert {what for what, *_ in rows} == {what for what, _ in cells}
    return [[what, *(cells.get((what, name), "") for name in head[1:])] for what, *_ in rows]
