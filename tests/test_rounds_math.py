"""Rounds: their random numbers, the cohort's answer, the inner loop, and what comes out."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import probes
from fedpg.agents import agent_lanes, answer, lane_widths, make_problem
from fedpg.aggregators import RULES, Verdict, concentration
from fedpg.algorithms import ALGORITHMS, first_state
from fedpg.algorithms.server import draw_batch, draw_inner_steps, inner_loop, paper_count, server_lanes
from fedpg.attacks import make_attack
from fedpg.config import make_config
from fedpg.environments import rollout
from fedpg.estimators import correction, gradient
from fedpg.federation import local_federation
from fedpg.sigma import CONFIDENCE_Z, SPREAD_0, Spread, auto_sigma, observe_spread
from same import bits

# What a round draws

DRAWS = 20_000
KEYS = jax.random.split(jax.random.key(7), DRAWS)


@pytest.mark.parametrize("batch", [8, 48])
@pytest.mark.parametrize(("law", "first"), [("geometric-from-0", 0), ("geometric-from-1", 1)])
def test_inner_steps_follow_their_geometric_law(law, first, batch):
    problem = probes.tiny_problem(inner_law=law, minibatch=4, batch=(4, 50))
    draws = np.asarray(jax.jit(jax.vmap(lambda k: draw_inner_steps(problem, k, jnp.int32(batch))))(KEYS)) - first
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
    assert draw_inner_steps(problem, KEYS[0], jnp.int32(8)) == 5


def test_the_batch_is_uniform_over_its_range_ends_included():
    problem = probes.tiny_problem(batch=(12, 20))
    draws = np.asarray(jax.jit(jax.vmap(lambda k: draw_batch(problem, k)))(KEYS))
    assert set(draws) == set(range(12, 21))
    assert scipy.stats.chisquare(np.bincount(draws - 12)).pvalue > 1e-3


@pytest.mark.parametrize(
    ("settings", "batch", "inner", "count"),
    [
        ({"agents": 1}, 16, 5, 16 + 4 * 5),
        ({"agents": 10}, 16, 5, 16),  # (160 + 20) / 11 = 16.4
        ({"agents": 3}, 17, 2, 15),  # (51 + 8) / 4 = 14.75
        ({"agents": 10}, 12, 0, 11),  # 120 / 11 = 10.9
        ({"agents": 1, "algorithm": "gpomdp"}, 16, 1, 16),  # one step on the agents' trajectories alone
        ({"agents": 1, "algorithm": "svrpg"}, 16, 3, 16 + 4 * 3),
    ],
)
def test_trajectories_are_counted_as_in_the_paper(settings, batch, inner, count):
    assert paper_count(make_config(minibatch=4, **settings), jnp.int32(batch), jnp.int32(inner)) == count


# What the agents answer


def small_cartpole(**settings):
    return make_problem(make_config(**{"agents": 10, "batch": (3, 3), "minibatch": 2, "horizon": 60} | settings))


def cohort(problem):
    return jax.jit(lambda message, agents, byzantine: answer(problem, message, agents, byzantine)[0])


def assert_close(a, b):
    """To rounding: XLA may sum in another order for another number of agents."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


NUMBERS = jnp.arange(10)
NOBODY = jnp.zeros(10, bool)


@pytest.fixture(scope="module")
def ten_at_once():
    problem = small_cartpole()
    return cohort(problem)(probes.broadcast(problem), NUMBERS, NOBODY)


def test_agents_differ_from_each_other(ten_at_once):
    gradients = np.asarray(ten_at_once.replies.gradients)
    assert len(np.unique(gradients.round(4), axis=0)) == 10
    assert np.all(np.linalg.norm(gradients, axis=1) > 0.1)


def test_an_agent_alone_answers_as_it_does_among_ten(ten_at_once):
    problem = small_cartpole()
    alone, message = cohort(problem), probes.broadcast(problem)
    each = [alone(message, NUMBERS[k : k + 1], NOBODY[:1]) for k in range(10)]
    assert_close(jax.tree.map(lambda *x: jnp.concatenate(x), *each), ten_at_once)


