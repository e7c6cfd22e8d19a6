"""A policy from any network: what it draws, its names, its columns, and that nothing is compiled twice."""

import functools
import math
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from gymnasium import spaces

import fedpg
from fedpg.federation import Local
from fedpg.policies import Policy, from_gaussian, from_logits
from fedpg.problem import Problem
from fedpg.programs import side_by_side
from fedpg.server import Server
from fedpg.storage import StorageError
from fedpg.tasks import make_task
from fedpg.training.checkpoint import load_policy, save_policy
from fedpg.training.rounds import advance, evaluated, first_state
from tiny import TINY

BOX = spaces.Box(np.array([-2.0, 1.0], np.float32), np.array([0.5, 4.0], np.float32))
traced: list[tuple[int, ...]] = []
"""The observations that the networks below have been traced with."""


def layers(*sizes: int) -> Any:
    """key -> weights and biases, in a list of dicts."""

    def init(key: jax.Array) -> Any:
        keys = jax.random.split(key, len(sizes) - 1)
        shapes = zip(sizes[1:], sizes[:-1], strict=True)
        return [
            {"w": jax.random.normal(k, s) / s[1] ** 0.5, "b": jnp.full(s[:1], 0.1)}
            for k, s in zip(keys, shapes, strict=True)
        ]

    return jax.jit(init)  # one program, not one for each of its operations


def forward(params: Any, x: jax.Array) -> jax.Array:
    traced.append(x.shape)
    for layer in params[:-1]:
        x = jnp.tanh(layer["w"] @ x + layer["b"])
    return params[-1]["w"] @ x + params[-1]["b"]


