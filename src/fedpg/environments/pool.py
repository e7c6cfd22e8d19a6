"""Tasks simulated outside JAX, stepped from Python: EnvPool where it has the task, else Gymnasium.

The simulator is called from within the compiled round, once per rollout. There, only episodes that are still alive are
stepped, and NumPy evaluates the policy: for the few of them that are left at the end of a rollout, or that the server
samples in its inner loop, a compiled call per step would cost as much as the simulation.

An episode depends on its keys alone. Gymnasium reseeds an environment at `reset`; EnvPool takes seeds at creation only,
where LunarLander takes 10 us and HalfCheetah 1 ms, a twentieth of an episode. So every rollout of LunarLander has a
pool of its own. MuJoCo's tasks draw nothing after `reset`, which makes their n-th first state a function of the seed
and of n: their pools are kept for a season of rounds, and one that is lost is made again and reset n times.

EnvPool's episodes are divided between two teams, and the cores too. A team is a thread of Python that acts, and a pool
that simulates on the same cores: while one team acts the other simulates, so that no core is idle; and within a team
nobody has to wake a sleeping core, which takes longer than a step of a lander.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from fedpg.columns import padded
from fedpg.config import SimulationError
from fedpg.environments.environment import BLOCK, Lanes
from fedpg.environments.simulators import Simulator
from fedpg.policies import Params, Policy
from fedpg.trajectories import Trajectories

SLACK = 2048
"""Packed buffers are this much longer than all their steps: whoever walks over them in blocks may overshoot."""
NARROW = 8
"""So few episodes are left to one team and its cores: two would wait for each other in Python longer than they gain."""

Act = Callable[[Any, Any], Any]


class Pool(NamedTuple):
    """A task outside JAX."""

    id: str
    open: Callable[[np.ndarray, int], Simulator]
    """(one seed per lane [N], how many first states to pass over) -> a simulator of N episodes."""
    reseeds: bool
    """Every episode has a seed of its own; else it begins with a later first state of a seed of its series."""
    observations: int
    actions: spaces.Space[Any]
    """As the policy sees them: whole numbers from 0, or a box that is (-1, 1) where the task's has ends."""
    to_task: Callable[[np.ndarray], np.ndarray]
    """The policy's actions [n] or [n, A] -> the task's: scaled to its box and clipped."""
    limit: int
    """The task's own limit of steps."""
    simulator: str
    """What simulates it, for people."""
    clock: dict[str, float]
    """Seconds spent so far, by phase (a `defaultdict`)."""
    failures: list[BaseException]
    """What the simulator raised: see `check`."""
    teams: int
    """How many share the episodes and the cores; a single one is kept on no core."""

    def fail(self, error: BaseException) -> None:
        """Note what went wrong, which ends the rollouts that are under way."""
        if not self.failures:
            error.add_note(f"This happened in the task {self.id}; a run that has a checkpoint can be resumed.")
            self.failures.append(error)

    def check(self) -> None:
        """Raise what went wrong in the simulator. A compiled call cannot: it ends early, with empty episodes."""
        if self.failures:
            raise self.failures[0]


def pool_rollout(
    pool: Pool,
    policy: Policy,
    params: Params,
    lanes: Lanes,
    steps: int,
    act: Act | None = None,
) -> Trajectories:
    """As `rollout`, by a simulator outside JAX."""
    size = -(-steps // BLOCK) * BLOCK
    count = lanes.keys.shape[0]
    keys = jax.vmap(lambda k: jax.random.split(k, 2))(lanes.keys)  # [N, 2]
    origins = keys[:, 0] if pool.reseeds else lanes.origins
    seeds = jax.vmap(lambda k: jax.random.bits(k) >> 1)(origins).astype(jnp.int32)
    turn = jnp.int32(0) if pool.reseeds else lanes.turns[0]  # a rollout is of one round
    noise = jax.vmap(lambda k: policy.noise(k, size), out_axes=1)(keys[:, 1])  # [n, N, T]
    random = None if act is None else policy.random(noise)
    order = Order(params, seeds, turn, noise, random, jnp.minimum(lanes.horizon, steps), lanes.greedy, lanes.byzantine)

    def shape(*dimensions: int, dtype: Any = jnp.float32) -> Any:
        return jax.ShapeDtypeStruct(dimensions, dtype)

    box = pool.actions.shape or ()  # whole numbers have none
    capacity = count * steps + SLACK
    shapes = Trajectories(
        observations=shape(capacity, pool.observations),
        actions=shape(capacity, *box, dtype=jnp.float32 if box else jnp.int32),
        rewards=shape(size, count),
        lengths=shape(count, dtype=jnp.int32),
        starts=shape(count, dtype=jnp.int32),
    )

    def simulate(order: Order) -> Trajectories:
        packed = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes)
        if not pool.failures:
            try:
                _simulate(pool, policy, act, jax.tree.map(np.asarray, order), packed)
            except BaseException as error:
                pool.fail(error)
        return packed

    return jax.pure_callback(simulate, shapes, order)


