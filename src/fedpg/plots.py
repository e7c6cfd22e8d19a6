"""Pictures, from records only."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedpg.storage import write_whole
from fedpg.training.records import Records

HONEST, BYZANTINE = "#2a6f97", "#c1121f"


def plot_curve(path: Path, runs: Sequence[Records], title: str) -> None:
    """curve.png: the return of each run and their mean, and below it the accepted agents of each round."""
    config = runs[0].config
    figure = Figure(figsize=(8, 6), layout="constrained")
    FigureCanvasAgg(figure)
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
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

    honest = config.agents - config.byzantine
    _steps(below, runs, 0, HONEST, f"honest accepted, of {honest}")
    if config.byzantine:
        _steps(below, runs, 1, BYZANTINE, f"Byzantine accepted, of {config.byzantine}")
    below.set_ylim(-0.3, config.agents + 0.5)
    below.yaxis.set_major_locator(MaxNLocator(integer=True))
    below.set_ylabel("agents per round")
    below.set_xlabel("trajectories (as the paper counts them)")
    if below.get_legend_handles_labels()[0]:
        below.legend(loc="center right", frameon=True, fontsize="small")
    below.grid(alpha=0.3)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    write_whole(path, picture.getvalue())


def mean_curve(runs: Sequence[Records], points: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """The mean return of several runs on a common grid of trajectories."""
    grid = np.linspace(0, min(float(r.trajectories[-1]) for r in runs), points)
    return grid, np.mean([np.interp(grid, r.trajectories, r.test_returns) for r in runs], axis=0)


def _steps(axes, runs: Sequence[Records], which: int, colour: str, label: str) -> None:  # type: ignore[no-untyped-def]
    """Dots for each round, faint, and their running mean over the runs."""
    grid = np.linspace(0, min(float(r.trajectories[-1]) for r in runs), 200)
    smooth = []
    for records in runs:
        if len(records):
            counts = records.accepted()[which].astype(float)
            axes.scatter(records.trajectories[1:], counts, s=6, color=colour, alpha=0.35 / len(runs) ** 0.5, lw=0)
            window = min(15, len(counts))
            padded = np.pad(counts, (window // 2, window - 1 - window // 2), mode="edge")
            average = np.convolve(padded, np.ones(window) / window, mode="valid")
            smooth.append(np.interp(grid, records.trajectories[1:], average))
    if smooth:
        axes.plot(grid, np.mean(smooth, axis=0), color=colour, lw=2, label=label)
