"""Nothing is compiled twice: equal settings are the same pieces, and `warm` compiles all that a run will need."""

from typing import Any

import pytest

import gym_probes
from fedpg import Problem, make_config, make_problem, make_task
from fedpg.federation import Local
from fedpg.programs import side_by_side
from fedpg.server import Server
from fedpg.training.rounds import advance, evaluated, first_state

PIECES = ("policy", "estimator", "attack", "aggregator", "optimizer", "algorithm")

EQUAL: dict[str, dict[str, Any]] = {
    "paper": {},
    "released": {"preset": "released", "byzantine": 3, "attack": "fedpg-attack"},
    "options": {"byzantine": 1, "attack": "sign-flipping", "attack_options": ("scale=4",)}
    | {"aggregator": "fedpg", "sigma": 0.5},
    "baseline": {"algorithm": "svrpg", "optimizer": "sgd", "learning_rate": 0.25},
}


def apart(settings: dict[str, Any]) -> list[Problem]:
    """Two problems of the same settings, made from scratch."""
    return [make_problem(make_config(**settings)) for _ in range(2)]


@pytest.mark.parametrize("name", EQUAL)
def test_equal_settings_are_the_very_same_pieces(name: str):
    first, second = apart(EQUAL[name])
    assert [piece for piece in PIECES if getattr(first, piece) is not getattr(second, piece)] == []
    assert first.task is second.task


@pytest.mark.simulators
@pytest.mark.parametrize("preset", ["paper", "released"])
@pytest.mark.parametrize("factory", [gym_probes.walk, gym_probes.discrete_walk])
def test_tasks_that_are_made_anew_have_the_very_same_policy(factory: Any, preset: Any):
    config = make_config("walk", preset, hidden=(3,))
    first, second = (make_problem(config, make_task(factory)) for _ in range(2))
    assert [piece for piece in PIECES if getattr(first, piece) is not getattr(second, piece)] == []


@pytest.mark.parametrize(
    ("settings", "piece"),
    [
        ({"hidden": (16,)}, "policy"),
        ({"activation": "tanh"}, "policy"),
        ({"discount": 0.9}, "estimator"),
        ({"baseline": "none"}, "estimator"),
        ({"importance": "decision"}, "estimator"),
        ({"attack_form": "released"}, "attack"),
        ({"attack_options": ("scale=4",)}, "attack"),
        ({"alpha": 0.2}, "aggregator"),
        ({"sigma": 1.0}, "aggregator"),
        ({"learning_rate": 0.1}, "optimizer"),
    ],
    ids=str,
)
def test_other_settings_are_another_piece_and_the_same_others(settings: dict[str, Any], piece: str):
    usual, other = (make_problem(make_config(preset="paper", **given)) for given in ({}, settings))
    assert [name for name in PIECES if getattr(usual, name) is not getattr(other, name)] == [piece]


ROUNDS = 12
SHORT: dict[str, Any] = {"agents": 10, "horizon": 60, "test_horizon": 60, "test_episodes": 3}
RUNS: dict[str, dict[str, Any]] = {
    "natural": {"byzantine": 3, "attack": "random-noise", "batch": (12, 20)},
    "paper": {"algorithm": "fedpg-br", "byzantine": 3, "attack": "random-noise"},
    "released": {"preset": "released", "byzantine": 3, "attack": "fedpg-attack"},
    "the server alone": {"preset": "released", "sigma": 1e-6},
    "gpomdp": {"algorithm": "gpomdp", "batch": (12, 20)},
    "an attack on the aggregator": {"algorithm": "fedpg-br", "byzantine": 3, "attack": "opt-alie", "momentum": 0.5},
}
USUAL = ("natural", "an attack on the aggregator")
SMALL = {"jit(_measure)", "jit(_reduce_sum)", "jit(_where)", "jit(not_equal)"}
"""What is left to the first round: a norm, a sum, a choice, a comparison."""


def run(problem: Problem, seed: int, compiled: list[str]) -> tuple[set[str], list[str]]:
    """(what was compiled in the first round after `warm`, what in later ones)."""
    federation, server, state = Local(problem, 2), Server(problem), first_state(problem, seed)
    side_by_side([*server.warm_up(state), *federation.warm_up(state.agents)])
    by_round, batches = [], set()
    for _ in range(ROUNDS):
        before = len(compiled)
        evaluated(problem, state)
        state, log = advance(problem, state, federation, server)
        by_round.append(compiled[before:])
        batches.add(log["batch"])
    narrow, wide = problem.task.widths(*problem.config.batch)
    assert min(batches) <= narrow < max(batches) <= wide
    return set(by_round[0]), [name for names in by_round[1:] for name in names]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in USUAL else pytest.param(name, marks=pytest.mark.more) for name in RUNS]
)
def test_a_run_compiles_nothing_after_its_first_round_and_the_next_run_nothing_at_all(name: str, compiled: list[str]):
    rate = 0.00123 + 1e-5 * list(RUNS).index(name)  # that no other test has compiled
    own = "algorithm_options" if name == "natural" else "learning_rate"
    settings = SHORT | RUNS[name] | {own: (f"keep={0.3 + rate}",) if name == "natural" else rate}
    first, later = run(make_problem(make_config(**settings)), 0, compiled)
    assert ("jit(step)" if name == "natural" else "jit(ascend)") in compiled  # this is how compiling would show
    assert first <= SMALL
    assert later == []

    compiled.clear()
    again = make_problem(make_config(**settings, trajectories=77, attack_start=3))
    assert run(again, 1, compiled) == (set(), [])
    assert compiled == []
