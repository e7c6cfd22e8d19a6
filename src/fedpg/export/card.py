"""The model card: what a policy is for, how it was made, what it reached, and who was turned away on the way."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedpg.config import Config, to_json
from fedpg.errors import ConfigError
from fedpg.experiments.statistics import finals, resampled
from fedpg.experiments.store import from_folder
from fedpg.export.network import Network
from fedpg.machine import versions
from fedpg.problem import outcome_of
from fedpg.storage import StorageError, read_config
from fedpg.summary import is_of_sites
from fedpg.training.progress import nobody_knows

Interval = tuple[float, float, float]
"""(mean, low, high) with 95% between low and high."""


class History(NamedTuple):
    """How a policy was trained, as its run folder says."""

    seed: int | None = None
    versions: Mapping[str, str] = MappingProxyType({})
    rounds: int = 0
    trajectories: int = 0
    outcomes: tuple[dict[str, int], ...] = ()
    """Of each agent: in how many rounds it was accepted, turned away, ..."""
    names: tuple[str, ...] = ()
    """Of the agents, if they were sites and the ledger says so."""
    sites: bool = False
    """Whether the agents were sites."""
    seeds: tuple[int, ...] = ()
    finals: Interval | None = None
    """Over all seeds of these settings that lie beside this run: the mean of their last evaluations."""


def history_of(folder: Path) -> History:
    """What a run folder says; nothing, where a policy file has none around it."""
    try:
        config, seed = read_config(folder)
        rows = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
        used: dict[str, str] = json.loads((folder / "config.json").read_text()).get("versions", {})
    except (StorageError, OSError, ValueError):
        return History()
    counts: list[Counter[str]] = [Counter() for _ in range(config.agents)]
    for row in rows[1:]:
        # Records of older versions have no outcomes.
        given = row.get("outcome") or [outcome_of("answered", bool(accepted)) for accepted in row["accepted"]]
        for count, outcome in zip(counts, given, strict=True):
            count[outcome] += 1
    seeds, interval = _beside(folder, config)
    return History(
        seed=seed,
        versions=used,
        rounds=len(rows) - 1,
        trajectories=int(rows[-1]["trajectories"]) if rows else 0,
        outcomes=tuple(dict(count) for count in counts),
        names=_sites(folder),
        sites=is_of_sites(folder),
        seeds=seeds,
        finals=interval,
    )


def _beside(folder: Path, config: Config) -> tuple[tuple[int, ...], Interval | None]:
    """The seeds of the same settings in the same folder, and what they reached."""
    runs = []
    for other in sorted(folder.absolute().parent.glob("seed-*")) if folder.absolute().name.startswith("seed-") else []:
        try:
            run = from_folder(other, "")
        except (StorageError, ConfigError):
            continue
        if run.config == config:
            runs.append(run)
    if len(runs) < 2:
        return (), None
    return tuple(sorted(run.seed for run in runs)), interval_of(finals(runs, float("inf")))


def _sites(folder: Path) -> tuple[str, ...]:
    """The names of the sites, in the order of their agents' numbers."""
    try:
        lines = map(json.loads, (folder / "federation.jsonl").read_text().splitlines())
        return next((tuple(line["sites"]) for line in lines if line.get("sites")), ())
    except (OSError, ValueError, AttributeError):
        return ()


def interval_of(values: np.ndarray) -> Interval:
    """The mean and its 95% percentile bootstrap interval."""
    means = resampled(len(values)) @ np.asarray(values, float) / len(values)
    low, high = np.percentile(means, (2.5, 97.5))
    return float(np.mean(values)), float(low), float(high)


def card(config: Config, network: Network, history: History, returns: np.ndarray, use: Sequence[str]) -> str:
    """README.md of an exported policy."""
    some = {
        "task": f"`{network.task}`",
        "observation": f"{network.observations} numbers, as the task gives them (float32, not scaled)",
        "action": _action(network),
        "network": " - ".join(map(str, (network.observations, *config.hidden, network.outputs)))
        + f"; {_form(config, network)}",
        "return": f"{_shown(interval_of(returns))}, of {len(returns)} greedy episodes of at most "
        f"{config.test_horizon} steps"
        if len(returns)
        else "not measured",
        "trained by": f"`{config.algorithm}` with `{config.aggregator}`, {_trainers(config, history)}",
        "trained for": f"{history.trajectories} trajectories, {history.rounds} rounds" if history.rounds else "unknown",
        "seed": "unknown" if history.seed is None else str(history.seed),
        "versions": ", ".join(f"{name} {value}" for name, value in history.versions.items()) or "unknown",
        "exported by": ", ".join(f"{name} {value}" for name, value in versions().items() if name in ("fedpg", "numpy")),
    }
    if history.finals is not None:
        listed = ", ".join(map(str, history.seeds))
        some["all seeds"] = f"{_shown(history.finals)}, the last evaluations of seeds {listed}"
    parts = [
        f"# A policy for {network.task}",
        "",
        *_table(("", ""), some.items()),
        "",
        "Intervals are 95%, by the bootstrap: of the return over episodes, of all seeds over seeds.",
        "",
        "## To use it",
        "",
        *use,
        "",
        "## Who was turned away",
        "",
        *_filtered(config, history),
        "",
        "## Settings",
        "",
        *_table(("setting", "value"), ((f"`{k}`", f"`{json.dumps(v)}`") for k, v in to_json(config).items())),
    ]
    return "\n".join(parts) + "\n"


def _filtered(config: Config, history: History) -> list[str]:
    if not history.outcomes:
        return ["Nobody knows: this policy came without the records of its run."]
    words = list(dict.fromkeys(["accepted", "turned away", *(word for each in history.outcomes for word in each)]))
    rows = []
    for agent, each in enumerate(history.outcomes):
        name = history.names[agent] if agent < len(history.names) else f"agent {agent}"
        liar = agent >= config.agents - config.byzantine
        role = "unknown" if nobody_knows(config, history.sites) else "Byzantine" if liar else "honest"
        rows.append((name, role, *(f"{each.get(word, 0) / max(1, history.rounds):.0%}" for word in words)))
    told = f"Of {history.rounds} rounds, the share in which each agent was accepted by `{config.aggregator}`, or not:"
    return [told, "", *_table(("agent", "role", *words), rows)]


def _table(head: Sequence[str], rows: Any) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines]


def _shown(interval: Interval) -> str:
    mean, low, high = interval
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def _action(network: Network) -> str:
    actions = network.actions
    if network.discrete:
        return f"one of {network.outputs}: a whole number from {actions.start}"
    assert actions.low is not None
    assert actions.high is not None
    box = ", ".join(f"[{low:g}, {high:g}]" for low, high in zip(actions.low, actions.high, strict=True))
    return f"{network.outputs} numbers ({actions.dtype.name}), scaled from (-1, 1) to and clipped at {box}"


def _form(config: Config, network: Network) -> str:
    if network.discrete:
        return f"{config.activation}, then {'tanh and ' if network.head.activation else ''}softmax"
    return f"{config.activation}, then a Gaussian (`{config.gaussian}`)"


def _trainers(config: Config, history: History) -> str:
    if nobody_knows(config, history.sites):
        return f"{config.agents} sites"
    attacked = f"{config.byzantine} of them Byzantine (`{config.attack}`)" if config.byzantine else "all honest"
    return f"{config.agents} agents, {attacked}"
