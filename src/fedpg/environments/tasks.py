"""Tasks by name: the compiled ones, any Gymnasium id, or a user's own factory."""

import importlib.util
import os
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from fedpg.config import ConfigError, unknown
from fedpg.environments.cartpole import CARTPOLE
from fedpg.environments.environment import Environment
from fedpg.environments.pool import Pool
from fedpg.environments.simulators import EnvPoolSimulator, GymnasiumSimulator, KeptPools, Simulator, cores

ENVIRONMENTS = {"CartPole-v1": CARTPOLE}
"""The tasks that are compiled together with the policy."""

ENVPOOL_FAMILIES = ("envpool.box2d", "envpool.classic_control", "envpool.mujoco.gym")
"""Where EnvPool's ids mean the same tasks as Gymnasium's."""

INSTANCES = 64
"""Gymnasium environments that are under way at a time: enough for the policy's products, few enough for memory."""

NO_LIMIT = 2**31 - 1

Factory = Callable[[], gymnasium.Env[Any, Any]]


def make_environment(task: str | Factory) -> Environment | Pool:
    """The task of that name: compiled if we have it, else by EnvPool if that has it, else by Gymnasium.

    `task` is a Gymnasium id, `package.module:factory`, or a function that makes a Gymnasium environment.
    """
    if not isinstance(task, str):
        if not callable(task):
            raise ConfigError(f"a task is an id or a function that makes an environment, not {type(task).__name__}")
        return gymnasium_pool(task, getattr(task, "__name__", type(task).__name__))
    if task in ENVIRONMENTS:
        return ENVIRONMENTS[task]
    if ":" in task:
        return gymnasium_pool(import_factory(task), task)
    if task not in gymnasium.registry:
        error = unknown("task", task, [*ENVIRONMENTS, *gymnasium.registry])
        hint, _, _ = str(error).partition(" The tasks are")
        raise ConfigError(
            f"{hint.rstrip(': ')} It must be an id of Gymnasium's (`gymnasium.pprint_registry()` lists them), "
            "or your own as package.module:factory"
        )
    return (
        envpool_pool(task)
        if has_envpool(task)
        else gymnasium_pool(lambda: gymnasium.make(task, disable_env_checker=True), task)
    )


def import_object(kind: str, path: str, name: str = "name") -> Any:
    """What `package.module:name` points at: a user's own task or attack."""
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"cannot load the {kind} {path!r}: {error}. It must be package.module:{name}.") from error


def import_factory(path: str) -> Factory:
    """The function that `package.module:factory` points at."""
    factory = import_object("task", path, "factory")
    if not callable(factory):
        raise ConfigError(f"the task {path!r} is not a function that makes a Gymnasium environment")
    return factory


def has_envpool(task: str) -> bool:
    """Whether EnvPool is here and simulates this task of Gymnasium's."""
    if importlib.util.find_spec("envpool") is None:
        return False
    try:
        from envpool import registration
    except ImportError:  # there, but not for this machine
        return False
    return task in registration.registry.specs and registration.registry.specs[task][0] in ENVPOOL_FAMILIES


def envpool_pool(task: str) -> Pool:
    """A task by EnvPool."""
    import envpool
    from envpool import registration

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the bounds of its boxes, which are not used
        spec = envpool.make_spec(task)
        observation_space, action_space = spec.gymnasium_observation_space, spec.gymnasium_action_space
    observations, actions, to_task = adapt(task, observation_space, action_space)
    # Those of MuJoCo draw at random in `reset` only, and are slow to make.
    reseeds = registration.registry.specs[task][0] != "envpool.mujoco.gym"
    kept = KeptPools(task)
    return Pool(
        id=task,
        open=(lambda seeds, turn: EnvPoolSimulator(task, seeds)) if reseeds else kept.open,
        reseeds=reseeds,
        observations=observations,
        actions=actions,
        to_task=to_task,
        limit=int(spec.config.max_episode_steps),
        simulator=f"EnvPool {version('envpool')}",
        clock=defaultdict(float),
        failures=[],
        # Not where threads cannot be kept on their cores: there one is faster.
        teams=2 if hasattr(os, "sched_setaffinity") and cores() > 1 else 1,
    )


