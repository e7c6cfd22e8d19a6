"""The command `fedpg theory`: what the theorem promises, measured or given."""

import importlib
from typing import Any

import jax
import pytest

from fedpg.cli import main
from fedpg.theory import Measured

pytestmark = pytest.mark.slow

GIVEN = [
    *("--G", "1.42", "--M", "0.5", "--R", "1", "--W", "0.1", "--sigma", "5", "--gap", "2"),
    *("--horizon", "10", "--discount", "0.9", "--epsilon", "0.1"),
]


def test_the_command_says_what_the_theorem_promises(capsys: pytest.CaptureFixture[str]):
    assert main(["theory", *GIVEN]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""  # all is given, nothing is measured
    assert "1, 0, 0.1" in captured.out  # R, the baseline, W
    for word in ("Psi", "optimisation", "Byzantine", "violated", "holds", "10 agents more", "3 more lie", "one alone"):
        assert word in captured.out


def test_the_command_measures_what_is_not_given(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def known(problem: Any, theta: jax.Array, trajectories: int, seed: int) -> Measured:
        assert (problem.config.task, trajectories, seed) == ("CartPole-v1", 4, 0)
        return Measured(1.25, 0.75, 1.0, 0.5, 33.0, 1.0, 20.0, trajectories)

    # The package names the function as the module that it is from.
    monkeypatch.setattr(importlib.import_module("fedpg.theory.measure"), "measure", known)
    assert main(["theory", "--horizon", "20", "--trajectories", "4", "--W", "0.125"]) == 0
    captured = capsys.readouterr()
    assert "measuring a fresh policy on CartPole-v1" in captured.err
    for number in ("1.25, 0.75", "1, 1, 0.125", "33"):  # what is given stands before what is measured
        assert number in captured.out
    assert "sigma, G, M, R, baseline, gap measured from a fresh policy" in captured.out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--byzantine", "5"], "half"),
        (["--epsilon", "0"], "epsilon"),
        (["--discount", "1"], "discount"),
        (["--agents", "0"], "agents"),
        (["--sigma", "nan"], "sigma"),
        (["--run", "nowhere"], "--run"),  # nothing is left to measure
        (["--task", "HalfCheetah-v5"], "--task"),
        (["--trajectories", "5"], "--trajectories"),
        (["--seed", "1"], "--seed"),
    ],
)
def test_the_command_refuses_what_cannot_be(words: list[str], named: str, capsys: pytest.CaptureFixture[str]):
    assert main(["theory", *GIVEN, *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert named in captured.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--discount", "1"], "discount"),
        (["--discount", "2", "--horizon", "5000"], "discount"),
        (["--horizon", "-3"], "horizon"),
        (["--epsilon", "nan"], "epsilon"),
        (["--delta", "7"], "delta"),
    ],
)
def test_what_is_given_is_refused_before_anything_is_measured(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["theory", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert named in captured.err
    assert "measuring" not in captured.err
