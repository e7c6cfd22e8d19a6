"""FedPG-Aggregate (Algorithm 1.1), and two variants of it."""

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.aggregators.aggregator import (
    RULES,
    Aggregator,
    Memory,
    Own,
    Sent,
    Verdict,
    decide,
    pairwise_distances,
)
from fedpg.aggregators.sigma import auto_sigma, concentration, first_spread, observe_spread
from fedpg.attacks.attack import mean_of

Sigma = float | Array | Literal["auto"]


def fedpg(alpha: float = 0.3, sigma: Sigma = "auto", delta: float = 0.6) -> Aggregator:
    """FedPG-Aggregate: the mean of everyone within a radius of the mean of median vector mu_mom.

    R1: 2 sigma sqrt(V / B), V = 2 log(2K / delta); if it keeps fewer than (1 - alpha) K, R2: 2 sigma.
    With sigma = auto the server estimates it from trajectories of its own (`fedpg.aggregators.sigma`).
    Fan et al., "Fault-tolerant federated reinforcement learning with theoretical guarantee", NeurIPS 2021.
    """
    return _two_rules(alpha, sigma, delta, ball=True)


def r2(alpha: float = 0.3, sigma: Sigma = "auto", delta: float = 0.6) -> Aggregator:
    """R2 alone: Algorithm 1.1 from line 6 on, as if R1 never kept enough."""
    return _two_rules(alpha, sigma, delta, ball=True, skip_r1=True)


def majority(alpha: float = 0.3, sigma: Sigma = "auto", delta: float = 0.6) -> Aggregator:
    """The set S itself: everyone who has more than K/2 agents within the radius.

    If the honest agents are more than half and within sigma of the true gradient, S holds all of them, and each
    member is within 2 sigma of an honest one, so within 3 sigma of the true gradient. The ball around mu_mom can
    lose an honest agent (Claim 1 does not hold in the worst case).
    """
    return _two_rules(alpha, sigma, delta, ball=False)


def required(agents: int, alpha: float) -> int:
    """(1 - alpha) K: how many agents R1 must accept to stand (line 5)."""
    return math.ceil((1 - alpha) * agents - 1e-9)


def _two_rules(alpha: float, sigma: Sigma, delta: float, ball: bool, skip_r1: bool = False) -> Aggregator:
    auto = isinstance(sigma, str)

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        agents = sent.valid.shape[0]
        if not auto:
            return judge(sent, jnp.asarray(sigma)), memory
        if own.influences is None:  # there is nobody to compare with
            return judge(sent, jnp.float32(jnp.inf)), memory
        memory = observe_spread(memory, own.influences)
        return judge(sent, auto_sigma(memory, agents, delta)), memory

    def judge(sent: Sent, sigma: Array) -> Verdict:
        vectors, valid = sent.clean, sent.valid
        agents = valid.shape[0]
        pairs = pairwise_distances(vectors, valid)  # [K, K]

        def rule(radius: Array) -> tuple[Array, Array, Array]:
            near = jnp.sum(pairs <= radius, axis=1)
            members = (2 * near > agents) & valid  # lines 2 and 6; a majority of the K expected agents
            # Lines 3 and 7. ||x - mean(S)||^2 is the mean of ||x - y||^2 over y in S, less what is the same for all x.
            to_members = jnp.sum(jnp.where(members, pairs**2, 0.0), axis=1)
            centre = jnp.argmin(jnp.where(members, to_members, jnp.inf))
            distances = pairs[centre]
            good = (distances <= radius) & jnp.any(members) if ball else members  # lines 4 and 8
            return good, jnp.where(jnp.any(members), centre, -1), distances

        radius_1 = 2 * sigma * jnp.sqrt(concentration(agents, delta) / sent.batch)
        # An estimated sigma is one that makes R1's radius right; where V > B, 2 sigma is less, and no fallback.
        radius_2 = jnp.maximum(2 * sigma, radius_1) if auto else 2 * sigma
        first = rule(radius_1)
        enough = (jnp.sum(first[0]) >= required(agents, alpha)) & (not skip_r1)  # line 5
        good, centre, distances = jax.lax.cond(enough, lambda: first, lambda: rule(radius_2))
        which: Any = jnp.where(enough, RULES.index("R1"), RULES.index("R2"))
        threshold = jnp.where(enough, radius_1, radius_2)
        return decide(sent, mean_of(vectors, good), good, which, threshold, centre, sigma, distances)  # line 9

    if not auto:
        return Aggregator(update)
    return Aggregator(update, init=lambda agents, size: first_spread(), needs=("influences",))
