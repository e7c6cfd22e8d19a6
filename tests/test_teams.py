"""Two teams that share the episodes and the cores of a rollout: same episodes, own cores, one end."""

import dataclasses
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpg import Run, make_config, make_problem, make_task, train_seeds
from fedpg.attacks import ATTACKS
from fedpg.errors import Stopped
from fedpg.machine import cores
from fedpg.tasks import Episodes
from fedpg.tasks.pool import NARROW, pool_of, with_pool
from fedpg.tasks.simulators import KeptPools, Mixed, Simulator, Step
from probes import Given, episodes, flat, keys_of, play, policy_for, side_by_side
from same import same_run

pytestmark = [
    pytest.mark.simulators,
    pytest.mark.skipif(
        not hasattr(os, "sched_setaffinity") or cores() < 2, reason="teams need two cores that threads can be kept on"
    ),
]

KEYS = keys_of(3, 30)
STEPS = 60


def mixed(resets: int = 0) -> Episodes:
    """Some Byzantine, some empty, some short."""
    i = np.arange(30)
    these = episodes(KEYS, np.where(i % 5 == 0, 0, np.where(i % 7 == 0, 11, STEPS)), resets=resets)
    return these._replace(byzantine=i % 5 == 2)


@pytest.mark.kernels
@pytest.mark.parametrize("task", ["LunarLander-v3", "InvertedPendulum-v5", "HalfCheetah-v5"])
def test_episodes_are_the_same_to_the_bit_however_many_teams_share_them(task: str):
    both = make_task(task)
    assert pool_of(both).teams == 2
    policy, params = policy_for(both)
    act = ATTACKS["random-action"]("paper").act
    for resets in (0, 3):
        one, two = (play(with_pool(both, teams=n), policy, params, mixed(resets), STEPS, act) for n in (1, 2))
        assert len(set(one.lengths.tolist())) > 2
        for name, mine, theirs in zip(one._fields, one, two, strict=True):
            assert np.array_equal(mine, theirs), name


def test_a_team_may_have_nothing_to_do():
    task = make_task("LunarLander-v3")
    policy, params = policy_for(task)
    for team in (0, 1):
        mine = play(task, policy, params, episodes(KEYS, np.where(np.arange(30) % 2 == team, STEPS, 0)), STEPS)
        assert (mine.lengths[team::2] > 0).all()
        assert not mine.lengths[1 - team :: 2].any()
    assert not play(task, policy, params, side_by_side(episodes(KEYS, 0), episodes(KEYS, 0)), STEPS).lengths.any()


class Watched:
    """A task whose simulators note where they are opened, and may be made to fail."""

    def __init__(self, name: str) -> None:
        task = make_task(name)
        self.opened: list[tuple[int, frozenset[int]]] = []
        """How many episodes, on which cores."""
        self.fails_on: int | None = None
        """The core whose team fails (or does `on_third_step`) in its third step, after the other has begun."""
        self.begun = threading.Barrier(2, timeout=60)
        self.failed = threading.Event()
        self.steps_after = 0
        self.on_third_step: Callable[[], None] = self.fail
        open_ = pool_of(task).open
        self.task = with_pool(task, open=lambda seeds, *rest: self.watch(open_(seeds, *rest), len(seeds)))

    def fail(self) -> None:
        raise ZeroDivisionError("the engine has stalled")

    def watch(self, simulator: Simulator, count: int) -> Simulator:
        mine = frozenset(os.sched_getaffinity(0))
        self.opened.append((count, mine))
        if self.fails_on is None:
            return simulator
        steps, original = itertools.count(1), simulator.send

        def send(seats: np.ndarray, actions: np.ndarray) -> None:
            if next(steps) == 3:
                self.begun.wait()
                if self.fails_on in mine:
                    self.failed.set()
                    self.on_third_step()
                self.failed.wait(60)
            if self.failed.is_set():
                self.steps_after += 1
                time.sleep(0.02)
            original(seats, actions)

        simulator.send = send  # type: ignore[method-assign]
        return simulator


@pytest.fixture
def lander() -> Iterator[Watched]:
    before = os.sched_getaffinity(0)
    yield Watched("LunarLander-v3")
    assert os.sched_getaffinity(0) == before, "only the threads of the teams are kept on their cores"


def test_teams_have_cores_of_their_own_and_the_episodes_between_them(lander: Watched):
    policy, params = policy_for(lander.task)
    play(lander.task, policy, params, episodes(KEYS[:28], 5), 5)
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
    policy, params = policy_for(lander.task)
    one = play(with_pool(lander.task, teams=1), policy, params, mixed(), STEPS)
    lander.opened.clear()
    several = play(with_pool(lander.task, teams=teams), policy, params, mixed(), STEPS)
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
    policy, params = policy_for(lander.task)
    assert (play(lander.task, policy, params, episodes(KEYS, 5), 5).lengths == 5).all()
    assert len(lander.opened) == 2


def test_a_few_episodes_are_left_to_one_team(lander: Watched, monkeypatch):
    policy, params = policy_for(lander.task)
    everything = os.sched_getaffinity(0)
    for process in (100, 101):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        play(lander.task, policy, params, episodes(KEYS[:NARROW], 5), 5)
    (first, mine), (second, theirs) = lander.opened
    assert first == second == NARROW
    assert mine | theirs == everything, "processes side by side use all cores"
    assert not mine & theirs
    play(lander.task, policy, params, episodes(KEYS[: NARROW + 1], 5), 5)
    assert len(lander.opened) == 4


