"""What several commands take."""

import contextlib
import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from fedpg.config import Config
from fedpg.errors import ConfigError

MAX_SEEDS = 10_000


def parse_seeds(text: str) -> list[int]:
    """`3`, `0,1,5` or `0:10` as a list of seeds."""
    try:
        if ":" in text:
            start, stop = text.split(":")
            first, last = int(start or 0), int(stop)
        else:
            return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"seeds must be like 3, 0,1,5 or 0:10, not {text!r}") from None
    if last <= first:
        raise ConfigError(f"seeds {text!r} is an empty range")
    if last - first > MAX_SEEDS:
        raise ConfigError(f"seeds {text!r} are {last - first} seeds; at most {MAX_SEEDS} go in one call")
    return list(range(first, last))


def load_policy_of(path: Path) -> tuple[Any, Any]:
    """The problem and the parameters of a run folder or a policy file."""
    from fedpg.assembly import make_problem
    from fedpg.training.checkpoint import load_policy, policy_config

    if any(path.glob("seed-*")):
        names = ", ".join(sorted(str(folder) for folder in path.glob("seed-*")))
        raise ConfigError(f"{path} holds the runs of several seeds: give one of {names}")
    file = path / "policy.safetensors" if path.is_dir() else path
    # How it was trained is of no concern here, and may be code that this machine does not have.
    trained_by = ("algorithm", "byzantine", "attack", "attack_options", "aggregator", "aggregator_options", "optimizer")
    plain: dict[str, Any] = {name: getattr(Config, name) for name in trained_by}
    config = dataclasses.replace(policy_config(file), **plain)
    problem = make_problem(config)
    return problem, load_policy(file, problem)


def check_seed(value: int) -> None:
    if not 0 <= value < 2**32:
        raise ConfigError(f"seed must be from 0 to 2^32 - 1, not {value}")


def check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} must be 1 or more, not {value}")


@contextlib.contextmanager
def on_signal(stop: threading.Event, saying: str) -> Iterator[None]:
    """Set `stop` at Ctrl-C or a request to end, and say what happens now; at the second one, end at once."""

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        if stop.is_set():  # a second Ctrl-C does not wait
            os._exit(130)  # what is written is written whole, so nothing more is lost
        print(f"fedpg: {saying} (again: at once)", file=sys.stderr)
        stop.set()

    previous = {number: signal.signal(number, on_interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
