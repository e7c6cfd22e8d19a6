"""The first lines of the report: what a return costs, and one picture of it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from fedpg.experiments.catalogue import AS_IN_THE_PAPER
from fedpg.experiments.figures import Stock, runs_of
from fedpg.experiments.panels import Experiment, Panel
from fedpg.experiments.paper import paper_curves
from fedpg.experiments.render import Block, Table, Text
from fedpg.experiments.statistics import arrivals
from fedpg.experiments.store import Stored
from fedpg.experiments.tables import TARGETS

PICTURE = "in-short"
SHOWN = ("natural steps, compass", "FedPG-BR, as in the figures", "natural steps, the server alone")
"""Ours, the paper's, and the floor."""


def panels_of(experiments: Sequence[Experiment], stored: Stock) -> list[Panel]:
    """One panel for each task: honest agents, our default, the paper's algorithm with its own curve, and the floor."""
    found = []
    for panel in (p for e in experiments if e.name == "algorithms" for p in e.panels if "honest" in p.title):
        curves = {curve.label: curve for curve in panel.curves if curve.label in SHOWN}
        paper = replace(curves[SHOWN[1]], paper=("Figure 1", AS_IN_THE_PAPER[panel.task], "FedPG-BR (K=10)"))
        shown = (curves[SHOWN[0]], paper, curves[SHOWN[2]])
        found.append(replace(panel, picture=PICTURE, title=panel.task, curves=shown))
    return [panel for panel in found if runs_of(panel, stored)]


def answer(panels: Sequence[Panel], stored: Stock) -> Iterator[Block]:
    """What a return costs each of them, in trajectories."""
    rows = []
    for panel in panels:
        target = TARGETS[panel.task]
        runs = {curve.label: found for curve, found in runs_of(panel, stored)}
        cells = [_cost(runs.get(label, []), target) for label in SHOWN]
        curve = paper_curves()["Figure 1", AS_IN_THE_PAPER[panel.task], "FedPG-BR (K=10)"]
        there = curve.trajectories[curve.mean >= target]
        rows.append([panel.task, f"{target:,}", *cells, f"{there[0]:,.0f}" if len(there) else "never"])
    columns = ("task", "return", "ours (natural steps, compass)", "FedPG-BR, here", "the server alone", "the paper")
    yield Text(
        "**What a return costs**: trajectories per agent, as the paper counts them, until ten honest agents reach it; "
        "the median over seeds, and how many of these got there."
    )
    yield Table(columns, rows)


def _cost(runs: Sequence[Stored], target: float) -> str:
    there = [run.trajectories[row] for run, row in zip(runs, arrivals(runs, target), strict=True) if row is not None]
    if not runs:
        return "not played"
    return f"{np.median(there):,.0f} ({len(there)} of {len(runs)})" if there else f"never ({len(runs)} seeds)"
