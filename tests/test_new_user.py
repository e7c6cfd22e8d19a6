"""What a new user meets: runs that print well and read back, batches, numbers that cannot work, warnings in time."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from rich.table import Table

import fedpg
from fedpg import ConfigError, Environment, Problem, Run, StorageError, train_seeds
from fedpg.aggregators import AGGREGATORS, PRE
from fedpg.attacks import ATTACKS
from fedpg.cli import main, policies
from fedpg.machine import memory
from fedpg.screen import make_console
from fedpg.training import Records
from fedpg.training.progress import STUCK, Silent, Snapshot, stuck
from fedpg.training.room import check_room, needed
from fedpg.training.rounds import NOBODY
from tiny import TINY

Capture = pytest.CaptureFixture[str]
SETTINGS: dict[str, Any] = {name: value for name, value in TINY.items() if name != "algorithm"} | {"trajectories": 20}

REACH = Environment(
    id="Reach-v0",
    reset=lambda key, parameters: jax.random.uniform(key, (1,), minval=-1.0, maxval=1.0),
    step=lambda state, action, parameters: (state + 0.1 * action, -jnp.abs(state[0]), jnp.abs(state[0]) > 2.0),
    observe=lambda state: state,
    observations=1,
    actions=spaces.Box(-1.0, 1.0, (1,)),
    limit=50,
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Two seeds of CartPole, with a folder."""
    out = tmp_path_factory.mktemp("new") / "run"
    return fedpg.train(algorithm="fedpg-br", seeds=np.arange(2), out=out, **SETTINGS)  # type: ignore[call-overload]


# --- in Python


def test_runs_of_several_seeds_are_what_each_would_be_alone_and_have_a_curve(runs: list[Run], tiny: Any):
    (alone,) = train_seeds(tiny(trajectories=20), [1])
    assert [run.seed for run in runs] == [0, 1]
    assert np.array_equal(alone.records.test_returns, runs[1].records.test_returns)
    assert runs[0].folder is not None
    assert (runs[0].folder.parent / "curve.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="seed for one run, or seeds"):
        fedpg.train(seed=1, seeds=[2])  # type: ignore[call-overload]


def test_a_run_its_records_and_its_policy_print_in_one_line(runs: list[Run]):
    for thing, words in (
        (runs[0], ["CartPole-v1: fedpg-br, 4 agents", "seed 0", "rounds"]),
        (runs[0].records, ["rounds", "trajectories", "return"]),
        (runs[0].policy, ["parameters", "observations of 4 numbers"]),
        (Records(runs[0].config), ["nothing yet"]),
    ):
        assert len(repr(thing)) < 400
        assert "\n" not in repr(thing)
        assert all(word in repr(thing) for word in words), repr(thing)


def test_a_run_plots_itself(runs: list[Run], tmp_path: Path):
    picture = runs[0].plot(tmp_path / "mine.png")
    assert picture._repr_png_() == (tmp_path / "mine.png").read_bytes()
    assert runs[0].plot().png == picture.png
    assert "PNG" in repr(picture)


def test_rows_of_a_batch_are_observations(runs: list[Run]):
    policy, rng = runs[0].policy, np.random.default_rng(0)
    batch = 3 * rng.normal(size=(4, 4))  # as many rows as columns: nobody can tell them apart by their shape
    actions = policy(batch)
    assert actions.shape == (4,)
    assert actions.tolist() == [int(policy(row)) for row in batch]
    assert policy(rng.normal(size=(9, 4))).shape == (9,)
    assert policy([0, 0, 0, 0]).shape == ()


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (np.zeros(3), r"shape \[3\]"),
        (np.zeros((4, 3)), r"shape \[4, 3\]"),
        (np.zeros((1, 2, 4)), "rows"),
        (0.0, r"shape \[\]"),
        ([0, 0, math.nan, 0], "not finite"),
        ([0, 0, "x", 0], "4 numbers"),
    ],
)
def test_what_is_no_observation_is_refused(runs: list[Run], observation: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        runs[0].policy(observation)


def test_a_run_is_read_back_from_its_folder(runs: list[Run]):
    assert runs[1].folder is not None
    back = fedpg.load(runs[1].folder)
    assert (back.config, back.seed, back.finished) == (runs[1].config, 1, True)
    assert list(back.records.rows()) == list(runs[1].records.rows())
    batch = np.random.default_rng(1).normal(size=(50, 4))
    for mine, theirs in ((back.policy, runs[1].policy), (back.output, runs[1].output)):
        assert np.array_equal(mine(batch), theirs(batch))
    with pytest.raises(ConfigError, match="several seeds"):
        fedpg.load(runs[1].folder.parent)


@pytest.mark.slow
def test_a_task_without_a_name_is_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture):
    small = SETTINGS | {"horizon": 10, "test_horizon": 10, "byzantine": 0, "batch": (4, 4)}
    del small["attack"]
    run = fedpg.train(REACH, algorithm="gpomdp", optimizer="sgd", out=tmp_path / "run", **small)
    batch = np.array([[0.5], [-0.5]])
    assert run.policy(batch).shape == (2, 1)
    with pytest.raises(StorageError, match=r"fedpg.load\(folder, task=...\)"):
        fedpg.load(tmp_path / "run")
    assert np.array_equal(fedpg.load(tmp_path / "run", task=REACH).policy(batch), run.policy(batch))
    assert main(["evaluate", str(tmp_path / "run")]) == 2
    assert "--task" in capsys.readouterr().err
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert main(["evaluate", str(tmp_path / "run"), "--task", "test_new_user:REACH", "--episodes", "3"]) == 0
    assert "Reach-v0" in capsys.readouterr().out
    assert main(["export", str(tmp_path / "run"), "--episodes", "2"]) == 2
    assert "--task" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "run"), "--task", "test_new_user:REACH", "--episodes", "2"]) == 0
    assert "test_new_user:REACH" in (tmp_path / "run" / "exported-numpy" / "README.md").read_text()


