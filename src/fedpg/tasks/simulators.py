"""Simulators outside JAX: EnvPool's pools, made anew or kept, and environments of Gymnasium."""

import ctypes
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fedpg.errors import SimulationError
from fedpg.machine import cores
from fedpg.tasks.models import for_envpool, with_model

KEPT = 800
"""Environments that are kept, at a megabyte each: those of a round of ten agents and its inner loop."""


Step = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""(observations [n, F], rewards [n], terminated by the task [n], over for any reason [n])."""


class Simulator(Protocol):
    """Episodes under way, one per lane."""

    width: int
    """How many can be under way at a time."""

    def start(self, lanes: np.ndarray) -> np.ndarray:
        """Begin the episodes of these lanes: their first observations.  [n, F]"""
        ...

    def send(self, lanes: np.ndarray, actions: np.ndarray) -> None:
        """Begin a step of these lanes."""
        ...

    def receive(self) -> Step:
        """Wait for it."""
        ...

    def end(self, lanes: np.ndarray) -> None:
        """These episodes are over, or cut off."""
        ...

    def close(self) -> None:
        """All are."""
        ...


@functools.cache
def envpool_arguments(task: str, variant: tuple[tuple[str, Any], ...]) -> Mapping[str, Any]:
    """The keyword arguments of a kind of task, as EnvPool takes them."""
    if not variant:
        return {}
    import envpool

    return for_envpool(str(envpool.make_spec(task).config.base_path), with_model(task, dict(variant)))


class EnvPoolSimulator:
    """A pool, all episodes of which are under way at once."""

    def __init__(
        self,
        task: str,
        seeds: np.ndarray,
        kept: "KeptPools | None" = None,
        variant: tuple[tuple[str, Any], ...] = (),
    ) -> None:
        import envpool

        self.width = len(seeds)
        self.seeds = seeds
        self.variant = variant
        self.kept = kept
        self.resets = 0
        threads = min(cores(), len(seeds))
        self.pool = envpool.make_gymnasium(
            task, num_envs=len(seeds), num_threads=threads, env_seed=seeds.tolist(), **envpool_arguments(task, variant)
        )
        # Its own way in and out, without the checks and the tree of names around it: they take 30 us a step, as much
        # as the simulation of two landers. `done` is of both kinds, terminated and truncated.
        self.parts = [self.pool._state_keys.index(name) for name in ("obs", "reward", "trunc", "done")]
        self.dtype = self.pool._spec._action_spec[-1][0]

    def start(self, lanes: np.ndarray) -> np.ndarray:
        if self.kept is None:
            return self.pool.reset(lanes)[0]
        self.resets += 1
        return self.pool.reset()[0][lanes]  # all of them, used or not: they stay at the same first state

    def send(self, lanes: np.ndarray, actions: np.ndarray) -> None:
        self.pool._send([lanes, lanes, actions.astype(self.dtype, order="C", copy=False)])

    def receive(self) -> Step:
        state = self.pool._recv()
        observations, rewards, truncated, over = (state[i] for i in self.parts)
        return observations, rewards, over & ~truncated, over

    def end(self, lanes: np.ndarray) -> None:
        """Nothing to do: what is not stepped costs nothing."""

    def close(self) -> None:
        if self.kept is not None:
            self.kept.put(self)


class KeptPools:
    """Pools of a task that draws nothing after `reset`, kept for the next rounds."""

    def __init__(self, task: str) -> None:
        self.task = task
        self.resting: dict[Any, EnvPoolSimulator] = {}
        self.all: weakref.WeakSet[EnvPoolSimulator] = weakref.WeakSet()
        """Those that rest and those in use."""
        self.lock = threading.Lock()

    def open(self, seeds: np.ndarray, resets: int, variant: tuple[tuple[str, Any], ...]) -> EnvPoolSimulator:
        """The pool with these seeds, with `resets` first states behind it."""
        with self.lock:  # held while one is made: two that are made at a time would count on the same room
            simulator = self.resting.pop((variant, seeds.tobytes()), None)
            if simulator is None or simulator.resets > resets:
                simulator = None
                self._make_room(len(seeds))
                simulator = EnvPoolSimulator(self.task, seeds, self, variant)
                self.all.add(simulator)
        while simulator.resets < resets:
            simulator.start(np.arange(0))
        return simulator

    def put(self, simulator: EnvPoolSimulator) -> None:
        """Keep it for the next round."""
        with self.lock:
            self.resting[simulator.variant, simulator.seeds.tobytes()] = simulator
            self._make_room(0)

    def _make_room(self, environments: int) -> None:
        """Drop those that have rested for the longest time."""
        before = len(self.resting)
        while self.resting and environments + sum(pool.width for pool in self.all) > KEPT:
            self.resting.pop(next(iter(self.resting)))
        if len(self.resting) < before:
            _return_memory()


def _return_memory() -> None:
    """Hand freed memory back: the threads of each pool had heaps of their own, which those of the next do not use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:  # of glibc only
        trim(0)