def mean_std(params: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    mean, log_std = jnp.split(forward(params, x), 2)
    return jnp.tanh(mean), jnp.exp(log_std)


LOGITS = from_logits(layers(3, 20, 4), forward, 3, spaces.Discrete(4))
GAUSSIAN = from_gaussian(layers(3, 20, 4), mean_std, 3, BOX)
POLICIES = {"logits": LOGITS, "gaussian": GAUSSIAN}
MOST = 300


@functools.partial(jax.jit, static_argnums=0)
def drawn(policy: Policy, seed: int) -> tuple[jax.Array, jax.Array]:
    """(theta, the noise of MOST steps)."""
    return policy.init(jax.random.key(seed)), policy.noise(jax.random.key(seed + 1), MOST)


def some(policy: Policy, shape: tuple[int, ...], seed: int = 0) -> tuple[Any, np.ndarray, np.ndarray]:
    """Parameters, observations [3, ...] and noise [n, ...]."""
    theta, noise = map(np.asarray, drawn(policy, seed))
    observations = np.random.default_rng(seed).normal(size=(3, *shape)).astype(np.float32)
    return policy.unravel(theta), observations, noise[:, : math.prod(shape)].reshape(-1, *shape)


def act(policy: Policy, params: Any, x: Any, noise: Any) -> tuple[Any, Any]:
    return policy.sample(params, x, noise), policy.mode(params, x)


acting = jax.jit(act, static_argnums=0)
log_prob = jax.jit(lambda policy, *given: policy.log_prob(*given), static_argnums=0)


def by_hand(policy: Policy, params: Any, x: np.ndarray) -> np.ndarray:
    """What the network makes of one observation, in NumPy."""
    w0, b0, w1, b1 = (np.asarray(params[name], np.float64) for name in ("[0]['w']", "[0]['b']", "[1]['w']", "[1]['b']"))
    return w1 @ np.tanh(w0 @ x + b0) + b1


@pytest.mark.parametrize("name", POLICIES)
def test_its_tensors_have_the_names_of_their_places(name: str):
    policy = POLICIES[name]
    assert policy.shapes == {"[0]['b']": (20,), "[0]['w']": (20, 3), "[1]['b']": (4,), "[1]['w']": (4, 20)}
    init = jax.jit(policy.init)
    theta = init(jax.random.key(5))
    network = layers(3, 20, 4)(jax.random.key(5))
    assert np.array_equal(policy.unravel(theta)["[1]['w']"], network[1]["w"])
    for ravel in (policy.ravel, jax.jit(policy.ravel)):
        assert np.array_equal(ravel(policy.unravel(theta)), theta)
    assert not np.array_equal(theta, init(jax.random.key(6)))


@pytest.mark.slow
def test_parameters_may_be_one_array_or_hold_a_single_number():
    one = from_logits(lambda key: jax.random.normal(key, (2, 4)), lambda w, x: w @ x, 4, spaces.Discrete(2))
    assert one.shapes == {"theta": (2, 4)}
    scaled = from_logits(
        lambda key: {"scale": jnp.ones(()), "w": jax.random.normal(key, (2, 4))},
        lambda p, x: p["scale"] * (p["w"] @ x),
        4,
        spaces.Discrete(2),
    )
    assert scaled.size == 9
    run = fedpg.train(
        policy=scaled, **(TINY | {"algorithm": "gpomdp", "batch": (4, 4), "trajectories": 4, "minibatch": 2})
    )
    assert run.policy.params["['scale']"] != 1.0


@pytest.mark.parametrize("shape", [(), (7,), (5, 3)])
def test_logits_are_those_of_a_categorical_distribution(shape: tuple[int, ...]):
    params, x, noise = some(LOGITS, shape)
    expected = np.apply_along_axis(lambda column: by_hand(LOGITS, params, column), 0, x)
    log_p = scipy.special.log_softmax(expected, axis=0)
    for action in range(4):
        chosen = np.full(shape, action, np.int32)
        np.testing.assert_allclose(log_prob(LOGITS, params, x, chosen), log_p[action], rtol=1e-4)
    sample, mode = acting(LOGITS, params, x, noise)
    assert np.array_equal(mode, expected.argmax(axis=0))
    assert np.array_equal(sample, (noise[0] >= np.exp(log_p).cumsum(axis=0)[:-1]).sum(axis=0))


@pytest.mark.parametrize("shape", [(), (7,), (5, 3)])
def test_mean_and_std_are_those_of_a_normal_distribution(shape: tuple[int, ...]):
    params, x, noise = some(GAUSSIAN, shape)
    expected = np.apply_along_axis(lambda column: by_hand(GAUSSIAN, params, column), 0, x)
    mean, std = np.tanh(expected[:2]), np.exp(expected[2:])
    action, mode = map(np.asarray, acting(GAUSSIAN, params, x, noise))
    np.testing.assert_allclose(mode, mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(action, mean + std * noise, rtol=1e-4, atol=1e-5)
    log_p = scipy.stats.norm(mean, std).logpdf(action).sum(axis=0)
    np.testing.assert_allclose(log_prob(GAUSSIAN, params, x, action), log_p, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", POLICIES)
def test_random_actions_fill_the_space(name: str):
    policy = POLICIES[name]
    actions = np.asarray(jax.jit(lambda key: policy.random(policy.noise(key, 4000)))(jax.random.key(0)))
    if name == "logits":
        assert np.bincount(actions).min() > 900
    else:
        assert (actions >= BOX.low[:, None]).all()
        assert (actions <= BOX.high[:, None]).all()
        np.testing.assert_allclose(actions.mean(axis=1), (BOX.low + BOX.high) / 2, atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(), (1,), (16,), (40,), (300,)])
@pytest.mark.parametrize("name", POLICIES)
def test_acting_from_numpy_is_acting_in_jax(name: str, shape: tuple[int, ...]):
    policy = POLICIES[name]
    params, x, noise = some(policy, shape)
    sample, mode = acting(policy, params, x, noise)
    for ours, theirs in ((policy.mode(params, x, np), mode), (policy.sample(params, x, noise, np), sample)):
        assert isinstance(ours, np.ndarray | np.generic)
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.parametrize("hidden", [(20,), (64, 64)])
def test_an_action_does_not_depend_on_the_observations_beside_it(hidden: tuple[int, ...]):
    policy = from_gaussian(layers(17, *hidden, 12), mean_std, 17, spaces.Box(-1, 1, (6,)))
    params = policy.unravel(np.asarray(jax.jit(policy.init)(jax.random.key(0))))
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(17, 480)).astype(np.float32), rng.normal(size=(6, 480)).astype(np.float32)
    everyone = policy.sample(params, x, noise, np)
    for _ in range(60):
        few = rng.permutation(480)[: rng.integers(1, 480)]
        assert np.array_equal(policy.sample(params, x[:, few], noise[:, few], np), everyone[:, few])


def test_however_many_act_from_numpy_nothing_is_compiled_again():
    policy = from_logits(layers(3, 8, 4), forward, 3, spaces.Discrete(4))
    params, x, noise = some(policy, (300,))
    policy.sample(params, x[:, :5], noise[:, :5], np)
    policy.mode(params, x[:, :5], np)
    traced.clear()
    for count in (1, 2, 15, 16, 17, 100, 129, 300):
        policy.sample(params, x[:, :count], noise[:, :count], np)
        policy.mode(params, x[:, :count], np)
    assert traced == []


def no_name(params: Any, x: jax.Array) -> jax.Array:
    return params["w"] @ x


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: from_logits(layers(3, 5), forward, 3, spaces.Discrete(4)), r"shapes \[\(5,\)\], not \[\(4,\)\]"),
        (lambda: from_gaussian(layers(3, 2), forward, 3, BOX), r"not \[\(2,\), \(2,\)\]"),
        (lambda: from_logits(layers(3, 4), forward, 3, BOX), "use from_gaussian"),
        (lambda: from_gaussian(layers(3, 4), mean_std, 3, spaces.Discrete(4)), "use from_logits"),
        (lambda: from_logits(lambda key: {"n": 3}, no_name, 3, spaces.Discrete(4)), r"\['n'\] is 3: let init leave"),
        (lambda: from_logits(lambda key: {"f": jnp.tanh}, no_name, 3, spaces.Discrete(4)), "float32 arrays"),
        (lambda: from_logits(lambda key: {"i": jnp.arange(3)}, no_name, 3, spaces.Discrete(4)), "float32 arrays"),
    ],
)
def test_what_cannot_be_a_policy_is_said(make: Any, says: str):
    with pytest.raises(fedpg.ConfigError, match=says):
        make()


