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
from fedpg.experiments.statistics import arrivals, finals, inside_by_luck, returns_at
from fedpg.experiments.store import Stored
from fedpg.experiments.tables import FIGURES, TARGETS, at_marks, verdicts

HOLDS, PARTLY, FAILS = "holds", "in part", "does not hold"
MARKS = {HOLDS: "inside", PARTLY: "above", FAILS: "below"}
LEARNT = {CARTPOLE: 1000, LANDER: 2000, CHEETAH: 2000}
"""Trajectories at which the paper's ten agents have learnt, and its one has not."""
ATTACKED = 3000
"""Trajectories to which the attacks of the paper are compared."""
ENOUGH = 0.9
"""Of what honest agents have: who has so much left has lost little."""
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
        labels = _by_label(panel, stored)
        runs = _of_the_same_seeds(
            [run for run in labels.get(f"FedPG-BR (K={k})", []) if run.reached >= mark] for k in (10, 3, 1)
        )
        if runs[0]:
            ten, three, one = (float(returns_at(found, np.array([mark])).mean()) for found in runs)
            good.append(ten >= three >= one and ten > one)
            said.append(f"{NAMES[panel.task]} {ten:.0f}, {three:.0f} and {one:.0f} at {mark:,} ({_seeds(runs[0])})")
    words = f"mean return with 10, 3 and 1 agents: {'; '.join(said)}"
    return Finding("FedPG-BR: more agents learn faster", judged(good), words) if good else None


def _paper_attacks(stored: Stock) -> Iterator[tuple[Panel, str, dict[str, list[Stored]]]]:
    """(panel, attack, runs by label) of figures 2 and 3 and of the variance attack."""
    for name in ("figure2", "figure3", "figure-va"):
        for panel in EXPERIMENTS[name].panels:
            attack = next(str(c.settings["attack"]) for c in panel.curves if "attack" in c.settings)
            yield panel, ATTACK_TITLES[attack].lower(), _by_label(panel, stored)


def attacked(stored: Stock) -> Finding | None:
    """FedPG-BR, between its untrained policy and what ten honest agents learn."""
    honest = {
        panel.task: _by_label(panel, stored).get("FedPG-BR (K=10)", []) for panel in EXPERIMENTS["figure1"].panels
    }
    good, lost, lone = [], [], 0
    for panel, attack, runs in _paper_attacks(stored):
        pair = Pair.of(runs.get("FedPG-BR (K=10, B=3)", []), honest[panel.task], ATTACKED)
        if pair is not None:
            good.append(pair.gained >= ENOUGH)
            lone += len(pair.runs) == 1
            if not good[-1]:
                lost.append(f"{NAMES[panel.task]}, {attack} ({pair.gained:.0%}, {_seeds(pair.runs)})")
    words = f"{sum(good)} of {len(good)} attacks leave {ENOUGH:.0%} or more of what ten honest agents gain on the "
    words += f"untrained policy by {ATTACKED:,} trajectories" + f"; not {', '.join(lost)}" * bool(lost)
    words += f"; {lone} of them were played with one seed" * bool(lone)
    return Finding("FedPG-BR: three Byzantine agents of ten do little harm", judged(good), words) if good else None


def undefended(stored: Stock) -> Finding | None:
    """GPOMDP and SVRPG under the attacks of figure 2, against the same algorithms with ten honest agents."""
    honest = {panel.task: _by_label(panel, stored) for panel in EXPERIMENTS["figure1-baselines"].panels}
    good, kept, tasks = [], [], []
    for panel, attack, runs in _paper_attacks(stored):
        for label in ("GPOMDP", "SVRPG"):
            mine = runs.get(f"{label} (K=10, B=3)", [])
            pair = Pair.of(mine, honest[panel.task].get(f"{label} (K=10)", []), ATTACKED)
            if pair is not None:
                good.append(pair.gained < ENOUGH)
                tasks += [NAMES[panel.task]]
                if not good[-1]:
                    kept.append(f"{label} on {NAMES[panel.task]}, {attack} ({pair.gained:.0%})")
    words = f"they lose more than a tenth of what they gain with ten honest agents in {sum(good)} of {len(good)} cases"
    words += f" ({', '.join(dict.fromkeys(tasks))})" + f"; not {', '.join(kept)}" * bool(kept)
    return Finding("GPOMDP and SVRPG fall to the same attacks", judged(good), words) if good else None


