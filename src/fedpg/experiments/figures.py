"""Pictures of panels: our mean with its 90% band, and the paper's curve dashed in the same colour."""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

from fedpg.experiments.panels import GREY, Curve, Panel, config_of, counted
from fedpg.experiments.paper import TRAJECTORIES, paper_curves
from fedpg.experiments.statistics import band, grid_of
from fedpg.experiments.store import Key, Stored, key_of

STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.titlesize": 10,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedpg",
}
FLOORS = {"LunarLander-v3": -1700.0}
"""Where untrained policies do far worse than this, the rest would be squeezed."""
PER_ROW = 3
AXES = {False: "trajectories per agent, as the paper counts", True: "trajectories of all agents and the server"}

Stock = Mapping[Key, Stored]


def runs_of(panel: Panel, stored: Stock) -> list[tuple[Curve, list[Stored]]]:
    """The curves of a panel that have stored runs, with them, in the order of their seeds."""
    found, seeds = [], sorted({seed for _, seed in stored})
    for curve in panel.curves:
        config, _ = key_of(config_of(panel, curve), 0)
        runs = [counted(curve, stored[config, seed]) for seed in seeds if (config, seed) in stored]
        if runs:
            found.append((curve, runs))
    return found


def needs_totals(panel: Panel) -> bool:
    """Whether the paper's count favours some curves: it is an average over agents, so where their number differs."""
    return len({config_of(panel, curve).agents for curve in panel.curves}) > 1


def draw(axes: Axes, panel: Panel, stored: Stock, total: bool = False) -> None:
    """One panel; the paper's curves where the x axis is its own."""
    found = runs_of(panel, stored)
    end = 0.0
    for curve, runs in found:
        grid = grid_of(runs, total)
        end = max(end, grid[-1])
        ours = band(runs, grid, total)
        full = ours.seeds == ours.runs
        style = ":" if curve.reference else "-"
        axes.plot(grid[full], ours.mean[full], style, color=curve.colour, lw=1.6, zorder=3)
        # Where fewer seeds got, a line of its own: a mean of others is no continuation.
        fewer = np.where(full, np.nan, ours.mean)
        axes.plot(grid, fewer, style, color=curve.colour, lw=0.9, alpha=0.6, zorder=3)
        if not curve.reference:
            axes.fill_between(grid, ours.low90, ours.high90, color=curve.colour, alpha=0.16, lw=0, zorder=2)
        if curve.paper is not None and not total:
            published = paper_curves()[curve.paper]
            line = THEIRS[curve.reference]
            axes.plot(published.trajectories, published.mean, line.style, color=curve.colour, lw=line.width, zorder=4)
            end = max(end, published.trajectories[-1])
    if not found:
        axes.text(0.5, 0.5, "no runs stored yet", transform=axes.transAxes, ha="center", color=GREY)
    axes.set_title(f"{panel.title}{seeds_of([len(runs) for _, runs in found], ' ({})')}")
    axes.set_xlabel(AXES[total])
    axes.set_ylabel("greedy return")
    if total:
        axes.set_xscale("symlog", linthresh=500)
        axes.set_xlim(0, max(end, 1000.0))
    else:
        axes.set_xlim(0, min(end, TRAJECTORIES.get(panel.task, end)) if end else 1)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" if x < 1e4 else f"{x / 1000:,.0f}k"))
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, FLOORS.get(panel.task, low)), high)


class Line(NamedTuple):
    """How a curve of the paper's is drawn."""

    style: str
    width: float
    shown: str
    label: str


THEIRS = {
    False: Line("--", 1.1, "- - -", "the paper's curve, in the same colour"),
    True: Line("-.", 0.8, "- · -", "the paper's of a dotted one"),
}
"""By whether ours is a reference: a panel may have two of the paper's in one colour."""


def theirs_of(panels: Sequence[Panel]) -> list[Line]:
    """The kinds of the paper's curves in these panels."""
    found = {curve.reference for panel in panels for curve in panel.curves if curve.paper}
    return [line for reference, line in THEIRS.items() if reference in found]


