"""What several commands take."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from fedpg.errors import ConfigError
from fedpg.extras import EXTRAS, has, install

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


def together(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """The words of options that are given several times, as if given once: `--vary a --vary b` is `--vary a b`."""
    options = [f"--{name.replace('_', '-')}" for name in names]
    called = [word.partition("=")[0].replace("_", "-") for word in arguments]
    found: dict[str, list[str]] = {option: [] for option in options if called.count(option) > 1}
    rest: list[str] = []
    place = rest
    for word, name in zip(arguments, called, strict=True):
        if word.startswith("--"):
            place = found.get(name, rest)
        if not word.startswith("--") or name not in found:
            place.append(word)
        elif "=" in word:  # that one word, and what follows is somebody else's
            place.append(word.partition("=")[2])
            place = rest
    return rest + [word for option, words in found.items() for word in (option, *words)]


def draw_curve(folder: Path, runs: Sequence[Any], title: str) -> None:
    """curve.png of these runs; or one line that says what was left out, and how to get it."""
    left_out = {"matplotlib": "curve.png", "tensorboardX": "TensorBoard's log"}
    lacking = [module for module in left_out if not has(module)]
    if "matplotlib" not in lacking:
        from fedpg.plots import plot_curve

        plot_curve(folder / "curve.png", [run.records for run in runs], title)
    if lacking:
        what = " and ".join(left_out[module] for module in lacking)
        print(f"fedpg: without {what}: {install(*(EXTRAS[module][1] for module in lacking))}", file=sys.stderr)


def check_seed(value: int) -> None:
    if not 0 <= value < 2**32:
        raise ConfigError(f"seed must be from 0 to 2^32 - 1, not {value}")


def check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} must be 1 or more, not {value}")


def check_folder_name(name: str, path: Path) -> None:
    """Refuse a folder that is a file, or would lie in one."""
    for part in (path, *path.parents):
        if part.exists() and not part.is_dir():
            raise ConfigError(f"{name} {str(path)!r} cannot be a folder, for {str(part)!r} is a file: give a folder")


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
