"""A task by its name, path or factory: who simulates it, and what is refused, with what helps."""

import functools
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

import fedpg
import gym_probes
from fedpg import ConfigError, make_config, make_problem, make_task
from fedpg.problem import make_broadcast
from fedpg.tasks import ServerEpisodes, registry
from fedpg.tasks.registry import envpool_task, gymnasium_task, has_envpool
from gym_probes import Walk

pytestmark = pytest.mark.simulators

# Tasks by name


def test_a_task_is_compiled_if_we_have_it_else_by_envpool_else_by_gymnasium():
    assert make_task("CartPole-v1").simulator == ""
    for task, simulator, limit in [
        ("LunarLander-v3", "EnvPool", 1000),
        ("HalfCheetah-v5", "EnvPool", 1000),
        ("Pendulum-v1", "EnvPool", 200),
        ("gym_probes:walk", "Gymnasium", registry.NO_LIMIT),
        (gym_probes.walk, "Gymnasium", registry.NO_LIMIT),
    ]:
        made = make_task(task)
        assert made.simulator.split()[0] == simulator
        assert made.limit == limit
        assert made.id == (task if isinstance(task, str) else "walk")


def both_have() -> list[str]:
    """The tasks of Gymnasium that EnvPool has too."""
    return [task for task in gymnasium.registry if has_envpool(task)]


def test_a_task_is_the_same_to_the_policy_whoever_simulates_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # where MuJoCo keeps its log
    compared = set()
    for task in both_have():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of old versions
                theirs = gymnasium_task(functools.partial(gymnasium.make, task), task)
        except ConfigError:
            continue  # images, and versions that Gymnasium only lists
        mine = envpool_task(task)
        assert (mine.observations, mine.actions, mine.limit) == (theirs.observations, theirs.actions, theirs.limit)
        ends = np.array([[-2.0], [-1.0], [0.3], [2.0]], np.float32)
        if isinstance(mine.actions, spaces.Box):
            actions = np.broadcast_to(ends, (4, *mine.actions.shape))
            np.testing.assert_allclose(mine.to_task(actions), theirs.to_task(actions), rtol=1e-6)
        compared.add(task)
    assert {"LunarLander-v3", "HalfCheetah-v5", "BipedalWalker-v3", "Pendulum-v1", "Humanoid-v5"} <= compared


@pytest.mark.parametrize("how", ["no such module", "not this task"])
def test_without_envpool_gymnasium_simulates(how: str, monkeypatch: pytest.MonkeyPatch):
    if how == "no such module":
        monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
        assert both_have() == []
    else:
        monkeypatch.setattr(registry, "has_envpool", lambda task: False)
    task = make_task("LunarLander-v3")
    assert task.simulator == f"Gymnasium {gymnasium.__version__}"
    assert task.limit == 1000
    if how == "not this task":
        policy = make_problem(make_config("LunarLander-v3", hidden=(4,)), task).policy
        keys = make_broadcast(jax.random.key(1), 1, 3).keys
        played = task.rollout(policy, ServerEpisodes(3, 15), policy.init(jax.random.key(0)), (keys,))
        assert played.lengths.tolist() == [15, 15, 15]


@pytest.mark.parametrize(
    ("task", "near"),
    [("LunarLander-v9", "LunarLander-v3"), ("HalfCheeta-v5", "HalfCheetah-v5"), ("lunarlander-v3", "LunarLander-v3")],
)
def test_an_unknown_id_is_refused_with_the_nearest_ones(task: str, near: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=f"unknown task '{task}'") as refused:
        fedpg.train(task, out=tmp_path / "run")
    assert near in str(refused.value).partition("did you mean ")[2].partition("?")[0].split(" or ")
    assert list(tmp_path.iterdir()) == []


