"""Tasks outside JAX: episodes that depend on their keys alone."""

import functools
import itertools
import threading

import jax
import numpy as np
import pytest
import scipy.stats
from gymnasium import spaces

import gym_probes
from fedpg.attacks import ATTACKS
from fedpg.errors import SimulationError, Stopped
from fedpg.tasks import Task, make_task, registry
from fedpg.tasks.pool import pool_of
from fedpg.tasks.registry import gymnasium_task
from fedpg.trajectories import Trajectories
from gym_probes import LIMIT, Trouble, Walk
from probes import Given, episodes, flat, keys_of, play, policy_for, side_by_side

pytestmark = [pytest.mark.simulators, pytest.mark.kernels]

# Episodes


def open_(name: str) -> Task:
    if name == "Walk":
        return gymnasium_task(Walk, name)
    if name == "discrete Walk":
        return gymnasium_task(gym_probes.discrete_walk, name)
    return make_task(name)


def episode(played: Trajectories, lane: int) -> tuple[bytes, ...]:
    """All that one lane did, as bytes."""
    start, length = played.starts[lane], played.lengths[lane]
    packed = slice(start, start + length)
    parts = played.observations[packed], played.actions[packed], played.rewards[:length, lane]
    return tuple(np.ascontiguousarray(part).tobytes() for part in parts)


KEYS = keys_of(2, 40)
LAYOUTS = {
    "in another order": np.arange(40)[::-1],
    "some of them": np.array([9, 3, 30, 17, 39, 0, 22]),
    "twice": np.array([3] * 17 + [8, 8]),
    "alone": np.array([5]),
}


@pytest.fixture(scope="module")
def forty():
    """Forty episodes of a task at once, and how they came about."""

    @functools.cache
    def all_at_once(name: str):
        pool = open_(name)
        policy, params = policy_for(pool)
        steps = 25 if name == "HalfCheetah-v5" else 120
        return pool, policy, params, steps, play(pool, policy, params, episodes(KEYS, steps, resets=2), steps)

    return all_at_once


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("task", ["LunarLander-v3", "HalfCheetah-v5", "Walk", "discrete Walk"])
def test_an_episode_outside_jax_depends_on_its_keys_alone_to_the_bit(forty, task, layout):
    pool, policy, params, steps, whole = forty(task)
    some = LAYOUTS[layout]
    mine = play(pool, policy, params, episodes(KEYS[some], steps, resets=2), steps)
    assert [episode(mine, i) for i in range(len(some))] == [episode(whole, lane) for lane in some]
    assert len({episode(whole, lane) for lane in range(40)}) == 40
    if task != "HalfCheetah-v5":
        assert len(set(whole.lengths.tolist())) > 5


def test_neighbours_that_are_empty_or_byzantine_change_nothing(forty):
    pool, policy, params, steps, whole = forty("LunarLander-v3")
    mixed = episodes(KEYS, np.where(np.arange(40) % 5 == 0, 0, steps))
    mixed = mixed._replace(byzantine=np.arange(40) % 5 == 2)
    mine = play(pool, policy, params, mixed, steps, ATTACKS["random-action"]("paper").act)
    for lane in range(40):
        same = episode(mine, lane) == episode(whole, lane)
        assert same == (lane % 5 in (1, 3, 4)), lane
    assert not mine.lengths[::5].any()


def test_greedy_episodes_play_the_mode(forty):
    pool, policy, params, steps, _ = forty("LunarLander-v3")
    mine = play(pool, policy, params, episodes(KEYS[:3], steps), steps, greedy=True)
    seen = mine.observations[: mine.lengths.sum()].T
    assert np.array_equal(mine.actions[: mine.lengths.sum()], jax.jit(policy.mode)(params, seen))


