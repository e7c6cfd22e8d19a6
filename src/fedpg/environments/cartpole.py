"""CartPole-v1 in JAX: the dynamics of Gymnasium's task, in float32.

A. G. Barto, R. S. Sutton, C. W. Anderson, "Neuronlike adaptive elements that can solve difficult learning control
problems", 1983, as Gymnasium's CartPole-v1 (explicit Euler, 0.02 s).
"""

import math

import jax
import jax.numpy as jnp
from gymnasium import spaces
from jax import Array

from fedpg.environments.environment import Environment

GRAVITY = 9.8
MASS_CART = 1.0
MASS_POLE = 0.1
MASS = MASS_CART + MASS_POLE
HALF_LENGTH = 0.5
FORCE = 10.0
SECONDS = 0.02
X_LIMIT = 2.4
ANGLE_LIMIT = 12 * 2 * math.pi / 360


def reset(key: Array) -> Array:
    """(position, velocity, angle, angular velocity), each uniform in (-0.05, 0.05)."""
    return jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)


def step(state: Array, action: Array) -> tuple[Array, Array, Array]:
    """(next state, reward, terminated) of pushing the cart left (0) or right (1)."""
    x, x_dot, angle, angle_dot = state
    force = jnp.where(action == 1, FORCE, -FORCE)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    pull = (force + MASS_POLE * HALF_LENGTH * angle_dot**2 * sin) / MASS
    angle_acc = (GRAVITY * sin - cos * pull) / (HALF_LENGTH * (4 / 3 - MASS_POLE * cos**2 / MASS))
    x_acc = pull - MASS_POLE * HALF_LENGTH * angle_acc * cos / MASS
    x = x + SECONDS * x_dot
    angle = angle + SECONDS * angle_dot
    state = jnp.stack([x, x_dot + SECONDS * x_acc, angle, angle_dot + SECONDS * angle_acc])
    terminated = (jnp.abs(x) > X_LIMIT) | (jnp.abs(angle) > ANGLE_LIMIT)
    return state, jnp.float32(1.0), terminated


CARTPOLE = Environment(
    id="CartPole-v1",
    reset=reset,
    step=step,
    observe=lambda state: state,
    observations=4,
    actions=spaces.Discrete(2),
    limit=500,
)