class Mixed:
    """Simulators of different tasks as one: each episode has a seat in the one of its variant."""

    def __init__(self, variants: np.ndarray, open_: Callable[[int, np.ndarray], Simulator]) -> None:
        self.width = len(variants)
        self.seats = np.zeros(len(variants), np.int32)
        self.which = np.zeros(len(variants), np.int32)
        self.simulators: list[Simulator] = []
        self.under_way: list[tuple[Simulator, np.ndarray]] = []
        for i, variant in enumerate(np.unique(variants)):
            members = np.flatnonzero(variants == variant)
            self.seats[members], self.which[members] = np.arange(len(members)), i
            self.simulators.append(open_(int(variant), members))

    def _by_simulator(self, lanes: np.ndarray) -> Iterator[tuple[Simulator, np.ndarray]]:
        for i, simulator in enumerate(self.simulators):
            mine = np.flatnonzero(self.which[lanes] == i)
            if len(mine):
                yield simulator, mine

    def start(self, lanes: np.ndarray) -> np.ndarray:
        parts = [(mine, s.start(self.seats[lanes[mine]])) for s, mine in self._by_simulator(lanes)]
        return _scatter(len(lanes), [(mine, (first,)) for mine, first in parts])[0]

    def send(self, lanes: np.ndarray, actions: np.ndarray) -> None:
        self.under_way = list(self._by_simulator(lanes))
        for simulator, mine in self.under_way:  # all before any is waited for: each has threads of its own
            simulator.send(self.seats[lanes[mine]], actions[mine])

    def receive(self) -> Step:
        parts = [(mine, simulator.receive()) for simulator, mine in self.under_way]
        observations, rewards, terminated, over = _scatter(sum(len(mine) for mine, _ in parts), parts)
        return observations, rewards, terminated, over

    def end(self, lanes: np.ndarray) -> None:
        for simulator, mine in self._by_simulator(lanes):
            simulator.end(self.seats[lanes[mine]])

    def close(self) -> None:
        for simulator in self.simulators:
            simulator.close()


def _scatter(count: int, parts: Sequence[tuple[np.ndarray, Sequence[np.ndarray]]]) -> list[np.ndarray]:
    """The rows of every part in their places."""
    out = [np.empty((count, *array.shape[1:]), array.dtype) for array in parts[0][1]]
    for mine, arrays in parts:
        for whole, array in zip(out, arrays, strict=True):
            whole[mine] = array
    return out


class KeptEnvironments:
    """Environments of Gymnasium that are not in use, by variant. Two runs at a time must not share one."""

    def __init__(self, task: str, make: Callable[[int], Any], first: Sequence[Any]) -> None:
        """`first` is one of each variant."""
        self.task = task
        self.make = make
        self.resting: dict[int, list[Any]] = {variant: [one] for variant, one in enumerate(first)}
        self.lock = threading.Lock()

    def take(self, variant: int) -> Any:
        with self.lock:
            if self.resting[variant]:
                return self.resting[variant].pop()
        return self.make(variant)

    def put(self, variant: int, environment: Any) -> None:
        with self.lock:
            self.resting[variant].append(environment)


class GymnasiumSimulator:
    """Environments of Gymnasium, stepped one by one; one that has ended its episode begins another one's."""

    def __init__(self, kept: KeptEnvironments, seeds: np.ndarray, variants: np.ndarray, most: int) -> None:
        self.width = min(len(seeds), most)
        self.kept = kept
        self.seeds, self.variants = seeds, variants
        self.busy: dict[int, Any] = {}
        self.asked = np.zeros(0, np.int32), np.zeros(0)

    def start(self, lanes: np.ndarray) -> np.ndarray:
        first = []
        for lane in lanes.tolist():
            environment = self.busy[lane] = self.kept.take(int(self.variants[lane]))
            try:
                first.append(environment.reset(seed=int(self.seeds[lane]))[0])
            except SystemExit as error:
                raise SimulationError(f"{self.kept.task} called sys.exit({error.code!r}) in reset") from error
        return np.asarray(first)

    def send(self, lanes: np.ndarray, actions: np.ndarray) -> None:
        self.asked = lanes, actions

    def receive(self) -> Step:
        lanes, actions = self.asked
        observations, rewards = [], np.empty(len(lanes))
        ended, over = np.empty(len(lanes), bool), np.empty(len(lanes), bool)
        for i, lane in enumerate(lanes.tolist()):
            observation, rewards[i], terminated, truncated = one_step(self.kept.task, self.busy[lane], actions[i])
            observations.append(observation)
            ended[i], over[i] = terminated, terminated or truncated
        return np.asarray(observations), rewards, ended, over

    def end(self, lanes: np.ndarray) -> None:
        for lane in lanes.tolist():
            self.kept.put(int(self.variants[lane]), self.busy.pop(lane))

    def close(self) -> None:
        """All were put back as they ended."""


def one_step(task: str, environment: Any, action: Any) -> tuple[Any, float, bool, bool]:
    """(observation, reward, terminated, truncated), or an error that says what the task did instead."""
    try:
        made = environment.step(action)
    except SystemExit as error:
        raise SimulationError(f"{task} called sys.exit({error.code!r}) in step") from error
    if not isinstance(made, tuple) or len(made) != 5:
        what = f"{len(made)} values" if isinstance(made, tuple) else f"{made!r:.80}"
        raise SimulationError(
            f"{task} returned {what} from step, not Gymnasium's five: observation, reward, terminated, truncated, info "
            "(the `done` of old environments was for both kinds of end)"
        )
    observation, reward, terminated, truncated, _ = made
    try:
        reward = float(reward)
    except (TypeError, ValueError) as error:
        raise SimulationError(f"{task} gave the reward {reward!r:.80}, which is no number") from error
    if isinstance(terminated, bool) and isinstance(truncated, bool):
        return observation, reward, terminated, truncated
    return observation, reward, _flag(task, "terminated", terminated), _flag(task, "truncated", truncated)


def _flag(task: str, name: str, value: Any) -> bool:
    """Something that is true or false, if it is."""
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.size != 1:
        raise SimulationError(f"{task} returned {name} = {value!r:.80} from step, not True or False")
    return bool(array)
