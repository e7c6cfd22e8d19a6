"""The lab's pictures, from its stored results only."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedpg.storage import write_whole
from fedpg.theory.fits import slope
from fedpg.theory.lab import Result

COLOURS = {"reinforce": "#8d99ae", "gpomdp": "#2a6f97", "svrpg": "#e09f3e", "fedpg-br": "#c1121f"}
CONTROL_COLOURS = {"no correction": "#606c38", "no noise": "#000000"}
BLUE, RED, GREY = "#2a6f97", "#c1121f", "#6c757d"


def draw(out: Path, name: str, result: Result) -> Path:
    """The picture of an experiment."""
    figure = DRAW[name](result)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    path = out / f"{name}.png"
    write_whole(path, picture.getvalue())
    return path


def _figure(columns: int, width: float = 4.2, height: float = 3.8) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width * columns, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, np.atleast_1d(figure.subplots(1, columns))


def _points(axes: Any, x: list[float], cells: list[Any], colour: str, label: str, marker: str = "o") -> None:
    """Points with their intervals; what was not reached is left out."""
    kept = [(a, *c) for a, c in zip(x, cells, strict=True) if c[0] is not None]
    if kept:
        at, y, low, high = (np.array(v, float) for v in zip(*kept, strict=True))
        below, above = np.maximum(y - low, 0), np.maximum(high - y, 0)
        axes.errorbar(at, y, yerr=[below, above], color=colour, fmt=marker, ms=5, capsize=2, lw=1.3, label=label)


def _guide(axes: Any, x: list[float], at: float, exponent: float, label: str, colour: str = GREY) -> None:
    """A line of the paper's exponent, through the last point."""
    xs = np.array(sorted(x), float)
    axes.plot(xs, at * (xs / xs[-1]) ** exponent, color=colour, ls="--", lw=1.2, label=label, zorder=0)


def _log(axes: Any, x: str, y: str, title: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    _name(axes, x, y, title)


def _name(axes: Any, x: str, y: str, title: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3, which="major")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7.5, frameon=False)


def _exponent(cell: Any) -> str:
    """With its interval, if it has any: what is exact has none."""
    value, low, high = cell
    if value is None:
        return "–"
    return f"{value:.2f}" if low == high else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def draw_epsilon(result: Result) -> Figure:
    """Trajectories against 1/epsilon, one panel for each MDP."""
    mdps = list(dict.fromkeys(row["mdp"] for row in result["rows"]))
    figure, panels = _figure(len(mdps))
    for axes, mdp in zip(panels, mdps, strict=True):
        for fit in (f for f in result["fits"] if f["mdp"] == mdp):
            rows = [r for r in result["rows"] if r["mdp"] == mdp and r["method"] == fit["method"]]
            x = [1 / r["epsilon"] for r in rows]
            label = f"{fit['method']}: {_exponent(fit['uniform'])}"
            if fit["paper"] is None:
                _points(axes, x, [r["uniform"] for r in rows], CONTROL_COLOURS[fit["method"]], label, "_")
                continue
            _points(axes, x, [r["uniform"] for r in rows], COLOURS[fit["method"]], label)
            if rows[-1]["uniform"][0] is not None:
                paper = f"slope {fit['paper']:.3g} of Table 1" if fit["method"] in ("gpomdp", "fedpg-br") else ""
                at = rows[-1]["uniform"][0]
                _guide(axes, x, at, fit["paper"], paper or "_nolegend_", COLOURS[fit["method"]])
        _log(axes, "epsilon, smaller to the right", "trajectories, agent and server", f"{mdp}, K = 1")
        known = sorted({row["epsilon"] for row in result["rows"] if row["mdp"] == mdp})
        axes.set_xticks([1 / e for e in known], [f"{e:.2g}" for e in known])
        axes.minorticks_off()
        axes.set_ylim(top=12 * axes.get_ylim()[1])  # room for the legend
        axes.legend(fontsize=7.5, frameon=False, loc="upper left")
    return figure


