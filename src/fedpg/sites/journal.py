"""What a server or a site says, for programs: one JSON object per line, in a file of the user's."""

import json
import sys
import threading
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedpg.errors import ConfigError
from fedpg.training.progress import Reporter, Snapshot

CALM = ("connected", "started", "waiting for the other sites", "policy delivered", "removed")
"""Events of a ledger that are as they should be, or as the operator wanted them; the others are warnings."""


class Journal:
    """Appends to a file that may be moved away at any time; a full disk ends the journal and not the run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._works = True
        try:
            with open(path, "ab"):
                pass
        except OSError as error:
            raise ConfigError(
                f"cannot write the log {path}: {error.strerror or error}. Give another --log-json"
            ) from None

    def write(self, level: str, event: str, site: str | None = None, **more: Any) -> None:
        """One line: when, how bad, what, of which site, and whatever else is known."""
        now = datetime.now().astimezone().isoformat(timespec="milliseconds")
        line = {"time": now, "level": level, "event": event, "site": site} | more
        with self._lock:
            try:
                with open(self.path, "ab") as file:
                    file.write(json.dumps(line).encode() + b"\n")
                self._works = True
            except OSError as error:
                if self._works:
                    print(f"fedpg: cannot write {self.path}: {error.strerror or error}; going on", file=sys.stderr)
                self._works = False

    def enter(self, line: dict[str, Any]) -> None:
        """A line of the ledger: an event; or an attempt at a round, and each site that was not accepted in it."""
        if "sites" not in line:
            event = str(line["event"])
            more = {name: value for name, value in line.items() if name not in ("time", "level", "event", "site")}
            self.write("info" if event in CALM else "warning", event, line.get("site"), **more)
            return
        sites = line["sites"]
        accepted = sum(bool(about["accepted"]) for about in sites.values())
        about = {name: line.get(name) for name in ("round", "attempt", "quorum", "seconds", "rule", "unused")}
        good = line["quorum"] and not line["unused"]
        self.write("info" if good else "warning", "round", accepted=accepted, sites=len(sites), **about)
        for name, each in sites.items():
            if not each["accepted"]:
                # Not judged: too few others replied. Removed: there is nobody who could reply.
                calm = each["outcome"] == "not judged" or each["reason"].startswith("removed")
                level = "info" if calm else "warning"
                self.write(level, each["outcome"], name, round=line["round"], reason=each["reason"])


class Journalled:
    """A reporter that writes down, besides, where the run is and how it ends."""

    def __init__(self, reporter: Reporter, journal: Journal) -> None:
        self.reporter, self.journal = reporter, journal
        self.note = reporter.note

    def __enter__(self) -> Self:
        self.reporter.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.reporter.__exit__(kind, error, at)
        if error is not None:
            self.journal.write("error", "failed", reason=f"{type(error).__name__}: {error}")

    def update(self, seed: int, snapshot: Snapshot) -> None:
        self.reporter.update(seed, snapshot)
        value = snapshot.test_return
        about: dict[str, Any] = {"round": snapshot.round, "trajectories": snapshot.trajectories}
        self.journal.write("info", "progress", **about, test_return=value if value == value else None)
