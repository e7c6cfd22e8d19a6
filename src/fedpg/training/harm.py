"""Harm: how far the aggregate lies from what the honest agents alone would have made of the round.

How many Byzantine agents are accepted says little: when all gradients vanish, nobody can tell them apart, and they move
nothing. So the distance is measured, in units of what chance alone moves the mean of the honest.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

HARM = (
    "harm: how far the aggregate lies from the mean of the honest agents, in standard errors (se) of that mean; "
    "1 is what chance alone moves it"
)
"""For people, wherever the number is shown."""
SMALLEST = 1e-5
"""A spread this small beside the mean is rounding, and no unit to measure in."""


class Harm(NamedTuple):
    """What became of the mean m of the h honest replies g_i; NaN where it has no meaning.

    It has none with fewer than two honest agents, if these all sent the same, or if nobody was accepted: then the
    round makes no step, or the server makes its own, and there is no aggregate to measure.
    """

    harm: Array  # |a - m| / se with se^2 = sum_i |g_i - m|^2 / (h (h - 1))
    harm_step: Array  # the same of u(a), u(m) and u(g_i), the moves that would be made for them
    harm_cosine: Array  # between a and m


def harm_of(vectors: Array, honest: Array, aggregate: Array, somebody: Array, move: Callable[[Array], Array]) -> Harm:
    """The harm in a round of [K, D] replies; `honest` [K] sent something usable, `move` is u.  [D] -> [D]"""
    usable = jnp.where(honest[:, None], vectors, 0.0)
    mean = jnp.sum(usable, axis=0) / jnp.maximum(jnp.sum(honest), 1)
    points = jnp.concatenate([jnp.stack([aggregate, mean]), usable])  # [2 + K, D]
    harms = Harm(
        harm=_in_standard_errors(points, honest),
        harm_step=_in_standard_errors(jax.vmap(move)(points), honest),
        harm_cosine=jnp.clip(jnp.dot(aggregate / _length(aggregate), mean / _length(mean)), -1.0, 1.0),
    )
    known = somebody & (jnp.sum(honest) > 1)
    return Harm(*(jnp.where(known, value, jnp.nan) for value in harms))


def _in_standard_errors(points: Array, honest: Array) -> Array:
    """|a - m| / se, of a, m and the K replies, in this order."""
    aggregate, mean, rows = points[0], points[1], points[2:]
    count = jnp.sum(honest)
    spread = _length(jnp.where(honest[:, None], rows - mean, 0.0))  # se sqrt(h (h - 1))
    harm = _length(aggregate - mean) / spread * jnp.sqrt(count * (count - 1.0))
    return jnp.where(spread > SMALLEST * _length(mean), harm, jnp.nan)


def _length(x: Array) -> Array:
    """The Euclidean norm of all numbers of x, of those too whose squares are too large or too small for a float32."""
    largest = jnp.max(jnp.abs(x))
    return jnp.where(largest > 0, largest * jnp.sqrt(jnp.sum((x / largest) ** 2)), 0.0)