class Order(NamedTuple):
    """What a rollout is to do, by lane; arrays of JAX where it is ordered, of NumPy where it is carried out."""

    params: Any
    seeds: Any  # [N]
    turn: Any
    noise: Any  # [n, N, T]
    random: Any  # [N, T] or [A, N, T]: what the random-action attack does; None if nobody acts otherwise
    horizon: Any  # [N]
    greedy: Any  # [N]
    byzantine: Any  # [N]


def _simulate(pool: Pool, policy: Policy, act: Act | None, order: Order, packed: Any) -> None:
    """Roll out the lanes, and fill in `packed`."""
    # Every step of the loop appends what it did, which costs next to nothing; all is put in order at the end.
    history = _by_teams(pool, policy, act, order)
    if not history:  # every lane was to stay empty
        return
    began = time.perf_counter()
    lane, seen, done, rewards = (np.concatenate(part) for part in zip(*history, strict=True))
    by_lane = np.argsort(lane, kind="stable")  # within a lane, time goes on
    length = np.bincount(lane, minlength=len(order.seeds))
    starts = np.cumsum(length) - length
    packed.lengths[:], packed.starts[:] = length, starts
    packed.observations[: len(lane)] = seen[by_lane]
    packed.actions[: len(lane)] = done[by_lane]
    lane = lane[by_lane]
    packed.rewards[np.arange(len(lane)) - starts[lane], lane] = rewards[by_lane]
    pool.clock["pack"] += time.perf_counter() - began
    pool.clock["steps"] += len(lane)


History = list[tuple[np.ndarray, ...]]
"""(lanes, observations, actions, rewards) of every step."""


def _by_teams(pool: Pool, policy: Policy, act: Act | None, order: Order) -> History:
    """All episodes, each by one of the teams."""
    lanes = np.arange(len(order.seeds), dtype=np.int32)
    if pool.teams == 1:
        played = [_episodes(pool, policy, act, order, lanes)]
    else:
        divided = _divide(lanes, pool.teams)

        def play(mine: np.ndarray, cores: list[int]) -> tuple[History, dict[str, float]]:
            with contextlib.suppress(OSError):  # slower, where it is forbidden
                os.sched_setaffinity(0, cores)  # this thread's, and of what it begins: the pool's
            try:
                return _episodes(pool, policy, act, order, mine)
            except BaseException as error:
                pool.fail(error)  # stops the other team too
                raise

        with ThreadPoolExecutor(len(divided)) as threads:
            try:
                played = [job.result() for job in [threads.submit(play, *team) for team in divided]]
            except BaseException as error:
                pool.fail(error)  # an interrupt, which arrives here
                raise
    times = [sum(spent.values()) for _, spent in played]
    pool.clock["wait"] += max(times) - sum(times) / len(times)
    for _, spent in played:
        for phase, seconds in spent.items():
            pool.clock[phase] += seconds / len(played)
    return [step for history, _ in played for step in history]


def _divide(lanes: np.ndarray, teams: int) -> list[tuple[np.ndarray, list[int]]]:
    """The lanes and the cores of each team: as much of the lanes, in turn, as it has of the cores."""
    shares = [share.tolist() for share in np.array_split(sorted(os.sched_getaffinity(0)), teams) if len(share)]
    if len(lanes) <= NARROW:
        return [(lanes, shares[os.getpid() % len(shares)])]  # those of several processes do not meet on one core
    turns = sorted(((i + 0.5) / len(share), team) for team, share in enumerate(shares) for i in range(len(share)))
    whose = np.array([team for _, team in turns])[lanes % len(turns)]
    return [(lanes[whose == team], share) for team, share in enumerate(shares)]


