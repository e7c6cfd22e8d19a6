"""Tasks by name: the compiled ones, any Gymnasium id, or a user's own."""

import functools
import importlib.util
import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator

from fedpg.errors import ConfigError, unknown
from fedpg.machine import cores
from fedpg.pieces import import_object
from fedpg.tasks.cartpole import CARTPOLE
from fedpg.tasks.compiled import Environment, check_environment, compiled_task
from fedpg.tasks.models import parameters_of, with_model
from fedpg.tasks.pool import Pool, pool_task
from fedpg.tasks.simulators import (
    EnvPoolSimulator,
    GymnasiumSimulator,
    KeptEnvironments,
    KeptPools,
    Mixed,
    Simulator,
    envpool_arguments,
)
from fedpg.tasks.task import Task

TASKS = {"CartPole-v1": CARTPOLE}
"""The tasks that are compiled together with the policy."""

ENVPOOL_FAMILIES = ("envpool.box2d", "envpool.classic_control", "envpool.mujoco.gym")
"""Where EnvPool's ids mean the same tasks as Gymnasium's."""

INSTANCES = 64
"""Gymnasium environments that are under way at a time: enough for the policy's products, few enough for memory."""

NO_LIMIT = 2**31 - 1

Factory = Callable[..., gymnasium.Env[Any, Any]]
AnyTask = str | Factory | Environment | Task | Sequence[Factory]
Variant = tuple[tuple[str, Any], ...]
"""Keyword arguments of one kind of task."""
Given = Mapping[str, Sequence[Any]]
"""Parameters, each with one value per agent."""
NOTHING: Mapping[str, Any] = MappingProxyType({})
OFFSET = "action_offset"
"""A parameter of every task with box actions: what is added to its actions, one number for each."""


def make_task(task: AnyTask) -> Task:
    """The task of that name: compiled if we have it, else by EnvPool if that has it, else by Gymnasium.

    `task` is a Gymnasium id, `package.module:object`, a function that makes a Gymnasium environment, one such function
    for every agent (the server then has the first one's), or an Environment in JAX.
    """
    if isinstance(task, Task):
        return task
    if isinstance(task, Environment):
        check_environment(task)
        return compiled_task(task)
    if not isinstance(task, str):
        return _own(task, "")
    if task in TASKS:
        return TASKS[task]
    if ":" in task:
        return _own(import_object("task", task, "factory"), task)
    if task not in gymnasium.registry:
        error = unknown("task", task, [*TASKS, *gymnasium.registry])
        hint, _, _ = str(error).partition(" The tasks are")
        raise ConfigError(
            f"{hint} It must be an id of Gymnasium's (`gymnasium.pprint_registry()` lists them), "
            "or your own as package.module:factory"
        )
    if has_envpool(task):
        return envpool_task(task)
    return gymnasium_task(_by_id(task), task)


def _own(task: Any, name: str) -> Task:
    """What a user passed, or what `package.module:object` points at."""
    if isinstance(task, Task | Environment):
        return make_task(task)
    if isinstance(task, Sequence) and task and all(map(callable, task)):
        each = list(task)
        return gymnasium_task(each[0], name or _name(each[0])).vary({"factory": each})
    if not callable(task):
        what = f"the task {name!r}" if name else f"a task of type {type(task).__name__}"
        raise ConfigError(f"{what} is not an id, nor a function that makes a Gymnasium environment")
    return gymnasium_task(task, name or _name(task))


def _name(factory: Any) -> str:
    return getattr(factory, "__name__", type(factory).__name__)


def has_envpool(task: str) -> bool:
    """Whether EnvPool is here and simulates this task of Gymnasium's."""
    if importlib.util.find_spec("envpool") is None:
        return False
    try:
        from envpool import registration
    except ImportError:  # there, but not for this machine
        return False
    return task in registration.registry.specs and registration.registry.specs[task][0] in ENVPOOL_FAMILIES


