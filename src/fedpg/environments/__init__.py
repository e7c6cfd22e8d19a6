"""The tasks, by name."""

from fedpg.config import unknown
from fedpg.environments.cartpole import CARTPOLE
from fedpg.environments.environment import Environment, Lanes, join, lanes, rollout

ENVIRONMENTS = {"CartPole-v1": CARTPOLE}


def make_environment(task: str) -> Environment:
    """The task of that name."""
    if task not in ENVIRONMENTS:
        raise unknown("task", task, ENVIRONMENTS)
    return ENVIRONMENTS[task]


__all__ = ["ENVIRONMENTS", "Environment", "Lanes", "join", "lanes", "make_environment", "rollout"]
