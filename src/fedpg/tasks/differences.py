"""Agents that differ: from words like `length=0.5` to the numbers of every agent's task.

A word is one of these:

    name=0.5             each agent's number is drawn from the nominal one, give or take half of it
    name=even:0.5        the agents' numbers are spread evenly over the same range, in a random order
    name=0.1:0.9         each is drawn from 0.1 to 0.9
    name=0.3,0.5,0.7     one number for each agent (`name=0.3,` for a single one)
    a-setting            one of SETTINGS, as papers have used them
    package.module:f     f(agent) -> {name: value}, for agents 0, 1, ...

What is drawn depends on the seed, the name and the agent alone. A whole number, such as `frame_skip`, stays one.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpg.errors import ConfigError, unknown
from fedpg.pieces import import_object
from fedpg.tasks.physics import (
    ALIASES,
    holds,
    no_parameter,
    numbers_of,
    plain,
    takes_argument,
    wanted_of,
    whole_numbers,
)
from fedpg.tasks.physics import check_physics as check_physics
from fedpg.tasks.registry import OFFSET
from fedpg.tasks.task import Task

WINDS, SWITCH = ("wind_power", "turbulence_power"), "enable_wind"
"""Of Gymnasium's lander: how hard it blows, and that it blows at all."""


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
    """What the server's task has that the nominal one has not: wind, where it blows for the agents."""


class Given(NamedTuple):
    """What a word gives to one parameter."""

    name: str
    values: list[Any]
    """One for each agent."""
    middle: float | None = None
    """Of what was given; None for the nominal value."""


def differences(task: Task, words: Sequence[str], agents: int, seed: int, unseen: int = 0) -> Differences:
    """The parameters of the tasks of so many agents; with `unseen`, of so many others, who take no part.

    The server's task is the nominal one. Wind does not blow there, so where it blows for the agents the server has
    the middle of what they were given, and Gymnasium's own of what they were not. One agent alone has no server
    elsewhere: the server's task is then its own.
    """
    found: dict[str, Given] = {}
    for given in words:
        for word in SETTINGS[given].words if given in SETTINGS else (given,):
            for one in _given(task, word, agents, seed, unseen):
                if one.name in found:
                    raise ConfigError(f"vary: {one.name} is given twice")
                found[one.name] = one
    values = {name: one.values for name, one in found.items()}
    check_physics(task, values)
    server: dict[str, Any] = {}
    if found.keys() & set(WINDS) and SWITCH not in found and takes_argument(task, SWITCH):
        values[SWITCH] = [True] * (unseen or agents)  # without it there is no wind whose power could differ
        middles = {name: found[name].middle for name in WINDS if name in found}
        server = {SWITCH: True} | {name: middle for name, middle in middles.items() if middle is not None}
    if agents == 1 and not unseen:
        server = {name: own[0] for name, own in values.items()}
    return Differences(values, server)


def _given(task: Task, word: str, agents: int, seed: int, unseen: int) -> Iterator[Given]:
    name, given, text = word.partition("=")
    if given:
        name = _name(task, name)
        yield Given(name, *_values(task, name, text, unseen or agents, (seed, int(bool(unseen))), bool(unseen)))
    elif ":" in word:
        those = range(agents, agents + unseen) if unseen else range(agents)
        for own, values in _by_function(word, those).items():
            name = _name(task, own)
            check_physics(task, {name: values})
            values = list(map(int, values)) if name in whole_numbers(task) else values
            yield Given(name, values, float(np.mean(values)) if name in WINDS else None)
    else:
        known = "name=0.5, name=even:0.5, name=0.1:0.9, name=0.3,0.5,0.7, package.module:function"
        raise unknown("difference", word, [*SETTINGS, known])


def _name(task: Task, name: str) -> str:
    known = numbers_of(task)
    if name not in known and ALIASES.get(name) in known:
        return ALIASES[name]
    if name not in known:
        raise no_parameter(task, name)
    return name


def _by_function(word: str, agents: range) -> dict[str, list[Any]]:
    function: Callable[[int], Mapping[str, Any]] = import_object("difference", word, "function")
    if not callable(function):
        raise ConfigError(f"vary: {word} is not a function of an agent's number")
    rows = [_row(word, function, agent) for agent in agents]
    if any(row.keys() != rows[0].keys() for row in rows):
        raise ConfigError(f"vary: {word} must give every agent the same names, as {{name: value}}")
    return {name: [plain(row[name]) for row in rows] for name in rows[0]}