@pytest.mark.parametrize("team", [0, -1])
def test_the_error_of_one_team_stops_the_other(lander: Watched, team: int):
    policy, params = policy_for(lander.task)
    lander.fails_on = sorted(os.sched_getaffinity(0))[team]
    with pytest.raises(ZeroDivisionError, match="stalled") as caught:
        play(lander.task, policy, params, episodes(KEYS, 1000), 1000)
    assert 1 <= lander.steps_after < 20, "a whole rollout takes a hundred"
    assert len(caught.value.__notes__) == 1
    assert "LunarLander-v3" in caught.value.__notes__[0]


@pytest.mark.parametrize("team", [0, -1])
def test_a_cancelled_rollout_ends_in_both_teams(lander: Watched, team: int):
    policy, params = policy_for(lander.task)
    lander.fails_on = sorted(os.sched_getaffinity(0))[team]
    cancel = threading.Event()
    lander.on_third_step = cancel.set
    with pytest.raises(Stopped):
        lander.task.rollout(policy, Given(1000, 1000), flat(policy, params), (episodes(KEYS, 1000),), cancel=cancel)
    assert 1 <= lander.steps_after < 20, "a whole rollout takes a hundred"


def test_environments_in_use_count_among_those_that_are_kept(monkeypatch):
    monkeypatch.setattr("fedpg.tasks.simulators.KEPT", 40)
    kept = KeptPools("InvertedPendulum-v5")
    old = [kept.open(np.arange(i, i + 10, dtype=np.int32), 0, ()) for i in (0, 10, 20)]
    for simulator in old:
        simulator.close()
    del old, simulator
    assert sum(pool.width for pool in kept.all) == 30
    new = [kept.open(np.arange(i, i + 15, dtype=np.int32), 0, ()) for i in (100, 200)]
    assert sum(pool.width for pool in kept.all) == 40, "thirty in use leave room for one of the old ones"
    new.append(kept.open(np.arange(300, 315, dtype=np.int32), 0, ()))
    assert sum(pool.width for pool in kept.all) == 45, "what is in use is never dropped"
    assert not kept.resting
    while new:
        new.pop().close()
    assert sum(pool.width for pool in kept.all) == 30
    assert len(kept.resting) == 2


def test_runs_side_by_side_are_not_divided_further(tmp_path: Path):
    settings: dict[str, Any] = {
        "horizon": 20,
        "test_horizon": 20,
        "trajectories": 6,
        "batch": (3, 3),
        "minibatch": 2,
        "agents": 4,
        "hidden": (4,),
        "algorithm": "fedpg-br",
        "aggregator": "mean",
    }
    together, alone = Watched("LunarLander-v3"), Watched("LunarLander-v3")
    runs: list[Run] = []
    for watched, seeds in ((together, [0, 1]), (alone, [0])):
        task = dataclasses.replace(watched.task, side_by_side=lambda episodes: 2)
        problem = make_problem(make_config("LunarLander-v3", **settings), task)
        runs.append(train_seeds(problem, seeds, tmp_path / str(len(seeds)))[0])
    everything = frozenset(os.sched_getaffinity(0))
    assert {where for _, where in together.opened} == {everything}
    assert all(where < everything for _, where in alone.opened)
    same_run(*runs)


class Noting:
    """A simulator whose rewards are the actions, and which notes what is asked of it."""

    def __init__(self, name: int, said: list[tuple[str, int]]) -> None:
        self.name, self.said, self.width = name, said, 4
        self.sent = np.zeros(0)

    def start(self, lanes: np.ndarray) -> np.ndarray:
        return np.stack([np.full(len(lanes), self.name), lanes], axis=1)

    def send(self, lanes: np.ndarray, actions: np.ndarray) -> None:
        self.said.append(("send", self.name))
        self.seen, self.sent = self.start(lanes), actions

    def receive(self) -> Step:
        self.said.append(("receive", self.name))
        nobody = np.zeros(len(self.sent), bool)
        return self.seen, self.sent, nobody, nobody

    def end(self, lanes: np.ndarray) -> None:
        self.said.append(("end", self.name))

    def close(self) -> None:
        self.said.append(("close", self.name))


def test_pools_of_agents_that_differ_are_all_under_way_before_one_is_waited_for():
    said: list[tuple[str, int]] = []
    together = Mixed(np.array([7, 5, 7, 9, 5]), lambda variant, members: Noting(variant, said))
    # (variant, seat in its pool) of every episode
    seats = [(7, 0), (5, 0), (7, 1), (9, 0), (5, 1)]
    assert list(map(tuple, together.start(np.arange(5)))) == seats
    for lanes in (np.array([4, 0, 3, 2]), np.array([2, 4])):  # episodes that have ended are not stepped
        said.clear()
        together.send(lanes, 10.0 * lanes)
        seen, rewards, _, over = together.receive()
        assert list(map(tuple, seen)) == [seats[lane] for lane in lanes]
        assert rewards.tolist() == (10.0 * lanes).tolist()
        assert not over.any()
        asked = sorted({seats[lane][0] for lane in lanes})
        assert said == [(what, variant) for what in ("send", "receive") for variant in asked]
