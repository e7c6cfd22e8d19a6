"""What an aggregator is: [K, D] vectors in, one vector and the evidence for it out.

To add one, write a function of its parameters that returns an `Aggregator`, and name it in `AGGREGATORS`, or pass it as
`package.module:function`. `update` must be a pure function of arrays: experiments `vmap` it, and attacks optimise
against it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpg.attacks.attack import mean_of
from fedpg.errors import ConfigError

CANDIDATES = 16
RULES = ("nobody", "R1", "R2", "mean", "other")
"""Which rule decided: none could, R1, its fallback R2, a plain mean, or one of another aggregator."""


class Sent(NamedTuple):
    """What the K agents sent under one name."""

    vectors: Array  # [K, D]
    valid: Array  # [K]: whether it can be used at all; what is not valid may hold anything
    batch: Any  # B_t: the trajectories behind each vector

    @property
    def clean(self) -> Array:
        """The vectors, with zeros where they are not valid.  [K, D]"""
        return jnp.where(self.valid[:, None], self.vectors, 0.0)


class Own(NamedTuple):
    """What the server contributes, from trajectories of its own; only what the aggregator or the algorithm needs."""

    gradient: Array | None = None  # [D]: its own estimate
    influences: Array | None = None  # [n, D]: how far each of its n trajectories pulls that estimate
    scores: Array | None = None  # [n, D]: grad log pi at n of its steps; J^T J / n is the Fisher matrix.
    # They are there where steps are natural ones: an aggregator may then judge in the metric of the step.
    check: Array | None = None  # [D]: a second estimate, from trajectories that `gradient` has not seen
    states: Array | None = None  # [F, n]: observations at n of its steps


class Verdict(NamedTuple):
    """The aggregate, and the evidence for it."""

    gradient: Array  # [D]; 0 if nobody was accepted
    accepted: Array  # [K]
    rule: Array  # the index into RULES
    threshold: Array  # the radius of the rule that decided; inf if there is none
    distances: Array  # [K]: of each vector to the centre; inf for those without a valid one
    centre: Array  # the index of the agent whose vector is the centre; -1 if it is nobody's
    sigma: Array  # the deviation of one trajectory's gradient that was reckoned with; inf if none was

    @property
    def somebody(self) -> bool:
        """Whether anybody was accepted: whether there is an aggregate."""
        return int(self.rule) != RULES.index("nobody")


Memory = Any
OTHER = RULES.index("other")


class Aggregator(NamedTuple):
    """A rule that makes one vector of many, and what it remembers from round to round."""

    update: Callable[[Memory, Sent, Own], tuple[Verdict, Memory]]
    """(memory, what the agents sent, what the server contributes) -> (verdict, memory)."""
    init: Callable[[int, int], Memory] = lambda agents, size: ()
    """(K, D) -> the memory before the first round: a tree of arrays."""
    needs: tuple[str, ...] = ()
    """The fields of `Own` that the server is to compute."""
    by_agent: bool = False
    """Whether it remembers something of every agent: then it must be the agents' own vectors that it is given."""


def decide(
    sent: Sent,
    gradient: Array,
    accepted: Array,
    rule: Any = OTHER,
    threshold: Any = jnp.inf,
    centre: Any = -1,
    sigma: Any = jnp.inf,
    distances: Array | None = None,
) -> Verdict:
    """A verdict, with the evidence that every aggregator has; without given distances, those to the aggregate."""
    agents, size = sent.vectors.shape
    for name, value, shape in (("gradient", gradient, (size,)), ("accepted", accepted, (agents,))):
        if jnp.shape(value) != shape:
            raise ConfigError(
                f"the aggregator's verdict is wrong: {name} must be an array of shape {shape}, not {jnp.shape(value)}"
            )
    somebody = jnp.any(accepted)
    if distances is None:
        away = jnp.linalg.norm(sent.clean - gradient, axis=1)
        distances = jnp.where(sent.valid, jnp.where(jnp.isnan(away), jnp.inf, away), jnp.inf)
    return Verdict(
        gradient=jnp.where(somebody, gradient, 0.0),
        accepted=accepted,
        rule=jnp.where(somebody, rule, RULES.index("nobody")).astype(jnp.int32),
        threshold=jnp.asarray(threshold, jnp.float32),
        distances=jnp.where(somebody, distances, jnp.inf),
        centre=jnp.asarray(centre, jnp.int32),
        sigma=jnp.asarray(sigma, jnp.float32),
    )


def before(change: Callable[[Array, Array], Array], rule: Aggregator) -> Aggregator:
    """`rule`, on what `change(vectors [K, D], valid [K])` makes of the vectors."""

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        return rule.update(memory, sent._replace(vectors=change(sent.clean, sent.valid)), own)

    return rule._replace(update=update)


def mean() -> Aggregator:
    """No defence: the mean of all valid vectors (Algorithms 4 and 5)."""

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        return decide(sent, mean_of(sent.vectors, sent.valid), sent.valid, RULES.index("mean")), memory

    return Aggregator(update)


def pairwise_distances(gradients: Array, valid: Array) -> Array:
    """||mu_i - mu_j|| for all pairs, inf where one of them is not valid.  [K, K]

    Through the Gram matrix, ||x||^2 + ||y||^2 - 2 x.y. That cancels badly when the vectors are long and close, so
    they are first centred on one that most are close to: of some candidates, the one with the smallest median
    distance. Zero is a candidate too, so that whoever holds the others' places, most vectors are no longer for it.
    """
    agents = gradients.shape[0]
    # In a random order: liars may sit at regular places.
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
