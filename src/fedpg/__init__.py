"""Fault-tolerant federated reinforcement learning.

>>> import fedpg
>>> run = fedpg.train("CartPole-v1", agents=10, byzantine=3, attack="sign-flipping")  # doctest: +SKIP
"""

from fedpg.aggregators import AGGREGATORS, Aggregator
from fedpg.algorithms import ALGORITHMS
from fedpg.assembly import make_problem
from fedpg.attacks import ATTACKS, Attack, Scene
from fedpg.config import Config
from fedpg.errors import ConfigError, SimulationError
from fedpg.policies import Policy
from fedpg.presets import make_config
from fedpg.problem import Agent, Algorithm, Problem, Schema
from fedpg.storage import StorageError
from fedpg.tasks import Environment, Task, make_task
from fedpg.training import Records, Run, load, train, train_seeds

__version__ = "0.2.0"
__all__ = [
    "AGGREGATORS",
    "ALGORITHMS",
    "ATTACKS",
    "Agent",
    "Aggregator",
    "Algorithm",
    "Attack",
    "Config",
    "ConfigError",
    "Environment",
    "Policy",
    "Problem",
    "Records",
    "Run",
    "Scene",
    "Schema",
    "SimulationError",
    "StorageError",
    "Task",
    "load",
    "make_config",
    "make_problem",
    "make_task",
    "train",
    "train_seeds",
]
