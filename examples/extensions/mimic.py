"""Mimic: an attack that remembers whom it copies.

All Byzantine agents send what one honest agent sends: it looks honest, and makes that agent count several times over.
They pick the agent furthest along the direction z in which honest agents differ most, by one step of power iteration a
round: z <- sum over i of (g_i - m) ((g_i - m) . z), normalised. After a warm-up they keep copying the same agent.
S. P. Karimireddy, L. He, M. Jaggi, "Byzantine-robust learning on heterogeneous datasets via bucketing", ICLR 2022.

    fedpg train --byzantine 3 --attack mimic:mimic --attack-options warmup=5
"""

import jax
import jax.numpy as jnp

from fedpg import Attack
from fedpg.aggregators import mean_of


def mimic(warmup: float = 10) -> Attack:
    """Copies the honest agent i with the largest g_i . z, chosen again in each of the first `warmup` rounds."""

    def recall(memory, scene):
        honest, g = ~scene.byzantine, scene.gradients
        apart = jnp.where(honest[:, None], g - mean_of(g, honest), 0.0)  # [K, D]
        step = (apart @ memory["z"]) @ apart
        length = jnp.linalg.norm(step)
        z = jnp.where(length > 0, step / jnp.maximum(length, 1e-30), memory["z"])
        best = jnp.argmax(jnp.where(honest, g @ z, -jnp.inf))
        victim = jnp.where(memory["round"] < warmup, best, memory["victim"])
        rounds = memory["round"] + jnp.any(scene.byzantine)  # those in which somebody attacks
        return jnp.broadcast_to(g[victim], g.shape), {"z": z, "victim": victim, "round": rounds}

    def init(agents, size):
        z = jax.random.normal(jax.random.key(0), (size,))
        return {"z": z, "victim": jnp.zeros((), jnp.int32), "round": jnp.zeros((), jnp.int32)}

    return Attack(recall=recall, init=init, colludes=True)
