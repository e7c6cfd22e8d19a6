"""Steps before a rule: each takes a rule, and gives that rule on changed vectors, as in `arc(nnm(trimmed_mean()))`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.aggregators.aggregator import Aggregator, Memory, Own, Sent, Verdict, before, pairwise_distances
from fedpg.aggregators.parts import Faults, lengths, ranks, smallest
from fedpg.errors import require

BUCKET = 2
"""Agents in a bucket, unless told otherwise."""


def nnm(rule: Aggregator, f: int | None = None, alpha: float = 0.3) -> Aggregator:
    """Nearest-neighbour mixing: `rule` on the mean of each vector's n - f nearest, itself included.

    Needs f < n / 2. Promises that a rule behind it has an error of the order f / n times the honest ones' variance,
    also when honest agents differ; the best order there is, for Krum, the medians and the trimmed mean alike.
    Y. Allouah, S. Farhadkhani, R. Guerraoui, N. Gupta, R. Pinot, J. Stephan, "Fixing by mixing: a recipe for optimal
    Byzantine ML under heterogeneity", AISTATS 2023.
    """
    faults = Faults("nnm", f, alpha)

    def mix(vectors: Array, valid: Array) -> Array:
        count = jnp.maximum(jnp.sum(valid) - faults.of(len(valid)), 1)
        pairs = jax.lax.stop_gradient(pairwise_distances(vectors, valid))
        near = jax.vmap(lambda row: smallest(row, count, valid))(pairs)
        return (near / count) @ vectors

    return _tolerating(faults, mix, rule)


def arc(rule: Aggregator, f: int | None = None, alpha: float = 0.3) -> Aggregator:
    """Adaptive robust clipping: `rule` after the floor(2 (f / n) (n - f)) longest are cut to the next one's length.

    Needs f < n / 2. Promises to keep what the rule behind it promises, and an aggregate that is bounded by the honest
    ones' lengths, which helps where the start is poor or honest agents differ much.
    Y. Allouah, R. Guerraoui, N. Gupta, A. Jellouli, G. Rizk, J. Stephan, "Adaptive gradient clipping for robust
    federated learning", ICLR 2025.
    """
    faults = Faults("arc", f, alpha)

    def clip(vectors: Array, valid: Array) -> Array:
        f, n = faults.of(len(valid)), jnp.sum(valid)
        norms = lengths(vectors)
        cut = (2 * f * (n - f)) // jnp.maximum(n, 1)
        place = ranks(norms[:, None], valid)[:, 0]
        return _cut(vectors, norms, jnp.sum(jnp.where(place == n - cut - 1, norms, 0.0)))

    return _tolerating(faults, clip, rule)


def clipping(rule: Aggregator, c: float = 1.0) -> Aggregator:
    """`rule` on the vectors cut to the length c: g_i min(1, c / ||g_i||).

    Needs a c for the task: gradients differ in length by orders of magnitude. Promises that nobody sends more than c.
    """
    require(c > 0, f"clipping: c must be more than 0, not {c}")
    return before(lambda vectors, valid: _cut(vectors, lengths(vectors), jnp.float32(c)), rule)


def bucketing(rule: Aggregator, s: int = BUCKET, f: int | None = None, alpha: float = 0.3) -> Aggregator:
    """`rule` on the means of random buckets of s agents; what it says of a bucket, it says of each agent in it.

    f liars spoil at most f of the K / s buckets, so the share that lies is up to s times larger for `rule`: a rule with
    f is to be made with the number f of agents that may lie, one with alpha with f / ceil(K / s) (by name that is done
    for you).
    Needs s f < K / 2, a rule that remembers nothing of single agents, and a count of rounds as memory, from which the
    buckets are drawn: whoever knows this code knows them. Promises that honest agents who differ look s times more
    alike to `rule`.
    S. P. Karimireddy, L. He, M. Jaggi, "Byzantine-robust learning on heterogeneous datasets via bucketing", ICLR 2022.
    """
    require(s >= 1, f"bucketing: s must be 1 or more, not {s}")
    require(
        not rule.by_agent,
        "bucketing cannot come before a rule that remembers what each agent did (compass): in every round there are "
        "other agents in a bucket. Leave bucketing out",
    )
    faults = Faults("bucketing", f, alpha, least=lambda f: 2 * s * f + 1)

    def init(agents: int, size: int) -> Memory:
        faults.of(agents)
        return jnp.int32(0), rule.init(-(-agents // s), size)

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        round_, inner = memory
        agents = len(sent.valid)
        key = jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), round_)
        place = ranks(jax.random.uniform(key, (agents, 1)), sent.valid)[:, 0]  # those who did not come are the last
        bucket = place // s
        members = (bucket == jnp.arange(-(-agents // s))[:, None]) & sent.valid  # [K / s, K]
        count = jnp.sum(members, axis=1)
        means = (members / jnp.maximum(count, 1)[:, None]) @ sent.clean
        verdict, inner = rule.update(inner, Sent(means, count > 0, sent.batch * s), own)
        distances = jnp.where(sent.valid, verdict.distances[bucket], jnp.inf)
        accepted = verdict.accepted[bucket] & sent.valid
        verdict = verdict._replace(accepted=accepted, distances=distances, centre=jnp.int32(-1))
        return verdict, (round_ + 1, inner)

    return rule._replace(update=update, init=init)


def _tolerating(faults: Faults, change: Callable[[Array, Array], Array], rule: Aggregator) -> Aggregator:
    """`before`, with f checked; where fewer came than f has a meaning for, none of them is valid for the rule."""
    changed = before(change, rule)

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        return changed.update(memory, sent._replace(valid=sent.valid & faults.enough(sent.valid)), own)

    return changed._replace(update=update, init=faults.checking(rule.init))


def _cut(vectors: Array, norms: Array, limit: Array) -> Array:
    """Those longer than `limit` at that length; those whose length overflows are nothing.  [K, D]"""
    factors = jnp.minimum(1.0, limit / jnp.where(norms > 0, norms, 1.0))
    return jnp.where(jnp.isfinite(norms)[:, None], vectors * factors[:, None], 0.0)
