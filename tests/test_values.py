"""Advantages by a value function: against a fit in plain NumPy, and without bias on an enumerated task."""

import itertools
from typing import Any

import jax
import numpy as np
import pytest

import probes
from fedpg.estimators import gradient, make_estimator, weighted_score
from fedpg.trajectories import Trajectories
from fedpg.values import RIDGE, solve
from fedpg.values import advantages as by_operations

STEPS, FEATURES = 6, 2
advantages = jax.jit(by_operations, static_argnums=1)  # one program, not one for each operation


def some_episodes(lengths: tuple[int, ...], seed: int = 0) -> Trajectories:
    """Random ones, every second cut off, with NaN where nothing was simulated."""
    rng = np.random.default_rng(seed)
    count = len(lengths)
    there = np.arange(STEPS)[:, None] < np.array(lengths)
    return Trajectories(
        observations=np.where(there, rng.normal(size=(FEATURES, STEPS, count)), np.nan).astype(np.float32),
        actions=np.zeros((STEPS, count), np.int32),
        rewards=np.where(there, rng.normal(size=(STEPS, count)), 0.0).astype(np.float32),
        lengths=np.asarray(lengths, np.int32),
        terminated=np.arange(count) % 2 == 0,
        last=rng.normal(size=(FEATURES, count)).astype(np.float32),
    )


def packed(side_by_side: Trajectories) -> Trajectories:
    """The same steps, one episode after the other."""
    lengths = np.asarray(side_by_side.lengths)
    rows = [np.asarray(side_by_side.observations)[:, :n, i].T for i, n in enumerate(lengths)]
    room = np.zeros((4000, FEATURES), np.float32)
    actions = np.zeros(len(room) + lengths.sum(), np.int32)
    starts = np.cumsum([0, *lengths[:-1]]).astype(np.int32)
    observations = np.concatenate([*rows, room])
    return side_by_side._replace(observations=observations, actions=actions, starts=starts)


