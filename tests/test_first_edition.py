"""Rounds of the first edition of this package, done again: the same numbers, to rounding."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpg.assembly import make_problem
from fedpg.config import Config, from_json
from fedpg.federation import Local
from fedpg.server import Server
from fedpg.training.rounds import advance, evaluated, first_state

CASES = json.loads((Path(__file__).parent / "data" / "first_edition.json").read_text())
DEFAULT = Config()


def name_of(case: dict[str, Any]) -> str:
    """What is special about a case."""
    config = from_json(case["settings"])
    words = [config.task.split("-")[0], config.algorithm, config.preset, f"K{config.agents}"]
    if config.byzantine:
        words.append(f"{config.attack}-from-{config.attack_start}")
    chosen = ("aggregator", "estimator", "importance", "optimizer", "sigma")
    return "-".join([*words, *(str(getattr(config, n)) for n in chosen if getattr(config, n) != getattr(DEFAULT, n))])


def as_numbers(values: Any) -> Any:
    """Lists as they were stored: None is NaN, and "inf" infinity."""
    if isinstance(values, list):
        return [as_numbers(value) for value in values]
    return np.nan if values is None else float(values)


def differing(row: dict[str, Any], stored: dict[str, Any], i: int) -> list[str]:
    """The names of what differs in round i, by more than rounding."""
    return [
        f"{name}: {row[name]}, not {values[i]}"
        for name, values in stored.items()
        if not np.allclose(np.asarray(row[name], float), as_numbers(values[i]), rtol=1e-3, atol=1e-4, equal_nan=True)
    ]


def _marked() -> Iterator[Any]:
    """The first case of every task, algorithm and aggregator; the others are more of the same."""
    seen: set[str] = set()
    for case in CASES:
        config = from_json(case["settings"])
        features = {config.task, config.algorithm, config.aggregator}
        marks = [] if "CartPole" in config.task else [pytest.mark.simulators]
        marks += [pytest.mark.more] if features <= seen else []
        seen |= features
        yield pytest.param(case, id=name_of(case), marks=marks)


MARKED = list(_marked())
LATE = 2
"""Rounds at the end that may differ: where rounding decides an action otherwise, another episode follows, and with it
other gradients. Compilers and processors round differently, and the longer the episodes the more of them."""


@pytest.mark.slow
@pytest.mark.parametrize("case", MARKED)
def test_rounds_of_the_first_edition_come_out_the_same(case: dict[str, Any]):
    config, stored, rounds = from_json(case["settings"]), case["log"], case["rounds"]
    if config.aggregator == "mean":
        del stored["sigma"]  # it has none; what stood there was of no use
    problem = make_problem(config)
    state, federation, server = first_state(problem, case["seed"]), Local(problem, 2), Server(problem)
    for i in range(rounds):
        returns, steps = evaluated(problem, state)  # of the policy before the round
        state, log = advance(problem, state, federation, server)
        wrong = differing(log | {"test_returns": returns, "test_steps": steps}, stored, i)
        if wrong and i >= max(2, rounds - LATE):
            return
        assert not wrong, f"round {i + 1}"

    theta = np.asarray(state.theta)
    projections = np.random.default_rng(0).standard_normal((4, len(theta))) @ theta
    np.testing.assert_allclose(np.linalg.norm(theta), case["theta"]["norm"], rtol=1e-4)
    np.testing.assert_allclose(projections, case["theta"]["projections"], rtol=1e-4, atol=1e-4)


def test_the_cases_have_names_of_their_own():
    assert len({name_of(case) for case in CASES}) == len(CASES) == 28
