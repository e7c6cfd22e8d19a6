"""Units of work: settings with the seeds that are trained together, and the process that trains them."""

import contextlib
import json
import platform
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpg.child import child_command
from fedpg.config import Config, from_json
from fedpg.errors import SimulationError
from fedpg.experiments import cores
from fedpg.experiments.fingerprint import fingerprint
from fedpg.experiments.store import from_folder, name_of, pack
from fedpg.storage import StorageError, read_config, write_config

LAST_LINES = 12


@dataclass(frozen=True)
class Unit:
    """Runs that one process trains."""

    config: Config
    seeds: tuple[int, ...]

    @property
    def label(self) -> str:
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        return f"{self.config.name}, {seeds}"


@dataclass(frozen=True)
class Event:
    """What a unit reports: how far it is, or a finished run."""

    done: float | None = None
    """The share of the unit, where it has changed."""
    text: str = ""
    run: bytes | None = None
    """As `store.pack` packs it."""


def work(
    settings: dict[str, Any], seeds: tuple[int, ...], runs: str, code: str, share: int, stop: Any = None
) -> Iterator[Event]:
    """Train a unit by `fedpg train` on `share` cores of this machine, and report as it goes.

    Takes and yields plain values, for it may run on another machine. Run folders are below `runs`, one set for each
    version of the code, so that a run is never continued by other code than it began with. If it is closed, or
    `stop` is set, training is interrupted as by Ctrl-C, and goes on next time.
    """
    config, stop = from_json(settings), stop or threading.Event()
    if code != fingerprint(config):
        raise SimulationError(
            f"{platform.node()} has another version of fedpg than the machine that asks: install that one"
        )
    base = Path(runs) / code / name_of(config)
    folders = {seed: base / f"seed-{seed}" for seed in seeds}
    for seed in list(folders):  # a longer run that was interrupted may be long enough
        yield from _collect(folders, seed, config, code)
    if not folders:
        return
    length = config.trajectories
    for seed, folder in folders.items():
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "config.json").exists():
            length = max(length, read_config(folder)[0].trajectories)  # a run is made longer, never shorter
        else:
            write_config(folder, config, seed)
    out = base if len(folders) > 1 else next(iter(folders.values()))
    command = child_command("train", "--out", str(out), "--resume", "--json")
    command += ["--seeds", ",".join(map(str, folders)), "--trajectories", str(length)]
    shares = {seed: _reached(folder) / config.trajectories for seed, folder in folders.items()}
    yield Event(sum(shares.values()) / len(shares), "waiting for a free core")
    with cores.lease(Path(runs) / "cores", share, stop) as mine:
        if stop.is_set():
            return
        with cores.bound_to(mine):
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        watcher = threading.Thread(target=_interrupt_on, args=(child, stop), daemon=True)
        watcher.start()
        try:
            yield from _follow(child, folders, shares, config, code, stop)
        finally:
            _end(child)
    for seed in list(folders):
        yield from _collect(folders, seed, config, code)
    if folders and not stop.is_set():
        raise SimulationError(f"{config.name}: training ended before seed {next(iter(folders))} was done")


def _follow(
    child: "subprocess.Popen[str]",
    folders: dict[int, Path],
    shares: dict[int, float],
    config: Config,
    code: str,
    stop: threading.Event,
) -> Iterator[Event]:
    """The child's lines as events, and each run as soon as it is long enough; `shares` are done already."""
    assert child.stdout is not None
    last: deque[str] = deque(maxlen=LAST_LINES)
    for line in child.stdout:
        update = _object_in(line)
        if "seed" not in update:
            last.append(update.get("note", line.rstrip()))
            continue
        seed, done = int(update["seed"]), int(update["trajectories"])
        shares[seed] = min(1.0, done / config.trajectories)
        yield Event(sum(shares.values()) / len(shares), f"seed {seed} {done}/{update['total']} {update['text']}")
        for finished in [s for s, share in shares.items() if share == 1.0 and s in folders]:
            yield from _collect(folders, finished, config, code)
        if not folders and update["total"] > config.trajectories:
            return  # the rest is of a longer run, which nobody asks for now
    if child.wait() not in (0, 130) and not stop.is_set():
        raise SimulationError(f"{config.name}: training ended with code {child.returncode}:\n" + "\n".join(last))


def _object_in(line: str) -> dict[str, Any]:
    """What `fedpg.training.progress.Json` wrote; nothing in the words of a warning or an error."""
    try:
        values = json.loads(line)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def _collect(folders: dict[int, Path], seed: int, config: Config, code: str) -> Iterator[Event]:
    """The run of a seed if it is long enough, once: it is taken out of `folders`."""
    if _reached(folders[seed]) >= config.trajectories:
        yield Event(None, f"seed {seed} finished", pack(from_folder(folders.pop(seed), code)))


def _reached(folder: Path) -> int:
    """The trajectories of a run folder's last policy that has been evaluated: that of a run that goes on has not."""
    path = folder / "records.jsonl"
    if not path.exists():
        return 0
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines()[-2:]]
        return max((int(row["trajectories"]) for row in rows if row["test_return"] is not None), default=0)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is damaged: {error}. Move {folder} away: that run is then trained anew") from error


def _interrupt_on(child: "subprocess.Popen[str]", stop: threading.Event) -> None:
    while child.poll() is None:
        if stop.wait(0.2):
            child.send_signal(signal.SIGINT)
            return


def _end(child: "subprocess.Popen[str]") -> None:
    """Let a child that still runs write its checkpoint; one that does not come to an end is killed."""
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(60)
    if child.poll() is None:
        child.kill()
        child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
