"""FLTrust: an aggregator that trusts an agent as far as it agrees with the server's own gradient g_0.

sum of w_i g_i ||g_0|| / ||g_i||, divided by the sum of w_i, where w_i = max(0, cos(g_i, g_0)).
X. Cao, M. Fang, J. Liu, N. Gong, "FLTrust: Byzantine-robust federated learning via trust bootstrapping", NDSS 2021.

    fedpg train --byzantine 3 --attack sign-flipping --aggregator fltrust:fltrust
"""

import jax.numpy as jnp

from fedpg.aggregators import Aggregator, decide


def fltrust() -> Aggregator:
    """`needs` makes the server sample trajectories of its own. Attackers never see the gradient of these."""

    def update(memory, sent, own):
        g_0 = own.gradient  # [D]
        length = jnp.linalg.norm(g_0)
        lengths = jnp.maximum(jnp.linalg.norm(sent.clean, axis=1), 1e-30)  # [K]
        cosines = sent.clean @ g_0 / (lengths * jnp.maximum(length, 1e-30))
        trust = jnp.where(sent.valid & (cosines > 0), cosines, 0.0)
        scaled = sent.clean * (length / lengths)[:, None]
        return decide(sent, trust @ scaled / jnp.maximum(jnp.sum(trust), 1e-30), trust > 0), memory

    return Aggregator(update, needs=("gradient",))
