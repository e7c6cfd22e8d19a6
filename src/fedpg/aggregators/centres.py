"""Rules that look for a centre which nobody can pull far."""

import math

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.aggregators.aggregator import Aggregator, Memory, Own, Sent, Verdict, decide
from fedpg.aggregators.coordinates import coordinate_median
from fedpg.aggregators.parts import lengths, weighted_mean
from fedpg.errors import require


def geometric_median(nu: float = 1e-6, steps: int = 64) -> Aggregator:
    """RFA: the point v with the least sum of distances to the vectors, by Weiszfeld's steps from the median.

    v <- sum of w_i g_i / sum of w_i, where w_i = 1 / max(nu, ||g_i - v||).
    Needs nothing. Promises breakdown point 1/2: with a share alpha < 1/2 of liars, an error of at most
    2 (1 - alpha) / (1 - 2 alpha) times the honest ones' reach.
    K. Pillutla, S. Kakade, Z. Harchaoui, "Robust aggregation for federated learning", IEEE Transactions on Signal
    Processing 2022.
    """
    require(0 < nu < math.inf, f"geometric-median: nu must be a positive number, not {nu}")
    require(steps >= 1, f"geometric-median: steps must be 1 or more, not {steps}")

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        start = coordinate_median(sent.clean, sent.valid)
        return decide(sent, weiszfeld(sent.clean, sent.valid, start, nu, steps), sent.valid), memory

    return Aggregator(update)


def weiszfeld(vectors: Array, valid: Array, start: Array, nu: float, steps: int) -> Array:
    """The geometric median of the valid ones, as far as so many steps from `start` go.  [D]"""
    # A unit for each row, so that no square overflows; `lengths` would look for it in every step.
    largest = jnp.maximum(jnp.max(jnp.abs(vectors), axis=1), jnp.max(jnp.abs(start)))
    unit = jax.lax.stop_gradient(jnp.clip(largest, 1e-15, 1e37))

    def step(_: Array, v: Array) -> Array:
        squares = jnp.sum(((vectors - v) / unit[:, None]) ** 2, axis=1)
        away = jnp.maximum(unit * jnp.sqrt(jnp.maximum(squares, 1e-30)), nu)
        # Relative to the nearest, for 1 / 1e39 is 0 and so would be the sum of all weights.
        nearest = jax.lax.stop_gradient(jnp.min(jnp.where(valid, away, jnp.inf)))
        weights = jnp.where(valid, jnp.where(jnp.isfinite(nearest), nearest, 1.0) / away, 0.0)
        return weights / jnp.maximum(jnp.sum(weights), 1e-30) @ vectors

    return jax.lax.fori_loop(0, steps, step, start)


def centred_clipping(tau: float | None = None, steps: int = 5) -> Aggregator:
    """Centred clipping: steps from the last round's aggregate, in which each agent's pull is no longer than tau.

    v <- v + mean over i of (g_i - v) min(1, tau / ||g_i - v||), from the v of the round before; at first from 0.
    Without tau, each step takes the median of the distances to v: then no constant depends on the task.
    Needs memory. Promises that f agents move v by at most tau f / n a step, and with tau of the order of the honest
    ones' spread an error of that order times sqrt(f / n), for f / n below about 0.1.
    S. P. Karimireddy, L. He, M. Jaggi, "Learning from history for Byzantine robust optimization", ICML 2021.
    """
    require(tau is None or tau > 0, f"centred-clipping: tau must be more than 0, not {tau}")
    require(steps >= 1, f"centred-clipping: steps must be 1 or more, not {steps}")

    def update(v: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        def clip(v: Array) -> tuple[Array, Array, Array]:
            moves = sent.clean - v
            away = lengths(moves)
            radius = coordinate_median(away[:, None], sent.valid)[0] if tau is None else jnp.float32(tau)
            factors = jnp.minimum(1.0, radius / jnp.where(away > 0, away, 1.0))
            pulls = jnp.where(jnp.isfinite(away)[:, None], moves * factors[:, None], 0.0)
            return v + weighted_mean(pulls, sent.valid.astype(v.dtype)), radius, away

        for _ in range(steps):
            v, radius, away = clip(v)
        distances = jnp.where(sent.valid, away, jnp.inf)
        return decide(sent, v, sent.valid, threshold=radius, distances=distances), v

    return Aggregator(update, init=lambda agents, size: jnp.zeros(size))
