"""CartPole in JAX against Gymnasium's."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fedpg.config import make_config
from fedpg.environments import lanes, make_environment, rollout
from fedpg.environments.cartpole import ANGLE_LIMIT, X_LIMIT, reset, step
from fedpg.policies import make_policy

CARTPOLE = make_environment("CartPole-v1")
POLICY = make_policy(make_config(), CARTPOLE.observations, CARTPOLE.actions)


@pytest.fixture(scope="module")
def theirs():
    return gymnasium.make("CartPole-v1").unwrapped


def many_states(count: int) -> np.ndarray:
    """States all over the track, a third of them near its ends and a third near the largest angle."""
    rng = np.random.default_rng(0)
    states = rng.uniform([-2.4, -3, -0.209, -3], [2.4, 3, 0.209, 3], (count, 4))
    ends, tilts = np.arange(count) % 3 == 1, np.arange(count) % 3 == 2
    sign = rng.choice([-1.0, 1.0], count)
    states[ends, 0] = (sign * (X_LIMIT + rng.uniform(-0.1, 0.02, count)))[ends]
    states[tilts, 2] = (sign * (ANGLE_LIMIT + rng.uniform(-0.1, 0.02, count)))[tilts]
    return states.astype(np.float32)


def test_every_transition_is_that_of_gymnasium(theirs):
    count = 12_000
    states = many_states(count)
    actions = np.random.default_rng(1).integers(0, 2, count)
    after, rewards, ended = (np.asarray(x) for x in jax.jit(jax.vmap(step))(states, actions))

    expected, their_rewards, their_ends = [], [], []
    theirs.reset(seed=0)
    for state, action in zip(states, actions, strict=True):
        theirs.state, theirs.steps_beyond_terminated = state.astype(np.float64), None
        _, reward, terminated, _, _ = theirs.step(int(action))
        expected.append(theirs.state)
        their_rewards.append(reward)
        their_ends.append(terminated)
    expected = np.array(expected)

    np.testing.assert_allclose(after, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(rewards, their_rewards)
    # Within rounding of a limit float32 and float64 may fall on different sides of it.
    gap = np.minimum(np.abs(np.abs(expected[:, 0]) - X_LIMIT), np.abs(np.abs(expected[:, 2]) - ANGLE_LIMIT))
    clear = gap > 1e-5
    assert clear.sum() > 10_000
    np.testing.assert_array_equal(ended[clear], np.array(their_ends)[clear])
    assert 0.1 < ended[clear].mean() < 0.9


def test_limits_are_those_of_gymnasium(theirs):
    assert theirs.x_threshold == X_LIMIT
    assert theirs.theta_threshold_radians == ANGLE_LIMIT
    assert gymnasium.spec("CartPole-v1").max_episode_steps == CARTPOLE.limit == 500


def test_first_states_are_uniform_within_a_twentieth():
    states = np.asarray(jax.jit(jax.vmap(reset))(jax.random.split(jax.random.key(0), 5000)))
    assert np.abs(states).max() < 0.05
    for each in states.T:
        assert scipy.stats.kstest(each, scipy.stats.uniform(-0.05, 0.1).cdf).pvalue > 1e-3
    assert np.abs(np.corrcoef(states.T) - np.eye(4)).max() < 0.06


def balancing() -> dict[str, jax.Array]:
    """A network that pushes the way the pole falls, and so never drops it."""
    params = {name: np.zeros(shape, np.float32) for name, shape in POLICY.shapes.items()}
    direction = np.array([0.05, 0.2, 1.0, 0.5])
    params["w0"][0], params["w0"][1] = direction, -direction
    params["w1"][0, 0] = params["w1"][1, 1] = 1.0
    params["w2"][:, 0], params["w2"][:, 1] = [-1, 1], [1, -1]
    return {name: jnp.asarray(x) for name, x in params.items()}


def test_a_policy_that_survives_is_cut_off_after_500_steps_in_both():
    roll = jax.jit(lambda p, n: rollout(CARTPOLE, POLICY, p, n, CARTPOLE.limit))
    params = balancing()
    ours = roll(params, lanes(jax.random.split(jax.random.key(0), 8), 10_000, greedy=True))
    assert np.all(np.asarray(ours.lengths) == 500)
    assert np.all(np.asarray(ours.returns) == 500.0)

    limited, mode = gymnasium.make("CartPole-v1"), jax.jit(POLICY.mode)
    observation, _ = limited.reset(seed=0)
    for t in range(1, 501):
        observation, _, terminated, truncated, _ = limited.step(int(mode(params, observation)))
        assert not terminated
        assert truncated == (t == 500)


def test_whole_episodes_end_when_gymnasium_ends_them(theirs):
    count = 40
    params = POLICY.unravel(POLICY.init(jax.random.key(5)))
    # Different horizons: an episode ends by falling or by its own horizon, whichever is first.
    horizons = jnp.where(jnp.arange(count) % 2 == 0, 15, 500)
    several = lanes(jax.random.split(jax.random.key(1), count), horizons)
    ours = jax.jit(lambda p, n: rollout(CARTPOLE, POLICY, p, n, 500))(params, several)
    observations, actions, rewards, lengths = (np.asarray(x) for x in ours[:4])
    for i in range(count):
        theirs.reset(seed=0)
        theirs.state, terminated, t = observations[:, 0, i].astype(np.float64), False, 0
        while not terminated and t < horizons[i]:
            np.testing.assert_allclose(observations[:, t, i], theirs.state, rtol=1e-4, atol=1e-5)
            _, _, terminated, _, _ = theirs.step(int(actions[t, i]))
            t += 1
        assert lengths[i] == t
        assert rewards[:, i].sum() == t
        assert not rewards[t:, i].any()
    assert (lengths == 15).sum() > 3
    assert len(set(lengths)) > 10
