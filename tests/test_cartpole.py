"""CartPole in JAX against Gymnasium's, the nominal one and those of agents whose own differ."""

import functools
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
import scipy.stats

from fedpg import ConfigError, Task, make_config, make_problem, make_task
from fedpg.policies import make_mlp
from fedpg.tasks.cartpole import ANGLE_LIMIT, CARTPOLE, NOMINAL, X_LIMIT, reset, step
from fedpg.tasks.task import SERVER
from fedpg.trajectories import Trajectories
from probes import episodes, keys_of, play

POLICY = make_mlp(CARTPOLE.observations, CARTPOLE.actions, (16, 16), "relu", "paper")


@functools.cache
def first_policy() -> dict[str, Any]:
    """The parameters of a policy that has learnt nothing."""
    return POLICY.unravel(np.asarray(POLICY.init(jax.random.key(5))))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def theirs():
    return their_cartpole({})


def their_cartpole(changed: dict[str, float]) -> Any:
    """Gymnasium's, with these parameters set on the object."""
    task = gymnasium.make("CartPole-v1").unwrapped
    names = {"gravity": "gravity", "mass_cart": "masscart", "mass_pole": "masspole", "half_length": "length"}
    for name, value in changed.items():
        setattr(task, {**names, "force": "force_mag"}[name], value)
    task.total_mass = task.masspole + task.masscart
    task.polemass_length = task.masspole * task.length
    return task


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
    after, rewards, ended = (
        np.asarray(x) for x in jax.jit(jax.vmap(step, in_axes=(0, 0, None)))(states, actions, dict(NOMINAL))
    )

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
    assert make_task("CartPole-v1") is CARTPOLE


def test_first_states_are_uniform_within_a_twentieth():
    states = np.asarray(
        jax.jit(jax.vmap(reset, in_axes=(0, None)))(jax.random.split(jax.random.key(0), 5000), dict(NOMINAL))
    )
    assert np.abs(states).max() < 0.05
    for each in states.T:
        assert scipy.stats.kstest(each, scipy.stats.uniform(-0.05, 0.1).cdf).pvalue > 1e-3
    assert np.abs(np.corrcoef(states.T) - np.eye(4)).max() < 0.06


def balancing() -> dict[str, np.ndarray]:
    """A network that pushes the way the pole falls, and so never drops it."""
    params = {name: np.zeros(shape, np.float32) for name, shape in POLICY.shapes.items()}
    direction = np.array([0.05, 0.2, 1.0, 0.5])
    params["w0"][0], params["w0"][1] = direction, -direction
    params["w1"][0, 0] = params["w1"][1, 1] = 1.0
    params["w2"][:, 0], params["w2"][:, 1] = [-1, 1], [1, -1]
    return params


@pytest.mark.slow
def test_a_policy_that_survives_is_cut_off_after_500_steps_in_both():
    params = balancing()
    eight = episodes(keys_of(0, 8), 10_000)
    ours = play(CARTPOLE, POLICY, params, eight, CARTPOLE.limit, greedy=True)
    assert np.all(ours.lengths == 500)
    assert np.all(ours.rewards.sum(axis=0) == 500.0)
    assert not ours.terminated.any(), "cut off"

    limited, mode = gymnasium.make("CartPole-v1"), jax.jit(POLICY.mode)
    observation, _ = limited.reset(seed=0)
    for t in range(1, 501):
        observation, _, terminated, truncated, _ = limited.step(int(mode(params, observation)))
        assert not terminated
        assert truncated == (t == 500)


@pytest.mark.slow
def test_whole_episodes_end_when_gymnasium_ends_them(theirs):
    count = 40
    # Different horizons: an episode ends by falling or by its own horizon, whichever is first.
    horizons = np.where(np.arange(count) % 2 == 0, 15, 500)
    ours = play(CARTPOLE, POLICY, first_policy(), episodes(keys_of(1, count), horizons), 500)
    for i in range(count):
        follow(theirs, ours, i, int(horizons[i]))
    assert (ours.lengths == 15).sum() > 3
    assert len(set(ours.lengths)) > 10
    assert 0 < ours.terminated.sum() < count


def follow(theirs: Any, ours: Trajectories, i: int, horizon: int) -> None:
    """Gymnasium's task, from the first state of our i-th episode and by its actions, does what ours did."""
    theirs.reset(seed=0)
    theirs.state, terminated, t = ours.observations[:, 0, i].astype(np.float64), False, 0
    while not terminated and t < horizon:
        np.testing.assert_allclose(ours.observations[:, t, i], theirs.state, rtol=1e-4, atol=1e-5)
        _, _, terminated, _, _ = theirs.step(int(ours.actions[t, i]))
        t += 1
    assert ours.lengths[i] == t
    assert ours.rewards[:, i].sum() == t
    assert not ours.rewards[t:, i].any()
    assert ours.terminated[i] == terminated
    np.testing.assert_allclose(ours.last[:, i], theirs.state, rtol=1e-4, atol=1e-5)