def test_agents_in_chunks_answer_as_they_do_all_at_once(ten_at_once, monkeypatch):
    monkeypatch.setattr("fedpg.agents.MAX_LANES", 9)  # 3 agents at a time, so that the last chunk is not full
    problem = small_cartpole()
    mine = cohort(problem)(probes.broadcast(problem), NUMBERS, NOBODY)
    assert_close(mine, ten_at_once)


@pytest.fixture(scope="module")
def ranged():
    """Two agents that answer to any batch from 2 to 6."""
    problem = probes.tiny_problem(agents=2, batch=(2, 6))
    return problem, probes.answers(problem)


def test_lanes_compiled_for_more_episodes_change_no_answer(ranged):
    problem, run = ranged
    exact = probes.tiny_problem(agents=2, batch=(5, 5))
    mine, theirs = run(probes.broadcast(problem, batch=5)), probes.answers(exact)(probes.broadcast(exact))
    assert_close(mine, theirs)


def test_every_batch_of_the_range_is_sampled_whole(ranged):
    problem, run = ranged
    roll = jax.jit(lambda p, n: rollout(problem.environment, problem.policy, p, n, 3))
    for batch in range(2, 7):
        message = probes.broadcast(problem, batch=batch)
        lanes = agent_lanes(problem, message, NUMBERS[:2], NOBODY[:2], 6)
        lengths = roll(problem.policy.unravel(message.theta), lanes).lengths.reshape(2, 6)
        assert (np.asarray(lengths) > 0).sum(axis=1).tolist() == [batch, batch]
        assert run(message).steps.tolist() == lengths.sum(axis=1).tolist()


@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 3), (12, 20), (5, 48)])
def test_the_largest_batch_has_lanes(low, high):
    widths = lane_widths(low, high)
    assert max(widths) == high
    assert list(widths) == sorted(set(widths))


@pytest.mark.parametrize("attack", ["random-noise", "shuffled-rewards"])
def test_a_byzantine_agent_that_does_not_collude_lies_alone_as_it_does_among_others(attack):
    problem = probes.tiny_problem(attack=make_attack(make_config(attack=attack)))
    run = jax.jit(lambda message, agents, byzantine: answer(problem, message, agents, byzantine)[0])
    message, flags = probes.broadcast(problem), NUMBERS[:4] >= 2
    together = run(message, NUMBERS[:4], flags).replies.gradients
    each = [run(message, NUMBERS[k : k + 1], flags[k : k + 1]).replies.gradients[0] for k in (2, 3)]
    np.testing.assert_allclose(np.stack(each), together[2:], rtol=1e-4, atol=1e-5)


def played(form):
    """The actions of an honest and of a Byzantine agent whose policy much prefers action 1."""
    problem = small_cartpole(attack="random-action", attack_form=form, byzantine=1, batch=(40, 40), horizon=20)
    params = {name: jnp.zeros(shape) for name, shape in problem.policy.shapes.items()}
    message = probes.broadcast(problem)._replace(theta=problem.policy.ravel(params | {"b2": jnp.array([-9.0, 9.0])}))
    lanes = agent_lanes(problem, message, NUMBERS[:2], jnp.array([False, True]), 40)
    roll = jax.jit(lambda p, n: rollout(problem.environment, problem.policy, p, n, 20, problem.attack.act))
    mine = roll(problem.policy.unravel(message.theta), lanes)
    return [np.asarray(mine.actions[:, part])[np.asarray(mine.mask[:, part])] for part in (slice(40), slice(40, 80))]


def test_a_random_action_agent_of_the_figures_plays_action_0():
    honest, byzantine = played("figures")
    assert not byzantine.any()
    assert honest.mean() == pytest.approx(1 / (1 + math.exp(-2)), abs=0.05)  # logits tanh(-9), tanh(9)