def test_another_turn_of_a_kept_pool_is_another_first_state(forty):
    pool, policy, params, steps, whole = forty("HalfCheetah-v5")
    assert not pool_of(pool).reseeds
    others = [play(pool, policy, params, episodes(KEYS[:3], steps, resets=turn), steps) for turn in (0, 1, 2, 3)]
    firsts = {other.observations[other.starts[i]].tobytes() for other in others for i in range(3)}
    assert len(firsts) == 12
    assert episode(others[2], 1) == episode(whole, 1)
    # The noise of the actions is by the key, the first state by its origin.
    moved = episodes(KEYS[:3], steps, resets=2, pool_keys=KEYS[3:6])
    mine = play(pool, policy, params, moved, steps)
    for i in range(3):
        assert np.array_equal(mine.observations[mine.starts[i]], whole.observations[whole.starts[i + 3]])
        assert not np.array_equal(mine.actions[mine.starts[i]], whole.actions[whole.starts[i + 3]])


@pytest.mark.parametrize("task", ["LunarLander-v3", "Walk", "discrete Walk", "HalfCheetah-v5"])
def test_empty_lanes_stay_empty_and_horizons_cut_outside_jax(forty, task):
    pool, policy, params, _, whole = forty(task)
    horizons = np.array([0, 3, 0, 1, 500, 0])
    mine = play(
        pool, policy, params, side_by_side(episodes(KEYS[:6], horizons, resets=2), episodes(KEYS[:1], 0, resets=2)), 8
    )
    longest = np.minimum(whole.lengths[:6], np.minimum(horizons, 8))
    assert mine.lengths.tolist() == [*longest, 0]
    assert longest[1] > 0
    assert not mine.rewards[np.arange(len(mine.rewards))[:, None] >= mine.lengths].any()
    used = mine.lengths.sum()
    assert mine.starts.tolist() == (np.cumsum(mine.lengths) - mine.lengths).tolist()
    assert np.abs(mine.observations[:used]).sum(axis=1).all()
    assert not mine.observations[used:].any()


@pytest.mark.parametrize("steps", [5, LIMIT])
def test_it_is_known_whether_the_task_ended_an_episode_and_where(steps):
    """By hand: `ended` is what the task itself said, and `seen` what it showed after its last step."""
    said: dict[float, tuple[bool, np.ndarray]] = {}

    class Heard(Walk):
        def step(self, action):
            seen, reward, ended, late, about = super().step(action)
            said[reward] = ended, seen
            return seen, reward, ended, late, about

    task = gymnasium_task(Heard, "Heard")
    mine = play(task, *policy_for(task), episodes(KEYS, steps), steps)
    for i, length in enumerate(mine.lengths):
        ended, seen = said[next(r for r in said if np.float32(r) == mine.rewards[length - 1, i])]
        assert mine.terminated[i] == ended
        assert np.array_equal(mine.last[:, i], seen.astype(np.float32))
    assert 5 < mine.terminated.sum() < 35


def test_nothing_is_rolled_out_outside_jax_if_every_lane_is_empty(forty):
    for task in ("LunarLander-v3", "Walk"):
        pool, policy, params, _, _ = forty(task)
        mine = play(pool, policy, params, episodes(KEYS[:2], 0), 8)
        assert mine.lengths.tolist() == [0, 0]


# Pools that are kept

MUJOCO = ["Ant", "HalfCheetah", "Hopper", "Humanoid", "InvertedPendulum", "Reacher", "Swimmer", "Walker2d"]


