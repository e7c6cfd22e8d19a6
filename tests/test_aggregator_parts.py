"""The parts of aggregators: exact distances, whoever lies, and an honest estimate of sigma."""

import math

import hypothesis.extra.numpy as hnp
import jax
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpg.aggregators import concentration
from fedpg.aggregators.aggregator import pairwise_distances
from fedpg.aggregators.sigma import CONFIDENCE_Z, Spread, auto_sigma, first_spread, observe_spread

INF = float("inf")

# Distances

distances = jax.jit(pairwise_distances)


def exact_distances(gradients):
    g = gradients.astype(np.float64)
    return np.linalg.norm(g[:, None] - g[None], axis=2)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(hnp.arrays(np.float32, (6, 5), elements=st.floats(-100, 100, width=32)))
def test_pairwise_distances_equal_float64(gradients):
    np.testing.assert_allclose(distances(gradients, np.ones(6, bool)), exact_distances(gradients), rtol=1e-3, atol=0.05)


def close_together(agents, size=500, seed=0):
    """Vectors of norm 1e4 that are 1e-2 apart: float32 holds that, but not ||x||^2 + ||y||^2 - 2 x.y of them."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=size)
    centre *= 1e4 / np.linalg.norm(centre)
    away = rng.normal(size=(agents, size))
    away *= 1e-2 * rng.uniform(0.5, 2.0, (agents, 1)) / np.linalg.norm(away, axis=1, keepdims=True)
    return (centre + away).astype(np.float32)


@pytest.mark.parametrize("lie", [None, 1e5, 1e12, 1e30])
@pytest.mark.parametrize("liar", [0, 7, 9])
def test_distances_of_long_vectors_close_together_are_exact(liar, lie):
    gradients = close_together(10)
    if lie:
        gradients[liar] = lie
    mine = np.asarray(distances(gradients, np.ones(10, bool)))
    honest = np.delete(np.arange(10), liar) if lie else np.arange(10)
    pairs = np.ix_(honest, honest)
    np.testing.assert_allclose(mine[pairs], exact_distances(gradients)[pairs], rtol=1e-3, atol=1e-6)
    assert not np.diag(mine).any()
    if lie:
        # Its square may overflow: then it is infinitely far, which is far enough.
        assert np.delete(mine[liar], liar).min() > 0.5 * lie


@pytest.mark.parametrize("agents", [17, 33, 40, 100])
def test_distances_stay_exact_wherever_a_minority_of_liars_sits(agents):
    # Spread evenly over the agents' numbers, at the largest share that any aggregator can stand.
    gradients = close_together(agents)
    for step in range(3, 8):
        liars = np.zeros(agents, bool)
        liars[::step] = True
        lying = np.where(liars[:, None], np.float32(1e8), gradients)
        mine = np.asarray(distances(lying, np.ones(agents, bool)))
        pairs = np.ix_(~liars, ~liars)
        np.testing.assert_allclose(mine[pairs], exact_distances(gradients)[pairs], rtol=1e-3, atol=1e-6)


def test_distances_to_invalid_replies_are_infinite():
    gradients = np.zeros((4, 3), np.float32)
    mine = np.asarray(distances(gradients, np.array([True, False, True, True])))
    assert np.all(mine[1] == INF)
    assert np.all(mine[:, 1] == INF)
    assert not mine[np.ix_([0, 2, 3], [0, 2, 3])].any()


# sigma = auto


def test_the_spread_is_estimated_without_bias():
    rng = np.random.default_rng(0)
    scales = np.array([3.0, 2.0, 1.0, 0.5, 0.1])
    rows = (rng.normal(size=(4000, 8, 5)) * scales + 7.0).astype(np.float32)  # a mean, which must not matter
    one = jax.jit(jax.vmap(lambda r: observe_spread(first_spread(), r)))(rows)
    trace, square = (np.mean(np.asarray(x) / np.asarray(one.weight)) for x in (one.trace, one.square))
    assert trace == pytest.approx((scales**2).sum(), rel=0.03)
    assert square == pytest.approx((scales**4).sum(), rel=0.08)


def test_r1_with_the_estimated_sigma_covers_two_honest_replies_as_often_as_it_says():
    rng = np.random.default_rng(1)
    scales, agents, delta, batch = np.linspace(0.2, 2.0, 30), 10, 0.6, 16

    @jax.jit
    def estimated(rows):
        spread = observe_spread(first_spread(), rows)
        spread = Spread(*(x / spread.weight for x in spread))  # as after many rounds, when the weight is 1
        return auto_sigma(spread, agents, delta)

    sigma = float(estimated((rng.normal(size=(4000, 30)) * scales).astype(np.float32)))
    radius = 2 * sigma * math.sqrt(concentration(agents, delta) / batch)
    apart = np.linalg.norm(rng.normal(size=(20_000, 30)) * scales * math.sqrt(2 / batch), axis=1)
    assert np.mean(apart <= radius) == pytest.approx(scipy.stats.norm.cdf(CONFIDENCE_Z), abs=0.02)
