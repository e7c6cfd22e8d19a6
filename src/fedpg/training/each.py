"""What one policy is worth to each of several agents that differ: its return in every agent's own task."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jax import Array

from fedpg.problem import Problem
from fedpg.server import evaluate, evaluate_agents
from fedpg.storage import StorageError, write_whole
from fedpg.tasks import RoundKeys, Task
from fedpg.tasks.differences import SWITCH, differences
from fedpg.tasks.physics import plain

FILE = "agents.json"
"""In a run folder: the tasks of agents that differ, from its beginning, and at its end what they make of its policy."""
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
        """Beside what the run has written there when it began."""
        _write(folder, _read(folder) | asdict(self))


def keep_tasks(folder: Path, problem: Problem) -> None:
    """Into the folder of a run that begins with the tasks of its agents; refuses one that began with others."""
    check_tasks(folder, problem)
    if problem.task.varied and not (folder / FILE).exists():
        _write(folder, {"parameters": _parameters(problem), "server": _server(problem)})


def check_tasks(folder: Path, problem: Problem) -> None:
    """Refuse to go on with a run whose agents had other tasks: a function that gives them may have changed since.

    Runs that an older version began have not written what they had.
    """
    if not (folder / FILE).exists():
        return
    then, now = read_tasks(folder), _parameters(problem)
    instead = "Give what it began with, or begin a new run by another --out"
    if then.keys() != now.keys():
        had, have = (", ".join(names) or "nothing" for names in (then, now))
        raise StorageError(f"the agents of the run in {folder} differed in {had}, and now they do in {have}. {instead}")
    for name, values in now.items():
        for agent, (before, value) in enumerate(zip(then[name], values, strict=False)):
            if not _same(before, value):
                by = f" (vary: {' '.join(problem.config.vary)})" if problem.config.vary else ""
                raise StorageError(
                    f"the run in {folder} began with {name} = {before} for agent {agent}, and now that has {value}: "
                    f"what gives the agents their tasks has changed{by}. {instead}"
                )


def read_tasks(folder: Path) -> dict[str, list[Any]]:
    """What the agents of a run differ in, one value per agent each, finished or not; nothing if nobody wrote it."""
    parameters = _read(folder).get("parameters", {})
    if not isinstance(parameters, dict) or not all(isinstance(values, list) for values in parameters.values()):
        raise StorageError(f"{folder / FILE} is damaged: its parameters are not those of agents")
    return parameters


def read_each(folder: Path) -> Each | None:
    """What a finished run left of this; None if its agents were all alike."""
    values = _read(folder)
    if "own" not in values:
        return None
    try:
        return from_values(values)
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{folder / FILE} is damaged: {error}") from error


def _read(folder: Path) -> dict[str, Any]:
    """What is there; nothing where there is no such file."""
    path = folder / FILE
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} is damaged: {error}") from error
    if not isinstance(values, dict):
        raise StorageError(f"{path} is damaged: it is not about agents")
    return values


def _write(folder: Path, values: dict[str, Any]) -> None:
    write_whole(folder / FILE, json.dumps(values, default=str) + "\n")


def _same(before: Any, value: Any) -> bool:
    """Whether a file's value is still that; the last digits are the business of a machine's own sines and powers."""
    if isinstance(value, list | tuple):
        return isinstance(before, list) and len(before) == len(value) and all(map(_same, before, value))
    if isinstance(value, int | float) and isinstance(before, int | float):
        return math.isclose(before, value, rel_tol=1e-9, abs_tol=1e-12) or (math.isnan(before) and math.isnan(value))
    return before == value if isinstance(value, int | float | str | None) else True  # no file can say what it is


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
        parameters=_parameters(problem),
        own=own.mean(axis=1).tolist(),
        nominal=float(evaluate(problem, theta, keys, count)[0].mean()),
        unseen=unseen.tolist(),
    )


def _parameters(problem: Problem) -> dict[str, list[Any]]:
    return {name: list(map(_told, values)) for name, values in problem.task.varied.items()}


def _server(problem: Problem) -> dict[str, Any]:
    """What the server's task has that the nominal one has not: wind, where it blows for several agents."""
    config, task = problem.config, problem.task
    if SWITCH not in task.varied or not config.vary or config.agents == 1:
        return {}
    found = differences(task, config.vary, config.agents, config.vary_seed).server
    return {name: _told(value) for name, value in found.items()}


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
