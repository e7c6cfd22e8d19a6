"""Agents that differ: words and functions that cannot be meant are refused, and what is drawn is what was meant."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

from fedpg import ConfigError, make_config, make_problem, make_task
from fedpg.arena.players import own_words
from fedpg.tasks import RoundKeys
from fedpg.tasks.differences import check_physics, differences
from fedpg.tasks.task import SERVER
from fedpg.training.each import FILE, measure
from probes import episodes, keys_of, play, policy_for
from tiny import TINY

CARTPOLE = make_task("CartPole-v1")
Write = Callable[[str], str]


@pytest.fixture
def function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the body of a function of an agent's number, and says how it is called."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(body: str) -> str:
        name = f"own_{tmp_path.name}_{len(list(tmp_path.iterdir()))}"  # of a module that nobody has imported yet
        (tmp_path / f"{name}.py").write_text(f"import numpy as np\n\n\ndef own(agent):\n    {body}\n")
        return f"{name}:own"

    return write


def lever(arm: float = 1, teeth: int = 12, tilt: float = 0.0) -> gymnasium.Env[Any, Any]:
    """A task of a user's own, with a number that is only written as a whole one, and one that is 0."""
    return gymnasium.make("CartPole-v1")


def turbine(wind_power: float = 8.0) -> gymnasium.Env[Any, Any]:
    """A task in which wind always blows."""
    return gymnasium.make("CartPole-v1")


def windy(wind_power: float = 8.0, enable_wind: bool = False) -> gymnasium.Env[Any, Any]:
    """A task in which wind blows where it is switched on."""
    return gymnasium.make("CartPole-v1")


LEVER = make_task(f"{__name__}:lever")
LEVERS = [functools.partial(lever, tilt=1.0), lever]
WINDY = [turbine, windy]


# What is drawn


@pytest.mark.parametrize("agents", [2, 10])
def test_unseen_numbers_of_even_ones_are_drawn_from_the_same_range(agents: int):
    seen = differences(CARTPOLE, ["length=even:0.5"], agents, 0).agents["half_length"]
    unseen = differences(CARTPOLE, ["length=even:0.5"], agents, 0, unseen=300).agents["half_length"]
    assert not set(seen) & set(unseen)
    assert 0.25 <= min(unseen) < 0.27
    assert 0.73 < max(unseen) <= 0.75


@pytest.mark.parametrize("word", ["frame_skip=3:8", "frame_skip=0.5", "frame_skip=even:0.5", "frame_skip=3,5,7,8"])
def test_whole_numbers_are_drawn_as_such(word: str):
    cheetah = make_task("HalfCheetah-v5")
    mine = differences(cheetah, [word], 4, 0).agents["frame_skip"]
    others = differences(cheetah, [word], 4, 0, unseen=200).agents["frame_skip"]
    assert {type(skip) for skip in (*mine, *others)} == {int}
    high = 7 if "0.5" in word else 8  # half of 5 up and down, or what was given
    assert set(mine) <= set(others) == set(range(3, high + 1))
    if "even" in word:
        assert sorted(mine) == [3, 4, 6, 7]


def test_a_whole_number_is_one_by_its_annotation_and_not_by_how_its_default_is_written():
    arms = differences(LEVER, ["arm=0.5", "teeth=0.5"], 50, 0).agents
    assert len(set(arms["arm"])) == 50
    assert {type(teeth) for teeth in arms["teeth"]} == {int}
    assert differences(LEVER, ["arm=0.5,1,2"], 3, 0).agents == {"arm": [0.5, 1.0, 2.0]}


@pytest.mark.parametrize("task", [lever, LEVERS, f"{__name__}:LEVERS"], ids=["passed", "list", "list by name"])
def test_a_whole_number_is_one_however_the_task_is_given(task: Any):
    found = differences(make_task(task), ["arm=0.5", "teeth=0.5"], 2, 0).agents
    assert found == differences(LEVER, ["arm=0.5", "teeth=0.5"], 2, 0).agents
    assert {type(teeth) for teeth in found["teeth"]} == {int}