def envpool_task(task: str, variants: Sequence[Variant] = (), server: Variant = ()) -> Task:
    """A task by EnvPool, with the keyword arguments of every agent and of the server."""
    import envpool
    from envpool import registration

    spec = envpool.make_spec(task)
    observation_space, action_space = _envpool_spaces(task, server)
    observations, actions, to_task = adapt(task, observation_space, action_space)
    # Those of MuJoCo draw at random in `reset` only, and are slow to make.
    reseeds = registration.registry.specs[task][0] != "envpool.mujoco.gym"
    kept = KeptPools(task)
    kinds, whose = _kinds(variants, server)
    for kind in kinds[1:]:
        _refuse_other_spaces(task, _envpool_spaces(task, kind), (observation_space, action_space))

    def open_(seeds: np.ndarray, resets: int, agents: np.ndarray) -> Simulator:
        def one(kind: int, members: np.ndarray) -> Simulator:
            if reseeds:
                return EnvPoolSimulator(task, seeds[members], variant=kinds[kind])
            return kept.open(seeds[members], resets, kinds[kind])

        if len(kinds) == 1:
            return one(0, np.arange(len(seeds)))
        return Mixed(whose(agents), one)

    pool = Pool(
        id=task,
        open=open_,
        reseeds=reseeds,
        observations=observations,
        actions=actions,
        to_task=to_task,
        limit=int(spec.config.max_episode_steps),
        simulator=f"EnvPool {version('envpool')}",
        # Not where threads cannot be kept on their cores: there one is faster.
        teams=2 if hasattr(os, "sched_setaffinity") and cores() > 1 else 1,
    )

    def vary(agents: Given, nominal: Mapping[str, Any] = NOTHING) -> Task:
        several, own = _variants(agents, variants), _merged(server, nominal)
        if {name for variant in (*several, own) for name, _ in variant} <= {*spec._config_keys, *parameters_of(task)}:
            return envpool_task(task, several, own)
        # EnvPool's own simulator has other knobs than Gymnasium's.
        return gymnasium_task(_by_id(task), task, several, own)

    return pool_task(pool, vary, _numbers(task, action_space), _columns(variants))


def _envpool_spaces(task: str, variant: Variant = ()) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """(the observations, the actions) of one kind of an EnvPool task."""
    import envpool

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the bounds of its boxes, which are not used
        try:
            spec = envpool.make_spec(task, **envpool_arguments(task, variant))
        except TypeError as error:
            raise ConfigError(f"EnvPool's {task} does not take the parameters {dict(variant)}") from error
        return spec.gymnasium_observation_space, spec.gymnasium_action_space


def gymnasium_task(factory: Factory, name: str, variants: Sequence[Variant] = (), server: Variant = ()) -> Task:
    """A task by Gymnasium environments, one object per episode that is under way."""
    kinds, whose = _kinds(variants, server)

    def made(kind: int) -> gymnasium.Env[Any, Any]:
        arguments = with_model(name, dict(kinds[kind]))
        offset = arguments.pop(OFFSET, None)
        one = make_one(arguments.pop("factory", factory), name, **arguments)
        return one if offset is None else _with_offset(one, np.asarray(offset))

    first = made(0)
    observations, actions, to_task = adapt(name, first.observation_space, first.action_space)

    def make(kind: int) -> gymnasium.Env[Any, Any]:
        other = made(kind)
        had = other.observation_space, other.action_space
        _refuse_other_spaces(name, had, (first.observation_space, first.action_space))
        return other

    # One of each kind at once: what cannot be made is said before a run begins.
    kept = KeptEnvironments(name, make, [first, *(make(kind) for kind in range(1, len(kinds)))])
    pool = Pool(
        id=name,
        open=lambda seeds, resets, agents: GymnasiumSimulator(kept, seeds, whose(agents), INSTANCES),
        reseeds=True,
        observations=observations,
        actions=actions,
        to_task=to_task,
        limit=(first.spec.max_episode_steps if first.spec else None) or NO_LIMIT,
        simulator=f"Gymnasium {gymnasium.__version__}",
        teams=1,
    )

    def vary(agents: Given, nominal: Mapping[str, Any] = NOTHING) -> Task:
        return gymnasium_task(factory, name, _variants(agents, variants), _merged(server, nominal))

    return pool_task(pool, vary, _numbers(name, first.action_space, factory), _columns(variants))


def _by_id(task: str) -> Factory:
    return functools.partial(gymnasium.make, task, disable_env_checker=True)


def _with_offset(environment: gymnasium.Env[Any, Any], offset: np.ndarray) -> gymnasium.Env[Any, Any]:
    """The environment, with something added to every action."""
    space = environment.action_space
    assert isinstance(space, spaces.Box)
    low, high = space.low, space.high
    return gymnasium.wrappers.TransformAction(
        environment, lambda action: np.clip(action + offset, low, high).astype(space.dtype), space
    )


