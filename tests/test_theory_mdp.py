"""Exact values of tabular MDPs, against finite differences, enumeration, simulation and the package's estimators."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpg import estimators
from fedpg.theory.mdp import (
    MDPS,
    Tabular,
    ascent,
    best_return,
    curvature,
    exact_gradient,
    exact_return,
    occupancy,
    simulate,
    table_policy,
)
from fedpg.theory.runs import agent_gradients, correction, gradients_of, make_lab
from fedpg.trajectories import Trajectories

pytestmark = pytest.mark.slow

TINY = Tabular(
    successors=jax.device_put(np.array([[[0, 1], [1, 0]], [[1, 0], [0, 1]]], np.int32)),
    chances=jax.device_put(np.array([[[0.7, 0.3], [0.6, 0.4]], [[0.5, 0.5], [0.9, 0.1]]], np.float32)),
    rewards=jax.device_put(np.array([[0.2, 1.0], [0.0, 0.5]], np.float32)),
    start=jax.device_put(np.array([0.6, 0.4], np.float32)),
    horizon=3,
    discount=0.8,
)


@functools.cache
def mdp_of(name: str) -> Tabular:
    return TINY if name == "tiny" else MDPS[name]()


class Exact(NamedTuple):
    """What is known of a policy without an episode."""

    value: Any
    gradient: Any
    automatic: Any  # the gradient again, by automatic differentiation
    occupancy: Any


@functools.cache
def compiled(name: str) -> Callable[[Any], Exact]:
    mdp = mdp_of(name)

    def all_of_it(theta: jax.Array) -> Exact:
        value, automatic = jax.value_and_grad(lambda t: exact_return(mdp, t))(theta)
        return Exact(value, exact_gradient(mdp, theta), automatic, occupancy(mdp, theta))

    return jax.jit(all_of_it)


def exactly(name: str, theta: Any) -> Exact:
    return jax.tree.map(np.asarray, compiled(name)(np.asarray(theta, np.float32)))


def random_theta(mdp: Tabular, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(mdp.states, mdp.actions))
    return (scale * drawn).astype(np.float32)


def forward_return(mdp: Tabular, theta: np.ndarray) -> float:
    """J by pushing the distribution of states forward, in double precision: no code shared with the package's."""
    policy = np.exp(theta - theta.max(axis=1, keepdims=True))
    policy /= policy.sum(axis=1, keepdims=True)
    moves = np.zeros((mdp.states, mdp.states))
    successors, chances = np.asarray(mdp.successors), np.asarray(mdp.chances, float)
    for s, a, j in itertools.product(range(mdp.states), range(mdp.actions), range(successors.shape[2])):
        moves[s, successors[s, a, j]] += policy[s, a] * chances[s, a, j]
    now, total = np.asarray(mdp.start, float), 0.0
    for h in range(mdp.horizon):
        total += mdp.discount**h * now @ (policy * np.asarray(mdp.rewards, float)).sum(axis=1)
        now = now @ moves
    return float(total)


