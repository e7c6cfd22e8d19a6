"""The run-config of a Flower app as our settings: the same keys and checks for its ServerApp and its ClientApp."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedpg.config import Config, refuse_idle_attack
from fedpg.errors import ConfigError, unknown
from fedpg.presets import make_config
from fedpg.sites.folder import check_numbers

SETTINGS = ("task", "preset", "algorithm", "agents", "byzantine", "attack", "aggregator", "alpha", "trajectories")
"""Keys that are settings of `fedpg train`; left at "" or 0, they are its defaults."""
OTHERS = {"rounds": 0, "deadline": 120.0, "quorum": 0, "seed": 0, "out": ""}


class RunConfig(NamedTuple):
    """What a Flower run was asked for."""

    config: Config
    rounds: int
    """To end after, at the latest; 0: when all trajectories are done."""
    deadline: float
    quorum: int
    seed: int
    out: str


def read_run_config(values: Mapping[str, Any]) -> RunConfig:
    """Flower's run-config, checked."""
    for name in values:
        if name not in SETTINGS and name not in OTHERS:
            raise unknown("run-config key", name, [*SETTINGS, *OTHERS])
    given = {name: values[name] for name in SETTINGS if values.get(name) not in (None, "", 0)}
    if not given.get("byzantine"):
        given.pop("attack", None)
    config = make_config(given.pop("task", "CartPole-v1"), given.pop("preset", None), **given)
    refuse_idle_attack(config)
    others = {name: values.get(name, default) for name, default in OTHERS.items()}
    for name, default in OTHERS.items():
        whole = name == "deadline" and type(others[name]) is int
        if type(others[name]) is not type(default) and not whole:
            raise ConfigError(f"run-config {name} must be like {default!r}, not {others[name]!r}")
    if others["rounds"] < 0:
        raise ConfigError(f"run-config rounds must be 0 or more, not {others['rounds']}")
    check_numbers(config, others["deadline"], others["quorum"], others["seed"])
    return RunConfig(config, **others)