def geared(
    teeth: int | None = 12, ratio: int | float = 2, wheel: "int | str" = 1, axle: int | str = 3
) -> gymnasium.Env[Any, Any]:
    """A task whose whole numbers may be something else instead."""
    return gymnasium.make("CartPole-v1")


def test_of_several_types_a_whole_number_is_whole_and_what_may_be_a_text_is_not_drawn():
    task = make_task(geared)
    found = differences(task, ["teeth=0.5", "ratio=0.5"], 20, 0).agents
    assert {type(teeth) for teeth in found["teeth"]} == {int}
    assert len(set(found["ratio"])) == 20
    for name in ("wheel", "axle"):
        with pytest.raises(ConfigError, match=f"has no parameter '{name}': it has teeth, ratio$"):
            differences(task, [f"{name}=0.5"], 2, 0)
    check_physics(task, {"axle": [1, "left"]})
    with pytest.raises(ConfigError, match=r"axle of geared must be a whole number, not 1\.5"):
        check_physics(task, {"axle": [1.5, "left"]})


# What a function returns


def test_a_function_may_return_numbers_of_numpy(function: Write):
    word = function("return {'length': np.float64(0.3), 'force': np.int64(9 + agent), 'gravity': np.array(9.5)}")
    found = differences(CARTPOLE, [word], 2, 0).agents
    assert found == {"half_length": [0.3, 0.3], "force": [9, 10], "gravity": [9.5, 9.5]}
    assert {type(value) for values in found.values() for value in values} == {int, float}
    words = own_words(make_config(agents=2, vary=(word,)), 1)
    assert words == ("half_length=0.3,", "force=10.0,", "gravity=9.5,")
    single = function("return {'length': np.float32(0.5)}")
    assert own_words(make_config(agents=2, vary=(single,)), 0) == ("half_length=0.5,",)


def test_a_file_has_plain_numbers_whoever_gave_them(tmp_path: Path):
    given = {"half_length": [np.float32(0.5), np.float64(0.25)], "force": [np.int64(9), np.array(10.0)]}
    config = make_config(**(TINY | {"agents": 2, "byzantine": 0}))
    problem = make_problem(config, parameters=given)
    keys = RoundKeys(jax.random.key(5), jax.random.key(6), 0)
    measure(problem, problem.policy.init(jax.random.key(1)), keys, 2).save(tmp_path)
    values = json.loads((tmp_path / FILE).read_text())["parameters"]
    assert values == {"half_length": [0.5, 0.25], "force": [9, 10.0]}


WRONG = [
    ("return {'length': 0.3, 'half_length': 0.4}", ["half_length is given twice"]),
    ("return {'length': 1e300}", ["half_length of CartPole-v1", "float32", "1e+300", "agent 0"]),
    ("return {'length': 10**400}", ["half_length of CartPole-v1", "float32"]),
    ("return {'length': 'long'}", ["half_length of CartPole-v1", "a number, not 'long'", "agent 0"]),
    ("return {'length': True}", ["a number, not True"]),
    ("return {'length': [0.3]}", ["a number, not (0.3,)"]),
    ("return {'length': 0.3 / (agent - 1)}", ["own raised ZeroDivisionError for agent 1"]),
    ("raise SystemExit(3)", ["own raised SystemExit for agent 0: 3"]),
    ("return 0.3", ["must return {name: value}, not 0.3"]),
    ("return {}", ["must return {name: value}, not {}"]),
    ("return {'length': 0.3} if agent else {'force': 1.0}", ["the same names"]),
]


@pytest.mark.parametrize(("body", "message"), WRONG, ids=[body for body, _ in WRONG])
def test_what_a_function_may_not_do_is_said(body: str, message: list[str], function: Write):
    with pytest.raises(ConfigError) as refused:
        differences(CARTPOLE, [function(body)], 3, 0)
    assert [word for word in message if word not in str(refused.value)] == []


