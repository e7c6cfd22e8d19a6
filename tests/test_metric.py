"""The metric of a natural step: the Fisher matrix and its inverse against exact ones; how much of a mean is signal."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from fedpg.metric import damped, fisher_at, fisher_of, signal_of, solve
from small_policies import OBSERVATIONS, POLICIES


def matrix_of(fisher: Callable[[Array], Array], size: int) -> np.ndarray:
    return np.asarray(jax.jit(jax.vmap(fisher))(jnp.eye(size)), float)


@pytest.mark.parametrize("name", POLICIES)
def test_the_divergence_is_what_log_probabilities_say(name: str):
    """KL(p, q) = E_p[log p - log q], over many actions drawn from p."""
    policy = POLICIES[name]
    params, others = (policy.unravel(policy.init(jax.random.key(seed))) for seed in (1, 2))
    noise = policy.noise(jax.random.key(0), 40 * 4000).reshape(-1, 4000, 40)
    many = jnp.broadcast_to(OBSERVATIONS[:, None], (3, 4000, 40))
    actions = policy.sample(params, many, noise)
    drawn = policy.log_prob(params, many, actions) - policy.log_prob(others, many, actions)
    found = policy.kl(params, others, OBSERVATIONS)
    error = np.asarray(jnp.std(drawn, axis=0)) / np.sqrt(4000)
    assert (np.abs(np.asarray(jnp.mean(drawn, axis=0) - found)) < 5 * error + 1e-5).all()
    np.testing.assert_allclose(policy.kl(params, params, OBSERVATIONS), 0.0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["categorical", "categorical, paper"])
def test_the_fisher_matrix_is_the_expected_square_of_scores(name: str):
    """F = mean over states of sum_a pi(a | s) grad log pi grad log pi^T, summed over all actions."""
    policy = POLICIES[name]
    theta = policy.init(jax.random.key(1))

    def log_prob(theta: Array, seen: Array, action: int) -> Array:
        return policy.log_prob(policy.unravel(theta), seen, jnp.asarray(action))

    exact = np.zeros((policy.size, policy.size))
    for i in range(OBSERVATIONS.shape[1]):
        for action in range(3):
            score = np.asarray(jax.grad(log_prob)(theta, OBSERVATIONS[:, i], action), float)
            exact += np.exp(float(log_prob(theta, OBSERVATIONS[:, i], action))) * np.outer(score, score) / 40
    np.testing.assert_allclose(matrix_of(fisher_at(policy, theta, OBSERVATIONS), policy.size), exact, atol=2e-6)


def test_the_inverse_is_that_of_the_damped_matrix():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(50, 8)).astype(np.float32)
    along, target = rng.normal(size=(2, 8)).astype(np.float32)
    fisher = scores.T.astype(float) @ scores / 50
    np.testing.assert_allclose(matrix_of(fisher_of(scores), 8), fisher, rtol=1e-4, atol=1e-5)
    added = 0.1 * (along @ fisher @ along) / (along @ along)
    found = solve(damped(fisher_of(jnp.asarray(scores)), jnp.asarray(along), 0.1), jnp.asarray(target), 20)
    np.testing.assert_allclose(found, np.linalg.solve(fisher + added * np.eye(8), target), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("length", [0.0, 1e-30, 1e-12, 1e12])
def test_the_length_of_a_vector_does_not_matter_to_its_direction(length: float):
    scores = jax.random.normal(jax.random.key(0), (50, 8))
    target = jax.random.normal(jax.random.key(1), (8,))
    plain = solve(damped(fisher_of(scores), target), target)
    scaled = solve(damped(fisher_of(scores), length * target), length * target)
    np.testing.assert_allclose(scaled, length * plain, rtol=1e-3)


def agents(signal: float, seed: int, count: int = 10) -> tuple[Array, Array]:
    """(vectors of agents whose mean has this share of signal, on average [K, D]; scores in whose metric they lie)"""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(200, 30)) * np.linspace(0.2, 3.0, 30)
    spread = np.linalg.cholesky(scores.T @ scores / 200)  # noise is alike in all directions, in the metric
    truth = spread @ (np.ones(30) / np.sqrt(30)) * np.sqrt(signal / max(1 - signal, 1e-9) * 30 / count)
    return jnp.asarray(truth + rng.normal(size=(count, 30)) @ spread.T, jnp.float32), jnp.asarray(scores, jnp.float32)


@pytest.mark.parametrize("signal", [0.0, 0.3, 0.6, 0.95])
def test_the_signal_of_a_mean_is_the_share_that_is_no_noise(signal: float):
    everybody = jnp.ones(10, bool)
    found = [float(signal_of(jnp.mean(v, axis=0), v, everybody, s)) for v, s in (agents(signal, i) for i in range(60))]
    assert np.mean(found) == pytest.approx(signal, abs=0.1)


@pytest.mark.parametrize("lie", ["huge", "against", "the same far away"])
def test_three_liars_cannot_make_noise_look_like_signal_or_signal_like_noise(lie: str):
    """The aggregate is that of the honest: what lies do to the aggregate is for the aggregator to prevent."""
    everybody, found = jnp.ones(10, bool), {}
    for signal in (0.0, 0.9):
        shares = []
        for seed in range(20):
            vectors, scores = agents(signal, seed)
            mu = jnp.mean(vectors[:7], axis=0)
            lies = {"huge": 1e20 * vectors[7:], "against": -2 * vectors[7:], "the same far away": 5 * vectors[7][None]}
            shares.append(float(signal_of(mu, vectors.at[7:].set(lies[lie]), everybody, scores)))
        found[signal] = np.mean(shares)
    assert found[0.0] < 0.35
    assert found[0.9] > 0.7


def test_of_two_agents_or_of_nothing_nobody_knows_what_is_noise():
    vectors, scores = agents(0.5, 0, count=2)
    assert np.isnan(float(signal_of(jnp.mean(vectors, axis=0), vectors, jnp.ones(2, bool), scores)))
    assert np.isnan(float(signal_of(jnp.zeros(30), jnp.zeros((4, 30)), jnp.ones(4, bool), scores)))
    assert np.isnan(float(signal_of(jnp.ones(30), jnp.ones((4, 30)), jnp.zeros(4, bool), scores)))


@pytest.mark.parametrize("signal", [0.3, 0.9])
def test_the_signal_is_no_less_where_agents_differ_in_length_and_long_ones_are_cut(signal: float):
    """As compass does it: whoever is longer than the median counts as if it were not."""
    found, truth = [], []
    for seed in range(100):
        vectors, scores = agents(signal, seed)
        vectors = vectors * jnp.asarray(np.random.default_rng(seed).lognormal(0, 0.7, (10, 1)), jnp.float32)
        matrix = np.linalg.inv(np.asarray(scores.T @ scores / 200, float))
        lengths = np.sqrt(np.einsum("ki,ij,kj->k", vectors, matrix, vectors))
        mu = np.mean(vectors * np.minimum(1, np.median(lengths) / lengths)[:, None], axis=0)
        right = np.linalg.cholesky(np.asarray(scores.T @ scores / 200, float)) @ np.ones(30)
        truth.append((mu @ matrix @ right) ** 2 / (mu @ matrix @ mu) / (right @ matrix @ right))
        found.append(float(signal_of(jnp.asarray(mu, jnp.float32), vectors, jnp.ones(10, bool), scores)))
    assert np.mean(found) == pytest.approx(np.mean(truth), abs=0.15)
