"""Rules that treat every coordinate for itself. They turn nobody away as a whole: everyone valid is accepted."""

import jax.numpy as jnp
from jax import Array

from fedpg.aggregators.aggregator import Aggregator, Memory, Own, Sent, Verdict, decide
from fedpg.aggregators.parts import Faults, ranks


def median() -> Aggregator:
    """The median of every coordinate.

    Needs nothing. Promises that every coordinate lies between those of honest agents while more than half are honest:
    breakdown point 1/2; the error grows with sqrt(D).
    D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-robust distributed learning: towards optimal statistical
    rates", ICML 2018.
    """

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        return decide(sent, coordinate_median(sent.clean, sent.valid), sent.valid), memory

    return Aggregator(update)


def trimmed_mean(f: int | None = None, alpha: float = 0.3) -> Aggregator:
    """In every coordinate the mean without the f highest and the f lowest numbers.

    Needs f < n / 2. Promises that every coordinate lies between those of honest agents; order-optimal in the number
    of agents for noise with light tails, and the error grows with sqrt(D).
    D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-robust distributed learning: towards optimal statistical
    rates", ICML 2018.
    """
    faults = Faults("trimmed-mean", f, alpha)

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        f, n = faults.of(len(sent.valid)), jnp.sum(sent.valid)
        place = ranks(sent.clean, sent.valid)
        gradient = _mean_where((place >= f) & (place < n - f), sent.clean)
        return decide(sent, gradient, sent.valid & faults.enough(sent.valid)), memory

    return Aggregator(update, faults.init)


def mean_around_median(f: int | None = None, alpha: float = 0.3) -> Aggregator:
    """In every coordinate the mean of the n - f numbers nearest to their median.

    Needs f < n / 2. Promises that each coordinate is no further from the median than the honest numbers reach;
    breakdown point 1/2, like the median, with less noise.
    C. Xie, O. Koyejo, I. Gupta, "Generalized Byzantine-tolerant SGD", 2018, arXiv 1802.10116.
    """
    faults = Faults("mean-around-median", f, alpha)

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        f, n = faults.of(len(sent.valid)), jnp.sum(sent.valid)
        away = jnp.abs(sent.clean - coordinate_median(sent.clean, sent.valid))
        gradient = _mean_where(ranks(away, sent.valid) < n - f, sent.clean)
        return decide(sent, gradient, sent.valid & faults.enough(sent.valid)), memory

    return Aggregator(update, faults.init)


def coordinate_median(vectors: Array, valid: Array) -> Array:
    """The median of every coordinate over the valid ones; 0 if there is none.  [D]"""
    n, place = jnp.sum(valid), ranks(vectors, valid)
    # Halved first: two numbers near the largest float have no sum.
    low, high = (jnp.sum(jnp.where(place == rank, vectors / 2, 0.0), axis=0) for rank in ((n - 1) // 2, n // 2))
    return jnp.where(n > 0, low + high, 0.0)


def _mean_where(chosen: Array, vectors: Array) -> Array:
    """The mean of the chosen numbers of each column.  [D]"""
    share = chosen / jnp.maximum(jnp.sum(chosen, axis=0), 1)
    return jnp.sum(jnp.where(chosen, share * vectors, 0.0), axis=0)
