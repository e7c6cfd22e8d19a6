"""Rounds: their random numbers, the inner loop, and what comes out."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import probes
from fedpg import server
from fedpg.aggregators import RULES
from fedpg.estimators import correction, gradient
from fedpg.federation import Local
from fedpg.problem import Replies, make_broadcast
from fedpg.server import Server
from fedpg.tasks import ServerEpisodes
from fedpg.training.rounds import advance, first_state, paper_count
from same import bits

# What a round draws

DRAWS = 20_000
KEYS = jax.random.split(jax.random.key(7), DRAWS)


@pytest.mark.parametrize("batch", [8, 48])
@pytest.mark.parametrize(("law", "first"), [("geometric-from-0", 0), ("geometric-from-1", 1)])
def test_inner_steps_follow_their_geometric_law(law, first, batch):
    problem = probes.tiny_problem(inner_law=law, minibatch=4, batch=(4, 50))
    draws = np.asarray(jax.vmap(lambda key: server._draw_geometric(key, batch, 4))(KEYS))
    message = probes.broadcast(problem, batch=batch)
    asked = [Server(problem).draw_inner_steps(message._replace(key=key)) for key in KEYS[:20]]
    assert asked == (draws[:20] + first).tolist()
    g = batch / (batch + 4)
    mean, variance = g / (1 - g), g / (1 - g) ** 2
    assert mean == pytest.approx(batch / 4)
    assert abs(draws.mean() - mean) < 4 * math.sqrt(variance / DRAWS)
    last = int(math.log(50 / DRAWS) / math.log(g))  # every class is expected 50 / (1 + b/B) times at the least
    expected = np.array([*(g**n * (1 - g) for n in range(last)), g**last]) * DRAWS
    assert scipy.stats.chisquare(np.bincount(np.minimum(draws, last), minlength=last + 1), expected).pvalue > 1e-3
    assert draws.min() == 0


def test_inner_steps_are_fixed_where_they_are():
    problem = probes.tiny_problem(algorithm="svrpg", inner_steps=5)
    assert Server(problem).draw_inner_steps(probes.broadcast(problem)) == 5


def test_the_batch_is_uniform_over_its_range_ends_included():
    draws = np.asarray(jax.vmap(lambda key: server._draw_batch(12, 20, key, 3))(KEYS))
    mine = Server(probes.tiny_problem(batch=(12, 20)))
    asked = [mine.draw_batch(key, 3) for key in KEYS[:20]]
    assert asked == draws[:20].tolist()
    assert set(draws) == set(range(12, 21))
    assert scipy.stats.chisquare(np.bincount(draws - 12)).pvalue > 1e-3


@pytest.mark.parametrize(
    ("agents", "batch", "own", "count"),
    [
        (1, 16, 20, 36),
        (10, 16, 20, 16),  # (160 + 20) / 11 = 16.4
        (3, 17, 8, 15),  # (51 + 8) / 4 = 14.75
        (10, 12, 0, 11),  # 120 / 11 = 10.9
        (1, 16, 0, 16),  # of GPOMDP: one step on the agents' trajectories alone
    ],
)
def test_trajectories_are_counted_as_in_the_paper(agents, batch, own, count):
    assert paper_count(agents, batch, own) == count


# What the server does with the answers

RATE = 0.01


def adam(theta, steps, m=0.0, v=0.0, t=0):
    """Adam by hand: theta after ascending along each of the given directions."""
    for g in steps:
        g = np.asarray(g, np.float64)
        t += 1
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        theta = theta + RATE * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return theta


def mu_of(problem, seed=5):
    return np.random.default_rng(seed).normal(size=problem.policy.size).astype(np.float32)


class Says(NamedTuple):
    """A federation of one agent, whose reply is known."""

    mu: np.ndarray

    def ask(self, broadcast, memory):
        zero = np.zeros(1, int)
        return Replies({"gradient": self.mu[None]}, {}, zero, np.zeros(1), zero, broadcast.batch), memory

    def tell(self, round_, outcome):
        pass


class Steps(Server):
    """A server that always draws N = `steps`."""

    steps = 0

    def draw_inner_steps(self, broadcast):
        return self.steps


def loop(optimizer="adam", ratio_bound=math.inf):
    """The problem, its first state, and its round of N steps on a given mu."""
    settings = {"agents": 1, "aggregator": "mean", "minibatch": 3, "learning_rate": RATE}
    problem = probes.tiny_problem(optimizer=optimizer, ratio_bound=ratio_bound, **settings)
    mine = Steps(problem)

    def run(state, mu, steps):
        mine.steps = steps
        return advance(problem, state, Says(mu), mine)

    return problem, first_state(problem, 0), run


def seen(log):
    """Steps taken, trajectories of the server, and environment steps of those that were simulated."""
    return log["inner_done"], log["server_trajectories"], log["server_steps"]


def test_no_inner_step_changes_nothing():
    problem, state, run = loop()
    after, log = run(state, mu_of(problem), 0)
    assert bits((after.theta, after.optimizer)) == bits((state.theta, state.optimizer))
    assert seen(log) == (0, 0, 0)


def test_one_inner_step_is_one_step_of_adam_on_mu():
    problem, state, run = loop()
    mu = mu_of(problem)
    after, log = run(state, mu, 1)
    np.testing.assert_allclose(after.theta, adam(state.theta, [mu]), rtol=1e-5, atol=1e-6)
    assert seen(log) == (1, 3, 0)  # counted, but not simulated
    assert log["ratio"] == 1.0


def test_the_state_of_adam_goes_on_through_the_rounds():
    problem, state, run = loop()
    mus, theta = [mu_of(problem, seed) for seed in (5, 6, 7)], np.asarray(state.theta)
    for mu in mus:
        state, _ = run(state, mu, 1)
    np.testing.assert_allclose(state.theta, adam(theta, mus), rtol=1e-5, atol=1e-6)


def sampled(problem, state, theta, n, count):
    """Trajectories of the server for inner step n of the next round."""
    message = make_broadcast(state.key, state.round + 1, 3, theta=state.theta)
    plan = ServerEpisodes(count, problem.steps)
    return problem.task.rollout(problem.policy, plan, theta, (message.keys, n, True))


def by_hand(problem, state, mu, ascend):
    """theta, v and the mean ratio of 4 steps of Algorithm 1, lines 9 to 12, one line at a time."""
    policy, theta_0 = problem.policy, state.theta

    @jax.jit
    def change(theta, mine):
        parts = correction(problem.estimator, policy, policy.unravel(theta), policy.unravel(theta_0), mine)
        return parts.plain - parts.corrected, parts.ratio

    thetas, v, ratios = [theta_0], [], []
    for n in range(4):
        mine = sampled(problem, state, thetas[-1], n, problem.config.minibatch)
        difference, ratio = change(thetas[-1], mine)
        v.append(np.asarray(difference + mu))
        ratios.append(float(ratio))
        thetas.append(jnp.asarray(ascend(theta_0, v), jnp.float32))
    return thetas, v, ratios


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_several_inner_steps_are_those_of_the_pseudocode(optimizer):
    problem, state, run = loop(optimizer)
    mu = mu_of(problem)
    ascend = adam if optimizer == "adam" else lambda theta, steps: theta + RATE * np.sum(steps, axis=0)
    thetas, v, ratios = by_hand(problem, state, mu, ascend)
    for n in (2, 4):
        after, log = run(state, mu, n)
        np.testing.assert_allclose(after.theta, thetas[n], rtol=1e-4, atol=1e-5)
        assert seen(log)[:2] == (n, 3 * n)
        assert log["ratio"] == pytest.approx(ratios[n - 1], rel=1e-5)
    np.testing.assert_array_equal(v[0], mu)
    assert np.abs(v[3] - np.asarray(mu)).max() > 1e-4


@pytest.mark.slow
def test_the_inner_loop_stops_before_a_step_whose_ratio_leaves_the_bound():
    problem, state, _ = loop()
    mu = mu_of(problem)
    thetas, _, ratios = by_hand(problem, state, mu, adam)
    away = [abs(ratio - 1) for ratio in ratios]
    stop = next(n for n in (1, 2, 3) if away[n] > 1.2 * max(away[:n]))
    _, _, bounded = loop(ratio_bound=away[stop] / 1.1)
    after, log = bounded(state, mu, 4)
    assert seen(log)[:2] == (stop, 3 * (stop + 1))  # with those of the step that was not taken
    assert (log["inner_drawn"], log["counted"]) == (4, 3 + 3 * stop)
    np.testing.assert_allclose(after.theta, thetas[stop], rtol=1e-4, atol=1e-5)


def one_round(**settings):
    """The problem, its first state, and the round of its own agents."""
    problem = probes.tiny_problem(**settings, learning_rate=RATE)
    return problem, first_state(problem, 0), lambda state: advance(problem, state, Local(problem), Server(problem))


NONE_CLOSE = {
    "agents": 3,
    "aggregator": "fedpg",
    "sigma": 1e-9,
    "inner_law": "fixed",
    "inner_steps": 1,
    "optimizer": "sgd",
}


def test_a_round_in_which_nobody_is_accepted_can_be_skipped():
    _, state, step = one_round(none_accepted="skip", **NONE_CLOSE)
    after, log = step(state)
    assert RULES[log["rule"]] == "nobody"
    assert not log["accepted"].any()
    assert seen(log) == (0, 0, 0)
    assert log["inner_drawn"] >= 1  # what was drawn is on record all the same
    assert bits((after.theta, after.optimizer)) == bits((state.theta, state.optimizer))
    assert after.round == log["round"] == 1
    assert log["counted"] == after.counted == 2  # the agents' trajectories were sampled: 9 / 4


@pytest.mark.slow
def test_a_round_in_which_nobody_is_accepted_can_be_the_servers_alone():
    problem, state, step = one_round(none_accepted="server", **NONE_CLOSE)
    after, log = step(state)
    assert RULES[log["rule"]] == "nobody"
    assert seen(log)[:2] == (1, 2)
    params = problem.policy.unravel(state.theta)
    mine = sampled(problem, state, state.theta, 0, 2)
    mu = jax.jit(lambda t: gradient(problem.estimator, problem.policy, params, t))(mine)
    theta, mu = np.asarray(state.theta), np.asarray(mu)
    assert np.abs(mu).max() > 1e-3
    np.testing.assert_allclose(after.theta, theta + RATE * mu, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_gpomdp_is_a_step_on_the_mean_of_the_agents_gradients(optimizer):
    problem, state, step = one_round(algorithm="gpomdp", agents=3, optimizer=optimizer)
    everyone = probes.answers(problem)
    theta, mus = np.asarray(state.theta), []
    for t in (1, 2):
        message = probes.broadcast(problem, t)._replace(vectors={"theta": state.theta})
        mus.append(np.asarray(everyone(message).sent["gradient"]).mean(axis=0))
        state, log = step(state)
        assert log["accepted"].all()
        assert RULES[log["rule"]] == "mean"
        assert seen(log) == (1, 0, 0)
        assert log["counted"] == 2  # 9 / 4
    expected = adam(theta, mus) if optimizer == "adam" else theta + RATE * np.sum(mus, axis=0)
    np.testing.assert_allclose(state.theta, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_output_is_the_policy_after_a_round_drawn_uniformly():
    seeds, rounds = 1000, 4
    problem = probes.tiny_problem(algorithm="gpomdp", agents=1, optimizer="sgd")
    federation, mine = Says(mu_of(problem)), Server(problem)
    drawn = np.zeros(rounds, int)
    for seed in range(seeds):
        state, thetas = first_state(problem, seed), []
        for _ in range(rounds):
            state, _ = advance(problem, state, federation, mine)
            thetas.append(np.asarray(state.theta))
        same = [np.array_equal(theta, state.output) for theta in thetas]
        assert sum(same) == 1
        drawn += same
    assert scipy.stats.chisquare(drawn).pvalue > 1e-3
