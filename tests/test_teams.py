"""Two teams that share the episodes and the cores of a rollout: same episodes, own cores, one end."""

import functools
import itertools
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpg
from fedpg import Run
from fedpg.agents import make_problem
from fedpg.algorithms import first_state
from fedpg.attacks import ATTACKS
from fedpg.config import make_config
from fedpg.environments import Pool, join, lanes, make_environment
from fedpg.environments.environment import Lanes
from fedpg.environments.pool import NARROW
from fedpg.environments.simulators import KeptPools, Simulator, cores
from fedpg.training.rounds import AT_A_TIME, FOREVER, compile_rounds
from fedpg.training.run import train_seeds
from probes import play, policy_for
from same import same_run

pytestmark = [
    pytest.mark.simulators,
    pytest.mark.skipif(
        not hasattr(os, "sched_setaffinity") or cores() < 2, reason="teams need two cores that threads can be kept on"
    ),
]

KEYS = jax.random.split(jax.random.key(3), 30)
STEPS = 60


def mixed(turn: int = 0) -> Lanes:
    """Some greedy, some Byzantine, some empty, some short."""
    i = jnp.arange(30)
    these = lanes(KEYS, jnp.where(i % 5 == 0, 0, jnp.where(i % 7 == 0, 11, STEPS)), turn=turn)
    return these._replace(greedy=i % 6 == 1, byzantine=i % 5 == 2)


@pytest.mark.kernels
@pytest.mark.parametrize("task", ["LunarLander-v3", "InvertedPendulum-v5", "HalfCheetah-v5"])
def test_episodes_are_the_same_to_the_bit_however_many_teams_share_them(task: str):
    pool = make_environment(task)
    assert isinstance(pool, Pool)
    assert pool.teams == 2
    policy, params = policy_for(pool)
    act = ATTACKS["random-action"]("text").act
    for turn in (0, 3):
        one, two = (play(pool._replace(teams=teams), policy, params, mixed(turn), STEPS, act) for teams in (1, 2))
        assert len(set(one.lengths.tolist())) > 2
        for name, mine, theirs in zip(one._fields, one, two, strict=True):
            assert np.array_equal(mine, theirs), name


def test_a_team_may_have_nothing_to_do():
    pool = make_environment("LunarLander-v3")
    assert isinstance(pool, Pool)
    policy, params = policy_for(pool)
    for team in (0, 1):
        mine = play(pool, policy, params, lanes(KEYS, jnp.where(jnp.arange(30) % 2 == team, STEPS, 0)), STEPS)
        assert (mine.lengths[team::2] > 0).all()
        assert not mine.lengths[1 - team :: 2].any()
    assert not play(pool, policy, params, join(lanes(KEYS, 0), lanes(KEYS, 0)), STEPS).lengths.any()


class Watched:
    """A pool whose simulators note where they are opened, and may be made to fail."""

    def __init__(self, task: str) -> None:
        pool = make_environment(task)
        assert isinstance(pool, Pool)
        self.opened: list[tuple[int, frozenset[int]]] = []
        """How many episodes, on which cores."""
        self.fails_on: int | None = None
        """The core whose team fails, in its third step, after the other has begun."""
        self.begun = threading.Barrier(2, timeout=60)
        self.failed = threading.Event()
        self.steps_after = 0
        self.pool = pool._replace(open=lambda seeds, turn: self.watch(pool.open(seeds, turn), len(seeds)))

    def watch(self, simulator: Simulator, count: int) -> Simulator:
        mine = frozenset(os.sched_getaffinity(0))
        self.opened.append((count, mine))
        if self.fails_on is None:
            return simulator
        steps, original = itertools.count(1), simulator.step

        def step(seats: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            if next(steps) == 3:
                self.begun.wait()
                if self.fails_on in mine:
                    self.failed.set()
                    raise ZeroDivisionError("the engine has stalled")
                self.failed.wait(60)
            if self.failed.is_set():
                self.steps_after += 1
                time.sleep(0.02)
            return original(seats, actions)

        simulator.step = step  # type: ignore[method-assign]
        return simulator


@pytest.fixture
def lander() -> Iterator[Watched]:
    before = os.sched_getaffinity(0)
    yield Watched("LunarLander-v3")
    assert os.sched_getaffinity(0) == before, "only the threads of the teams are kept on their cores"


def test_teams_have_cores_of_their_own_and_the_episodes_between_them(lander: Watched):
    policy, params = policy_for(lander.pool)
    play(lander.pool, policy, params, lanes(KEYS[:28], 5), 5)
    assert sum(count for count, _ in lander.opened) == 28
    (_, mine), (_, theirs) = lander.opened
    assert not mine & theirs
    assert mine | theirs == os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("cores_", "teams", "shares"),
    [(2, 2, {15}), (3, 2, {10, 20}), (5, 2, {12, 18}), (3, 3, {10}), (2, 3, {15}), (64, 2, {15}), (1, 2, {30})],
)
def test_episodes_are_shared_as_the_cores_are(cores_: int, teams: int, shares: set[int], monkeypatch, lander: Watched):
    own = threading.local()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: getattr(own, "cores", set(range(7, 7 + cores_))))
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, mine: setattr(own, "cores", set(mine)))
    policy, params = policy_for(lander.pool)
    one = play(lander.pool._replace(teams=1), policy, params, mixed(), STEPS)
    lander.opened.clear()
    several = play(lander.pool._replace(teams=teams), policy, params, mixed(), STEPS)
    for name, mine, theirs in zip(one._fields, one, several, strict=True):
        assert np.array_equal(mine, theirs), name
    assert sorted(core for _, where in lander.opened for core in where) == list(range(7, 7 + cores_))
    assert sum(count for count, _ in lander.opened) == 30
    assert {count for count, _ in lander.opened} == shares
    monkeypatch.undo()