@pytest.mark.simulators
@pytest.mark.parametrize("value", ["[0.1]", "0.1", "[0.1] * 3", "['far', 0.0]", "[float('nan'), 0.0]", "None"])
def test_an_offset_has_a_number_for_each_action(value: str, function: Write):
    reacher = make_task("Reacher-v5")
    good = differences(reacher, [function("return {'action_offset': np.array([0.1, agent])}")], 2, 0).agents
    assert good == {"action_offset": [(0.1, 0.0), (0.1, 1.0)]}
    with pytest.raises(ConfigError, match=r"action_offset of Reacher-v5 must be a list of 2 numbers.*agent 0"):
        differences(reacher, [function(f"return {{'action_offset': {value}}}")], 2, 0)
    with pytest.raises(ConfigError, match="action_offset of CartPole-v1 must be left out"):
        make_problem(make_config(**TINY), parameters={"action_offset": [(0.1,)] * 4})


# Words


BAD = [
    ("CartPole-v1", "length=1e300,0.5,0.5", ["half_length", "float32", "'1e300'"]),
    ("CartPole-v1", "length=0.1:1e39", ["half_length", "float32", "'1e39'"]),
    ("CartPole-v1", "length=-0.001:90", ["half_length of CartPole-v1 must be more than 0", "-0.001:90 goes to -0.001"]),
    ("CartPole-v1", "length=0:0.5", ["more than 0", "goes to 0"]),
    ("LunarLander-v3", "gravity=-10:1", ["gravity of LunarLander-v3 must be less than 0", "goes to 1"]),
    ("LunarLander-v3", "wind=-1,0,1", ["wind_power of LunarLander-v3 must be at least 0, not -1", "agent 0"]),
    ("LunarLander-v3", "wind=-1:3", ["wind_power of LunarLander-v3 must be at least 0", "goes to -1"]),
    (
        "HalfCheetah-v5",
        "frame_skip=1,2,2.5",
        ["frame_skip of HalfCheetah-v5 must be a whole number, not 2.5 (agent 2)"],
    ),
    ("HalfCheetah-v5", "frame_skip=1.5:3", ["a whole number", "goes to 1.5"]),
    ("HalfCheetah-v5", "frame_skip=0:3", ["more than 0", "goes to 0"]),
    ("HalfCheetah-v5", "frame_skip=0.1", ["no other whole number than 5", "frame_skip=LOW:HIGH", "for each agent"]),
    ("Reacher-v5", "action_offset=0.1,0.2,0.3", ["action_offset=normal:0.4", "function"]),
    ("lever", "tilt=0.5", ["tilt is 0 by default", "tilt=LOW:HIGH, or one number for each agent"]),
    ("lever", "tilt=even:0.5", ["tilt is 0 by default", "tilt=LOW:HIGH"]),
]


@pytest.mark.parametrize(("task", "word", "message"), BAD, ids=[f"{task} {word}" for task, word, _ in BAD])
def test_words_that_cannot_be_meant_are_refused(task: str, word: str, message: list[str]):
    with pytest.raises(ConfigError) as refused:
        differences(LEVER if task == "lever" else make_task(task), [word], 3, 0)
    assert [part for part in message if part not in str(refused.value)] == []


def test_what_is_0_by_default_may_be_given_or_left_as_it_is():
    assert differences(LEVER, ["tilt=0"], 2, 0).agents == {"tilt": [0.0, 0.0]}
    assert differences(LEVER, ["tilt=-1,1"], 2, 0).agents == {"tilt": [-1.0, 1.0]}
    assert min(differences(LEVER, ["tilt=-1:1"], 20, 0).agents["tilt"]) < 0


# Names in Python


UNKNOWN = [
    ("HalfCheetah-v5", "frictoin", ["no parameter 'frictoin'", "friction", "frame_skip"]),
    ("HalfCheetah-v5", "density", ["no parameter 'density'", "density for mass"]),
    ("HalfCheetah-v5", "num_envs", ["no parameter 'num_envs'", "friction"]),
    ("HalfCheetah-v5", "seed", ["no parameter 'seed'"]),
    ("LunarLander-v3", "wind", ["no parameter 'wind'", "wind for wind_power"]),
    (lever, "teeht", ["lever has no parameter 'teeht'", "it has arm, teeth, tilt"]),
    (LEVERS, "teeht", ["has no parameter 'teeht'", "it has arm, teeth, tilt"]),
]


