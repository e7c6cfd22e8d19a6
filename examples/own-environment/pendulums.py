"""Every site's own environment: the same task, in a machine that nobody else sees.

Each plant balances a pole on a cart of its own: another pole, another motor. All of them want one controller.
"""

import os

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit


def make_plant() -> gymnasium.Env:
    """This site's cart; its measures come from its own settings, here the environment variables of the machine."""
    cart = CartPoleEnv()
    cart.length = float(os.environ.get("POLE_LENGTH", "0.5"))
    cart.force_mag = float(os.environ.get("MOTOR_FORCE", "10"))
    cart.polemass_length = cart.masspole * cart.length
    return TimeLimit(cart, max_episode_steps=200)


def make_reference() -> gymnasium.Env:
    """The server's stand-in, of the same sizes: it evaluates the policy there, and samples for its own steps."""
    return TimeLimit(CartPoleEnv(), max_episode_steps=200)
