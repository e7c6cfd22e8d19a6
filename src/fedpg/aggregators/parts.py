"""What the rules are made of: how many may lie, lengths that do not overflow, ranks, and scatter from distances."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.aggregators.aggregator import Memory, pairwise_distances
from fedpg.errors import ConfigError, require

FURTHEST = 1e17
"""Distances are no longer than this where they are squared and summed: float32 ends at 3e38."""


def count_of(alpha: float, agents: int) -> int:
    """floor(alpha K), where 0.29 of 100 is 29."""
    return math.floor(alpha * agents + 1e-9)


def more_than_twice(f: int) -> int:
    """2f + 1: with fewer, the f could be half."""
    return 2 * f + 1


@dataclass(frozen=True)
class Faults:
    """How many of the agents a rule expects to lie, and with how few it still means something."""

    rule: str
    f: int | None
    """By default floor(alpha K)."""
    alpha: float
    least: Callable[[int], int] = more_than_twice
    """f -> the fewest agents that the rule is defined for."""

    def __post_init__(self) -> None:
        require(self.f is None or self.f >= 0, f"{self.rule}: f must be 0 or more, not {self.f}")

    def of(self, agents: int) -> int:
        """f, if the rule is defined for it and K agents."""
        f = count_of(self.alpha, agents) if self.f is None else self.f
        if agents < self.least(f):
            most = max((g for g in range(f) if self.least(g) <= agents), default=0)
            raise ConfigError(
                f"{self.rule} needs at least {self.least(f)} vectors for f = {f}, and gets K = {agents}: "
                f"add agents, or lower f (or alpha) so that f is at most {most}"
            )
        return f

    def enough(self, valid: Array) -> Array:
        """Whether so many vectors came that the rule is defined for them."""
        return jnp.sum(valid) >= self.least(self.of(valid.shape[0]))

    def init(self, agents: int, size: int) -> Memory:
        """No memory, if f is not too large."""
        self.of(agents)
        return ()

    def checking(self, init: Callable[[int, int], Memory]) -> Callable[[int, int], Memory]:
        """`init`, if f is not too large."""

        def checked(agents: int, size: int) -> Memory:
            self.of(agents)
            return init(agents, size)

        return checked


def lengths(vectors: Array) -> Array:
    """The norm of each row, also where its square would overflow, and with a derivative at 0.  [K]"""
    unit, norms = _scaled(vectors)
    return unit * norms


def directions(vectors: Array) -> Array:
    """Each row divided by its norm; 0 stays 0.  [K, D]"""
    unit, norms = _scaled(vectors)
    return vectors / unit[:, None] / jnp.where(norms > 0, norms, 1.0)[:, None]


def _scaled(vectors: Array) -> tuple[Array, Array]:
    """(the largest number of each row, nearly, or 1; the norm of the row divided by that)."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(vectors), axis=1))
    # XLA may multiply by 1 / unit, which must be neither inf nor so small that it is taken for 0.
    unit = jnp.where(largest > 0, jnp.clip(largest, 1e-30, 1e37), 1.0)
    squares = jnp.sum((vectors / unit[:, None]) ** 2, axis=1)
    return unit, jnp.where(largest > 0, jnp.sqrt(jnp.where(largest > 0, squares, 1.0)), 0.0)


def smallest(values: Array, count: Array | int, valid: Array) -> Array:
    """Which of the valid ones have the `count` smallest values; of equal ones the first.  [K]"""
    rank = jnp.argsort(jnp.lexsort((values, ~valid)))
    return (rank < count) & valid


def ranks(values: Array, valid: Array) -> Array:
    """The place of every number among the valid ones of its column, from 0; others come after all of these.  [K, D]

    By counting: K^2 D comparisons take less time than XLA's sort, on a CPU and up to about a thousand agents.
    """
    valid = jnp.asarray(valid)  # also what NumPy made: it is looked up by a traced number
    values = jnp.where(valid[:, None], jax.lax.stop_gradient(values), jnp.inf)
    index = jnp.arange(len(values))

    def place(k: Array) -> Array:
        first = jnp.where(valid == valid[k], index < k, valid)[:, None]  # of equal numbers
        return jnp.sum((values < values[k]) | ((values == values[k]) & first), axis=0)

    return jax.lax.map(place, index)


def squared_distances(vectors: Array, valid: Array) -> Array:
    """||g_i - g_j||^2, no number of it so large that a sum of them overflows; without a derivative.  [K, K]"""
    return jnp.minimum(jax.lax.stop_gradient(pairwise_distances(vectors, valid)), FURTHEST) ** 2


def scatter(squared: Array, weights: Array) -> Array:
    """(g_i - mu) . (g_j - mu), mu the weighted mean, from the squared distances; 0 where a weight is 0.  [K, K]

    -(d_ij - a_i - a_j + b) / 2, where d are the squared distances, a_i their weighted mean over j, and b that of a.
    What is weighted with 0 does not enter, so that vectors far away cost the others no digits once they are dropped.
    """
    share = weights / jnp.maximum(jnp.sum(weights), 1e-30)
    counts = weights > 0
    squared = jnp.where(counts[:, None] & counts, squared, 0.0)
    to_mean = squared @ share
    gram = -0.5 * (squared - to_mean[:, None] - to_mean + share @ to_mean)
    return jnp.where(counts[:, None] & counts, gram, 0.0)


def weighted_mean(vectors: Array, weights: Array) -> Array:
    """sum of w_i g_i / sum of w_i, in an order that overflows only if the result does; 0 without any weight.  [D]"""
    share = weights / jnp.maximum(jnp.sum(weights), 1e-30)
    return jnp.sum(jnp.where(share > 0, share, 0.0)[:, None] * jnp.where((share > 0)[:, None], vectors, 0.0), axis=0)
