"""One run folder as the page shows it: what its files say so far, in plain values."""

import contextlib
import os
import time
import tomllib
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

from fedpg.dashboard.reading import Tail, items, number, read_json, text, whole
from fedpg.dashboard.sites import RECENT, SiteRow, Sites
from fedpg.screen import seconds_left

POINTS = 400
"""Of a curve; more cannot be told apart on a screen."""
PACE = 20
"""Rounds over which speed and harm are averaged."""
QUIET = 60.0
"""Seconds without news after which a run that holds no lock is said to be quiet."""
GOING = ("waiting", "running", "finished")
"""States of runs that have a time left; 0, of a finished one."""

View = dict[str, Any]


class Point(NamedTuple):
    """What is kept of a round."""

    round: int
    trajectories: int
    mean: float | None  # of the test
    std: float | None
    harm: float | None
    steps: int
    seconds: float | None


class Run:
    """A run folder, read again and again."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.records, self.ledger = Tail(folder / "records.jsonl"), Tail(folder / "federation.jsonl")
        self.settings: dict[str, Any] | None = None
        self.seed: int | None = None
        self.problem = ""
        self.gone = False
        self.changed: float | None = None
        self._about: tuple[int, ...] | None = None
        self._members: list[str] | None = None
        self._lived = False  # whether a process of this machine was seen to train here
        self._forget_records()
        self.sites = Sites()

    def _forget_records(self) -> None:
        self.points: list[Point] = []
        self.last: dict[str, Any] = {}
        self.counts: list[dict[str, int]] = []
        self.recent: deque[tuple[int, list[str]]] = deque(maxlen=RECENT)
        self.replied: list[int] = []
        self.unused = 0

    def read(self) -> bool:
        """Take what is new; whether anything is."""
        before = self._condition()
        self._read_settings()
        other, rows = self.records.read()
        if other:
            self._forget_records()
        for row in rows:
            self._add(row)
        void, lines = self.ledger.read()
        if void:
            self.sites = Sites()
        for line in lines:
            self.sites.add(line)
        new = bool(other or rows or void or lines) or before != self._condition()
        if new or self.changed is None:
            self.changed = self._last_change() or self.changed
        return new

    def _condition(self) -> tuple[Any, ...]:
        return self._about, self.gone, self.problem, self.records.problem, self.ledger.problem

    @property
    def more(self) -> bool:
        """Whether there is more to read at once."""
        return self.records.more or self.ledger.more

    def _read_settings(self) -> None:
        path = self.folder / "config.json"
        try:
            about = os.stat(path)
        except OSError as error:
            self.gone = not os.path.isdir(self.folder)
            missing = self.settings is None and isinstance(error, FileNotFoundError)
            self.problem = "" if self.gone or missing else f"config.json: {error.strerror or error}"
            self._about = None
            return
        self.gone = False
        seen = (about.st_ino, about.st_size, about.st_mtime_ns)
        if seen == self._about:
            return
        self._about = seen
        values, self.problem = read_json(path)
        settings = (values or {}).get("settings")
        if values is not None and not isinstance(settings, dict):
            self.problem = "config.json is damaged: it has no settings"
        if isinstance(settings, dict):
            self.settings, self.seed = settings, whole((values or {}).get("seed"))

    def _last_change(self) -> float | None:
        times = [_written(tail.path) for tail in (self.records, self.ledger)]
        # A run that ended before its first round has written its settings and no more.
        return max((t for t in times if t is not None), default=None) or _written(self.folder / "config.json")

    def _add(self, row: dict[str, Any]) -> None:
        """One row of the records."""
        self.last = row
        self.points.append(
            Point(
                round=whole(row.get("round")),
                trajectories=whole(row.get("trajectories")),
                mean=number(row.get("test_return")),
                std=number(row.get("test_return_std")),
                harm=number(row.get("harm")),
                steps=whole(row.get("steps")),
                seconds=number(row.get("seconds")),
            )
        )
        self.unused += row.get("rule") == "nobody"
        outcomes = [text(outcome, 40) for outcome in items(row.get("outcome"))]
        if not outcomes:
            return
        self.recent.append((whole(row.get("round")), outcomes))
        missing = len(outcomes) - len(self.counts)
        self.counts += [{} for _ in range(missing)]
        self.replied += [0] * missing
        for agent, outcome in enumerate(outcomes):
            self.counts[agent][outcome] = self.counts[agent].get(outcome, 0) + 1
            if outcome != "absent":
                self.replied[agent] = whole(row.get("round"))

    # What is shown

    def view(self, held: set[tuple[int, int]] | None) -> View:
        """Everything that the page shows of this run."""
        settings, last = self.settings or {}, self.last
        total = whole(settings.get("trajectories"))
        tested = [p for p in self.points if p.mean is not None]
        pace = self.points[-PACE:]
        state, why = self._state(held, total)
        harms = [p.harm for p in pace if p.harm is not None]
        agents = self._agents()
        speed = self._pace(pace, total)
        if state not in GOING:  # at that pace, but nobody goes on
            speed["seconds_left"] = None
        return {
            "name": self.name,
            "state": state,
            "why": why,
            "changed": self.changed,
            "task": text(settings.get("task")),
            "algorithm": text(settings.get("algorithm")),
            "aggregator": text(settings.get("aggregator")),
            "attack": text(settings.get("attack")) if whole(settings.get("byzantine")) else "",
            "agents": whole(settings.get("agents")) or len(agents),
            "byzantine": whole(settings.get("byzantine")),
            "seed": self.seed,
            "federation": bool(self.sites.rows or self.sites.events or self._listed()),
            "round": self.points[-1].round if self.points else 0,
            "trajectories": self.points[-1].trajectories if self.points else 0,
            "total": total,
            "test_return": tested[-1].mean if tested else None,
            "test_return_std": tested[-1].std if tested else None,
            "best": max((p.mean for p in tested if p.mean is not None), default=None),
            "harm": sum(harms) / len(harms) if harms else None,
            "unused": self.unused,
            **speed,
            "rule": text(last.get("rule"), 40),
            "threshold": number(last.get("threshold")),
            "sigma": number(last.get("sigma")),
            "points": [[p.round, p.trajectories, p.mean, p.std, p.harm] for p in thinned(self.points)],
            "rows": agents,
            "events": list(self.sites.events),
            "warnings": self._warnings(agents),
        }

    def _state(self, held: set[tuple[int, int]] | None, total: int) -> tuple[str, str]:
        if self.gone:
            return "removed", "the folder is not there" + (
                ": what was read of it is shown" if self.points else " (yet)"
            )
        if self.settings is None:
            return ("damaged", self.problem) if self.problem else ("waiting", "nothing is written yet")
        if total and self.points and self.points[-1].trajectories >= total:
            return "finished", "all trajectories are sampled"
        if self._holds(held):
            self._lived = True
            return ("waiting", self.sites.waiting or "for the first round") if len(self.points) < 2 else ("running", "")
        if self._lived:
            return "quiet", "the process that trained here has ended; the run can be resumed"
        slow = max((p.seconds or 0.0 for p in self.points[-PACE:]), default=0.0)
        if self.changed is None or time.time() - self.changed < max(QUIET, 5 * slow):
            why = self.sites.waiting
            return ("running", why) if self.points else ("waiting", why or "for the first round")
        return (
            "quiet",
            "no news for a while, and no process of this machine trains here: it was stopped, or is elsewhere",
        )

    def _holds(self, held: set[tuple[int, int]] | None) -> bool:
        if held is None:
            return False
        try:
            about = os.stat(self.folder)
        except OSError:
            return False
        return (about.st_dev, about.st_ino) in held

    def _pace(self, pace: list[Point], total: int) -> View:
        """Speed over the last rounds, and the time that is left at it."""
        nothing = dict.fromkeys(("seconds_per_round", "steps_per_second", "seconds_left"))
        if len(pace) < 2:
            return nothing
        spent = sum(p.seconds or 0.0 for p in pace[1:])
        if spent <= 0:
            return nothing
        first, last = pace[0], pace[-1]
        return {
            "seconds_per_round": spent / (len(pace) - 1),
            "steps_per_second": (last.steps - first.steps) / spent if last.steps > first.steps else None,
            "seconds_left": seconds_left(last.trajectories - first.trajectories, total - last.trajectories, spent),
        }

    def _agents(self) -> list[View]:
        """A row per agent: what the records say of it, and what the ledger says of the site that it is."""
        settings, last = self.settings or {}, self.last
        count, liars = whole(settings.get("agents")), whole(settings.get("byzantine"))
        count = min(max(count, len(self.counts)), 1000)
        names = self._names(count)
        outcomes, distances = items(last.get("outcome")), items(last.get("distances"))
        threshold = number(last.get("threshold"))
        rows = []
        for agent in range(count):
            distance = number(distances[agent]) if agent < len(distances) else None
            row = {
                "name": names[agent],
                "byzantine": agent >= count - liars,
                "connected": None,
                "seen": None,
                "replied": self.replied[agent] if agent < len(self.replied) else 0,
                "outcome": text(outcomes[agent], 40) if agent < len(outcomes) else "",
                "reason": "",
                "distance": distance,
                "far": distance / threshold if distance is not None and threshold else None,
                "seconds": None,
                "mean_return": None,
                "counts": dict(self.counts[agent]) if agent < len(self.counts) else {},
                "recent": [(r, o[agent]) for r, o in self.recent if agent < len(o)],
            }
            site = self.sites.rows.get(names[agent])
            rows.append(_with_reason(row if site is None else row | _of_site(site)))
        return rows

    def _names(self, count: int) -> list[str]:
        """Of the sites, in the order of their agents: as the ledger has them, or the federation that the run is in."""
        known = self.sites.names
        if len(known) != count:
            known = self._listed()
        if len(known) == count:
            return known
        return [f"{'site-' if self.sites.rows else 'agent '}{agent}" for agent in range(count)]

    def _listed(self) -> list[str]:
        """The sites of the federation that the folder is in, before the first of them has come."""
        if self._members is None:
            self._members = []
            with contextlib.suppress(OSError, ValueError):
                listed = tomllib.loads((self.folder.parent / "federation.toml").read_text()).get("sites")
                self._members = [text(name) for name in items(listed)]
        return self._members

    def _warnings(self, agents: list[View]) -> list[str]:
        """What somebody should look at, worst first."""
        found = [text for text in (self.problem, self.records.problem, self.ledger.problem) if text]
        for tail in (self.records, self.ledger):
            if tail.damaged:
                found.append(f"{tail.path.name}: {tail.damaged} damaged line{'s' * (tail.damaged > 1)} left out")
        found += [f"{row['name']} is gone" for row in agents if row["connected"] is False and row["replied"]]
        found += [f"{row['name']} has not come" for row in agents if row["connected"] is False and not row["replied"]]
        for row in agents:
            silent = row["outcome"] == "absent" and row["connected"] is not False and self.sites.rows
            if row["outcome"] in ("failed", "unusable") or silent:
                found.append(f"{row['name']} {row['outcome']}" + (f": {row['reason']}" if row["reason"] else ""))
        if self.sites.attempt.get("unused"):
            found.append(f"round {self.sites.attempt['round']} is not used: {self.sites.attempt['unused']}")
        elif self.unused:
            found.append(f"rounds not used so far, since nobody was accepted: {self.unused}")
        if self.sites.attempt.get("quorum") is False:
            found.append(f"round {self.sites.attempt['round']} had no quorum, and is tried again")
        return found[:50]


def _written(path: Path) -> float | None:
    """When a file was written last; None if there is none."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def _with_reason(row: View) -> View:
    """An aggregator gives no reason but how far out an agent lay."""
    if row["outcome"] != "turned away":
        return row
    far = row["far"]
    return row | {"reason": f"{far:.3g} times the threshold" if far is not None and far > 1 else row["reason"]}


