"""How a federation is, from its files alone: whether its server runs or not."""

import datetime
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.table import Table

from fedpg.problem import OUTCOMES
from fedpg.screen import make_console
from fedpg.sites.certificates import days_left
from fedpg.sites.folder import Federation
from fedpg.sites.gathering import check_quorum
from fedpg.sites.history import History, read_history
from fedpg.sites.ledger import FILE, RECENT
from fedpg.sites.members import Roster, about_tolerance, roster_of, warn_of_expiry
from fedpg.storage import StorageError, locked, read_config
from fedpg.training.checkpoint import RECORDS


class RunStatus(NamedTuple):
    """A run, as its folder shows it."""

    folder: Path
    roster: Roster
    running: bool
    finished: bool
    row: dict[str, Any]  # the last of the records
    test_return: float | None  # the last that is known
    trajectories: int  # to go to
    history: History


def newest_run(folder: Path) -> Path | None:
    """The run folder in a federation's folder that was written last."""
    found = [path.parent for path in folder.glob("*/config.json")]
    return max(found, key=lambda run: max(map(_written, run.iterdir()), default=0.0), default=None)


def _written(path: Path) -> float:
    """When a file was written; one that a running server has replaced meanwhile does not count."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def read_run(federation: Federation, run: Path) -> RunStatus:
    """What a run folder says, also while a server writes it."""
    config, _ = read_config(run)
    roster = roster_of(federation, run)
    rows = [json.loads(line) for line in _text(run / RECORDS).splitlines() if line]
    row = rows[-1] if rows else {}
    returns = [r["test_return"] for r in rows if r.get("test_return") is not None]
    finished = row.get("trajectories", 0) >= config.trajectories
    return RunStatus(
        folder=run,
        roster=roster,
        running=is_locked(run),
        finished=finished,
        row=row,
        test_return=returns[-1] if returns else None,
        trajectories=config.trajectories,
        history=read_history(run / FILE, roster.sites),
    )


def is_locked(folder: Path) -> bool:
    """Whether a process works in this run folder."""
    try:
        with locked(folder, wait=False):
            return False
    except BlockingIOError:
        return True


def print_status(federation: Federation, run: Path | None = None) -> None:
    """Members, certificates and the last run, for people."""
    config, folder = federation.config, federation.folder
    gone = f" ({', '.join(federation.removed)} removed)" if federation.removed else ""
    print(f"{folder}: {len(federation.sites)} sites{gone}, the server at {federation.address}")
    print(f"  a new run: {about_tolerance(config, 0)}; a round needs {check_quorum(federation.quorum, config)} replies")
    for name, what in (("server.crt", "the server's certificate"), ("ca.crt", "the authority")):
        print(f"  {what}: {about_days(days_left(folder / name))}")
    warn_of_expiry(folder, lambda text: print(f"  {text}"))
    run = run or newest_run(folder)
    if run is None:
        print("  no run yet: fedpg serve begins one")
        return
    status = read_run(federation, run)
    removed = [name for name in status.roster.sites if name not in federation.sites]
    waiting = [name for name in federation.sites if name not in status.roster.sites]
    how = "finished" if status.finished else "stopped"
    print(f"{run}: {'the server is running' if status.running else how}, {about_progress(status)}")
    print(f"  {about_tolerance(status.roster.config(federation), len(removed))}")
    if waiting:
        print(f"  {', '.join(waiting)}: from the next run on")
    if status.history.unused:
        print(f"  {status.history.unused} rounds were not used, since nobody was accepted")
    make_console().print(status_table(status, removed))


def about_days(days: float) -> str:
    """How long a certificate lasts."""
    end = datetime.datetime.now() + datetime.timedelta(days=days)
    return f"valid until {end:%Y-%m-%d}, {days:,.0f} days" if days > 0 else f"expired on {end:%Y-%m-%d}"


def about_progress(status: RunStatus) -> str:
    """How far a run has come."""
    if not status.row:
        return "before the first round"
    value = "" if status.test_return is None else f", return {status.test_return:.1f}"
    done = f"{status.row['trajectories']} of {status.trajectories} trajectories"
    return f"round {status.row['round']}, {done}{value}, last written {_ago(status.history.time)}"


def status_table(status: RunStatus, removed: list[str]) -> Table:
    """A row per site of the run: the counts since its beginning."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("site", no_wrap=True)
    table.add_column("online", no_wrap=True)
    for name in ("last\nheard", "last\nreply", *(outcome.replace(" ", "\n") for outcome in OUTCOMES), "how\nfar"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("in the last round", overflow="fold")
    for name, past in status.history.sites.items():
        online = ("yes" if past.connected else "no") if status.running else ""
        far = f"{np.median(past.far[-RECENT:]):.1f}" if past.far else ""
        last = "removed" if name in removed else past.last
        counts = [str(past.counts[outcome]) for outcome in OUTCOMES]
        last += ", has the policy" if past.told else ""
        table.add_row(name, online, _ago(past.heard), str(past.replied or ""), *counts, far, last)
    return table


def _ago(moment: float | None) -> str:
    if moment is None:
        return ""
    seconds = max(0.0, time.time() - moment)
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name} ago"
    return f"{seconds:.0f} s ago"


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
