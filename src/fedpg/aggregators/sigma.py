"""sigma = auto: the server estimates, from its own trajectories alone, how far honest replies lie apart."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


def concentration(agents: int, delta: float) -> float:
    """V = 2 log(2K / delta)."""
    return 2 * math.log(2 * agents / delta)


class Spread(NamedTuple):
    """A running estimate of how one trajectory's gradient scatters, Sigma: tr Sigma and tr Sigma^2."""

    trace: Array
    square: Array
    weight: Array


def first_spread() -> Spread:
    """Before anything has been seen."""
    return Spread(*(jnp.float32(0.0) for _ in Spread._fields))


MEMORY = 0.8
CONFIDENCE_Z = 1.645
"""The normal quantile of 0.95."""


def observe_spread(spread: Spread, influences: Array) -> Spread:
    """Add one round's own trajectories of the server, influences [n, D], n >= 4, to the estimate.

    Differences of pairs d = (e_i - e_j) / sqrt 2 have mean 0 and covariance Sigma, so that, for independent pairs,
    E ||d||^2 = tr Sigma  and  E (d . d')^2 = tr Sigma^2  (nearly: a batch's own mean and baseline tie its rows).
    """
    half = influences.shape[0] // 2
    d = (influences[:half] - influences[half : 2 * half]) / math.sqrt(2)  # [n / 2, D]
    gram = d @ d.T
    trace = jnp.trace(gram) / half
    square = (jnp.sum(gram**2) - jnp.sum(jnp.diag(gram) ** 2)) / (half * (half - 1))
    new = Spread(trace, square, jnp.float32(1.0))
    return Spread(*(MEMORY * a + (1 - MEMORY) * b for a, b in zip(spread, new, strict=True)))


def auto_sigma(spread: Spread, agents: int, delta: float) -> Array:
    """The sigma for which R1's radius is the 0.95 quantile of the distance between two honest replies.

    Two replies, each the mean of B trajectories, differ by a vector of covariance 2 Sigma / B. Its squared length
    has mean 2 tr Sigma / B and is nearly chi-square with n = (tr Sigma)^2 / tr Sigma^2 degrees of freedom; its
    quantile is that mean times (1 - 2/(9n) + z sqrt(2/(9n)))^3 (Wilson and Hilferty).
    R1's radius is 2 sigma sqrt(V / B), so sigma^2 = quantile * B / (4 V), and B cancels.
    In the first rounds, when little has been seen, sigma is larger: by 1 / sqrt(weight), which soon is 1.
    """
    weight = jnp.maximum(spread.weight, 1e-12)
    trace, square = spread.trace / weight, spread.square / weight
    freedom = jnp.clip(trace**2 / jnp.maximum(square, 1e-30), 1.0, 1e6)
    factor = (1 - 2 / (9 * freedom) + CONFIDENCE_Z * jnp.sqrt(2 / (9 * freedom))) ** 3
    return jnp.sqrt(2 * trace * factor / (4 * concentration(agents, delta)) / weight)
