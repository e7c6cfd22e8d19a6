"""The paper's experiments as data, the paper's curves, and what is missing among the stored runs."""

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpg import ConfigError, make_config, train
from fedpg.aggregators import AGGREGATORS
from fedpg.attacks import ATTACKS
from fedpg.experiments.catalogue import EXPERIMENTS, configs_of, find
from fedpg.experiments.figures import runs_of
from fedpg.experiments.panels import OTHERS, TASKS, config_of
from fedpg.experiments.paper import paper_curves
from fedpg.experiments.runner import plan, rates_of, seconds_of, slots_of
from fedpg.experiments.work import Unit
from stored import stored_run

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)


# The experiments as data


def test_every_curve_has_settings_that_work_and_the_names_of_a_panel_are_its_own():
    for experiment in EXPERIMENTS.values():
        for panel in experiment.panels:
            labels = [curve.label for curve in panel.curves]
            assert len(set(labels)) == len(labels)
            for curve in panel.curves:
                config = config_of(panel, curve)
                assert config.task == panel.task in (*TASKS, *OTHERS)
                assert config.aggregator in AGGREGATORS
                assert config.attack in ATTACKS


def test_the_figures_are_those_of_the_paper():
    def curves(name: str, task: str) -> set[tuple[Any, ...]]:
        keys = ("algorithm", "agents", "byzantine", "attack")
        found = configs_of([EXPERIMENTS[name].on([task])])
        return {tuple(getattr(c, k) for k in keys[: 4 if c.byzantine else 3]) for c in found}

    alone = {(a, 1, 0) for a in ("gpomdp", "svrpg", "fedpg-br")}
    for task in TASKS:
        assert curves("figure1", task) == alone | {("fedpg-br", 3, 0), ("fedpg-br", 10, 0)}
        attacks = ("random-noise", "random-action", "sign-flipping")
        assert curves("figure2", task) == alone | {
            (a, 10, 3, x) for a in ("gpomdp", "svrpg", "fedpg-br") for x in attacks
        }
        for name, attack in (("figure3", "fedpg-attack"), ("figure-va", "variance-attack")):
            honest = {("fedpg-br", 10, 0), ("fedpg-br", 1, 0)}
            assert curves(name, task) == honest | {("fedpg-br", 10, 3, attack)}


def test_a_limit_is_one_of_trajectories_as_each_curve_counts_them():
    found = configs_of([EXPERIMENTS["algorithms"].on(["HalfCheetah-v5"])], 300)
    lengths = {config.batch: config.trajectories for config in found if config.algorithm == "natural"}
    assert lengths == {(16, 16): 300, (160, 160): 300 * 20}  # all trajectories in one place: 20 count as one
    assert all(config.trajectories <= 300 for config in found if config.algorithm != "natural")


def test_every_curve_of_the_paper_is_drawn_in_some_panel_and_none_is_asked_for_that_it_does_not_have():
    asked = {c.paper for e in EXPERIMENTS.values() for p in e.panels for c in p.curves if c.paper}
    assert asked == set(paper_curves())


def test_algorithms_of_a_panel_share_everything_that_the_initial_policy_depends_on():
    for panel in EXPERIMENTS["figure2"].panels:
        assert (
            len({(c.task, c.hidden, c.activation, c.gaussian) for c in (config_of(panel, x) for x in panel.curves)})
            == 1
        )


@pytest.mark.slow
def test_all_trajectories_in_one_place_are_drawn_where_a_round_of_ten_agents_is():
    panel = next(p for p in EXPERIMENTS["algorithms"].panels if p.title == "CartPole-v1, 10 honest agents")
    curve = next(c for c in panel.curves if c.label.endswith("in one place"))
    config = config_of(panel, curve)
    assert (config.agents, config.batch, config.trajectories) == (1, (160, 160), 20 * 1000)
    one, ten = train(agents=1, batch=(160, 160), trajectories=1), train(agents=10, trajectories=1)  # a round of each
    run = stored_run(config, returns=(9.0, 20.0), length=one.records.trajectories[-1])
    ((_, (found,)),) = runs_of(dataclasses.replace(panel, curves=(curve,)), {run.key: run})
    assert found.trajectories.tolist() == ten.records.trajectories.tolist() == [0, 16]
    assert found.columns["trajectories_total"] is run.columns["trajectories_total"]  # what was paid stays