def seeds_of(counts: Sequence[int], form: str = "{}") -> str:
    """So many seeds, in words; nothing where there are none."""
    low, high = min(counts, default=0), max(counts, default=0)
    if not high:
        return ""
    return form.format(f"{low} to {high} seeds" if low < high else f"{high} seed{'s' if high > 1 else ''}")


def legend_of(panels: Sequence[Panel], stored: Stock) -> list[tuple[str, str, bool]]:
    """(label with the number of seeds, colour, dotted) of each curve that has runs, once."""
    seen: dict[str, Curve] = {}
    counts: dict[str, list[int]] = {}
    for panel in panels:
        found = {curve.label: len(runs) for curve, runs in runs_of(panel, stored)}
        for curve in panel.curves if found else ():
            seen.setdefault(curve.label, curve)
            counts.setdefault(curve.label, []).append(found.get(curve.label, 0))

    def words(each: list[int]) -> str:  # one number for each panel, in their order, if they differ
        return f"{', '.join(map(str, each))} seeds" if len(set(each)) > 1 and len(each) <= PER_ROW else seeds_of(each)

    return [
        (f"{label}, {words(counts[label])}", c.colour, c.reference) for label, c in seen.items() if any(counts[label])
    ]


def picture(panels: Sequence[Panel], stored: Stock) -> bytes:
    """A PNG of panels side by side, and below them the same against the total count where that tells more."""
    twin = len(panels) <= PER_ROW and any(needs_totals(panel) for panel in panels)
    columns = min(PER_ROW, len(panels))
    rows = -(-len(panels) // columns) * (2 if twin else 1)
    with rc_context(STYLE):
        figure = Figure(figsize=(3.9 * columns + 0.2, 2.9 * rows + 0.8), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        cells = [(panel, False) for panel in panels] + [(panel, True) for panel in panels if twin]
        for axes, (panel, total) in zip(grid, cells, strict=False):
            draw(axes, panel, stored, total)
        for axes in grid[len(cells) :]:
            axes.set_visible(False)
        handles = [
            Line2D([], [], color=colour, ls=":" if dotted else "-", lw=1.8, label=label)
            for label, colour, dotted in legend_of(panels, stored)
        ]
        handles += [
            Line2D([], [], color="#374151", ls=line.style, lw=line.width, label=line.label)
            for line in theirs_of(panels)
        ]
        longest = max(len(str(handle.get_label())) for handle in handles)
        fit = max(1, int(60 * columns / (longest + 8)))  # labels side by side
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 2 * columns, fit))
        out = io.BytesIO()
        with Image.open(io.BytesIO(save_figure(figure, "png", dpi=110))) as image:
            image.convert("RGB").quantize(128).save(
                out, format="png", optimize=True
            )  # a third of the size, and as good
        return out.getvalue()


def panel_image(panel: Panel, stored: Stock, total: bool = False) -> bytes:
    """An SVG of one panel."""
    with rc_context(STYLE):
        figure = Figure(figsize=(4.3, 3.1), layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure.subplots(), panel, stored, total)
        # Points of lines to a tenth of a pixel are half as long to write.
        return re.sub(
            rb"^[ML] .*$", lambda m: re.sub(rb"(\.\d)\d+", rb"\1", m[0]), save_figure(figure, "svg"), flags=re.M
        )


def save_figure(figure: Figure, kind: str, dpi: float | None = None) -> bytes:
    out = io.BytesIO()
    # The same runs give the same bytes: no date in the file.
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    figure.savefig(out, format=kind, metadata=metadata, dpi=dpi or "figure")
    return out.getvalue()


def pictures_of(panels: Sequence[Panel]) -> dict[str, list[Panel]]:
    """The panels of each picture, by its name."""
    found: dict[str, list[Panel]] = {}
    for panel in panels:
        found.setdefault(panel.picture, []).append(panel)
    return found
