"""Tasks simulated outside JAX, stepped from Python: EnvPool where it has the task, else Gymnasium.

Only episodes that are still alive are stepped, and NumPy evaluates the policy: for the few of them that are left at the
end of a rollout, or that the server samples in its inner loop, a compiled call per step would cost as much as the
simulation.

An episode depends on its keys alone. Gymnasium reseeds an environment at `reset`; EnvPool takes seeds at creation only,
where LunarLander takes 10 us and HalfCheetah 1 ms, a twentieth of an episode. So every rollout of LunarLander has a
pool of its own. MuJoCo's tasks draw nothing after `reset`, which makes their n-th first state a function of the seed
and of n: their pools are kept for some rounds, and one that is lost is made again and reset n times.

EnvPool's episodes are divided between two teams, and the cores too. A team is a thread of Python that acts, and a pool
that simulates on the same cores: while one team acts the other simulates, so that no core is idle; and within a team
nobody has to wake a sleeping core, which takes longer than a step of a lander.
"""

import contextlib
import dataclasses
import functools
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array

from fedpg.columns import padded
from fedpg.errors import SimulationError, Stopped
from fedpg.machine import cores
from fedpg.policies import Policy
from fedpg.tasks.compiled import padded_steps
from fedpg.tasks.simulators import KEPT, Simulator
from fedpg.tasks.task import Act, Plan, Task, Then, Vary
from fedpg.trajectories import PACKED_BLOCK, Trajectories

MOST = 600
"""Episodes that are rolled out together: a MuJoCo environment takes a megabyte; those of ten agents fit."""
NARROW = 8
"""So few episodes are left to one team and its cores: two would wait for each other in Python longer than they gain."""


@dataclass(frozen=True, eq=False)
class Pool:
    """A simulator outside JAX, as the rollouts here need it."""

    id: str
    open: Callable[[np.ndarray, int, np.ndarray], Simulator]
    """(a seed per episode [N], how many first states to pass over, whose task each is [N]) -> N episodes."""
    reseeds: bool
    """Every episode has a seed of its own; else it begins with a later first state of its pool's seed."""
    observations: int
    actions: spaces.Space[Any]
    to_task: Callable[[np.ndarray], np.ndarray]
    limit: int
    simulator: str
    teams: int
    """How many share the episodes and the cores; a single one is kept on no core."""
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def pool_task(pool: Pool, vary: Vary, nominal: Mapping[str, float], varied: Mapping[str, Any]) -> Task:
    """The task that this simulator simulates."""
    return Task(
        id=pool.id,
        observations=pool.observations,
        actions=pool.actions,
        limit=pool.limit,
        simulator=pool.simulator,
        rollout=functools.partial(_rollout, pool),
        to_task=pool.to_task,
        vary=vary,
        nominal=nominal,
        widths=lambda low, high: (high,),  # only the episodes that are wanted cost anything
        most=MOST,
        side_by_side=functools.partial(_side_by_side, pool),
        threads=lambda policy: 1,  # its teams have all cores
        beside_others=lambda: pool_task(dataclasses.replace(pool, teams=1), vary, nominal, varied),
        seconds=pool.seconds,
        varied=varied,
    )


def pool_of(task: Task) -> Pool:
    """What simulates a task outside JAX, for who wants to measure it."""
    assert isinstance(task.rollout, functools.partial)
    return task.rollout.args[0]


def with_pool(task: Task, **changes: Any) -> Task:
    """The same task, with something else in its simulator."""
    return pool_task(dataclasses.replace(pool_of(task), **changes), task.vary, task.nominal, task.varied)


