"""The default rule: agents count as far as they go the way that the server has seen itself."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.stats import norm

from fedpg.aggregators.aggregator import Aggregator, Own, Sent, Verdict, decide
from fedpg.aggregators.coordinates import coordinate_median
from fedpg.aggregators.parts import directions, lengths, weighted_mean
from fedpg.errors import ConfigError, require
from fedpg.metric import damped, fisher_of, solve

SMOOTH = (0.9, 0.5)
"""How much of the server's gradient is that of the rounds before: with small steps, and with natural ones, which are so
long that an older direction soon is the wrong one."""
SPREAD_MEMORY = 0.9
"""How much of the spread is that of the rounds before: of ten numbers alone it would be rough."""
QUIETEST = 1e-2
"""No coordinate is taken to be quieter than this share of the typical one."""
TOO_FAR = 2.0
"""Deviations of an honest cosine: who goes so far against the server is turned away."""
OUTVOTED_FROM = 3
"""With fewer vectors there is no majority, and nobody is turned away."""
LONGEST = 1e35
"""A larger number in a lie would not fit into a float once it is divided by a spread."""
NORMAL = 1.4826
"""From the median absolute deviation to the standard deviation of normal numbers."""


class Compass(NamedTuple):
    """What is remembered: sums over rounds, whose weights have not summed to 1 yet."""

    reference: Array  # [D]: the server's own gradients
    variance: Array  # [D]: of the agents' vectors, coordinate by coordinate
    weights: Array  # [2]


def compass(smooth: float | None = None) -> Aggregator:
    """Agents by their cosine with the server's own gradient, in units of their spread, and of median length at most.

    1. r <- smooth r + (1 - smooth) g_0: the server's own gradient over rounds. No agent can change it.
    2. s_j: the median absolute deviation of coordinate j over the agents, averaged over rounds. All lengths and angles
       are those of g / s. There honest noise is alike in all directions, and nobody can hide a step in a quiet one.
    3. c_i = cos(g_i, r), and tau the deviation of these (from their median absolute deviation). Agent i counts with
       weight Phi(c_i / tau): less than half if it goes against the server, and not at all below -2 tau. Honest agents,
       who are noisy, keep most of theirs; and who knows r, and could have c = 1, counts hardly more than they do.
    4. The weighted mean of the vectors, those longer than the median length cut down to it.

    Needs the server's gradient; no f, no sigma, no constant of the task. While fewer than half of the agents lie, all
    medians lie between honest numbers: a liar counts once at most, at no more than a typical length, the less the more
    it goes against the server. Promises nothing beyond the server's own errors: where its gradients say little (few
    trajectories, another task than the agents'), a lie at right angles to them passes.
    """
    require(smooth is None or 0 <= smooth < 1, f"compass: smooth must be at least 0 and less than 1, not {smooth}")

    def init(agents: int, size: int) -> Compass:
        return Compass(jnp.zeros(size), jnp.zeros(size), jnp.zeros(2))

    def update(memory: Compass, sent: Sent, own: Own) -> tuple[Verdict, Compass]:
        if own.gradient is None:
            raise ConfigError(
                "compass needs a gradient of the server's own, and here the server has none: it needs a task, "
                "or another rule (nnm+trimmed-mean)"
            )
        keep = (SMOOTH[own.scores is not None] if smooth is None else smooth, SPREAD_MEMORY)
        vectors, valid = jnp.clip(sent.clean, -LONGEST, LONGEST), sent.valid
        middle = coordinate_median(vectors, valid)
        spread = coordinate_median(jnp.abs(vectors - middle), valid)
        after = Compass(
            keep[0] * memory.reference + (1 - keep[0]) * own.gradient,
            keep[1] * memory.variance + (1 - keep[1]) * spread**2,
            jnp.array(keep) * memory.weights + (1 - jnp.array(keep)),
        )
        sound = jnp.all(jnp.isfinite(own.gradient))  # a fault of one round must not be remembered
        memory = jax.tree.map(lambda new, old: jnp.where(sound, new, old), after, memory)
        reference = memory.reference / jnp.maximum(memory.weights[0], 1e-30)
        cosines, long, length = (
            _by_spread(vectors, reference, _scale(memory.variance))
            if own.scores is None
            else _by_fisher(vectors, reference, own.scores)
        )
        tau = _deviation(cosines, valid, vectors.shape[1])
        trust = jnp.where(cosines > -TOO_FAR * tau, norm.cdf(cosines / tau), 0.0)
        counts = jnp.where(valid, jnp.where(jnp.sum(valid) >= OUTVOTED_FROM, trust, 1.0), 0.0)
        shorter = jnp.minimum(1.0, _median(long, valid) / jnp.maximum(long, 1e-30))
        gradient = weighted_mean(vectors * shorter[:, None], counts)
        # How far an agent falls behind one who goes exactly the server's way.
        distances = jnp.where(valid, length * jnp.maximum(1 - cosines, 0.0), jnp.inf)
        limit = length * (1 + TOO_FAR * tau)
        return decide(sent, gradient, counts > 0, threshold=limit, distances=distances), memory

    return Aggregator(update, init, needs=("gradient",))


Measured = tuple[Array, Array, Array]
"""Of each vector its cosine with the reference [K] and its length [K]; the reference's length."""


def _by_spread(vectors: Array, reference: Array, scale: Array) -> Measured:
    """As if every coordinate were divided by its spread."""
    scaled, reference = vectors / scale, (reference / scale)[None]
    return directions(scaled) @ directions(reference)[0], lengths(scaled), lengths(reference)[0]


def _by_fisher(vectors: Array, reference: Array, scores: Array) -> Measured:
    """In the metric of a natural step, <u, v> = u . (F + lambda I)^-1 v."""
    reference = reference[None]
    matrix = damped(fisher_of(scores), reference[0])
    units = jnp.concatenate([directions(reference), directions(vectors)])  # [1 + K, D]: lies may be very long
    images = jax.vmap(lambda v: solve(matrix, v))(units)
    stretch = jnp.sqrt(jnp.maximum(jnp.sum(units * images, axis=1), 1e-30))  # of unit vectors
    cosines = units @ images[0] / stretch / stretch[0]
    length = jnp.concatenate([lengths(reference), lengths(vectors)]) * stretch
    return cosines[1:], length[1:], length[0]


def _deviation(cosines: Array, valid: Array, size: int) -> Array:
    """That of the cosines, and no less than that of the cosine of two random directions."""
    away = jnp.abs(cosines - _median(cosines, valid))
    return jnp.maximum(NORMAL * _median(away, valid), size**-0.5)


def _median(values: Array, valid: Array) -> Array:
    return coordinate_median(values[:, None], valid)[0]


def _scale(variance: Array) -> Array:
    """What each coordinate is divided by: its spread over the typical one, but not too little.  [D]"""
    typical = jnp.mean(variance)
    return jnp.sqrt(jnp.where(typical > 0, variance / jnp.where(typical > 0, typical, 1.0), 1.0) + QUIETEST**2)
