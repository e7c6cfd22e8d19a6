"""Agents that differ, with and without liars: what the common policy is worth to each, and who is turned away."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedpg.arena.games import Game, Ledger, Result
from fedpg.arena.players import DEFENCES, HONEST, NOBODY, SERVER, base_config
from fedpg.config import Config
from fedpg.errors import ConfigError
from fedpg.experiments.figures import STYLE, save_figure
from fedpg.experiments.panels import BLUE, CARTPOLE, CHEETAH, GREY, LANDER, ORANGE, PURPLE, RED
from fedpg.experiments.statistics import resampled

AGENTS, LIARS = 10, 3
WORST = ("alie,z=1.5", "sign-flipping")
"""The attack that hides in how far honest agents are apart, which is more where they differ; and the paper's own."""


class Study(NamedTuple):
    """What is played on a task."""

    widths: tuple[float, ...]
    parameters: dict[str, str]
    """What differs -> from where to where, in parts of the width: give or take so much, or from 0 to so much."""
    trajectories: int
    defences: tuple[str, ...]
    """Beside compass and the paper's filter, under the first attack only."""
    attacks: tuple[str, ...]
    alone: int
    """For so many of the agents: what they reach alone."""

    def words(self, width: float) -> tuple[str, ...]:
        return tuple(f"{name}={_scaled(limits, width)}" for name, limits in self.parameters.items())


def _scaled(limits: str, width: float) -> str:
    return ":".join(f"{round(float(limit) * width, 4):g}" for limit in limits.split(":"))


MAIN = ("compass", "fedpg")
REFUSED = ("bucketing+median",)
"""What cannot stand three liars of ten."""
OTHERS = tuple(defence for defence in DEFENCES if defence not in (*MAIN, *REFUSED, HONEST))
STUDIES = {
    CARTPOLE: Study(
        widths=(0.0, 0.25, 0.5, 0.75),
        parameters={"half_length": "1", "gravity": "1", "mass_cart": "1", "mass_pole": "1", "force": "1"},
        trajectories=300,
        defences=OTHERS,
        attacks=WORST,
        alone=AGENTS - LIARS,
    ),
    # Gymnasium's lander takes gravities down to -12 only. Agents have up to so much of the wind and the turbulence that
    # it has where wind blows (15 and 1.5): in all of it nobody learns in time. The server has the middle of theirs.
    LANDER: Study(
        (0.0, 0.25, 0.5),
        {"gravity": "0.38", "wind_power": "0:15", "turbulence_power": "0:1.5"},
        trajectories=350,
        defences=(),
        attacks=WORST[:1],
        alone=2,
    ),
    CHEETAH: Study((0.0, 0.25, 0.5), {"friction": "1", "gravity": "1", "mass": "1"}, 250, (), WORST[:1], 2),
}


class Plan(NamedTuple):
    """The games of one width."""

    width: float
    base: Config
    pairs: list[tuple[str, str]]


def plans(task: str, trajectories: int | None = None) -> list[Plan]:
    """What is played on a task, one width after the other: the main comparison, who is alone, the other defences."""
    if task not in STUDIES:
        raise ConfigError(f"heterogeneity has no panel for {task}: it is about {', '.join(STUDIES)}")
    study = STUDIES[task]
    found = []
    for width in study.widths:
        length = min(study.trajectories, trajectories or study.trajectories)
        base = base_config(task, AGENTS, LIARS, length, vary=study.words(width))
        pairs = [(NOBODY, SERVER), (NOBODY, HONEST)]
        pairs += [(attack, defence) for defence in MAIN for attack in (NOBODY, *study.attacks)]
        pairs += [(f"agent {i} alone", HONEST) for i in range(study.alone if width else 1)]  # else all are alike
        pairs += [(attack, defence) for defence in study.defences for attack in (NOBODY, study.attacks[0])]
        found.append(Plan(width, base, pairs))
    return found


class Worth(NamedTuple):
    """What came of the games of one attack and one defence, as means over seeds."""

    kept: float  # the share of honest replies that were accepted
    mean: float  # return of the common policy in the honest agents' own tasks
    worst: float
    best: float
    nominal: float  # in the server's task
    unseen: float
    error: float  # the half-width of the 90% interval of `worst`, over seeds


def worth(results: Mapping[Game, Result], pair: tuple[str, str], seeds: Sequence[int]) -> Worth | None:
    """None if they have not all been played."""
    games = [results.get(Game(*pair, seed)) for seed in seeds]
    each = [game.each for game in games if game is not None and game.each is not None]
    if len(each) < len(seeds):
        return None
    honest = AGENTS - LIARS
    own = np.array([e.own[:honest] for e in each])  # [seeds, honest agents]; the same agents whoever lies
    worst = own.min(axis=1)
    means = resampled(len(seeds)) @ worst / len(seeds)
    low, high = np.percentile(means, (5, 95)) if len(seeds) > 1 else (np.nan, np.nan)
    return Worth(
        kept=float(np.mean([game.honest_kept for game in games if game is not None])),
        mean=float(own.mean()),
        worst=float(worst.mean()),
        best=float(own.max(axis=1).mean()),
        nominal=float(np.mean([e.nominal for e in each])),
        unseen=float(np.mean([np.mean(e.unseen) for e in each])) if each[0].unseen else float("nan"),
        error=float(high - low) / 2,
    )


