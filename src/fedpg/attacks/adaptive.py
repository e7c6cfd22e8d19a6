"""Attacks that optimise against the aggregator in use: they try lies on it, in this very round, and send the worst.

They are not shown what the server contributes, only what the aggregate would be. By default they know all gradients;
colluders who know only their own let these stand for the others' (`Scene.imagined`).
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.attacks.attack import (
    Attack,
    Group,
    Scene,
    mean_of,
    require_one_of,
    squared_distances,
    unit,
)
from fedpg.attacks.crafted import farthest
from fedpg.errors import require

Score = Callable[[Array], Array]
EVALUATIONS, FIRST_STEP, SHRINK = 20, 10.0, 0.8
"""Of the line search."""


def opt_alie(knowledge: Group = "all") -> Attack:
    """m - z s, with the z >= 0 that moves the aggregate furthest from m, by a line search.

    Y. Allouah et al., "Fixing by mixing: a recipe for optimal Byzantine ML under heterogeneity", AISTATS 2023.
    """
    return _optimised(knowledge, lambda scene, z: scene.mean(knowledge) - z * scene.deviation(knowledge))


def opt_ipm(knowledge: Group = "all") -> Attack:
    """-e m, with the e >= 0 that moves the aggregate furthest from m, by a line search.

    Y. Allouah et al., "Fixing by mixing: a recipe for optimal Byzantine ML under heterogeneity", AISTATS 2023.
    """
    return _optimised(knowledge, lambda scene, e: -e * scene.mean(knowledge))


def _optimised(knowledge: Group, lie: Callable[[Scene, Array], Array]) -> Attack:
    require_one_of("knowledge", knowledge, get_args(Group))

    def message(scene: Scene) -> Array:
        return scene.by_all(lie(scene, line_search(lambda x: scene.harm(knowledge, lie(scene, x)))))

    return Attack(message=message, colludes=True, adaptive=True)


class _Search(NamedTuple):
    best: Array
    score: Array  # of the best
    probe: Array  # where it looked last
    step: Array
    growing: Array  # while every step is better than the one before


def line_search(score: Score) -> Array:
    """The best x >= 0 of 20: from 0 by steps of 10 that double while they help, then to and fro by steps times 0.8."""

    def look(i: Array, s: _Search) -> _Search:
        first = i == 0  # in the same loop, so that the aggregator is compiled once
        back = jnp.where(s.probe > s.step, s.probe - s.step, s.probe / 2)  # not below 0
        fro = jnp.where(s.probe < s.best, s.probe + s.step, back)
        probe = jnp.where(first, s.probe, jnp.where(s.growing, s.best + s.step, fro))
        found = score(probe).astype(jnp.float32)  # whatever precision the aggregator has
        better = first | (found > s.score)
        growing = s.growing & better
        return _Search(
            best=jnp.where(better, probe, s.best),
            score=jnp.where(better, found, s.score),
            probe=probe,
            step=s.step * jnp.where(first, 1.0, jnp.where(growing, 2.0, SHRINK)),
            growing=growing,
        )

    zero = jnp.float32(0.0)
    start = _Search(zero, zero, zero, jnp.float32(FIRST_STEP), jnp.asarray(True))
    return jax.lax.fori_loop(0, EVALUATIONS, look, start).best


DECADES, THIRDS = 2.0, 6
"""Of the search for l and c: the first step, and how many there are, each a third of the one before."""


def normalized(l: float | None = None, c: float | None = None, knowledge: Group = "all") -> Attack:  # noqa: E741
    """Turns the aggregate as far as it can: x = A / ||A|| - l sign m, then x at length c.

    A is the aggregate of the honest gradients. l and c are such that the angle between A and the aggregate under attack
    is the largest, by a search over powers of 10 around 1 and ||m||; or as given. Published: l = 0.83, c = 0.03 for
    CartPole; 1, 0.02 for LunarLander; 0.83, 0.2 for InvertedPendulum.
    M. Fang, X. Wang, N. Gong, "Provably robust federated reinforcement learning", WWW 2025.
    """
    for name, value in (("l", l), ("c", c)):
        require(value is None or 0 < value < math.inf, f"{name} must be a positive number, not {value}")
    require_one_of("knowledge", knowledge, get_args(Group))

    def message(scene: Scene) -> Array:
        honest = scene.outcome(knowledge)
        m = scene.mean(knowledge)

        def lie(l_: Array, c_: Array) -> Array:
            return c_ * unit(unit(honest) - l_ * jnp.sign(m))

        def turned(x: Array) -> Array:
            return -jnp.dot(unit(scene.outcome(knowledge, x)), unit(honest))

        def best_length(share: Array, start: Array) -> Array:
            return _by_decades(lambda x: turned(lie(share, x)), start)

        share = jnp.float32(1.0 if l is None else l)
        size = best_length(share, jnp.linalg.norm(m)) if c is None else jnp.float32(c)
        if l is None:  # at a length that is not turned away whatever the direction
            share = _by_decades(lambda x: turned(lie(x, size)), share)
            size = best_length(share, size) if c is None else size
        return scene.by_all(lie(share, size))

    return Attack(message=message, colludes=True, adaptive=True)


class _Decades(NamedTuple):
    best: Array
    score: Array  # of the best
    centre: Array  # the best when it looked up and down last


def _by_decades(score: Score, start: Array) -> Array:
    """The best x > 0 that it finds: up or down by two powers of 10, if that helps, then by a third of it, and so on."""

    def look(i: Array, s: _Decades) -> _Decades:
        # The start, then down, up, down, up, ...: one by one, so that the aggregator is compiled once.
        step, up = jnp.divmod(jnp.maximum(i - 1, 0), 2)
        factor = 10.0 ** (DECADES / 3.0**step)
        centre = jnp.where(up, s.centre, s.best)
        x = jnp.where(i == 0, start, jnp.where(up, centre * factor, centre / factor))
        found = score(x).astype(jnp.float32)
        better = found > s.score  # what is no number is not
        return _Decades(jnp.where(better, x, s.best), jnp.where(better, found, s.score), centre)

    return jax.lax.fori_loop(0, 1 + 2 * THIRDS, look, _Decades(start, jnp.float32(-jnp.inf), start)).best


Way = Literal["mean", "random", "worst"]


def mda_fooling(direction: Way = "worst", knowledge: Group = "all") -> Attack:
    """The mean of the K - 2f honest gradients of least diameter, moved until their diameter with it is the honest one.

    So a rule that looks for the K - f vectors of least diameter takes the lies for honest. It moves against m (mean),
    in a random direction (random), or in the one of these that moves the aggregate further (worst). The K - 2f are
    those nearest to one honest agent, the one with the least diameter; to find the very least is exponential.
    P. Jordan, F. Grötschla, F. X. Fan, R. Wattenhofer, "Decentralized federated policy gradient with Byzantine
    fault-tolerance and provably fast convergence", AAMAS 2024 (its code).
    """
    require_one_of("direction", direction, get_args(Way))
    require_one_of("knowledge", knowledge, get_args(Group))

    def message(scene: Scene) -> Array:
        rows = scene.imagined(knowledge)
        squared = squared_distances(rows, scene.honest)  # [K, K]
        core = _tightest(squared, scene.honest, jnp.sum(scene.honest) - jnp.sum(scene.byzantine))
        centre = mean_of(rows, core)
        ways = {"mean": -scene.mean(knowledge), "random": jax.random.normal(scene.keys[0], centre.shape)}
        lies = [
            centre + farthest(rows, core, centre, v, jnp.max(squared)) * v
            for v in map(unit, ways.values() if adaptive else [ways[direction]])
        ]
        return scene.by_all(scene.worst(knowledge, jnp.stack(lies)) if adaptive else lies[0])

    adaptive = direction == "worst"
    return Attack(message=message, colludes=True, adaptive=adaptive)


def _tightest(squared: Array, chosen: Array, size: Array) -> Array:
    """Of the sets of `size` nearest neighbours of each chosen one, itself included, that of least diameter.  [K]"""
    away = jnp.where(chosen, squared, jnp.inf)  # [K, K]
    ranks = jnp.argsort(jnp.argsort(away, axis=1), axis=1)
    sets = (ranks < size) & chosen  # [K, K]

    def diameter(members: Array) -> Array:
        return jnp.max(jnp.where(members[:, None] & members, squared, 0.0))

    diameters = jnp.where(chosen, jax.lax.map(diameter, sets), jnp.inf)
    return sets[jnp.argmin(diameters)]
