"""What one policy is worth to each of several agents that differ: its return in every agent's own task."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jax import Array

from fedpg.problem import Problem
from fedpg.server import evaluate, evaluate_agents
from fedpg.storage import StorageError, write_whole
from fedpg.tasks import RoundKeys, Task
from fedpg.tasks.differences import differences
from fedpg.tasks.physics import plain

FILE = "agents.json"
EPISODES = 50
"""Per agent, of a task that is compiled; of others, as many as a test has."""


@dataclass(frozen=True)
class Each:
    """Mean greedy returns of one policy."""

    parameters: dict[str, list[Any]]
    """What the agents' tasks differ in, one value per agent each."""
    own: list[float]
    """In every agent's own task."""
    nominal: float
    """In the server's; of one agent alone that is its own once more, in other episodes."""
    unseen: list[float]
    """In the tasks of as many others, who took no part; none if those cannot be made."""

    def save(self, folder: Path) -> None:
        write_whole(folder / FILE, json.dumps(asdict(self), default=str) + "\n")


def read_each(folder: Path) -> Each | None:
    """What a run left of this; None if its agents were all alike."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        return from_values(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is damaged: {error}") from error


def from_values(values: Any) -> Each:
    """From plain JSON values, checked."""
    each = Each(**{name: values[name] for name in ("parameters", "own", "nominal", "unseen")})
    numbers = [*each.own, each.nominal, *each.unseen]
    good = isinstance(each.parameters, dict) and all(isinstance(x, int | float) and np.isfinite(x) for x in numbers)
    if not good or any(len(column) != len(each.own) for column in each.parameters.values()):
        raise ValueError("its returns or parameters are not those of agents")
    return each


def measure(problem: Problem, theta: Array, keys: RoundKeys, episodes: int | None = None) -> Each:
    """The returns of the policy theta in the tasks of all agents, in the server's, and in unseen ones."""
    config, task = problem.config, problem.task
    count = episodes or (config.test_episodes if task.simulator else EPISODES)
    own = evaluate_agents(problem, theta, keys, config.agents, count)
    unseen = np.zeros(0)
    others = _others(problem) if config.vary and config.agents > 1 else None
    if others is not None:
        elsewhere = problem._replace(task=others)
        unseen = evaluate_agents(elsewhere, theta, keys, config.agents, count).mean(axis=1)
    return Each(
        parameters={name: list(map(_told, values)) for name, values in task.varied.items()},
        own=own.mean(axis=1).tolist(),
        nominal=float(evaluate(problem, theta, keys, count)[0].mean()),
        unseen=unseen.tolist(),
    )


def _told(value: Any) -> Any:
    """As a file can hold it: plain numbers, and a factory by its name, not by where it is in memory."""
    return getattr(value, "__name__", type(value).__name__) if callable(value) else plain(value)


def _others(problem: Problem) -> Task | None:
    """The tasks of as many agents who took no part; None if there are none, which must not cost a finished run."""
    config, task = problem.config, problem.task
    try:
        return task.vary(*differences(task, config.vary, config.agents, config.vary_seed, unseen=config.agents))
    except Exception:  # a user's function may know its own agents only, and a simulator refuse what was drawn
        return None