def seeds_of(task: str, results: Path) -> list[int]:
    """The seeds with which everything that the picture needs has been played."""
    played = [Ledger(results, plan.base).results for plan in plans(task)]
    seeds = sorted({game.seed for games in played for game in games})
    return [s for s in seeds if all(Game(*pair, s) in games for games in played for pair, *_ in LINES)]


class Rows(NamedTuple):
    """A table."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]


def tables(task: str, results: Path, seeds: Sequence[int], trajectories: int | None = None) -> tuple[Rows, Rows]:
    """What the policy is worth, by width, attack and defence; and for every agent whether joining is worth it."""
    columns = ("differ", "attack", "defence", "honest kept", "mean", "worst", "best", "server's", "unseen")
    found, joining = [], []
    for plan in plans(task, trajectories):
        played = Ledger(results, plan.base).results
        for pair in plan.pairs:
            w = worth(played, pair, seeds) if not pair[0].startswith("agent ") else None
            if w is not None:
                numbers = [f"{x:.0f}" for x in (w.mean, w.worst, w.best, w.nominal)]
                unseen = "" if np.isnan(w.unseen) else f"{w.unseen:.0f}"
                kept = f"{w.kept:.0%}" if pair[1] != SERVER else ""
                found.append([f"±{plan.width:.0%}", *pair, kept, *numbers, unseen])
        joining += list(_joining(plan, played, seeds))
    first = Rows(f"{task}: return of the common policy in the honest agents' own tasks", columns, found)
    names = ("differ", "agent", "its task", "federation", "with liars", "alone")
    return first, Rows(f"{task}: is joining worth it?", names, joining)


def _joining(plan: Plan, played: Mapping[Game, Result], seeds: Sequence[int]) -> list[list[str]]:
    """A row for every agent that was also alone: its return with the federation's policy, and with its own."""

    def own(pair: tuple[str, str], agent: int) -> float:
        each = [played[Game(*pair, seed)].each for seed in seeds if Game(*pair, seed) in played]
        values = [e.own[agent] for e in each if e is not None]
        return float(np.mean(values)) if len(values) == len(seeds) else float("nan")

    rows = []
    for attack, defence in plan.pairs:
        if not attack.startswith("agent "):
            continue
        agent = int(attack.split()[1])
        lie = next(a for a, d in plan.pairs if d == "compass" and a != NOBODY)
        found = [own((NOBODY, "compass"), agent), own((lie, "compass"), agent), own((attack, defence), 0)]
        if not np.isnan(found).any():
            each = played[Game(NOBODY, "compass", seeds[0])].each
            assert each is not None
            numbers = {n: v[agent] for n, v in each.parameters.items() if isinstance(v[agent], float)}
            task = ", ".join(f"{name} {value:.3g}" for name, value in numbers.items())
            rows.append([f"±{plan.width:.0%}", str(agent), task, *(f"{x:.0f}" for x in found)])
    return rows


LINES = (
    ((NOBODY, "compass"), BLUE, "o-", "compass, honest agents"),
    ((WORST[0], "compass"), PURPLE, "s-", "compass, 3 of 10 lie (ALIE)"),
    ((NOBODY, "fedpg"), ORANGE, "^--", "the paper's filter, honest agents"),
    ((WORST[0], "fedpg"), RED, "v--", "the paper's filter, 3 of 10 lie (ALIE)"),
    ((NOBODY, SERVER), GREY, "x:", "the server alone"),
)


def picture(
    task: str, results: Path, seeds: Sequence[int], kind: str = "png", trajectories: int | None = None
) -> bytes:
    """The worst honest agent's return, and the honest replies that were kept, against how much agents differ."""
    played = {plan.width: Ledger(results, plan.base).results for plan in plans(task, trajectories)}
    with rc_context(STYLE):
        figure = Figure(figsize=(8.4, 3.4), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        for pair, colour, style, label in LINES:
            found = {width: worth(games, pair, seeds) for width, games in played.items()}
            points = [(100 * width, w) for width, w in found.items() if w is not None]
            if not points:
                continue
            x = [width for width, _ in points]
            left.errorbar(
                x, [w.worst for _, w in points], [np.nan_to_num(w.error) for _, w in points],
                fmt=style, color=colour, label=label, capsize=2, markersize=4,
            )  # fmt: skip
            if pair[1] != SERVER:
                right.plot(x, [100 * w.kept for _, w in points], style, color=colour, markersize=4)
        left.set_ylabel("return of the worst honest agent")
        right.set_ylabel("honest replies kept, %")
        right.set_ylim(0, 103)
        for axes in (left, right):
            axes.set_xlabel("agents differ by up to ± %")
        figure.suptitle(f"{task}, {len(seeds)} seed{'s' * (len(seeds) > 1)}: agents that differ", fontsize=10)
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
        return save_figure(figure, kind, dpi=110)


Play = Callable[[Ledger, Sequence[tuple[str, str]], Sequence[int]], None]


def play(task: str, results: Path, seeds: Sequence[int], trajectories: int | None, play_pairs: Play) -> None:
    """Play what is missing: for all widths what the picture needs first, then the rest."""
    found = plans(task, trajectories)
    main = {pair for pair, *_ in LINES}
    for wanted in (True, False):
        for plan in found:
            play_pairs(Ledger(results, plan.base), [p for p in plan.pairs if (p in main) == wanted], seeds)
