"""Agents that differ: what is drawn for them, what their tasks become, and what one policy is worth to each."""

import dataclasses
import json
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedpg
from fedpg import ConfigError, make_config, make_problem, make_task, train_seeds
from fedpg.arena.games import POINTS, Ledger, Result, pairings_of
from fedpg.arena.heterogeneity import plans, seeds_of, tables, worth
from fedpg.arena.players import HONEST, NOBODY, ONE, PLACE, base_config, own_words, settings_of
from fedpg.cli import main
from fedpg.cli.policies import policy_of
from fedpg.federation import Local
from fedpg.federation.messages import decode_reply, encode_broadcast, settings_digest
from fedpg.federation.site import Site
from fedpg.problem import make_broadcast
from fedpg.server import evaluate, evaluate_agents
from fedpg.tasks import RoundKeys
from fedpg.tasks.differences import differences
from fedpg.training.checkpoint import save_policy
from fedpg.training.each import FILE, Each, check_tasks, keep_tasks, measure, read_each, read_tasks
from fedpg.training.load import read_policy
from fedpg.training.rounds import first_state
from tiny import TINY

CARTPOLE = make_task("CartPole-v1")
KEYS = RoundKeys(jax.random.key(5), jax.random.key(6), 0)
VARIED = TINY | {"vary": ("length=0.5", "gravity=even:0.2"), "algorithm": "gpomdp", "inner_law": "fixed"}
VARIED |= {"inner_steps": 1, "none_accepted": "skip"}


# What is drawn


