"""What each site did, for people: a table while it happens, one line of JSON per round in the run folder."""

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpg.aggregators import RULES, Verdict
from fedpg.problem import OUTCOMES, STATUSES, outcome_of
from fedpg.sites.history import now_as_text, read_history
from fedpg.storage import StorageError

if TYPE_CHECKING:
    from fedpg.sites.gathering import Gathering

FILE = "federation.jsonl"
RECENT = 20
"""Rounds over which it is said how far out a site is."""
REMOVED = "removed"
"""The state of a site that was taken off the federation."""
PAUSE = 10.0
"""Seconds between two notes of strangers, and of a site that has had its share of them."""
NOTES = 30
"""Of one site at a time: what it does wrong must not fill the disk."""


@dataclass
class Row:
    """Where a site is."""

    name: str
    connected: bool = False
    seen: float | None = None  # time.monotonic() of its last sign of life
    replied: int = 0  # the last round it replied to
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))  # rounds, and attempts at one
    state: str = "not connected yet"
    far: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))  # how far out its last replies were

    @property
    def how_far(self) -> float:
        """The median of that; NaN while there is none."""
        return float(np.median(self.far)) if self.far else float("nan")


def how_far_out(verdict: Verdict) -> np.ndarray:
    """Each site's distance to the centre over the threshold of the rule that decided, or over the median distance if
    there is none; NaN or infinite where there is nothing to compare.  [K]"""
    distances, threshold = np.asarray(verdict.distances, float), float(verdict.threshold)
    known = distances[np.isfinite(distances)]
    unit = threshold if np.isfinite(threshold) else float(np.median(known)) if known.size else 0.0
    return distances / unit if unit > 0 else np.full(distances.shape, np.nan)


