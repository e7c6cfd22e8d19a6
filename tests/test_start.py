"""Runs that begin from a policy."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedpg import Config, ConfigError, Problem, make_problem, train_seeds
from fedpg.cli import main
from fedpg.storage import StorageError
from fedpg.training.start import read_start
from same import bits


@pytest.fixture(scope="module")
def trained(tiny: Callable[..., Problem], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run to begin from."""
    folder = tmp_path_factory.mktemp("start") / "first"
    train_seeds(tiny(trajectories=10), [0], folder)
    return folder


@pytest.mark.slow
def test_a_run_begins_from_a_folder_a_file_or_tensors(trained: Path, tiny: Callable[..., Problem], tmp_path: Path):
    problem = tiny(trajectories=10)
    theta = read_start(trained, problem)
    assert bits(theta) == bits(read_start(trained / "policy.safetensors", problem))
    assert bits(theta) == bits(read_start(problem.policy.unravel(theta), problem))
    here = train_seeds(problem, [3], start=theta)[0]
    there = train_seeds(problem, [3], tmp_path / "second", start=theta)[0]
    plain = train_seeds(problem, [3])[0]
    assert bits(here.policy.params) == bits(there.policy.params) != bits(plain.policy.params)
    # It is kept with the run, which goes on from there, also if it was killed before its first checkpoint.
    (tmp_path / "again").mkdir()
    for name in ("start.safetensors", "config.json"):
        (tmp_path / "again" / name).write_bytes((tmp_path / "second" / name).read_bytes())
    again = train_seeds(problem, [3], tmp_path / "again", resume=True)[0]
    assert bits(again.policy.params) == bits(here.policy.params)
    with pytest.raises(StorageError, match="began from another policy"):
        train_seeds(problem, [3], tmp_path / "again", resume=True, start=theta + 1)
    with pytest.raises(StorageError, match="began from a random policy"):
        train_seeds(problem, [0], trained, resume=True, start=theta)


@pytest.mark.slow
def test_what_is_no_policy_of_this_run_is_refused(trained: Path, tiny: Callable[..., Problem], tmp_path: Path):
    problem = tiny()
    for settings in ({"hidden": (9,)}, {"activation": "relu" if problem.config.activation == "tanh" else "tanh"}):
        other = make_problem(dataclasses.replace(problem.config, **settings))
        with pytest.raises(StorageError, match=r"another (task or )?network"):
            read_start(trained, other)
        with pytest.raises(StorageError, match=r"another (task or )?network"):
            read_start(trained / "policy.safetensors", other)
    good = problem.policy.unravel(read_start(trained, problem))
    with pytest.raises(ConfigError, match="another task or network"):
        read_start({"a": np.zeros(3)}, problem)
    with pytest.raises(ConfigError, match="not finite"):
        read_start({name: np.full_like(value, np.nan) for name, value in good.items()}, problem)
    with pytest.raises(StorageError, match="there is no policy"):
        read_start(tmp_path / "nothing", problem)
    (tmp_path / "several" / "seed-1").mkdir(parents=True)
    with pytest.raises(ConfigError, match="several seeds"):
        read_start(tmp_path / "several", problem)


def test_the_command_begins_from_a_policy(
    trained: Path, tiny: Callable[..., Problem], as_options: Callable[[Config], list[str]], tmp_path: Path
):
    words = as_options(tiny(trajectories=10).config)
    assert main(["train", *words, "--start-from", str(trained), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    started = (tmp_path / "run" / "start.safetensors").read_bytes()
    assert started == (trained / "policy.safetensors").read_bytes()