def by_hand(episodes: Trajectories, gamma: float, trace: float) -> np.ndarray:
    """The definition, episode by episode in double precision."""
    lengths, ended = np.asarray(episodes.lengths), np.asarray(episodes.terminated)
    seen = [np.asarray(episodes.observations, float)[:, :n, i].T for i, n in enumerate(lengths)]
    rewards = [np.asarray(episodes.rewards, float)[:n, i] for i, n in enumerate(lengths)]

    def phi(x: np.ndarray) -> np.ndarray:
        products = [x[..., i] * x[..., j] for i in range(FEATURES) for j in range(i, FEATURES)]
        return np.concatenate([np.ones_like(x[..., :1]), x, np.stack(products, axis=-1)], axis=-1)

    out = np.zeros((STEPS, len(lengths)))
    for e, n in enumerate(lengths):
        matrix, target, squares = 0.0, 0.0, 0.0
        for i, m in enumerate(lengths):
            if i == e:
                continue
            features, last = phi(seen[i]), phi(np.asarray(episodes.last, float)[:, i])
            for t in range(m):
                to_go = sum(gamma ** (h - t) * rewards[i][h] for h in range(t, m))
                after = 0.0 if ended[i] else gamma ** (m - t) * last
                matrix = matrix + np.outer(features[t], features[t] - after)
                target = target + features[t] * to_go
                squares = squares + features[t] ** 2
        w = np.zeros(1 + FEATURES + FEATURES * (FEATURES + 1) // 2)
        if np.any(squares):
            ridge = np.where(np.arange(len(w)) > 0, RIDGE + len(w) / squares[0], RIDGE)
            w = np.linalg.solve(matrix + np.diag(ridge * squares), target)
        most = max(np.abs(r).max(initial=0.0) for i, r in enumerate(rewards) if i != e or len(lengths) == 1)
        most = most / (1 - gamma)
        values = [*(phi(seen[e]) @ w), 0.0 if ended[e] else phi(np.asarray(episodes.last, float)[:, e]) @ w]
        values = np.clip(values, -most, most)
        surprise = [rewards[e][t] + gamma * values[t + 1] - values[t] for t in range(n)]
        for t in range(n):
            out[t, e] = sum((gamma * trace) ** (h - t) * surprise[h] for h in range(t, n))
    return out


@pytest.mark.parametrize("layout", [lambda x: x, packed], ids=["side by side", "packed"])
@pytest.mark.parametrize("trace", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("lengths", [pytest.param((6, 4, 5, 6, 3), marks=pytest.mark.slow), (6, 0, 5), (4,)], ids=str)
def test_they_are_those_of_the_definition(lengths: tuple[int, ...], trace: float, layout: Any):
    episodes = some_episodes(lengths)
    found = advantages(layout(episodes), 0.9, trace)
    np.testing.assert_allclose(found, by_hand(episodes, 0.9, trace), rtol=2e-3, atol=2e-4)


def test_their_gradient_is_divided_by_the_time_steps_of_the_batch():
    lengths, policy = (6, 0, 5, 3), probes.tiny_policy()
    episodes = some_episodes(lengths)
    estimator, params = make_estimator("advantage", 0.9, trace=0.7), policy.unravel(probes.two_parameters(policy)[0])
    score = jax.jit(lambda observation, action: policy.ravel(jax.grad(policy.log_prob)(params, observation, action)))
    weights = by_hand(episodes, 0.9, 0.7)
    total = sum(
        weights[t, i] * np.asarray(score(episodes.observations[:, t, i], episodes.actions[t, i]))
        for i, n in enumerate(lengths)
        for t in range(n)
    )
    found = jax.jit(lambda batch: gradient(estimator, policy, params, batch))(episodes)
    assert np.abs(total).max() > 0.1
    np.testing.assert_allclose(found, total / sum(lengths), rtol=2e-3, atol=2e-4)


@pytest.mark.slow
def test_a_batch_of_two_has_no_bias_on_an_enumerated_task():
    """With lambda = 1, the mean over all pairs of trajectories is the exact gradient: V is fitted to the other one."""
    policy, paths = probes.tiny_policy(), probes.all_paths()
    theta, _ = probes.two_parameters(policy)
    params = policy.unravel(theta)
    members = np.array(list(itertools.product(range(len(paths)), repeat=2)))
    every = jax.tree.map(np.asarray, probes.as_trajectories(paths))
    pairs = jax.tree.map(lambda x: np.moveaxis(x[..., members], -2, 0), every)
    estimator = make_estimator("advantage", gamma=1.0, trace=1.0)

    @jax.jit
    @jax.vmap
    def gradient(batch: Trajectories) -> jax.Array:
        return weighted_score(policy, params, batch, estimator.weights(batch)) / 2

    @jax.jit
    def by_enumeration(theta: jax.Array) -> tuple[jax.Array, jax.Array]:
        slope = jax.grad(lambda theta: probes.exact_return(policy, theta, paths, gamma=1.0))(theta)
        return probes.probabilities(policy, policy.unravel(theta), paths), slope

    chances, exact = (np.asarray(x, float) for x in by_enumeration(theta))
    mean = np.einsum("n,nd->d", chances[members].prod(axis=1), np.asarray(gradient(pairs), float))
    np.testing.assert_allclose(mean, exact, atol=2e-4 * np.abs(exact).max() + 1e-5)


@pytest.mark.slow
def test_an_episode_that_was_cut_off_goes_on_and_one_that_ended_does_not():
    """Reward 1 for ever is worth 1 / (1 - gamma) at every step, wherever it is cut off: no action is better."""
    gamma, lengths = 0.9, (6, 4, 5, 6) * 6
    episodes = some_episodes(lengths)._replace(terminated=np.zeros(24, bool))
    there = np.arange(STEPS)[:, None] < np.array(lengths)
    episodes = episodes._replace(rewards=there.astype(np.float32))
    cut = np.asarray(advantages(episodes, gamma, 1.0))
    ended = np.asarray(advantages(episodes._replace(terminated=np.ones(24, bool)), gamma, 1.0))
    # If they ended, it would matter how near the end is, and V does not know that. (The rest is the ridge's doing.)
    assert np.abs(cut).mean() < 0.3 * np.abs(ended).mean()


def test_what_lies_beyond_an_episode_that_ended_does_not_matter():
    ended = some_episodes((6, 4, 5))._replace(terminated=np.ones(3, bool))
    unknown = ended._replace(last=np.full_like(ended.last, np.nan))
    np.testing.assert_array_equal(advantages(ended, 0.9, 0.9), advantages(unknown, 0.9, 0.9))


@pytest.mark.slow
def test_no_value_exceeds_what_rewards_can_add_up_to():
    """Short episodes that were all cut off say little about what comes after: a fit to them may be absurd."""
    for seed in range(20):
        cut = some_episodes((1, 2, 1, 2, 1), seed)._replace(terminated=np.zeros(5, bool))
        most = np.abs(cut.rewards).max() * (1 + 2 * 10 * 1.9)
        assert np.abs(np.asarray(advantages(cut, 0.9, 0.9))).max() <= most


@pytest.mark.slow
def test_small_systems_are_solved():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(7, 5, 5))
    matrices = root @ root.transpose(0, 2, 1) + np.eye(5) + 0.3 * (root - root.transpose(0, 2, 1))
    targets = rng.normal(size=(7, 5))
    found = jax.jit(solve)(matrices.astype(np.float32), targets.astype(np.float32))
    np.testing.assert_allclose(found, np.linalg.solve(matrices, targets[:, :, None])[:, :, 0], rtol=2e-3, atol=1e-4)
