"""The first picture of the README: one algorithm, one attack, two defences.

    python studies/worst_attack.py docs/worst-attack.png

Ten agents learn CartPole by natural steps, three of them by the attack that does most harm to the paper's filter in the
arena: Normalized, which tries its lies on the aggregator in use. Above, the greedy return of every seed and the mean;
below, how far the liars moved the step. About a minute on two cores.
"""

import sys
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedpg import make_config, make_problem, train_seeds
from fedpg.storage import write_whole
from fedpg.training.records import Records

SEEDS = range(10)
LENGTH = 500
LIARS = {"byzantine": 3, "attack": "normalized"}
DEFENCES = {
    "compass, the default": ("#0072B2", {"aggregator": "compass"} | LIARS),
    "the paper's filter": ("#D55E00", {"aggregator": "fedpg"} | LIARS),
}
CEILING = {"aggregator": "mean"}
"""Ten honest agents without a defence."""


def trained(**settings: object) -> list[Records]:
    config = make_config("CartPole-v1", agents=10, trajectories=LENGTH, **settings)  # type: ignore[arg-type]
    return [run.records for run in train_seeds(make_problem(config), list(SEEDS))]


def mean_of(runs: list[Records], at: np.ndarray) -> np.ndarray:
    return np.mean([np.interp(at, run.trajectories, run.test_returns) for run in runs], axis=0)


def draw(found: dict[str, list[Records]], honest: list[Records]) -> Figure:
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    at = np.linspace(0, LENGTH, 101)
    above.plot(at, mean_of(honest, at), ":", color="#6b7280", label="ten honest agents, no defence")
    for name, runs in found.items():
        colour = DEFENCES[name][0]
        for run in runs:
            above.plot(run.trajectories, run.test_returns, color=colour, alpha=0.15, linewidth=0.8)
        above.plot(at, mean_of(runs, at), color=colour, linewidth=2, label=name)
        harm = [np.interp(at[5:], run.trajectories[1:], run.column("harm_step")) for run in runs]
        below.plot(at[5:], np.nanmean(harm, axis=0), color=colour, linewidth=2)
    above.set_ylabel("greedy return")
    above.set_title(f"CartPole, 3 of 10 agents lie (Normalized attack), natural steps, {len(SEEDS)} seeds", fontsize=10)
    above.legend(frameon=False, fontsize=9)
    below.set_ylabel("the liars moved the\nstep by (std. errors)")
    below.set_xlabel("trajectories per agent")
    below.axhline(1, color="#6b7280", linewidth=0.8, linestyle=":")
    below.set_ylim(bottom=0)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(0, LENGTH)
        axes.margins(x=0)
    return figure


def main() -> None:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "worst-attack.png")
    found = {name: trained(**settings) for name, (_, settings) in DEFENCES.items()}
    figure = draw(found, trained(**CEILING))
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    write_whole(path, picture.getvalue())
    for name, runs in found.items():
        ends = [run.return_at(LENGTH) for run in runs]
        print(
            f"{name}: {np.mean(ends):.0f} at {LENGTH} trajectories, harm {np.mean([r.mean_harm() for r in runs]):.1f}"
        )
    print(path)


if __name__ == "__main__":
    main()