def _episodes(
    pool: Pool, policy: Policy, act: Act | None, order: Order, mine: np.ndarray
) -> tuple[History, dict[str, float]]:
    """The episodes of these lanes, as many at a time as the simulator takes, and the seconds spent on each phase."""
    began = time.perf_counter()
    simulator = pool.open(order.seeds[mine], int(order.turn))
    seats = np.zeros(len(order.seeds), np.int32)  # of a lane, in the simulator
    seats[mine] = np.arange(len(mine))
    lane, waiting = np.split(mine[order.horizon[mine] > 0], [simulator.width])  # alive; not yet
    t = np.zeros(len(lane), np.int32)  # the steps behind each
    observations = simulator.start(seats[lane])
    ready = time.perf_counter()
    simulating = 0.0
    boxes = bool(pool.actions.shape)
    horizon = order.noise.shape[-1]
    all_noise = order.noise.reshape(len(order.noise), -1)  # [n, N * T]
    changed = True
    history: History = []
    while n := len(lane):
        pool.check()  # another thread may have failed, or want to stop
        if observations.shape != (n, pool.observations):
            raise SimulationError(
                f"{pool.id} gave an observation of shape {observations.shape[1:]}, not ({pool.observations},) as its "
                "space says; reset must return (observation, info)"
            )
        if changed:
            wide = np.zeros((pool.observations + len(order.noise), padded(n)), np.float32)
            now, noise = wide[: pool.observations], wide[pool.observations :]
            seat = seats[lane]
            place = lane * horizon + t  # in all_noise
            left = order.horizon[lane] - t
            greedy = np.flatnonzero(order.greedy[lane])
            few = np.zeros((pool.observations, padded(len(greedy))), np.float32)
            byzantine = np.flatnonzero(order.byzantine[lane]) if act is not None else np.arange(0)
        now[:, :n] = observations.T  # to float32, where what was finite may not be any more
        if not math.isfinite(now.sum()):
            _refuse(pool, t, now[:, :n].T)
        if len(greedy) == n:
            actions = policy.mode(order.params, now, np)[..., :n]
        else:
            noise[:, :n] = all_noise.take(place, axis=1)
            actions = policy.sample(order.params, now, noise, np)[..., :n]
        if 0 < len(greedy) < n:
            few[:, : len(greedy)] = now[:, greedy]
            actions[..., greedy] = policy.mode(order.params, few, np)[..., : len(greedy)]
        if len(byzantine):
            lies = act(actions[..., byzantine], order.random[..., lane[byzantine], t[byzantine]])  # type: ignore[misc]
            actions[..., byzantine] = np.asarray(lies)
        actions = actions.T if boxes else actions  # [n, A] or [n]
        seen = now[:, :n].T.copy()
        inputs = pool.to_task(actions)
        called = time.perf_counter()
        observations, rewards, over = simulator.step(seat, inputs)
        simulating += time.perf_counter() - called
        rewards = np.asarray(rewards, np.float32)
        if not math.isfinite(rewards.sum()):
            _refuse(pool, t + 1, rewards)
        history.append((lane, seen, actions, rewards))
        t, place, left = t + 1, place + 1, left - 1
        over = over | (left == 0)
        changed = bool(over.any())
        if changed:
            simulator.end(seat[over])
            lane, t, observations = lane[~over], t[~over], observations[~over]
            if len(waiting):
                fresh, waiting = np.split(waiting, [simulator.width - len(lane)])
                observations = np.concatenate([observations, simulator.start(seats[fresh])])
                lane, t = np.concatenate([lane, fresh]), np.concatenate([t, np.zeros(len(fresh), np.int32)])
    simulator.close()
    acting = time.perf_counter() - ready - simulating
    return history, {"create": ready - began, "simulate": simulating, "act": acting}


def _refuse(pool: Pool, t: np.ndarray, values: np.ndarray) -> None:
    """Say what is wrong with observations [n, F] or rewards [n] after t steps, if anything is (a sum may overflow)."""
    what = "a reward" if values.ndim == 1 else "an observation"
    bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    if bad.any():
        raise SimulationError(
            f"{pool.id} gave {what} that is not finite, after {int(t[bad].min())} steps of an episode: "
            "correct the task, or wrap it"
        )