# Agents whose tasks differ

VARIED: dict[str, list[float]] = {
    "half_length": [0.5, 0.25, 1.0, 2.0],
    "gravity": [9.8, 9.8, 3.7, 24.8],
    "mass_cart": [1.0, 2.0, 1.0, 0.5],
    "mass_pole": [0.1, 0.1, 0.3, 0.05],
    "force": [10.0, 5.0, 10.0, 20.0],
}


@pytest.mark.parametrize(
    "names", [["half_length"], ["gravity"], ["force"], ["mass_cart", "mass_pole"], [*VARIED]], ids=str
)
def test_each_agent_has_gymnasiums_cartpole_with_its_own_parameters_and_the_server_the_nominal_one(names: list[str]):
    given = {name: VARIED[name] for name in names}
    task, whose = CARTPOLE.vary(given), np.array([0, 1, 2, 3, SERVER] * 8)
    assert task.agents == 4
    ours = play(task, POLICY, first_policy(), episodes(keys_of(1, 40), 500, agents=whose), 500)
    for i, agent in enumerate(whose):
        changed = {} if agent == SERVER else {name: values[agent] for name, values in given.items()}
        follow(their_cartpole(changed), ours, i, 500)
    assert ours.terminated.all()


def test_other_parameters_are_other_dynamics():
    params, keys = first_policy(), keys_of(1, 40)
    task = CARTPOLE.vary({"half_length": [0.5, 1.0, 0.5, 1.0]})
    nominal, first, second, server = (
        play(t, POLICY, params, episodes(keys, 500, agents=agent), 500)
        for t, agent in ((CARTPOLE, 0), (task, 0), (task, 1), (task, SERVER))
    )
    assert np.array_equal(first.lengths, nominal.lengths)
    assert np.array_equal(server.lengths, nominal.lengths)
    assert not np.array_equal(second.lengths, nominal.lengths)


@pytest.mark.slow
def test_an_agents_episodes_do_not_depend_on_who_else_is_simulated():
    task = CARTPOLE.vary(VARIED)
    params, keys, whose = first_policy(), keys_of(2, 40), np.arange(40) % 4

    def of(some: np.ndarray) -> Trajectories:
        return play(task, POLICY, params, episodes(keys[some], 500, agents=whose[some]), 500)

    everyone = of(np.arange(40))
    for some in (np.array([7]), np.arange(40)[::-1], np.array([2, 6, 30]), np.arange(1, 40, 4)):
        mine = of(some)
        for name in ("observations", "actions", "rewards"):
            for i, lane in enumerate(some):
                length = everyone.lengths[lane]
                theirs = getattr(everyone, name)[..., :length, lane]
                assert np.array_equal(getattr(mine, name)[..., :length, i], theirs), name
        assert np.array_equal(mine.lengths, everyone.lengths[some])


def test_parameters_that_are_varied_again_keep_the_others():
    params, keys = first_policy(), keys_of(1, 40)

    def lengths(task: Task) -> list[int]:
        return play(task, POLICY, params, episodes(keys, 500, agents=1), 500).lengths.tolist()

    poles, forces = [0.5, 1.0, 0.5, 1.0], [10.0, 5.0, 10.0, 5.0]
    both = CARTPOLE.vary({"half_length": poles, "force": forces})
    again = CARTPOLE.vary({"half_length": poles}).vary({"force": forces})
    assert lengths(both) == lengths(again) != lengths(CARTPOLE.vary({"force": forces}))


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"half_lenght": [0.5] * 3}, "unknown parameter of CartPole-v1 'half_lenght': did you mean half_length"),
        ({"half_length": [0.5] * 2}, "'half_length' needs one value for each of the 3 agents"),
        ({"half_length": [0.5] * 3, "force": [1.0] * 4}, "'force' needs one value for each of the 3 agents"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(parameters: dict[str, list[float]], words: str):
    with pytest.raises(ConfigError, match=words):
        make_problem(make_config(agents=3), parameters=parameters)


def test_a_task_for_another_number_of_agents_is_refused():
    with pytest.raises(ConfigError, match="one value per agent"):
        CARTPOLE.vary({"half_length": [0.5, 1.0], "force": [1.0]})
    with pytest.raises(ConfigError, match="was made for 2 agents, not for 3"):
        make_problem(make_config(agents=3), CARTPOLE.vary({"half_length": [0.5, 1.0]}))
