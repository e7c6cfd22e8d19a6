"""Stored runs, made up."""

from typing import Any

import numpy as np

from fedpg import Config, make_config
from fedpg.aggregators import RULES
from fedpg.experiments import store
from fedpg.experiments.fingerprint import fingerprint
from fedpg.experiments.store import Stored


def stored_run(
    config: Config | None = None,
    seed: int = 0,
    returns: Any = (9.0, 20.5, 400.1),
    length: float = 100.0,
    code: str | None = None,
) -> Stored:
    """A run with these returns at equal distances, made up, by this code; everybody is accepted by R1."""
    config = config or make_config(preset="released", agents=10)
    rows = len(returns)
    count = np.linspace(0, length, rows).round()
    honest = config.agents - config.byzantine
    columns = {
        "trajectories": count,
        "trajectories_total": count * (config.agents + 1),
        "test_return": np.asarray(returns),
        "inner_steps": np.ones(rows),
        "rule": np.full(rows, RULES.index("R1")),
        "accepted_honest": np.r_[0, np.full(rows - 1, honest)],
        "accepted_byzantine": np.zeros(rows),
    }
    about = {
        "made": "2026-01-01",
        "versions": {"python": "3"},
        "hardware": store.machine(),
        "seconds": 2.0,
        "steps": 10,
    }
    code = fingerprint(config) if code is None else code
    return Stored(config, seed, code, about, {n: columns[n].astype(kind) for n, kind in store.COLUMNS.items()})
