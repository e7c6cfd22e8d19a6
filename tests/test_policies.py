"""Policies: their parameters, their distributions, their layout, and that they learn."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from gymnasium import spaces

import probes
from fedpg import make_config, make_problem, make_task
from fedpg.federation import Local
from fedpg.policies import Policy, categorical_mlp, make_mlp
from fedpg.server import Server
from fedpg.training.rounds import advance, evaluated, first_state

CARTPOLE = make_mlp(4, spaces.Discrete(2), (16, 16), "relu", "paper")
FOUR_ACTIONS = categorical_mlp(3, (8, 8), 4, "tanh")
BOX = spaces.Box(np.array([-2.0, 1.0], np.float32), np.array([0.5, 4.0], np.float32))
GAUSSIANS = {form: make_mlp(3, BOX, (8, 8), "relu", form) for form in ("released", "paper")}
POLICIES = {"categorical": FOUR_ACTIONS} | GAUSSIANS


@functools.cache
def compiled(policy: Policy) -> Policy:
    """The same, each of its functions one program."""
    functions = ("sample", "mode", "log_prob", "random")
    return dataclasses.replace(policy, **{name: jax.jit(getattr(policy, name)) for name in functions})


@functools.partial(jax.jit, static_argnums=(0, 2))
def drawn(policy: Policy, seed: int, count: int) -> jax.Array:
    """The noise of so many steps."""
    return policy.noise(jax.random.key(seed), count)


def some(policy: Policy, shape: tuple[int, ...], scale: float = 1.0, seed: int = 0):
    """Parameters, observations [F, ...] and noise [n, ...] of a test."""
    rng = np.random.default_rng(seed)
    params = {name: rng.uniform(-scale, scale, s).astype(np.float32) / 3 for name, s in policy.shapes.items()}
    noise = np.asarray(drawn(policy, seed + 1, math.prod(shape)))
    return params, rng.normal(size=(3, *shape)).astype(np.float32), noise.reshape(-1, *shape)


def test_the_cartpole_network_has_386_parameters():
    assert CARTPOLE.size == 386
    assert CARTPOLE.shapes == {"w0": (16, 4), "b0": (16,), "w1": (16, 16), "b1": (16,), "w2": (2, 16), "b2": (2,)}


@pytest.mark.parametrize("name", POLICIES)
def test_flat_vector_and_named_tensors_round_trip(name):
    policy = POLICIES[name]
    theta = np.arange(policy.size, dtype=np.float32)
    # Those of NumPy, those that have numbers, and those that stand for numbers take ways of their own.
    params, known, traced = policy.unravel(theta), policy.unravel(jnp.asarray(theta)), jax.jit(policy.unravel)(theta)
    assert {name: x.shape for name, x in params.items()} == policy.shapes
    assert all(np.array_equal(params[name], known[name]) for name in policy.shapes)
    assert all(np.array_equal(params[name], traced[name]) for name in policy.shapes)
    for ravel in (policy.ravel, jax.jit(policy.ravel)):
        assert np.array_equal(ravel(known), theta)
    assert np.array_equal(jax.jit(policy.ravel)(params), theta)
    # `tensors` cuts the same vector into the same pieces, without gap or overlap.
    for part, (tensor, shape) in zip(policy.tensors, policy.shapes.items(), strict=True):
        assert np.array_equal(theta[part].reshape(shape), params[tensor])
    assert policy.tensors[-1].stop == policy.size


@pytest.mark.parametrize("name", [*POLICIES, "cartpole"])
def test_initial_weights_fill_their_bounds_and_stay_within(name):
    policy = (POLICIES | {"cartpole": CARTPOLE})[name]
    several = jax.jit(lambda: jax.vmap(policy.init)(jax.random.split(jax.random.key(0), 300)))
    thetas = np.asarray(several())
    for part, (tensor, shape) in zip(policy.tensors, policy.shapes.items(), strict=True):
        entries = thetas[:, part].ravel()
        if tensor == "log_std":
            assert np.all(entries == -2.0)
            continue
        bound = 1 / math.sqrt(shape[-1])
        assert np.abs(entries).max() <= bound
        assert scipy.stats.kstest(entries, scipy.stats.uniform(-bound, 2 * bound).cdf).pvalue > 1e-4
    assert len(np.unique(thetas[0])) > 0.9 * (policy.size - 2)


def test_init_depends_on_its_key():
    init = jax.jit(CARTPOLE.init)
    first, second, again = (np.asarray(init(jax.random.key(seed))) for seed in (0, 1, 0))
    assert not np.any(first == second)
    assert np.array_equal(first, again)


@jax.jit
def all_log_probs(params, observations):
    return jnp.stack([FOUR_ACTIONS.log_prob(params, observations, jnp.full((40,), a)) for a in range(4)])


def test_categorical_probabilities_sum_to_one():
    params, observations, _ = some(FOUR_ACTIONS, (40,), scale=5.0)
    log_p = np.asarray(all_log_probs(params, observations))
    np.testing.assert_allclose(np.exp(log_p).sum(axis=0), 1.0, rtol=1e-6)
    assert np.ptp(log_p) > 1.0


def test_categorical_mode_is_the_most_likely_action():
    params, observations, _ = some(FOUR_ACTIONS, (40,), scale=5.0)
    expected = np.asarray(all_log_probs(params, observations)).argmax(axis=0)
    assert np.array_equal(compiled(FOUR_ACTIONS).mode(params, observations), expected)
    assert len(np.unique(expected)) > 1


def test_categorical_samples_occur_as_often_as_their_probability():
    count = 20_000
    params, observations, _ = some(FOUR_ACTIONS, (40,), scale=5.0)
    observation = np.broadcast_to(observations[:, :1], (3, count))
    actions = np.asarray(compiled(FOUR_ACTIONS).sample(params, observation, drawn(FOUR_ACTIONS, 1, count)))
    expected = np.exp(np.asarray(all_log_probs(params, observations), np.float64)[:, 0])
    expected *= count / expected.sum()
    assert scipy.stats.chisquare(np.bincount(actions, minlength=4), expected).pvalue > 1e-3
    assert np.ptp(expected) > 0.1 * count


@pytest.mark.parametrize("name", POLICIES)
def test_a_batch_equals_its_elements_one_by_one(name):
    policy = compiled(POLICIES[name])
    params, observations, noise = some(policy, (5, 7), scale=2.0)
    actions = policy.sample(params, observations, noise)
    modes = policy.mode(params, observations)
    log_p = policy.log_prob(params, observations, actions)
    assert log_p.shape == (5, 7)
    observations, noise, actions, modes, log_p = (np.asarray(x) for x in (observations, noise, actions, modes, log_p))
    for i, j in np.ndindex(5, 7):
        one, chosen = observations[:, i, j], actions[..., i, j]
        np.testing.assert_allclose(policy.sample(params, one, noise[:, i, j]), chosen, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(policy.mode(params, one), modes[..., i, j], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(policy.log_prob(params, one, chosen), log_p[i, j], rtol=1e-4, atol=1e-5)


def by_hand(form, params, observations):
    """mean and std [A, M] of the Gaussian policy, from its definition."""
    p = {name: np.asarray(x, np.float64) for name, x in params.items()}
    x = np.maximum(p["w0"] @ np.asarray(observations, np.float64) + p["b0"][:, None], 0.0)
    x = p["w1"] @ x + p["b1"][:, None]
    if form == "released":
        return np.tanh(p["mean"] @ x), np.tanh(np.exp(np.clip(p["std"] @ x, -20, -2)))
    mean = np.tanh(p["w2"] @ np.maximum(x, 0.0) + p["b2"][:, None])
    return mean, np.exp(np.broadcast_to(p["log_std"][:, None], mean.shape))


@pytest.mark.parametrize("form", GAUSSIANS)
def test_gaussian_log_prob_is_that_of_independent_normals(form):
    policy = compiled(GAUSSIANS[form])
    params, observations, noise = some(policy, (50,), scale=2.0)
    actions = policy.sample(params, observations, noise)
    mean, std = by_hand(form, params, observations)
    expected = scipy.stats.norm.logpdf(np.asarray(actions, np.float64), mean, std).sum(axis=0)
    # The actions are float32, so (a - mean) / std is only as exact as float32 allows for small std.
    np.testing.assert_allclose(policy.log_prob(params, observations, actions), expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(policy.mode(params, observations), mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", GAUSSIANS)
def test_gaussian_samples_have_the_mean_and_std_of_the_policy(form):
    policy, count = compiled(GAUSSIANS[form]), 20_000
    params, observations, _ = some(policy, (1,), scale=2.0)
    observations = np.broadcast_to(observations, (3, count))
    actions = np.asarray(policy.sample(params, observations, drawn(GAUSSIANS[form], 1, count)), np.float64)
    mean, std = by_hand(form, params, observations[:, :1])
    standard = (actions - mean) / std
    assert np.abs(standard.mean(axis=1)).max() < 4 / math.sqrt(count)
    assert np.abs(standard.std(axis=1) - 1).max() < 4 / math.sqrt(2 * count)
    assert abs(np.corrcoef(standard)[0, 1]) < 4 / math.sqrt(count)


def test_released_std_is_at_most_tanh_of_exp_of_minus_two():
    policy = compiled(GAUSSIANS["released"])
    params, observations, _ = some(policy, (500,), scale=20.0)
    ones = np.ones((2, 500), np.float32)
    high, low = (np.asarray(policy.sample(params, observations, noise)) for noise in (ones, 0 * ones))
    std = high - low
    largest = math.tanh(math.exp(-2))
    # std is read off as a difference of two samples near 1, hence the allowance for rounding.
    assert float(std.max()) == pytest.approx(largest, abs=1e-6)
    assert float(std.min()) >= -1e-6
    assert float(std.min()) < 0.5 * largest


def test_random_actions_are_uniform_over_a_discrete_space():
    random = compiled(FOUR_ACTIONS).random
    actions = np.asarray(random(drawn(FOUR_ACTIONS, 2, 20_000)))
    assert scipy.stats.chisquare(np.bincount(actions, minlength=4)).pvalue > 1e-3
    # The largest number below 1 must not become a fifth action.
    assert np.asarray(random(np.full((1, 1), np.nextafter(np.float32(1), np.float32(0))))).tolist() == [3]


@pytest.mark.parametrize("form", GAUSSIANS)
def test_random_actions_are_uniform_over_a_box(form):
    policy = GAUSSIANS[form]
    actions = np.asarray(compiled(policy).random(drawn(policy, 2, 20_000)))
    for each, low, high in zip(actions, BOX.low, BOX.high, strict=True):
        assert low <= each.min()
        assert each.max() <= high
        assert scipy.stats.kstest(each, scipy.stats.uniform(low, high - low).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(actions)[0, 1]) < 0.03


def test_other_action_spaces_are_refused_with_the_reason():
    with pytest.raises(TypeError, match="Discrete or a Box"):
        make_mlp(4, spaces.MultiBinary(3), (16, 16), "relu", "paper")


@pytest.mark.slow
@pytest.mark.parametrize("form", GAUSSIANS)
def test_a_gaussian_policy_learns_to_reach_a_point(form):
    config = make_config(
        preset="paper", gaussian=form, agents=3, batch=(8, 8), minibatch=4, hidden=(8,), learning_rate=0.02
    )
    problem = make_problem(config, make_task(probes.reaching_environment()))
    federation, server, state = Local(problem), Server(problem), first_state(problem, 0)
    before = evaluated(problem, state)[0].mean()
    for _ in range(96):
        state, _ = advance(problem, state, federation, server)
    after = evaluated(problem, state)[0].mean()
    assert before < -0.5
    assert after > 0.1 * before
