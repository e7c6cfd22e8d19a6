"""Live progress with the time left on a terminal, plain lines elsewhere."""

import contextlib
import sys
import time
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from rich.console import Console
from rich.progress import Progress, TaskID, TextColumn, TimeRemainingColumn

from fedpg.config import Config


class Snapshot(NamedTuple):
    """Where a run is."""

    round: int
    trajectories: int
    test_return: float
    honest: float  # accepted, mean over the last rounds
    byzantine: float
    steps_per_second: float


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
        ending = f" {left:.0f} s left" if left else ""
        counts = f"{snapshot.trajectories}/{self.config.trajectories} trajectories"
        self.note(f"seed {seed} {counts} {describe(self.config, snapshot)}{ending}")

    def left(self, seed: int, snapshot: Snapshot, now: float) -> float | None:
        """Seconds, at the pace so far: 0 at the end; None while nothing can be said."""
        began, first = self.started.setdefault(seed, (now, snapshot))
        missing = [(self.config.trajectories - snapshot.trajectories, snapshot.trajectories - first.trajectories)]
        if self.rounds:
            missing.append((self.rounds - snapshot.round, snapshot.round - first.round))
        if any(more <= 0 for more, _ in missing):
            return 0.0
        return min((more * (now - began) / gained for more, gained in missing if gained), default=None)


def describe(config: Config, snapshot: Snapshot) -> str:
    """The middle of a progress line: the agents that were accepted, over the last rounds, and the speed."""
    accepted = f"honest {snapshot.honest:.1f}/{config.agents - config.byzantine}"
    if config.byzantine:
        accepted += f" Byz. {snapshot.byzantine:.1f}/{config.byzantine}"
    speed = f"{_short(snapshot.steps_per_second)} steps/s"
    return f"round {snapshot.round} return {snapshot.test_return:.0f} {accepted} {speed}"


def _short(number: float) -> str:
    return f"{number / 1e6:.1f}M" if number >= 1e5 else f"{number / 1e3:.1f}k"


def make_reporter(config: Config, quiet: bool = False) -> Reporter:
    """What fits where the output goes."""
    if quiet:
        return Silent()
    return Live(config, Console()) if sys.stdout.isatty() else Lines(config)
