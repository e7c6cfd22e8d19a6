"""Attacks that craft one lie from what they know of the honest gradients. By default they know all of them."""

import math
from collections.abc import Callable
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.attacks.attack import (
    Attack,
    Group,
    Knowledge,
    Memory,
    Scene,
    mean_of,
    require_one_of,
    squared_distances,
    unit,
)
from fedpg.errors import require

Direction = Literal["unit", "sign", "std", "worst"]
INSIDE = 1 - 1e-5
"""So far does a lie go of what it may, that rounding does not take it beyond."""


def alie(z: float | None = None, knowledge: Group = "all") -> Attack:
    """A little is enough: m - z s.

    By default z = Phi^-1((K - f - k) / (K - f)), k = floor(K / 2 + 1) - f: as many honest agents as the lie needs for a
    majority are expected to be further out than it. It is below 0 where f is small.
    G. Baruch, M. Baruch, Y. Goldberg, "A little is enough", NeurIPS 2019.
    """
    require(z is None or math.isfinite(z), f"z must be a finite number, not {z}")
    require_one_of("knowledge", knowledge, get_args(Group))

    def message(scene: Scene) -> Array:
        far = _supported_z(scene.byzantine) if z is None else z
        return scene.by_all(scene.mean(knowledge) - far * scene.deviation(knowledge))

    return Attack(message=message, colludes=True)


