"""Agents whose tasks differ, outside JAX: by keyword arguments or by factories of their own."""

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import fedpg
import gym_probes
from fedpg import ConfigError, Task, make_config, make_problem, make_task
from fedpg.tasks.registry import gymnasium_task
from fedpg.tasks.task import SERVER
from fedpg.trajectories import Trajectories
from gym_probes import LIMIT, Walk
from probes import episodes, keys_of, play, policy_for

pytestmark = [pytest.mark.simulators, pytest.mark.kernels]

KEYS = keys_of(4, 30)
WHOSE = np.array([0, 1, 2, SERVER, 1, 0] * 5)
ENDS = [0.0, 1.0, 0.4]
"""With these chances the episodes of the three agents end after a step."""
WEIGHTS = [0.1, 1.0, 0.0]
"""Of the cost of actions, for three agents; the first is the nominal one."""


def episode(played: Trajectories, i: int) -> tuple[bytes, ...]:
    """All that one episode did, as bytes."""
    packed = slice(played.starts[i], played.starts[i] + played.lengths[i])
    parts = played.observations[packed], played.actions[packed], played.rewards[: played.lengths[i], i]
    return tuple(np.ascontiguousarray(part).tobytes() for part in parts)


def of(task: Task, some: np.ndarray, whose: np.ndarray, steps: int, resets: int = 0) -> Trajectories:
    """The episodes with these keys, of these agents."""
    policy, params = policy_for(task)
    return play(task, policy, params, episodes(KEYS[some], steps, agents=whose, resets=resets), steps)


def walks() -> list[Callable[[], Walk]]:
    return [functools.partial(Walk, ends=ends) for ends in ENDS]


@pytest.mark.parametrize("by", ["keyword arguments", "factories", "both"])
def test_each_agent_has_its_own_gymnasium_task(by: str):
    if by == "keyword arguments":
        task, nominal = gymnasium_task(Walk, "Walk").vary({"ends": ENDS}), Walk()
    elif by == "factories":
        task, nominal = make_task(walks()), Walk(ends=ENDS[0])
    else:
        task, nominal = make_task([Walk] * 3).vary({"ends": ENDS}), Walk()
    assert task.agents == 3
    played = of(task, np.arange(30), WHOSE, LIMIT)
    for agent, own in [*enumerate(Walk(ends=ends) for ends in ENDS), (SERVER, nominal)]:
        mine = np.flatnonzero(agent == WHOSE)
        alone = of(gymnasium_task(lambda own=own: Walk(ends=own.ends), "alone"), mine, np.zeros(len(mine), int), LIMIT)
        assert [episode(played, i) for i in mine] == [episode(alone, i) for i in range(len(mine))]
    assert (played.lengths[WHOSE == 0] == LIMIT).all()
    assert not played.terminated[WHOSE == 0].any()
    assert (played.lengths[WHOSE == 1] == 1).all()
    assert played.terminated[WHOSE == 1].all()


def test_agents_of_envpools_task_have_rewards_of_their_own():
    task = make_task("HalfCheetah-v5").vary({"ctrl_cost_weight": WEIGHTS})
    assert task.simulator.startswith("EnvPool")
    assert task.agents == 3
    same = np.zeros(5, int)  # five times the same episode, each of another agent
    whose = np.array([0, 1, 2, SERVER, 1])
    played = of(task, same, whose, 20)
    nominal = of(make_task("HalfCheetah-v5"), same, whose, 20)
    assert (played.lengths == 20).all()
    first = slice(played.starts[0], played.starts[0] + 20)
    cost = np.sum(np.clip(played.actions[first], -1, 1).astype(np.float64) ** 2, axis=1)
    assert cost.min() > 1e-3
    for i, agent in enumerate(whose):
        packed = slice(played.starts[i], played.starts[i] + 20)
        assert np.array_equal(played.observations[packed], played.observations[first])
        weight = WEIGHTS[0] if agent == SERVER else WEIGHTS[agent]
        expected = nominal.rewards[:20, i] - (weight - WEIGHTS[0]) * cost
        np.testing.assert_allclose(played.rewards[:20, i], expected, rtol=1e-4, atol=1e-5)


def test_what_envpool_cannot_vary_gymnasium_does():
    plain = make_task("LunarLander-v3")
    assert plain.simulator.startswith("EnvPool")
    task = plain.vary({"gravity": [-10.0, -1.0]})
    assert task.simulator.startswith("Gymnasium")
    same = np.zeros(3, int)
    played = of(task, same, np.array([0, 1, SERVER]), 30)
    heights = [played.observations[played.starts[i] + 29, 1] for i in range(3)]
    assert heights[0] == heights[2], "-10 is the nominal one"
    assert heights[1] > heights[0] + 0.1, "less gravity, less of a fall"
    # What EnvPool has, it still simulates; what was varied before stays varied.
    longer = plain.vary({"max_episode_steps": [5, 7]})
    assert longer.simulator.startswith("EnvPool")
    lengths = of(longer, same, np.array([0, 1, SERVER]), 30).lengths
    assert lengths.tolist() == [5, 7, 30]
    both = longer.vary({"gravity": [-10.0, -1.0]})
    assert both.simulator.startswith("Gymnasium")
    assert of(both, same, np.array([0, 1, SERVER]), 30).lengths.tolist() == [5, 7, 30]


