"""What cannot work is refused, with the name of the setting and what to do; the presets are the paper's table."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

import fedpg
from fedpg import Aggregator, Attack, Config, ConfigError, make_config, make_problem
from fedpg.algorithms import ALGORITHMS, make_algorithm
from fedpg.config import BUILT_IN, STEPS_BY, from_json, most_rounds, refuse_idle_attack, to_json
from fedpg.presets import WITHOUT, defaults
from fedpg.server import Server
from fedpg.training.rounds import paper_count

NAN = math.nan

BAD_NUMBERS: list[tuple[dict[str, Any], list[str]]] = [
    ({"agents": 0}, ["agents", "at least 1"]),
    ({"agents": -3}, ["agents", "at least 1"]),
    ({"byzantine": -1}, ["byzantine", "0 or more"]),
    ({"agents": 4, "byzantine": 2}, ["byzantine = 2", "fewer than half", "add agents"]),
    ({"agents": 1, "byzantine": 1}, ["byzantine = 1", "fewer than half"]),
    ({"agents": 10, "byzantine": 5, "aggregator": "mean"}, ["byzantine = 5", "fewer than half"]),
    ({"agents": 10, "byzantine": 3, "alpha": 0.2}, ["byzantine = 3", "alpha", "raise alpha", "add agents"]),
    ({"agents": 10, "byzantine": 1, "alpha": 0.0}, ["byzantine = 1", "alpha", "raise alpha"]),
    ({"alpha": 0.5}, ["alpha", "[0, 0.5)"]),
    ({"alpha": 0.9}, ["alpha", "[0, 0.5)"]),
    ({"alpha": -0.1}, ["alpha", "[0, 0.5)"]),
    ({"attack_start": 0}, ["attack_start", "1 or more"]),
    ({"sigma": 0}, ["sigma", "positive", "auto"]),
    ({"sigma": -1.0}, ["sigma", "positive", "auto"]),
    ({"sigma": math.inf}, ["sigma", "positive", "auto"]),
    ({"sigma": "foo"}, ["sigma", "auto", "foo"]),
    ({"delta": 0}, ["delta", "between 0 and 1"]),
    ({"delta": 1.0}, ["delta", "between 0 and 1"]),
    ({"delta": -0.5}, ["delta", "between 0 and 1"]),
    ({"delta": 1.5}, ["delta", "between 0 and 1"]),
    ({"batch": (0, 4)}, ["batch", "1 or more"]),
    ({"batch": (-2, -1)}, ["batch", "1 or more"]),
    ({"batch": (20, 12)}, ["batch", "smaller first"]),
    ({"minibatch": 0}, ["minibatch", "1 or more"]),
    ({"algorithm": "fedpg-br", "minibatch": 13}, ["minibatch = 13", "12", "lower minibatch or raise batch"]),
    ({"inner_steps": 0}, ["inner_steps", "1 or more"]),
    ({"ratio_bound": 0.0}, ["ratio_bound", "positive"]),
    ({"learning_rate": 0.0}, ["learning_rate", "positive"]),
    ({"learning_rate": math.inf}, ["learning_rate", "positive"]),
    ({"discount": 0.0}, ["discount", "(0, 1]"]),
    ({"discount": 1.01}, ["discount", "(0, 1]"]),
    ({"horizon": 0}, ["horizon", "1 or more"]),
    ({"test_horizon": 0}, ["test_horizon", "1 or more"]),
    ({"test_episodes": 0}, ["test_episodes", "1 or more"]),
    ({"hidden": (16, 0)}, ["hidden", "1 or more"]),
    ({"trajectories": 0}, ["trajectories", "1 or more"]),
    ({"trajectories": 2**31}, ["trajectories"]),
]

IMPOSSIBLE_TOGETHER: list[tuple[dict[str, Any], list[str]]] = [
    ({"importance": "decision", "estimator": "reinforce"}, ["importance", "estimator", "gpomdp"]),
    (
        {"importance": "decision", "estimator": "standardised", "baseline": "none"},
        ["importance", "estimator", "gpomdp"],
    ),
    ({"estimator": "standardised", "baseline": "leave-one-out"}, ["standardised", "baseline", "none"]),
    ({"algorithm": "gpomdp", "inner_steps": 3}, ["gpomdp", "inner_steps must be 1", "svrpg"]),
    ({"algorithm": "gpomdp", "none_accepted": "server"}, ["gpomdp", "none_accepted", "skip"]),
    ({"algorithm": "gpomdp", "inner_law": "geometric-from-0"}, ["gpomdp", "inner_law", "fixed"]),
    ({"algorithm": "svrpg", "inner_law": "geometric-from-1"}, ["svrpg", "inner_law", "fixed"]),
]

WRONG_TYPES: list[dict[str, Any]] = [
    {"agents": "10"},
    {"agents": 10.0},
    {"agents": True},
    {"byzantine": False},
    {"alpha": "0.3"},
    {"alpha": None},
    {"delta": True},
    {"sigma": True},
    {"sigma": None},
    {"batch": 16},
    {"batch": (16,)},
    {"batch": (4, 5, 6)},
    {"batch": (4.0, 5.0)},
    {"hidden": 16},
    {"hidden": ("16",)},
    {"horizon": "500"},
    {"trajectories": 5e3},
    {"attack": 3},
    {"aggregator": None},
    {"policy": None},
    {"task": 3},
    {"preset": 3},
    {"algorithm": 3},
    {"optimizer": 1},
    {"attack_options": "scale=4"},
    {"attack_options": (4,)},
    {"aggregator_options": "z=4"},
]

MISTYPED: list[tuple[dict[str, Any], str, str]] = [
    ({"task": "CartPol-v1"}, "task 'CartPol-v1'", "CartPole-v1"),
    ({"task": "cartpole-v1"}, "task 'cartpole-v1'", "CartPole-v1"),
    ({"attack": "sign-flip", "byzantine": 1}, "attack 'sign-flip'", "sign-flipping"),
    ({"aggregator": "fedpgg"}, "aggregator 'fedpgg'", "fedpg"),
    ({"algorithm": "fedpg"}, "algorithm 'fedpg'", "fedpg-br"),
    ({"preset": "release"}, "preset 'release'", "released"),
    ({"agent": 3}, "setting 'agent'", "agents"),
    ({"learningrate": 0.1}, "setting 'learningrate'", "learning_rate"),
    ({"algorithm": "gpomdp", "optimizer": "adamw"}, "optimizer 'adamw'", "adam"),
    ({"inner_law": "geometric"}, "inner_law 'geometric'", "geometric-from-0"),
    ({"attack_form": "release"}, "attack_form 'release'", "released"),
]


@pytest.mark.parametrize(("settings", "words"), [*BAD_NUMBERS, *IMPOSSIBLE_TOGETHER], ids=str)
def test_what_cannot_work_is_refused_with_the_setting_and_what_to_do(settings: dict[str, Any], words: list[str]):
    with pytest.raises(ConfigError) as refused:
        make_config(**settings)
    assert [word for word in words if word not in str(refused.value)] == []


@pytest.mark.parametrize("settings", WRONG_TYPES, ids=str)
def test_a_value_of_the_wrong_type_is_refused_by_name(settings: dict[str, Any]):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        make_config(**settings)


@pytest.mark.parametrize("name", ["alpha", "sigma", "delta", "ratio_bound", "learning_rate", "discount"])
def test_nan_is_refused(name: str):
    with pytest.raises(ConfigError, match=rf"{name} .*nan"):
        make_config(**{name: NAN})


@pytest.mark.parametrize(("settings", "what", "nearest"), MISTYPED, ids=str)
def test_an_unknown_name_is_refused_before_anything_is_written_and_the_nearest_is_named(
    settings: dict[str, Any], what: str, nearest: str, tmp_path: Path
):
    with pytest.raises(ConfigError) as refused:
        fedpg.train(**settings, out=tmp_path / "run")
    assert f"unknown {what}" in str(refused.value)
    assert nearest in str(refused.value).partition("did you mean ")[2].partition("?")[0].split(" or ")
    assert list(tmp_path.iterdir()) == []


def test_a_name_like_no_other_is_answered_with_all_there_are():
    with pytest.raises(ConfigError) as refused:
        make_problem(make_config(attack="xyzzy"))
    assert all(name in str(refused.value) for name in fedpg.ATTACKS)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"attack": "sign-flipping", "attack_options": ("scal=3",)}, ["sign-flipping", "'scal'", "scale"]),
        ({"attack": "nan", "attack_options": ("scale=3",)}, ["nan", "no parameters"]),
        ({"attack": "sign-flipping", "attack_options": ("scale",)}, ["sign-flipping", "scale must be a number"]),
        ({"attack": "sign-flipping", "attack_options": ("scale=x",)}, ["sign-flipping", "scale must be a number"]),
        ({"attack": "math:pi", "attack_options": ("scale=3",)}, ["math:pi", "not a function"]),
        ({"attack": "no_such_module:attack"}, ["attack 'no_such_module:attack'", "package.module:object"]),
        ({"attack": "math:no_such_function"}, ["attack 'math:no_such_function'", "package.module:object"]),
        ({"attack": ":"}, ["attack", "package.module:object"]),
        ({"attack": "math:pi"}, ["Attack", "function"]),
        ({"aggregator_options": ("z=3",)}, ["compass", "'z'"]),
        ({"aggregator": "krum", "aggregator_options": ("alpha=0.1",)}, ["krum", "'alpha'"]),  # a setting of its own
        ({"aggregator": "math:pi"}, ["math:pi", "Aggregator"]),
        ({"aggregator": "math:pi", "aggregator_options": ("z=3",)}, ["math:pi", "not a function"]),
        ({"aggregator": "math:nothing"}, ["aggregator 'math:nothing'", "package.module:object"]),
        ({"policy": "mpl"}, ["policy 'mpl'", "mlp", "package.module:object"]),
        ({"policy": "builtins:id"}, ["builtins:id", "Policy"]),
        ({"algorithm": "gpomdp", "optimizer": "builtins:abs"}, ["builtins:abs", "GradientTransformation"]),
        ({"algorithm": "math:pi"}, ["math:pi", "Algorithm"]),
    ],
    ids=str,
)
def test_a_piece_that_cannot_be_made_is_refused(settings: dict[str, Any], words: list[str]):
    with pytest.raises(ConfigError) as refused:
        make_problem(make_config(**settings))
    assert [word for word in words if word not in str(refused.value)] == []


def test_pieces_of_the_users_own_are_found_by_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "an_attack_of_mine.py").write_text(
        "from fedpg import Attack, Aggregator\n"
        "from fedpg.aggregators import mean\n"
        "def mirror(scene):\n    return -scene.gradients\n"
        "average = mean()\n"
        "def trimmed(share=0.1, alpha=0.0):\n    return mean()._replace(init=lambda agents, size: (share, alpha))\n"
        "still = Attack(act=lambda action, random: 0 * action)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    mirror = make_problem(make_config(attack="an_attack_of_mine:mirror")).attack
    assert isinstance(mirror, Attack)
    assert mirror.message is not None
    assert mirror.message.__name__ == "mirror"
    still = make_problem(make_config(attack="an_attack_of_mine:still")).attack
    assert still.act is not None
    assert still.message is None
    average = make_problem(make_config(aggregator="an_attack_of_mine:average")).aggregator
    assert isinstance(average, Aggregator)
    options = {"alpha": 0.25, "aggregator_options": ("share=0.5",)}
    made = make_problem(make_config(aggregator="an_attack_of_mine:trimmed", **options)).aggregator
    assert made.init(10, 3) == (0.5, 0.25)  # its own parameter, and the setting of that name
    with pytest.raises(ConfigError, match="not a function"):
        make_problem(make_config(aggregator="an_attack_of_mine:average", **options))


def test_the_limits_themselves_are_allowed():
    assert make_config(agents=1).agents == 1
    assert make_config(agents=10, byzantine=3, alpha=0.3).byzantine == 3
    assert make_config(agents=10, byzantine=4, aggregator="mean", alpha=0.0).byzantine == 4
    assert make_config(minibatch=12, batch=(12, 12)).minibatch == 12
    assert make_config(discount=1, horizon=1, sigma="auto", ratio_bound=math.inf, attack_start=1).discount == 1
    assert make_config(algorithm="fedpg-br", importance="decision", estimator="gpomdp").importance == "decision"


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_config().agents = 3  # type: ignore[misc]


@pytest.mark.parametrize("algorithm", ["fedpg-br", "svrpg", "gpomdp"])
@pytest.mark.parametrize("preset", ["paper", "released"])
def test_settings_survive_json(preset: Any, algorithm: Any):
    config = make_config(preset=preset, algorithm=algorithm, attack_options=("scale=4",), hidden=(8, 4, 2))
    assert config.ratio_bound == (math.inf if preset == "paper" else 0.005)
    text = json.dumps(to_json(config), allow_nan=False)
    assert from_json(json.loads(text)) == config


@pytest.mark.parametrize("change", [{"agents": 0}, {"agent": 3}, {"alpha": "0.3"}, {"batch": 4}], ids=str)
def test_settings_from_a_file_are_checked_as_well(change: dict[str, Any]):
    with pytest.raises(ConfigError, match=next(iter(change))):
        from_json(to_json(make_config()) | change)


def test_settings_that_the_first_edition_wrote_are_read():
    config = make_config(algorithm="fedpg-br", aggregator="majority", none_accepted="server", attack_form="released")
    old = to_json(config) | {"filter": "majority", "nobody": "server", "attack_form": "figures"}
    for name in ("aggregator", "none_accepted", "aggregator_options", "policy"):
        del old[name]
    assert from_json(old) == config
    assert from_json(old | {"attack_form": "text"}).attack_form == "paper"


TABLE = {
    "hidden": (16, 16),
    "activation": "relu",
    "learning_rate": 1e-3,
    "discount": 0.999,
    "trajectories": 5000,
    "horizon": 500,
    "batch": (12, 20),
    "minibatch": 4,
    "delta": 0.6,
    "optimizer": "adam",
    "agents": 10,
    "byzantine": 0,
    "aggregator": "fedpg",
}
RELEASED = {
    "alpha": 0.4,
    "sigma": 0.06,
    "attack_form": "released",
    "none_accepted": "server",
    "inner_law": "geometric-from-1",
    "ratio_bound": 0.005,
    "estimator": "standardised",
    "baseline": "none",
    "importance": "step",
    "gaussian": "released",
}
PAPER = {
    "alpha": 0.3,
    "sigma": "auto",
    "attack_form": "paper",
    "none_accepted": "skip",
    "inner_law": "geometric-from-0",
    "ratio_bound": math.inf,
    "estimator": "gpomdp",
    "baseline": "leave-one-out",
    "importance": "trajectory",
    "gaussian": "paper",
}


@pytest.mark.parametrize(("preset", "reading"), [("released", RELEASED), ("paper", PAPER)])
def test_a_preset_is_the_papers_table_for_cartpole(preset: Any, reading: dict[str, Any]):
    config = make_config("CartPole-v1", preset)
    wanted = TABLE | reading | {"preset": preset, "task": "CartPole-v1", "algorithm": "fedpg-br"}
    assert {name: getattr(config, name) for name in wanted} == wanted


@pytest.mark.parametrize("preset", ["released", "paper"])
@pytest.mark.parametrize(
    ("task", "table"),
    [
        (
            "LunarLander-v3",
            {"learning_rate": 1e-3, "discount": 0.99, "batch": (26, 38), "minibatch": 8, "horizon": 1000},
        ),
        (
            "HalfCheetah-v5",
            {"learning_rate": 8e-5, "discount": 0.995, "batch": (46, 50), "minibatch": 16, "horizon": 500},
        ),
        ("my_package.my_module:make", {"discount": 0.99, "batch": (26, 38), "minibatch": 8, "sigma": "auto"}),
    ],
)
def test_the_other_tasks_have_the_papers_table_too(task: str, table: dict[str, Any], preset: Any):
    reading = {"released": RELEASED, "paper": PAPER}[preset]
    wanted = {name: value for name, value in reading.items() if name != "sigma"}
    wanted |= table | {"hidden": (64, 64), "activation": "tanh", "test_horizon": 1000, "preset": preset}
    config = make_config(task, preset)
    assert {name: getattr(config, name) for name in wanted} == wanted
    assert preset == "released" or config.sigma == "auto"


def test_without_a_preset_a_task_has_the_one_that_learns_better():
    """Natural steps; of the paper's algorithms its text on CartPole, and the released code's settings elsewhere."""
    assert make_config("CartPole-v1") == make_config("CartPole-v1", "best", "natural")
    assert make_config("CartPole-v1", algorithm="fedpg-br").preset == "paper"
    assert make_config("CartPole-v1", "paper").algorithm == "fedpg-br"
    for task in ("LunarLander-v3", "LunarLander-v2", "HalfCheetah-v5", "Pendulum-v1", "my_module:make"):
        # What an attack means does not change with the task.
        usual = make_config(task, algorithm="fedpg-br")
        assert usual == make_config(task, "released", attack_form="paper", aggregator="compass")
        assert make_config(task).preset == "best"


@pytest.mark.parametrize("given", [{"sigma": 0.5}, {"delta": 0.5}, {"sigma": 1, "aggregator": "nnm+compass"}])
def test_numbers_of_the_papers_filter_are_refused_where_compass_would_not_use_them(given: dict[str, Any]):
    name, aggregator = next(iter(given)), given.get("aggregator", "compass")
    words = f"{name} is a setting of the paper's filter, and the aggregator is {aggregator}: add --aggregator fedpg"
    for task in ("CartPole-v1", "LunarLander-v3"):
        with pytest.raises(ConfigError, match=re.escape(words)):
            make_config(task, **given)
        filtered = make_config(task, **given | {"aggregator": "fedpg"})
        assert getattr(filtered, name) == given[name]


@pytest.mark.parametrize("algorithm", STEPS_BY)
@pytest.mark.parametrize("setting", [{"learning_rate": 0.125}, {"optimizer": "sgd"}], ids=["rate", "optimizer"])
def test_a_step_size_that_the_algorithm_does_not_use_is_refused(algorithm: str, setting: dict[str, Any]):
    with pytest.raises(ConfigError, match=f"{next(iter(setting))} has no meaning .* set {STEPS_BY[algorithm]} by"):
        make_config(algorithm=algorithm, **setting)
    made = make_algorithm(algorithm, [f"{STEPS_BY[algorithm]}=0.05"])  # what is recommended exists
    assert made != make_algorithm(algorithm)


@pytest.mark.parametrize("name", WITHOUT)
def test_what_an_algorithm_lacks_cannot_be_set(name: str):
    other = {"importance": ("trajectory", "step"), "ratio_bound": (0.1, 0.2)}[name]
    for algorithm in BUILT_IN:
        usual = getattr(defaults(algorithm=algorithm), name)
        given = {name: next(value for value in other if value != usual)}
        if algorithm in WITHOUT[name][0]:
            with pytest.raises(ConfigError, match=f"{name} has no meaning for algorithm '{algorithm}', which has no"):
                make_config(algorithm=algorithm, **given)
        else:
            assert getattr(make_config(algorithm=algorithm, **given), name) == given[name]
    for preset in ("paper", "released"):  # what a preset sets is no wish of the user's
        assert make_config(preset=preset, algorithm="natural").preset == preset


def test_a_trace_is_refused_where_no_advantages_are_estimated():
    assert make_config(trace=0.5).trace == 0.5
    assert make_config(estimator="gpomdp").estimator == "gpomdp"  # the preset's trace is no wish of the user's
    for given in ({"estimator": "gpomdp"}, {"algorithm": "fedpg-br"}):
        with pytest.raises(ConfigError, match="trace is a setting of the estimator 'advantage'"):
            make_config(trace=0.5, **given)


def test_the_tables_sigma_is_with_the_papers_filter_only():
    lander = "LunarLander-v3"
    without = make_config(lander, algorithm="fedpg-br", aggregator="fedpg")
    assert make_config(lander, "released").sigma == without.sigma == 0.07
    assert make_config(lander).sigma == make_config(lander, "released", aggregator="compass").sigma == "auto"


def test_the_presets_have_the_papers_filter_and_the_default_has_not():
    for preset in ("paper", "released"):
        assert make_config(preset=preset).aggregator == make_config("HalfCheetah-v5", preset).aggregator == "fedpg"
    assert make_config().aggregator == make_config("LunarLander-v3").aggregator == "compass"
    assert make_config(agents=1).aggregator == "mean"  # with nobody to be compared with
    assert make_config(agents=1, aggregator="fltrust").aggregator == "fltrust"


def test_the_defaults_of_the_record_are_the_defaults_of_the_command():
    assert Config() == make_config(algorithm="fedpg-br")


@pytest.mark.parametrize("preset", ["paper", "released"])
@pytest.mark.parametrize(("algorithm", "steps"), [("svrpg", 3), ("gpomdp", 1)])
def test_the_baselines_have_a_fixed_batch_fixed_steps_and_no_defence(algorithm: Any, steps: int, preset: Any):
    config = make_config(preset=preset, algorithm=algorithm)
    assert config.batch == (16, 16)
    assert config.aggregator == "mean"
    assert (config.inner_law, config.inner_steps) == ("fixed", steps)


def test_what_the_user_gives_wins_over_the_preset():
    config = make_config(preset="paper", algorithm="svrpg", alpha=0.1, batch=(5, 7), aggregator="majority", sigma=2)
    assert (config.alpha, config.batch, config.aggregator, config.sigma) == (0.1, (5, 7), "majority", 2)


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        ({"agents": 1, "aggregator": "mean"}, 8),  # 5 of the agent's, 9 of the server's
        ({"agents": 3}, 17),  # the server samples as many as an agent at the most: a round counts (5 * 3 + 9) / 4
        ({"agents": 3, "algorithm": "fedpg-br"}, 25),  # it may sample none: a round counts 4, the nearest to 5 * 3 / 4
        ({"agents": 3, "algorithm": "gpomdp", "batch": (1, 9), "minibatch": 1}, 100),
        ({"agents": 3, "algorithm": "byzpg", "minibatch": 2}, 50),
        ({"agents": 3, "algorithm": "res-nharpg"}, 13),  # two batches of 5, the nearest to 10 * 3 / 4
        ({"agents": 3, "algorithm": "fedsvrpg-m"}, 13),
        ({"agents": 3, "algorithm": "fedsvrpg-m", "algorithm_options": ("rate=1", "steps=10")}, 3),  # 38
        ({"agents": 1, "algorithm": "fedsvrpg-m", "algorithm_options": ("steps=4",), "aggregator": "mean"}, 5),
        ({"agents": 3, "algorithm": "fedsvrpg-m", "algorithm_options": ("steps=many",)}, 25),  # refused elsewhere
    ],
)
def test_an_attack_that_starts_after_the_last_round_is_refused(settings: dict[str, Any], rounds: int):
    given = {"trajectories": 100, "batch": (5, 9), "minibatch": 2} | settings
    config = make_config(**given)
    assert most_rounds(config) == rounds
    if config.agents > 1:
        late = dataclasses.replace(config, byzantine=1, alpha=0.4, attack_start=rounds + 1)
        with pytest.raises(ConfigError, match=rf"attack_start = {rounds + 1} is after .* {rounds} rounds at the most"):
            refuse_idle_attack(late)
        refuse_idle_attack(dataclasses.replace(late, attack_start=rounds))


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [*((name, ()) for name in ALGORITHMS), ("fedsvrpg-m", ("steps=7",)), ("fedsvrpg-m", ("rate=1", "steps=1"))],
)
def test_rounds_are_reckoned_with_as_many_batches_as_the_algorithm_samples(algorithm: str, options: tuple[str, ...]):
    """And with the trajectories of the server that are counted in every round."""
    given: dict[str, Any] = {"batch": (5, 9), "minibatch": 5, "trajectories": 1000}
    config = make_config(algorithm=algorithm, algorithm_options=options, aggregator="mean", **given)
    problem = make_problem(config)
    own = Server(problem).own_count if problem.algorithm.needs else 0
    counted = paper_count(config.agents, problem.algorithm.batches * 5, own)
    assert most_rounds(config) == math.ceil(1000 / counted)