def published(stored: Stock) -> Finding | None:
    """The curves themselves, against what an exact replication with as many seeds would reach."""
    good, said = [], []
    for task, name in NAMES.items():
        reached, expected, marks = 0, 0.0, 0
        for panel in (panel for figure in FIGURES for panel in EXPERIMENTS[figure].on([task]).panels):
            for curve, ours in at_marks(panel, stored):
                for word, seeds in zip(verdicts(panel, curve, ours), ours.seeds, strict=True):
                    if word and not curve.reference:
                        marks += 1
                        reached += not word.startswith("below")
                        expected += (1 + inside_by_luck(int(seeds))) / 2
        if marks:
            good.append(reached >= expected)
            said.append(f"{name} {reached} of {marks} (an exact replication: {expected:.0f})")
    words = f"marks of figures 1 and 2 where we are inside the paper's 90% band or above it: {', '.join(said)}"
    return Finding("The paper's curves are reproduced", judged(good), words) if good else None


def fewer_trajectories(stored: Stock) -> Finding | None:
    """Natural steps against the paper's own curve."""
    good, said = [], []
    for panel in _honest_panels():
        runs, target = _by_label(panel, stored).get(OURS, []), TARGETS[panel.task]
        curve = paper_curves()["Figure 1", AS_IN_THE_PAPER[panel.task], "FedPG-BR (K=10)"]
        there = curve.trajectories[curve.mean >= target]
        if runs and len(there):
            cost = _cost(runs, target)
            good.append(cost <= FIFTH * there[0])
            found = f"{cost:,.0f}" if np.isfinite(cost) else "never"
            said.append(f"{NAMES[panel.task]} {target:,} after {found} (the paper {there[0]:,.0f}; {_seeds(runs)})")
    words = f"median trajectories per agent to a return: {', '.join(said)}"
    return Finding("Natural steps need a fifth of the paper's trajectories", judged(good), words) if good else None


def cheapest(stored: Stock) -> Finding | None:
    """Natural steps against every method of the comparison that was trained for as long."""
    good, said = [], []
    for panel in _honest_panels():
        runs = _by_label(panel, stored)
        ours = _cost(runs.get(OURS, []), TARGETS[panel.task])
        rivals = {label: found for label in METHODS if label != OURS and (found := runs.get(label))}
        costs = {label: _cost(found, TARGETS[panel.task]) for label, found in rivals.items()}
        if not np.isfinite(ours) or not rivals:
            continue
        best = min(costs, key=lambda label: costs[label])
        good.append(ours <= costs[best])
        others = [f"{best} {costs[best]:,.0f} ({_seeds(rivals[best])})"] if np.isfinite(costs[best]) else []
        late = {label for label, cost in costs.items() if not np.isfinite(cost)}
        if late:
            until = min(run.reached for label in late for run in rivals[label])
            others.append(
                f"{len(late)} of {len(rivals)} rivals are not there when their runs end, at {until:,} or later"
            )
        said.append(f"{NAMES[panel.task]} {ours:,.0f} ({_seeds(runs[OURS])}), next {'; '.join(others)}")
    words = f"median trajectories per agent to the same returns: {'. '.join(said)}"
    return Finding("Natural steps need the fewest of all methods", judged(good), words) if good else None