@pytest.mark.slow
def test_many_episodes_are_evaluated_some_at_a_time(runs: list[Run], tiny: Any, monkeypatch: pytest.MonkeyPatch):
    made, params = tiny(), runs[0].policy.params
    few = policies.greedy_returns(made, params, 4, 0)
    monkeypatch.setattr(policies, "TOGETHER", 4)
    many = policies.greedy_returns(made, params, 10, 0)
    assert many.shape == (10,)
    np.testing.assert_array_equal(many[:4], few)
    assert not np.array_equal(many[4:8], few)  # from other starts


def test_an_export_that_would_measure_for_ever_is_refused_with_the_numbers(runs: list[Run], capsys: Capture):
    assert main(["export", str(runs[0].folder), "--episodes", "1000000000"]) == 2
    assert re.search(r"at least [\d,]+ GB of memory", capsys.readouterr().err)


def test_a_name_with_colons_is_no_emoji(capsys: Capture):
    make_console().print(Table("a column as wide as what stands above it", title="my_tasks:robot: of :hospital:"))
    assert "my_tasks:robot: of :hospital:" in capsys.readouterr().out


def test_seeds_that_are_one_number_are_refused():
    with pytest.raises(ConfigError, match=r"seeds must be several, such as range\(3\)"):
        fedpg.train(seeds=3)


def test_numbers_of_numpy_are_settings():
    config = fedpg.make_config(
        agents=np.int64(4), alpha=np.float32(0.25), hidden=np.array([8, 4]), batch=[np.int32(4), 5]
    )
    assert (config.agents, config.alpha, config.hidden, config.batch) == (4, 0.25, (8, 4), (4, 5))
    assert {type(x) for x in (config.agents, *config.hidden, *config.batch)} == {int}


def test_an_attack_that_nobody_makes_is_refused_even_if_it_is_the_usual_one(capsys: Capture):
    with pytest.raises(ConfigError, match="no agent is Byzantine"):
        fedpg.train(attack="random-noise")
    assert main(["train", "--attack", "random-noise"]) == 2
    assert "no agent is Byzantine" in capsys.readouterr().err


# --- numbers that cannot work


def problem(**settings: Any) -> Problem:
    return fedpg.make_problem(fedpg.make_config(**settings))


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"agents": 1_000_000_000}, "1,000,000,000 agents"),
        ({"hidden": (1_000_000, 1_000_000)}, "parameters"),
        ({"test_episodes": 1_000_000_000}, "test_episodes"),
        ({"batch": (1_000_000_000,) * 2}, "trajectories"),
    ],
)
def test_what_no_machine_can_hold_is_refused_with_the_numbers_and_before_it_compiles(
    settings: Any, what: str, compiled: list[str]
):
    with pytest.raises(ConfigError, match=rf"at least [\d,]+ GB of memory.* has [\d,.]+ GB.*{what}"):
        train_seeds(problem(**settings), [0])
    assert compiled == []


