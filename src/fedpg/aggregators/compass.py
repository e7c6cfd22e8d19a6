"""The default rule: agents count as far as they go the way that the server has seen itself."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
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
RECALL = 0.9
"""How much of what an agent has done counts in the next round: in one round noise hides who goes against the others, in
ten it does not."""
QUIETEST = 1e-2
"""No coordinate is taken to be quieter than this share of the typical one."""
TOO_FAR = 2.0
"""Deviations of what noise would do: who goes so far against the server, or against most others, is turned away."""
WITNESSES = 256
"""Agents that each is compared with, at the most: so many, chosen at random, say what all would, and time and memory
grow with K and not with its square."""
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
    along: Array  # [K]: each agent's cosines with the reference
    mutual: Array  # [K, W]: with the vectors of the witnesses
    doubt: Array  # the variance that noise alone gives these two


def compass(smooth: float | None = None) -> Aggregator:
    """Agents by how far they have gone the server's way, and not against most others; of median length at most.

    1. r <- smooth r + (1 - smooth) g_0: the server's own gradient over rounds. No agent can change it.
    2. Lengths and angles are those of the step: of a natural one by the Fisher matrix, else those of g / s, s_j the
       median absolute deviation of coordinate j over the agents, averaged over rounds. There honest noise is alike in
       all directions, and nobody can hide a step in a quiet one.
    3. c_i = cos(g_i, r) and c_ij = cos(g_i, g_j), and tau the deviation of the c_i (from their median absolute
       deviation). Summed over rounds, older ones less (0.9 a round), and divided by the deviation of such a sum of
       noise, these are z_i and z_ij. Agent i counts with weight Phi(z_i): less than half if it goes against the server.
       It is turned away if z_i < -2, or if z_ij < -2 for more than half of all agents (of 256, if there are more).
    4. The weighted mean of the vectors, those longer than the median length cut down to it.

    Needs the server's gradient; no f, no sigma, no constant of the task. While fewer than half of the agents lie, all
    medians lie between honest numbers, and no honest agent can be outvoted; a liar counts once at most, at no more than
    a typical length, the less the more it goes against the server. Promises nothing beyond the errors of the server and
    of the honest: where their gradients say little, a lie at right angles to them passes.
    """
    require(smooth is None or 0 <= smooth < 1, f"compass: smooth must be at least 0 and less than 1, not {smooth}")

    def init(agents: int, size: int) -> Compass:
        mutual = jnp.zeros((agents, len(_witnesses(agents))))
        return Compass(jnp.zeros(size), jnp.zeros(size), jnp.zeros(2), jnp.zeros(agents), mutual, jnp.zeros(()))

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
        after = memory._replace(
            reference=keep[0] * memory.reference + (1 - keep[0]) * own.gradient,
            variance=keep[1] * memory.variance + (1 - keep[1]) * spread**2,
            weights=jnp.array(keep) * memory.weights + (1 - jnp.array(keep)),
        )
        sound = jnp.all(jnp.isfinite(own.gradient))  # a fault of one round must not be remembered
        now = jax.tree.map(lambda new, old: jnp.where(sound, new, old), after, memory)
        reference = now.reference / jnp.maximum(now.weights[0], 1e-30)
        measured = (
            _by_spread(vectors, reference, _scale(now.variance))
            if own.scores is None
            else _by_fisher(vectors, reference, own.scores)
        )
        witnesses = _witnesses(len(valid))
        others = valid[:, None] & valid[witnesses] & (np.arange(len(valid))[:, None] != witnesses)
        tau = _deviation(measured.along, valid, vectors.shape[1])
        now = now._replace(
            along=RECALL * now.along + jnp.where(valid, measured.along, 0.0),
            mutual=RECALL * now.mutual + jnp.where(others, measured.mutual, 0.0),
            doubt=RECALL**2 * now.doubt + tau**2,
        )
        z, by_others = now.along / jnp.sqrt(now.doubt), now.mutual / jnp.sqrt(now.doubt)
        # What more than half of them say at the least: some of these are honest.
        said = jnp.sort(jnp.where(others, by_others, jnp.inf), axis=1)[:, jnp.sum(valid[witnesses]) // 2]
        # How sure it is that an agent goes against the server, or against most others: between 0 and 1.
        distances = jnp.where(valid, norm.cdf(-jnp.minimum(z, said)), jnp.inf)
        limit = norm.cdf(TOO_FAR)
        judged = jnp.where(distances < limit, norm.cdf(z), 0.0)
        counts = jnp.where(valid, jnp.where(jnp.sum(valid) >= OUTVOTED_FROM, judged, 1.0), 0.0)
        shorter = jnp.minimum(1.0, _median(measured.long, valid) / jnp.maximum(measured.long, 1e-30))
        gradient = weighted_mean(vectors * shorter[:, None], counts)
        memory = jax.tree.map(lambda new, old: jnp.where(sound, new, old), now, memory)
        return decide(sent, gradient, counts > 0, threshold=limit, distances=distances), memory

    return Aggregator(update, init, needs=("gradient",))


class Measured(NamedTuple):
    """The vectors in the metric of the step."""

    along: Array  # [K]: their cosines with the reference
    mutual: Array  # [K, W]: with the witnesses
    long: Array  # [K]: their lengths


def _by_spread(vectors: Array, reference: Array, scale: Array) -> Measured:
    """As if every coordinate were divided by its spread."""
    scaled = vectors / scale
    units = directions(scaled)
    along = units @ directions((reference / scale)[None])[0]
    return Measured(along, units @ units[_witnesses(len(units))].T, lengths(scaled))


def _by_fisher(vectors: Array, reference: Array, scores: Array) -> Measured:
    """In the metric of a natural step, <u, v> = u . (F + lambda I)^-1 v."""
    matrix = damped(fisher_of(scores), reference)
    units = jnp.concatenate([directions(reference[None]), directions(vectors)])  # [1 + K, D]: lies may be very long
    images = jax.vmap(lambda v: solve(matrix, v))(units)
    stretch = jnp.sqrt(jnp.maximum(jnp.sum(units * images, axis=1), 1e-30))  # of unit vectors
    seen = np.concatenate([[0], 1 + _witnesses(len(vectors))])  # by the reference, then by the witnesses
    cosines = units[1:] @ images[seen].T / stretch[seen] / stretch[1:, None]
    return Measured(cosines[:, 0], cosines[:, 1:], lengths(vectors) * stretch[1:])


def _witnesses(agents: int) -> np.ndarray:
    """Who the agents are compared with: all, or some in a random order, since liars may sit at regular places.  [W]"""
    everybody = np.arange(agents)
    return everybody if agents <= WITNESSES else np.random.default_rng(0).permutation(agents)[:WITNESSES]


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
