"""Runs that begin from a policy."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from fedpg import Config, ConfigError, Problem, make_problem, train_seeds
from fedpg.cli import main
from fedpg.policies import make_mlp
from fedpg.storage import StorageError, load_tensors, save_tensors
from fedpg.training.checkpoint import FILE, save_checkpoint, save_policy
from fedpg.training.records import Records
from fedpg.training.rounds import first_state
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


@pytest.mark.parametrize("by", ["checkpoint", "policy"])
def test_as_many_parameters_of_other_shapes_are_another_policy(tiny: Callable[..., Problem], tmp_path: Path, by: str):
    problem = tiny(hidden=())
    state = first_state(problem, 0)
    save_checkpoint(tmp_path, problem, 0, state, Records(problem.config))
    assert bits(read_start(tmp_path, problem)) == bits(state.theta)
    if by == "policy":  # as an older version has left it
        tensors, about = load_tensors(tmp_path / FILE, "checkpoint")
        del about["shapes"]
        save_tensors(tmp_path / FILE, "checkpoint", tensors, about)
        assert bits(read_start(tmp_path, problem)) == bits(state.theta)
        save_policy(tmp_path / "policy.safetensors", problem.config, problem.policy, state.theta)
        assert bits(read_start(tmp_path, problem)) == bits(state.theta)
    five_ways = make_mlp(1, spaces.Discrete(5), (), problem.config.activation, "paper", problem.config.categorical)
    assert five_ways.size == problem.policy.size == 10
    with pytest.raises(StorageError, match=r"has .*\(2, 4\).* CartPole-v1, has .*\(5, 1\).*other observations"):
        read_start(tmp_path, problem._replace(policy=five_ways))


def test_the_command_begins_from_a_policy(
    trained: Path, tiny: Callable[..., Problem], as_options: Callable[[Config], list[str]], tmp_path: Path
):
    words = as_options(tiny(trajectories=10).config)
    assert main(["train", *words, "--start-from", str(trained), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    started = (tmp_path / "run" / "start.safetensors").read_bytes()
    assert started == (trained / "policy.safetensors").read_bytes()
