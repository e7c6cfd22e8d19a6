"""Simulators outside JAX: EnvPool's pools, made anew or kept, and environments of Gymnasium."""

import ctypes
import os
import sys
import threading
import weakref
from typing import Any, Protocol

import numpy as np

KEPT = 800
"""Environments that are kept, at a megabyte each: those of a round of ten agents and its inner loop."""


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


def cores() -> int:
    """The cores that this thread may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class EnvPoolSimulator:
    """A pool, all episodes of which are under way at once."""

    def __init__(self, task: str, seeds: np.ndarray, kept: "KeptPools | None" = None) -> None:
        import envpool

        self.width = len(seeds)
        self.seeds = seeds
        self.kept = kept
        self.resets = 0
        self.pool = envpool.make_gymnasium(
            task, num_envs=len(seeds), num_threads=min(cores(), len(seeds)), env_seed=seeds.tolist()
        )
        # Its own way in and out, without the checks and the tree of names around it: they take 30 us a step, as much
        # as the simulation of two landers. `done` is of both kinds, terminated and truncated.
        self.parts = [self.pool._state_keys.index(name) for name in ("obs", "reward", "done")]
        self.dtype = self.pool._spec._action_spec[-1][0]

    def start(self, lanes: np.ndarray) -> np.ndarray:
        if self.kept is None:
            return self.pool.reset(lanes)[0]
        self.resets += 1
        return self.pool.reset()[0][lanes]  # all of them, used or not: they stay at the same first state

    def step(self, lanes: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self.pool._send([lanes, lanes, actions.astype(self.dtype, order="C", copy=False)])
        state = self.pool._recv()
        observations, rewards, over = (state[i] for i in self.parts)
        return observations, rewards, over

    def end(self, lanes: np.ndarray) -> None:
        """Nothing to do: what is not stepped costs nothing."""

    def close(self) -> None:
        if self.kept is not None:
            self.kept.put(self)


class KeptPools:
    """Pools of a task that draws nothing after `reset`, kept for the next rounds."""

    def __init__(self, task: str) -> None:
        self.task = task
        self.resting: dict[bytes, EnvPoolSimulator] = {}
        self.all: weakref.WeakSet[EnvPoolSimulator] = weakref.WeakSet()
        """Those that rest and those in use."""
        self.lock = threading.Lock()

    def open(self, seeds: np.ndarray, turn: int) -> EnvPoolSimulator:
        """The pool with these seeds, with `turn` first states behind it."""
        with self.lock:  # held while one is made: two that are made at a time would count on the same room
            simulator = self.resting.pop(seeds.tobytes(), None)
            if simulator is None or simulator.resets > turn:
                simulator = None
                self._make_room(len(seeds))
                simulator = EnvPoolSimulator(self.task, seeds, self)
                self.all.add(simulator)
        while simulator.resets < turn:
            simulator.start(np.arange(0))
        return simulator

    def put(self, simulator: EnvPoolSimulator) -> None:
        """Keep it for the next round."""
        with self.lock:
            self.resting[simulator.seeds.tobytes()] = simulator
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