def test_a_random_action_agent_of_the_text_plays_uniformly():
    honest, byzantine = played("text")
    assert abs(byzantine.mean() - 0.5) < 4 * 0.5 / math.sqrt(byzantine.size)
    assert honest.mean() == pytest.approx(1 / (1 + math.exp(-2)), abs=0.05)


def test_a_random_action_agent_sends_the_gradient_of_what_it_played():
    problem = probes.tiny_problem(agents=2, attack=make_attack(make_config(attack="random-action")))
    flags = jnp.array([False, True])

    @jax.jit
    def both(message):
        sent = answer(problem, message, NUMBERS[:2], flags)[0].replies.gradients
        params = problem.policy.unravel(message.theta)
        lanes = agent_lanes(problem, message, NUMBERS[1:2], flags[1:], 3)
        mine = rollout(problem.environment, problem.policy, params, lanes, 3, problem.attack.act)
        return sent, gradient(problem.estimator, problem.policy, params, mine)

    sent, expected = both(probes.broadcast(problem))
    np.testing.assert_allclose(sent[1], expected, rtol=1e-5, atol=1e-6)


# What the server does with it

RATE = 0.01


def adam(theta, steps, m=0.0, v=0.0, t=0):
    """Adam by hand: theta after ascending along each of the given directions."""
    for g in steps:
        g = np.asarray(g, np.float64)
        t += 1
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        theta = theta + RATE * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return theta


def verdict_of(mu, rule="R1"):
    accepted = jnp.full(10, rule != "nobody")
    return Verdict(mu, accepted, jnp.int32(RULES.index(rule)), jnp.float32(1), jnp.zeros(10), jnp.int32(0))


def mu_of(problem, seed=5):
    return jax.random.normal(jax.random.key(seed), (problem.policy.size,))


@functools.cache
def loop(optimizer="adam", ratio_bound=math.inf):
    """The problem and its compiled inner loop of N steps, N an argument."""
    problem = probes.tiny_problem(optimizer=optimizer, ratio_bound=ratio_bound, minibatch=3, learning_rate=RATE)
    message = probes.broadcast(problem, seed=11)
    return problem, message, jax.jit(lambda state, verdict, n: inner_loop(problem, state, message, verdict, n))


def test_no_inner_step_changes_nothing():
    problem, _, run = loop()
    state = first_state(problem, 0)
    inner = run(state, verdict_of(mu_of(problem)), jnp.int32(0))
    assert bits((inner.theta, inner.optimizer)) == bits((state.theta, state.optimizer))
    assert (inner.done, inner.sampled, inner.steps) == (0, 0, 0)


def test_one_inner_step_is_one_step_of_adam_on_mu():
    problem, _, run = loop()
    state = first_state(problem, 0)
    mu = mu_of(problem)
    inner = run(state, verdict_of(mu), jnp.int32(1))
    np.testing.assert_allclose(inner.theta, adam(state.theta, [mu]), rtol=1e-5, atol=1e-6)
    assert (inner.done, inner.sampled, inner.steps) == (1, 3, 0)  # counted, but not simulated
    assert inner.ratio == 1.0


def test_the_state_of_adam_goes_on_through_the_rounds():
    problem, _, run = loop()
    state, mus = first_state(problem, 0), [mu_of(problem, seed) for seed in (5, 6, 7)]
    theta = np.asarray(state.theta)
    for mu in mus:
        inner = run(state, verdict_of(mu), jnp.int32(1))
        state = state._replace(theta=inner.theta, optimizer=inner.optimizer)
    np.testing.assert_allclose(state.theta, adam(theta, mus), rtol=1e-5, atol=1e-6)


