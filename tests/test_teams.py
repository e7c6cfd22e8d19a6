"""Two teams that share the episodes and the cores of a rollout: same episodes, own cores, one end."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpg import Run
from fedpg.agents import make_problem
from fedpg.attacks import ATTACKS
from fedpg.config import make_config
from fedpg.environments import Pool, join, lanes, make_environment
from fedpg.environments.environment import Lanes
from fedpg.environments.pool import NARROW, Simulator, cores
from fedpg.training.run import train_seeds
from probes import play, policy_for
from same import same_run

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or cores() < 2, reason="teams need two cores that threads can be kept on"
)

KEYS = jax.random.split(jax.random.key(3), 30)
STEPS = 60


def mixed(turn: int = 0) -> Lanes:
    """Some greedy, some Byzantine, some empty, some short."""
    i = jnp.arange(30)
    these = lanes(KEYS, jnp.where(i % 5 == 0, 0, jnp.where(i % 7 == 0, 11, STEPS)), turn=turn)
    return these._replace(greedy=i % 6 == 1, byzantine=i % 5 == 2)


@pytest.mark.parametrize("task", ["LunarLander-v3", "InvertedPendulum-v5", "HalfCheetah-v5"])
def test_episodes_are_the_same_to_the_bit_however_many_teams_share_them(task: str):
    pool = make_environment(task)
    assert isinstance(pool, Pool)
    assert pool.teams == 2
    policy, params = policy_for(pool)
    act = ATTACKS["random-action"]("text").act
    for turn in (0, 3):
        one, *others = (
            play(pool._replace(teams=teams), policy, params, mixed(turn), STEPS, act) for teams in (1, 2, 3)
        )
        assert len(set(one.lengths.tolist())) > 2
        for other in others:
            for name, mine, theirs in zip(one._fields, one, other, strict=True):
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
        self.steps = 0
        self.fails_at: int | None = None
        self.pool = pool._replace(open=lambda seeds, turn: self.watch(pool.open(seeds, turn), len(seeds)))

    def watch(self, simulator: Simulator, count: int) -> Simulator:
        self.opened.append((count, frozenset(os.sched_getaffinity(0))))
        first = threading.get_ident() != threading.main_thread().ident and len(self.opened) == 1
        step = simulator.step

        def watched(seats: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            self.steps += 1
            if first and self.fails_at is not None and self.steps >= self.fails_at:
                raise ZeroDivisionError("the engine has stalled")
            time.sleep(0.001 if self.fails_at is not None else 0)
            return step(seats, actions)

        simulator.step = watched  # type: ignore[method-assign]
        return simulator


@pytest.fixture
def lander() -> Iterator[Watched]:
    before = os.sched_getaffinity(0)
    yield Watched("LunarLander-v3")
    assert os.sched_getaffinity(0) == before, "only the threads of the teams are kept on their cores"


def test_teams_have_cores_of_their_own_and_the_episodes_between_them(lander: Watched):
    policy, params = policy_for(lander.pool)
    play(lander.pool, policy, params, lanes(KEYS[:27], 5), 5)
    assert sorted(count for count, _ in lander.opened) == [13, 14]
    (_, mine), (_, theirs) = lander.opened
    assert not mine & theirs
    assert mine | theirs == os.sched_getaffinity(0)


def test_a_few_episodes_are_left_to_one_team(lander: Watched):
    policy, params = policy_for(lander.pool)
    play(lander.pool, policy, params, lanes(KEYS[:NARROW], 5), 5)
    assert [count for count, _ in lander.opened] == [NARROW]
    play(lander.pool, policy, params, lanes(KEYS[: NARROW + 1], 5), 5)
    assert len(lander.opened) == 3


def test_the_error_of_one_team_stops_the_other(lander: Watched):
    policy, params = policy_for(lander.pool)
    lander.fails_at = 12
    with pytest.raises(ZeroDivisionError, match="stalled") as caught:
        play(lander.pool, policy, params, lanes(KEYS, 1000), 1000)
    assert lander.steps < 40, "a whole rollout takes hundreds"
    assert len(lander.pool.failures) == 1
    assert len(caught.value.__notes__) == 1
    assert "LunarLander-v3" in caught.value.__notes__[0]


def test_runs_side_by_side_are_not_divided_further(tmp_path: Path):
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