def raises_import_error() -> gymnasium.Env[Any, Any]:
    raise ImportError("No module named 'walking'")


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("no_such_module:make", ["no_such_module:make", "package.module:factory"]),
        ("gym_probes:absent", ["gym_probes:absent", "package.module:factory"]),
        ("gym_probes:", ["gym_probes:", "package.module:factory"]),
        (":walk", [":walk", "package.module:factory"]),
        ("gym_probes:NOT_A_FUNCTION", ["gym_probes:NOT_A_FUNCTION", "nor a function"]),
        ("gym_probes:no_environment", ["gym_probes:no_environment", "'a walk'", "gymnasium.Env"]),
        (gym_probes.no_environment, ["no_environment", "'a walk'", "gymnasium.Env"]),
        ("gym_probes:not_installed", ["gym_probes:not_installed", "No module named 'walking'"]),
        (raises_import_error, ["raises_import_error", "No module named 'walking'"]),
        ("Hopper-v2", ["Hopper-v2", "Gymnasium cannot make"]),
    ],
)
@pytest.mark.filterwarnings("ignore:.*out of date")
def test_a_task_that_cannot_be_made_is_refused_before_anything_is_written(task: Any, words: list[str], tmp_path: Path):
    with pytest.raises(ConfigError) as refused:
        fedpg.train(task, out=tmp_path / "run")
    assert [word for word in words if word not in str(refused.value)] == []
    assert list(tmp_path.iterdir()) == []


# Spaces


class Odd(Walk):
    """A walk that claims to have other spaces."""

    def __init__(self, observations: spaces.Space[Any], actions: spaces.Space[Any]) -> None:
        super().__init__(actions)
        self.observation_space = observations


VECTOR = spaces.Box(-1.0, 1.0, (2,))
REFUSED_OBSERVATIONS = [
    spaces.Box(0, 255, (8, 8, 3), np.uint8),
    spaces.Box(-1.0, 1.0, (2, 2)),
    spaces.Box(-1.0, 1.0, ()),
    spaces.Dict(a=VECTOR),
    spaces.Tuple([VECTOR, VECTOR]),
    spaces.Discrete(5),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(3),
]
REFUSED_ACTIONS = [
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(3),
    spaces.Box(-1.0, 1.0, (2, 2)),
    spaces.Box(-1.0, 1.0, ()),
    spaces.Box(0, 5, (2,), np.int32),
    spaces.Dict(a=VECTOR),
    spaces.Tuple([VECTOR, spaces.Discrete(2)]),
]


@pytest.mark.parametrize("space", REFUSED_OBSERVATIONS, ids=str)
def test_observations_that_are_no_vector_are_refused_with_the_wrapper_that_helps(space: spaces.Space[Any]):
    with pytest.raises(ConfigError) as refused:
        make_task(lambda: Odd(space, gym_probes.BOX))
    assert str(space) in str(refused.value)
    assert "gymnasium.wrappers.FlattenObservation" in str(refused.value)
    assert "package.module:factory" in str(refused.value)


@pytest.mark.parametrize("space", REFUSED_ACTIONS, ids=str)
def test_actions_that_no_policy_here_takes_are_refused_with_the_wrapper_that_helps(space: spaces.Space[Any]):
    with pytest.raises(ConfigError) as refused:
        make_task(lambda: Odd(VECTOR, space))
    assert str(space) in str(refused.value)
    assert "gymnasium.wrappers.TransformAction" in str(refused.value)


@pytest.mark.parametrize("task", ["CarRacing-v3", "FrozenLake-v1", "Blackjack-v1"])
def test_tasks_of_gymnasium_with_such_spaces_are_refused_by_name(task: str):
    with pytest.raises(ConfigError, match=rf"^{task} has the observation space .*FlattenObservation"):
        make_task(task)


def test_the_wrappers_that_are_named_exist_and_help():
    assert all(
        hasattr(gymnasium.wrappers, n) for n in ("FlattenObservation", "TransformObservation", "TransformAction")
    )
    task = make_task(lambda: gymnasium.wrappers.FlattenObservation(gymnasium.make("FrozenLake-v1")))
    assert task.simulator.startswith("Gymnasium")
    assert task.observations == 16
