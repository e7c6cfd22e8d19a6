"""What is missing, and running it: several processes, each on cores of its own."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from fedpg.config import Config, to_json
from fedpg.experiments.fingerprint import fingerprint
from fedpg.experiments.store import Key, Stored, key_of, load, machine, path_of, save, unpack
from fedpg.experiments.work import Event, Unit, work
from fedpg.machine import cores
from fedpg.screen import clock, seconds_left
from fedpg.tasks import TASKS

Engine = Callable[[Unit, int], Iterator[Event]]
"""(a unit, how many cores it gets) -> what it reports."""

START = 15.0
"""Seconds until a new process has compiled its first round."""
SECONDS = {"CartPole-v1": 0.1, "LunarLander-v3": 15.0, "HalfCheetah-v5": 17.0}
"""Per 1000 trajectories of all agents and the server, where nothing has been measured yet."""


@dataclass(frozen=True)
class Plan:
    """What a command has to do."""

    units: tuple[Unit, ...]
    wanted: int
    """Runs that the experiments have, with these seeds."""
    old: tuple[Stored, ...]
    """Stored runs that were made by other code, and not verified; none of them is in `units`, however short it is."""
    short: int
    """How many of those are shorter than wanted."""


def plan(configs: Sequence[Config], seeds: Sequence[int], stored: Mapping[Key, Stored], again: bool) -> Plan:
    """The runs that are missing, too short, or, with `again`, of other code; a compiled task's seeds go together.

    Settings that differ in length only are one, of the greatest; what is made again gets as long as it was.
    """
    lengths: dict[Config, int] = {}
    for config in configs:
        key, _ = key_of(config, 0)
        lengths[key] = max(lengths.get(key, 0), config.trajectories)
    together, single, old, short = [], [], [], 0
    for key, length in lengths.items():
        missing: dict[Config, list[int]] = {}
        for seed in seeds:
            run = stored.get((key, seed))
            if run is not None and not run.current and not again:
                old.append(run)
                short += run.reached < length
            elif run is None or not run.current or run.reached < length:
                goal = max(length, run.length) if run is not None else length
                missing.setdefault(replace(key, trajectories=goal), []).append(seed)
        for config, left in missing.items():
            if config.task in TASKS:
                together.append(Unit(config, tuple(left)))
            else:
                single += [Unit(config, (seed,)) for seed in left]
    single.sort(key=lambda unit: unit.seeds)  # one seed of every curve first
    return Plan((*together, *single), len(lengths) * len(seeds), tuple(old), short)


def seconds_of(unit: Unit, rates: Mapping[str, float]) -> float:
    """An estimate of a unit's time on one machine."""
    config = unit.config
    total = config.trajectories * (config.agents + 1 if config.agents > 1 else 1)  # from the paper's count to all
    return START + len(unit.seeds) * total / 1000 * rates.get(config.task, max(SECONDS.values()))


def rates_of(runs: Iterable[Stored]) -> dict[str, float]:
    """Seconds per 1000 trajectories by task: measured on a machine like this one, else elsewhere, else as a rule."""
    here = machine()
    spent: dict[tuple[str, bool], tuple[float, int]] = {}
    for run in runs:
        at = run.config.task, run.about.get("hardware") == here
        seconds, total = spent.get(at, (0.0, 0))
        spent[at] = seconds + float(run.about["seconds"]), total + int(run.columns["trajectories_total"][-1])
    rates = dict(SECONDS)
    for alike in (False, True):
        rates |= {task: 1000 * s / t for (task, like), (s, t) in spent.items() if like == alike and t}
    return rates


