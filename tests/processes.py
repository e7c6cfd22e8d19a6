"""`fedpg ...` in processes of their own, each a fork of one process that has imported the package for all of them."""

import multiprocessing
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fedpg.cli import main
from fedpg.training import run

FORKS = multiprocessing.get_context("forkserver")
OURS = [f"fedpg.{name}" for name in ("cli.train", "cli.federation", "serving.serve", "serving.join", "dashboard.web")]
THEIRS = ["gymnasium", "matplotlib.backends.backend_agg", "tensorboardX"]
FORKS.set_forkserver_preload([*OURS, "fedpg.plots", *THEIRS])
"""JAX starts its threads when it first computes, which that process never does: so it can be forked."""


def small_files() -> None:
    """No file of this process may grow beyond 8 kB, as on a disk that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, resource.RLIM_INFINITY))


def slow_writing() -> None:
    """Every round is saved, and writing is slow, so that a kill finds files half written."""
    fsync = os.fsync

    def slow(handle: int) -> None:
        time.sleep(0.01)
        fsync(handle)
        time.sleep(0.01)

    os.fsync = slow
    run.SECONDS_PER_CHECKPOINT = -1.0


def _command(words: tuple[str, ...], log: Path, folder: Path, first: Callable[[], None] | None) -> None:
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    if first is not None:
        first()
    sys.exit(main(words))


class Process:
    """A command; what it says is in a log."""

    def __init__(
        self, log: Path, *words: str, folder: Path | None = None, first: Callable[[], None] | None = None
    ) -> None:
        self.log = log
        log.touch()
        self.process = FORKS.Process(target=_command, args=(words, log, folder or Path.cwd(), first), daemon=True)
        self.process.start()

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def wait(self, seconds: float = 300.0) -> int:
        """Its exit code, or minus the signal that ended it."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("fedpg", seconds)
        return self.process.exitcode

    @property
    def ended(self) -> bool:
        return self.process.exitcode is not None

    @property
    def said(self) -> str:
        return self.log.read_text()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()
