"""Tasks simulated outside JAX, stepped from Python: EnvPool where it has the task, else Gymnasium.

The simulator is called from within the compiled round, once per rollout. There, only episodes that are still alive are
stepped, and NumPy evaluates the policy: for the few of them that are left at the end of a rollout, or that the server
samples in its inner loop, a compiled call per step would cost as much as the simulation.

An episode depends on its keys alone. Gymnasium reseeds an environment at `reset`; EnvPool takes seeds at creation only,
where LunarLander takes 10 us and HalfCheetah 1 ms, a twentieth of an episode. So every rollout of LunarLander has a
pool of its own. MuJoCo's tasks draw nothing after `reset`, which makes their n-th first state a function of the seed
and of n: their pools are kept for a season of rounds, and one that is lost is made again and reset n times.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from fedpg.config import SimulationError
from fedpg.environments.environment import BLOCK, Lanes
from fedpg.policies import Params, Policy
from fedpg.trajectories import Trajectories

SLACK = 2048
"""Packed buffers are this much longer than all their steps: whoever walks over them in blocks may overshoot."""
LANES = 16
"""Policies are evaluated for a multiple of so many lanes, which makes matrix products give each lane the same bits
however many there are."""


KEPT = 1200
"""Environments that are kept, at a megabyte each: those of a round of ten agents and its inner loop, twice."""

Act = Callable[[Any, Any], Any]


class Simulator(Protocol):
    """Episodes under way, one per lane."""

    width: int
    """How many can be under way at a time."""

    def start(self, lanes: np.ndarray) -> np.ndarray:
        """Begin the episodes of these lanes: their first observations.  [n, F]"""
        ...

    def step(self, lanes: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(observations [n, F], rewards [n], over [n]) of one step of these lanes."""
        ...

    def end(self, lanes: np.ndarray) -> None:
        """These episodes are over, or cut off."""
        ...

    def close(self) -> None:
        """All are."""
        ...


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
                pool.failures.append(error)
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


class Work(NamedTuple):
    """What has been done so far, by lane."""

    seen: np.ndarray  # [N, T, F]
    done: np.ndarray  # [N, T] or [N, T, A]
    rewards: np.ndarray  # [N, T]
    length: np.ndarray  # [N]


def _simulate(pool: Pool, policy: Policy, act: Act | None, order: Order, packed: Any) -> None:
    """Roll out the lanes, and fill in `packed`."""
    horizon = order.horizon
    lanes, steps = len(horizon), int(horizon.max(initial=0))
    work = Work(
        seen=np.empty((lanes, steps, pool.observations), np.float32),
        done=np.empty((lanes, steps, *packed.actions.shape[1:]), packed.actions.dtype),
        rewards=np.zeros((lanes, packed.rewards.shape[0]), np.float32),
        length=np.zeros(lanes, np.int32),
    )
    _episodes(pool, policy, act, order, work)
    began = time.perf_counter()
    packed.lengths[:] = work.length
    packed.starts[:] = np.cumsum(work.length) - work.length
    packed.rewards[:] = work.rewards.T
    used = np.arange(steps) < work.length[:, None]  # [N, T]
    total = int(work.length.sum())
    packed.observations[:total] = work.seen[used]
    packed.actions[:total] = work.done[used]
    pool.clock["pack"] += time.perf_counter() - began
    pool.clock["steps"] += total


def _episodes(pool: Pool, policy: Policy, act: Act | None, order: Order, work: Work) -> None:
    """All episodes, as many at a time as the simulator takes."""
    clock, began = pool.clock, time.perf_counter()
    simulator = pool.open(order.seeds, int(order.turn))
    boxes = work.done.ndim == 3
    some_greedy = bool(order.greedy.any())
    some_byzantine = act is not None and bool(order.byzantine.any())

    lane, waiting = np.split(np.flatnonzero(order.horizon > 0).astype(np.int32), [simulator.width])  # alive; not yet
    observations = simulator.start(lane)
    clock["create"] += time.perf_counter() - began
    buffer = np.zeros((pool.observations + order.noise.shape[0], _padded(len(lane))), np.float32)
    while n := len(lane):
        tick = time.perf_counter()
        t = work.length[lane]
        if buffer.shape[1] != _padded(n):
            buffer = np.zeros((buffer.shape[0], _padded(n)), np.float32)
        now, noise = buffer[: pool.observations], buffer[pool.observations :]
        now[:, :n] = observations.T
        noise[:, :n] = order.noise[:, lane, t]
        actions = policy.sample(order.params, now, noise, np)[..., :n]
        if some_greedy:
            which = np.flatnonzero(order.greedy[lane])
            few = np.zeros((pool.observations, _padded(len(which))), np.float32)
            few[:, : len(which)] = now[:, which]
            actions[..., which] = policy.mode(order.params, few, np)[..., : len(which)]
        if some_byzantine and order.byzantine[lane].any():
            lies = np.asarray(act(actions, order.random[..., lane, t]))  # type: ignore[misc,index]
            actions = np.where(order.byzantine[lane], lies, actions)
        actions = actions.T if boxes else actions  # [n, A] or [n]
        work.seen[lane, t] = now[:, :n].T
        work.done[lane, t] = actions
        tock = time.perf_counter()
        observations, reward, over = simulator.step(lane, pool.to_task(actions))
        clock["simulate"] += time.perf_counter() - tock
        clock["act"] += tock - tick
        if not (np.isfinite(observations).all() and np.isfinite(reward).all()):
            raise SimulationError(
                f"{pool.id} gave an observation or a reward that is not finite, at step "
                f"{_first_bad(t, observations, reward)} of an episode: correct the task, or wrap it"
            )
        work.rewards[lane, t] = reward
        work.length[lane] = t + 1
        over = over | (t + 1 >= order.horizon[lane])
        if over.any():
            simulator.end(lane[over])
            lane, observations = lane[~over], observations[~over]
            if len(waiting):
                fresh, waiting = np.split(waiting, [simulator.width - len(lane)])
                observations = np.concatenate([observations, simulator.start(fresh)])
                lane = np.concatenate([lane, fresh])
    simulator.close()


