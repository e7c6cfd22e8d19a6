"""Which values a task's parameters may have: numbers of the right kind, size and sign."""

import contextlib
import inspect
import numbers
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator

from fedpg.errors import ConfigError
from fedpg.tasks.models import unfit
from fedpg.tasks.registry import OFFSET
from fedpg.tasks.task import Task

ALIASES = {
    "length": "half_length",
    "masscart": "mass_cart",
    "masspole": "mass_pole",
    "force_mag": "force",
    "density": "mass",
    "wind": "wind_power",
    "turbulence": "turbulence_power",
    "gravity": "g",
}
"""What else people call a parameter, where a task has none of that name."""
MAY_VANISH = ("wind_power", "turbulence_power", "_weight", "_scale", "_reward", "_cost")
"""How names end of what may be 0 as well: winds, and what a reward is made of."""
SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
"""Compiled tasks compute in float32."""
MACHINERY = {
    *("num_envs", "batch_size", "num_threads", "max_num_players", "thread_affinity_offset", "base_path"),
    *("seed", "env_seed", "gym_reset_return_info"),
}
"""What EnvPool takes for a pool, and not for a task."""


def plain(value: Any) -> Any:
    """The numbers and arrays of NumPy and others as Python's own, which words and files can hold."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    own = isinstance(value, int | float) or not isinstance(value, numbers.Real)
    return value if own else float(value)


def check_physics(task: Task, parameters: Mapping[str, Sequence[Any]]) -> None:
    """Refuse what the task does not have, what is no number where one belongs, and numbers that break the physics."""
    known = _keywords(task)
    for name, values in parameters.items():
        if known is not None and name not in known:
            raise no_parameter(task, name)
        for agent, value in enumerate(map(plain, values)):
            if wanted := wanted_of(task, name, value):
                text = f"{value:g}" if isinstance(value, float) else reprlib.repr(value)
                raise ConfigError(f"vary: {name} of {task.id} must be {wanted}, not {text} (agent {agent})")


def wanted_of(task: Task, name: str, value: Any) -> str:
    """What a parameter must be, if this value is not that; else nothing. What is no number of a task may be anything.

    What is more than 0 stays so, what is less than 0 too.
    """
    if name == OFFSET:
        return _wanted_offset(task, value)
    if not _is_number(value):
        return "a number" if name in numbers_of(task) else ""
    if not holds(value):
        return f"a number that float32 can hold, up to {LARGEST:.2g}"
    if name in whole_numbers(task) and value != int(value):
        return "a whole number"
    nominal, may_vanish = task.nominal.get(name), name.endswith(MAY_VANISH)
    if not nominal or (value if nominal > 0 else -value) >= (0 if may_vanish else SMALLEST):
        return unfit(task.id, name, value)
    if may_vanish:
        return "at least 0" if nominal > 0 else "at most 0"
    return "more than 0" if nominal > 0 else "less than 0"


def _wanted_offset(task: Task, value: Any) -> str:
    if OFFSET not in task.nominal:
        return "left out, as its actions are not a box of Gymnasium's"
    size = int((task.actions.shape or (0,))[0])
    if isinstance(value, tuple) and len(value) == size and all(_is_number(x) and holds(x) for x in value):
        return ""
    return f"a list of {size} number{'s' * (size != 1)}, one for each of its actions"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def holds(value: float) -> bool:
    """Whether it is a finite number of float32."""
    return abs(value) <= LARGEST


def no_parameter(task: Task, name: str) -> ConfigError:
    """The error for a name that nothing of a task has, with those that something has."""
    known = numbers_of(task)
    have = f"it has {', '.join(known)}" if known else "it has none that are numbers"
    near = ", ".join(f"{a} for {n}" for a, n in ALIASES.items() if n in known and a not in known)
    return ConfigError(f"vary: {task.id} has no parameter {name!r}: {have}{f' ({near})' if near else ''}")


def numbers_of(task: Task) -> dict[str, float]:
    """What may differ by numbers, as it is if nobody says otherwise: not what may as well be a text."""
    makers = arguments_of(task)
    return {
        n: x for n, x in task.nominal.items() if not any(n in takes and "str" in _types(takes[n]) for takes in makers)
    }


def whole_numbers(task: Task) -> set[str]:
    """The parameters that are annotated as `int` and not as `float` too; a nominal 1 alone may stand for 1.0."""
    makers, known = arguments_of(task), {n for n, value in task.nominal.items() if type(value) is int}
    return {n for n in known if any(n in takes and _whole(_types(takes[n])) for takes in makers)}


def _whole(types: Set[str]) -> bool:
    return "int" in types and "float" not in types


def _types(argument: inspect.Parameter) -> set[str]:
    """The names in an annotation, which may be a text itself."""
    said = argument.annotation
    return set(re.findall(r"\w+", said if isinstance(said, str) else inspect.formatannotation(said)))


def takes_argument(task: Task, name: str) -> bool:
    """Whether what makes the task's environments, or those of one agent, is known to take an argument."""
    return any(
        name in takes or any(one.kind is one.VAR_KEYWORD for one in takes.values()) for takes in arguments_of(task)
    )


def arguments_of(task: Task) -> list[Mapping[str, inspect.Parameter]]:
    """The arguments of what makes a task's environments, of each factory of several; those of who says it."""
    found: list[Mapping[str, inspect.Parameter]] = []
    for maker in _makers(task):
        with contextlib.suppress(TypeError, ValueError):  # of something built in
            found.append(inspect.signature(maker).parameters)
    return found


def _keywords(task: Task) -> set[str] | None:
    """All that can be given to a task outside JAX; None if that cannot be told: one in JAX says so itself."""
    makers = _makers(task)
    if not task.simulator or not makers:
        return None
    names = {*task.nominal, OFFSET, "factory"}
    if task.id in gymnasium.registry:
        names |= inspect.signature(gymnasium.make).parameters.keys()
    if task.simulator.startswith("EnvPool"):
        import envpool

        names |= {*envpool.make_spec(task.id)._config_keys} - MACHINERY
    for maker in makers:
        taken = _taken(maker)
        if taken is None:
            return None
        names |= taken
    return names


def _taken(maker: Callable[..., Any]) -> set[str] | None:
    """The keyword arguments of what makes environments; None if it may take any."""
    # Of Gymnasium's own classes one passes what it does not know on to the next.
    own = isinstance(maker, type) and maker.__module__.startswith("gymnasium.")
    names: set[str] = set()
    for one in getattr(maker, "__mro__", ()) if own else (maker,):
        try:
            takes = inspect.signature(one).parameters
        except (TypeError, ValueError):  # of something built in
            return None
        names |= takes.keys()
        if all(argument.kind is not argument.VAR_KEYWORD for argument in takes.values()):
            return names
    return None


def _makers(task: Task) -> list[Callable[..., Any]]:
    """What makes a task's environments: what is registered, or the factory of a user, or one for each agent."""
    spec = gymnasium.registry.get(task.id)
    if spec is not None:
        return [load_env_creator(str(spec.entry_point))] if spec.entry_point else []
    # Of a task that was made of a factory only what varies it knows the factory.
    known = inspect.getclosurevars(task.vary).nonlocals if inspect.isfunction(task.vary) else {}
    return list(filter(callable, [known.get("factory"), *task.varied.get("factory", ())]))