@pytest.mark.parametrize("task", MUJOCO)
def test_the_nth_first_state_of_a_used_pool_is_that_of_a_new_one(task):
    used, fresh = (pool_of(make_task(f"{task}-v5")) for _ in range(2))
    seeds, everyone = np.array([11, 12, 13], np.int32), np.arange(3, dtype=np.int32)
    rng = np.random.default_rng(0)
    first = []
    # In the second turn nobody moves. In the others, one lane stays at its start, one stops after three steps, and
    # one goes on to its end, by itself or by the task's limit (Reacher's is 50).
    for turn in range(4):
        simulator = used.open(seeds, turn, everyone)
        first.append(simulator.start(everyone).copy())
        alive = everyone[:0] if turn == 1 else everyone[1:]
        for t in range(60):
            alive = alive[1:] if t == 3 else alive
            if len(alive):
                actions = used.to_task(rng.uniform(-1, 1, (len(alive), *used.actions.shape)).astype(np.float32))
                simulator.send(alive, actions)
                alive = alive[~simulator.receive()[3]]
        simulator.close()
    assert len({state.tobytes() for states in first for state in states}) == 12
    for turn in (3, 0, 2):
        assert np.array_equal(fresh.open(seeds, turn, everyone).start(everyone), first[turn]), turn
    assert np.array_equal(fresh.open(seeds[1:2], 2, everyone[1:2]).start(everyone[:1]), first[2][1:2])
    assert np.array_equal(used.open(seeds, 1, everyone).start(everyone), first[1]), (
        "behind what it has reached: made again"
    )


def test_kept_pools_are_dropped_if_there_are_too_many(monkeypatch):
    monkeypatch.setattr("fedpg.tasks.simulators.KEPT", 4)
    pool = pool_of(make_task("InvertedPendulum-v5"))
    several = [np.array([10 * i, 10 * i + 1], np.int32) for i in range(4)]
    both = np.arange(2, dtype=np.int32)
    first = []
    for turn in range(2):
        for seeds in several:
            simulator = pool.open(seeds, turn, both)
            first.append(simulator.start(both).copy())
            simulator.close()
    assert len({states.tobytes() for states in first}) == 8
    for turn, (i, seeds) in itertools.product(range(2), enumerate(several)):
        again = pool_of(make_task("InvertedPendulum-v5")).open(seeds, turn, both).start(both)
        assert np.array_equal(again, first[4 * turn + i])


# Gymnasium's environments, one by one


@pytest.mark.parametrize("task", ["Walk", "discrete Walk"])
@pytest.mark.parametrize("instances", [1, 3])
def test_few_environments_play_what_many_do(forty, task, instances, monkeypatch):
    _, policy, params, steps, whole = forty(task)
    monkeypatch.setattr(registry, "INSTANCES", instances)
    made: list[Walk] = []

    def factory() -> Walk:
        made.append(Walk() if task == "Walk" else gym_probes.discrete_walk())
        return made[-1]

    pool = gymnasium_task(factory, task)
    mine = play(pool, policy, params, episodes(KEYS, steps, resets=2), steps)  # raises if one is stepped after its end
    assert [episode(mine, i) for i in range(40)] == [episode(whole, i) for i in range(40)]
    assert len(made) == instances
    assert sum(len(each.got) for each in made) == mine.lengths.sum()
    play(pool, policy, params, episodes(KEYS, steps), steps)
    assert len(made) == instances, "they are used again"


def test_the_horizon_cuts_episodes_in_few_environments(forty, monkeypatch):
    _, policy, params, steps, whole = forty("Walk")
    monkeypatch.setattr(registry, "INSTANCES", 3)
    mine = play(gymnasium_task(Walk, "Walk"), policy, params, episodes(KEYS, 5), steps)
    assert mine.lengths.tolist() == np.minimum(whole.lengths, 5).tolist()
    assert whole.lengths.max() == LIMIT
    for lane in range(40):
        assert all(a.startswith(b) for a, b in zip(episode(whole, lane), episode(mine, lane), strict=True))


# Actions on their way into the task


def played_by(space: spaces.Space, count: int = 40, act=None, byzantine: bool = False):
    """What the policy did and what the task got, in the same order."""
    environment = Walk(space)
    pool = gymnasium_task(lambda: environment, "Walk")
    policy, params = policy_for(pool, (4,))
    if "log_std" in params:
        params["log_std"] = np.zeros(policy.shapes["log_std"], np.float32)  # wide enough to leave the box
    keys = keys_of(6, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "INSTANCES", 1)  # one lane after the other, as in the packed steps
        mine = play(pool, policy, params, episodes(keys, LIMIT, byzantine=byzantine), LIMIT, act)
    used = mine.lengths.sum()
    return pool, policy, params, mine.observations[:used], mine.actions[:used], np.array(environment.got)


