"""When two runs are the same run: bits, rounding, and what is neither."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedpg.experiments.compare import ENOUGH, ROUNDING, compare
from fedpg.experiments.store import Stored
from stored import stored_run

RETURNS = [9.0, 11.5, 30.0, 80.0, 120.0, 200.0, 310.0, 480.0]


def changed(run: Stored, row: int, column: str = "test_return", by: float = 0.0, times: float = 1.0) -> Stored:
    """The run with another number from a row on."""
    columns = {name: values.copy() for name, values in run.columns.items()}
    columns[column][row:] = (columns[column][row:] * times + by).astype(columns[column].dtype)
    return dataclasses.replace(run, columns=columns)


def run_of(returns: Sequence[float] = RETURNS) -> Stored:
    return stored_run(returns=returns)


def test_a_run_has_the_bits_of_itself_and_of_its_beginning():
    assert str(compare(run_of(), run_of())) == "same bits"
    short = stored_run(returns=RETURNS[:3], length=100 * 2 / 7)
    for found in (compare(run_of(), short), compare(short, run_of())):
        assert found.bits
        assert found.compared == 2


@pytest.mark.parametrize("times", [1 + 1e-7, 1 - 1e-6, 1 + 0.5 * ROUNDING])
def test_last_digits_are_rounding(times: float):
    found = compare(run_of(), changed(run_of(), 0, times=times))
    assert str(found) == "same to rounding until round 7"
    assert found.same
    assert not found.bits


@pytest.mark.parametrize("row", range(len(RETURNS)))
@pytest.mark.parametrize(
    ("column", "by"), [("test_return", 0.5), ("accepted_honest", -1), ("inner_steps", 1), ("rule", 1)]
)
def test_from_the_first_other_number_on_runs_go_different_ways(row: int, column: str, by: Any):
    if column == "accepted_honest":
        row = max(row, 1)  # nobody is accepted before the first round
    found = compare(run_of(), changed(run_of(), row, column, by))
    assert found.agreed == row - 1
    assert found.same == (row - 1 >= ENOUGH)
    words = f"same to rounding until round {row - 1}" if found.same else f"different after round {row - 1}"
    assert str(found) == (words if row else "different")


def test_of_few_rounds_all_must_agree():
    few = run_of(RETURNS[:3])
    assert compare(few, changed(few, 0, times=1 + 1e-6)).same
    assert not compare(few, changed(few, 2, by=1.0)).same
    untrained = run_of(RETURNS[:1])
    assert compare(untrained, changed(untrained, 0, times=1 + 1e-6)).same
    assert not compare(untrained, changed(untrained, 0, by=1.0)).same


def test_a_return_near_zero_is_compared_by_its_distance():
    near = run_of([-1e-6] * 7)
    assert compare(near, changed(near, 0, by=1e-6)).same
    assert np.signbit(near.returns[0])