def draw_agents(result: Result) -> Figure:
    """Trajectories per agent against K; and the curves behind them."""
    figure, (left, right) = _figure(2, 4.6)
    rows, fits = result["rows"], result["fits"]
    k = [r["agents"] for r in rows]
    _points(left, k, [r["per_agent"] for r in rows], BLUE, f"measured: {_exponent(fits['all'])}")
    _points(left, k, [r["no_noise"] for r in rows], GREY, f"no noise: {_exponent(fits['no noise'])}", "_")
    small = [r for r in rows if r["batch"] < 16]
    if small:
        _points(
            left,
            [r["agents"] for r in small],
            [r["per_agent"] for r in small],
            RED,
            "B < 16, which the proof rules out",
        )
    if rows[0]["per_agent"][0] is not None:
        xs = np.array(k, float)
        left.plot(
            xs, rows[0]["per_agent"][0] * xs ** (-2 / 3), color=GREY, ls="--", label="slope -2/3 of the corollary"
        )
    _log(
        left, "agents K, all honest", f"trajectories per agent to epsilon = {result['epsilon']:.3g}", "FedPG-BR, chain"
    )
    for i, row in enumerate(rows):
        curve = np.array(row["curve"], float)
        shade = 0.25 + 0.75 * i / max(len(rows) - 1, 1)
        right.plot(curve[:, 0], curve[:, 1], color=BLUE, alpha=shade, lw=1.4, label=f"K = {row['agents']}")
    right.axhline(result["epsilon"], color=RED, lw=1, ls=":")
    _log(right, "trajectories per agent", "E||grad J||² of the uniform output", "the same runs (dotted: epsilon)")
    return figure


def draw_alpha(result: Result) -> Figure:
    """The contest of attacks; what the strongest adds to the error and to the trajectories."""
    figure, (first, second, third) = _figure(3)
    contest = sorted(result["contest"]["rows"], key=lambda row: row["gradient"][0])
    y = np.arange(len(contest))
    values = np.array([row["gradient"] for row in contest], float)
    errors = [values[:, 0] - values[:, 1], values[:, 2] - values[:, 0]]
    colours = [RED if row["attack"] == result["strongest"] else BLUE for row in contest]
    first.barh(y, values[:, 0], xerr=errors, color=colours, height=0.65, error_kw={"lw": 1})
    first.set_yticks(y, [row["attack"] for row in contest], fontsize=8)
    title = f"{result['contest']['liars']} of {result['agents']} lie, {result['contest']['rounds']} rounds"
    _name(first, "mean E||grad J||² over the rounds", "", title)
    rows = result["rows"]
    some = [r for r in rows if r["liars"]]
    for axes, key, paper, what, fit in (
        (second, "error_times_B", 2.0, "B E||e||²", "error"),
        (third, "per_agent", 4 / 3, "trajectories per agent", "trajectories"),
    ):
        base = rows[0][key][0]
        x = [r["alpha"] for r in some]
        label = f"added: alpha^ {_exponent(result['fits'][fit])}"
        added = [[None if v is None else max(v - base, 1e-12) for v in r[key]] for r in some]
        _points(axes, x, added, BLUE, label)
        if added and added[-1][0] is not None:
            _guide(axes, x, added[-1][0], paper, f"slope {paper:.3g} of the paper")
        axes.axhline(base, color=GREY, lw=1, ls=":", label="alpha = 0, to which it is added")
        if key == "per_agent" and base is not None:
            # By the theory's own reckoning T B goes as B^(2/3), and B as the error: what the measured error asks for.
            error = np.array([r["error_times_B"][0] for r in rows])
            asked = base * ((error[1:] / error[0]) ** (2 / 3) - 1)
            axes.plot(x, asked, color=BLUE, lw=1, label=f"from the measured error: alpha^ {slope(x, asked):.2f}")
        _log(axes, "alpha", f"{what}, above alpha = 0", f"under {result['strongest']}")
        axes.set_xticks([0.05, 0.1, 0.2, 0.3, 0.45], ["0.05", "0.1", "0.2", "0.3", "0.45"])
        axes.minorticks_off()
    return figure