def gymnasium_pool(factory: Factory, name: str) -> Pool:
    """A task by Gymnasium environments, one object per episode that is under way."""
    first = make_one(factory, name)
    observations, actions, to_task = adapt(name, first.observation_space, first.action_space)
    kept, lock = [first], threading.Lock()

    def open_(seeds: np.ndarray, turn: int) -> Simulator:
        # Taken from the list while in use: two runs at a time must not share an environment.
        with lock:
            mine = [kept.pop() for _ in range(min(len(seeds), INSTANCES, len(kept)))]
        mine += [make_one(factory, name) for _ in range(min(len(seeds), INSTANCES) - len(mine))]
        return GymnasiumSimulator(mine, seeds, kept)

    return Pool(
        id=name,
        open=open_,
        reseeds=True,
        observations=observations,
        actions=actions,
        to_task=to_task,
        limit=(first.spec.max_episode_steps if first.spec else None) or NO_LIMIT,
        simulator=f"Gymnasium {gymnasium.__version__}",
        clock=defaultdict(float),
        failures=[],
        teams=1,
    )


def make_one(factory: Factory, name: str) -> gymnasium.Env[Any, Any]:
    """One environment, or an error that says what the factory did instead."""
    try:
        environment = factory()
    except (gymnasium.error.Error, ImportError) as error:
        raise ConfigError(f"Gymnasium cannot make the task {name}: {error}") from error
    if not isinstance(environment, gymnasium.Env):
        raise ConfigError(f"the task {name} made {environment!r}, which is not a gymnasium.Env")
    return environment


def adapt(
    task: str, observations: spaces.Space[Any], actions: spaces.Space[Any]
) -> tuple[int, spaces.Space[Any], Callable[[np.ndarray], np.ndarray]]:
    """(size of an observation, actions as the policy sees them, the map from its actions to the task's)."""
    if not isinstance(observations, spaces.Box) or len(observations.shape) != 1:
        raise ConfigError(
            f"{task} has the observation space {observations}; policies here take a Box with one axis. "
            "Wrap the task: gymnasium.wrappers.FlattenObservation makes one vector of numbers, dicts and tuples; "
            "an image needs features first (gymnasium.wrappers.TransformObservation). "
            "Give the wrapped task as package.module:factory"
        )
    size = int(observations.shape[0])
    if isinstance(actions, spaces.Discrete):
        start = int(actions.start)
        return size, spaces.Discrete(int(actions.n)), lambda a: a + start
    if not isinstance(actions, spaces.Box) or len(actions.shape) != 1 or actions.dtype.kind != "f":
        raise ConfigError(
            f"{task} has the action space {actions}; policies here act in Discrete or in a Box of floats with one "
            "axis. Wrap the task: gymnasium.wrappers.TransformAction maps one of these to what the task wants "
            "(for MultiDiscrete, number the combinations). Give the wrapped task as package.module:factory"
        )
    low, high = actions.low.astype(np.float64), actions.high.astype(np.float64)
    # A box with ends becomes (-1, 1), which is where the mean of the policy, a tanh, lies.
    # Ends beyond 1e6 stand for none.
    low, high = np.where(low < -1e6, -np.inf, low), np.where(high > 1e6, np.inf, high)
    ends = np.isfinite(low) & np.isfinite(high)
    centre = (np.where(ends, high, 0) + np.where(ends, low, 0)) / 2
    half = (np.where(ends, high, 1) - np.where(ends, low, -1)) / 2
    seen = spaces.Box(
        np.where(ends, -1, low).astype(np.float32), np.where(ends, 1, high).astype(np.float32), dtype=np.float32
    )
    return size, seen, lambda a: np.clip(centre + half * a, low, high).astype(actions.dtype)