def test_it_is_saved_and_loaded_by_its_names(tmp_path: Path):
    problem = problem_of(make_task("CartPole-v1"), lambda task: from_logits(layers(4, 8, 2), forward, 4, task.actions))
    theta = jax.jit(problem.policy.init)(jax.random.key(3))
    save_policy(tmp_path / "policy.safetensors", problem.config, problem.policy, theta)
    loaded = load_policy(tmp_path / "policy.safetensors", problem)
    assert np.array_equal(problem.policy.ravel(loaded), theta)
    other = problem_of(make_task("CartPole-v1"), lambda task: from_logits(layers(4, 9, 2), forward, 4, task.actions))
    with pytest.raises(StorageError, match="another task or network"):
        load_policy(tmp_path / "policy.safetensors", other)


def problem_of(task: fedpg.Task, policy: Any) -> Problem:
    return fedpg.make_problem(fedpg.make_config(task.id, **(TINY | {"batch": (2, 4)})), task, policy)


@pytest.mark.simulators
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_outside_jax_it_learns_and_compiles_nothing_after_the_first_round(name: str):
    task = make_task(lambda: gymnasium.make(name))
    problem = problem_of(
        task,
        lambda task: (
            from_logits(layers(4, 8, 2), forward, 4, task.actions)
            if name == "CartPole-v1"
            else from_gaussian(layers(3, 8, 2), mean_std, 3, task.actions)
        ),
    )
    federation, server = Local(problem), Server(problem)
    state = first_state(problem, 0)
    side_by_side([*server.warm_up(state), *federation.warm_up(state.agents)])
    evaluated(problem, state)
    start = state.theta
    state, _ = advance(problem, state, federation, server)
    traced.clear()
    for _ in range(4):
        state, log = advance(problem, state, federation, server)
        returns, _ = evaluated(problem, state)
        assert np.isfinite(returns).all()
        assert (log["status"] == 0).all()
    assert traced == []
    assert not np.array_equal(state.theta, start)