@pytest.mark.parametrize(
    ("names", "tasks", "message"),
    [
        (["figure4"], [], "did you mean figure"),
        (["figure1"], ["CartPole"], "did you mean CartPole-v1"),
        (["ablation-alpha"], ["HalfCheetah-v5"], "it is about CartPole-v1"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest_known(names: list[str], tasks: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        find(names, tasks)


def test_the_papers_names_of_tasks_are_taken_and_all_is_everything():
    assert [p.task for p in find(["figure1"], ["HalfCheetah-v2"])[0].panels] == ["HalfCheetah-v5"]
    assert [e.name for e in find(["all"], [])] == list(EXPERIMENTS)


def test_curves_are_chosen_by_words_of_their_names():
    chosen = find(["figure1", "algorithms"], ["CartPole-v1"], ["svrpg", "alone"])
    labels = {curve.label for experiment in chosen for panel in experiment.panels for curve in panel.curves}
    assert labels == {
        *("SVRPG (K=1)", "FedSVRPG-M", "natural steps, the server alone", "natural steps, one agent alone"),
        "natural steps, the 7 honest agents alone",
    }
    (one,) = find(["algorithms"], ["CartPole-v1"], ["honest agents: natural steps, compass"])
    assert [len(panel.curves) for panel in one.panels] == [1]
    with pytest.raises(ConfigError, match=r"no curve has 'zork' in its name; there are: .*FedPG-BR"):
        find(["figure1"], [], ["zork"])


# The paper's curves


def test_the_papers_curves_are_the_ones_that_were_read_off():
    curve = paper_curves()["Figure 1", "CartPole-v1", "FedPG-BR (K=10)"]
    assert curve.at(500)[0] == pytest.approx(379, abs=1)
    assert math.isnan(curve.at(7000)[0])  # the figure ends at 5000
    # One readable side of a symmetric band is enough.
    assert paper_curves()["Figure 1", "HalfCheetah-v2", "GPOMDP"].at(10_000) == pytest.approx((1766, 1766 - 1616))


# What is missing


def test_a_plan_has_what_is_missing_too_short_or_wanted_again():
    config = make_config(preset="released", agents=10, trajectories=100)
    half = dataclasses.replace(config, trajectories=50)
    runs = [stored_run(config, 0), stored_run(config, 1, length=60), stored_run(config, 2, code="before")]
    stored = {run.key: run for run in runs}
    todo = plan([config, half], [0, 1, 2, 3], stored, again=False)
    assert todo.units == (Unit(config, (1, 3)),)  # compiled: all seeds in one process; the longest of both lengths
    assert todo.wanted == 4
    assert [run.seed for run in todo.old] == [2]
    # What is of other code is not replaced without a word, however short it is.
    short = {run.key: run for run in [stored_run(config, 0, length=60, code="before")]}
    todo = plan([config], [0], short, again=False)
    assert (todo.units, [run.seed for run in todo.old]) == ((), [0])
    # What is made again gets as long as it was.
    todo = plan([half], [2, 3], stored, again=True)
    assert todo.units == (Unit(config, (2,)), Unit(half, (3,)))
    again = plan([config], [0, 1, 2, 3], stored, again=True)
    assert again.units == (Unit(config, (1, 2, 3)),)
    assert again.old == ()
    assert plan([half], [0, 1], stored, again=False).units == ()


def test_runs_of_other_tasks_are_units_of_their_own_one_seed_of_each_setting_first():
    few, many = (make_config("LunarLander-v3", agents=k) for k in (1, 10))
    assert [(u.config.agents, u.seeds) for u in plan([few, many], [0, 1], {}, again=False).units] == [
        (1, (0,)),
        (10, (0,)),
        (1, (1,)),
        (10, (1,)),
    ]


@given(st.integers(1, 64), st.integers(1, 200))
def test_units_at_a_time_never_have_more_cores_than_there_are(total: int, units: int):
    config = make_config()
    count, share = slots_of([Unit(config, (i,)) for i in range(units)], total)
    assert 1 <= count * share <= total
    assert count <= units


def test_the_time_is_estimated_from_runs_on_a_machine_like_this_one():
    slow = dataclasses.replace(
        stored_run(), about=stored_run().about | {"hardware": {"processor": "old"}, "seconds": 99.0}
    )
    config = make_config(preset="released", agents=10)
    here = rates_of([slow, dataclasses.replace(stored_run(), seed=1)])["CartPole-v1"]
    assert here == pytest.approx(1000 * 2.0 / 1100)
    assert rates_of([slow])["CartPole-v1"] > here
    ten, one = (seconds_of(Unit(config, tuple(range(n))), {"CartPole-v1": here}) for n in (10, 1))
    assert ten > one > 0
