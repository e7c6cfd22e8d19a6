"""What the report says holds, holds of the runs that it is given."""

import re
from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from fedpg.experiments.catalogue import EXPERIMENTS
from fedpg.experiments.findings import FAILS, HOLDS, PARTLY, Finding, findings, judged, table_of
from fedpg.experiments.panels import CARTPOLE, LANDER, config_of
from fedpg.experiments.paper import paper_curves
from fedpg.experiments.render import to_html
from fedpg.experiments.store import Key, Stored
from stored import stored_run

LENGTH = 5000.0


def run_of(experiment: str, title: str, label: str, returns: Sequence[float], seed: int = 0) -> Stored:
    """A run of one curve, with these returns at equal distances up to 5000 trajectories."""
    panel = next(p for p in EXPERIMENTS[experiment].panels if p.title == title)
    curve = next(c for c in panel.curves if c.label == label)
    return stored_run(config_of(panel, curve), seed, returns=returns, length=LENGTH)


def learning(until: float) -> np.ndarray:
    """From 20 to 500, reached after so many trajectories, then level."""
    return np.interp(np.linspace(0, LENGTH, 401), [0, until, LENGTH], [20, 500, 500])


def level(value: float) -> np.ndarray:
    """Learnt at once, and no further."""
    return np.r_[20, np.full(400, value)]


def found(runs: Iterable[Stored]) -> dict[str, Finding]:
    stock: dict[Key, Stored] = {run.key: run for run in runs}
    return {finding.claim: finding for finding in findings(stock)}


def only(runs: Iterable[Stored], words: str) -> Finding:
    return next(finding for claim, finding in found(runs).items() if words in claim)


def test_without_runs_nothing_is_found():
    assert found([]) == {}
    assert list(table_of([]).rows) == []


@pytest.mark.parametrize(("good", "verdict"), [([True, True], HOLDS), ([True, False], PARTLY), ([False], FAILS)])
def test_a_claim_holds_everywhere_somewhere_or_nowhere(good: list[bool], verdict: str):
    assert judged(good) == verdict


@pytest.mark.parametrize(
    ("ten", "three", "verdict"), [(500, 1500, HOLDS), (500, 600, HOLDS), (1200, 600, FAILS), (4000, 1500, FAILS)]
)
def test_more_agents_are_faster_only_if_they_are(ten: float, three: float, verdict: str):
    learnt = {10: ten, 3: three, 1: 2500}
    runs = [run_of("figure1", CARTPOLE, f"FedPG-BR (K={k})", learning(until)) for k, until in learnt.items()]
    finding = only(runs, "more agents")
    assert finding.verdict == verdict
    values = [np.interp(1000, [0, until], [20, 500]) for until in learnt.values()]
    assert f"CartPole {values[0]:.0f}, {values[1]:.0f} and {values[2]:.0f} at 1,000 (1 seed)" in finding.measured
    assert not any("more agents" in claim for claim in found(runs[:2]))  # not without one agent alone
    lucky = run_of("figure1", CARTPOLE, "FedPG-BR (K=3)", level(500), seed=1)  # a seed that the others do not have
    assert only([*runs, lucky], "more agents") == finding


@pytest.mark.parametrize(("left", "verdict"), [(490, HOLDS), (300, FAILS)])
def test_liars_do_little_harm_only_if_ten_agents_keep_what_they_learn(left: float, verdict: str):
    honest = run_of("figure1", CARTPOLE, "FedPG-BR (K=10)", level(500))
    attacked = run_of("figure2", "CartPole-v1: Sign Flipping", "FedPG-BR (K=10, B=3)", level(left))
    finding = only([honest, attacked], "do little harm")
    assert finding.verdict == verdict
    # What was learnt is counted from the untrained policy, whose return is 20.
    assert (f"sign flipping ({(left - 20) / 480:.0%}, 1 seed)" in finding.measured) == (verdict == FAILS)


def test_a_share_is_of_the_seeds_and_the_length_that_both_have():
    honest = [run_of("figure1", CARTPOLE, "FedPG-BR (K=10)", level(v), seed) for seed, v in enumerate((500, 100))]
    attacked = [run_of("figure2", "CartPole-v1: Sign Flipping", "FedPG-BR (K=10, B=3)", level(v), 1) for v in (95,)]
    assert only([*honest, *attacked], "do little harm").verdict == HOLDS  # 95 of 100, not of 300


def test_baselines_fall_only_if_an_attack_costs_them_something():
    names = ("GPOMDP", "SVRPG")
    honest = [run_of("figure1-baselines", CARTPOLE, f"{name} (K=10)", level(400)) for name in names]
    falls = run_of("figure2", "CartPole-v1: Sign Flipping", "GPOMDP (K=10, B=3)", level(20))
    stands = run_of("figure2", "CartPole-v1: Sign Flipping", "SVRPG (K=10, B=3)", level(400))
    assert only([*honest, falls], "fall to the same").verdict == HOLDS
    both = only([*honest, falls, stands], "fall to the same")
    assert both.verdict == PARTLY
    assert "1 of 2 cases (CartPole)" in both.measured
    assert "not SVRPG on CartPole, sign flipping (100%)" in both.measured
    ours = run_of("figure2", "CartPole-v1: Sign Flipping", "FedPG-BR (K=10, B=3)", level(500))
    assert not any("fall to the same" in claim for claim in found([ours, falls]))  # what they learn honestly is unknown