def slots_of(units: Sequence[Unit], total: int) -> tuple[int, int]:
    """(units at a time, cores for each) on so many cores."""
    count = max(1, min(total, len(units)))
    return count, max(1, total // count)


def local_engine(runs: Path, stop: threading.Event) -> Engine:
    """Processes on this machine."""
    folder = str(runs.resolve())
    return lambda unit, share: work(to_json(unit.config), unit.seeds, folder, fingerprint(unit.config), share, stop)


def run_units(
    units: Sequence[Unit],
    engine: Engine,
    total: int,
    results: Path,
    rates: Mapping[str, float],
    stop: threading.Event,
) -> int:
    """Run all units, storing each run as it is finished, unless a longer one is stored; returns how many were done."""
    count, share = slots_of(units, total)
    board = Board({unit: seconds_of(unit, rates) for unit in units}, count)
    stored = 0
    lock = threading.Lock()

    def one(unit: Unit) -> None:
        nonlocal stored
        if stop.is_set():
            return
        board.update(unit, Event(text="starting"))
        try:
            for event in engine(unit, share):
                if event.run is not None:
                    run = unpack(event.run, results)
                    with lock:
                        save_longer(results, run)
                        stored += 1
                board.update(unit, event)
        except BaseException:
            stop.set()
            raise
        board.finish(unit)

    with board, ThreadPoolExecutor(max_workers=count) as pool:
        for job in [pool.submit(one, unit) for unit in units]:
            job.result()
    return stored


def save_longer(results: Path, run: Stored) -> None:
    """Store a run, but never in place of a longer one, which somebody else may have stored meanwhile."""
    path = path_of(results, run.config, run.seed)
    if path.exists() and (before := load(path)).length > run.length:
        say(f"{path} has {before.reached} trajectories and stays: the run of now has {run.reached}")
    else:
        save(results, run)


def every_core() -> int:
    """The cores of this machine that can be given out; one where processes cannot be bound to them."""
    return cores() if hasattr(os, "sched_getaffinity") else 1


class Board:
    """Overall progress with the time left, and the line of each running unit: live on a terminal, plain elsewhere."""

    def __init__(self, weights: Mapping[Unit, float], at_a_time: int, every: float = 15.0) -> None:
        self.weights, self.at_a_time, self.every = weights, at_a_time, every
        self.total = sum(weights.values()) or 1.0
        self.done: dict[Unit, float] = dict.fromkeys(weights, 0.0)
        self.before: dict[Unit, float] = {}  # what was done when a unit began, because it was interrupted once
        self.lines: dict[Unit, str] = {}
        self.began, self.said = time.monotonic(), 0.0
        self.lock = threading.Lock()
        console = Console()
        self.live = (
            Live(console=console, get_renderable=self._draw, refresh_per_second=2) if console.is_terminal else None
        )

    def __enter__(self) -> "Board":
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.live is not None:
            self.live.stop()

    def update(self, unit: Unit, event: Event) -> None:
        """Take in what a unit reports."""
        with self.lock:
            self.lines[unit] = event.text
            if event.done is not None:
                self.done[unit] = event.done
                self.before.setdefault(unit, event.done)
            now = time.monotonic()
            if self.live is None and (event.run is not None or now - self.said > self.every):
                self.said = now
                print(f"{self.headline()} | {unit.label}: {event.text}", flush=True)

    def finish(self, unit: Unit) -> None:
        """A unit is over."""
        with self.lock:
            self.done[unit] = 1.0
            self.before.setdefault(unit, 1.0)  # it reported nothing: it was there already
            self.lines.pop(unit, None)

    def headline(self) -> str:
        """How much is done, and the time that is left at the pace so far; at first, at the estimated one."""
        part, before = (sum(self.weights[u] * d for u, d in x.items()) / self.total for x in (self.done, self.before))
        left = (1 - part) * self.total / self.at_a_time
        paced = seconds_left(part - before, 1 - part, time.monotonic() - self.began)
        if paced is not None and before < 1:  # the pace so far counts as much as there is of it
            known = (part - before) / (1 - before)
            left = (1 - known) * left + known * paced
        return f"{part:.0%}, {clock(max(0.0, left))} left"

    def _draw(self) -> Group:
        with self.lock:
            part = sum(self.weights[u] * d for u, d in self.done.items()) / self.total
            lines = [
                Text(f"  {unit.label}: {text}", overflow="ellipsis", no_wrap=True) for unit, text in self.lines.items()
            ]
            finished = sum(d >= 1 for d in self.done.values())
            head = f"{finished} of {len(self.done)} done, {self.headline()}"
        return Group(Text(head), ProgressBar(total=1.0, completed=part), *lines)


def say(text: str) -> None:
    """A line for people, beside what is printed."""
    print(f"fedpg: {text}", file=sys.stderr, flush=True)
