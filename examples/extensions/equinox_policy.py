"""A policy by Equinox; any other JAX network works the same way. It is written for one observation.

    pip install equinox
    fedpg train --policy equinox_policy:policy

P. Kidger, C. Garcia, "Equinox: neural networks in JAX via callable PyTrees and filtered transformations", 2021.
"""

import equinox as eqx
import jax

from fedpg.policies import from_logits


def policy(task):
    """A softmax over the logits of a network with two hidden layers, for a task with discrete actions."""

    def network(key):
        return eqx.nn.MLP(task.observations, int(task.actions.n), width_size=32, depth=2, key=key)

    def init(key):
        return eqx.filter(network(key), eqx.is_array)

    rest = eqx.filter(network(jax.random.key(0)), eqx.is_array, inverse=True)  # activation functions, sizes

    def apply(params, observation):
        return eqx.combine(params, rest)(observation)  # [F] -> [A]

    return from_logits(init, apply, task.observations, task.actions)
