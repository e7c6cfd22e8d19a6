"""Centred clipping: an aggregator that remembers its last answer.

v <- v + mean over i of (g_i - v) min(1, tau / ||g_i - v||), from the v of the round before.
S. P. Karimireddy, L. He, M. Jaggi, "Learning from history for Byzantine robust optimization", ICML 2021.

    fedpg train --byzantine 3 --attack sign-flipping --aggregator centred_clipping:centred_clipping
"""

import jax.numpy as jnp

from fedpg.aggregators import Aggregator, decide, mean_of


def centred_clipping(tau: float = 1.0) -> Aggregator:
    """Nobody moves the aggregate by more than tau / K in a round."""

    def update(v, sent, own):
        moves = sent.clean - v  # [K, D]
        distances = jnp.where(sent.valid, jnp.linalg.norm(moves, axis=1), jnp.inf)
        clipped = moves * jnp.minimum(1.0, tau / jnp.maximum(distances, 1e-12))[:, None]
        v = v + mean_of(clipped, sent.valid)
        return decide(sent, v, sent.valid, threshold=tau, distances=distances), v

    return Aggregator(update, init=lambda agents, size: jnp.zeros(size))