def test_box_actions_are_scaled_to_the_box_and_clipped_only_there():
    pool, policy, params, seen, done, got = played_by(gym_probes.BOX)
    assert np.array_equal(pool.actions.low, [-1, -1])
    assert np.array_equal(pool.actions.high, [1, 1])
    np.testing.assert_allclose(got, np.clip([1.0, 0.5] + [3.0, 0.5] * done, [-2, 0], [4, 1]), rtol=1e-5, atol=1e-6)
    assert got.dtype == np.float32
    assert 0.1 < np.mean(np.abs(done) > 1) < 0.9
    # What is stored is the sample, tails and all, and its log-probability is that of the sample.
    both = jax.jit(lambda seen, chosen: (policy.mode(params, seen), policy.log_prob(params, seen, chosen)))
    mean, log_p = (np.asarray(x, np.float64) for x in both(seen.T, done.T))
    for each in done.T - mean:
        assert scipy.stats.kstest(each, scipy.stats.norm.cdf).pvalue > 1e-3
    expected = scipy.stats.norm.logpdf(done.T.astype(np.float64), mean).sum(axis=0)
    np.testing.assert_allclose(log_p, expected, rtol=1e-4, atol=1e-4)


def test_boxes_without_ends_are_passed_through_and_clipped_at_the_end_they_have():
    infinite = np.inf
    space = spaces.Box(
        np.array([-3, -infinite, 0.2, -infinite], np.float32), np.array([1, infinite, infinite, 0.1], "f")
    )
    pool, _, _, _, done, got = played_by(space)
    assert np.array_equal(pool.actions.low, np.array([-1, -infinite, 0.2, -infinite], np.float32))
    assert np.array_equal(pool.actions.high, np.array([1, infinite, infinite, 0.1], np.float32))
    np.testing.assert_allclose(got[:, 0], np.clip(-1 + 2 * done[:, 0], -3, 1), rtol=1e-5, atol=1e-6)
    assert np.array_equal(got[:, 1], done[:, 1])
    assert np.array_equal(got[:, 2], np.maximum(done[:, 2], np.float32(0.2)))
    assert np.array_equal(got[:, 3], np.minimum(done[:, 3], np.float32(0.1)))
    assert (done[:, 2] < 0.2).any()
    assert (done[:, 3] > 0.1).any()


def test_a_box_of_double_precision_gets_its_actions_so():
    *_, done, got = played_by(spaces.Box(-0.1, 0.3, (3,), np.float64))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, np.clip(0.1 + 0.2 * done.astype(np.float64), -0.1, 0.3), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("start", [-1, 0, 7])
def test_whole_numbers_begin_where_the_tasks_do(start):
    pool, *_, done, got = played_by(spaces.Discrete(3, start=start))
    assert pool.actions == spaces.Discrete(3)
    assert set(done.tolist()) == {0, 1, 2}
    assert np.array_equal(got, done + start)


@pytest.mark.parametrize("form", ["paper", "released"])
def test_a_random_action_agent_plays_any_box(form):
    *_, done, got = played_by(gym_probes.BOX, act=ATTACKS["random-action"](form).act, byzantine=True)
    if form == "released":
        assert not done.any()
        np.testing.assert_allclose(got, np.broadcast_to([1.0, 0.5], got.shape))  # the middle of the box
        return
    for each in done.T:
        assert scipy.stats.kstest(each, scipy.stats.uniform(-1, 2).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(done.T)[0, 1]) < 0.2


@pytest.mark.parametrize("form", ["paper", "released"])
def test_a_random_action_agent_plays_any_whole_number(form):
    *_, done, got = played_by(gym_probes.DISCRETE, act=ATTACKS["random-action"](form).act, byzantine=True)
    if form == "released":
        assert set(got.tolist()) == {-1}
    else:
        assert scipy.stats.chisquare(np.bincount(done, minlength=3)).pvalue > 1e-3