@pytest.mark.parametrize("name", MDPS)
def test_the_lab_has_mdps_of_the_promised_sizes(name: str):
    mdp = mdp_of(name)
    assert 10 <= mdp.states <= 100
    assert 10 <= mdp.horizon <= 30
    successors, chances, rewards, start = map(np.asarray, mdp[:4])
    np.testing.assert_allclose(chances.sum(axis=-1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(start.sum(), 1.0, rtol=1e-6)
    assert 0 <= rewards.min() <= rewards.max() <= 1
    assert 0 <= successors.min() <= successors.max() < mdp.states


@pytest.mark.parametrize("name", MDPS)
def test_the_gradient_is_that_of_finite_differences(name: str):
    mdp = mdp_of(name)
    theta = np.asarray(random_theta(mdp), float)
    exact = exactly(name, theta)
    assert float(exact.value) == pytest.approx(forward_return(mdp, theta), rel=1e-5)
    random = np.random.default_rng(1)
    for _ in range(10):
        s, a = random.integers(mdp.states), random.integers(mdp.actions)
        nudge = np.zeros_like(theta)
        nudge[s, a] = 1e-5
        slope = (forward_return(mdp, theta + nudge) - forward_return(mdp, theta - nudge)) / 2e-5
        assert exact.gradient[s, a] == pytest.approx(slope, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("name", MDPS)
def test_the_gradient_is_that_of_automatic_differentiation(name: str):
    exact = exactly(name, random_theta(mdp_of(name), 2))
    np.testing.assert_allclose(exact.gradient, exact.automatic, rtol=1e-3, atol=1e-6)


def test_return_and_gradient_are_those_of_all_trajectories():
    theta = np.asarray(random_theta(TINY, 3), float)
    policy = np.exp(theta) / np.exp(theta).sum(axis=1, keepdims=True)
    expected, gradient = 0.0, np.zeros_like(theta)
    matrix = np.zeros((2, 2, 2))
    successors, chances, rewards, start = map(np.asarray, TINY[:4])
    for s, a, j in itertools.product(range(2), repeat=3):
        matrix[s, a, successors[s, a, j]] += chances[s, a, j]
    for path in itertools.product(range(2), repeat=2 * TINY.horizon):
        states, actions = path[::2], path[1::2]
        chance, score, got = float(start[states[0]]), np.zeros_like(theta), 0.0
        for h, (s, a) in enumerate(zip(states, actions, strict=True)):
            chance *= policy[s, a] * (matrix[s, a, states[h + 1]] if h + 1 < TINY.horizon else 1.0)
            score[s] -= policy[s]
            score[s, a] += 1
            got += TINY.discount**h * float(rewards[s, a])
        expected += chance * got
        gradient += chance * got * score
    exact = exactly("tiny", theta)
    assert float(exact.value) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(exact.gradient, gradient, rtol=1e-4, atol=1e-6)


def test_the_best_return_is_not_reached_but_approached():
    mdp = mdp_of("chain")
    climbed, best = jax.jit(lambda: (ascent(mdp, 4.0, 400), best_return(mdp)))()
    first, last = (exactly("chain", np.asarray(climbed)[i]).value for i in (0, -1))
    assert first < last < float(best)
    assert last > 0.99 * float(best)


def test_the_curvature_bounds_how_the_gradient_turns():
    theta = random_theta(TINY, 4)
    step = 1e-2 * random_theta(TINY, 5)
    turned = np.linalg.norm(exactly("tiny", theta + step).gradient - exactly("tiny", theta - step).gradient)
    bound = float(jax.jit(lambda t: curvature(TINY, t))(theta))
    assert 0 < turned <= 2 * np.linalg.norm(step) * bound * 1.01


@pytest.mark.parametrize("name", MDPS)
def test_simulated_episodes_visit_states_and_earn_as_often_as_they_should(name: str):
    mdp, episodes = mdp_of(name), 20_000
    theta = random_theta(mdp, 6)
    seen = jax.jit(lambda key: simulate(mdp, theta, key, episodes))(jax.random.key(7))
    shares = np.stack([np.bincount(row, minlength=mdp.states) for row in np.asarray(seen.observations)[0]]) / episodes
    exact = exactly(name, theta)
    np.testing.assert_allclose(shares, exact.occupancy, atol=5 * 0.5 / np.sqrt(episodes))
    powers = mdp.discount ** np.arange(mdp.horizon)[:, None]
    returns = (powers * np.asarray(seen.rewards)).sum(axis=0)
    assert abs(returns.mean() - exact.value) < 4 * returns.std() / np.sqrt(episodes)


def test_a_byzantine_episode_acts_as_the_attack_says():
    mdp = mdp_of("grid")
    theta = 20 * np.eye(mdp.actions, dtype=np.float32)[np.zeros(mdp.states, int)]  # always action 0
    lanes = np.arange(4000) >= 2000
    seen = jax.jit(lambda key: simulate(mdp, theta, key, 4000, lambda action, random: random, lanes))(jax.random.key(0))
    actions = np.asarray(seen.actions)
    assert not actions[:, :2000].any()
    shares = np.bincount(actions[:, 2000:].ravel(), minlength=4) / (2000 * mdp.horizon)
    np.testing.assert_allclose(shares, 0.25, atol=0.01)


def test_an_episode_that_is_not_wanted_is_empty():
    theta, wanted = random_theta(TINY), np.array([True, False, True])

    @jax.jit
    def both(key: jax.Array) -> tuple[Trajectories, Trajectories]:
        return simulate(TINY, theta, key, 3, wanted=wanted), simulate(TINY, theta, key, 3)

    some, everyone = jax.tree.map(np.asarray, both(jax.random.key(1)))
    assert some.lengths.tolist() == [TINY.horizon, 0, TINY.horizon]
    assert not some.rewards[:, 1].any()
    np.testing.assert_array_equal(some.rewards[:, ::2], everyone.rewards[:, ::2])


@pytest.mark.parametrize("xp", [jnp, np])
def test_a_table_acts_as_likely_as_it_says(xp: Any):
    policy = table_policy(3, 4)
    table = 3 * np.asarray(jax.jit(policy.init)(jax.random.key(2))).reshape(3, 4)
    chances = np.exp(table) / np.exp(table).sum(axis=1, keepdims=True)
    pairs = np.divmod(np.arange(12), 4)
    log_p = jax.jit(policy.log_prob)({"table": table}, pairs[0][None], pairs[1])
    np.testing.assert_allclose(np.exp(log_p), chances.ravel(), rtol=1e-5)
    sample, mode = (functools.partial(f, xp=xp) for f in (policy.sample, policy.mode))
    if xp is jnp:
        sample, mode = jax.jit(sample), jax.jit(mode)
    noise, states = ((np.arange(1000) + 0.5) / 1000).astype(np.float32), np.arange(3)
    drawn = np.asarray(sample({"table": table}, np.repeat(states, 1000)[None], np.tile(noise, 3)[None]))
    shares = [np.bincount(row, minlength=4) / 1000 for row in drawn.reshape(3, 1000)]
    np.testing.assert_allclose(shares, chances, atol=2e-3)
    assert np.asarray(mode({"table": table}, states[None])).tolist() == chances.argmax(axis=1).tolist()
    np.testing.assert_array_equal(np.bincount(np.asarray(jax.jit(policy.random)(noise[None]))), 250)


def counted_scores(theta: np.ndarray, seen: Trajectories, weights: jax.Array) -> np.ndarray:
    """sum_t w_t grad log pi(a_t | s_t) of a table as n(s, a) - pi(a | s) n(s), n the weights of all visits.  [D]"""
    counts = np.zeros(theta.shape)
    np.add.at(counts, (np.asarray(seen.observations)[0], np.asarray(seen.actions)), np.asarray(weights))
    odds = np.exp(np.asarray(theta, float))
    return (counts - odds / odds.sum(axis=1, keepdims=True) * counts.sum(axis=1, keepdims=True)).ravel()


@pytest.mark.parametrize("kind", ["gpomdp", "reinforce"])
def test_a_tables_gradient_and_correction_are_counts(kind: str):
    mdp = mdp_of("grid")
    lab = make_lab(mdp, estimator=kind)
    theta_0, theta = random_theta(mdp, 8), random_theta(mdp, 9, 0.8)
    now, then = {"table": theta}, {"table": theta_0}
    wanted = np.arange(8) < 6

    def of_the_package(key: jax.Array) -> Any:
        seen = simulate(mdp, theta, key, 8, wanted=wanted)
        ratios = [estimators.log_probs(mdp.policy, params, seen) for params in (then, now)]
        return (
            seen,
            lab.estimator.weights(seen),
            lab.estimator.corrected(seen, ratios[0] - ratios[1]),
            estimators.gradient(lab.estimator, mdp.policy, now, seen),
            estimators.correction(lab.estimator, mdp.policy, now, then, seen),
        )

    seen, weights, corrected, gradient, change = jax.jit(of_the_package)(jax.random.key(10))
    for ours, expected in (
        (counted_scores(theta, seen, weights) / 6, gradient),
        (counted_scores(theta, seen, weights) / 6, change.plain),
        (counted_scores(theta_0, seen, corrected) / 6, change.corrected),
    ):
        np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=1e-4)


def test_gradients_of_parts_are_those_of_the_parts_one_by_one():
    mdp = TINY
    theta, lab = random_theta(mdp, 11), make_lab(TINY)

    def parts(key: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        mine = simulate(mdp, theta, key, 6)
        each = [estimators.gradient(lab.estimator, mdp.policy, {"table": theta}, mine.take(i, 2)) for i in (0, 2, 4)]
        return gradients_of(lab, theta, mine, 3), each

    together, each = jax.jit(parts)(jax.random.key(12))
    np.testing.assert_allclose(together, np.stack(each), rtol=1e-5, atol=1e-6)


def within(draws: np.ndarray, expected: np.ndarray, errors: float = 4.5) -> bool:
    """Whether the mean over the first axis is the expected one, up to that many standard errors in every entry."""
    error = draws.std(axis=0) / np.sqrt(len(draws))
    return bool(np.all(np.abs(draws.mean(axis=0) - expected) <= errors * error + 1e-7))


def test_agents_gradients_have_no_bias_however_they_are_cut():
    lab = make_lab(TINY, agents=2)
    theta = random_theta(TINY, 13)
    truth = exactly("tiny", theta).gradient.ravel()
    keys = jax.random.split(jax.random.key(14), 20_000)
    compiled = jax.jit(lambda keys, batch: jax.vmap(lambda k: agent_gradients(lab, theta, k, batch, 4))(keys))
    spreads = {}
    for batch in (1, 3, 4, 5):  # less than a chunk, a whole one, and more
        drawn = np.asarray(compiled(keys, batch))  # [n, 2, D]
        assert within(drawn[:, 0], truth)
        assert within(drawn[:, 1], truth)
        spreads[batch] = ((drawn - truth) ** 2).sum(axis=2).mean()
    assert {batch: spreads[1] / spread for batch, spread in spreads.items()} == pytest.approx(
        {batch: batch for batch in spreads}, rel=0.05
    )


def test_the_correction_is_the_difference_of_gradients_in_the_mean_and_zero_at_the_snapshot():
    lab = make_lab(TINY)
    theta_0, theta = random_theta(TINY, 15), random_theta(TINY, 15) + 0.3 * random_theta(TINY, 16)
    keys = jax.random.split(jax.random.key(17), 40_000)
    moved = jax.jit(lambda keys, theta, old: jax.vmap(lambda k: correction(lab, theta, old, k, 2, 2))(keys))
    drawn = np.asarray(moved(keys, theta, theta_0))
    assert within(drawn, exactly("tiny", theta).gradient - exactly("tiny", theta_0).gradient)
    np.testing.assert_array_equal(moved(keys, theta_0, theta_0), 0.0)
