"""Rules that look at how far the agents' vectors lie from each other."""

import functools
import itertools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpg.aggregators.aggregator import Aggregator, Memory, Own, Sent, Verdict, decide, pairwise_distances
from fedpg.aggregators.parts import Faults, smallest
from fedpg.attacks.attack import mean_of
from fedpg.errors import ConfigError

SUBSETS = 20_000
"""Rules that try all subsets refuse to try more."""
BLOCK = 2**20
"""Numbers that are held at a time while subsets are tried."""


def krum(f: int | None = None, alpha: float = 0.3) -> Aggregator:
    """The one vector with the least sum of squared distances to its n - f - 2 nearest others.

    Needs f < n / 2 and n >= f + 3. Promises, for n > 2f + 2, a vector whose error is of the order of the honest
    ones' deviation times sqrt(n); it lies among them however far away the f others are.
    P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer, "Machine learning with adversaries: Byzantine tolerant
    gradient descent", NeurIPS 2017.
    """
    faults = Faults("krum", f, alpha, _krum_least)

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        pairs, scores = _krum_scores(sent, faults)
        best = jnp.argmin(jnp.where(sent.valid, scores, jnp.inf))
        accepted = (jnp.arange(len(scores)) == best) & sent.valid & faults.enough(sent.valid)
        centre = jnp.where(jnp.any(accepted), best, -1)
        return decide(sent, mean_of(sent.vectors, accepted), accepted, centre=centre, distances=pairs[best]), memory

    return Aggregator(update, faults.init)


def multi_krum(f: int | None = None, alpha: float = 0.3) -> Aggregator:
    """The mean of the n - f vectors with the least sums of squared distances to their n - f - 2 nearest others.

    The recorded distances are the roots of the mean squares that decide, the threshold is the largest accepted one.
    Needs f < n / 2 and n >= f + 3. Promises what Krum does, with less noise: it averages n - f.
    P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer, "Machine learning with adversaries: Byzantine tolerant
    gradient descent", NeurIPS 2017.
    """
    faults = Faults("multi-krum", f, alpha, _krum_least)

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        _, scores = _krum_scores(sent, faults)
        n, f = jnp.sum(sent.valid), faults.of(len(scores))
        accepted = smallest(scores, n - f, sent.valid) & faults.enough(sent.valid)
        distances = jnp.sqrt(scores / jnp.maximum(n - f - 2, 1))
        threshold = jnp.max(jnp.where(accepted, distances, 0.0))
        gradient = mean_of(sent.vectors, accepted)
        return decide(sent, gradient, accepted, threshold=threshold, distances=distances), memory

    return Aggregator(update, faults.init)


def _krum_least(f: int) -> int:
    """The fewest vectors of which each has one nearest other, and the liars are no half, when there may be liars."""
    return max(f + 3, 2 * f + 1) if f else 1


def _krum_scores(sent: Sent, faults: Faults) -> tuple[Array, Array]:
    """(all distances [K, K], the sum of the squares of the n - f - 2 smallest of each row but its own [K])."""
    pairs = jax.lax.stop_gradient(pairwise_distances(sent.clean, sent.valid))
    agents = len(pairs)
    count = jnp.maximum(jnp.sum(sent.valid) - faults.of(agents) - 2, 1)
    others = jnp.sort(jnp.where(jnp.eye(agents, dtype=bool), jnp.inf, pairs), axis=1)
    # Alone, it has no others: inf, and yet the least.
    scores = jnp.sum(jnp.where((jnp.arange(agents) < count) & (agents > 1), others**2, 0.0), axis=1)
    return pairs, jnp.where(sent.valid, scores, jnp.inf)


def mda(f: int | None = None, alpha: float = 0.3) -> Aggregator:
    """Minimum-diameter averaging: the mean of those n - f vectors whose largest distance between two is the least.

    Needs f < n / 2, and tries all subsets: more than 20,000 are refused. Promises the smallest error of all rules in
    its class, of the order f / n times the honest ones' diameter.
    E. M. El Mhamdi, R. Guerraoui, A. Guirguis, L. N. Hoang, S. Rouault, "Genuinely distributed Byzantine machine
    learning", PODC 2020.
    """
    faults = Faults("mda", f, alpha)

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        pairs = jax.lax.stop_gradient(pairwise_distances(sent.clean, sent.valid))

        def diameter(kept: Array) -> Array:
            return jnp.max(jnp.where(kept[:, None] & kept, pairs, 0.0))

        accepted = best_subset("mda", diameter, sent.valid, faults)
        return decide(sent, mean_of(sent.vectors, accepted), accepted), memory

    return Aggregator(update, subsets_init("mda", faults))


def subsets_init(rule: str, faults: Faults) -> Callable[[int, int], Memory]:
    """No memory, if f is not too large for the rule, nor the number of subsets."""

    def init(agents: int, size: int) -> Memory:
        _dropped(rule, agents, faults.of(agents))
        return ()

    return init


def best_subset(rule: str, score: Callable[[Array], Array], valid: Array, faults: Faults) -> Array:
    """The n - f valid ones with the least finite `score(which [K])`; nobody if there is none.  [K]"""
    agents = len(valid)
    dropped = jnp.asarray(_dropped(rule, agents, faults.of(agents)))  # [S, K]
    scores = jax.lax.map(lambda out: score(valid & ~out), dropped, batch_size=max(1, BLOCK // agents**2))
    # Exactly f of those that came are left out: sets that leave out somebody who did not come do not count.
    scores = jnp.where(jnp.any(dropped & ~valid, axis=1) | jnp.isnan(scores), jnp.inf, scores)
    best = jnp.argmin(scores)
    return valid & ~dropped[best] & jnp.isfinite(scores[best]) & faults.enough(valid)


@functools.cache
def _dropped(rule: str, agents: int, f: int) -> np.ndarray:
    """All ways to leave out f of K.  [S, K]"""
    count = math.comb(agents, f)
    if count > SUBSETS:
        raise ConfigError(
            f"{rule} would try {count:,} subsets for K = {agents} and f = {f}, more than {SUBSETS:,}: "
            "use caf, or nnm before another rule (nnm+trimmed-mean), which take polynomial time"
        )
    chosen = np.array(list(itertools.combinations(range(agents), f)), dtype=int).reshape(count, f)
    dropped = np.zeros((count, agents), bool)
    dropped[np.arange(count)[:, None], chosen] = True
    return dropped