class Ledger:
    """Is told everything that happens between the server and its sites; safe to call from several threads.

    It counts from the beginning of the run: a server that goes on with one reads what the last one wrote.
    """

    def __init__(self, names: Sequence[str], path: Path | None = None, say: Callable[[str], None] | None = None):
        self.rows = [Row(name) for name in names]
        self.path, self.say = path, say or (lambda text: None)
        self.tell: Callable[[dict[str, Any]], None] = lambda line: None
        """Hears every line that the file gets."""
        self.round = 0
        self.unused = 0
        """Rounds of the run in which nobody was accepted."""
        self.told: set[str] = set()
        """Sites that have the policy of the run, which is over."""
        if path is not None:
            self._remember(path)
        self._lock = threading.RLock()
        self._attempt = 0
        self._strangers, self._silent_until = 0, 0.0
        self._asked: set[int] = set()
        self._shares: dict[int, tuple[float, float]] = {}  # agent -> (notes that it has left, since when)

    def _remember(self, path: Path) -> None:
        past = read_history(path, tuple(row.name for row in self.rows))
        self.round, self.unused = past.round, past.unused
        for row in self.rows:
            site = past.sites[row.name]
            row.counts, row.replied = dict(site.counts), site.replied
            row.far.extend(site.far)
            row.seen = None if site.heard is None else time.monotonic() - max(0.0, time.time() - site.heard)
            if site.told:
                self.told.add(row.name)

    def begin(self, round_: "Gathering", attempt: int, asked: list[int]) -> None:
        """A broadcast goes out to these agents."""
        with self._lock:
            self.round, self._attempt, self._asked = round_.number, attempt, set(asked)
            for agent in asked:
                self.rows[agent].state = "asked"

    def heard(self, round_: "Gathering", agent: int) -> None:
        """A reply came in, usable or not."""
        with self._lock:
            self.rows[agent].replied = round_.number
            self.rows[agent].seen = time.monotonic()
            self.rows[agent].state = "replied"

    def decided(self, round_: "Gathering", verdict: Verdict, status: np.ndarray, unused: str = "") -> None:
        """The aggregator has decided on a round; `unused` says why it accepted nobody, if so."""
        with self._lock:
            self.unused += bool(unused)
            self._enter(round_, [STATUSES[int(s)] for s in status], verdict, unused)
        if unused:
            self.say(f"round {round_.number} is not used: {unused}")

    def failed(self, round_: "Gathering", quorum: int) -> None:
        """A round had no quorum."""
        with self._lock:
            self._enter(round_, round_.statuses)
        self.say(
            f"round {round_.number}: {round_.usable} usable replies, {quorum} are needed: nothing changed, asking again"
        )

    def waiting(self, round_: int, connected: int, quorum: int, deadline: float) -> None:
        """There are too few sites to begin a round; or enough for the first one, and the others may yet come."""
        event = f"waiting for {'a quorum' if connected < quorum else 'the other sites'}"
        with self._lock:
            self.round = round_
            self._append({"round": round_, "event": event, "connected": connected, "quorum": quorum})
        there = f"{connected} of {len(self.rows)} sites connected"
        if connected < quorum:
            self.say(f"round {round_}: {there}, waiting until there are {quorum}")
        else:
            self.say(f"round {round_}: {there}, quorum reached: waiting up to {deadline:.0f} s for the others")

    def connected(self, agent: int) -> None:
        """A site has come, or come back."""
        with self._lock:
            row = self.rows[agent]
            if row.state == REMOVED:  # while it was being answered
                return
            row.connected, row.seen, row.state = True, time.monotonic(), "connected"
            self._append({"round": self.round, "event": "connected", "site": row.name})
        self.say(f"{row.name} connected")

    def lost(self, agent: int) -> None:
        """A site has gone, with or without a word."""
        with self._lock:
            row = self.rows[agent]
            if not row.connected:
                return
            row.connected, row.state = False, "gone"
            self._append({"round": self.round, "event": "gone", "site": row.name})
        self.say(f"{row.name} is gone")

    def shut_out(self, agent: int, removed: bool) -> None:
        """A site was taken off the federation, or has a new key and the old one does not count any more."""
        with self._lock:
            row = self.rows[agent]
            row.connected, row.state = False, REMOVED if removed else "new key: not connected yet"
            event = "removed" if removed else "new key"
            self._append({"round": self.round, "event": event, "site": row.name})
        self.say(f"{row.name}: {'removed from the federation' if removed else 'its old key is shut out'}")

    def delivered(self, agent: int, rounds: int) -> None:
        """A site has the policy of the run, which is over."""
        with self._lock:
            self.told.add(self.rows[agent].name)
            self.rows[agent].state = "has the policy"
            self._append({"round": rounds, "event": "policy delivered", "site": self.rows[agent].name})

    def seen(self, agent: int) -> None:
        """A sign of life."""
        self.rows[agent].seen = time.monotonic()

    def stranger(self) -> None:
        """Somebody came whose key is not registered; anybody can, so not every attempt takes a line."""
        with self._lock:
            self._strangers += 1
            if time.monotonic() < self._silent_until:
                return
            self._silent_until = time.monotonic() + PAUSE
            count, self._strangers = self._strangers, 0
        self.note(None, "refused", f"a site whose key is not registered here (attempts since the last note: {count})")

    def note(self, agent: int | None, event: str, reason: str) -> None:
        """Something that should not happen; without an agent, of a stranger."""
        name = None if agent is None else self.rows[agent].name
        with self._lock:
            if agent is not None and not self._may_note(agent):
                return
            self._append({"round": self.round, "event": event, "site": name, "reason": reason})
        self.say(f"{name or 'a stranger'}: {event}: {reason}")

    def _may_note(self, agent: int) -> bool:
        """Whether a site has notes left: NOTES at first, and one more every PAUSE seconds."""
        now = time.monotonic()
        left, since = self._shares.get(agent, (float(NOTES), now))
        left = min(float(NOTES), left + (now - since) / PAUSE)
        self._shares[agent] = max(0.0, left - (left >= 1)), now
        return left >= 1

    def _enter(
        self, round_: "Gathering", statuses: list[str], verdict: Verdict | None = None, unused: str = ""
    ) -> None:
        """What became of every site, in the table and in the file; `verdict` is None if no aggregator ran."""
        sites: dict[str, Any] = {}
        nothing = np.full(len(statuses), np.nan)
        far = nothing if verdict is None else how_far_out(verdict)
        distances = nothing if verdict is None else np.asarray(verdict.distances, float)
        for agent, (row, status) in enumerate(zip(self.rows, statuses, strict=True)):
            accepted = None if verdict is None else bool(verdict.accepted[agent])
            outcome, reason = outcome_of(status, accepted), self._why(round_, agent, status, accepted)
            row.counts[outcome] += 1
            known = status == "answered" and bool(np.isfinite(far[agent]))
            if known:
                row.far.append(float(far[agent]))
            if row.state != REMOVED:
                short = reason.removeprefix("failed at the site: ")
                row.state = outcome if status == "answered" else f"{outcome}: {short}"
            sites[row.name] = {
                "outcome": outcome,
                "status": status,
                "accepted": bool(accepted),
                "how_far": float(far[agent]) if known else None,
                "distance": float(distances[agent]) if known else None,
                "return": round_.returns.get(agent),
                "reason": reason,
                "seconds": round_.seconds.get(agent),
            }
        took = round(time.monotonic() - round_.began, 3)
        rule = None if verdict is None else RULES[int(verdict.rule)]
        about: dict[str, Any] = {
            "round": round_.number,
            "attempt": self._attempt,
            "quorum": verdict is not None,
            "seconds": took,
        }
        limit = None if verdict is None or not np.isfinite(verdict.threshold) else float(verdict.threshold)
        self._append(about | {"rule": rule, "threshold": limit, "unused": unused, "sites": sites})

    def _why(self, round_: "Gathering", agent: int, status: str, accepted: bool | None) -> str:
        """Why a site was not accepted; nothing if it was."""
        if status == "answered":
            if accepted is None:
                return "too few replies: no aggregator ran"
            return "" if accepted else "the aggregator did not accept it"
        if status == "no answer":
            if self.rows[agent].state == REMOVED:
                return "removed from the federation"
            return "no answer" if agent in self._asked else "not there"
        return f"{status}: {round_.reasons.get(agent, '')}".rstrip(": ")

    def _append(self, line: dict[str, Any]) -> None:
        self.tell(line)
        if self.path is None:
            return
        try:
            # One write per line. Whoever was killed in the middle of one leaves half a line, which a new one ends.
            with open(self.path, "ab+") as file:
                size = file.seek(0, os.SEEK_END)
                broken = size > 0 and (file.seek(size - 1), file.read(1))[1] != b"\n"
                stamped = {"time": now_as_text()} | line
                file.write((b"\n" if broken else b"") + json.dumps(stamped).encode() + b"\n")
        except OSError as error:
            raise StorageError(
                f"cannot write {self.path}: {error.strerror or error}. Make room and start again: the run goes on from "
                "its checkpoint"
            ) from error