def _first_bad(t: np.ndarray, observations: np.ndarray, reward: np.ndarray) -> int:
    good = np.isfinite(observations).all(axis=1) & np.isfinite(reward)
    return int(t[~good].min()) + 1


def _padded(lanes: int) -> int:
    return -(-lanes // LANES) * LANES


class EnvPoolSimulator:
    """A pool, all episodes of which are under way at once."""

    def __init__(self, task: str, seeds: np.ndarray, threads: int, kept: "KeptPools | None" = None) -> None:
        import envpool

        self.width = len(seeds)
        self.seeds = seeds
        self.kept = kept
        self.resets = 0
        self.pool = envpool.make_gymnasium(
            task, num_envs=len(seeds), num_threads=min(threads, len(seeds)), env_seed=seeds.tolist()
        )

    def start(self, lanes: np.ndarray) -> np.ndarray:
        if self.kept is None:
            return self.pool.reset(lanes)[0]
        self.resets += 1
        return self.pool.reset()[0][lanes]  # all of them, used or not: they stay at the same first state

    def step(self, lanes: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        observations, rewards, terminated, truncated, _ = self.pool.step(actions, lanes)
        return observations, rewards, terminated | truncated

    def end(self, lanes: np.ndarray) -> None:
        """Nothing to do: what is not stepped costs nothing."""

    def close(self) -> None:
        if self.kept is not None:
            self.kept.put(self)


class KeptPools:
    """Pools of a task that draws nothing after `reset`, kept for the next rounds."""

    def __init__(self, task: str, threads: int) -> None:
        self.task, self.threads = task, threads
        self.pools: dict[bytes, EnvPoolSimulator] = {}
        self.lock = threading.Lock()

    def open(self, seeds: np.ndarray, turn: int) -> EnvPoolSimulator:
        """The pool with these seeds, with `turn` first states behind it."""
        with self.lock:
            simulator = self.pools.pop(seeds.tobytes(), None)
        if simulator is None or simulator.resets > turn:
            simulator = EnvPoolSimulator(self.task, seeds, self.threads, self)
        while simulator.resets < turn:
            simulator.start(np.arange(0))
        return simulator

    def put(self, simulator: EnvPoolSimulator) -> None:
        """Keep it, and drop the oldest ones if there are too many."""
        with self.lock:
            self.pools[simulator.seeds.tobytes()] = simulator
            while len(self.pools) > 1 and sum(pool.width for pool in self.pools.values()) > KEPT:
                self.pools.pop(next(iter(self.pools)))


class GymnasiumSimulator:
    """Environments of Gymnasium, stepped one by one; one that has ended its episode begins the next lane's."""

    def __init__(self, environments: list[Any], seeds: np.ndarray, kept: list[Any]) -> None:
        self.width = len(environments)
        self.free = environments
        self.kept = kept
        self.busy: dict[int, Any] = {}
        self.seeds = seeds

    def start(self, lanes: np.ndarray) -> np.ndarray:
        first = []
        for lane in lanes.tolist():
            environment = self.busy[lane] = self.free.pop()
            first.append(environment.reset(seed=int(self.seeds[lane]))[0])
        return np.asarray(first)

    def step(self, lanes: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        observations, rewards, over = [], np.empty(len(lanes)), np.empty(len(lanes), bool)
        for i, lane in enumerate(lanes.tolist()):
            observation, rewards[i], terminated, truncated, _ = self.busy[lane].step(actions[i])
            observations.append(observation)
            over[i] = terminated or truncated
        return np.asarray(observations), rewards, over

    def end(self, lanes: np.ndarray) -> None:
        self.free.extend(self.busy.pop(lane) for lane in lanes.tolist())

    def close(self) -> None:
        self.kept.extend(self.free)
