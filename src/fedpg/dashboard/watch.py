"""One thread reads all run folders; whoever shows them waits here for what is new."""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from fedpg.dashboard.reading import held_folders
from fedpg.dashboard.runs import Run, View, find_runs
from fedpg.errors import ConfigError

EVERY = 0.5
"""Seconds between two looks at the files."""
SCAN = 5.0
"""Seconds between two searches for new runs, and between two looks at whether a run still lives."""
MOST = 64
"""Runs that are shown."""


class Watch:
    """All runs at some paths, new ones as they come; it reads while it is entered."""

    def __init__(self, paths: Sequence[Path], must_exist: bool = True) -> None:
        self.paths = [Path(path) for path in paths]
        self.left_out = 0
        """Runs beyond MOST."""
        self.over = False
        self._runs: dict[Path, Run] = {}
        self._views: list[tuple[int, View]] = []  # (its version, a run as it is shown), by place
        self._version = 0
        self._changed = threading.Condition()
        self._end = threading.Event()
        self._searched = -1e9
        self._thread = threading.Thread(target=self._go, daemon=True, name="dashboard")
        if must_exist:
            self._check()
        self.look()

    def _check(self) -> None:
        for path in self.paths:
            try:
                if not path.is_dir():
                    what = "is no folder" if path.exists() else "does not exist"
                    raise ConfigError(f"{path} {what}: give run folders, or folders with run folders in them")
                if not find_runs(path) and not (path / "federation.toml").exists():
                    raise ConfigError(
                        f"there is no run in {path}: a run folder has a config.json, as `fedpg train --out` writes it"
                    )
                os.listdir(path)
            except OSError as error:
                raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()
        with self._changed:
            self.over = True
            self._changed.notify_all()

    def _go(self) -> None:
        while not self._end.wait(EVERY):
            self.look()

    def look(self) -> None:
        """Read what is new in all folders."""
        searched = time.monotonic() - self._searched >= SCAN
        if searched:
            self._searched = time.monotonic()
            self._search()
        held = held_folders()
        for place, run in enumerate(list(self._runs.values())):
            try:
                new = run.read()
                while run.more and not self._end.is_set():
                    run.read()
                if new or searched or place >= len(self._views):
                    self._show(place, run.view(held))
            except Exception as error:  # of one folder: the others are shown
                print(f"fedpg: dashboard: {run.folder}: {type(error).__name__}: {error}", file=sys.stderr)
                if place >= len(self._views):  # those after it wait for their places
                    return

    def _search(self) -> None:
        found: list[tuple[Path, str]] = []
        for path in self.paths:
            runs: list[Path] = []
            with contextlib.suppress(OSError):
                runs = find_runs(path)
                if not runs and not (path / "federation.toml").exists():
                    runs = [path]  # of a run that begins soon
            found += ((run, name_of(path, run)) for run in runs)
        for folder, name in found:
            key = Path(os.path.abspath(folder))
            if key not in self._runs and len(self._runs) < MOST:
                self._runs[key] = Run(folder, name)
        self.left_out = max(0, len({Path(os.path.abspath(folder)) for folder, _ in found}) - MOST)

    def _show(self, place: int, view: View) -> None:
        view |= {"id": place, "left_out": self.left_out}
        with self._changed:
            if place < len(self._views) and self._views[place][1] == view:
                return
            self._version += 1
            entry = (self._version, view)
            if place < len(self._views):
                self._views[place] = entry
            else:
                self._views.append(entry)
            self._changed.notify_all()

    def views(self) -> list[View]:
        """All runs as they are now."""
        with self._changed:
            return [view for _, view in self._views]

    def since(self, version: int, seconds: float) -> tuple[int, list[View]]:
        """(the version now, what was shown since that one), as soon as there is something, or after a while."""
        with self._changed:
            self._changed.wait_for(lambda: self.over or self._version > version, timeout=seconds)
            return self._version, [view for at, view in self._views if at > version]


def name_of(given: Path, run: Path) -> str:
    """What the page calls a run: its path below what was given, which is named by its last part, or the last two."""
    parts = Path(os.path.abspath(given)).parts[1:]
    vague = bool(parts) and (parts[-1] == "run" or parts[-1].startswith("seed-"))
    base = "/".join(parts[-2 if vague else -1 :]) or "/"
    return base if run == given else f"{base}/{run.relative_to(given)}"


def as_json(value: object) -> str:
    """Without NaN, which is none."""
    return json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
