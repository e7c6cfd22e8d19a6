"""What holds and what does not, a line each: the first table of the report, from stored runs alone."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedpg.experiments.catalogue import AS_IN_THE_PAPER, ATTACK_TITLES, EXPERIMENTS
from fedpg.experiments.figures import Stock, runs_of
from fedpg.experiments.panels import CARTPOLE, CHEETAH, LANDER, Panel
from fedpg.experiments.paper import paper_curves
from fedpg.experiments.render import Table
from fedpg.experiments.rivals import CONDITIONS, METHODS, REFERENCES
from fedpg.experiments.statistics import arrivals, finals, returns_at
from fedpg.experiments.store import Stored
from fedpg.experiments.tables import FIGURES, TARGETS, tally

HOLDS, PARTLY, FAILS = "holds", "in part", "does not hold"
MARKS = {HOLDS: "inside", PARTLY: "above", FAILS: "below"}
LEARNT = {CARTPOLE: 1000, LANDER: 2000, CHEETAH: 2000}
"""Trajectories at which the paper's ten agents have learnt, and its one has not."""
ATTACKED = 3000
"""Trajectories to which the attacks of the paper are compared."""
ENOUGH = 0.9
"""Of what honest agents learn: who has so much left has lost little."""
GAIN = "gain on the untrained policy"
FIFTH = 0.2
OURS, SERVER = next(iter(METHODS)), next(iter(REFERENCES))
NAMES = {CARTPOLE: "CartPole", LANDER: "LunarLander", CHEETAH: "HalfCheetah"}


class Finding(NamedTuple):
    """A claim, whether it holds, and what was measured."""

    claim: str
    verdict: str
    measured: str


def judged(good: Sequence[bool]) -> str:
    """Holds everywhere, somewhere or nowhere."""
    return HOLDS if all(good) else PARTLY if any(good) else FAILS


def findings(stored: Stock) -> Iterator[Finding]:
    """Those for which something is stored: the paper's claims first."""
    makers: tuple[Callable[[Stock], Finding | None], ...] = (
        *(more_agents, attacked, undefended, published),
        *(fewer_trajectories, cheapest, with_liars, worth_joining),
    )
    for make in makers:
        found = make(stored)
        if found is not None:
            yield found


def table_of(found: Iterable[Finding]) -> Table:
    return Table(("what is claimed", "", "what was measured"), [*found], marks=MARKS, words=3, prose=True)


def more_agents(stored: Stock) -> Finding | None:
    """Figure 1."""
    good, said = [], []
    for panel in EXPERIMENTS["figure1"].panels:
        mark = LEARNT[panel.task]
        runs = _by_label(panel, stored)
        means = [_mean_at(runs.get(f"FedPG-BR (K={k})", ()), mark) for k in (10, 3, 1)]
        if not np.isnan(means).any():
            good.append(means[0] > means[2])
            said.append(f"{NAMES[panel.task]} {means[0]:.0f}, {means[1]:.0f} and {means[2]:.0f} at {mark:,}")
    words = f"return with 10, 3 and 1 agents: {'; '.join(said)} trajectories per agent"
    return Finding("FedPG-BR: more agents learn faster", judged(good), words) if good else None


def _paper_attacks(stored: Stock) -> Iterator[tuple[Panel, str, dict[str, list[Stored]]]]:
    """(panel, attack, runs by label) of figures 2 and 3 and of the variance attack."""
    for name in ("figure2", "figure3", "figure-va"):
        for panel in EXPERIMENTS[name].panels:
            attack = next(str(c.settings["attack"]) for c in panel.curves if "attack" in c.settings)
            yield panel, attack, _by_label(panel, stored)


def attacked(stored: Stock) -> Finding | None:
    """FedPG-BR, between its untrained policy and what ten honest agents learn."""
    honest = {
        panel.task: _by_label(panel, stored).get("FedPG-BR (K=10)", []) for panel in EXPERIMENTS["figure1"].panels
    }
    good, said = [], []
    for panel, attack, runs in _paper_attacks(stored):
        share = _share_left(runs.get("FedPG-BR (K=10, B=3)", []), honest[panel.task], ATTACKED)
        if share is not None:
            good.append(share >= ENOUGH)
            if not good[-1]:
                said.append(f"{NAMES[panel.task]}, {ATTACK_TITLES[attack].lower()} ({share:.0%})")
    words = f"{sum(good)} of {len(good)} attacks leave {ENOUGH:.0%} or more of what ten honest agents {GAIN}"
    words += f"; not {', '.join(said)}" * bool(said)
    return Finding("FedPG-BR: three Byzantine agents of ten do little harm", judged(good), words) if good else None


def undefended(stored: Stock) -> Finding | None:
    """GPOMDP and SVRPG under the attacks of figure 2."""
    good, said = [], []
    for panel, attack, runs in _paper_attacks(stored):
        for label in ("GPOMDP", "SVRPG"):
            share = _share_left(runs.get(f"{label} (K=10, B=3)", []), runs.get("FedPG-BR (K=10, B=3)", []), ATTACKED)
            if share is not None:
                good.append(share < ENOUGH)
                if not good[-1]:
                    said.append(f"{label} on {NAMES[panel.task]}, {ATTACK_TITLES[attack].lower()}")
    words = f"behind FedPG-BR by a tenth or more in {sum(good)} of {len(good)} cases at {ATTACKED:,} trajectories"
    words += f"; not {', '.join(said)}" * bool(said)
    return Finding("GPOMDP and SVRPG fall to the same attacks", judged(good), words) if good else None


