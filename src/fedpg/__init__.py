"""Fault-tolerant federated reinforcement learning.

>>> import fedpg
>>> run = fedpg.train("CartPole-v1", agents=10, byzantine=3, attack="sign-flipping")  # doctest: +SKIP
"""

import fedpg.threads  # noqa: F401 (first)
from fedpg.agents import make_problem
from fedpg.attacks import ATTACKS, Attack
from fedpg.config import Config, ConfigError, SimulationError, make_config
from fedpg.environments import Environment
from fedpg.storage import StorageError
from fedpg.training import Records, Run, train, train_seeds

__version__ = "0.1.0"
__all__ = [
    "ATTACKS",
    "Attack",
    "Config",
    "ConfigError",
    "Environment",
    "Records",
    "Run",
    "SimulationError",
    "StorageError",
    "make_config",
    "make_problem",
    "train",
    "train_seeds",
]
