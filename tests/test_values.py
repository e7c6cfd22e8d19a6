"""Advantages by a value function: against a fit in plain NumPy, and without bias on an enumerated task."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probes
from fedpg.estimators import make_estimator, weighted_score
from fedpg.trajectories import Trajectories
from fedpg.values import RIDGE, solve
from fedpg.values import advantages as by_operations

STEPS, FEATURES = 6, 2
advantages = jax.jit(by_operations, static_argnums=(1, 2))  # one program, not one for each operation


def some_episodes(lengths: tuple[int, ...], seed: int = 0) -> Trajectories:
    """Random ones, every second cut off, with NaN where nothing was simulated."""
    rng = np.random.default_rng(seed)
    count = len(lengths)
    there = np.arange(STEPS)[:, None] < np.array(lengths)
    return Trajectories(
        observations=jnp.asarray(np.where(there, rng.normal(size=(FEATURES, STEPS, count)), np.nan), jnp.float32),
        actions=jnp.zeros((STEPS, count), jnp.int32),
        rewards=jnp.asarray(np.where(there, rng.normal(size=(STEPS, count)), 0.0), jnp.float32),
        lengths=jnp.asarray(lengths, jnp.int32),
        terminated=jnp.arange(count) % 2 == 0,
        last=jnp.asarray(rng.normal(size=(FEATURES, count)), jnp.float32),
    )


def packed(side_by_side: Trajectories) -> Trajectories:
    """The same steps, one episode after the other."""
    lengths = np.asarray(side_by_side.lengths)
    rows = [np.asarray(side_by_side.observations)[:, :n, i].T for i, n in enumerate(lengths)]
    room = np.zeros((4000, FEATURES), np.float32)
    actions = jnp.zeros(len(room) + lengths.sum(), jnp.int32)
    starts = jnp.asarray(np.cumsum([0, *lengths[:-1]]), jnp.int32)
    observations = jnp.asarray(np.concatenate([*rows, room]))
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


@pytest.mark.slow
def test_a_batch_of_two_has_no_bias_on_an_enumerated_task():
    """With lambda = 1, the mean over all pairs of trajectories is the exact gradient: V is fitted to the other one."""
    policy, paths = probes.tiny_policy(), probes.all_paths()
    theta, _ = probes.two_parameters(policy)
    params = policy.unravel(theta)
    pairs, members = probes.batches(probes.as_trajectories(paths), 2)
    estimator = make_estimator("advantage", gamma=1.0, trace=1.0)

    @jax.jit
    @jax.vmap
    def gradient(batch: Trajectories) -> jax.Array:
        return weighted_score(policy, params, batch, estimator.weights(batch)) / 2

    chances = np.asarray(probes.probabilities(policy, params, paths), float)
    mean = np.einsum("n,nd->d", chances[members].prod(axis=1), np.asarray(gradient(pairs), float))
    exact = jax.grad(lambda theta: probes.exact_return(policy, theta, paths, gamma=1.0))(theta)
    np.testing.assert_allclose(mean, exact, atol=2e-4 * float(jnp.abs(exact).max()) + 1e-5)


@pytest.mark.slow
def test_an_episode_that_was_cut_off_goes_on_and_one_that_ended_does_not():
    """Reward 1 for ever is worth 1 / (1 - gamma) at every step, wherever it is cut off: no action is better."""
    gamma, lengths = 0.9, (6, 4, 5, 6) * 6
    episodes = some_episodes(lengths)._replace(terminated=jnp.zeros(24, bool))
    episodes = episodes._replace(rewards=jnp.where(episodes.mask, 1.0, 0.0))
    cut = np.asarray(advantages(episodes, gamma, 1.0))
    ended = np.asarray(advantages(episodes._replace(terminated=jnp.ones(24, bool)), gamma, 1.0))
    # If they ended, it would matter how near the end is, and V does not know that. (The rest is the ridge's doing.)
    assert np.abs(cut).mean() < 0.3 * np.abs(ended).mean()


def test_what_lies_beyond_an_episode_that_ended_does_not_matter():
    ended = some_episodes((6, 4, 5))._replace(terminated=jnp.ones(3, bool))
    unknown = ended._replace(last=jnp.full_like(ended.last, jnp.nan))
    np.testing.assert_array_equal(advantages(ended, 0.9, 0.9), advantages(unknown, 0.9, 0.9))


@pytest.mark.slow
def test_no_value_exceeds_what_rewards_can_add_up_to():
    """Short episodes that were all cut off say little about what comes after: a fit to them may be absurd."""
    for seed in range(20):
        cut = some_episodes((1, 2, 1, 2, 1), seed)._replace(terminated=jnp.zeros(5, bool))
        most = float(jnp.abs(cut.rewards).max()) * (1 + 2 * 10 * 1.9)
        assert float(jnp.abs(advantages(cut, 0.9, 0.9)).max()) <= most


@pytest.mark.slow
def test_small_systems_are_solved():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(7, 5, 5))
    matrices = root @ root.transpose(0, 2, 1) + np.eye(5) + 0.3 * (root - root.transpose(0, 2, 1))
    targets = rng.normal(size=(7, 5))
    found = solve(jnp.asarray(matrices, jnp.float32), jnp.asarray(targets, jnp.float32))
    np.testing.assert_allclose(found, np.linalg.solve(matrices, targets[:, :, None])[:, :, 0], rtol=2e-3, atol=1e-4)