def papers(shift: float) -> list[Stored]:
    """Two seeds of figure 1 on CartPole, so far from the paper's own curves."""
    panel = next(p for p in EXPERIMENTS["figure1"].panels if p.task == CARTPOLE)
    runs = []
    for curve in panel.curves:
        assert curve.paper is not None
        marks = np.linspace(0, LENGTH, 401)
        mean = [np.nan_to_num(paper_curves()[curve.paper].at(mark)[0], nan=20.0) for mark in marks]
        runs += [run_of("figure1", CARTPOLE, curve.label, np.array(mean) + shift, seed) for seed in range(10)]
    return runs


@pytest.mark.parametrize(("shift", "verdict"), [(0, HOLDS), (200, HOLDS), (-200, FAILS)])
def test_the_papers_curves_are_reproduced_only_if_we_are_not_below(shift: float, verdict: str):
    assert only(papers(shift), "are reproduced").verdict == verdict


@pytest.mark.parametrize(("until", "verdict"), [(120.0, HOLDS), (900.0, FAILS)])
def test_a_fifth_of_the_trajectories_is_a_fifth_of_the_papers(until: float, verdict: str):
    ours = run_of("algorithms", "CartPole-v1, 10 honest agents", "natural steps, compass", learning(until))
    finding = only([ours], "a fifth")  # the paper needs 1000 to get to 475
    assert finding.verdict == verdict
    assert "(the paper 1,000; 1 seed)" in finding.measured


def test_the_cheapest_is_compared_with_the_best_rival_that_gets_there():
    title = "CartPole-v1, 10 honest agents"
    ours = run_of("algorithms", title, "natural steps, compass", learning(400))
    slow = run_of("algorithms", title, "Res-NHARPG", learning(2000))
    fast = run_of("algorithms", title, "N-PG-IGT", learning(100))
    never = run_of("algorithms", title, "ByzPG", level(50))
    assert "1 of 1 rivals are not there when their runs end, at 5,000" in only([ours, never], "fewest").measured
    both = only([ours, slow, never], "fewest")
    assert both.verdict == HOLDS
    assert re.search(r"next Res-NHARPG 1,9\d\d \(1 seed\); 1 of 2 rivals are not there", both.measured)
    assert "next N-PG-IGT" in only([ours, slow, fast], "fewest").measured
    assert only([ours, slow, fast], "fewest").verdict == FAILS
    assert not any("fewest" in claim for claim in found([ours]))  # nothing to compare with


def test_seeds_that_never_arrive_count_as_infinitely_long():
    title, label = "CartPole-v1, 10 honest agents", "natural steps, compass"
    curves = (learning(40), learning(60), level(50), level(50))
    costs = [run_of("algorithms", title, label, returns, seed) for seed, returns in enumerate(curves)]
    assert only(costs[:3], "a fifth").verdict == HOLDS
    assert "475 after never" in only(costs, "a fifth").measured


def test_the_worst_of_the_attacks_is_the_one_that_counts():
    ours = "natural steps, compass"
    honest = run_of("algorithms", "CartPole-v1, 10 honest agents", ours, level(500))
    mild = run_of("algorithms", "CartPole-v1, 3 of 10 flip signs", ours, level(499))
    bad = run_of("algorithms", "CartPole-v1, 3 of 10 flip rewards", ours, level(260))
    assert only([honest, mild], "lose a tenth").verdict == HOLDS
    worst = only([honest, mild, bad], "lose a tenth")
    assert worst.verdict == FAILS
    assert "CartPole 260 of 500 (52%; 3 of 10 flip rewards, at 5,000, 1 seed)" in worst.measured


def test_joining_is_worth_it_where_the_server_alone_is_behind():
    ours, server = "natural steps, compass", "natural steps, the server alone"
    runs = [
        run_of("algorithms", f"{task}, 10 honest agents", label, level(value))
        for task, label, value in (
            (CARTPOLE, ours, 500),
            (CARTPOLE, server, 500),
            (LANDER, ours, 220),
            (LANDER, server, 100),
        )
    ]
    finding = only(runs, "than its server alone")
    assert finding.verdict == PARTLY
    assert "CartPole 500 and 500 (at 5,000, 1 seed), LunarLander 100 and 220" in finding.measured


def test_the_table_has_a_line_for_each_finding_and_marks_its_verdict():
    table = table_of([Finding("one", HOLDS, "a"), Finding("two", FAILS, "b < c")])
    page = to_html("T", [table])
    assert len(table.rows) == 2
    assert 'class="words inside">holds<' in page
    assert 'class="words below">does not hold<' in page
    assert "b &lt; c" in page
