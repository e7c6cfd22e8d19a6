"""Who plays: attacks and defences as words, `name` or `name,option=value,...`, and the settings of a pair of them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedpg.config import Config, validate
from fedpg.errors import ConfigError
from fedpg.presets import make_config
from fedpg.tasks import make_task
from fedpg.tasks.differences import SWITCH, differences

ATTACKS = (
    *("random-noise", "random-action", "zero-gradient", "reward-flipping"),
    *("sign-flipping", "sign-flipping,scale=1", "fedpg-attack", "variance-attack"),
    *("alie", "alie,z=1.5", "opt-alie"),
    *("ipm,e=0.1", "ipm,e=0.5", "ipm,e=2", "opt-ipm"),
    *("min-max,direction=unit", "min-max,direction=sign", "min-max,direction=std", "min-sum,direction=sign"),
    *("trim", "mimic", "avg-zero", "mda-fooling", "normalized"),
)
"""Of every idea one or more; faults are not among them: the border check refuses them, whatever the rule."""
DEFENCES = (
    *("compass", "mean", "fedpg", "majority"),
    *("krum", "multi-krum", "mda", "smea", "caf", "dnc"),
    *("median", "trimmed-mean", "mean-around-median", "geometric-median", "centred-clipping"),
    *("nnm+krum", "nnm+trimmed-mean", "arc+geometric-median", "bucketing+median"),
    *("fltrust", "monna", "zeno"),
)
"""Beside these plays, as the floor, `server`: a server that listens to nobody."""

NOBODY = "no attack"
HONEST, SERVER = "mean", "server"
ONE, PLACE = "one agent alone", "only the honest agents"
ALONE = re.compile(r"agent (\d+) alone")
"""`PLACE` is what a defence would leave that finds every liar."""
REFERENCES = ((NOBODY, HONEST), (PLACE, HONEST), (ONE, HONEST), (NOBODY, SERVER))


def base_config(task: str, agents: int, byzantine: int, trajectories: int, **settings: object) -> Config:
    """What all games of an arena have in common; every rule reckons with as many liars as there are."""
    given = {"agents": agents, "byzantine": byzantine, "alpha": byzantine / agents, "trajectories": trajectories}
    usual = {"aggregator": HONEST, "sigma": "auto"}  # of the base itself, which no game has
    return make_config(task, **(given | usual | settings))  # type: ignore[arg-type]


def words_of(player: str) -> tuple[str, tuple[str, ...]]:
    """`ipm,e=0.5` -> ("ipm", ("e=0.5",))."""
    name, *options = (part.strip() for part in player.split(","))
    wrong = [option for option in options if "=" not in option]
    if not name or wrong:
        raise ConfigError(f"{player!r} is no attack or defence: write it as name or name,option=value,...")
    return name, tuple(options)


def settings_of(base: Config, attack: str, defence: str) -> Config:
    """The settings of a game.

    An attack may have the option `start`: the first round in which it is made. A defence may have `momentum`: agents
    then send averages over rounds, in algorithms that do not remember rounds in a way of their own.
    """
    if attack == ONE:
        return alone(replace(base, vary=first_words(base, 1)), agents=1)
    if attack == PLACE:
        honest = base.agents - base.byzantine
        return alone(replace(base, vary=first_words(base, honest)), agents=honest)
    if found := ALONE.fullmatch(attack):
        return alone(replace(base, vary=own_words(base, int(found[1]))), agents=1)
    rule, options = words_of(defence)
    options, momentum = _taken(options, "momentum")
    try:
        beta = float(momentum or base.momentum)
    except ValueError:
        raise ConfigError(f"{defence!r}: momentum must be a number") from None
    config = replace(base, aggregator=rule, aggregator_options=options, momentum=beta)
    if attack == NOBODY:
        return validate(replace(config, byzantine=0))
    name, options = words_of(attack)
    options, start = _taken(options, "start")
    if start and not start.isdigit():
        raise ConfigError(f"{attack!r}: start must be the number of a round")
    return validate(replace(config, attack=name, attack_options=options, attack_start=int(start or base.attack_start)))


def _taken(options: tuple[str, ...], name: str) -> tuple[tuple[str, ...], str]:
    """(the other options, the value of the one of that name; empty if it is not there)."""
    found = [option.removeprefix(f"{name}=") for option in options if option.startswith(f"{name}=")]
    return tuple(option for option in options if not option.startswith(f"{name}=")), found[-1] if found else ""


def own_words(base: Config, agent: int) -> tuple[str, ...]:
    """What differs in the task of one agent, in words that say it for this agent alone."""
    return as_words(agent, differences(make_task(base.task), base.vary, base.agents, base.vary_seed).agents)


def as_words(agent: int, found: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
    """What one of several agents has of its own, in words that say it for this agent alone."""
    mine = {name: values[agent] for name, values in found.items() if name != SWITCH}  # comes with the wind
    for name, value in mine.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(
                f"agent {agent} has {name} = {value} of its own, which is no number: it cannot be alone. To adapt to "
                "it, write a factory that makes its task, and give that (--task package.module:factory)"
            )
    return tuple(f"{name}={float(value)!r}," for name, value in mine.items())


def first_words(base: Config, agents: int) -> tuple[str, ...]:
    """What differs between the first so many agents, as with all of them, also where it depends on how many there are.

    Those are lists, and numbers that are spread evenly.
    """
    counted = [word for word in base.vary if "=" in word and ("," in word or "=even:" in word)]
    if not counted:
        return base.vary
    found = differences(make_task(base.task), counted, base.agents, base.vary_seed).agents
    lists = (
        f"{name}={','.join(map(repr, values[:agents]))}," for name, values in found.items() if name != "enable_wind"
    )
    return (*(word for word in base.vary if word not in counted), *lists)


def alone(base: Config, agents: int) -> Config:
    """Honest agents, and no defence."""
    return validate(replace(base, agents=agents, byzantine=0, aggregator=HONEST, aggregator_options=()))


def pairs_of(attacks: Sequence[str], defences: Sequence[str]) -> list[tuple[str, str]]:
    """(attack, defence) of every game that a matrix of these needs, its floor and ceiling included."""
    games = ((attack, defence) for defence in defences for attack in (NOBODY, *attacks))
    return list(dict.fromkeys([*REFERENCES, *games]))


def title_of(base: Config, seeds: int) -> str:
    """What a matrix is about."""
    return (
        f"{base.task}, {base.algorithm}: {base.byzantine} of {base.agents} agents lie, "
        f"{base.trajectories} trajectories, {seeds} seed{'s' * (seeds > 1)}"
    )