# What goes wrong in a task

TROUBLE = {
    "step": (ZeroDivisionError, "trouble in step"),
    "reset": (ZeroDivisionError, "trouble in reset"),
    "observation": (SimulationError, "Trouble gave an observation that is not finite"),
    "reward": (SimulationError, "Trouble gave a reward that is not finite"),
    "first observation": (SimulationError, "Trouble gave an observation that is not finite, after 0 steps"),
}


@pytest.mark.parametrize("kind", TROUBLE)
def test_an_error_in_a_task_ends_the_rollout_as_it_is_with_the_tasks_name(kind, monkeypatch):
    error, words = TROUBLE[kind]
    task = gymnasium_task(Trouble, "Trouble")
    policy, params = policy_for(task, (4,))
    monkeypatch.setattr(Trouble, "kind", kind)
    monkeypatch.setattr(Trouble, "after", 30)
    monkeypatch.setattr(Trouble, "count", 0)
    monkeypatch.setattr(registry, "INSTANCES", 3)
    with pytest.raises(error, match=words) as caught:
        play(task, policy, params, episodes(KEYS[:20], LIMIT), LIMIT)
    assert type(caught.value) is error
    assert len(caught.value.__notes__) == 1
    assert "in the task Trouble" in caught.value.__notes__[0]
    assert 30 <= Trouble.count < 50, "nothing is simulated any more"
    monkeypatch.setattr(Trouble, "kind", "")
    after = play(task, policy, params, episodes(KEYS[20:], LIMIT), LIMIT)
    fresh = play(gymnasium_task(Trouble, "Trouble"), policy, params, episodes(KEYS[20:], LIMIT), LIMIT)
    assert [episode(after, i) for i in range(20)] == [episode(fresh, i) for i in range(20)], "and the next one is good"


def test_a_rollout_under_way_ends_when_it_is_cancelled():
    cancel = threading.Event()
    steps = itertools.count(1)

    class Counted(Walk):
        def step(self, action):
            if next(steps) == 30:
                cancel.set()
            return super().step(action)

    task = gymnasium_task(Counted, "Counted")
    policy, params = policy_for(task, (4,))
    theta = flat(policy, params)
    with pytest.raises(Stopped) as caught:
        task.rollout(policy, Given(LIMIT, LIMIT), theta, (episodes(KEYS[:20], LIMIT),), cancel=cancel)
    assert next(steps) <= 30 + 20 + 1, "the step of all episodes under way, no more"
    assert not hasattr(caught.value, "__notes__"), "nothing is wrong with the task"
    cancel.clear()
    again = task.rollout(policy, Given(LIMIT, LIMIT), theta, (episodes(KEYS[:20], LIMIT),), cancel=cancel)
    assert (again.lengths > 0).all()


@pytest.mark.parametrize("seen", [[1.0, 2.0, 3.0], [1.0], [[1.0, 2.0]], 7.0], ids=str)
def test_an_observation_of_another_shape_than_its_space_is_refused(seen):
    class Wrong(Walk):
        def _seen(self) -> np.ndarray:
            return np.array(seen)

    pool = gymnasium_task(Wrong, "Wrong")
    policy, params = policy_for(pool, (4,))
    with pytest.raises(SimulationError, match=r"Wrong gave an observation of shape .*, not \(2,\) as its space"):
        play(pool, policy, params, episodes(KEYS[:4], 3), 3)


def test_a_large_but_finite_observation_is_no_error():
    class Far(Walk):
        def _seen(self) -> np.ndarray:
            return np.full(2, 3e38)

    pool = gymnasium_task(Far, "Far")
    policy, params = policy_for(pool, (4,))
    assert play(pool, policy, params, episodes(KEYS[:4], 3), 3).lengths.all()
