"""Agents that differ: from words like `length=0.5` to the numbers of every agent's task.

A word is one of these:

    name=0.5             each agent's number is drawn from the nominal one, give or take half of it
    name=even:0.5        the agents' numbers are spread evenly over the same range, in a random order
    name=0.1:0.9         each is drawn from 0.1 to 0.9
    name=0.3,0.5,0.7     one number for each agent (`name=0.3,` for a single one)
    a-setting            one of SETTINGS, as papers have used them
    package.module:f     f(agent) -> {name: value}, for agents 0, 1, ...

What is drawn depends on the seed, the name and the agent alone.
"""

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpg.errors import ConfigError, unknown
from fedpg.pieces import import_object
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


class Setting(NamedTuple):
    """A setting of the field."""

    words: tuple[str, ...]
    about: str


SETTINGS = {
    "pole-lengths": Setting(
        ("half_length=0.1:0.9",),
        "CartPole's half-length 0.1 + 0.8 u, u from 0 to 1 (H. Jin et al., AISTATS 2022)",
    ),
    "thighs": Setting(
        ("bthigh=0.1005:0.1855", "fthigh=0.1005:0.1655"),
        "HalfCheetah's thighs, (143 + 85 (u - 0.5)) / 1000 and (133 + 65 (u - 0.5)) / 1000",
    ),
    "action-offsets": Setting(
        (f"{OFFSET}=normal:0.4",), "actions are taken with an offset of the agent's own, N(0, 0.4^2), as with Reacher"
    ),
}
"""By their names. Relative changes of -50, -25, 0, 25 and 50% are `name=even:0.5` for five agents."""


class Differences(NamedTuple):
    """What is special about every agent's task."""

    agents: dict[str, list[Any]]
    """One value per agent for each parameter."""
    server: dict[str, Any]
    """What the server's task needs to be the nominal one of these."""


def differences(task: Task, words: Sequence[str], agents: int, seed: int, unseen: int = 0) -> Differences:
    """The parameters of the tasks of so many agents; with `unseen`, of so many others, who take no part.

    One agent alone has no server elsewhere: the server's task is then its own.
    """
    found: dict[str, list[Any]] = {}
    count = unseen or agents
    plain = [word for given in words for word in (SETTINGS[given].words if given in SETTINGS else (given,))]
    for word in plain:
        name, given, value = word.partition("=")
        if not given and ":" in word:
            those = range(agents, agents + unseen) if unseen else range(agents)
            more = {_name(task, name): values for name, values in _by_function(word, those).items()}
        elif not given:
            known = "name=0.5, name=even:0.5, name=0.1:0.9, name=0.3,0.5,0.7, package.module:function"
            raise unknown("difference", word, [*SETTINGS, known])
        else:
            name = _name(task, name)
            more = {name: _values(task, name, value, count, (seed, int(bool(unseen))), bool(unseen))}
        for twice in found.keys() & more.keys():
            raise ConfigError(f"vary: {twice} is given twice")
        found |= more
    check_physics(task, found)
    server: dict[str, Any] = {}
    if {"wind_power", "turbulence_power"} & found.keys() and "enable_wind" not in found:
        found["enable_wind"] = [True] * count  # without it there is no wind whose power could differ
        server["enable_wind"] = True
    if agents == 1 and not unseen:
        server = {name: values[0] for name, values in found.items()}
    return Differences(found, server)


def _name(task: Task, name: str) -> str:
    if name not in task.nominal and ALIASES.get(name) in task.nominal:
        return ALIASES[name]
    if name not in task.nominal:
        have = f"it has {', '.join(task.nominal)}" if task.nominal else "it has none that are numbers"
        near = ", ".join(f"{a} for {n}" for a, n in ALIASES.items() if n in task.nominal and a not in task.nominal)
        raise ConfigError(f"vary: {task.id} has no parameter {name!r}: {have}{f' ({near})' if near else ''}")
    return name


def _by_function(word: str, agents: range) -> dict[str, list[Any]]:
    function: Callable[[int], Mapping[str, Any]] = import_object("difference", word, "function")
    if not callable(function):
        raise ConfigError(f"vary: {word} is not a function of an agent's number")
    rows = [function(agent) for agent in agents]
    if not all(isinstance(row, Mapping) and row.keys() == rows[0].keys() for row in rows):
        raise ConfigError(f"vary: {word} must give every agent the same names, as {{name: value}}")
    return {name: [row[name] for row in rows] for name in rows[0]}


def _values(task: Task, name: str, text: str, count: int, seed: tuple[int, int], unseen: bool) -> list[Any]:
    """One number for each agent."""
    nominal = task.nominal[name]
    chance = np.random.default_rng([*seed, *name.encode()])
    kind, has_kind, number = text.partition(":")
    if "," in text:
        listed: list[Any] = [_number(name, part) for part in text.removesuffix(",").split(",")]
        if isinstance(nominal, int) and all(value.is_integer() for value in listed) and not unseen:
            listed = [int(value) for value in listed]  # what is a whole number may have to be one
        if unseen:  # nobody says what others might have: anything between these
            return _drawn(chance, min(listed), max(listed), count)
        if len(listed) != count:
            raise ConfigError(f"vary: {name} has {len(listed)} numbers, and there are {count} agents: one for each")
        return listed
    if kind == "normal":
        size = int((task.actions.shape or (0,))[0])
        deviation = _number(name, number)
        return [tuple(map(float, deviation * row)) for row in chance.standard_normal((count, size))]
    if name == OFFSET:
        raise ConfigError(f"vary: {OFFSET} is drawn from a normal distribution: {OFFSET}=normal:0.4")
    if kind == "even":
        half = _half(name, number)
        spread = 1 + half * (np.linspace(-1, 1, count) if count > 1 else np.zeros(1))
        return [float(nominal * x) for x in chance.permutation(spread)]
    if has_kind:
        low, high = _number(name, kind), _number(name, number)
        if low > high:
            raise ConfigError(f"vary: {name}={text} must have the smaller number first")
        return _drawn(chance, low, high, count)
    half = _half(name, text)
    return [float(nominal * (1 + half * u)) for u in chance.uniform(-1, 1, count)]


def _drawn(chance: np.random.Generator, low: float, high: float, count: int) -> list[Any]:
    return [float(low + (high - low) * u) for u in chance.uniform(0, 1, count)]


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"vary: {name} must have numbers, not {text!r}")
    return value


def _half(name: str, text: str) -> float:
    half = _number(name, text)
    if not 0 <= half < 1:
        raise ConfigError(
            f"vary: {name}={text} is a share of its nominal value, from 0 to below 1; "
            f"for values of your own give {name}=LOW:HIGH, or one for each agent"
        )
    return half


def check_physics(task: Task, parameters: Mapping[str, Sequence[Any]]) -> None:
    """Refuse numbers that break the physics: what is more than 0 stays so, what is less than 0 too."""
    for name, values in parameters.items():
        nominal = task.nominal.get(name)
        least = 0 if name.endswith(MAY_VANISH) else np.finfo(np.float32).tiny
        for agent, value in enumerate(values):
            if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
                continue
            if not math.isfinite(value):
                raise ConfigError(f"vary: {name} of {task.id} must be a number, not {value} (agent {agent})")
            if nominal and not float(value) * math.copysign(1, nominal) >= least:
                sign = "more" if nominal > 0 else "less"
                raise ConfigError(f"vary: {name} of {task.id} must be {sign} than 0, not {value:g} (agent {agent})")