def test_what_has_been_run_has_room():
    """K = 10,000 on CartPole took 2 GB, K = 1000 on HalfCheetah as much."""
    for settings in ({"agents": 10_000}, {"task": "HalfCheetah-v5", "agents": 1000}):
        assert sum(needed(problem(**settings)).values()) < 2e9
    # What was seen beyond that of three agents: 0.54 GB.
    assert sum(needed(problem(agents=10_000)).values()) > 0.54e9 / 2
    check_room({"all of it": memory()})
    with pytest.raises(ConfigError, match="more than all of it"):
        check_room({"more than all of it": memory() + 1})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--agents", "99999999999999999999"], "agents must be below 2^31"),
        (["train", "--hidden", "4294967296"], "hidden must be below 2^31"),
        (["bench", "--agents", "3"], "--agents is for other tasks"),
        (["bench", "--task", "LunarLander-v3", "--quick"], "--quick is for CartPole-v1"),
        (["bench", "--task", "LunarLander-v3", "--agents", "0"], "agents must be 1 or more"),
        (["train", "--byzantine", "3", "--attack-options", "scale=2", "scale=3"], "scale is given twice"),
        (["train", "--byzantine", "3", "--attack-options", "scale=nan"], "scale must be a finite number"),
        (["reproduce", "figure1", "--runs", "FILE"], "runs 'FILE' cannot be a folder"),
        (["reproduce", "figure1", "--results", "FILE/in"], "'FILE' is a file: give a folder"),
        (["evaluate", "PIPE"], "it is not a file"),
        (["train", "--out", "FILE/in"], "cannot make the run folder"),
    ],
)
def test_the_command_line_refuses_in_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    compiled: list[str],
):
    monkeypatch.chdir(tmp_path)
    Path("FILE").touch()
    os.mkfifo("PIPE")
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert compiled == []


def test_a_run_of_one_seed_is_not_resumed_as_several(runs: list[Run], tiny: Any):
    with pytest.raises(StorageError, match="the run of one seed, not of 2"):
        train_seeds(tiny(trajectories=20), [0, 1], runs[0].folder, resume=True)


def test_a_damaged_checkpoint_is_refused_before_anything_is_compiled(tiny: Any, tmp_path: Path, compiled: list[str]):
    train_seeds(tiny(trajectories=5), [0], tmp_path / "run")
    path = tmp_path / "run" / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    compiled.clear()
    with pytest.raises(StorageError, match="damaged"):
        train_seeds(tiny(trajectories=9), [0], tmp_path / "run", resume=True)
    assert compiled == []


def test_a_folder_of_a_run_that_never_began_is_not_left_behind(tiny: Any, tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr("fedpg.training.run.first_state", lambda problem, seed: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train_seeds(tiny(), [0, 1], tmp_path / "run")
    assert not list(tmp_path.glob("run/*"))


# --- what is said, and written


def log(rule: int, status: int = 0) -> dict[str, Any]:
    return {"rule": rule, "status": np.full(4, status)}


def test_a_run_whose_rounds_are_not_used_says_so_in_time():
    config = fedpg.make_config(**(TINY | {"aggregator": "fedpg", "sigma": 1e-30, "learning_rate": 1e30}))
    refused = [log(NOBODY)] * STUCK
    assert stuck(config, refused[1:]) == ""
    assert stuck(config, [*refused, log(1)]) == ""
    assert "sigma = 1e-30 may be too small" in stuck(config, [log(1), *refused])
    assert "learning_rate = 1e+30 may be too large" in stuck(config, [log(NOBODY, 3)] * STUCK)


def test_a_run_warns_while_it_goes_on(tiny: Callable[..., Problem]):
    with pytest.warns(UserWarning, match="seed 0: the last 10 rounds were not used") as caught:
        train_seeds(tiny(aggregator="fedpg", sigma=1e-30, trajectories=80), [0])
    assert len([w for w in caught if "not used" in str(w.message)]) == 1


def test_the_last_report_is_of_the_last_policy(tiny: Callable[..., Problem]):
    seen: list[float] = []

    class Ear(Silent):
        def update(self, seed: int, snapshot: Snapshot) -> None:
            seen.append(snapshot.test_return)

    (run,) = train_seeds(tiny(trajectories=20), [0], reporter=Ear())
    assert seen[-1] == run.records.test_returns[-1]


def test_a_return_that_is_too_large_is_json(tmp_path: Path):
    records = Records(fedpg.make_config(**TINY))
    records.add_test(np.array([3e38, -3e38, 0], np.float32), 3)
    records.save(tmp_path / "records.jsonl")
    (line,) = (tmp_path / "records.jsonl").read_text().splitlines()
    row = json.loads(line, parse_constant=pytest.fail)
    assert row["test_return_std"] == pytest.approx(2.45e38, rel=1e-2)
    records.tests[0][:] = np.inf
    assert next(records.rows())["test_return"] is None


def test_the_help_lists_every_attack_and_every_aggregator(capsys: Capture):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    words = set(re.split(r"[^\w-]+", capsys.readouterr().out))
    assert {*ATTACKS, *AGGREGATORS, *PRE} <= words


@pytest.mark.slow
def test_nobody_need_read_all_of_the_help():
    command = f"{sys.executable} -m fedpg --help | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.splitlines()[0].startswith("fedpg: ")
    assert done.stdout.splitlines()[1] in ("0", "141")
