"""The matrix for people: tables on the screen, and a heat map."""

import math

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedpg.arena.matrix import Matrix, Score
from fedpg.arena.players import NOBODY
from fedpg.experiments.figures import STYLE, save_figure

READING = (
    "All numbers are what was learnt (the area under the curve of the greedy return, above the untrained policy's) as "
    "a share of what as many honest agents learn with the plain mean; in brackets a 90% bootstrap interval over seeds. "
    "`scaled` is the worst case between the server alone (0) and the honest federation (1): a rule that only falls "
    "back on the server is at 0, however high its share."
)


def percent(score: Score) -> str:
    """`87% [80, 93]`."""
    if math.isnan(score.value):
        return "-"
    value, low, high = (0 if math.isnan(x) else round(100 * x) for x in score)
    return f"{value}%" if math.isnan(score.low) else f"{value}% [{low}, {high}]"


def alone(value: float) -> Score:
    """A number without an interval."""
    return Score(value, math.nan, math.nan)


def decimal(score: Score) -> str:
    """`0.72 [0.61, 0.80]`."""
    if math.isnan(score.value):
        return "-"
    interval = "" if math.isnan(score.low) else f" [{score.low:.2f}, {score.high:.2f}]"
    return f"{score.value:.2f}{interval}"


def standings_rows(matrix: Matrix) -> list[list[str]]:
    """A row for each defence, the best worst case first."""
    return [
        [s.defence, percent(s.worst), s.by, decimal(s.scaled), percent(alone(s.average)), percent(s.honest)]
        for s in matrix.standings()
    ]


STANDINGS = ("defence", "worst case", "by", "scaled", "mean of all", "no liars")


def tables(matrix: Matrix) -> Group:
    """Floor and ceiling, the standings, and the whole matrix."""
    ends = Table(title="floor and ceiling", box=box.SIMPLE_HEAD, pad_edge=False)
    ends.add_column("")
    ends.add_column("share", justify="right")
    for name, score in matrix.references().items():
        ends.add_row(name, percent(score))
    standings = Table(title="defences by their worst case", box=box.SIMPLE_HEAD, pad_edge=False)
    standings.add_column("", justify="right")
    for name in STANDINGS:
        standings.add_column(name, justify="left" if name in ("defence", "by") else "right")
    order = matrix.standings()
    for i, row in enumerate(standings_rows(matrix), 1):
        standings.add_row(str(i), *row)
    cells = Table(
        title="every attack (rows) against every defence (columns, by number), in %",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    cells.add_column("attack", no_wrap=True)
    for i in range(len(order)):
        cells.add_column(str(i + 1), justify="right", min_width=3)  # 104 must not become "1…"
    for attack in (NOBODY, *matrix.attacks):
        shares = [matrix.share(attack, standing.defence).value for standing in order]
        cells.add_row(attack, *(Text("-" if math.isnan(x) else f"{100 * x:.0f}", style=_style(x)) for x in shares))
    return Group(ends, standings, cells, Text(READING, style="dim"))


def _style(share: float) -> str:
    return "green" if share >= 0.85 else "yellow" if share >= 0.5 else "red"


def heat_map(matrix: Matrix, title: str, kind: str = "png") -> bytes:
    """Attacks by defences; the best defence on the left, the worst attack at the top."""
    order = [standing.defence for standing in matrix.standings()]
    mean = {attack: np.mean([matrix.share(attack, d).value for d in order]) for attack in matrix.attacks}
    rows = [*sorted(matrix.attacks, key=lambda attack: float(mean[attack])), NOBODY]
    shares = np.array([[matrix.share(attack, defence).value for defence in order] for attack in rows])
    with rc_context(STYLE | {"axes.grid": False}):
        words = max(map(len, rows))
        size = (max(0.078 * len(title), 1.4 + 0.065 * words + 0.44 * len(order)), 1.9 + 0.27 * len(rows))
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        image = axes.imshow(shares, cmap="RdYlBu", vmin=0.4, vmax=1.0, aspect="auto")
        axes.set_xticks(range(len(order)), order, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(rows)), rows)
        worst = shares[:-1].argmin(axis=0)
        for i, values in enumerate(shares):
            for j, share in enumerate(values):
                bold = "bold" if worst[j] == i else "normal"
                ink = "white" if share > 0.93 or share < 0.5 else "black"
                axes.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize=7, weight=bold, color=ink)
        figure.suptitle(title, fontsize=10)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        bar = figure.colorbar(image, ax=axes, shrink=0.6, extend="min", label="share of the honest")
        bar.ax.yaxis.set_major_formatter(lambda x, _: f"{100 * x:.0f}%")
        return save_figure(figure, kind, dpi=110)
