"""What the agents of a cohort answer: each as if it were alone, whoever is beside it."""

import dataclasses
import functools
import math
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gym_probes
import probes
from fedpg import Agent, ConfigError, make_config, make_problem, make_task
from fedpg.agents import LocalCohort, answer, first_memory
from fedpg.algorithms.gpomdp import GPOMDP
from fedpg.estimators import gradient
from fedpg.problem import STATUSES, Schema, status_of


def small_cartpole(**settings):
    return make_problem(make_config(**{"agents": 10, "batch": (3, 3), "minibatch": 2, "horizon": 60} | settings))


def ask(problem, message, agents=None, **how):
    """What the agents with these numbers answer."""
    agents = np.arange(problem.config.agents) if agents is None else np.asarray(agents)
    got, _ = answer(problem, message, first_memory(problem, len(agents)), agents, **how)
    return jax.tree.map(np.asarray, got)


def assert_close(a, b):
    """To rounding: XLA may sum in another order for another number of agents."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def together(each):
    return jax.tree.map(lambda *x: np.concatenate(x), *each)


@pytest.fixture(scope="module")
def ten_at_once():
    problem = small_cartpole()
    return ask(problem, probes.broadcast(problem))


def test_agents_differ_from_each_other(ten_at_once):
    gradients = np.asarray(ten_at_once.sent["gradient"])
    assert len(np.unique(gradients.round(4), axis=0)) == 10
    assert np.all(np.linalg.norm(gradients, axis=1) > 0.1)


@pytest.mark.slow
def test_an_agent_alone_answers_as_it_does_among_ten(ten_at_once):
    problem = small_cartpole()
    message = probes.broadcast(problem)
    assert_close(together([ask(problem, message, [k]) for k in range(10)]), ten_at_once)


@pytest.mark.slow
def test_agents_in_chunks_answer_as_they_do_all_at_once(ten_at_once):
    problem = small_cartpole()
    # 3 agents at a time, so that the last chunk is not full.
    problem = problem._replace(task=dataclasses.replace(problem.task, most=9))
    assert_close(ask(problem, probes.broadcast(problem)), ten_at_once)


@pytest.mark.slow
def test_agents_on_several_threads_answer_as_they_do_all_at_once(ten_at_once):
    problem = small_cartpole()
    with ThreadPoolExecutor(4) as threads:
        assert_close(ask(problem, probes.broadcast(problem), threads=threads, parts=4), ten_at_once)


# How many trajectories


@pytest.fixture(scope="module")
def ranged():
    """Two agents that answer to any batch from 2 to 6."""
    return probes.tiny_problem(agents=2, batch=(2, 6))


@pytest.mark.slow
def test_room_for_more_episodes_changes_no_answer(ranged):
    exact = probes.tiny_problem(agents=2, batch=(5, 5))
    assert ranged.task.widths(2, 6) != exact.task.widths(5, 5)
    mine, theirs = ask(ranged, probes.broadcast(ranged, batch=5)), ask(exact, probes.broadcast(exact))
    assert_close(mine, theirs)


@pytest.mark.slow
def test_every_batch_of_the_range_is_sampled_whole(ranged):
    widths = set()
    for batch in range(2, 7):
        message = probes.broadcast(ranged, batch=batch)
        cohort = LocalCohort(ranged, message, np.arange(2), np.zeros(2, bool))
        lengths = np.asarray(cohort.sample(message.theta).lengths).reshape(2, cohort.width)
        assert (lengths > 0).sum(axis=1).tolist() == [batch, batch]
        assert ask(ranged, message).steps.tolist() == lengths.sum(axis=1).tolist()
        widths.add(cohort.width)
    assert widths == set(ranged.task.widths(2, 6))


@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 3), (12, 20), (5, 48)])
def test_the_largest_batch_has_room(low, high):
    widths = make_task("CartPole-v1").widths(low, high)
    assert max(widths) == high
    assert list(widths) == sorted(set(widths))


def test_the_batches_of_one_round_differ():
    problem = probes.tiny_problem(agents=2, batch=(40, 40))
    message = probes.broadcast(problem)
    cohort = LocalCohort(problem, message, np.arange(2), np.zeros(2, bool))
    first, second, again = (np.asarray(cohort.sample(message.theta, use).rewards) for use in (0, 1, 0))
    np.testing.assert_array_equal(first, again)
    assert (first != second).any()


# A row for each agent


def rows_for(problem):
    """A policy of its own for each agent."""
    return np.stack([problem.policy.init(jax.random.key(100 + k)) for k in range(problem.config.agents)])


def assert_each_has_its_row(problem, **how):
    rows, message = rows_for(problem), probes.broadcast(problem)
    mine = ask(problem, message._replace(vectors={"theta": rows}), **how)
    alone = [ask(problem, message._replace(vectors={"theta": rows[k]}), [k]) for k in range(problem.config.agents)]
    assert_close(mine, together(alone))
    shared = ask(problem, message._replace(vectors={"theta": rows[0]}))
    assert np.abs(shared.sent["gradient"][1:] - mine.sent["gradient"][1:]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
def test_a_vector_with_a_row_for_each_agent_reaches_each_of_them(parts):
    with ThreadPoolExecutor(parts) as threads:
        assert_each_has_its_row(small_cartpole(), threads=threads, parts=parts)


@pytest.mark.simulators
def test_a_vector_with_a_row_for_each_agent_reaches_each_of_them_outside_jax():
    config = make_config("walk", agents=3, batch=(4, 4), minibatch=2, hidden=(3,))
    assert_each_has_its_row(make_problem(config, make_task(gym_probes.walk)))


# A message of the user's own


def two_vectors(cohort, broadcast, memory):
    """The gradient, half of it, and how often the agent was asked."""
    trajectories = cohort.sample(broadcast.theta)
    found = cohort.gradient(broadcast.theta, trajectories)
    memory = memory + 1
    return {"gradient": found, "half": found / 2, "asked": memory.astype(jnp.float32)}, memory


def own_agent(**schema):
    agent = Agent(two_vectors, init=lambda agents, size: jnp.zeros(agents, jnp.int32))
    algorithm = GPOMDP._replace(agent=agent, reply=Schema(**schema))
    problem = probes.tiny_problem("sign-flipping", agents=5, byzantine=2, alpha=0.4)
    return problem._replace(algorithm=algorithm)


@pytest.mark.slow
def test_an_agent_of_the_users_own_sends_what_it_declares_and_remembers():
    problem = own_agent(vectors=("gradient", "half"), scalars=("asked",))
    memory = first_memory(problem, 5)
    for t in (1, 2, 3):
        got, memory = answer(problem, probes.broadcast(problem, t), memory, np.arange(5))
        got = jax.tree.map(np.asarray, got)
        assert got.sent["asked"].tolist() == [t] * 5
        np.testing.assert_allclose(got.sent["half"], got.sent["gradient"] / 2, rtol=1e-5)  # the attack lies in both
        honest = ask(probes.tiny_problem(agents=5), probes.broadcast(problem, t)).sent["gradient"]
        np.testing.assert_allclose(got.sent["gradient"][:3], honest[:3], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got.sent["gradient"][3:], -2.5 * honest[3:], rtol=1e-4, atol=1e-5)


def test_a_message_that_was_not_declared_is_an_error():
    problem = own_agent(vectors=("gradient",), scalars=("asked",))
    with pytest.raises(ConfigError, match=r"sent \['asked', 'gradient', 'half'\].*\['asked', 'gradient'\]"):
        ask(problem, probes.broadcast(problem))


def test_each_status_is_told_apart():
    vectors, lengths = np.zeros((10, 3), np.float32), np.array([3] * 7 + [0, 2, 4])
    vectors[5, 1], vectors[6, 1] = np.nan, -np.inf
    vectors[7] = np.nan  # no answer at all is not an answer that is not finite
    numbers = np.array([0, 0, 0, 0, np.nan, 0, 0, 0, 0, 0], np.float32)
    status = np.asarray(jax.jit(status_of)({"a": np.zeros_like(vectors), "b": vectors}, {"c": numbers}, lengths))
    assert [STATUSES[i] for i in status] == ["answered"] * 4 + [
        "not finite",
        "not finite",
        "not finite",
        "no answer",
        "wrong length",
        "wrong length",
    ]


# Byzantine agents


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["random-noise", "shuffled-rewards"])
def test_a_byzantine_agent_that_does_not_collude_lies_alone_as_it_does_among_others(attack):
    problem = probes.tiny_problem(attack, agents=5, byzantine=2, alpha=0.4)
    message = probes.broadcast(problem)
    everyone = ask(problem, message).sent["gradient"]
    alone = [ask(problem, message, [k]).sent["gradient"][0] for k in (3, 4)]
    np.testing.assert_allclose(np.stack(alone), everyone[3:], rtol=1e-4, atol=1e-5)


@functools.cache
def played(form):
    """The actions of an honest and of a Byzantine agent whose policy much prefers action 1."""
    settings = {"agents": 3, "byzantine": 1, "alpha": 0.4, "batch": (40, 40), "horizon": 20}
    problem = small_cartpole(attack="random-action", attack_form=form, categorical="paper", **settings)
    params = {name: np.zeros(shape, np.float32) for name, shape in problem.policy.shapes.items()}
    theta = probes.flat(problem.policy, params | {"b2": np.array([-9.0, 9.0], np.float32)})
    cohort = LocalCohort(problem, probes.broadcast(problem), np.array([1, 2]), np.array([False, True]))
    actions, rewards, lengths = map(np.asarray, cohort.sample(theta)[1:4])
    alive = np.arange(len(rewards))[:, None] < lengths
    return [actions[:, part][alive[:, part]] for part in (slice(40), slice(40, 80))]


@pytest.mark.slow
def test_a_random_action_agent_of_the_released_code_plays_action_0():
    honest, byzantine = played("released")
    assert not byzantine.any()
    assert honest.mean() == pytest.approx(1 / (1 + math.exp(-2)), abs=0.05)  # logits tanh(-9), tanh(9)


@pytest.mark.slow
def test_a_random_action_agent_of_the_paper_plays_uniformly():
    honest, byzantine = played("paper")
    assert abs(byzantine.mean() - 0.5) < 4 * 0.5 / math.sqrt(byzantine.size)
    assert honest.mean() == pytest.approx(1 / (1 + math.exp(-2)), abs=0.05)


@pytest.mark.slow
def test_a_random_action_agent_sends_the_gradient_of_what_it_played():
    problem = probes.tiny_problem("random-action", agents=3, byzantine=1, alpha=0.4)
    message = probes.broadcast(problem)
    mine = LocalCohort(problem, message, np.array([2]), np.array([True])).sample(message.theta)
    policy, estimator = problem.policy, problem.estimator
    estimate = jax.jit(lambda theta, t: gradient(estimator, policy, policy.unravel(theta), t))
    expected = estimate(message.theta, mine)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(ask(problem, message).sent["gradient"][2], expected, rtol=1e-5, atol=1e-6)