@pytest.mark.simulators
@pytest.mark.parametrize(("task", "name", "message"), UNKNOWN, ids=[name for _, name, _ in UNKNOWN])
def test_an_unknown_name_in_python_is_answered_with_those_there_are(task: Any, name: str, message: list[str]):
    with pytest.raises(ConfigError) as refused:
        make_problem(make_config(agents=2), make_task(task), parameters={name: [1, 2]})
    assert [part for part in message if part not in str(refused.value)] == []


def anything(**settings: Any) -> gymnasium.Env[Any, Any]:
    """A task that does not say what it takes."""
    return gymnasium.make("CartPole-v1")


class Anything(gymnasium.wrappers.TimeLimit):
    """One that is a class, and one of Gymnasium's above it, which takes less."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(gymnasium.make("CartPole-v1"), 10)


GOOD = [
    ("HalfCheetah-v5", {"xml_file": ["a.xml"] * 2, "width": [480] * 2, "max_episode_steps": [9, 10]}),
    ("HalfCheetah-v5", {"post_constraint": [True, False], "action_offset": [(0.0,) * 6] * 2}),
    ("LunarLander-v3", {"enable_wind": [True, False], "factory": [lever, lever]}),
    (anything, {"whatever": ["it", "is"]}),
    (Anything, {"whatever": ["it", "is"]}),
]


@pytest.mark.simulators
@pytest.mark.parametrize(("task", "parameters"), GOOD, ids=[" ".join(given) for _, given in GOOD])
def test_what_a_task_takes_beside_its_numbers_is_not_refused(task: Any, parameters: dict[str, list[Any]]):
    check_physics(make_task(task), parameters)


# Wind


LANDER = "LunarLander-v3"


@pytest.mark.parametrize(
    ("words", "server"),
    [
        (["wind=0.5"], {}),  # Gymnasium's own is the middle
        (["wind=even:0.5", "gravity=0.1"], {}),
        (["turbulence=0.5"], {}),
        (["wind=0:3.75", "turbulence=0:0.5"], {"wind_power": 1.875, "turbulence_power": 0.25}),
        (["wind=0,1,5"], {"wind_power": 2.0}),
        (["turbulence=0:0", "wind=0:0"], {"wind_power": 0.0, "turbulence_power": 0.0}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_server_has_the_middle_of_the_wind_that_agents_were_given(words: list[str], server: dict[str, float]):
    found = differences(make_task(LANDER), words, 3, 0)
    assert found.server == {"enable_wind": True} | server
    assert found.agents["enable_wind"] == [True] * 3


def test_of_winds_by_a_function_the_server_has_the_mean(function: Write):
    word = function("return {'wind': np.float32(3 * agent), 'gravity': -9}")
    assert differences(make_task(LANDER), [word], 3, 0).server == {"enable_wind": True, "wind_power": 3.0}


@pytest.mark.simulators
@pytest.mark.parametrize("words", [("wind=4,4", "turbulence=1,1"), ("wind=0:0", "turbulence=0:0"), ("turbulence=0",)])
def test_the_servers_lander_flies_in_that_wind(words: tuple[str, ...]):
    task = make_problem(make_config(LANDER, agents=2, vary=words)).task
    keys, whose = keys_of(4, 1)[np.zeros(2, int)], np.array([0, SERVER])  # of two episodes with one key
    played = play(task, *policy_for(task), episodes(keys, 40, agents=whose, resets=0), 40)
    mine, server = (played.observations[played.starts[i] : played.starts[i] + 40] for i in range(2))
    np.testing.assert_array_equal(mine, server)


def test_a_task_of_ones_own_in_which_wind_always_blows_needs_no_switch():
    for task in (f"{__name__}:turbine", turbine):
        found = differences(make_task(task), ["wind=1:3"], 2, 0)
        assert (found.agents.keys(), found.server) == ({"wind_power"}, {})


@pytest.mark.parametrize("task", [windy, WINDY, f"{__name__}:windy", f"{__name__}:WINDY"])
def test_a_task_of_ones_own_in_which_wind_is_switched_on_has_it_however_it_is_given(task: Any):
    found = differences(make_task(task), ["wind=1:3"], 2, 0)
    assert found.agents["enable_wind"] == [True, True]
    assert found.server == {"enable_wind": True, "wind_power": 2.0}
