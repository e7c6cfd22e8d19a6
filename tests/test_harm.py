"""Harm: how far the aggregate of a round lies from the mean of the honest, against numbers by hand and exact ones."""

import functools
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import Array

from fedpg import Problem, train_seeds
from fedpg.federation import Local
from fedpg.machine import cores
from fedpg.problem import Outcome
from fedpg.server import Server
from fedpg.storage import load_tensors, save_tensors
from fedpg.training.checkpoint import FILE, load_checkpoint
from fedpg.training.harm import Harm, harm_of
from fedpg.training.rounds import advance, first_state

SGD, ADAM = optax.sgd(0.3), optax.adam(0.01)
SENT = [[1.0, 1.0], [3.0, -1.0], [-11.0, 12.0]]
"""Of two honest agents and a liar: m = (2, 0), se = sqrt(2); the mean of all three is (-7/3, 4)."""
HONEST = [True, True, False]


def measured(
    vectors: Any, honest: Any, aggregate: Any, optimizer: optax.GradientTransformation = SGD, somebody: bool = True
) -> Harm:
    rows, one = np.asarray(vectors, np.float32), np.asarray(aggregate, np.float32)
    return Harm(*map(float, _measured(optimizer, rows, np.asarray(honest), one, np.asarray(somebody))))


@functools.partial(jax.jit, static_argnums=0)
def _measured(optimizer: optax.GradientTransformation, rows: Array, *given: Array) -> Harm:
    def move(x: Array) -> Array:
        return optimizer.update(-x, optimizer.init(jnp.zeros(rows.shape[1])), None)[0]

    return harm_of(rows, *given, move)


def test_harm_by_hand():
    found = measured(SENT, HONEST, [-2.0, 4.0])
    assert found.harm == pytest.approx(math.sqrt(32) / math.sqrt(2))
    assert found.harm_cosine == pytest.approx(-4 / (math.sqrt(20) * 2))
    assert found.harm_step == pytest.approx(found.harm)  # SGD steps as the vector goes, whatever its rate


def test_harm_to_the_step_is_in_the_metric_of_the_optimiser():
    """Adam's first move is the sign: u(m) = (1, 0), u(g_i) = (1, 1) and (1, -1), u(a) = (-1, 1)."""
    found = measured(SENT, HONEST, [-2.0, 4.0], ADAM)
    assert found.harm == pytest.approx(4.0)
    assert found.harm_step == pytest.approx(math.sqrt(5), rel=1e-5)


@pytest.mark.parametrize("optimizer", [SGD, ADAM], ids=["sgd", "adam"])
def test_the_mean_of_the_honest_does_no_harm(optimizer: optax.GradientTransformation):
    found = measured(SENT, HONEST, [2.0, 0.0], optimizer)
    assert found == pytest.approx((0.0, 0.0, 1.0), abs=1e-6)


@pytest.mark.parametrize(("agents", "chosen"), [(4, 2), (5, 2), (6, 5)])
def test_chance_alone_does_a_harm_of_about_one(agents: int, chosen: int):
    """Over all subsets of k of h honest agents, the mean of harm^2 is h / k - 1: 1 where half of them are left out."""
    vectors = np.random.default_rng(0).normal(size=(agents, 7))
    squares = [
        measured(vectors, [True] * agents, vectors[list(some)].mean(axis=0)).harm ** 2
        for some in itertools.combinations(range(agents), chosen)
    ]
    assert np.mean(squares) == pytest.approx(agents / chosen - 1, rel=1e-4)


@given(st.integers(-25, 25), st.integers(0, 2**32 - 1))
def test_harm_has_no_unit_and_does_not_depend_on_what_liars_sent(exponent: int, seed: int):
    rng = np.random.default_rng(seed)
    vectors, aggregate = rng.normal(size=(6, 3)), rng.normal(size=3)
    honest = np.arange(6) < 4
    plain = measured(vectors, honest, aggregate)
    scaled = vectors * 10.0**exponent
    scaled[4:] = [[np.nan] * 3, [np.inf, 0.0, -np.inf]]
    assert measured(scaled, honest, aggregate * 10.0**exponent) == pytest.approx(plain, rel=1e-3)
    assert plain.harm == pytest.approx(by_numpy(vectors[:4], aggregate), rel=1e-3)


def by_numpy(honest: np.ndarray, aggregate: np.ndarray) -> float:
    honest, h = np.asarray(honest, float), len(honest)
    mean = honest.mean(axis=0)
    return float(np.linalg.norm(aggregate - mean) / np.sqrt(((honest - mean) ** 2).sum() / (h * (h - 1))))


def test_harm_is_not_a_number_where_it_has_no_meaning():
    assert all(map(math.isnan, measured(SENT, [False, True, False], [1.0, 1.0])))  # one honest agent has no spread
    assert all(map(math.isnan, measured(SENT, HONEST, [0.0, 0.0], somebody=False)))  # there is no aggregate
    same = measured([[0.1, 0.7]] * 7, [True] * 7, [1.0, 1.0])
    assert math.isnan(same.harm)  # rounding is no spread
    assert math.isnan(same.harm_step)
    assert same.harm_cosine == pytest.approx(0.8 / math.sqrt(2 * 0.5), rel=1e-5)
    assert math.isnan(measured(SENT, HONEST, [0.0, 0.0]).harm_cosine)  # zero points nowhere


