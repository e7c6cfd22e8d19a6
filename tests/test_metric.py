"""The metric of a natural step: the Fisher matrix and its inverse against exact ones; how much of a mean is signal."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from fedpg.metric import DAMPING, ITERATIONS, damped, fisher_at, fisher_of, signal_of, solve
from fedpg.policies import Policy
from small_policies import OBSERVATIONS, POLICIES


def matrix_of(fisher: Callable[[], Callable[[Array], Array]], size: int) -> np.ndarray:
    return np.asarray(jax.jit(lambda rows: jax.vmap(fisher())(rows))(np.eye(size, dtype=np.float32)), float)


@functools.partial(jax.jit, static_argnums=0)
def drawn(policy: Policy, many: Array, noise: Array) -> tuple[Array, Array, Array]:
    """(log p - log q of actions drawn from p, KL(p, q), KL(p, p)), where p and q are two policies of that kind."""
    params, others = (policy.unravel(policy.init(jax.random.key(seed))) for seed in (1, 2))
    actions = policy.sample(params, many, noise)
    apart = policy.log_prob(params, many, actions) - policy.log_prob(others, many, actions)
    return apart, policy.kl(params, others, OBSERVATIONS), policy.kl(params, params, OBSERVATIONS)


@pytest.mark.parametrize("name", POLICIES)
def test_the_divergence_is_what_log_probabilities_say(name: str):
    """KL(p, q) = E_p[log p - log q], over many actions drawn from p."""
    policy = POLICIES[name]
    noise = np.asarray(policy.noise(jax.random.key(0), 40 * 4000)).reshape(-1, 4000, 40)
    apart, found, none = map(np.asarray, drawn(policy, np.repeat(OBSERVATIONS[:, None], 4000, axis=1), noise))
    error = np.std(apart, axis=0) / np.sqrt(4000)
    assert (np.abs(np.mean(apart, axis=0) - found) < 5 * error + 1e-5).all()
    np.testing.assert_allclose(none, 0.0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["categorical", "categorical, paper"])
def test_the_fisher_matrix_is_the_expected_square_of_scores(name: str):
    """F = mean over states of sum_a pi(a | s) grad log pi grad log pi^T, summed over all actions."""
    policy = POLICIES[name]
    theta = np.asarray(policy.init(jax.random.key(1)))

    @jax.jit
    @jax.value_and_grad
    def log_prob(theta: Array, seen: Array, action: Array) -> Array:
        return policy.log_prob(policy.unravel(theta), seen, action)

    exact = np.zeros((policy.size, policy.size))
    for i in range(OBSERVATIONS.shape[1]):
        for action in range(3):
            logarithm, score = log_prob(theta, OBSERVATIONS[:, i], np.int32(action))
            score = np.asarray(score, float)
            exact += np.exp(float(logarithm)) * np.outer(score, score) / 40
    found = matrix_of(lambda: fisher_at(policy, jnp.asarray(theta), OBSERVATIONS), policy.size)
    np.testing.assert_allclose(found, exact, atol=2e-6)


@functools.partial(jax.jit, static_argnums=(3, 4))
def solved(scores: Array, along: Array, target: Array, *settings: Any) -> Array:
    """What `solve` finds for the target in the damped metric of these scores."""
    damping, iterations = settings or (DAMPING, ITERATIONS)
    return solve(damped(fisher_of(scores), along, damping), target, iterations)


def test_the_inverse_is_that_of_the_damped_matrix():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(50, 8)).astype(np.float32)
    along, target = rng.normal(size=(2, 8)).astype(np.float32)
    fisher = scores.T.astype(float) @ scores / 50
    np.testing.assert_allclose(matrix_of(lambda: fisher_of(scores), 8), fisher, rtol=1e-4, atol=1e-5)
    added = 0.1 * (along @ fisher @ along) / (along @ along)
    found = solved(scores, along, target, 0.1, 20)
    np.testing.assert_allclose(found, np.linalg.solve(fisher + added * np.eye(8), target), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("length", [0.0, 1e-30, 1e-12, 1e12])
def test_the_length_of_a_vector_does_not_matter_to_its_direction(length: float):
    rng = np.random.default_rng(0)
    scores, target = rng.normal(size=(50, 8)).astype(np.float32), rng.normal(size=8).astype(np.float32)
    longer = np.float32(length) * target
    plain, scaled = np.asarray(solved(scores, target, target)), solved(scores, longer, longer)
    np.testing.assert_allclose(scaled, np.float32(length) * plain, rtol=1e-3)


EVERYBODY = np.ones(10, bool)


def agents(signal: float, seed: int, count: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """(vectors of agents whose mean has this share of signal, on average [K, D]; scores in whose metric they lie)"""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(200, 30)) * np.linspace(0.2, 3.0, 30)
    spread = np.linalg.cholesky(scores.T @ scores / 200)  # noise is alike in all directions, in the metric
    truth = spread @ (np.ones(30) / np.sqrt(30)) * np.sqrt(signal / max(1 - signal, 1e-9) * 30 / count)
    return (truth + rng.normal(size=(count, 30)) @ spread.T).astype(np.float32), scores.astype(np.float32)


@pytest.mark.parametrize("signal", [0.0, 0.3, 0.6, 0.95])
def test_the_signal_of_a_mean_is_the_share_that_is_no_noise(signal: float):
    found = [float(signal_of(v.mean(axis=0), v, EVERYBODY, s)) for v, s in (agents(signal, i) for i in range(60))]
    assert np.mean(found) == pytest.approx(signal, abs=0.1)


@pytest.mark.parametrize("lie", ["huge", "against", "the same far away"])
def test_three_liars_cannot_make_noise_look_like_signal_or_signal_like_noise(lie: str):
    """The aggregate is that of the honest: what lies do to the aggregate is for the aggregator to prevent."""
    found = {}
    for signal in (0.0, 0.9):
        shares = []
        for seed in range(20):
            vectors, scores = agents(signal, seed)
            mu = vectors[:7].mean(axis=0)
            lies = {
                "huge": np.float32(1e20) * vectors[7:],
                "against": -2 * vectors[7:],
                "the same far away": 5 * vectors[7:8],
            }
            vectors[7:] = lies[lie]
            shares.append(float(signal_of(mu, vectors, EVERYBODY, scores)))
        found[signal] = np.mean(shares)
    assert found[0.0] < 0.35
    assert found[0.9] > 0.7


def test_of_two_agents_or_of_nothing_nobody_knows_what_is_noise():
    vectors, scores = agents(0.5, 0, count=2)
    assert np.isnan(float(signal_of(vectors.mean(axis=0), vectors, np.ones(2, bool), scores)))
    nothing, ones = (np.full((10, 30), value, np.float32) for value in (0.0, 1.0))
    assert np.isnan(float(signal_of(nothing[0], nothing, EVERYBODY, scores)))
    assert np.isnan(float(signal_of(ones[0], ones, ~EVERYBODY, scores)))


@pytest.mark.parametrize("signal", [0.3, 0.9])
def test_the_signal_is_no_less_where_agents_differ_in_length_and_long_ones_are_cut(signal: float):
    """As compass does it: whoever is longer than the median counts as if it were not."""
    found, truth = [], []
    for seed in range(100):
        vectors, scores = agents(signal, seed)
        vectors = vectors * np.random.default_rng(seed).lognormal(0, 0.7, (10, 1)).astype(np.float32)
        matrix = np.linalg.inv(np.asarray(scores.T @ scores / 200, float))
        lengths = np.sqrt(np.einsum("ki,ij,kj->k", vectors, matrix, vectors))
        mu = np.mean(vectors * np.minimum(1, np.median(lengths) / lengths)[:, None], axis=0)
        right = np.linalg.cholesky(np.asarray(scores.T @ scores / 200, float)) @ np.ones(30)
        truth.append((mu @ matrix @ right) ** 2 / (mu @ matrix @ mu) / (right @ matrix @ right))
        found.append(float(signal_of(mu.astype(np.float32), vectors, EVERYBODY, scores)))
    assert np.mean(found) == pytest.approx(np.mean(truth), abs=0.15)