TASKS: dict[str, Callable[[], Task]] = {
    "EnvPool, kept": lambda: make_task("HalfCheetah-v5").vary({"ctrl_cost_weight": WEIGHTS}),
    "EnvPool": lambda: make_task("LunarLander-v3").vary({"max_episode_steps": [9, 1000, 20]}),
    "Gymnasium": lambda: gymnasium_task(Walk, "Walk").vary({"ends": ENDS}),
}


@pytest.mark.parametrize("kind", TASKS)
def test_an_agents_episodes_outside_jax_do_not_depend_on_who_else_is_simulated(kind: str):
    task = TASKS[kind]()
    everyone = of(task, np.arange(30), WHOSE, 25, resets=2)
    for some in (np.flatnonzero(WHOSE == 1), np.arange(30)[::-1], np.array([17]), np.flatnonzero(WHOSE != 1)):
        mine = of(task, some, WHOSE[some], 25, resets=2)
        assert [episode(mine, i) for i in range(len(some))] == [episode(everyone, lane) for lane in some]
    assert len({episode(everyone, i) for i in range(30)}) == 30


# Runs

SMALL: dict[str, Any] = {
    "agents": 3,
    "batch": (3, 4),
    "minibatch": 2,
    "horizon": 10,
    "test_horizon": 10,
    "test_episodes": 2,
    "hidden": (4,),
    "trajectories": 12,
    "aggregator": "fedpg",
    "sigma": 10.0,
}


def test_a_run_trains_agents_whose_tasks_differ():
    run = fedpg.train("HalfCheetah-v5", parameters={"ctrl_cost_weight": WEIGHTS}, **SMALL)
    plain = fedpg.train("HalfCheetah-v5", parameters={"ctrl_cost_weight": [WEIGHTS[0]] * 3}, **SMALL)
    nominal = fedpg.train("HalfCheetah-v5", **SMALL)
    assert run.finished
    assert plain.records.column("train_return").tolist() == nominal.records.column("train_return").tolist()
    assert run.records.column("train_return")[0] != nominal.records.column("train_return")[0]
    assert run.records.tests[0].tolist() == nominal.records.tests[0].tolist(), "the server's task is the nominal one"


def test_a_run_takes_a_factory_for_every_agent():
    run = fedpg.train(walks(), **SMALL | {"horizon": LIMIT, "test_horizon": LIMIT, "algorithm": "gpomdp"})
    assert run.finished
    batch = run.records.column("batch")
    # The first agent walks to the end of its horizon, the second takes one step.
    steps = run.records.column("agent_steps")
    assert (steps >= batch * (LIMIT + 1 + 1)).all()
    assert (steps <= batch * (LIMIT + 1 + LIMIT)).all()
    assert (run.records.test_steps == np.array(2 * LIMIT)).all(), "the server has the first one's"


# What does not fit


def test_parameters_that_nobody_takes_are_refused_before_a_run():
    with pytest.raises(ConfigError, match="HalfCheetah-v5 does not take the parameters ctrl_cost_wieght"):
        make_task("HalfCheetah-v5").vary({"ctrl_cost_wieght": WEIGHTS})
    with pytest.raises(ConfigError, match="Walk does not take the parameters end"):
        gymnasium_task(Walk, "Walk").vary({"end": ENDS})
    with pytest.raises(ConfigError, match="HalfCheetah-v5 does not take the parameters"):
        make_task("HalfCheetah-v5").vary({"ctrl_cost_weight": ["dear", "cheap"]})


def test_the_number_of_values_and_of_factories_is_that_of_the_agents():
    with pytest.raises(ConfigError, match="'ends' needs one value for each of the 4 agents"):
        make_problem(make_config("Walk", agents=4), gymnasium_task(Walk, "Walk"), parameters={"ends": ENDS})
    with pytest.raises(ConfigError, match="was made for 3 agents, not for 4"):
        make_problem(make_config("Walk", agents=4), make_task(walks()))
    with pytest.raises(ConfigError, match="was made for 3 agents, not for 4"):
        fedpg.train(walks(), **SMALL | {"agents": 4})
    with pytest.raises(ConfigError, match="one value per agent"):
        make_task(walks()).vary({"ends": [0.1, 0.2]})


def test_tasks_that_one_policy_does_not_fit_are_refused():
    class Wide(Walk):
        observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)

    for others in ([Walk, Wide], [Walk, gym_probes.discrete_walk]):
        with pytest.raises(ConfigError, match="different observations or actions"):
            make_task(others)
    with pytest.raises(ConfigError, match="different observations or actions"):
        make_task("HalfCheetah-v5").vary({"exclude_current_positions_from_observation": [True, False]})


def test_the_error_of_one_agents_task_is_raised_as_it_is():
    class Broken(Walk):
        def step(self, action: Any) -> Any:
            raise gymnasium.error.ResetNeeded("the second agent's is broken")

    task = make_task([Walk, Broken])
    assert (of(task, np.arange(5), np.zeros(5, int), LIMIT).lengths > 0).all()
    with pytest.raises(gymnasium.error.ResetNeeded, match="the second agent's is broken") as caught:
        of(task, np.arange(5), np.array([0, 0, 1, 0, 0]), LIMIT)
    assert "in the task Walk" in caught.value.__notes__[0]