def _numbers(name: str, actions: spaces.Space[Any], factory: Factory | None = None) -> dict[str, float]:
    """The numbers among the keyword arguments of a task, and those of its model, with their nominal values."""
    found: dict[str, float] = {}
    spec = gymnasium.registry.get(name)
    maker = factory if spec is None else load_env_creator(str(spec.entry_point)) if spec.entry_point else None
    try:
        takes = inspect.signature(maker).parameters if maker is not None else {}
    except (TypeError, ValueError):  # of something built in
        takes = {}
    given = {key: value.default for key, value in takes.items()} | (dict(spec.kwargs) if spec is not None else {})
    found = {key: value for key, value in given.items() if type(value) in (int, float)} | parameters_of(name)
    return found | ({OFFSET: 0.0} if isinstance(actions, spaces.Box) else {})


def _refuse_other_spaces(name: str, had: tuple[Any, Any], wanted: tuple[Any, Any]) -> None:
    if had != wanted:
        raise ConfigError(f"the agents' tasks {name} have different observations or actions: one policy fits one")


def _columns(variants: Sequence[Variant]) -> dict[str, list[Any]]:
    """By parameter, what was by agent."""
    rows = [dict(variant) for variant in variants]
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def _merged(before: Variant, more: Mapping[str, Any]) -> Variant:
    return tuple({**dict(before), **more}.items())


def _variants(given: Given, before: Sequence[Variant]) -> list[Variant]:
    """The keyword arguments of every agent, beside those that they had before."""
    counts = {len(values) for values in given.values()} | ({len(before)} if before else set())
    if len(counts) != 1:
        raise ConfigError("every parameter of a task needs one value per agent")
    old = before or [()] * max(counts)
    rows = zip(*([_hashable(value) for value in values] for values in given.values()), strict=True)
    return [tuple({**dict(a), **dict(zip(given, b, strict=True))}.items()) for a, b in zip(old, rows, strict=True)]


def _hashable(value: Any) -> Any:
    """Lists and arrays as tuples: agents with equal ones share a simulator."""
    value = value.tolist() if isinstance(value, np.ndarray) else value
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


def _kinds(variants: Sequence[Variant], server: Variant) -> tuple[list[Variant], Callable[[np.ndarray], np.ndarray]]:
    """(the different kinds of task, the server's first; agents [N] -> which kind each has [N])."""
    kinds = list(dict.fromkeys([server, *variants]))
    of_agent = np.array([*(kinds.index(v) for v in variants), 0])  # the server's last, for its number is -1
    return kinds, lambda agents: of_agent[agents] if variants else np.zeros_like(agents)


def make_one(factory: Factory, name: str, **arguments: Any) -> gymnasium.Env[Any, Any]:
    """One environment, or an error that says what the factory did instead."""
    try:
        inspect.signature(factory).bind(**arguments)
    except ValueError:  # it does not say what it takes
        pass
    except TypeError as error:
        if arguments:
            given = ", ".join(f"{key}={value}" for key, value in arguments.items())
            raise ConfigError(f"the task {name} does not take the parameters {given}: {error}") from error
        raise ConfigError(
            f"the task {name} is made by a function that is called without arguments: {error}. Give them a default, or "
            "pass functools.partial of it"
        ) from error
    try:
        environment = factory(**arguments)
    except (gymnasium.error.Error, ImportError) as error:
        raise ConfigError(f"Gymnasium cannot make the task {name}: {error}") from error
    except SystemExit as error:
        raise ConfigError(f"the task {name} called sys.exit({error.code!r}) while it was made") from error
    except (TypeError, ValueError, AssertionError) as error:
        if not arguments:
            raise
        given = ", ".join(f"{key}={value}" for key, value in arguments.items())
        raise ConfigError(f"the task {name} does not take the parameters {given}: {error}") from error
    if not isinstance(environment, gymnasium.Env):
        raise ConfigError(f"the task {name} made {environment!r}, which is not a gymnasium.Env")
    takes = inspect.signature(environment.unwrapped.reset).parameters
    if "seed" not in takes and all(one.kind is not one.VAR_KEYWORD for one in takes.values()):
        raise ConfigError(
            f"the task {name} has reset{inspect.signature(environment.unwrapped.reset)}, which takes no seed: a run "
            "must begin its episodes by seeds of its own. Define reset(self, *, seed=None, options=None)"
        )
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
    if 0 in (size, *(actions.shape or ())):
        raise ConfigError(
            f"{task} has observations {observations} and actions {actions}: a policy needs at least one number of each"
        )
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
