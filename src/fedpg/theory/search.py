"""An attack that knows the honest replies, the true gradient and the aggregator: it tries lies, and sends the worst."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.aggregators import Verdict, concentration
from fedpg.attacks import Scene
from fedpg.config import Config
from fedpg.theory.runs import Lie, verdict_on

Aim = Callable[[Verdict, Array, Array], Array]
"""(the verdict on the lies, the true gradient, who is honest [K]) -> how well that serves the attackers."""


def error(verdict: Verdict, truth: Array, honest: Array) -> Array:
    """||e_t||^2, which the lemma bounds."""
    return jnp.sum((verdict.gradient - truth) ** 2)


def backwards(verdict: Verdict, truth: Array, honest: Array) -> Array:
    """-mu_t . grad J: how far the step goes down instead of up."""
    return -jnp.dot(verdict.gradient, truth)


def drop(verdict: Verdict, truth: Array, honest: Array) -> Array:
    """How many honest agents are turned away, and the error among lies that do the same."""
    scale = 1 + error(verdict, truth, honest)
    return jnp.sum(honest & ~verdict.accepted) + 0.5 * (1 - 1 / scale)


AIMS: dict[str, Aim] = {"search-error": error, "search-backwards": backwards, "search-drop": drop}

REACH_1 = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.3, 1.6, 2.0)
REACH_2 = (0.5, 0.8, 1.0, 1.2, 1.5)
"""How far the lies go, in radii of R1 and of R2."""


def search(config: Config, aim: Aim, random_directions: int = 2) -> Lie:
    """The colluders send the honest mean moved by a step: the worst of many, by what the aggregator itself makes of it.

    Directions: against the true gradient; along the honest mean's own error; to and away from the honest reply that
    is farthest out; random ones. Lengths: shares of the radii of R1 and of R2. All colluders send the lie, or half of
    them while the others stay honest. The honest mean itself is a candidate too.
    """
    liars = config.byzantine
    honest = jnp.arange(config.agents) < config.agents - liars

    def lie(key: Array, truth: Array, sigma: Array, batch: Array, scene: Scene) -> Array:
        gradients = scene.gradients
        mean = jnp.sum(jnp.where(honest[:, None], gradients, 0.0), axis=0) / jnp.sum(honest)
        away = jnp.where(honest[:, None], gradients - mean, 0.0)
        farthest = away[jnp.argmax(jnp.sum(away**2, axis=1))]
        random = jax.random.normal(key, (random_directions, mean.shape[0]))
        directions = jnp.concatenate([jnp.stack([-truth, mean - truth, farthest, -farthest]), random])
        units = directions / jnp.maximum(jnp.linalg.norm(directions, axis=1, keepdims=True), 1e-12)
        second = 2 * sigma
        first = second * jnp.sqrt(concentration(config.agents, config.delta) / batch)
        lengths = jnp.concatenate([jnp.array(REACH_1) * first, jnp.array(REACH_2) * second])
        points = (mean + lengths[:, None, None] * units).reshape(-1, mean.shape[0])  # [n, D]
        everyone, half = ~honest, jnp.arange(config.agents) >= config.agents - (liars + 1) // 2
        points = jnp.concatenate([mean[None], points, points[::2]])
        whole = jnp.arange(points.shape[0]) <= lengths.shape[0] * units.shape[0]

        def sent(i: Array) -> Array:
            return jnp.where(jnp.where(whole[i], everyone, half)[:, None], points[i], gradients)

        def score(i: Array) -> Array:
            return aim(verdict_on(config, sent(i), sigma, jnp.float32(batch)), truth, honest)

        return sent(jnp.argmax(jax.lax.map(score, jnp.arange(points.shape[0]), batch_size=32)))

    return lie