def _of_site(site: SiteRow) -> View:
    """What only a ledger says; its counts are of attempts, also of those without a quorum."""
    found: View = {"connected": site.connected, "seen": site.seen, "seconds": site.seconds}
    if site.counts:
        found |= {"replied": site.replied, "outcome": site.outcome, "reason": site.reason, "counts": dict(site.counts)}
        found |= {"recent": list(site.recent), "mean_return": site.mean_return}
    if site.far is not None:
        found["far"] = site.far
    return found


def thinned(points: list[Point]) -> list[Point]:
    """At most about POINTS of them, evenly; the last one always."""
    step = -(-len(points) // POINTS)
    if step <= 1:
        return points
    last = (len(points) - 1) % step
    return points[last::step]


def find_runs(given: Path) -> list[Path]:
    """The run folders at a path: itself, those in it, and those in these."""
    if (given / "config.json").exists():
        return [given]
    found: list[Path] = []
    for pattern in ("*/config.json", "*/*/config.json"):
        found += (path.parent for path in given.glob(pattern))
    return sorted(found, key=_place)


def _place(path: Path) -> list[tuple[str, int]]:
    """seed-2 before seed-10."""
    parts = []
    for part in path.parts:
        stem = part.rstrip("0123456789")
        parts.append((stem, int(part[len(stem) :] or -1)))
    return parts
