"""Estimators against exact gradients, by enumerating every trajectory of a tiny task."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probes
from fedpg import make_task
from fedpg.estimators import (
    correction,
    gradient,
    influences,
    log_probs,
    make_estimator,
    standardised_weights,
    weighted_score,
)
from fedpg.policies import make_mlp
from fedpg.trajectories import Trajectories

POLICY = probes.tiny_policy()
PATHS = probes.all_paths()
EVERY = probes.as_trajectories(PATHS)
UNBIASED = [
    ("reinforce", "none"),
    ("gpomdp", "none"),
    ("reinforce", "leave-one-out"),
    ("gpomdp", "leave-one-out"),
]
WEIGHTED = [(e, b, i) for e, b in UNBIASED for i in ("trajectory", "decision") if (e, i) != ("reinforce", "decision")]
COMBINATIONS = [
    (e, b, i)
    for e, b, i in itertools.product(
        ("standardised", "gpomdp", "reinforce"), ("none", "leave-one-out"), ("step", "decision", "trajectory")
    )
    if (i != "decision" or e == "gpomdp") and (b == "none" or e != "standardised")
]


def estimator_of(name: str, baseline: str = "none", importance: str = "trajectory", discount: float = probes.GAMMA):
    return make_estimator(name, discount, baseline, importance)


@functools.cache
def exact():
    """theta_0, theta_n and, for each, the probability of every path and the gradient of J."""
    found = []
    for theta in map(np.asarray, probes.two_parameters(POLICY)):
        params = jax.device_put(POLICY.unravel(theta))
        chances = np.asarray(probes.probabilities(POLICY, params, PATHS), np.float64)
        found.append((params, chances, np.asarray(probes.exact_gradient(POLICY, theta, PATHS))))
    return found


def expectation(function, probability: np.ndarray, size: int) -> np.ndarray:
    """E[function(batch)] over all batches of `size` independent trajectories."""
    several, members = probes.batches(EVERY, size)
    values = jax.jit(jax.vmap(function))(several)
    weight = probability[members].prod(axis=1)
    assert weight.sum() == pytest.approx(1.0, abs=1e-5)
    return jax.tree.map(lambda x: np.tensordot(weight, np.asarray(x, np.float64), axes=1), values)


def batch_for(baseline: str) -> int:
    return 2 if baseline == "leave-one-out" else 1  # one trajectory has no others to compare with


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, atol=2e-5)


def test_the_tiny_task_has_trajectories_of_every_length_and_gradients_to_find():
    assert set(EVERY.lengths.tolist()) == {1, 2, 3}
    (_, p_0, grad_0), (_, p_n, grad_n) = exact()
    assert p_0.sum() == pytest.approx(1.0, abs=1e-5)
    assert min(np.linalg.norm(grad_0), np.linalg.norm(grad_n), np.linalg.norm(grad_0 - grad_n)) > 0.3
    assert np.max(p_0 / p_n) > 3
    assert np.min(p_0 / p_n) < 0.3


def test_rollouts_of_the_tiny_task_follow_the_enumerated_probabilities():
    count = 20_000
    params, probability, _ = exact()[0]
    several = probes.episodes(probes.keys_of(0, count), 10)
    mine = probes.play(make_task(probes.tiny_environment()), POLICY, params, several, probes.HORIZON)
    returns = EVERY.rewards.sum(axis=0, dtype=np.float64)
    mean = probability @ returns
    assert abs(mine.rewards.sum(axis=0).mean() - mean) < 4 * np.sqrt(probability @ (returns - mean) ** 2 / count)
    by_length = np.bincount(mine.lengths, minlength=4) / count
    expected = np.bincount(EVERY.lengths, weights=probability, minlength=4)
    np.testing.assert_allclose(by_length, expected, atol=4 / np.sqrt(count))


@pytest.mark.parametrize(("name", "baseline"), UNBIASED)
def test_the_expected_estimate_is_the_gradient(name, baseline):
    estimator = estimator_of(name, baseline)
    params, probability, grad_j = exact()[0]
    close(expectation(lambda t: gradient(estimator, POLICY, params, t), probability, batch_for(baseline)), grad_j)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "baseline", "importance"), WEIGHTED)
def test_the_semi_stochastic_gradient_is_unbiased(name, baseline, importance):
    estimator = estimator_of(name, baseline, importance)
    (params_0, _, grad_0), (params_n, p_n, grad_n) = exact()
    parts = expectation(lambda t: correction(estimator, POLICY, params_n, params_0, t), p_n, batch_for(baseline))
    close(parts.plain, grad_n)
    close(parts.corrected, grad_0)  # from trajectories of theta_n
    close(parts.plain - parts.corrected + grad_0, grad_n)  # E[v], with mu = grad J(theta_0)
    assert parts.ratio == pytest.approx(1.0, abs=1e-5)


def test_without_importance_weights_the_estimate_would_be_biased():
    # The tests above could not fail if theta_0 and theta_n were too close.
    estimator = estimator_of("gpomdp", importance="step")
    (params_0, _, grad_0), (params_n, p_n, _) = exact()
    parts = expectation(lambda t: correction(estimator, POLICY, params_n, params_0, t), p_n, 1)
    assert np.abs(parts.corrected - grad_0).max() > 0.01


@pytest.mark.slow
def test_leave_one_out_reduces_the_variance():
    params, probability, _ = exact()[0]
    rng = np.random.default_rng(0)
    several = probes.chosen(EVERY, rng.choice(len(PATHS), (500, 16), p=probability / probability.sum()))
    spread = []
    for estimator in (estimator_of("gpomdp", "leave-one-out"), estimator_of("gpomdp", "none")):
        each = jax.jit(jax.vmap(lambda t, e=estimator: gradient(e, POLICY, params, t)))(several)
        spread.append(np.asarray(each).var(axis=0).sum())
    assert spread[0] < 0.9 * spread[1]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "baseline", "importance"), COMBINATIONS)
def test_at_theta_0_the_correction_is_exactly_zero(name, baseline, importance):
    estimator = estimator_of(name, baseline, importance)
    params = exact()[0][0]
    parts = jax.jit(lambda t: correction(estimator, POLICY, params, params, t))(EVERY)
    assert np.array_equal(parts.plain, parts.corrected)
    assert parts.ratio == 1.0
    assert np.abs(parts.plain).max() > 1e-3


def long_episode(steps: int) -> Trajectories:
    ones = np.ones((steps, 1))
    return probes.trajectories(np.zeros((2, steps, 1)), ones.astype(np.int32), ones, np.array([steps]))


@functools.cache
def weigh(name: str, importance: str = "trajectory"):
    """(trajectories, log ratio) -> the weights, and those that an undiscounted estimator corrects."""
    estimator = estimator_of(name, importance=importance, discount=1.0)
    return jax.jit(lambda t, log_ratio: (estimator.weights(t), estimator.corrected(t, log_ratio)))


@pytest.mark.parametrize("first", [-5.0, 5.0])
@pytest.mark.parametrize("name", ["reinforce", "gpomdp"])
def test_a_trajectory_weight_survives_intermediate_overflow_and_underflow(name, first):
    log_ratio = np.repeat(np.array([[first], [-first]], np.float32), 250, axis=0)
    with np.errstate(over="ignore"):
        intermediate = np.cumprod(np.exp(log_ratio), dtype=np.float32)
    assert not np.isfinite(intermediate[-1]) or intermediate[-1] == 0.0
    weights, corrected = weigh(name)(long_episode(500), log_ratio)
    np.testing.assert_allclose(corrected, weights, rtol=1e-4)


def test_a_decision_weight_recovers_from_intermediate_underflow():
    log_ratio = np.repeat(np.array([[-5.0], [5.0]], np.float32), 250, axis=0)
    _, weights = weigh("gpomdp", "decision")(long_episode(500), log_ratio)
    expected = np.cumsum(np.exp(np.cumsum(np.asarray(log_ratio, np.float64)))[::-1])[::-1]
    np.testing.assert_allclose(np.asarray(weights)[:, 0], expected, rtol=1e-3)
    assert expected[0] > 1.0


def hand_example() -> Trajectories:
    rewards = np.zeros((probes.BUFFER, 3), np.float32)
    rewards[:3, 0], rewards[:2, 1], rewards[:1, 2] = [1.0, 2.0, -1.0], [0.5, 3.0], [4.0]
    rng = np.random.default_rng(0)
    return probes.trajectories(
        rng.normal(size=(2, probes.BUFFER, 3)),
        rng.integers(0, 2, (probes.BUFFER, 3)),
        rewards,
        np.array([3, 2, 1]),
    )


@functools.partial(jax.jit, static_argnums=1)
def standardised(trajectories: Trajectories, discount: float) -> jax.Array:
    return standardised_weights(trajectories, discount)


def test_standardised_weights_by_hand():
    weights = np.asarray(standardised(hand_example(), 0.5))
    # Episode 1 at discount 0.5: G = 1 + 0.5 (2 - 0.5), 2 - 0.5, -1 = 1.75, 1.5, -1; mean 0.75.
    std = np.sqrt((1.0**2 + 0.75**2 + 1.75**2) / 2)
    np.testing.assert_allclose(weights[:3, 0], np.array([1.0, 0.75, -1.75]) / std, rtol=1e-5)
    # Episode 2: G = 2, 3; mean 2.5, std sqrt(0.5).
    np.testing.assert_allclose(weights[:2, 1], np.array([-0.5, 0.5]) / np.sqrt(0.5), rtol=1e-5)
    # One step has no spread.
    assert not weights[:, 2].any()
    assert not weights[3:, 0].any()
    assert not weights[2:, 1].any()


def test_the_standardised_gradient_averages_over_all_time_steps():
    trajectories, params = hand_example(), exact()[0][0]
    score = jax.jit(lambda p, s, a: POLICY.ravel(jax.grad(POLICY.log_prob)(p, s, a)))
    weights = np.asarray(standardised(trajectories, 0.5))
    total = sum(
        weights[t, i] * np.asarray(score(params, trajectories.observations[:, t, i], trajectories.actions[t, i]))
        for i, n in enumerate((3, 2, 1))
        for t in range(n)
    )
    estimator = estimator_of("standardised", discount=0.5)
    mine = jax.jit(lambda t: gradient(estimator, POLICY, params, t))(trajectories)
    np.testing.assert_allclose(mine, total / 6, atol=1e-6)


@pytest.mark.parametrize("reward", [0.1, 1.0, 100 / 3])
def test_an_episode_whose_only_reward_comes_at_the_end_undiscounted_has_no_spread(reward):
    # G is the same at every step: what rounding leaves of G - mean must not be blown up to a unit spread.
    lengths = np.arange(2, 50)
    rewards = np.zeros((probes.BUFFER, lengths.size), np.float32)
    rewards[lengths - 1, np.arange(lengths.size)] = reward
    trajectories = long_episode(probes.BUFFER)._replace(rewards=rewards, lengths=lengths)
    assert np.abs(standardised(trajectories, 1.0)).max() < 1e-3


@pytest.mark.parametrize("name", ["standardised", "gpomdp", "reinforce"])
def test_weights_of_long_episodes_of_several_agents_at_once(name):
    steps, gamma = 170, 0.97
    rng = np.random.default_rng(0)
    lengths = np.array([[170, 120], [1, 51]])  # [K, B]
    alive = np.arange(steps)[:, None, None] < lengths
    rewards = np.where(alive, rng.normal(size=(steps, 2, 2)), 0.0)
    several = probes.trajectories(np.zeros((2, steps, 2, 2)), np.zeros((steps, 2, 2), int), rewards, lengths)
    weights = np.asarray(jax.jit(estimator_of(name, discount=gamma).weights)(several))
    assert not weights[~alive].any()
    for k, b in np.ndindex(2, 2):
        n = lengths[k, b]
        r = rewards[:n, k, b]
        to_go = np.array([sum(gamma ** (h - t) * r[h] for h in range(t, n)) for t in range(n)])
        if name == "standardised":
            expected = (to_go - to_go.mean()) / (to_go.std(ddof=1) if n > 1 else 1.0)
        elif name == "gpomdp":
            expected = gamma ** np.arange(n) * to_go  # discounted from the start of the episode
        else:
            expected = np.full(n, to_go[0])
        np.testing.assert_allclose(weights[:n, k, b], expected, rtol=1e-3, atol=1e-4)


def alive_in(trajectories: Trajectories) -> np.ndarray:
    """`mask`, in NumPy.  [T, B]"""
    return np.arange(len(trajectories.rewards))[:, None] < trajectories.lengths


@functools.cache
def border_case(kind: str):
    """Trajectories for a kind of policy, and everything that is computed from them."""
    actions = probes.reaching_environment().actions
    policy = POLICY if kind == "categorical" else make_mlp(2, actions, (3,), "tanh", kind)
    params, other = (jax.device_put(policy.unravel(np.asarray(policy.init(jax.random.key(seed))))) for seed in (0, 1))
    clean = hand_example()
    if kind != "categorical":
        clean = clean._replace(actions=0.3 * clean.observations)
    estimator = estimator_of("gpomdp")

    def everything(t: Trajectories):
        return log_probs(policy, params, t), correction(estimator, policy, params, other, t)

    return clean, jax.jit(everything)


@pytest.mark.slow
@pytest.mark.parametrize("garbage", [7.0, np.nan, np.inf])
@pytest.mark.parametrize("kind", ["categorical", "released", "paper"])
def test_what_lies_beyond_an_episodes_end_never_matters(kind, garbage):
    clean, everything = border_case(kind)
    alive = alive_in(clean)
    dirty = clean._replace(
        observations=np.where(alive, clean.observations, np.float32(garbage)),
        actions=np.where(alive, clean.actions, np.int32(1) if kind == "categorical" else np.float32(garbage)),
    )
    expected, actual = jax.tree.leaves(everything(clean)), jax.tree.leaves(everything(dirty))
    for a, b in zip(expected, actual, strict=True):
        assert np.abs(a).max() > 1e-3
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "episodes"), [(50, 60), (500, 7), (70, 2)])
def test_the_score_does_not_depend_on_the_blocks_it_is_summed_in(steps, episodes):
    rng = np.random.default_rng(steps)
    trajectories = probes.trajectories(
        rng.normal(size=(2, steps, episodes)),
        rng.integers(0, 2, (steps, episodes)),
        np.ones((steps, episodes)),
        rng.integers(1, steps + 1, episodes),
    )
    weights = probes.single(np.where(alive_in(trajectories), rng.normal(size=(steps, episodes)), 0.0))

    def in_one_go(params):
        flat = [x.reshape(*x.shape[:-2], -1) for x in (trajectories.observations, trajectories.actions)]
        return jnp.sum(weights.ravel() * POLICY.log_prob(params, *flat))

    @jax.jit
    def both(params):
        return POLICY.ravel(jax.grad(in_one_go)(params)), weighted_score(POLICY, params, trajectories, weights)

    whole, mine = both(exact()[0][0])
    np.testing.assert_allclose(mine, whole, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "baseline"), [("reinforce", "none"), ("gpomdp", "leave-one-out"), ("standardised", "none")]
)
def test_episodes_that_were_not_wanted_change_no_estimate(name, baseline):
    estimator, params = estimator_of(name, baseline), exact()[0][0]
    three = probes.chosen(EVERY, np.array([[3, 40, 60]]))
    three = jax.tree.map(lambda x: x[0], three)
    five = jax.tree.map(lambda x: np.concatenate([x[..., :2], 0 * x[..., :2], x[..., 2:]], axis=-1), three)
    assert five.lengths.tolist().count(0) == 2
    run = jax.jit(lambda t: gradient(estimator, POLICY, params, t))
    np.testing.assert_allclose(run(five), run(three), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpomdp", "standardised"])
def test_influences_sum_to_zero_and_tell_the_spread_of_the_gradient(name):
    size, count = 24, 600
    estimator = estimator_of(name)
    params, probability, _ = exact()[0]
    rng = np.random.default_rng(1)
    several = probes.chosen(EVERY, rng.choice(len(PATHS), (count, size), p=probability / probability.sum()))

    def both(trajectories):
        return gradient(estimator, POLICY, params, trajectories), influences(estimator, POLICY, params, trajectories)

    gradients, rows = (np.asarray(x, np.float64) for x in jax.jit(jax.vmap(both))(several))
    assert rows.shape == (count, size, POLICY.size)
    assert np.abs(rows.mean(axis=1)).max() < 1e-4
    # The covariance of the gradient of B trajectories is that of a row over B.
    told = (rows**2).sum(axis=2).sum(axis=1).mean() / (size - 1) / size
    seen = gradients.var(axis=0, ddof=1).sum()
    assert told == pytest.approx(seen, rel=0.15)


def test_influences_of_a_mean_over_episodes_are_the_deviations_of_each():
    estimator, params = estimator_of("reinforce"), exact()[0][0]
    some = jax.tree.map(lambda x: x[..., ::13], EVERY)
    alone = [jax.tree.map(lambda x, i=i: x[..., i : i + 1], some) for i in range(some.lengths.shape[0])]
    run = jax.jit(lambda t: gradient(estimator, POLICY, params, t))
    each = np.stack([run(t) for t in alone])
    rows = jax.jit(lambda t: influences(estimator, POLICY, params, t))(some)
    np.testing.assert_allclose(rows, each - each.mean(axis=0), atol=1e-5)


CARTPOLE = make_task("CartPole-v1")
REACHING = make_task(probes.reaching_environment(steps=7))


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.parametrize("task", [CARTPOLE, REACHING], ids=["discrete", "gaussian"])
def test_an_episode_depends_on_its_key_alone(task):
    """To rounding: XLA may divide other numbers of episodes into other vectors, and sum their products differently."""
    policy, params = probes.policy_for(task)
    keys = probes.keys_of(2, 64)
    whole = probes.play(task, policy, params, probes.episodes(keys, 60), 60)
    alive = alive_in(whole)
    for layout in (np.arange(64)[::-1], np.array([9, 3, 60, 3, 17, 44, 0]), np.array([5])):
        part = probes.play(task, policy, params, probes.episodes(keys[layout], 60), 60)
        assert np.array_equal(part.lengths, whole.lengths[layout])
        assert np.array_equal(part.terminated, whole.terminated[layout])
        np.testing.assert_allclose(part.last, whole.last[:, layout], rtol=1e-4, atol=1e-5)
        for mine, all_ in zip(part[:3], whole[:3], strict=True):
            mine, theirs = (x[..., alive[:, layout]] for x in (mine, all_[..., layout]))
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    assert task is REACHING or len(set(whole.lengths.tolist())) > 5


@pytest.mark.slow
def test_episodes_that_are_not_wanted_stay_empty_and_horizons_cut():
    keys = probes.keys_of(3, 6)
    mixed = probes.episodes(keys, np.array([0, 3, 0, 5, 500, 0]))
    these = probes.side_by_side(mixed, probes.episodes(keys[:1], 0))
    played = probes.play(CARTPOLE, *probes.policy_for(CARTPOLE), these, 8)
    assert played.lengths.tolist() == [0, 3, 0, 5, 8, 0, 0]
    assert np.array_equal(played.rewards.sum(axis=0), played.lengths)
    assert not played.rewards[~alive_in(played)].any()
    assert not played.terminated.any()


@pytest.mark.slow
def test_nothing_is_rolled_out_if_no_episode_is_wanted():
    policy, params = probes.policy_for(CARTPOLE)
    nothing = probes.episodes(probes.keys_of(3, 2), 0)
    played = probes.play(CARTPOLE, policy, params, nothing, 8)
    assert played.lengths.tolist() == [0, 0]
    for estimator in (estimator_of("standardised"), estimator_of("gpomdp")):
        zero = jax.jit(lambda t, e=estimator: gradient(e, policy, params, t))(played)
        assert not np.asarray(zero).any()