@given(st.floats(0, 0.99), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_numbers_are_drawn_around_the_nominal_one(half: float, agents: int, seed: int):
    drawn = differences(CARTPOLE, [f"length={half!r}"], agents, seed).agents["half_length"]
    assert len(drawn) == agents
    assert all(0.5 * (1 - half) - 1e-12 <= x <= 0.5 * (1 + half) + 1e-12 for x in drawn)


def test_an_agents_number_depends_on_seed_name_and_agent_alone():
    words = ["length=0.5", "gravity=0.5"]
    ten, five = (differences(CARTPOLE, words, k, 3).agents for k in (10, 5))
    assert {name: values[:5] for name, values in ten.items()} == five
    assert ten["half_length"] == differences(CARTPOLE, words[:1], 10, 3).agents["half_length"]
    assert ten != differences(CARTPOLE, words, 10, 4).agents
    relative = np.array(ten["half_length"]) / 0.5, np.array(ten["gravity"]) / 9.8
    assert abs(np.corrcoef(*relative)[0, 1]) < 0.9  # each parameter has draws of its own
    unseen = differences(CARTPOLE, words, 10, 3, unseen=10).agents
    assert not set(unseen["half_length"]) & set(ten["half_length"])


def test_even_numbers_are_those_of_the_field_for_five_agents():
    drawn = differences(CARTPOLE, ["gravity=even:0.5"], 5, 0).agents["gravity"]
    np.testing.assert_allclose(sorted(drawn), 9.8 * np.array([0.5, 0.75, 1, 1.25, 1.5]))


def test_words_may_give_a_range_a_list_or_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lengths = differences(CARTPOLE, ["pole-lengths"], 200, 0).agents["half_length"]
    assert 0.1 <= min(lengths) < 0.15
    assert 0.85 < max(lengths) <= 0.9
    assert differences(CARTPOLE, ["force=5,6,7"], 3, 0).agents == {"force": [5.0, 6.0, 7.0]}
    (tmp_path / "my_poles.py").write_text("def length(agent):\n    return {'half_length': 0.3 + agent / 10}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert differences(CARTPOLE, ["my_poles:length"], 2, 0).agents == {"half_length": [0.3, 0.4]}
    assert differences(CARTPOLE, ["my_poles:length"], 2, 0, unseen=2).agents == {"half_length": [0.5, 0.6]}
    (tmp_path / "my_short.py").write_text("def length(agent):\n    return {'length': 0.3}\n")
    assert differences(CARTPOLE, ["my_short:length"], 2, 0).agents == {"half_length": [0.3, 0.3]}  # as words may


def test_a_whole_number_stays_one():
    skips = differences(make_task("HalfCheetah-v5"), ["frame_skip=1,2,3"], 3, 0).agents["frame_skip"]
    assert skips == [1, 2, 3]
    assert {type(skip) for skip in skips} == {int}


@pytest.mark.parametrize("value", [-0.5, 0.0, np.float32(-0.3), np.nan, np.inf, np.float64(np.inf)])
def test_numbers_that_break_the_physics_are_refused_however_they_come(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = make_config(**(TINY | {"agents": 2, "byzantine": 0}))
    with pytest.raises(ConfigError, match=r"half_length of CartPole-v1 must be .*agent 0"):
        make_problem(config, parameters={"half_length": [value, 0.5]})
    text = f"import numpy\nhalf = numpy.{type(value).__name__}({str(value)!r})\n"
    (tmp_path / "my_wrong.py").write_text(text.replace("numpy.float(", "float(") + LENGTHS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_wrong", raising=False)
    with pytest.raises(ConfigError, match=r"half_length of CartPole-v1 must be .*agent 0"):
        differences(CARTPOLE, ["my_wrong:length"], 2, 0)


LENGTHS = "def length(agent):\n    return {'half_length': half if agent == 0 else 0.5}\n"


def test_one_agent_alone_has_a_server_in_its_own_task_and_wind_blows_for_all():
    assert differences(CARTPOLE, ["length=0.3,"], 1, 0) == ({"half_length": [0.3]}, {"half_length": 0.3})
    lander = make_task("LunarLander-v3")
    found = differences(lander, ["wind=0.5"], 2, 0)
    assert found.server == {"enable_wind": True}
    assert found.agents["enable_wind"] == [True, True]


BAD = [
    (["lenght=0.5"], ["no parameter 'lenght'", "half_length", "length"]),
    (["length=1"], ["share of its nominal value", "half_length=LOW:HIGH"]),
    (["length=-0.1"], ["share of its nominal value"]),
    (["length=nan"], ["must have numbers"]),
    (["length=0.4,0.5"], ["2 numbers", "3 agents"]),
    (["length=0.4,-0.5,0.6"], ["more than 0", "agent 1"]),
    (["length=0.9:0.1"], ["smaller number first"]),
    (["length=0.1", "half_length=0.2"], ["given twice"]),
    (["pole-length"], ["did you mean pole-lengths"]),
    (["math:pi"], ["not a function"]),
    (["os.path:nothing"], ["package.module:function"]),
    (["action_offset=0.4"], ["no parameter"]),
    (["gravity=normal:0.1"], ["only action_offset"]),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_what_cannot_be_is_refused(words: list[str], message: list[str]):
    with pytest.raises(ConfigError) as refused:
        make_problem(make_config(**(TINY | {"agents": 3, "byzantine": 0, "vary": tuple(words)})))
    assert [word for word in message if word not in str(refused.value)] == []


@pytest.mark.simulators
def test_physics_that_a_simulator_refuses_is_an_error_with_its_parameters():
    with pytest.raises(ConfigError, match=r"LunarLander-v3 does not take the parameters gravity=-1[34]"):
        make_problem(make_config("LunarLander-v3", agents=2, vary=("gravity=-14:-13",)))
    with pytest.raises(ConfigError, match="friction of HalfCheetah-v5 must be more than 0"):
        make_problem(make_config("HalfCheetah-v5", agents=2, vary=("friction=1,0",)))


# What a policy is worth to each


@pytest.mark.slow
def test_every_agent_is_tested_in_its_own_task():
    problem = make_problem(make_config(**VARIED))
    theta = problem.policy.init(jax.random.key(1))
    found = evaluate_agents(problem, theta, KEYS, 4, 30)
    for agent in range(4):
        own = {name: [values[agent]] * 4 for name, values in problem.task.varied.items()}
        alike = problem._replace(task=CARTPOLE.vary(own))
        np.testing.assert_array_equal(evaluate_agents(alike, theta, KEYS, 4, 30)[agent], found[agent])
    few = problem._replace(task=dataclasses.replace(problem.task, most=60))  # not all at a time
    np.testing.assert_array_equal(evaluate_agents(few, theta, KEYS, 4, 30), found)


@pytest.mark.slow
def test_a_run_leaves_what_its_policy_is_worth_to_each(tmp_path: Path):
    problem = make_problem(make_config(**VARIED))
    run = train_seeds(problem, [0], tmp_path / "run")[0]
    assert run.each is not None
    assert run.each == read_each(tmp_path / "run")
    assert run.each.parameters.keys() == {"half_length", "gravity"}
    assert len(run.each.own) == len(run.each.unseen) == 4
    config, values = run.config, json.loads((tmp_path / "run" / FILE).read_text())
    assert config.vary == VARIED["vary"]
    assert values["parameters"]["half_length"] == list(problem.task.varied["half_length"])
    assert fedpg.load(tmp_path / "run").each == run.each
    (tmp_path / "run" / FILE).write_text(json.dumps(values | {"own": ["much"]}))
    with pytest.raises(fedpg.StorageError, match="damaged"):
        read_each(tmp_path / "run")


@pytest.mark.slow
def test_alone_an_agent_is_tested_in_its_own_task_too():
    settings: dict[str, Any] = VARIED | {"agents": 1, "byzantine": 0, "aggregator": "mean", "vary": ("length=2.5,",)}
    problem = make_problem(make_config(**settings))
    theta = problem.policy.init(jax.random.key(1))
    each = measure(problem, theta, KEYS, 200)
    assert each.unseen == []
    assert each.nominal == pytest.approx(each.own[0], rel=0.15)  # other episodes of the same task
    nominal = evaluate(make_problem(make_config(**(settings | {"vary": ()}))), theta, KEYS, 200)[0].mean()
    assert each.own[0] > 1.5 * nominal  # a long pole falls slowly


def test_tasks_of_others_that_cannot_be_made_do_not_cost_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "four_poles.py").write_text(
        "def pole(agent):\n    return {'half_length': [0.4, 0.5, 0.6, 0.7][agent]}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    problem = make_problem(make_config(**(VARIED | {"vary": ("four_poles:pole",)})))
    each = measure(problem, problem.policy.init(jax.random.key(1)), KEYS, 2)
    assert (len(each.own), each.unseen) == (4, [])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stopped", "finished", "by an older version"])
def test_a_run_does_not_go_on_in_other_tasks_than_it_began_in(
    how: str, tiny: Callable[..., fedpg.Problem], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lengths = [0.4, 0.5, 0.6, 0.7]
    monkeypatch.setattr(f"{__name__}.LENGTHS_OF", lengths, raising=False)
    settings: dict[str, Any] = {"vary": (f"{__name__}:own_length",)}
    problem = tiny(**settings)
    if how == "finished":
        problem = tiny(**settings, trajectories=1)
        assert train_seeds(problem, [0], tmp_path)[0].finished
    else:
        stop = threading.Event()
        stop.set()
        assert not train_seeds(problem, [0], tmp_path, stop=stop)[0].finished
        values = json.loads((tmp_path / FILE).read_text())
        assert values == {"parameters": {"half_length": lengths}, "server": {}}
        assert read_each(tmp_path) is None
    if how == "by an older version":
        (tmp_path / FILE).unlink()
    lengths[2] = 0.65
    problem = tiny(**settings)
    if how == "by an older version":
        assert not train_seeds(problem, [0], tmp_path, resume=True, stop=stop)[0].finished
    else:
        before = (tmp_path / FILE).read_bytes()
        with pytest.raises(
            fedpg.StorageError, match=r"half_length = 0\.6 for agent 2, and now that has 0\.65.*own_len"
        ):
            train_seeds(problem, [0], tmp_path, resume=True)
        assert (tmp_path / FILE).read_bytes() == before
        alike = tiny(vary=("gravity=0.1",))
        with pytest.raises(fedpg.StorageError, match="differed in half_length, and now they do in gravity"):
            check_tasks(tmp_path, alike)
        lengths[2] = 0.6 + 1e-15  # by another machine's powers
        check_tasks(tmp_path, tiny(**settings))


def own_length(agent: int) -> dict[str, float]:
    return {"half_length": LENGTHS_OF[agent]}


LENGTHS_OF: list[float] = []


def test_what_no_file_can_hold_does_not_stop_a_run(tiny: Callable[..., fedpg.Problem], tmp_path: Path):
    for _ in range(2):  # another object each time
        task = dataclasses.replace(CARTPOLE, varied={"seen": [object()] * 4, "kind": ["a", None, True, (1.0, np.nan)]})
        keep_tasks(tmp_path, tiny()._replace(task=task))
    other = dataclasses.replace(CARTPOLE, varied={"seen": [object()] * 4, "kind": ["a", None, True, (1.0, 2.0)]})
    with pytest.raises(fedpg.StorageError, match=r"kind = \[1\.0, nan\] for agent 3"):
        keep_tasks(tmp_path, tiny()._replace(task=other))


@pytest.mark.simulators
def test_the_wind_of_the_server_is_in_the_file_from_the_beginning(tmp_path: Path):
    problem = make_problem(make_config("LunarLander-v3", agents=2, byzantine=0, vary=("wind=0:4",)))
    keep_tasks(tmp_path, problem)
    assert json.loads((tmp_path / FILE).read_text())["server"] == {"enable_wind": True, "wind_power": 2.0}
    each = Each(read_tasks(tmp_path), [1.0, 2.0], 3.0, [])
    each.save(tmp_path)
    assert read_each(tmp_path) == each
    assert json.loads((tmp_path / FILE).read_text())["server"]["wind_power"] == 2.0


def test_an_agent_alone_has_its_own_task_or_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "typed_poles.py").write_text(
        "import numpy as np\n\ndef pole(agent):\n    return {'half_length': np.float64(0.4), 'gravity': 9 + agent}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    config = make_config(agents=3, vary=("typed_poles:pole",))
    assert own_words(config, 1) == ("half_length=0.4,", "gravity=10.0,")
    with pytest.raises(ConfigError, match="action_offset"):  # it has no words, and the nominal task is not its own
        own_words(make_config("Pendulum-v1", agents=2, vary=("action-offsets",)), 1)


@pytest.mark.parametrize("word", ["length=0.3,0.4,0.5,0.6", "length=even:0.5", "length=0.5"])
@pytest.mark.parametrize(("player", "agents"), [(PLACE, 3), (ONE, 1)])
def test_fewer_agents_of_an_arena_have_the_tasks_that_they_have_among_all(word: str, player: str, agents: int):
    base = base_config("CartPole-v1", 4, 1, 20, vary=(word,))
    alone = settings_of(base, player, HONEST)
    found, among = (differences(CARTPOLE, c.vary, c.agents, 0).agents["half_length"] for c in (alone, base))
    assert found == among[:agents]


def breeze(agent: int) -> dict[str, float]:
    return {"wind_power": float(agent)}


@pytest.mark.simulators
@pytest.mark.parametrize("words", [("wind=even:0.5",), ("wind=0,1,5,10",), ("wind=0:4",), (f"{__name__}:breeze",)])
def test_the_server_of_the_honest_agents_alone_is_that_of_all(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch):
    made: list[dict[str, Any]] = []
    real = gymnasium.make
    monkeypatch.setattr(gymnasium, "make", lambda *args, **given: made.append(given) or real(*args, **given))
    base = base_config("LunarLander-v3", 4, 1, 20, vary=words)
    pairs = [(NOBODY, HONEST), (PLACE, HONEST)]
    firsts, varied = [], []
    for pair in pairs:
        made.clear()
        problem = pairings_of(base, [pair])[pair].problem
        firsts.append(next(given for given in made if given.get("enable_wind")))  # one of each kind, the server's first
        varied.append(problem.task.varied)
        assert problem.config.agents == problem.task.agents
    assert firsts[0] == firsts[1]
    assert {name: values[:3] for name, values in varied[0].items()} == varied[1]


@pytest.mark.slow
def test_a_site_has_the_task_of_its_number():
    problem = make_problem(make_config(**(VARIED | {"byzantine": 0})))
    state = first_state(problem, 0)
    broadcast = make_broadcast(state.key, 1, 4, theta=state.theta)
    replies, _ = Local(problem).ask(broadcast, state.agents)
    for agent in (0, 3):
        message = encode_broadcast(broadcast, agent, settings_digest(problem.config))
        reply = decode_reply(Site(problem, agent)(message), 1, problem.policy.size, problem.algorithm.reply)
        expected = np.asarray(replies.vectors["gradient"])[agent]
        np.testing.assert_allclose(reply.vectors["gradient"], expected, rtol=1e-4, atol=1e-6)


# From the command line


def plain_pole() -> gymnasium.Env[Any, Any]:
    """A task without a parameter."""
    return gymnasium.make("CartPole-v1")


def left_policy(folder: Path, **settings: Any) -> str:
    """The policy file of a run whose agents differ by a function that is not here."""
    config = make_config(**(TINY | {"byzantine": 0, "attack": "random-noise", "agents": 2} | settings))
    problem = make_problem(dataclasses.replace(config, vary=()))
    theta = problem.policy.init(jax.random.key(0))
    save_policy(folder / "policy.safetensors", config, problem.policy, theta)
    return str(folder / "policy.safetensors")


def test_returns_per_agent_need_what_the_agents_differ_in_and_others_do_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    policy = left_policy(tmp_path, vary=("not_here:gravity",))
    for task in ([], ["--task", "CartPole-v1"]):
        assert main(["evaluate", policy, "--per-agent", *task]) == 2
        said = capsys.readouterr().err
        assert "cannot load the difference 'not_here:gravity'" in said
        assert "Leave --per-agent out" in said
    problem, _ = read_policy(Path(policy))
    assert not problem.task.varied
    policy_of(Path(policy))
    assert "differ in (not_here:gravity) is left out" in capsys.readouterr().err
    policy = left_policy(tmp_path, vary=("length=0.5",))
    assert main(["evaluate", policy, "--per-agent", "--task", f"{__name__}:plain_pole"]) == 2
    assert "has no parameter 'length'" in capsys.readouterr().err
    policy = left_policy(tmp_path)
    assert main(["evaluate", policy, "--per-agent"]) == 2
    assert "do not differ" in capsys.readouterr().err
    (tmp_path / FILE).write_text(json.dumps({"parameters": {"half_length": [0.4, 0.5]}}))  # passed in Python
    assert main(["evaluate", policy, "--per-agent"]) == 2
    assert "passed in Python, or is not of CartPole-v1 (half_length)" in capsys.readouterr().err
    policy = left_policy(tmp_path, vary=("gravity=0.2",))
    for tasks, words in (
        (
            {"half_length": [0.4, 0.5], "gravity": [9.0, 10.0]},
            "passed in Python, or is not of CartPole-v1 (half_length)",
        ),
        ({"gravity": [9.0, 10.0]}, "began with gravity = 9.0 for agent 0, and now that has"),
    ):
        (tmp_path / FILE).write_text(json.dumps({"parameters": tasks}))
        assert main(["evaluate", policy, "--per-agent"]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "given", "words"),
    [
        (
            "CartPole-v1",
            {"vary": ["length=0.5"], "parameters": {"half_length": [0.5, 0.6]}},
            "half_length is given twice",
        ),
        pytest.param(
            *("LunarLander-v3", {"parameters": {"wind_power": [5.0, 9.0]}}, "wind_power changes nothing while no wind"),
            marks=pytest.mark.simulators,
        ),
    ],
)
def test_parameters_that_would_change_nothing_are_refused(task: str, given: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        fedpg.train(task, agents=2, **given)


def test_a_server_whose_task_is_not_known_is_asked_for(tmp_path: Path):
    gone = {"vary": ("not_here:gravity",)}
    alone = Path(left_policy(tmp_path, **gone, agents=1))
    with pytest.raises(fedpg.StorageError, match=r"cannot load the difference.*--task CartPole-v1"):
        read_policy(alone)
    assert read_policy(alone, "CartPole-v1")[0].config.vary == ()


@pytest.mark.slow
def test_the_command_line_says_what_each_agent_gets(
    as_options: Callable[[fedpg.Config], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    options = as_options(make_config(**(VARIED | {"byzantine": 0, "trajectories": 10})))
    where = options.index("--attack")
    del options[where : where + 2]  # of nobody
    assert main(["train", "--vary", "length=0.5", *options, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"agent\s+half length\s+return", printed)
    assert "unseen tasks" in printed
    assert main(["evaluate", str(tmp_path / "run"), "--per-agent", "--episodes", "3"]) == 0
    assert "worst" in capsys.readouterr().out
    lying = as_options(make_config(**(VARIED | {"byzantine": 1, "trajectories": 10})))
    assert main(["train", "--vary", "length=0.5", *lying, "--out", str(tmp_path / "liar"), "--quiet"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "liar"), "--per-agent", "--episodes", "3"]) == 0
    assert "Byzantine" in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path / "run"), "--task", "test_differences:plain_pole", "--episodes", "2"]) == 0
    words = ["adapt", str(tmp_path / "run"), "--trajectories", "8", "--episodes", "2", "--out", str(tmp_path / "own")]
    assert main(words) == 2
    assert "--agent" in capsys.readouterr().err
    assert main([*words, "--agent", "1"]) == 0
    assert re.search(r"common.*adapted", capsys.readouterr().out, re.DOTALL)
    assert main(["evaluate", str(tmp_path / "own"), "--per-agent", "--episodes", "2"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "the server's task is this one too" in printed
    assert "nominal" not in printed
    config = fedpg.load(tmp_path / "own").config
    assert (config.agents, config.vary[0][:12]) == (1, "half_length=")
    assert main([*words, "--agent", "1"]) == 2
    assert "begins anew each time: give another --out" in capsys.readouterr().err


# The study


def test_what_was_played_is_told_by_width_attack_and_defence(tmp_path: Path):
    (plan, *_) = plans("CartPole-v1", trajectories=20)
    ledger, seeds = Ledger(tmp_path, plan.base), [0, 1]
    game = Result("", "", 0, "", 1.0, (0.0,) * POINTS, 0.9, 0.0, None, 3, 1.0)
    for seed in seeds:
        own = [10.0 + agent + 4 * seed for agent in range(7)] + [0.0] * 3  # the last three are never asked
        each = Each({"force": [1.0] * 10}, own, nominal=5.0, unseen=[6.0] * 10)
        ledger.add(dataclasses.replace(game, attack="no attack", defence="compass", seed=seed, each=each))
    ledger.save()
    found = worth(Ledger(tmp_path, plan.base).results, ("no attack", "compass"), seeds)
    assert found is not None
    assert (found.mean, found.worst, found.best) == pytest.approx((15.0, 12.0, 18.0))
    assert (found.kept, found.nominal, found.unseen) == pytest.approx((0.9, 5.0, 6.0))
    assert found.error == pytest.approx(2.0)  # worst agents of 10 and 14
    assert worth({}, ("no attack", "compass"), seeds) is None
    first, _ = tables("CartPole-v1", tmp_path, seeds, trajectories=20)
    assert first.rows == [["±0%", "no attack", "compass", "90%", "15", "12", "18", "5", "6"]]
    assert seeds_of("CartPole-v1", tmp_path) == []  # not all that the picture needs
    with pytest.raises(ConfigError, match="it is about CartPole-v1"):
        plans("Acrobot-v1")
