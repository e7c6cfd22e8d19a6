"""CartPole-v1 in JAX: the dynamics of Gymnasium's task, in float32.

A. G. Barto, R. S. Sutton, C. W. Anderson, "Neuronlike adaptive elements that can solve difficult learning control
problems", 1983, as Gymnasium's CartPole-v1 (explicit Euler, 0.02 s).
"""

import math

import jax
import jax.numpy as jnp
from gymnasium import spaces
from jax import Array

from fedpg.tasks.compiled import Environment, Parameters, compiled_task

SECONDS = 0.02
X_LIMIT = 2.4
ANGLE_LIMIT = 12 * 2 * math.pi / 360
NOMINAL = (
    ("gravity", 9.8),
    ("mass_cart", 1.0),
    ("mass_pole", 0.1),
    ("half_length", 0.5),
    ("force", 10.0),
)


def reset(key: Array, parameters: Parameters) -> Array:
    """(position, velocity, angle, angular velocity), each uniform in (-0.05, 0.05)."""
    return jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)


def step(state: Array, action: Array, parameters: Parameters) -> tuple[Array, Array, Array]:
    """(next state, reward, terminated) of pushing the cart left (0) or right (1)."""
    gravity, mass_pole, length = parameters["gravity"], parameters["mass_pole"], parameters["half_length"]
    mass = parameters["mass_cart"] + mass_pole
    x, x_dot, angle, angle_dot = state
    force = jnp.where(action == 1, parameters["force"], -parameters["force"])
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    pull = (force + mass_pole * length * angle_dot**2 * sin) / mass
    angle_acc = (gravity * sin - cos * pull) / (length * (4 / 3 - mass_pole * cos**2 / mass))
    x_acc = pull - mass_pole * length * angle_acc * cos / mass
    x = x + SECONDS * x_dot
    angle = angle + SECONDS * angle_dot
    state = jnp.stack([x, x_dot + SECONDS * x_acc, angle, angle_dot + SECONDS * angle_acc])
    terminated = (jnp.abs(x) > X_LIMIT) | (jnp.abs(angle) > ANGLE_LIMIT)
    return state, jnp.float32(1.0), terminated


ENVIRONMENT = Environment(
    id="CartPole-v1",
    reset=reset,
    step=step,
    observe=lambda state: state,
    observations=4,
    actions=spaces.Discrete(2),
    limit=500,
    parameters=NOMINAL,
)
CARTPOLE = compiled_task(ENVIRONMENT)
