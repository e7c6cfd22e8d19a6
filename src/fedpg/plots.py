"""Pictures, from records only."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, ScalarFormatter, SymmetricalLogLocator

from fedpg.config import Config
from fedpg.storage import write_whole

HONEST, BYZANTINE, STEP = "#2a6f97", "#c1121f", "#8a5a00"


class Records(Protocol):
    """Of a run, what a picture needs."""

    config: Config

    @property
    def trajectories(self) -> np.ndarray: ...
    @property
    def test_returns(self) -> np.ndarray: ...
    def column(self, name: str) -> np.ndarray: ...
    def accepted(self) -> tuple[np.ndarray, np.ndarray]: ...
    def mean_harm(self) -> float: ...


class Picture(NamedTuple):
    """A PNG, which a notebook shows."""

    png: bytes

    def save(self, path: Path) -> None:
        write_whole(path, self.png)

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        return f"<picture, {len(self.png) / 1000:.0f} kB of PNG: .save(path) writes it>"


def plot_curve(path: Path, runs: Sequence[Records], title: str) -> None:
    """curve.png: `curve` as a file."""
    curve(runs, title).save(path)


def curve(runs: Sequence[Records], title: str) -> Picture:
    """The return of each run and their mean, the harm that Byzantine agents did, and who was accepted.

    Without Byzantine agents, or where nobody knows who they are, there is no harm to draw.
    """
    config = runs[0].config
    harmed = config.byzantine > 0 and any(np.isfinite(records.mean_harm()) for records in runs)
    heights = (3, 2, 2) if harmed else (3, 2)
    figure = Figure(figsize=(8, 2 + 4 / 5 * sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    top, *middle, below = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    for records in runs:
        top.plot(
            records.trajectories,
            records.test_returns,
            color=HONEST,
            alpha=1.0 if len(runs) == 1 else 0.25,
            lw=1.5,
        )
    if len(runs) > 1:
        grid, means = mean_curve(runs)
        top.plot(grid, means, color=HONEST, lw=2.5, label=f"mean of {len(runs)} seeds")
        top.legend(loc="lower right", frameon=False)
    top.set_ylabel(f"greedy return, {config.test_episodes} episodes")
    top.set_title(title)
    top.grid(alpha=0.3)

    for axes in middle:
        _harm(axes, runs)
    honest = config.agents - config.byzantine
    _dots(below, runs, lambda records: records.accepted()[0], HONEST, f"honest accepted, of {honest}")
    if config.byzantine:
        label = f"Byzantine accepted, of {config.byzantine}"
        _dots(below, runs, lambda records: records.accepted()[1], BYZANTINE, label)
    below.set_ylim(-0.3, config.agents + 0.5)
    below.yaxis.set_major_locator(MaxNLocator(integer=True))
    below.set_ylabel("agents per round")
    below.set_xlabel("trajectories (as the paper counts them)")
    if below.get_legend_handles_labels()[0]:
        below.legend(loc="center right", frameon=True, fontsize="small")
    below.grid(alpha=0.3)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    return Picture(picture.getvalue())


def mean_curve(runs: Sequence[Records], points: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """The mean return of several runs on a common grid of trajectories."""
    grid = np.linspace(0, min(float(r.trajectories[-1]) for r in runs), points)
    return grid, np.mean([np.interp(grid, r.trajectories, r.test_returns) for r in runs], axis=0)


def _harm(axes: Axes, runs: Sequence[Records]) -> None:
    """How far the aggregate of each round lies from the mean of the honest, in its standard errors."""
    _dots(axes, runs, lambda records: records.column("harm"), BYZANTINE, "harm")
    _dots(axes, runs, lambda records: records.column("harm_step"), STEP, "harm to the optimiser's step")
    axes.axhline(1.0, color="black", lw=1, ls="--", label="1: what chance alone moves the honest mean")
    axes.set_yscale("symlog", linthresh=1.0)  # 0 is to be seen, and so are liars who are not stopped
    axes.yaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1.0, subs=(1.0, 2.0, 5.0)))
    axes.set_ylim(bottom=0.0)
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.set_ylabel("standard errors of\nthe honest mean")
    axes.legend(loc="upper right", frameon=True, fontsize="small")
    axes.grid(alpha=0.3)


def _dots(
    axes: Axes, runs: Sequence[Records], values_of: Callable[[Records], np.ndarray], colour: str, label: str
) -> None:
    """Dots for each round in which the value is known, faint, and their running mean over the runs."""
    grid = np.linspace(0, min(float(r.trajectories[-1]) for r in runs), 200)
    smooth = []
    for records in runs:
        values = values_of(records).astype(float)
        known = np.isfinite(values)
        at, values = records.trajectories[1:][known], values[known]
        if len(values):
            axes.scatter(at, values, s=6, color=colour, alpha=0.35 / len(runs) ** 0.5, lw=0)
            window = min(15, len(values))
            padded = np.pad(values, (window // 2, window - 1 - window // 2), mode="edge")
            average = np.convolve(padded, np.ones(window) / window, mode="valid")
            smooth.append(np.interp(grid, at, average))
    if smooth:
        axes.plot(grid, np.mean(smooth, axis=0), color=colour, lw=2, label=label)
