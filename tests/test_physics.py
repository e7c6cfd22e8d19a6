"""EnvPool's tasks are Gymnasium's: the same physics, or the same distribution of episodes."""

import gymnasium
import numpy as np
import pytest
import scipy.stats
from gymnasium import spaces

from fedpg import make_task
from fedpg.tasks.pool import pool_of
from fedpg.tasks.registry import gymnasium_task
from fedpg.tasks.simulators import EnvPoolSimulator
from probes import episodes, keys_of, play, policy_for

pytestmark = pytest.mark.simulators


def mujoco_state(hidden: int):
    """Sets a MuJoCo task to an observation, which lacks as many coordinates of the place."""

    def set_(task, seen):
        places = task.model.nq - hidden
        task.set_state(np.concatenate([np.zeros(hidden), seen[:places]]), seen[places : places + task.model.nv])

    return set_


def pendulum_state(task, seen):
    task.state = np.array([np.arctan2(seen[1], seen[0]), seen[2]])


def acrobot_state(task, seen):
    task.state = np.array([np.arctan2(seen[1], seen[0]), np.arctan2(seen[3], seen[2]), seen[4], seen[5]])


def plain_state(task, seen):
    task.state = np.array(seen)


def uphill(rng, seen, pool):
    """Push the way it rolls: the only policy that comes up the hill."""
    return np.sign(seen[:, 1:]).astype(np.float32)


def at_random(rng, seen, pool):
    if isinstance(pool.actions, spaces.Discrete):
        return rng.integers(0, pool.actions.n, len(seen)).astype(np.int32)
    return rng.uniform(-1.3, 1.3, (len(seen), *pool.actions.shape)).astype(np.float32)


def softly(rng, seen, pool):
    return 0.02 * at_random(rng, seen, pool)


SAME = {
    # (how to set the state, how to act, steps, steps after which a chaotic task is set anew)
    "HalfCheetah-v5": (mujoco_state(1), at_random, 100, 20),
    "Hopper-v5": (mujoco_state(1), at_random, 100, 100),
    "Walker2d-v5": (mujoco_state(1), at_random, 100, 100),
    "Swimmer-v5": (mujoco_state(2), at_random, 100, 100),
    "InvertedPendulum-v5": (mujoco_state(0), softly, 100, 100),
    "Pendulum-v1": (pendulum_state, at_random, 200, 50),
    "MountainCarContinuous-v0": (plain_state, uphill, 200, 200),
    "Acrobot-v1": (acrobot_state, at_random, 150, 150),
}


@pytest.mark.parametrize("task", SAME)
@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_envpool_and_gymnasium_have_the_same_physics(task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where MuJoCo keeps its log
    set_state, act, steps, every = SAME[task]
    pool = pool_of(make_task(task))
    assert pool.simulator.startswith("EnvPool")
    rng = np.random.default_rng(0)
    alive = np.arange(4, dtype=np.int32)
    theirs = pool.open(np.arange(20, 24, dtype=np.int32), 0, alive)
    ours = [gymnasium.make(task) for _ in alive]
    seen = theirs.start(alive)
    for environment in ours:
        environment.reset(seed=0)
    compared, sum_of_rewards = 0, 0.0
    for t in range(steps):
        if t % every == 0:
            for lane, state in zip(alive, seen, strict=True):
                set_state(ours[lane].unwrapped, state)
        actions = pool.to_task(act(rng, seen, pool))
        theirs.send(alive, actions)
        seen, rewards, ended, over = theirs.receive()
        for i, lane in enumerate(alive):
            expected, reward, terminated, truncated, _ = ours[lane].step(actions[i])
            np.testing.assert_allclose(seen[i], expected, rtol=1e-4, atol=1e-4, err_msg=f"step {t}")
            assert rewards[i] == pytest.approx(reward, rel=1e-4, abs=1e-4)
            assert over[i] == (terminated or truncated)
            assert ended[i] == terminated
            compared, sum_of_rewards = compared + 1, sum_of_rewards + abs(reward)
        alive, seen = alive[~over], seen[~over]
        if not len(alive):
            break
    assert compared > 50
    assert sum_of_rewards > 10
    for environment in ours:
        environment.close()


@pytest.mark.parametrize(("task", "steps"), [("LunarLander-v3", 150), ("HalfCheetah-v5", 20), ("Pendulum-v1", 200)])
def test_envpools_own_way_in_and_out_gives_what_its_public_one_gives(task, steps):
    import envpool

    pool = make_task(task)
    seeds = np.array([5, 6, 7, 8], np.int32)
    ours = EnvPoolSimulator(task, seeds)
    theirs = envpool.make_gymnasium(task, num_envs=4, num_threads=2, env_seed=seeds.tolist())
    lanes = np.array([0, 1, 3], np.int32)  # a subset: the third is never stepped
    np.testing.assert_array_equal(ours.start(lanes), theirs.reset(lanes)[0])
    rng = np.random.default_rng(0)
    ended = 0
    for _ in range(steps):
        actions = pool.to_task(at_random(rng, np.zeros((len(lanes), pool.observations)), pool))
        ours.send(lanes, actions)
        mine = ours.receive()
        seen, rewards, terminated, truncated, _ = theirs.step(actions, lanes)
        for a, b in zip(mine, (seen, rewards, terminated, terminated | truncated), strict=True):
            np.testing.assert_array_equal(a, b)
        ended += int(mine[3].sum())
        lanes = lanes[~mine[3]]
        if not len(lanes):
            break
    assert ended == (0 if task == "HalfCheetah-v5" else 3)


@pytest.mark.filterwarnings("ignore:builtin type:DeprecationWarning", "ignore:ks_2samp")
@pytest.mark.parametrize(("task", "count", "steps"), [("LunarLander-v3", 200, 150), ("BipedalWalker-v3", 100, 50)])
def test_envpool_and_gymnasium_play_episodes_of_the_same_distribution(task, count, steps):
    pools = make_task(task), gymnasium_task(lambda: gymnasium.make(task), task)
    assert [pool.simulator.split()[0] for pool in pools] == ["EnvPool", "Gymnasium"]
    policy, params = policy_for(pools[0], seed=3)
    played = [play(pool, policy, params, episodes(keys_of(i, count), steps), steps) for i, pool in enumerate(pools)]
    for figure in (lambda each: each.rewards.sum(axis=0), lambda each: each.lengths):
        theirs, ours = (figure(each).astype(np.float64) for each in played)
        assert scipy.stats.ks_2samp(theirs, ours).pvalue > 1e-3
    first = [each.observations[each.starts] for each in played]
    last = [each.observations[each.starts + each.lengths - 1] for each in played]
    for a, b in zip(np.concatenate([first[0].T, last[0].T]), np.concatenate([first[1].T, last[1].T]), strict=True):
        assert scipy.stats.ks_2samp(a, b).pvalue > 1e-5
