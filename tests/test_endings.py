"""How episodes end: what a trajectory says about it is what its task said."""

from typing import Any, ClassVar

import gymnasium
import jax
import numpy as np
import pytest

import gym_probes
import probes
from fedpg import Task, make_task
from fedpg.policies import Params, Policy, make_mlp
from fedpg.tasks.registry import envpool_task
from fedpg.trajectories import Trajectories

KEYS = jax.random.split(jax.random.key(5), 12)
LIMIT = 500  # of CartPole


def steps_of(played: Trajectories, i: int) -> tuple[np.ndarray, np.ndarray]:
    """(the observations of an episode and the one after its last step [n + 1, F], its actions [n])."""
    n = played.lengths[i]
    if played.starts is None:
        seen, actions = played.observations[:, :n, i].T, played.actions[..., :n, i].T
    else:
        packed = slice(played.starts[i], played.starts[i] + n)
        seen, actions = played.observations[packed], played.actions[packed]
    return np.concatenate([seen, played.last[None, :, i]]), actions


def cartpole(where: str) -> Task:
    return make_task("CartPole-v1") if where == "JAX" else envpool_task("CartPole-v1")


def policies(task: Task) -> tuple[Policy, dict[str, Params]]:
    """A linear policy that falls over soon, and one that balances for as long as it is left."""
    policy = make_mlp(task.observations, task.actions, (), "tanh", "paper")
    balance = np.array([[0, 0, 0, 0], [0.1, 0.3, 2.0, 1.0]], np.float32)
    nothing = {"w0": np.zeros_like(balance), "b0": np.zeros(2, np.float32)}
    return policy, {"falls": nothing, "balances": nothing | {"w0": balance}}


SIMULATORS = [
    "JAX",
    pytest.param(
        "EnvPool",
        marks=[pytest.mark.simulators, pytest.mark.filterwarnings("ignore:.*precision lowered by casting:UserWarning")],
    ),
]


@pytest.mark.parametrize("where", SIMULATORS)
@pytest.mark.parametrize(("kind", "horizon"), [("falls", LIMIT), ("falls", 15), ("balances", LIMIT)])
def test_cartpole_ends_as_gymnasium_says_and_its_last_observation_is_gymnasiums(where: str, kind: str, horizon: int):
    task = cartpole(where)
    policy, params = policies(task)
    these = probes.episodes(KEYS, horizon)
    played = probes.play(task, policy, params[kind], these, horizon, greedy=kind == "balances")
    theirs = gymnasium.make("CartPole-v1", disable_env_checker=True)
    for i, length in enumerate(played.lengths.tolist()):
        seen, actions = steps_of(played, i)
        theirs.reset(seed=0)
        for t, action in enumerate(actions):
            # From every state of ours, for the pole is unstable: rounding would grow.
            theirs.unwrapped.state = seen[t].astype(np.float64)
            after, _, terminated, truncated, _ = theirs.step(int(action))
            np.testing.assert_allclose(seen[t + 1], after, rtol=1e-4, atol=1e-5)
            assert t + 1 == length or not (terminated or truncated)
        assert played.terminated[i] == terminated
        assert terminated or length == horizon
        assert truncated == (length == LIMIT)
    cut = played.lengths == horizon
    assert (kind, horizon, cut.any(), played.terminated.any()) in [
        ("falls", LIMIT, False, True),
        ("falls", 15, True, True),
        ("balances", LIMIT, True, False),
    ]


class Watched(gym_probes.Walk):
    """A walk that notes what came after every observation."""

    after: ClassVar[dict[bytes, tuple[Any, ...]]] = {}

    def step(self, action: Any) -> Any:
        before = np.float32(self._seen()).tobytes()
        seen, reward, terminated, truncated, about = super().step(action)
        Watched.after[before] = (seen, terminated, truncated)
        return seen, reward, terminated, truncated, about


@pytest.mark.simulators
@pytest.mark.parametrize("horizon", [gym_probes.LIMIT, 5])
def test_a_task_of_gymnasium_ends_as_it_says(horizon: int):
    Watched.after.clear()
    task = make_task(Watched)
    played = probes.play(task, *probes.policy_for(task), probes.episodes(KEYS, horizon), horizon)
    kinds = set()
    for i, length in enumerate(played.lengths.tolist()):
        seen, _ = steps_of(played, i)
        for t in range(length):
            after, terminated, truncated = Watched.after[seen[t].tobytes()]
            np.testing.assert_array_equal(seen[t + 1], np.float32(after))
            assert (terminated or truncated) <= (t + 1 == length)
        assert played.terminated[i] == terminated
        assert terminated or truncated or length == horizon
        kinds.add((terminated, truncated))
    # At its limit it is truncated; before, it is cut off without its knowing.
    assert kinds >= {(True, False), (False, horizon == gym_probes.LIMIT)}


@pytest.mark.simulators
def test_a_lander_that_is_cut_off_in_the_air_has_not_ended():
    task = make_task("LunarLander-v3")
    steps = 90
    played = probes.play(task, *probes.policy_for(task), probes.episodes(KEYS, steps), steps)
    for i, length in enumerate(played.lengths.tolist()):
        seen, _ = steps_of(played, i)
        # The end itself gives -100 or 100.
        assert played.terminated[i] == (abs(played.rewards[length - 1, i]) > 90)
        assert played.terminated[i] or length == steps
        # It is near where it was, and not back at the top (1.4), where a reset would have put it.
        assert np.abs(seen[-1, :2] - seen[-2, :2]).max() < 0.1
        assert (seen[-1] != seen[-2]).any()
        assert seen[-1, 1] < 1.2
    assert 0 < played.terminated.sum() < len(KEYS)


@pytest.mark.simulators
def test_a_cheetah_never_ends():
    task = make_task("HalfCheetah-v5")
    played = probes.play(task, *probes.policy_for(task), probes.episodes(KEYS[:4], 7), 7)
    assert not played.terminated.any()
    longer = probes.play(task, *probes.policy_for(task), probes.episodes(KEYS[:4], 8), 8)
    for i in range(4):
        np.testing.assert_array_equal(steps_of(played, i)[0], steps_of(longer, i)[0][:8])


@pytest.mark.parametrize("where", SIMULATORS)
def test_an_episode_that_is_not_wanted_has_no_end(where: str):
    task = cartpole(where)
    policy, params = policies(task)
    horizons = np.where(np.arange(len(KEYS)) % 2, 0, LIMIT)
    played = probes.play(task, policy, params["falls"], probes.episodes(KEYS, horizons), LIMIT)
    assert played.terminated.tolist() == (horizons > 0).tolist()