# In rounds


class Overheard(Local):
    """The agents of this process; what came of their answers is kept."""

    def tell(self, round_: int, outcome: Outcome) -> None:
        self.outcome = outcome


def rounds(problem: Problem, count: int) -> list[tuple[dict[str, Any], Outcome, Any]]:
    """The log of each round, what happened in it, and the state before it."""
    federation, server, state = Overheard(problem, cores()), Server(problem), first_state(problem, 0)
    found = []
    for _ in range(count):
        after, log = advance(problem, state, federation, server)
        found.append((log, federation.outcome, state))
        state = after
    return found


@pytest.mark.slow
def test_a_round_says_how_far_the_liars_moved_the_step(tiny: Callable[..., Problem]):
    problem = tiny(aggregator="mean", batch=(4, 4))
    updated = jax.jit(problem.optimizer.update)
    for log, outcome, state in rounds(problem, 3):
        vectors, aggregate = np.asarray(outcome.replies.vectors["gradient"]), np.asarray(outcome.verdict.gradient)

        def move(x: np.ndarray, state: Any = state) -> np.ndarray:
            return np.asarray(updated(-x, state.optimizer, state.theta)[0], float)

        moves = np.stack([move(x) for x in vectors[:3]])
        mean = move(vectors[:3].mean(axis=0))
        spread = np.sqrt(((moves - mean) ** 2).sum() / 6)
        assert log["harm"] == pytest.approx(by_numpy(vectors[:3], aggregate), rel=1e-3)
        assert log["harm_step"] == pytest.approx(np.linalg.norm(move(aggregate) - mean) / spread, rel=1e-2)
        assert log["harm"] > 0.1
        assert -1 <= log["harm_cosine"] <= 1


@pytest.mark.slow
def test_where_no_optimiser_makes_the_steps_they_go_along_the_aggregate(tiny: Callable[..., Problem]):
    ((log, _, _),) = rounds(tiny(algorithm="n-pg-igt", aggregator="mean", batch=(4, 4)), 1)
    assert log["harm_step"] == pytest.approx(log["harm"], rel=1e-3)
    assert log["harm"] > 0.1


def test_before_an_attack_begins_all_agents_are_honest_and_their_mean_does_no_harm(tiny: Callable[..., Problem]):
    harm = [log["harm"] for log, _, _ in rounds(tiny(aggregator="mean", attack_start=3, batch=(4, 4)), 3)]
    assert harm[:2] == pytest.approx([0.0, 0.0], abs=1e-4)
    assert harm[2] > 0.1


def test_who_sent_nothing_usable_is_neither_honest_nor_harmful(tiny: Callable[..., Problem]):
    ((log, _, _),) = rounds(tiny(aggregator="mean", attack="nan", batch=(4, 4)), 1)
    assert log["harm"] == pytest.approx(0.0, abs=1e-4)


@pytest.mark.slow
def test_a_round_without_an_aggregate_or_of_one_honest_agent_has_no_harm(tiny: Callable[..., Problem]):
    for settings in ({"aggregator": "fedpg", "sigma": 1e-9}, {"agents": 1, "aggregator": "mean"}):
        ((log, _, _),) = rounds(tiny(byzantine=0, batch=(4, 4), **settings), 1)
        assert all(math.isnan(log[name]) for name in Harm._fields)


@pytest.mark.slow
def test_between_real_sites_nobody_knows_the_harm(tiny: Callable[..., Problem]):
    problem = tiny(aggregator="mean", batch=(4, 4))
    _, log = advance(problem, first_state(problem, 0), Local(problem, cores()), Server(problem), simulated=False)
    assert all(math.isnan(log[name]) for name in Harm._fields)
    run = train_seeds(problem, [0], sites=Local(problem, cores()))[0]
    assert all(row["harm"] is row["harm_step"] is row["harm_cosine"] is None for row in list(run.records.rows())[1:])


@pytest.mark.slow
def test_a_checkpoint_from_before_harm_was_measured_is_gone_on_with(tiny: Callable[..., Problem], tmp_path: Path):
    settings: dict[str, Any] = {"aggregator": "mean", "batch": (4, 4)}
    problem, folder = tiny(**settings), tmp_path / "run"
    run = train_seeds(problem, [0], folder)[0]
    tensors, about = load_tensors(folder / FILE, "checkpoint")
    for name in Harm._fields:
        assert np.isfinite(tensors.pop(f"log/{name}")).any()
    for name in ("fail_closed", "momentum"):  # settings that came later
        del about["settings"][name]
    save_tensors(folder / FILE, "checkpoint", tensors, about)
    _, records = load_checkpoint(folder, problem, 0)
    assert len(records) == len(run.records)
    assert np.isnan([records.column(name) for name in Harm._fields]).all()
    assert math.isnan(records.mean_harm())
    longer = problem._replace(config=tiny(**settings, trajectories=120).config)
    resumed = train_seeds(longer, [0], folder, resume=True)[0]
    known = np.isfinite(resumed.records.column("harm"))
    assert not known[: len(run.records)].any()
    assert known[len(run.records) :].any()