def _supported_z(byzantine: Array) -> Array:
    agents, liars = byzantine.shape[0], jnp.sum(byzantine)
    share = (agents - (agents // 2 + 1)) / (agents - liars)  # K - f - k is K - floor(K / 2 + 1)
    return jax.scipy.special.ndtri(jnp.clip(share, 1e-3, 1 - 1e-3))


def ipm(e: float = 0.5, knowledge: Knowledge = "all") -> Attack:
    """Inner product manipulation: -e m.

    C. Xie, O. Koyejo, I. Gupta, "Fall of empires: breaking Byzantine-tolerant SGD by inner product manipulation", UAI
    2020.
    """
    require(0 < e < math.inf, f"e must be a positive number, not {e}")
    require_one_of("knowledge", knowledge, get_args(Knowledge))
    return Attack(message=lambda scene: scene.by_all(-e * scene.mean(knowledge)), colludes=knowledge != "own")


def min_max(direction: Direction = "std", knowledge: Group = "all") -> Attack:
    """m - c p, the largest c with max_i ||x - g_i|| <= max_ij ||g_i - g_j||: no further out than honest agents are.

    p = m (unit), sign m (sign) or s (std), at length 1; worst: the one of them that moves the aggregate furthest.
    V. Shejwalkar, A. Houmansadr, "Manipulating the Byzantine", NDSS 2021.
    """

    def reach(scene: Scene, centre: Array, p: Array) -> Array:
        known = scene.known(knowledge)
        return farthest(scene.gradients, known, centre, -p, jnp.max(squared_distances(scene.gradients, known)))

    return _as_far_as(reach, direction, knowledge)


def min_sum(direction: Direction = "std", knowledge: Group = "all") -> Attack:
    """m - c p, the largest c with sum_i ||x - g_i||^2 <= max_i sum_j ||g_i - g_j||^2; p as for min-max.

    As m is their mean, the left-hand side is sum_i ||m - g_i||^2 + n c^2, n the number of those known.
    V. Shejwalkar, A. Houmansadr, "Manipulating the Byzantine", NDSS 2021.
    """

    def reach(scene: Scene, centre: Array, p: Array) -> Array:
        known = scene.known(knowledge)
        limit = jnp.max(jnp.sum(squared_distances(scene.gradients, known), axis=1))
        there = jnp.sum(jnp.where(known, jnp.sum((scene.gradients - centre) ** 2, axis=1), 0.0))
        return INSIDE * jnp.sqrt(jnp.maximum(limit - there, 0.0) / jnp.maximum(jnp.sum(known), 1))

    return _as_far_as(reach, direction, knowledge)


def _as_far_as(reach: Callable[[Scene, Array, Array], Array], direction: Direction, knowledge: Group) -> Attack:
    """m - c p, c = reach(scene, m, p)."""
    require_one_of("direction", direction, get_args(Direction))
    require_one_of("knowledge", knowledge, get_args(Group))

    def message(scene: Scene) -> Array:
        m = scene.mean(knowledge)
        ways = {"unit": m, "sign": jnp.sign(m), "std": scene.deviation(knowledge)}
        lies = [m - reach(scene, m, p) * p for p in map(unit, ways.values() if adaptive else [ways[direction]])]
        return scene.by_all(scene.worst(knowledge, jnp.stack(lies)) if adaptive else lies[0])

    adaptive = direction == "worst"
    return Attack(message=message, colludes=True, adaptive=adaptive)


def farthest(rows: Array, chosen: Array, start: Array, way: Array, squared: Array) -> Array:
    """The largest c >= 0 for which start + c way, |way| = 1, is within sqrt(squared) of each chosen row.

    ||start - g_i||^2 + 2 c (start - g_i) . way + c^2 <= squared: the lesser of the upper roots. `start` is within it.
    """
    apart = start - rows  # [K, D]
    along = apart @ way
    room = squared - jnp.sum(apart**2, axis=1)
    roots = jnp.sqrt(jnp.maximum(along**2 + room, 0.0)) - along
    return INSIDE * jnp.maximum(jnp.min(jnp.where(chosen, roots, 2 * jnp.sqrt(squared))), 0.0)


def trim(knowledge: Group = "all") -> Attack:
    """Per coordinate, at random, beyond the extreme of the known gradients against which m points.

    Where m > 0: U[min / 2, min] if min > 0, else U[2 min, min]. Elsewhere: U[max, 2 max] if max > 0, else
    U[max, max / 2].
    M. Fang, X. Cao, J. Jia, N. Gong, "Local model poisoning attacks to Byzantine-robust federated learning", USENIX
    Security 2020.
    """
    require_one_of("knowledge", knowledge, get_args(Group))

    def message(scene: Scene) -> Array:
        known = scene.known(knowledge)[:, None]
        low = jnp.min(jnp.where(known, scene.gradients, jnp.inf), axis=0)
        high = jnp.max(jnp.where(known, scene.gradients, -jnp.inf), axis=0)
        down = scene.mean(knowledge) > 0
        edge = jnp.where(down, low, high)
        beyond = jnp.where(down == (edge > 0), edge / 2, edge * 2)
        share = jax.vmap(lambda key: jax.random.uniform(key, edge.shape))(scene.keys)  # [K, D]
        lies = edge + share * (beyond - edge)
        return jnp.where(jnp.any(known), lies, 0.0)

    return Attack(message=message, colludes=True)


def avg_zero(knowledge: Group = "all") -> Attack:
    """-(K - f) m / f: the mean of all becomes 0.

    P. Jordan, F. Grötschla, F. X. Fan, R. Wattenhofer, "Decentralized federated policy gradient with Byzantine
    fault-tolerance and provably fast convergence", AAMAS 2024 (its code).
    """
    require_one_of("knowledge", knowledge, get_args(Group))

    def message(scene: Scene) -> Array:
        liars = jnp.sum(scene.byzantine)
        return scene.by_all(-(scene.byzantine.shape[0] - liars) / jnp.maximum(liars, 1) * scene.mean(knowledge))

    return Attack(message=message, colludes=True)


def mimic(warmup: int = 10) -> Attack:
    """All send what one honest agent sends, which makes it count several times over; they know all gradients.

    It is the agent with the largest g_i . z, chosen again in each of the first `warmup` rounds of the attack and then
    kept. z is the direction in which honest agents differ most, by one step of power iteration a round:
    z <- sum over i of (g_i - m) ((g_i - m) . z), at length 1.
    S. P. Karimireddy, L. He, M. Jaggi, "Byzantine-robust learning on heterogeneous datasets via bucketing", ICLR 2022.
    """
    require(warmup >= 1, f"warmup must be 1 round or more, not {warmup}")

    def recall(memory: Memory, scene: Scene) -> tuple[Array, Memory]:
        honest, g = scene.honest, scene.gradients
        apart = jnp.where(honest[:, None], g - mean_of(g, honest), 0.0)  # [K, D]
        step = (apart @ memory["z"]) @ apart
        z = jnp.where(jnp.any(step != 0), unit(step), memory["z"])
        best = jnp.argmax(jnp.where(honest, g @ z, -jnp.inf)).astype(jnp.int32)
        victim = jnp.where(memory["round"] < warmup, best, memory["victim"])
        after = {"z": z, "victim": victim, "round": memory["round"] + 1}
        # Before the attack starts, nobody is honest or not.
        after = jax.tree.map(lambda new, old: jnp.where(jnp.any(scene.byzantine), new, old), after, memory)
        return scene.by_all(g[victim]), after

    def init(agents: int, size: int) -> Memory:
        z = unit(jax.random.normal(jax.random.key(0), (size,)))
        return {"z": z, "victim": jnp.zeros((), jnp.int32), "round": jnp.zeros((), jnp.int32)}

    return Attack(recall=recall, init=init, colludes=True)