def test_threads_that_may_not_be_kept_on_cores_play_all_the_same(lander: Watched, monkeypatch):
    def refuse(pid: int, mine: object) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    policy, params = policy_for(lander.pool)
    assert (play(lander.pool, policy, params, lanes(KEYS, 5), 5).lengths == 5).all()
    assert len(lander.opened) == 2


def test_a_few_episodes_are_left_to_one_team(lander: Watched, monkeypatch):
    policy, params = policy_for(lander.pool)
    everything = os.sched_getaffinity(0)
    for process in (100, 101):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        play(lander.pool, policy, params, lanes(KEYS[:NARROW], 5), 5)
    (first, mine), (second, theirs) = lander.opened
    assert first == second == NARROW
    assert mine | theirs == everything, "processes side by side use all cores"
    assert not mine & theirs
    play(lander.pool, policy, params, lanes(KEYS[: NARROW + 1], 5), 5)
    assert len(lander.opened) == 4


@pytest.mark.parametrize("team", [0, -1])
def test_the_error_of_one_team_stops_the_other(lander: Watched, team: int):
    policy, params = policy_for(lander.pool)
    lander.fails_on = sorted(os.sched_getaffinity(0))[team]
    with pytest.raises(ZeroDivisionError, match="stalled") as caught:
        play(lander.pool, policy, params, lanes(KEYS, 1000), 1000)
    assert 1 <= lander.steps_after < 20, "a whole rollout takes a hundred"
    assert len(lander.pool.failures) == 1
    assert len(caught.value.__notes__) == 1
    assert "LunarLander-v3" in caught.value.__notes__[0]


def test_environments_in_use_count_among_those_that_are_kept(monkeypatch):
    monkeypatch.setattr("fedpg.environments.simulators.KEPT", 40)
    kept = KeptPools("InvertedPendulum-v5")
    old = [kept.open(np.arange(i, i + 10, dtype=np.int32), 0) for i in (0, 10, 20)]
    for simulator in old:
        simulator.close()
    del old, simulator
    assert sum(pool.width for pool in kept.all) == 30
    new = [kept.open(np.arange(i, i + 15, dtype=np.int32), 0) for i in (100, 200)]
    assert sum(pool.width for pool in kept.all) == 40, "thirty in use leave room for one of the old ones"
    new.append(kept.open(np.arange(300, 315, dtype=np.int32), 0))
    assert sum(pool.width for pool in kept.all) == 45, "what is in use is never dropped"
    assert not kept.resting
    while new:
        new.pop().close()
    assert sum(pool.width for pool in kept.all) == 30
    assert len(kept.resting) == 2


def test_runs_side_by_side_are_not_divided_further(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(fedpg.training.run, "AT_A_TIME", 2)
    settings: dict[str, Any] = {
        "horizon": 20,
        "test_horizon": 20,
        "trajectories": 6,
        "batch": (3, 3),
        "minibatch": 2,
        "agents": 4,
    }
    together, alone = Watched("LunarLander-v3"), Watched("LunarLander-v3")
    runs: list[Run] = []
    for watched, seeds in ((together, [0, 1]), (alone, [0])):
        problem = make_problem(make_config("LunarLander-v3", **settings), watched.pool)
        runs.append(train_seeds(problem, seeds, tmp_path / str(len(seeds)))[0])
    everything = frozenset(os.sched_getaffinity(0))
    assert {where for _, where in together.opened} == {everything}
    assert all(where < everything for _, where in alone.opened)
    same_run(*runs)


def test_call_outs_never_take_all_of_xlas_threads(monkeypatch):
    """One copies the arguments of the others."""
    under_way, most = [0], [0]
    lock = threading.Lock()

    def opening(pool: Pool, seeds: np.ndarray, turn: int) -> Simulator:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        time.sleep(0.01)
        with lock:
            under_way[0] -= 1
        return pool.open(seeds, turn)

    settings: dict[str, Any] = {"horizon": 3, "test_horizon": 3, "batch": (3, 3), "minibatch": 2, "agents": 2}
    problems = []
    for task in ("LunarLander-v3", "Acrobot-v1"):
        pool = make_environment(task)
        assert isinstance(pool, Pool)
        pool = pool._replace(teams=1, open=functools.partial(opening, pool))
        problems.append(make_problem(make_config(task, **settings), pool))
    several = [compile_rounds(problem) for problem in problems]
    with ThreadPoolExecutor(2 * cores()) as threads:
        jobs = [
            threads.submit(several[i % 2], first_state(problems[i % 2], i), jnp.int32(2), jnp.int32(FOREVER))
            for i in range(3 * cores())
        ]
        assert all(int(job.result(timeout=120)[0]) == 2 for job in jobs)
    assert most[0] == AT_A_TIME
