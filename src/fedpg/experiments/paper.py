"""The paper's own curves, read off its published figures 1 and 2."""

import csv
import functools
from importlib.resources import files
from typing import NamedTuple

import numpy as np

READING_ERROR = {"CartPole-v1": 3.0, "LunarLander-v3": 10.0, "HalfCheetah-v5": 15.0}
"""How far a value read off a figure may be from the true one, from READABLE_FROM on."""
READABLE_FROM = {"LunarLander-v3": 2500}
"""Trajectories before which a curve is too steep to be read off that well."""
HOURS = {"CartPole-v1": 2.5, "HalfCheetah-v5": 4.0, "LunarLander-v3": 12.0}
"""The published time of one run of FedPG-BR (K = 10, B = 3), on 14 cores of an Intel i9-10940X."""
TRAJECTORIES = {"CartPole-v1": 5000, "LunarLander-v3": 10_000, "HalfCheetah-v5": 10_000}
"""How long those runs were."""


class PaperCurve(NamedTuple):
    """A published curve: the mean of ten seeds, and half the width of its 90% band; NaN where it is unreadable."""

    trajectories: np.ndarray
    mean: np.ndarray
    half: np.ndarray

    def at(self, trajectories: float) -> tuple[float, float]:
        """(mean, half width) at so many trajectories; NaN where nothing was read off near there."""
        step = float(np.diff(self.trajectories).min())
        near = int(np.abs(self.trajectories - trajectories).argmin())
        if abs(self.trajectories[near] - trajectories) > step / 2:
            return float("nan"), float("nan")
        return float(self.mean[near]), float(self.half[near])


@functools.cache
def paper_curves() -> dict[tuple[str, str, str], PaperCurve]:
    """(figure, panel, series) -> curve.

    The band is symmetric (the mean plus and minus 1.645 standard errors), so one readable side of it is enough.
    """
    rows: dict[tuple[str, str, str], list[tuple[float, ...]]] = {}
    with (files("fedpg.experiments") / "paper_curves.csv").open() as file:
        for row in csv.DictReader(file):
            at, mean, low, high = (
                float(row[name]) if row[name] else float("nan") for name in ("trajectories", "mean", "low", "high")
            )
            sides = [side for side in (high - mean, mean - low) if not np.isnan(side)]
            half = sum(sides) / len(sides) if sides else float("nan")
            rows.setdefault((row["figure"], row["panel"], row["series"]), []).append((at, mean, half))
    return {key: PaperCurve(*np.array(sorted(points)).T) for key, points in rows.items()}