def _row(word: str, function: Callable[[int], Mapping[str, Any]], agent: int) -> Mapping[str, Any]:
    try:
        row = function(agent)
    except (Exception, SystemExit) as error:  # of a user's own: whatever it is
        raise ConfigError(f"vary: {word} raised {type(error).__name__} for agent {agent}: {error}") from error
    if not isinstance(row, Mapping) or not row:
        raise ConfigError(f"vary: {word} must return {{name: value}}, not {row!r:.80} (agent {agent})")
    return row


def _values(
    task: Task, name: str, text: str, count: int, seed: tuple[int, int], unseen: bool
) -> tuple[list[Any], float | None]:
    """(one number for each agent, the middle of what was given if that is not the nominal value)."""
    nominal, whole = task.nominal[name], name in whole_numbers(task)
    chance = np.random.default_rng([*seed, *name.encode()])
    kind, has_kind, number = text.partition(":")
    if name == OFFSET:
        if kind != "normal":
            raise ConfigError(
                f"vary: {OFFSET} is drawn from a normal distribution, as {OFFSET}=normal:0.4; for offsets of your own "
                f"give package.module:function, which returns {{'{OFFSET}': [one number for each action]}}"
            )
        size, deviation = int((task.actions.shape or (0,))[0]), _number(name, number)
        return [tuple(map(float, deviation * row)) for row in chance.standard_normal((count, size))], None
    if "," in text:
        listed: list[Any] = [_number(name, part) for part in text.removesuffix(",").split(",")]
        middle = float(np.mean(listed))
        if unseen:  # nobody says what others might have: anything between these
            return _drawn(chance, min(listed), max(listed), count, whole), middle
        if isinstance(nominal, int) and all(value.is_integer() for value in listed):
            listed = [int(value) for value in listed]  # what is a whole number may have to be one
        if len(listed) != count:
            raise ConfigError(f"vary: {name} has {len(listed)} numbers, and there are {count} agents: one for each")
        return listed, middle
    if has_kind and kind != "even":
        low, high = _number(name, kind), _number(name, number)
        if low > high:
            raise ConfigError(f"vary: {name}={text} must have the smaller number first")
        for end in (low, high):  # whatever is drawn: others will draw something else
            if wanted := wanted_of(task, name, end):
                raise ConfigError(f"vary: {name} of {task.id} must be {wanted}, and {text} goes to {end:g}")
        return _drawn(chance, low, high, count, whole), (low + high) / 2
    return _around(chance, task, name, text, count, even=bool(has_kind) and not unseen), None


def _around(chance: np.random.Generator, task: Task, name: str, text: str, count: int, even: bool) -> list[Any]:
    """Numbers around the nominal one, drawn or spread evenly."""
    nominal = task.nominal[name]
    half = _half(name, text.removeprefix("even:"))
    if half and not nominal:
        raise ConfigError(f"vary: {name} is 0 by default, and {text} is a share of that: {_INSTEAD.format(name)}")
    if name in whole_numbers(task):
        least, most = sorted((nominal * (1 - half), nominal * (1 + half)))
        low, high = math.ceil(least), math.floor(most)
        if half and low == high:
            raise ConfigError(f"vary: {name}={text} holds no other whole number than {low}: {_INSTEAD.format(name)}")
        if even:
            return [round(x) for x in chance.permutation(np.linspace(low, high, count) if count > 1 else [nominal])]
        return _drawn(chance, low, high, count, True)
    if even:
        spread = 1 + half * (np.linspace(-1, 1, count) if count > 1 else np.zeros(1))
        return [float(nominal * x) for x in chance.permutation(spread)]
    return [float(nominal * (1 + half * u)) for u in chance.uniform(-1, 1, count)]


def _drawn(chance: np.random.Generator, low: float, high: float, count: int, whole: bool) -> list[Any]:
    uniform = chance.uniform(0, 1, count)
    if whole:
        return [int(low) + int((high - low + 1) * u) for u in uniform]
    return [float(low + (high - low) * u) for u in uniform]


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isfinite(value) and not holds(value):
        raise ConfigError(f"vary: {name} must have numbers that float32 can hold, not {text!r}")
    if not math.isfinite(value):
        raise ConfigError(f"vary: {name} must have numbers, not {text!r}")
    return value


_INSTEAD = "give {0}=LOW:HIGH, or one number for each agent"


def _half(name: str, text: str) -> float:
    half = _number(name, text)
    if not 0 <= half < 1:
        raise ConfigError(
            f"vary: {name}={text} is a share of its nominal value, from 0 to below 1; "
            f"for values of your own {_INSTEAD.format(name)}"
        )
    return half