def by_hand(problem, message, theta_0, mu, ascend):
    """theta, v and the mean ratio of 4 steps of Algorithm 1, lines 9 to 12, one line at a time."""
    policy = problem.policy

    @jax.jit
    def change(theta, n):
        lanes = server_lanes(problem, message, n, problem.config.minibatch)
        mine = rollout(problem.environment, policy, policy.unravel(theta), lanes, problem.steps)
        parts = correction(problem.estimator, policy, policy.unravel(theta), policy.unravel(theta_0), mine)
        return parts.plain - parts.corrected, parts.ratio

    thetas, v, ratios = [theta_0], [], []
    for n in range(4):
        difference, ratio = change(thetas[-1], n)
        v.append(np.asarray(difference + mu))
        ratios.append(float(ratio))
        thetas.append(jnp.asarray(ascend(theta_0, v), jnp.float32))
    return thetas, v, ratios


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_several_inner_steps_are_those_of_the_pseudocode(optimizer):
    problem, message, run = loop(optimizer)
    state = first_state(problem, 0)
    mu = mu_of(problem)
    ascend = adam if optimizer == "adam" else lambda theta, steps: theta + RATE * np.sum(steps, axis=0)
    thetas, v, ratios = by_hand(problem, message, state.theta, mu, ascend)
    for n in (2, 4):
        inner = run(state, verdict_of(mu), jnp.int32(n))
        np.testing.assert_allclose(inner.theta, thetas[n], rtol=1e-4, atol=1e-5)
        assert (inner.done, inner.sampled) == (n, 3 * n)
        assert float(inner.ratio) == pytest.approx(ratios[n - 1], rel=1e-5)
    np.testing.assert_array_equal(v[0], mu)
    assert np.abs(v[3] - mu).max() > 1e-4


def test_the_inner_loop_stops_before_a_step_whose_ratio_leaves_the_bound():
    problem, message, _ = loop()
    state = first_state(problem, 0)
    mu = mu_of(problem)
    thetas, _, ratios = by_hand(problem, message, state.theta, mu, adam)
    away = [abs(ratio - 1) for ratio in ratios]
    stop = next(n for n in (1, 2, 3) if away[n] > 1.2 * max(away[:n]))
    _, _, bounded = loop(ratio_bound=away[stop] / 1.1)
    inner = bounded(state, verdict_of(mu), jnp.int32(4))
    assert inner.done == stop
    assert inner.sampled == 3 * (stop + 1)  # with those of the step that was not taken
    np.testing.assert_allclose(inner.theta, thetas[stop], rtol=1e-4, atol=1e-5)


@functools.cache
def one_round(**settings):
    problem = probes.tiny_problem(**settings, learning_rate=RATE)
    step = jax.jit(functools.partial(ALGORITHMS[problem.config.algorithm], problem, local_federation(problem)))
    return problem, step


NONE_CLOSE = {"agents": 3, "sigma": 1e-9, "inner_law": "fixed", "inner_steps": 1, "optimizer": "sgd"}


def test_a_round_in_which_nobody_is_accepted_can_be_skipped():
    problem, step = one_round(nobody="skip", **NONE_CLOSE)
    state = first_state(problem, 0)
    after, log = step(state)
    assert RULES[int(log.rule)] == "nobody"
    assert not log.accepted.any()
    assert (log.inner_done, log.server_trajectories) == (0, 0)
    assert log.inner_drawn >= 1  # what was drawn is on record all the same
    assert bits((after.theta, after.optimizer)) == bits((state.theta, state.optimizer))
    assert after.round == log.round == 1
    assert log.counted == after.counted == 2  # the agents' trajectories were sampled: 9 / 4


def test_a_round_in_which_nobody_is_accepted_can_be_the_servers_alone():
    problem, step = one_round(nobody="server", **NONE_CLOSE)
    state = first_state(problem, 0)
    after, log = step(state)
    assert RULES[int(log.rule)] == "nobody"
    assert (log.inner_done, log.server_trajectories) == (1, 2)

    @jax.jit
    def plain(theta):
        params = problem.policy.unravel(theta)
        lanes = server_lanes(problem, probes.broadcast(problem), 0, 2)
        mine = rollout(problem.environment, problem.policy, params, lanes, 3)
        return gradient(problem.estimator, problem.policy, params, mine)

    mu = plain(state.theta)
    assert np.abs(mu).max() > 1e-3
    np.testing.assert_allclose(after.theta, state.theta + RATE * mu, rtol=1e-5, atol=1e-6)


