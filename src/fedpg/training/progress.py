"""Live progress with the time left on a terminal, plain lines elsewhere, and JSON for programs."""

import contextlib
import json
import math
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from rich.console import Console
from rich.progress import Progress, TaskID, TextColumn, TimeRemainingColumn

from fedpg.config import STEPS_BY, Config
from fedpg.screen import clock, seconds_left
from fedpg.training.rounds import NOBODY, Log


class Snapshot(NamedTuple):
    """Where a run is."""

    round: int
    trajectories: int
    test_return: float
    honest: float  # accepted, mean over the last rounds
    byzantine: float
    steps_per_second: float
    harm: float = math.nan  # mean over the last rounds; NaN where it is not known who is honest
    unused: int = 0  # rounds so far in which nobody was accepted


class Reporter(Protocol):
    """Is told where each run is; entered before the first round and left after the last."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...
    def note(self, text: str) -> None: ...
    def update(self, seed: int, snapshot: Snapshot) -> None: ...


class Silent:
    """Says nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def update(self, seed: int, snapshot: Snapshot) -> None:
        pass


class Live(Silent):
    """One line per seed that changes in place; without a bar it fits 80 columns."""

    def __init__(self, config: Config, console: Console) -> None:
        self.config = config
        self.tasks: dict[int, TaskID] = {}
        self.progress = Progress(
            TextColumn("seed {task.fields[seed]}"),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[text]}"),
            TimeRemainingColumn(compact=True),
            console=console,
        )

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()

    def note(self, text: str) -> None:
        self.progress.console.print(text, highlight=False)

    def update(self, seed: int, snapshot: Snapshot) -> None:
        if seed not in self.tasks:
            self.tasks[seed] = self.progress.add_task("", total=self.config.trajectories, seed=seed, text="")
        done = min(snapshot.trajectories, self.config.trajectories)
        self.progress.update(self.tasks[seed], completed=done, text=describe(self.config, snapshot))


class Lines(Silent):
    """One line per seed every few seconds; if nobody reads them any more, the run goes on without."""

    ledger: Any = None
    """Of the sites, by those who report on some: then the agents are sites."""

    def __init__(self, config: Config, every: float = 5.0, rounds: int = 0) -> None:
        """A run may end after so many rounds, if that is not 0, before it has its trajectories."""
        self.config = config
        self.every = every
        self.rounds = rounds
        self.started: dict[int, tuple[float, Snapshot]] = {}
        self.said: dict[int, float] = {}

    def note(self, text: str) -> None:
        with contextlib.suppress(OSError):
            print(text, flush=True)

    def update(self, seed: int, snapshot: Snapshot) -> None:
        now = time.monotonic()
        left = self.left(seed, snapshot, now)
        if left != 0.0 and now - self.said.get(seed, -1e9) < self.every:
            return
        self.said[seed] = now
        self.say(seed, snapshot, left)

    def say(self, seed: int, snapshot: Snapshot, left: float | None) -> None:
        """One line about a seed."""
        ending = f" {clock(left)} left" if left else ""
        counts = f"{snapshot.trajectories}/{self.config.trajectories} trajectories"
        self.note(f"seed {seed} {counts} {describe(self.config, snapshot, self.ledger is not None)}{ending}")

    def left(self, seed: int, snapshot: Snapshot, now: float) -> float | None:
        """Seconds, at the pace so far: 0 at the end; None while nothing can be said."""
        began, first = self.started.setdefault(seed, (now, snapshot))
        counts = [(snapshot.trajectories - first.trajectories, self.config.trajectories - snapshot.trajectories)]
        if self.rounds:
            counts.append((snapshot.round - first.round, self.rounds - snapshot.round))
        left = [seconds_left(done, missing, now - began) for done, missing in counts]
        return min((seconds for seconds in left if seconds is not None), default=None)


class Json(Lines):
    """The same for programs: one JSON object per line, a note or where a seed is."""

    def __init__(self, config: Config, every: float = 1.0) -> None:
        super().__init__(config, every)

    def note(self, text: str) -> None:
        self._write({"note": text})

    def say(self, seed: int, snapshot: Snapshot, left: float | None) -> None:
        self._write(
            {
                "seed": seed,
                "round": snapshot.round,
                "trajectories": snapshot.trajectories,
                "total": self.config.trajectories,
                "test_return": snapshot.test_return if math.isfinite(snapshot.test_return) else None,
                "harm": snapshot.harm if math.isfinite(snapshot.harm) else None,
                "unused": snapshot.unused,
                "seconds_left": left,
                "text": describe(self.config, snapshot, self.ledger is not None),
            }
        )

    def _write(self, values: dict[str, Any]) -> None:
        super().note(json.dumps(values))


def nobody_knows(config: Config, sites: bool) -> bool:
    """Whether it is unknown who lies: between real sites, but not in a trial, where the settings say so."""
    return sites and not config.byzantine


def describe(config: Config, snapshot: Snapshot, sites: bool = False) -> str:
    """The middle of a progress line, over the last rounds: who was accepted, what harm was done; and the speed.

    Of Byzantine agents the harm says more than how many were accepted, and there is no room for both.
    """
    who = "accepted" if nobody_knows(config, sites) else "honest"
    accepted = f"{who} {snapshot.honest:.1f}/{config.agents - config.byzantine}"
    if config.byzantine and math.isfinite(snapshot.harm):
        accepted += f" harm {snapshot.harm:.1f}"
    elif config.byzantine:
        accepted += f" Byz. {snapshot.byzantine:.1f}/{config.byzantine}"
    if snapshot.unused:
        accepted += f" {snapshot.unused} unused"
    speed = f"{_short(snapshot.steps_per_second)} steps/s"
    return f"round {snapshot.round} return {snapshot.test_return:.0f} {accepted} {speed}"


def why_unused(config: Config) -> str:
    """Why rounds in which nobody was accepted were not used, and what was done instead."""
    why = "the aggregator accepted nobody"
    if config.fail_closed:
        allowed = math.floor(config.alpha * config.agents + 1e-9)
        why = (
            f"more than {allowed} of {config.agents} agents, as many as alpha = {config.alpha:g} allows, were turned "
            "away or sent nothing usable (fail closed): more are lying than the aggregator can stand, or something "
            "is wrong"
        )
    return why + ("; the server stepped on its own gradients" if config.none_accepted == "server" else "")


STUCK = 10


def stuck(config: Config, logs: Sequence[Log]) -> str:
    """What to say if nobody was accepted in as many rounds in a row; else nothing."""
    if len(logs) < STUCK or any(log["rule"] != NOBODY for log in logs[-STUCK:]):
        return ""
    why, hint = why_unused(config), ""
    if (np.asarray(logs[-1]["status"]) != 0).all():
        why = "no agent sent anything usable"
        if config.algorithm not in STEPS_BY:
            hint = f"; learning_rate = {config.learning_rate:g} may be too large"
    elif config.sigma != "auto":
        hint = f"; sigma = {config.sigma:g} may be too small for these gradients: see --sigma auto"
    return f"the last {STUCK} rounds were not used: {why}{hint}"


def _short(number: float) -> str:
    return f"{number / 1e6:.1f}M" if number >= 1e5 else f"{number / 1e3:.1f}k"


def make_reporter(config: Config, quiet: bool = False, for_programs: bool = False) -> Reporter:
    """What fits where the output goes: live on a terminal and in a notebook, else lines; or JSON for programs."""
    if quiet:
        return Silent()
    if for_programs:
        return Json(config)
    console = Console()
    return Live(config, console) if console.is_terminal or console.is_jupyter else Lines(config)