def draw_error(result: Result) -> Figure:
    """E||e||^2 and the lemma's bound over K, B and alpha."""
    figure, panels = _figure(3)
    for axes, (sweep, key, label) in zip(
        panels, (("K", "agents", "agents K"), ("B", "batch", "batch B"), ("alpha", "liars", "alpha")), strict=True
    ):
        rows = [r for r in result["rows"] if r["sweep"] == sweep]
        for honest in (True, False):
            part = [r for r in rows if (r["liars"] == 0) == honest]
            if not part:
                continue
            x = [r[key] / r["agents"] if sweep == "alpha" else r[key] for r in part]
            colour = BLUE if honest else RED
            name = "all honest" if honest else "search-error" + ("" if sweep == "alpha" else ", 30% lie")
            _points(axes, x, [r["error"] for r in part], colour, f"measured, {name}")
            marker = "x" if len(part) == 1 else None
            axes.plot(
                x, [r["bound"] for r in part], color=colour, ls="--", lw=1.2, marker=marker, label=f"lemma, {name}"
            )
        if sweep == "alpha":
            axes.set_yscale("log")
            _name(axes, label, "E||e||²", f"K = {rows[0]['agents']}, B = {rows[0]['batch']}")
        else:
            fixed = f"B = {rows[0]['batch']}" if sweep == "K" else f"K = {rows[0]['agents']}"
            _log(axes, label, "E||e||²", fixed)
            places = sorted({r[key] for r in rows})
            axes.set_xticks(places, [str(place) for place in places])
            axes.minorticks_off()
            axes.set_ylim(top=1e4 * axes.get_ylim()[1])  # room for the legend
            axes.legend(fontsize=7.5, frameon=False, loc="upper left")
    return figure


def draw_rules(result: Result) -> Figure:
    """How often a reply is too far off and R1 fails, by delta and sigma; and whom the aggregators drop."""
    figure, (left, middle, right) = _figure(3, 4.8)
    shades = np.linspace(0.25, 1.0, len(result["failures"]))
    for axes, event, what in ((left, "outside", "a reply beyond sigma sqrt(V/B)"), (middle, "fails", "R1 fails")):
        for row, shade in zip(result["failures"], shades, strict=True):
            x, y = np.array(row["sigma_over_rms"][:-1]), np.array(row[event][:-1])
            axes.plot(x, y, color=BLUE, alpha=shade, lw=1.5, label=f"delta = {row['delta']:g}")
            axes.axhline(row["delta"], color=BLUE, alpha=0.5 * shade, lw=0.8, ls=":")
        axes.axvline(1.0, color=GREY, lw=1)
        _name(axes, "sigma / root mean square of ||g - grad J||", f"share of rounds: {what}",
              f"{result['agents']} honest agents, B = {result['batch']} (dotted: delta)")  # fmt: skip
        axes.set_xscale("log")
    attacks = list(dict.fromkeys(row["attack"] for row in result["rows"]))
    wanted = [
        ("tight", "fedpg", BLUE),
        ("tight", "majority", "#9cc5a1"),
        ("auto", "fedpg", RED),
        ("auto", "majority", "#f4a6a6"),
    ]
    for i, (sigma, kind, colour) in enumerate(wanted):
        rows = [r for r in result["rows"] if r["sigma"] == sigma and r["aggregator"] == kind]
        place = np.arange(len(attacks)) + 0.2 * (i - 1.5)
        values = np.array([r["dropped"] for r in rows], float)
        errors = [values[:, 0] - values[:, 1], values[:, 2] - values[:, 0]]
        right.bar(
            place,
            values[:, 0],
            0.18,
            yerr=errors,
            color=colour,
            label=f"{kind}, sigma {sigma}" + ("" if values[:, 0].any() else ": none"),
            error_kw={"lw": 1},
        )
    right.set_xticks(np.arange(len(attacks)), attacks, fontsize=8, rotation=15)
    _name(right, "", "share of honest agents dropped", f"3 of {result['agents']} lie")
    return figure


DRAW = {
    "epsilon": draw_epsilon,
    "agents": draw_agents,
    "alpha": draw_alpha,
    "error": draw_error,
    "rules": draw_rules,
}
