"""The default rule: agents count as far as they go the way that the server has seen itself."""

import functools
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
RECALL = (0.9, 0.98)
"""How much of what an agent has done counts in the next round: in one round noise hides who goes against the others, in
ten it does not where there is signal, and in fifty not even where it is faint. Who begins to lie late is found by the
first."""
QUIETEST = 1e-2
"""No coordinate is taken to be quieter than this share of the typical one."""
TOO_FAR = 2.0
"""Deviations of what noise would do: who goes so far against the server, or against most others, is turned away; and
two who are so much more alike than either is with most others count as one."""
MOST_VOTERS = 256
"""More agents are not compared with each other: time and memory would grow with the square of K; and if some of them
were chosen to judge, in a way that liars can foresee, these could outnumber the honest there."""
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
    along: Array  # [2, K]: each agent's cosines with the reference, over few rounds and over many
    mutual: Array  # [2, K, K]: those of the agents with each other; [2, 0, 0] if these are too many
    sums: Array  # [K, D]: what each has sent, at length 1 in the metric of then; [0, D] if these are too many
    gathered: Array  # [K, K]: the products of two agents' sums
    doubt: Array  # [2]: the variances that noise alone gives the sums of cosines


def compass(smooth: float | None = None) -> Aggregator:
    """Agents by how far they have gone the server's way, not against most others; who is too much alike counts as one.

    1. r <- smooth r + (1 - smooth) g_0: the server's own gradient over rounds. No agent can change it.
    2. Lengths and angles are those of the step: of a natural one by the Fisher matrix, else those of g / s, s_j the
       median absolute deviation of coordinate j over the agents, averaged over the rounds before. There honest noise is
       alike in all directions, and nobody can hide a step in a quiet one.
    3. c_i = cos(g_i, r) and c_ij = cos(g_i, g_j), and tau the deviation of the c_i (from their median absolute
       deviation). Summed over rounds, older ones less (0.9 a round), and divided by the deviation of such a sum of
       noise, these are z_i and z_ij; with a longer memory (0.98 a round) they are Z_i and Z_ij. h_i and H_i are the
       middle ones of the z_ij and Z_ij, which more than half of all agents do not exceed (with up to 256 of them).
       With m_i the least of z_i, Z_i, h_i and H_i, agent i counts with weight Phi(m_i): less than half if it has gone
       against the server, or against most others. It is turned away if m_i < -2.
    4. a_ij = Phi(z_ij - max(h_i, h_j) - 2): how sure it is that two are far more alike than either is with most others.
       The same of the products of v_i and v_j, what they have sent, at length 1, summed over rounds: liars who look
       unlike in each round, and push one way round after round, are found there. With a_i the sum over j of the greater
       of the two, the weight is divided by 1 + a_i less the median of all a_i: who is too much alike counts as one.
    5. The weighted mean of the vectors, those longer than the median length cut down to it.

    Needs the server's gradient; no f, no sigma, no constant of the task. While fewer than half of the agents lie, all
    medians lie between honest numbers; a liar counts once at most, at no more than a typical length, the less the more
    it goes against the server or most others. Promises nothing beyond the errors of the server and of the honest: where
    their gradients say little, a lie at right angles to them passes, and so do several that no two messages, and no two
    sums of messages, show to be one.
    """
    require(smooth is None or 0 <= smooth < 1, f"compass: smooth must be at least 0 and less than 1, not {smooth}")

    def init(agents: int, size: int) -> Compass:
        voters = agents if agents <= MOST_VOTERS else 0
        start, pairs, sums = jnp.zeros(size), jnp.zeros((2, voters, voters)), jnp.zeros((voters, size))
        return Compass(start, start, jnp.zeros(2), jnp.zeros((2, agents)), pairs, sums, pairs[0], jnp.zeros(2))

    def update(memory: Compass, sent: Sent, own: Own) -> tuple[Verdict, Compass]:
        if own.gradient is None:
            raise ConfigError(
                "compass needs a gradient of the server's own, and here the server has none: it needs a task, "
                "or another rule (nnm+trimmed-mean)"
            )
        keep = (SMOOTH[own.scores is not None] if smooth is None else smooth, SPREAD_MEMORY)
        vectors, valid = jnp.clip(sent.clean, -LONGEST, LONGEST), sent.valid
        enough = jnp.sum(valid) >= OUTVOTED_FROM
        middle = coordinate_median(vectors, valid)
        spread = coordinate_median(jnp.abs(vectors - middle), valid)
        after = memory._replace(
            reference=keep[0] * memory.reference + (1 - keep[0]) * own.gradient,
            variance=jnp.where(enough, keep[1] * memory.variance + (1 - keep[1]) * spread**2, memory.variance),
            weights=jnp.array(keep) * memory.weights + (1 - jnp.array(keep)),
        )
        now = _sound(after, memory)
        reference = now.reference / jnp.maximum(now.weights[0], 1e-30)
        # By the spread of the rounds before: lies of this one would make wide just what the honest agree on by chance.
        variance = jnp.where(memory.weights[1] > 0, memory.variance, now.variance)
        measured = (
            _by_spread(vectors, reference, now.sums, _scale(variance))
            if own.scores is None
            else _by_fisher(vectors, reference, now.sums, own.scores)
        )
        tau = _deviation(measured.along, valid, vectors.shape[1])
        recall = jnp.array(RECALL)
        now = now._replace(
            along=recall[:, None] * now.along + jnp.where(valid, measured.along, 0.0),
            doubt=recall**2 * now.doubt + tau**2,
        )
        noise = jnp.sqrt(now.doubt)  # [2]
        said, like_it = jnp.min(now.along / noise[:, None], axis=0), jnp.ones(len(valid))
        if now.mutual.size:
            others = valid[:, None] & valid & ~jnp.eye(len(valid), dtype=bool)
            unit = jnp.where(valid[:, None], vectors / jnp.maximum(measured.long, 1e-30)[:, None], 0.0)
            crossed = jnp.where(valid[:, None], measured.before, 0.0)
            mutual = jnp.where(others, measured.mutual, 0.0)
            now = now._replace(
                mutual=recall[:, None, None] * now.mutual + mutual,
                sums=RECALL[0] * now.sums + unit,
                gathered=RECALL[0] ** 2 * now.gathered + RECALL[0] * (crossed + crossed.T) + mutual,
            )
            by_others = now.mutual / noise[:, None, None]
            most = jax.vmap(_by_most, (0, None))(by_others, others)  # [2, K]
            said = jnp.minimum(said, jnp.min(most, axis=0))
            # Liars who push the same way, at once or round after round, are more alike than noise lets anybody be.
            over_rounds = now.gathered / (now.doubt[0] / tau)
            alike = [_alike(by_others[0], most[0], others), _alike(over_rounds, _by_most(over_rounds, others), others)]
            counted = jnp.sum(jnp.maximum(*alike), axis=1)
            like_it = 1 + jnp.maximum(counted - _median(counted, valid), 0.0)
        # How sure it is that an agent goes against the server, or against most others: between 0 and 1.
        distances = jnp.where(valid, jnp.where(enough, norm.cdf(-said), 0.0), jnp.inf)
        limit = norm.cdf(TOO_FAR)
        judged = jnp.where(distances < limit, norm.cdf(said) / like_it, 0.0)
        counts = jnp.where(valid, jnp.where(enough, judged, 1.0), 0.0)
        shorter = jnp.minimum(1.0, _median(measured.long, valid) / jnp.maximum(measured.long, 1e-30))
        gradient = weighted_mean(vectors * shorter[:, None], counts)
        fault = ~jnp.all(jnp.isfinite(own.gradient))
        memory = jax.tree.map(lambda new, old: jnp.where(fault, old, new), _sound(now, memory), memory)
        return decide(sent, gradient, counts > 0, threshold=limit, distances=distances), memory

    return Aggregator(update, init, needs=("gradient",), by_agent=True)