def _side_by_side(pool: Pool, episodes: int) -> int:
    """One fewer than there are cores, since the teams of one run use two; and no more than can keep their pools."""
    most = max(1, cores() - 1)
    return most if pool.reseeds else max(1, min(most, KEPT // episodes))


class Order(NamedTuple):
    """What a rollout is to do, by episode; arrays of JAX where it is ordered, of NumPy where it is carried out."""

    params: Any
    seeds: Any  # [N]
    resets: Any
    noise: Any  # [n, N, T]
    random: Any  # [N, T] or [A, N, T]: what the random-action attack does; None if nobody acts otherwise
    horizon: Any  # [N]
    agents: Any  # [N]
    byzantine: Any  # [N]


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _order(policy: Policy, plan: Plan, reseeds: bool, dishonest: bool, theta: Array, inputs: tuple[Any, ...]) -> Order:
    episodes = plan(*inputs)
    keys = jax.vmap(lambda k: jax.random.split(k, 2))(episodes.keys)  # [N, 2]
    seeds = jax.vmap(lambda k: jax.random.bits(k) >> 1)(keys[:, 0] if reseeds else episodes.pool_keys)
    noise = jax.vmap(lambda k: policy.noise(k, padded_steps(plan.noise_steps)), out_axes=1)(keys[:, 1])  # [n, N, T]
    return Order(
        params=policy.unravel(theta),
        seeds=seeds.astype(jnp.int32),
        resets=jnp.int32(0) if reseeds else episodes.resets,
        noise=noise,
        random=policy.random(noise) if dishonest else None,
        horizon=jnp.minimum(episodes.horizon, plan.steps),
        agents=episodes.agents,
        byzantine=episodes.byzantine,
    )


def _rollout(
    pool: Pool,
    policy: Policy,
    plan: Plan,
    theta: Array,
    inputs: tuple[Any, ...],
    act: Act | None = None,
    cancel: threading.Event | None = None,
    then: Then | None = None,
    given: tuple[Any, ...] = (),
) -> Any:
    """The episodes of a plan, stepped from Python, packed."""
    order = jax.tree.map(np.asarray, _order(policy, plan, pool.reseeds, act is not None, theta, inputs))
    count = len(order.seeds)
    box = pool.actions.shape or ()  # whole numbers have none
    capacity = count * plan.steps + PACKED_BLOCK  # the same every round, so that nothing is compiled again
    packed = Trajectories(
        observations=np.zeros((capacity, pool.observations), np.float32),  # type: ignore[arg-type]
        actions=np.zeros((capacity, *box), np.float32 if box else np.int32),  # type: ignore[arg-type]
        rewards=np.zeros((padded_steps(plan.steps), count), np.float32),  # type: ignore[arg-type]
        lengths=np.zeros(count, np.int32),  # type: ignore[arg-type]
        terminated=np.zeros(count, bool),  # type: ignore[arg-type]
        last=np.zeros((pool.observations, count), np.float32),  # type: ignore[arg-type]
        starts=np.zeros(count, np.int32),  # type: ignore[arg-type]
    )
    try:
        _simulate(pool, policy, plan.greedy, act, order, packed, cancel)
    except Stopped:
        raise
    except Exception as error:
        error.add_note(f"This happened in the task {pool.id}; a run that has a checkpoint can be resumed.")
        raise
    return packed if then is None else _then(then, packed, given)


@functools.partial(jax.jit, static_argnums=0)
def _then(then: Then, mine: Trajectories, given: tuple[Any, ...]) -> Any:
    return then(mine, *given)


def _simulate(
    pool: Pool,
    policy: Policy,
    greedy: bool,
    act: Act | None,
    order: Order,
    packed: Any,
    cancel: threading.Event | None,
) -> None:
    """Roll out the episodes, and fill in `packed`."""
    # Every step of the loop appends what it did, which costs next to nothing; all is put in order at the end.
    history, ends = _by_teams(pool, policy, greedy, act, order, cancel)
    if not history:  # no episode was wanted
        return
    began = time.perf_counter()
    episode, seen, done, rewards = (np.concatenate(part) for part in zip(*history, strict=True))
    by_episode = np.argsort(episode, kind="stable")  # within an episode, time goes on
    length = np.bincount(episode, minlength=len(order.seeds))
    starts = np.cumsum(length) - length
    packed.lengths[:], packed.starts[:] = length, starts
    packed.observations[: len(episode)] = seen[by_episode]
    packed.actions[: len(episode)] = done[by_episode]
    episode = episode[by_episode]
    packed.rewards[np.arange(len(episode)) - starts[episode], episode] = rewards[by_episode]
    ended, terminated, last = (np.concatenate(part) for part in zip(*ends, strict=True))
    packed.terminated[ended] = terminated
    packed.last[:, ended] = last.T
    pool.seconds["pack"] += time.perf_counter() - began
    pool.seconds["steps"] += len(episode)


History = list[tuple[np.ndarray, ...]]
"""(episodes, observations, actions, rewards) of every step."""
Ends = list[tuple[np.ndarray, ...]]
"""(episodes, whether the task ended them, their last observations) of every step in which some ended."""


class Played(NamedTuple):
    """What a team did, and the seconds that it spent on each phase."""

    history: History
    ends: Ends
    spent: dict[str, float]


def _by_teams(
    pool: Pool, policy: Policy, greedy: bool, act: Act | None, order: Order, cancel: threading.Event | None
) -> tuple[History, Ends]:
    """All episodes, each by one of the teams."""
    episodes = np.arange(len(order.seeds), dtype=np.int32)
    halt = threading.Event()

    def check() -> None:  # another team may have failed, or another run
        if halt.is_set() or (cancel is not None and cancel.is_set()):
            raise Stopped

    if pool.teams == 1:
        played = [_episodes(pool, policy, greedy, act, order, episodes, check)]
    else:

        def play(mine: np.ndarray, cores: list[int]) -> Played:
            with contextlib.suppress(OSError):  # slower, where it is forbidden
                os.sched_setaffinity(0, cores)  # this thread's, and of what it begins: the pool's
            try:
                return _episodes(pool, policy, greedy, act, order, mine, check)
            except BaseException:
                halt.set()
                raise

        divided = _divide(episodes, pool.teams)
        with ThreadPoolExecutor(len(divided)) as threads:
            jobs = [threads.submit(play, *team) for team in divided]
            try:
                played = [job.result() for job in jobs]
            except BaseException as error:  # of a team, or an interrupt, which arrives here
                halt.set()
                failed = [job.exception() for job in jobs]
                real = [e for e in failed if e is not None and not isinstance(e, Stopped)]
                raise (real[0] if isinstance(error, Stopped) and real else error) from None
    times = [sum(team.spent.values()) for team in played]
    pool.seconds["wait"] += max(times) - sum(times) / len(times)
    for team in played:
        for phase, seconds in team.spent.items():
            pool.seconds[phase] += seconds / len(played)
    return [step for team in played for step in team.history], [end for team in played for end in team.ends]


def _divide(episodes: np.ndarray, teams: int) -> list[tuple[np.ndarray, list[int]]]:
    """The episodes and the cores of each team: as much of the episodes, in turn, as it has of the cores."""
    shares = [share.tolist() for share in np.array_split(sorted(os.sched_getaffinity(0)), teams) if len(share)]
    if len(episodes) <= NARROW:
        return [(episodes, shares[os.getpid() % len(shares)])]  # those of several processes do not meet on one core
    turns = sorted(((i + 0.5) / len(share), team) for team, share in enumerate(shares) for i in range(len(share)))
    whose = np.array([team for _, team in turns])[episodes % len(turns)]
    return [(episodes[whose == team], share) for team, share in enumerate(shares)]


def _episodes(
    pool: Pool,
    policy: Policy,
    greedy: bool,
    act: Act | None,
    order: Order,
    mine: np.ndarray,
    check: Callable[[], None],
) -> Played:
    """These episodes, as many at a time as the simulator takes."""
    if not order.horizon[mine].any():
        return Played([], [], {})
    began = time.perf_counter()
    simulator = pool.open(order.seeds[mine], int(order.resets), order.agents[mine])
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
    ends: Ends = []
    while n := len(lane):
        check()
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
            byzantine = np.flatnonzero(order.byzantine[lane]) if act is not None else np.arange(0)
        now[:, :n] = observations.T  # to float32, where what was finite may not be any more
        if not math.isfinite(now.sum()):
            _refuse(pool, t, now[:, :n].T)
        if greedy:
            actions = policy.mode(order.params, now, np)[..., :n]
        else:
            noise[:, :n] = all_noise.take(place, axis=1)
            actions = policy.sample(order.params, now, noise, np)[..., :n]
        if len(byzantine):
            lies = act(actions[..., byzantine], order.random[..., lane[byzantine], t[byzantine]])  # type: ignore[misc]
            actions[..., byzantine] = np.asarray(lies)
        actions = actions.T if boxes else actions  # [n, A] or [n]
        seen = now[:, :n].T.copy()
        inputs = pool.to_task(actions)
        called = time.perf_counter()
        simulator.send(seat, inputs)
        observations, rewards, terminated, over = simulator.receive()
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
            ends.append((lane[over], terminated[over], np.asarray(observations[over], np.float32)))
            lane, t, observations = lane[~over], t[~over], observations[~over]
            if len(waiting):
                fresh, waiting = np.split(waiting, [simulator.width - len(lane)])
                observations = np.concatenate([observations, simulator.start(seats[fresh])])
                lane, t = np.concatenate([lane, fresh]), np.concatenate([t, np.zeros(len(fresh), np.int32)])
    simulator.close()
    acting = time.perf_counter() - ready - simulating
    return Played(history, ends, {"create": ready - began, "simulate": simulating, "act": acting})


def _refuse(pool: Pool, t: np.ndarray, values: np.ndarray) -> None:
    """Say what is wrong with observations [n, F] or rewards [n] after t steps, if anything is (a sum may overflow)."""
    what = "a reward" if values.ndim == 1 else "an observation"
    bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    if bad.any():
        raise SimulationError(
            f"{pool.id} gave {what} that is not finite, after {int(t[bad].min())} steps of an episode: "
            "correct the task, or wrap it"
        )
