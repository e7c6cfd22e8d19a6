"""Rules that look for the direction in which the vectors scatter most: there a lie that does harm must show."""

import math

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.aggregators.aggregator import Aggregator, Memory, Own, Sent, Verdict, decide
from fedpg.aggregators.distances import best_subset, subsets_init
from fedpg.aggregators.parts import Faults, scatter, smallest, squared_distances, weighted_mean
from fedpg.attacks.attack import mean_of
from fedpg.errors import require

ROUNDING = 1e-6
"""A smaller weight is one that would be 0 without rounding."""


def smea(f: int | None = None, alpha: float = 0.3) -> Aggregator:
    """Smallest maximum eigenvalue averaging: the mean of those n - f whose covariance has the least top eigenvalue.

    Needs f < n / 2, and tries all subsets: more than 20,000 are refused. Promises an error of the order
    f / n times the top eigenvalue of the honest ones' covariance, whatever D: optimal, and exponential in f.
    Y. Allouah, R. Guerraoui, N. Gupta, R. Pinot, J. Stephan, "On the privacy-robustness-utility trilemma in
    distributed learning", ICML 2023.
    """
    faults = Faults("smea", f, alpha)

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        squared = squared_distances(sent.clean, sent.valid)

        def top(kept: Array) -> Array:
            return _leading(scatter(squared, kept.astype(squared.dtype)))[0]

        accepted = best_subset("smea", top, sent.valid, faults)
        return decide(sent, mean_of(sent.vectors, accepted), accepted), memory

    return Aggregator(update, subsets_init("smea", faults))


def caf(f: int | None = None, alpha: float = 0.3) -> Aggregator:
    """Covariance-bound-agnostic filter, SMEA's polynomial relative: weights that shrink along the top direction.

    c_i <- c_i (1 - t_i / max t), t_i = ((g_i - mu_c) . v)^2, v the top eigenvector of the covariance weighted with c,
    from c = 1 until sum c <= n - 2f; the answer is the mu_c on the way with the least top eigenvalue.
    Needs f < n / 2. Promises an error of the order f / n times the top eigenvalue of the honest ones' covariance.
    Y. Allouah, R. Guerraoui, J. Stephan, "Towards trustworthy federated learning with untrusted participants",
    ICML 2025.
    """
    faults = Faults("caf", f, alpha)

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        squared = squared_distances(sent.clean, sent.valid)
        ones = sent.valid.astype(squared.dtype)
        until = jnp.maximum(jnp.sum(ones) - 2 * faults.of(len(ones)), 0.0)

        def shrink(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            c, best, least = state
            top, along = _top(squared, c)
            better = top < least
            t = jnp.where(c > 0, along**2, 0.0)
            worst = jnp.max(t)
            # When they are all the same there is nothing to tell them apart by.
            after = jnp.where(worst > 0, c * (1 - t / jnp.where(worst > 0, worst, 1.0)), 0.0)
            after = jnp.where(after < ROUNDING, 0.0, after)
            return after, jnp.where(better, c, best), jnp.where(better, top, least)

        first = (ones, ones, jnp.float32(jnp.inf))
        _, weights, _ = jax.lax.while_loop(lambda state: jnp.sum(state[0]) > until, shrink, first)
        accepted = (weights > 0) & faults.enough(sent.valid)
        return decide(sent, weighted_mean(sent.clean, weights), accepted), memory

    return Aggregator(update, faults.init)


def dnc(f: int | None = None, share: float = 0.2, repeats: int = 5, alpha: float = 0.3) -> Aggregator:
    """Divide and conquer: the mean of those who are never among the f furthest along the top direction.

    `repeats` times: take a random share of the coordinates, project the centred vectors on their top singular vector,
    and drop the f with the largest squares. If nobody is left, those who were dropped least often stay.
    Needs f < n / 2, and a count of rounds as memory, from which the coordinates are drawn: whoever knows this code
    knows them. Promises an error that does not grow with D when the liars' shift is larger than the honest scatter.
    V. Shejwalkar, A. Houmansadr, "Manipulating the Byzantine: optimizing model poisoning attacks and defenses for
    federated learning", NDSS 2021.
    """
    faults = Faults("dnc", f, alpha)
    require(0 < share <= 1, f"dnc: share must be more than 0 and at most 1, not {share}")
    require(repeats >= 1, f"dnc: repeats must be 1 or more, not {repeats}")

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        agents, size = sent.vectors.shape
        weights = sent.valid.astype(sent.vectors.dtype)
        count = jnp.sum(sent.valid) - faults.of(agents)

        def keep(key: Array) -> Array:
            _, chosen = jax.lax.top_k(jax.random.uniform(key, (size,)), math.ceil(share * size))
            _, along = _top(squared_distances(sent.clean[:, chosen], sent.valid), weights)
            return smallest(along**2, count, sent.valid)

        key = jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), memory)
        kept = sum(keep(each).astype(int) for each in jax.random.split(key, repeats))
        accepted = (kept == jnp.max(kept)) & sent.valid & faults.enough(sent.valid)
        return decide(sent, mean_of(sent.vectors, accepted), accepted), memory + 1

    return Aggregator(update, faults.checking(lambda agents, size: jnp.int32(0)))


def _top(squared: Array, weights: Array) -> tuple[Array, Array]:
    """(the top eigenvalue of the weighted covariance, (g_i - mu) . v with v its eigenvector [K]), from distances.

    With G the products of the centred vectors, and W the diagonal matrix of the weights, the eigenvectors u of
    W^1/2 G W^1/2 have the eigenvalues of the unnormalised covariance, and G W^1/2 u is (g_i - mu) . v but for a factor.
    """
    root = jnp.sqrt(weights)
    gram = scatter(squared, weights)
    top, vector = _leading(root[:, None] * gram * root)
    along = gram @ (root * vector) / jnp.sqrt(jnp.where(top > 0, top, 1.0))
    return top / jnp.maximum(jnp.sum(weights), 1e-30), along


SQUARINGS = 24


def _leading(matrix: Array) -> tuple[Array, Array]:
    """The top eigenvalue of a symmetric matrix without negative ones, and its eigenvector of length 1.

    The matrix to the power 2^24, by squaring: of its columns the longest is the eigenvector, up to one part in 10^7 of
    the eigenvalue. Not by LAPACK: XLA gives a batch of its calls to other threads and waits for them, and two
    aggregators at work in two threads of one process may then wait for ever.
    """

    def square(_: Array, power: Array) -> Array:
        power = power @ power
        return power / jnp.maximum(jnp.max(jnp.abs(power)), 1e-30)

    scale = jnp.max(jnp.abs(matrix))
    unit = matrix / jnp.where(scale > 0, scale, 1.0)
    power = jax.lax.fori_loop(0, SQUARINGS, square, unit)
    lengths = jnp.linalg.norm(power, axis=0)
    longest = jnp.argmax(lengths)
    vector = power[:, longest] / jnp.where(lengths[longest] > 0, lengths[longest], 1.0)
    return jnp.maximum(scale * (vector @ unit @ vector), 0.0), vector
