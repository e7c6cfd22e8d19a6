"""The successors of FedPG-BR: each against its own definition, all through attacks, checkpoints and messages."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax import Array

import probes
from fedpg import Algorithm, Problem
from fedpg.agents import LocalCohort
from fedpg.algorithms import make_algorithm
from fedpg.config import SUCCESSORS
from fedpg.estimators import correction, gradient, hessian_product, make_estimator
from fedpg.federation import Local
from fedpg.problem import Broadcast, Outcome, Replies, make_broadcast
from fedpg.server import Server, stride
from fedpg.training.rounds import advance, first_state
from fedpg.trajectories import Trajectories

# What the cohort makes of trajectories, against the enumerated task


def estimates(importance: str, form: str = "gpomdp", baseline: str = "none", size: int = 1) -> Any:
    """(the policy, theta_0, theta_n, all batches of so many paths, an estimator, their probabilities under theta_n)."""
    policy, paths = probes.tiny_policy(), probes.all_paths()
    theta_0, theta_n = map(np.asarray, probes.two_parameters(policy))
    batches, members = probes.batches(probes.as_trajectories(paths), size)
    chances = np.asarray(probes.probabilities(policy, policy.unravel(theta_n), paths))
    return policy, theta_0, theta_n, batches, make_estimator(form, probes.GAMMA, baseline, importance), chances[members]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("importance", "form", "baseline", "size"),
    [
        ("trajectory", "gpomdp", "none", 1),
        ("trajectory", "reinforce", "leave-one-out", 2),
        ("decision", "gpomdp", "leave-one-out", 2),
    ],
)
def test_the_hessian_product_has_the_mean_of_a_finite_difference_of_exact_gradients(
    importance: str, form: str, baseline: str, size: int
):
    policy, along, theta, batches, estimator, chances = estimates(importance, form, baseline, size)
    paths = probes.all_paths()
    along = along / np.linalg.norm(along)
    each = jax.jit(jax.vmap(lambda b: hessian_product(estimator, policy, theta, along, b)))(batches)  # [n, D]
    ends = [np.asarray(probes.exact_gradient(policy, theta + h * along, paths)) for h in (0.01, -0.01)]
    difference = (ends[0] - ends[1]) / 0.02
    assert np.abs(difference).max() > 0.05
    np.testing.assert_allclose(chances.prod(axis=1) @ np.asarray(each), difference, atol=1e-3)


@pytest.mark.slow
def test_pages_recursion_has_the_mean_of_the_old_direction_and_the_difference_of_exact_gradients():
    policy, old, theta, batches, estimator, chances = estimates("trajectory")
    v, paths = np.random.default_rng(1).normal(size=old.shape).astype(np.float32), probes.all_paths()

    class Exact(NamedTuple):
        """A cohort with one agent for every path."""

        def sampled_correction(self, theta: Array, old: Array, use: int = 0) -> Any:
            params, before = policy.unravel(theta), policy.unravel(old)
            found = jax.vmap(lambda b: correction(estimator, policy, params, before, b))(batches)
            return found.plain, found.corrected

    @jax.jit
    def mean_answer(v: Array) -> Array:
        message = make_broadcast(jax.random.key(0), 2, 1, theta=theta, old=old, v=v)
        sent, _ = make_algorithm("byzpg").agent.answer(Exact(), message, ())  # type: ignore[arg-type]
        return chances[:, 0] @ sent["gradient"]

    now, then = (np.asarray(probes.exact_gradient(policy, at, paths)) for at in (theta, old))
    np.testing.assert_allclose(mean_answer(v), v + now - then, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean_answer(np.zeros_like(v)), now, rtol=1e-4, atol=1e-5)  # a large batch, from scratch


@pytest.mark.slow
def test_weights_of_steps_give_corrections_of_the_right_direction_and_half_an_error():
    """What `--importance step` costs, as docs/successors.md has it: also divided by the steps of the batch."""
    policy, old, theta, batches, _, chances = estimates("step", size=2)
    estimator = make_estimator("advantage", probes.GAMMA, "none", "step", 0.97)
    paths = probes.all_paths()
    members = probes.batches(probes.as_trajectories(paths), 2)[1]
    before = np.asarray(probes.probabilities(policy, policy.unravel(old), paths))[members]
    found = jax.jit(jax.vmap(lambda b: correction(estimator, policy, policy.unravel(theta), policy.unravel(old), b)))(
        batches
    )
    then = jax.jit(jax.vmap(lambda b: gradient(estimator, policy, policy.unravel(old), b)))(batches)
    now = chances.prod(axis=1) @ np.asarray(found.plain)
    wanted = now - before.prod(axis=1) @ np.asarray(then)
    corrected = now - chances.prod(axis=1) @ np.asarray(found.corrected)
    assert 0.3 < np.linalg.norm(corrected - wanted) / np.linalg.norm(wanted) < 0.6
    assert corrected @ wanted > 0.87 * np.linalg.norm(corrected) * np.linalg.norm(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [False, True], ids=["one policy", "a policy each"])
def test_a_cohort_makes_of_its_trajectories_what_each_agent_would_alone(rows: bool):
    """The last agent believes in flipped rewards."""
    problem = probes.tiny_problem("reward-flipping", agents=3, byzantine=1, alpha=0.4)
    message = probes.broadcast(problem)
    policy, estimator, width = problem.policy, problem.estimator, 3
    theta, old = map(np.asarray, probes.two_parameters(policy))
    theta = np.stack([theta, old, theta + old]) if rows else theta
    cohort = LocalCohort(problem, message, np.arange(3), problem.byzantine)
    everyone: Trajectories = jax.tree.map(np.asarray, cohort.sample(theta, use=2))
    plain, corrected = map(np.asarray, cohort.sampled_correction(theta, old, use=2))
    products = np.asarray(cohort.sampled_hessian_product(theta, old, use=2))

    @jax.jit
    def alone(mine: Trajectories, at: Array) -> tuple[Array, ...]:
        found = correction(estimator, policy, policy.unravel(at), policy.unravel(old), mine)
        return found.plain, found.corrected, hessian_product(estimator, policy, at, old, mine)

    assert cohort.steps.tolist() == (2 * everyone.lengths.reshape(3, width).sum(axis=1)).tolist()
    for k in range(3):
        mine = jax.tree.map(lambda x, k=k: x[..., k * width : (k + 1) * width], everyone)
        mine = mine._replace(rewards=-mine.rewards) if k == 2 else mine
        at = theta[k] if rows else theta
        for got, expected in zip((plain[k], corrected[k], products[k]), alone(mine, at), strict=True):
            assert np.abs(expected).max() > 1e-3
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


# Each algorithm, against its definition


class Seen:
    """A federation that keeps what it was asked and what it answered."""

    def __init__(self, problem: Problem, threads: int = 1) -> None:
        self.inner = Local(problem, threads)
        self.broadcasts: list[Broadcast] = []
        self.replies: list[Replies] = []

    def ask(self, broadcast: Broadcast, memory: Any) -> Any:
        replies, memory = self.inner.ask(broadcast, memory)
        self.broadcasts.append(broadcast)
        self.replies.append(replies)
        return replies, memory

    def tell(self, round_: int, outcome: Outcome) -> None:
        pass

    def warm_up(self, memory: Any) -> Any:
        return self.inner.warm_up(memory)


def small(algorithm: str, *options: str, **settings: Any) -> Problem:
    given: dict[str, Any] = {"agents": 3, "aggregator": "mean", "algorithm": algorithm, "algorithm_options": options}
    return probes.tiny_problem(**given | settings)


def rounds(problem: Problem, count: int) -> tuple[list[Any], Seen, list[Any]]:
    """(the states from the first on, what was said, the logs)."""
    states, logs, federation, server = [first_state(problem, 0)], [], Seen(problem), Server(problem)
    for _ in range(count):
        state, log = advance(problem, states[-1], federation, server)
        states.append(state)
        logs.append(log)
    return states, federation, logs


CURVES = np.array([3.0, 1.0, 0.2, -0.5], np.float32)
"""-CURVES * theta is the gradient of a parabola."""


class Parabola(NamedTuple):
    """A federation of one agent, or a cohort of two, whose gradients are exact; its answers by hand."""

    def ask(self, broadcast: Broadcast, memory: Any) -> Any:
        zero = np.zeros(1, int)
        vectors = {"gradient": -(CURVES * np.asarray(broadcast.theta))[None]}
        return Replies(vectors, {}, zero, np.zeros(1), zero, broadcast.batch), memory

    def sampled_gradient(self, theta: Array, use: int = 0) -> Array:
        return np.broadcast_to(-CURVES * np.asarray(theta), (2, 4))  # type: ignore[return-value]

    def sampled_hessian_product(self, theta: Array, along: Array, use: int = 0) -> Array:
        return np.broadcast_to(-CURVES * np.asarray(along), (2, 4))  # type: ignore[return-value]

    def sampled_correction(self, theta: Array, old: Array, use: int = 0) -> tuple[Array, Array]:
        each = (np.asarray(x) for x in (theta, old))
        return tuple(np.broadcast_to(-CURVES * x, (2, 4)) + np.float32(use) for x in each)  # type: ignore[return-value]


START = np.array([1.0, -2.0, 0.5, 0.1], np.float32)


@pytest.mark.slow
def test_byzpg_corrects_its_last_direction_with_small_batches_and_now_and_then_begins_anew():
    problem = small("byzpg", "p=0.3")
    states, seen, logs = rounds(problem, 12)
    large = [s.batch >= 3 for s in seen.broadcasts]
    chances = [Server(problem).draw_chance(states[0].key, t) for t in range(2, 13)]
    assert large == [True, *(chance < 0.3 for chance in chances)]
    assert 1 < sum(large) < 12
    for t, (said, got) in enumerate(zip(seen.broadcasts, seen.replies, strict=True)):
        assert said.batch == logs[t]["batch"] == (3 if large[t] else 2)
        cohort = LocalCohort(problem, said, np.arange(3), np.zeros(3, bool))
        v, old = states[t].algorithm
        expected, corrected = cohort.sampled_correction(states[t].theta, old)
        if not large[t]:
            np.testing.assert_array_equal(old, states[t - 1].theta)
            np.testing.assert_allclose(v, np.mean(seen.replies[t - 1].vectors["gradient"], axis=0), atol=1e-6)
            expected = np.asarray(v) + np.asarray(expected) - np.asarray(corrected)
        np.testing.assert_allclose(got.vectors["gradient"], expected, rtol=1e-3, atol=1e-4)


class Silent:
    """A federation of three agents of whom nobody answers."""

    def __init__(self, problem: Problem) -> None:
        self.size = problem.policy.size
        self.batches: list[int] = []

    def ask(self, broadcast: Broadcast, memory: Any) -> Any:
        self.batches.append(broadcast.batch)
        nobody, zero = np.ones(3, int), np.zeros(3, int)
        vectors = {"gradient": np.zeros((3, self.size), np.float32)}
        return Replies(vectors, {}, nobody, zero, zero, broadcast.batch), memory


@pytest.mark.parametrize("name", SUCCESSORS)
def test_a_round_that_nobody_answers_keeps_the_direction_with_its_parameters(name: str):
    problem = small(name)
    state, rng = first_state(problem, 0), np.random.default_rng(0)
    known = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), state.algorithm)
    state = state._replace(round=4, algorithm=known)
    after, outcome = problem.algorithm.round(problem, state, Silent(problem), Server(problem))  # type: ignore[arg-type]
    assert outcome.inner_done == 0
    np.testing.assert_array_equal(after.theta, state.theta)
    # But the agents of Res-NHARPG have carried theirs along, so the next move begins here.
    kept = [state.theta] if name == "res-nharpg" else known
    for found, expected in zip(jax.tree.leaves(after.algorithm), kept, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_batches_of_byzpg_are_large_until_there_is_a_direction_to_correct():
    problem = small("byzpg", "p=1e-6")
    state, silent = first_state(problem, 0), Silent(problem)
    for t in range(3):
        state, _ = problem.algorithm.round(problem, state._replace(round=t), silent, Server(problem))  # type: ignore[arg-type]
    known = state.algorithm._replace(v=state.theta)
    problem.algorithm.round(problem, state._replace(algorithm=known), silent, Server(problem))  # type: ignore[arg-type]
    assert silent.batches == [3, 3, 3, 2]


def test_n_pg_igt_samples_ahead_averages_and_takes_steps_of_one_length():
    states, seen, _ = rounds(small("n-pg-igt", "step=0.3", "least=0.4"), 6)
    d = np.zeros_like(states[0].theta)
    old = np.asarray(states[0].theta)
    for t in range(6):
        eta = max((2 / (t + 2)) ** 0.8, 0.4)
        theta = np.asarray(states[t].theta)
        np.testing.assert_allclose(seen.broadcasts[t].theta, theta + (1 - eta) / eta * (theta - old), atol=1e-5)
        d = (1 - eta) * d + eta * np.mean(seen.replies[t].vectors["gradient"], axis=0)
        np.testing.assert_allclose(states[t + 1].theta, theta + 0.3 * d / np.linalg.norm(d), atol=1e-5)
        old = theta


def on_a_parabola(algorithm: Algorithm, count: int) -> Iterator[tuple[Array, Any]]:
    """(theta, the state after the step from it) of rounds whose gradients are exact."""
    problem = small("gpomdp", agents=1)._replace(algorithm=algorithm)
    state = first_state(problem, 0)._replace(theta=START, algorithm=algorithm.init(problem, START))
    for t in range(count):
        theta = state.theta
        state, _ = algorithm.round(problem, state, Parabola(), Server(problem))  # type: ignore[arg-type]
        state = state._replace(round=t + 1)
        yield theta, state


def test_what_n_pg_igt_averages_is_the_gradient_where_it_steps_on_a_parabola():
    for theta, state in on_a_parabola(make_algorithm("n-pg-igt", ("step=0.3",)), 12):
        np.testing.assert_allclose(state.algorithm.d, -CURVES * np.asarray(theta), rtol=1e-3, atol=1e-3)


def test_what_agents_of_res_nharpg_remember_is_the_gradient_on_a_parabola():
    agent, d, theta, old = make_algorithm("res-nharpg").agent, np.zeros((2, 4), np.float32), START, START
    for t in range(1, 8):
        vectors = {"theta": theta, "between": 0.3 * theta + 0.7 * old, "move": theta - old}
        sent, d = agent.answer(Parabola(), make_broadcast(jax.random.key(0), t, 3, **vectors), d)  # type: ignore[arg-type]
        np.testing.assert_array_equal(sent["gradient"], d)
        np.testing.assert_allclose(d, np.tile(-CURVES * theta, (2, 1)), rtol=1e-4, atol=1e-5)
        theta, old = np.asarray(stride(theta, np.asarray(d)[0], 0.2)), theta


def test_res_nharpg_remembers_by_its_definition_and_counts_both_batches():
    problem = small("res-nharpg", "step=0.3")
    states, seen, logs = rounds(problem, 4)
    d = np.zeros((3, problem.policy.size))
    for t, said in enumerate(seen.broadcasts):
        theta, old = (np.asarray(states[i].theta) for i in (t, max(t - 1, 0)))
        q = Server(problem).draw_chance(states[0].key, t + 1)
        np.testing.assert_allclose(said.vectors["between"], q * theta + (1 - q) * old, atol=1e-6)
        cohort = LocalCohort(problem, said, np.arange(3), np.zeros(3, bool))
        product = cohort.sampled_hessian_product(said.vectors["between"], theta - old, use=1)
        eta = 2 / (t + 2)
        d = (1 - eta) * (d + np.asarray(product)) + eta * np.asarray(cohort.sampled_gradient(theta))
        np.testing.assert_allclose(seen.replies[t].vectors["gradient"], d, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(np.linalg.norm(states[t + 1].theta - theta), 0.3, rtol=1e-4)
        assert logs[t]["batch"] == 2 * said.batch
        assert logs[t]["counted"] == round(6 * said.batch / 4)
        assert logs[t]["agent_steps"] == cohort.steps.sum()


def test_fedsvrpg_m_with_one_step_and_no_memory_is_gpomdp():
    mine, _, _ = rounds(small("fedsvrpg-m", "rate=0.5", "beta=1", "steps=1", "longest=9"), 4)
    plain, _, _ = rounds(small("gpomdp", optimizer="sgd", learning_rate=0.5), 4)
    assert np.abs(np.asarray(plain[-1].theta) - np.asarray(plain[0].theta)).max() > 0.01
    np.testing.assert_allclose(mine[-1].theta, plain[-1].theta, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "u", [np.zeros(4, np.float32), np.array([1.0, 2.0, -1.0, 0.5], np.float32)], ids=["first", "later"]
)
def test_agents_of_fedsvrpg_m_send_their_moves_per_step(u: np.ndarray):
    agent = make_algorithm("fedsvrpg-m", ("rate=0.1", "beta=0.25", "steps=3", "longest=9")).agent
    old = START + 0.5
    message = make_broadcast(jax.random.key(0), 2, 3, theta=START, old=old, u=u)
    sent, _ = agent.answer(Parabola(), message, ())  # type: ignore[arg-type]
    theta = START
    for h in range(3):
        g, g_old = -CURVES * theta + h, -CURVES * old + h
        direction = 0.25 * g + 0.75 * (u + g - g_old) if u.any() else g
        theta = theta + 0.1 * direction
    np.testing.assert_allclose(sent["gradient"], np.tile((theta - START) / 0.3, (2, 1)), rtol=1e-4)


def test_agents_of_fedsvrpg_m_take_no_step_that_is_too_long_and_none_that_is_not_finite():
    went: list[np.ndarray] = []

    class Astray(Parabola):
        """The first of two agents has a gradient that is too long, the second one that is none."""

        def sampled_correction(self, theta: Array, old: Array, use: int = 0) -> tuple[Array, Array]:
            went.append(np.broadcast_to(np.asarray(theta), (2, 4)))
            g = np.array([[30.0, 0, -40, 0], [1, np.nan, 1, 1]], np.float32)
            return g, g  # type: ignore[return-value]

    agent = make_algorithm("fedsvrpg-m", ("rate=0.1", "steps=2", "longest=0.5")).agent
    message = make_broadcast(jax.random.key(0), 1, 3, theta=START, old=START, u=np.zeros(4, np.float32))
    sent, _ = agent.answer(Astray(), message, ())  # type: ignore[arg-type]
    np.testing.assert_allclose(went[1], [START + np.array([0.3, 0, -0.4, 0]), START], rtol=1e-6)
    gradients = np.asarray(sent["gradient"])
    np.testing.assert_allclose(gradients[0], [3, 0, -4, 0], rtol=1e-6)
    assert not np.isfinite(gradients[1]).all()  # which the border check turns away


@pytest.mark.slow
def test_fedsvrpg_m_steps_by_the_moves_and_its_agents_sample_as_they_go():
    problem = small("fedsvrpg-m", "rate=0.5", "steps=2", "beta=0.5", "longest=9")
    states, seen, logs = rounds(problem, 3)
    for t, said in enumerate(seen.broadcasts):
        theta, u, old = (np.asarray(x) for x in (states[t].theta, *states[t].algorithm))
        cohort = LocalCohort(problem, said, np.arange(3), np.zeros(3, bool))
        g, g_old = map(np.asarray, cohort.sampled_correction(theta, old))
        first = g + (0.5 * (u - g_old) if t else 0.0)
        again = cohort.sampled_correction(theta + np.float32(0.5) * first, old, use=1)  # a policy for each agent
        g, g_old = map(np.asarray, again)
        mean = (first + g + (0.5 * (u - g_old) if t else 0.0)) / 2
        np.testing.assert_allclose(seen.replies[t].vectors["gradient"], mean, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(states[t + 1].theta, theta + np.mean(mean, axis=0), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(states[t + 1].algorithm.u, np.mean(mean, axis=0), rtol=1e-3, atol=1e-4)
        assert logs[t]["batch"] == 2 * said.batch