@functools.cache
def four_agents():
    return probes.answers(probes.tiny_problem(algorithm="gpomdp", agents=4))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_gpomdp_is_a_step_on_the_mean_of_the_agents_gradients(optimizer):
    problem, step = one_round(algorithm="gpomdp", agents=4, optimizer=optimizer)
    state, everyone = first_state(problem, 0), four_agents()
    theta, mus = np.asarray(state.theta), []
    for t in (1, 2):
        message = probes.broadcast(problem, t)._replace(theta=state.theta)
        mus.append(np.asarray(everyone(message).replies.gradients).mean(axis=0))
        state, log = step(state)
        assert log.accepted.all()
        assert RULES[int(log.rule)] == "mean"
    expected = adam(theta, mus) if optimizer == "adam" else theta + RATE * np.sum(mus, axis=0)
    np.testing.assert_allclose(state.theta, expected, rtol=1e-4, atol=1e-5)


def test_the_output_is_the_policy_after_a_round_drawn_uniformly():
    seeds, rounds = 1500, 4
    problem = probes.tiny_problem(algorithm="gpomdp", agents=1, optimizer="sgd")
    step = functools.partial(ALGORITHMS["gpomdp"], problem, local_federation(problem))
    every_seed = jax.jit(jax.vmap(lambda state: step(state)[0]))
    state = jax.jit(jax.vmap(functools.partial(first_state, problem)))(jnp.arange(seeds))
    thetas = []
    for _ in range(rounds):
        state = every_seed(state)
        thetas.append(np.asarray(state.theta))
    same = np.stack([(theta == np.asarray(state.output)).all(axis=1) for theta in thetas])  # [rounds, seeds]
    # A gradient can be exactly zero here, and then two rounds have the same policy.
    clear = same.sum(axis=0) == 1
    assert same.any(axis=0).all()
    assert clear.sum() > 0.9 * seeds
    assert scipy.stats.chisquare(same[:, clear].sum(axis=1)).pvalue > 1e-3


# sigma = auto


def test_the_spread_is_estimated_without_bias():
    rng = np.random.default_rng(0)
    scales = np.array([3.0, 2.0, 1.0, 0.5, 0.1])
    rows = jnp.asarray(rng.normal(size=(4000, 8, 5)) * scales + 7.0, jnp.float32)  # a mean, which must not matter
    one = jax.jit(jax.vmap(lambda r: observe_spread(SPREAD_0, r)))(rows)
    trace, square = (np.mean(np.asarray(x) / np.asarray(one.weight)) for x in (one.trace, one.square))
    assert trace == pytest.approx((scales**2).sum(), rel=0.03)
    assert square == pytest.approx((scales**4).sum(), rel=0.08)


def test_r1_with_the_estimated_sigma_covers_two_honest_replies_as_often_as_it_says():
    rng = np.random.default_rng(1)
    scales, agents, delta, batch = np.linspace(0.2, 2.0, 30), 10, 0.6, 16
    spread = observe_spread(SPREAD_0, jnp.asarray(rng.normal(size=(4000, 30)) * scales, jnp.float32))
    spread = Spread(*(x / spread.weight for x in spread))  # as after many rounds, when the weight is 1
    radius = 2 * float(auto_sigma(spread, agents, delta)) * math.sqrt(concentration(agents, delta) / batch)
    apart = np.linalg.norm(rng.normal(size=(20_000, 30)) * scales * math.sqrt(2 / batch), axis=1)
    assert np.mean(apart <= radius) == pytest.approx(scipy.stats.norm.cdf(CONFIDENCE_Z), abs=0.02)