def with_liars(stored: Stock) -> Finding | None:
    """Natural steps with compass, under the attacks of the comparison: what is left of the return itself."""
    panels = {panel.title: panel for panel in EXPERIMENTS["algorithms"].panels}
    first, *lies = CONDITIONS
    good, said = [], []
    for task, name in NAMES.items():
        honest = _by_label(panels[f"{task}, {first}"], stored).get(OURS, [])
        found = {lie: Pair.of(_by_label(panels[f"{task}, {lie}"], stored).get(OURS, []), honest) for lie in lies}
        known = {lie: pair for lie, pair in found.items() if pair is not None and pair.theirs > 0}
        if known:
            worst = min(known, key=lambda lie: known[lie].left)
            pair = known[worst]
            good.append(pair.left >= ENOUGH)
            at = f"at {pair.until:,.0f}, {_seeds(pair.runs)}"
            said.append(f"{name} {pair.mine:,.0f} of {pair.theirs:,.0f} ({pair.left:.0%}; {worst}, {at})")
    words = f"mean return under the worst of three attacks, of that of ten honest agents: {', '.join(said)}"
    return Finding("Natural steps with compass lose a tenth at most to liars", judged(good), words) if good else None


def worth_joining(stored: Stock) -> Finding | None:
    """Ten agents against the server by itself."""
    good, said = [], []
    for panel in _honest_panels():
        runs = _by_label(panel, stored)
        pair = Pair.of(runs.get(SERVER, []), runs.get(OURS, []))
        if pair is not None:
            good.append(pair.left < ENOUGH)
            at = f"at {pair.until:,.0f}, {_seeds(pair.runs)}"
            said.append(f"{NAMES[panel.task]} {pair.mine:,.0f} and {pair.theirs:,.0f} ({at})")
    words = f"mean return of the server alone and of ten agents: {', '.join(said)}"
    return Finding("The federation is worth more than its server alone", judged(good), words) if good else None


class Pair(NamedTuple):
    """Runs beside the reference's of the same seeds, both as far as all of them got.

    Returns are means of the last evaluations.
    """

    runs: list[Stored]
    until: float
    mine: float
    theirs: float
    start: float
    """Of the untrained policy."""

    @classmethod
    def of(cls, runs: Sequence[Stored], reference: Sequence[Stored], until: float = np.inf) -> "Pair | None":
        """None without a seed that both have."""
        others = {run.seed: run for run in reference}
        mine = [run for run in runs if run.seed in others]
        if not mine:
            return None
        theirs = [others[run.seed] for run in mine]
        until = min(until, *(run.reached for run in (*mine, *theirs)))
        start = float(np.mean([run.returns[0] for run in theirs]))
        return cls(mine, until, float(finals(mine, until).mean()), float(finals(theirs, until).mean()), start)

    @property
    def left(self) -> float:
        """The return, as a share of the reference's."""
        return self.mine / self.theirs if self.theirs > 0 else float("nan")

    @property
    def gained(self) -> float:
        """What was gained on the untrained policy, as a share of what the reference gained."""
        return (self.mine - self.start) / (self.theirs - self.start)


def _honest_panels() -> Iterator[Panel]:
    first = next(iter(CONDITIONS))
    return (panel for panel in EXPERIMENTS["algorithms"].panels if panel.title.endswith(first))


def _by_label(panel: Panel, stored: Stock) -> dict[str, list[Stored]]:
    return {curve.label: list(runs) for curve, runs in runs_of(panel, stored)}


def _of_the_same_seeds(groups: Iterable[Sequence[Stored]]) -> list[list[Stored]]:
    """Of several groups of runs those whose seeds all groups have: seeds begin with policies that are good or poor."""
    listed = [{run.seed: run for run in group} for group in groups]
    common = sorted(set[int].intersection(*(set(runs) for runs in listed)))
    return [[runs[seed] for seed in common] for runs in listed]


def _cost(runs: Sequence[Stored], target: float) -> float:
    """The median of the trajectories to a return; infinite unless more than half of the seeds get there."""
    rows = arrivals(runs, target)
    costs = [np.inf if row is None else float(run.trajectories[row]) for run, row in zip(runs, rows, strict=True)]
    return sorted(costs)[len(costs) // 2] if costs else np.inf


def _seeds(*groups: Sequence[Stored]) -> str:
    """As `1 seed`, or `3 to 10 seeds` of several groups."""
    counts = sorted({len(runs) for runs in groups})
    return " to ".join(map(str, counts[:: max(1, len(counts) - 1)])) + " seed" + "s" * (counts != [1])
