"""Aggregation at the server: [K, D] gradients in, a Verdict out.

To add a filter, write one function `(replies, sigma, batch, config) -> Verdict`, and name it in FILTERS.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpg.agents import Replies
from fedpg.config import Config, unknown

RULES = ("nobody", "R1", "R2", "mean", "other")
"""Which rule decided: none could, R1, its fallback R2, no filter at all, or one of another filter."""
CANDIDATES = 16


class Verdict(NamedTuple):
    """The aggregate, and the evidence for it."""

    gradient: Array  # [D]: mu_t, the mean of the accepted gradients; 0 if there is none
    accepted: Array  # [K]
    rule: Array  # the index into RULES
    threshold: Array  # the radius of the rule that decided
    distances: Array  # [K]: of each reply to the centre; inf for those without a valid one
    centre: Array  # the index of the agent whose reply is the centre (mu_mom); -1 if there is none


def fedpg_filter(replies: Replies, sigma: Array, batch: Array, config: Config) -> Verdict:
    """FedPG-Aggregate: everyone within the radius of the mean of median vector mu_mom (Algorithm 1.1)."""
    return _two_rules(replies, sigma, batch, config, ball=True)


def r2_filter(replies: Replies, sigma: Array, batch: Array, config: Config) -> Verdict:
    """R2 alone: Algorithm 1.1 from line 6 on, as if R1 never kept enough."""
    return _two_rules(replies, sigma, batch, config, ball=True, skip_r1=True)


def majority_filter(replies: Replies, sigma: Array, batch: Array, config: Config) -> Verdict:
    """The set S itself: everyone who has more than K/2 agents within the radius.

    If the honest agents are more than half and within sigma of the true gradient, S holds all of them, and each
    member is within 2 sigma of an honest one, so within 3 sigma of the true gradient. The ball around mu_mom can
    lose an honest agent (Claim 1 does not hold in the worst case).
    """
    return _two_rules(replies, sigma, batch, config, ball=False)


def mean_filter(replies: Replies, sigma: Array, batch: Array, config: Config) -> Verdict:
    """No filter: the mean of all valid replies (Algorithms 4 and 5)."""
    valid = replies.status == 0
    gradient = _mean(replies.gradients, valid)
    away = jnp.linalg.norm(_zero_invalid(replies.gradients, valid) - gradient, axis=1)
    return Verdict(
        gradient=gradient,
        accepted=valid,
        rule=jnp.where(jnp.any(valid), RULES.index("mean"), RULES.index("nobody")),
        threshold=jnp.float32(jnp.inf),
        distances=jnp.where(valid, away, jnp.inf),
        centre=jnp.int32(-1),
    )


Filter = Callable[[Replies, Array, Array, Config], Verdict]
FILTERS: dict[str, Filter] = {"fedpg": fedpg_filter, "r2": r2_filter, "majority": majority_filter, "mean": mean_filter}


def make_filter(config: Config) -> Filter:
    """The filter that the settings name."""
    if config.filter not in FILTERS:
        raise unknown("filter", config.filter, FILTERS)
    return FILTERS[config.filter]


def concentration(agents: int, delta: float) -> float:
    """V = 2 log(2K / delta)."""
    return 2 * math.log(2 * agents / delta)


def _two_rules(
    replies: Replies, sigma: Array, batch: Array, config: Config, ball: bool, skip_r1: bool = False
) -> Verdict:
    valid = replies.status == 0
    agents = valid.shape[0]
    gradients = _zero_invalid(replies.gradients, valid)
    pairs = pairwise_distances(gradients, valid)  # [K, K]

    def rule(radius: Array) -> tuple[Array, Array, Array]:
        near = jnp.sum(pairs <= radius, axis=1)
        members = (2 * near > agents) & valid  # lines 2 and 6; a majority of the K expected agents
        # Lines 3 and 7. ||x - mean(S)||^2 is the mean of ||x - y||^2 over y in S, less what is the same for all x.
        to_members = jnp.sum(jnp.where(members, pairs**2, 0.0), axis=1)
        centre = jnp.argmin(jnp.where(members, to_members, jnp.inf))
        distances = pairs[centre]
        good = (distances <= radius) & jnp.any(members) if ball else members  # lines 4 and 8
        return good, jnp.where(jnp.any(members), centre, -1), distances

    radius_1 = 2 * sigma * jnp.sqrt(concentration(agents, config.delta) / batch)
    # An estimated sigma is one that makes R1's radius right; where V > B, 2 sigma is less, and would be no fallback.
    radius_2 = jnp.maximum(2 * sigma, radius_1) if config.sigma == "auto" else 2 * sigma
    first = rule(radius_1)
    enough = (jnp.sum(first[0]) >= config.required) & (not skip_r1)  # line 5
    good, centre, distances = jax.lax.cond(enough, lambda: first, lambda: rule(radius_2))
    somebody = jnp.any(good)
    return Verdict(
        gradient=_mean(gradients, good),  # line 9
        accepted=good,
        rule=jnp.where(somebody, jnp.where(enough, 1, 2), 0),
        threshold=jnp.where(enough, radius_1, radius_2),
        distances=jnp.where(somebody, distances, jnp.inf),
        centre=centre.astype(jnp.int32),
    )


def pairwise_distances(gradients: Array, valid: Array) -> Array:
    """||mu_i - mu_j|| for all pairs, inf where one of them is not valid.  [K, K]

    Through the Gram matrix, ||x||^2 + ||y||^2 - 2 x.y. That cancels badly when the vectors are long and close, so
    they are first centred on one that most are close to: of some candidates, the one with the smallest median
    distance. Zero is a candidate too, so that whoever holds the others' places, most vectors are no longer for it.
    """
    agents = gradients.shape[0]
    # Not at regular steps: liars may be.
    chosen = np.random.default_rng(0).permutation(agents)[:CANDIDATES]
    points = jnp.concatenate([jnp.zeros_like(gradients[:1]), gradients[chosen]])
    to_points = jnp.where(valid, _squared_distances(points, gradients, points @ gradients.T), jnp.nan)
    medians = jnp.nanmedian(to_points, axis=1)
    centre = points[jnp.argmin(jnp.where(jnp.isnan(medians), jnp.inf, medians))]
    centred = jnp.where(valid[:, None], gradients - centre, 0.0)
    squared = jnp.where(jnp.eye(agents, dtype=bool), 0.0, _squared_distances(centred, centred, _gram(centred)))
    return jnp.where(valid[:, None] & valid[None, :], jnp.sqrt(squared), jnp.inf)


def _squared_distances(x: Array, y: Array, products: Array) -> Array:
    """||x_i - y_j||^2 from the products x_i . y_j.  [I, J]"""
    squared = jnp.sum(x**2, axis=1)[:, None] + jnp.sum(y**2, axis=1) - 2 * products
    # A lie may be so long that its square overflows: inf - inf. It is far from everybody.
    return jnp.where(jnp.isnan(squared), jnp.inf, jnp.maximum(squared, 0.0))


def _gram(x: Array) -> Array:
    """x_i . x_j, block by block above the diagonal only: it is symmetric.  [K, K]"""
    rows = jnp.array_split(x, 4 if x.shape[0] >= 256 else 1)
    n = range(len(rows))
    upper = {(i, j): rows[i] @ rows[j].T for i in n for j in n if i <= j}
    return jnp.block([[upper[i, j] if i <= j else upper[j, i].T for j in n] for i in n])


def _zero_invalid(gradients: Array, valid: Array) -> Array:
    return jnp.where(valid[:, None], gradients, 0.0)


def _mean(gradients: Array, chosen: Array) -> Array:
    return jnp.sum(jnp.where(chosen[:, None], gradients, 0.0), axis=0) / jnp.maximum(jnp.sum(chosen), 1)
