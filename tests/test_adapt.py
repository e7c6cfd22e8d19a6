"""`fedpg adapt`: from whatever holds a policy, to the task of whoever took part."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import jax
import pytest

import fedpg
from fedpg import make_config, make_problem
from fedpg.cli import main
from fedpg.cli.adapt import going_on
from fedpg.training.checkpoint import save_policy
from gym_probes import Walk

SMALL: dict[str, Any] = {
    "agents": 2,
    "batch": (4, 4),
    "horizon": 10,
    "test_horizon": 10,
    "test_episodes": 2,
    "hidden": (4,),
    "trajectories": 4,
}


def short() -> gymnasium.Env[Any, Any]:
    return Walk(ends=1.0)


def middle() -> gymnasium.Env[Any, Any]:
    return Walk(ends=0.4)


BOTH = [short, middle]
UNNAMED = [short, lambda: Walk(ends=0.4)]


def adapt(run: Path, *options: str) -> int:
    return main(["adapt", str(run), "--trajectories", "4", "--episodes", "2", *options])


@pytest.fixture(scope="module")
def poles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose agents differ."""
    folder = tmp_path_factory.mktemp("adapt") / "poles"
    fedpg.train(vary=("length=0.3,0.6",), out=folder, **SMALL)
    return folder


@pytest.mark.slow
def test_an_exported_policy_is_as_good_as_its_run(poles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    exported = tmp_path / "exported"
    assert main(["export", str(poles), "--out", str(exported), "--episodes", "0"]) == 0
    for path, out in ((poles, tmp_path / "by-run"), (exported / "policy.npz", tmp_path / "by-export")):
        assert adapt(path, "--agent", "1", "--out", str(out)) == 0
    mine, theirs = (fedpg.load(tmp_path / name) for name in ("by-run", "by-export"))
    assert mine.config == theirs.config
    assert mine.config.vary == ("half_length=0.6,",)
    assert all((mine.policy.params[name] == theirs.policy.params[name]).all() for name in mine.policy.params)
    capsys.readouterr()
    pole = ["--task", "test_differences:plain_pole", "--episodes", "2"]
    assert main(["evaluate", str(exported), *pole]) == 0  # in another task, as a run's
    assert "plain_pole" in capsys.readouterr().out
    assert main(["evaluate", str(exported), "--task", "Pendulum-v1"]) == 2
    assert "another task or network" in capsys.readouterr().err
    elsewhere = tmp_path / "elsewhere"
    assert main(["export", str(poles), "--out", str(elsewhere), "--episodes", "0", *pole[:2]]) == 0
    assert main(["evaluate", str(elsewhere), "--episodes", "2"]) == 0  # where nothing of what differed exists
    assert "plain_pole" in capsys.readouterr().out


@pytest.mark.simulators
@pytest.mark.slow
def test_agents_with_a_factory_each_have_tasks_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fedpg.train(f"{__name__}:BOTH", out=tmp_path / "both", **SMALL)
    each = fedpg.load(tmp_path / "both").each
    assert each is not None
    assert each.parameters == {"factory": ["short", "middle"]}
    assert adapt(tmp_path / "both", "--agent", "1", "--out", str(tmp_path / "own")) == 0
    assert fedpg.load(tmp_path / "own").config.task == f"{__name__}:middle"
    fedpg.train(f"{__name__}:UNNAMED", out=tmp_path / "unnamed", **SMALL)
    assert adapt(tmp_path / "unnamed", "--agent", "1", "--out", str(tmp_path / "lost")) == 2
    assert "that of agent 1 has no name: give --task" in capsys.readouterr().err
    fedpg.train(BOTH, out=tmp_path / "passed", **SMALL)
    assert adapt(tmp_path / "passed", "--agent", "0") == 2
    said = capsys.readouterr().err
    assert "'short', the task of" in said
    assert "give --task, the task of agent 0 as package.module:factory" in said
    assert adapt(tmp_path / "passed", "--task", f"{__name__}:middle", "--out", str(tmp_path / "given")) == 0


def test_a_network_that_was_passed_in_python_is_needed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    problem = make_problem(make_config(**SMALL))
    config = replace(problem.config, policy="custom:pol")
    save_policy(tmp_path / "policy.safetensors", config, problem.policy, problem.policy.init(jax.random.key(0)))
    for words in (["--task", "CartPole-v1"], ["--agent", "1"]):
        assert adapt(tmp_path, *words) == 2
        assert "passed in Python (pol) and has no name here: go on there, with fedpg.train(" in capsys.readouterr().err


@pytest.mark.slow
def test_whose_task_it_is_must_be_known(poles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert adapt(poles, "--agent", "2") == 2
    assert "agent must be from 0 to 1, not 2" in capsys.readouterr().err
    fedpg.train(out=tmp_path / "alike", **SMALL)
    assert adapt(tmp_path / "alike", "--agent", "1") == 2
    assert "do not differ: give --task" in capsys.readouterr().err
    assert adapt(poles, "--agent", "1", "--task", "CartPole-v1") == 2
    assert "or --task: not both" in capsys.readouterr().err


LENGTHS = [0.3, 0.6]


def length_of(agent: int) -> dict[str, float]:
    return {"half_length": LENGTHS[agent]}


@pytest.mark.slow
def test_a_task_is_the_one_that_the_agent_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Whatever gave it: a function that has changed since, or is not here any more, or numbers passed in Python."""
    fedpg.train(vary=(f"{__name__}:length_of",), parameters={"mass_pole": [0.1, 0.2]}, out=tmp_path / "run", **SMALL)
    words = ("half_length=0.6,", "mass_pole=0.2,")
    assert main(["export", str(tmp_path / "run"), "--episodes", "0"]) == 0
    exported = tmp_path / "run" / "exported-numpy"
    changes = (
        lambda: None,
        lambda: monkeypatch.setattr(f"{__name__}.LENGTHS", LENGTHS[::-1]),
        lambda: monkeypatch.delattr(f"{__name__}.length_of"),
    )
    for n, change in enumerate(changes):
        change()
        for path in (tmp_path / "run", exported):
            out = tmp_path / f"{n}-{path.name}"
            assert adapt(path, "--agent", "1", "--out", str(out)) == 0
            assert set(fedpg.load(out).config.vary) == set(words)
    capsys.readouterr()
    (tmp_path / "run" / "agents.json").write_text('{"parameters": {"half_length": [0.5]}}')
    assert adapt(tmp_path / "run", "--agent", "1") == 2
    assert "it is not about 2 agents" in capsys.readouterr().err
    (tmp_path / "run" / "agents.json").write_text('{"parameters": {"motor": [0.5, 0.6]}}')
    assert adapt(tmp_path / "run", "--agent", "1") == 2
    said = capsys.readouterr().err
    assert "no parameter 'motor'" in said
    assert "Instead of --agent, give --task" in said


def test_one_goes_on_with_the_discount_and_the_tests_of_the_run():
    common = make_config(discount=0.9, vary=("length=0.5",), **SMALL)
    alone = going_on(common, "CartPole-v1", (), 50)
    assert (alone.discount, alone.test_episodes, alone.agents, alone.trajectories) == (0.9, 2, 1, 50)