def published(stored: Stock) -> Finding | None:
    """The curves themselves."""
    good, said = [], []
    for task, name in NAMES.items():
        total, _ = tally([EXPERIMENTS[figure].on([task]) for figure in FIGURES], stored)
        if total:
            reached = sum(count for word, count in total.items() if not word.startswith("below"))
            good.append(reached >= ENOUGH * total.total())
            said.append(f"{name} {reached} of {total.total()}")
    words = f"marks of figures 1 and 2 inside the paper's 90% band or above it: {', '.join(said)}"
    return Finding("The paper's curves", PARTLY if not any(good) and good else judged(good), words) if good else None


def fewer_trajectories(stored: Stock) -> Finding | None:
    """Natural steps against the paper's own curve."""
    good, said, needed = [], [], []
    for panel in _honest_panels():
        cost = _cost(_by_label(panel, stored).get(OURS, []), TARGETS[panel.task])
        curve = paper_curves()["Figure 1", AS_IN_THE_PAPER[panel.task], "FedPG-BR (K=10)"]
        there = curve.trajectories[curve.mean >= TARGETS[panel.task]]
        if cost is not None and len(there):
            good.append(cost <= FIFTH * there[0])
            said.append(f"{NAMES[panel.task]} {TARGETS[panel.task]:,} after {cost:,.0f}")
            needed.append(f"{there[0]:,.0f}")
    words = f"{'; '.join(said)} trajectories per agent (the paper: {', '.join(needed)})"
    return Finding("Natural steps need a fifth of the paper's trajectories", judged(good), words) if good else None


def cheapest(stored: Stock) -> Finding | None:
    """Natural steps against every method of the comparison."""
    good, said = [], []
    for panel in _honest_panels():
        runs = _by_label(panel, stored)
        costs = {label: _cost(runs.get(label, []), TARGETS[panel.task]) for label in METHODS}
        ours = costs.pop(OURS)
        others = {label: cost for label, cost in costs.items() if cost is not None}
        if ours is None or not any(runs.get(label) for label in costs):
            continue
        best = min(others, key=lambda label: others[label], default=None)
        good.append(best is None or ours <= others[best])
        rival = f"next {best} with {others[best]:,.0f}" if best else "no other gets there"
        said.append(f"{NAMES[panel.task]} {ours:,.0f} ({rival})")
    words = f"trajectories per agent to the same returns: {'; '.join(said)}"
    return Finding("Natural steps need the fewest of all methods", judged(good), words) if good else None


def with_liars(stored: Stock) -> Finding | None:
    """Natural steps with compass, under the attacks of the comparison."""
    panels = {panel.title: panel for panel in EXPERIMENTS["algorithms"].panels}
    first, *lies = CONDITIONS
    good, said = [], []
    for task, name in NAMES.items():
        honest = _by_label(panels[f"{task}, {first}"], stored).get(OURS, [])
        shares = {lie: _share_left(_by_label(panels[f"{task}, {lie}"], stored).get(OURS, []), honest) for lie in lies}
        known = {lie: share for lie, share in shares.items() if share is not None}
        if known:
            worst = min(known, key=lambda lie: known[lie])
            good.append(known[worst] >= ENOUGH)
            said.append(f"{name} {known[worst]:.0%} ({worst})")
    words = f"what the worst of three attacks leaves of what ten honest agents {GAIN}: {', '.join(said)}"
    return Finding("Natural steps with compass lose a tenth at most to liars", judged(good), words) if good else None


def worth_joining(stored: Stock) -> Finding | None:
    """Ten agents against the server by itself."""
    good, said = [], []
    for panel in _honest_panels():
        runs = _by_label(panel, stored)
        share = _share_left(runs.get(SERVER, []), runs.get(OURS, []))
        if share is not None:
            good.append(share < ENOUGH)
            said.append(f"{NAMES[panel.task]} {share:.0%}")
    words = f"what the server alone gains of what ten agents do: {', '.join(said)}"
    return Finding("The federation is worth more than its server alone", judged(good), words) if good else None


def _honest_panels() -> Iterator[Panel]:
    first = next(iter(CONDITIONS))
    return (panel for panel in EXPERIMENTS["algorithms"].panels if panel.title.endswith(first))


def _by_label(panel: Panel, stored: Stock) -> dict[str, list[Stored]]:
    return {curve.label: list(runs) for curve, runs in runs_of(panel, stored)}


def _mean_at(runs: Sequence[Stored], mark: float) -> float:
    """Over the seeds that got there; NaN if none did."""
    values = returns_at(runs, np.array([mark]))[:, 0] if runs else np.zeros(0)
    there = values[~np.isnan(values)]
    return float(there.mean()) if len(there) else float("nan")


def _cost(runs: Sequence[Stored], target: float) -> float | None:
    """Trajectories to a return, as the report has them; None unless half of the seeds get there."""
    there = [run.trajectories[row] for run, row in zip(runs, arrivals(runs, target), strict=True) if row is not None]
    return float(np.median(there)) if there and 2 * len(there) >= len(runs) else None


def _share_left(runs: Sequence[Stored], of: Sequence[Stored], until: float = np.inf) -> float | None:
    """What some runs have learnt of what others have, with the seeds and as far as both have; None without any.

    What was learnt is the mean of the last evaluations above the untrained policy's.
    """
    pairs = {run.seed: run for run in of}
    mine = [run for run in runs if run.seed in pairs]
    if not mine:
        return None
    theirs = [pairs[run.seed] for run in mine]
    until = min(until, *(run.reached for run in (*mine, *theirs)))
    start = np.mean([run.returns[0] for run in theirs])
    return float((finals(mine, until).mean() - start) / (finals(theirs, until).mean() - start))