class Measured(NamedTuple):
    """The vectors in the metric of the step."""

    along: Array  # [K]: their cosines with the reference
    mutual: Array  # [K, K]: with each other
    before: Array  # [K, K]: their products, at length 1, with what was sent before
    long: Array  # [K]: their lengths


def _by_spread(vectors: Array, reference: Array, sums: Array, scale: Array) -> Measured:
    """As if every coordinate were divided by its spread."""
    scaled = vectors / scale
    units = directions(scaled)
    along = units @ directions((reference / scale)[None])[0]
    return Measured(along, units @ units.T, units @ (sums / scale).T, lengths(scaled))


def _by_fisher(vectors: Array, reference: Array, sums: Array, scores: Array) -> Measured:
    """In the metric of a natural step, <u, v> = u . (F + lambda I)^-1 v."""
    matrix = damped(fisher_of(scores), reference)
    units = jnp.concatenate([directions(reference[None]), directions(vectors)])  # [1 + K, D]: lies may be very long
    images = jax.vmap(lambda v: solve(matrix, v))(units)
    stretch = jnp.sqrt(jnp.maximum(jnp.sum(units * images, axis=1), 1e-30))  # of unit vectors
    seen = len(units) if len(vectors) <= MOST_VOTERS else 1  # the reference, and then the others
    cosines = units[1:] @ images[:seen].T / stretch[:seen] / stretch[1:, None]
    before = images[1:] @ sums.T / stretch[1:, None]
    return Measured(cosines[:, 0], cosines[:, 1:], before, lengths(vectors) * stretch[1:])


def _by_most(pairs: Array, others: Array) -> Array:
    """The middle one of what the others say of each agent, which more than half of all do not exceed.  [K]"""
    ranked = jnp.sort(jnp.where(others, pairs, jnp.inf), axis=1)
    said = ranked[:, (jnp.max(jnp.sum(others, axis=1)) + 1) // 2]
    return jnp.where(jnp.any(others, axis=1), said, 0.0)  # 0 of those who sent nothing


def _alike(pairs: Array, said: Array, others: Array) -> Array:
    """How sure it is that two are far more alike than either is with most others: between 0 and 1.  [K, K]"""
    return jnp.where(others, norm.cdf(pairs - jnp.maximum(said[:, None], said) - TOO_FAR), 0.0)


def _sound(after: Compass, before: Compass) -> Compass:
    """What is to be remembered: as before, if a fault of this round, or a lie, would make something of it no number."""
    sound = functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(leaf)) for leaf in after])
    return jax.tree.map(lambda new, old: jnp.where(sound, new, old), after, before)


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
