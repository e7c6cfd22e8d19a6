"""Where the sites of a federation are, by the lines of its ledger, federation.jsonl."""

import time
from collections import deque
from datetime import datetime
from typing import Any

from fedpg.dashboard.reading import number, text, whole

RECENT = 40
"""Rounds of which a row shows the outcomes."""
EVENTS = 30
"""What happened last, besides rounds."""
MOST = 1000
"""Sites that are kept, whatever a file says."""


class SiteRow:
    """One site so far; None is what nobody said."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.connected: bool | None = None
        self.seen: float | None = None  # seconds since 1970
        self.replied = 0
        self.outcome = self.reason = ""
        self.far: float | None = None
        self.seconds: float | None = None
        self.mean_return: float | None = None
        self.counts: dict[str, int] = {}
        self.recent: deque[tuple[int, str]] = deque(maxlen=RECENT)
        self.decided: tuple[int, str] = (0, "")  # the last round with a verdict


class Sites:
    """Is told the lines of a ledger, in their order."""

    def __init__(self) -> None:
        self.rows: dict[str, SiteRow] = {}
        self.names: list[str] = []
        """Of the last attempt, in the order of their agents."""
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS)
        self.waiting = ""
        self.attempt: dict[str, Any] = {}
        self.failed_attempts = 0
        self.seconds: float | None = None

    def add(self, line: dict[str, Any]) -> None:
        """One line: an attempt at a round, or an event."""
        if isinstance(line.get("sites"), dict):
            self._add_attempt(line)
        elif text(line.get("event")):
            self._add_event(line)

    def _row(self, name: str) -> SiteRow | None:
        if name not in self.rows:
            if not name or len(self.rows) >= MOST:
                return None
            self.rows[name] = SiteRow(name)
        return self.rows[name]

    def _add_attempt(self, line: dict[str, Any]) -> None:
        when, round_ = moment(line.get("time")), whole(line.get("round"))
        self.waiting, self.seconds = "", number(line.get("seconds"))
        self.attempt = {
            "round": round_,
            "quorum": line.get("quorum") is not False,
            "rule": text(line.get("rule"), 40),
            "unused": text(line.get("unused")),
        }
        self.names = [text(name) for name in line["sites"]]
        self.failed_attempts += line.get("quorum") is False
        for name, about in line["sites"].items():
            row = self._row(text(name))
            if row is None or not isinstance(about, dict):
                continue
            row.outcome, row.reason = text(about.get("outcome"), 40) or "unknown", text(about.get("reason"))
            row.far, row.seconds = number(about.get("how_far")), number(about.get("seconds"))
            row.mean_return = number(about.get("return"))
            if line.get("quorum") is True and row.decided[0] == round_:  # again, after a server was killed
                row.counts[row.decided[1]] -= 1
                if row.recent and row.recent[-1] == row.decided:
                    row.recent.pop()
            row.counts[row.outcome] = row.counts.get(row.outcome, 0) + 1
            row.recent.append((round_, row.outcome))
            if line.get("quorum") is True:
                row.decided = (round_, row.outcome)
            if row.outcome != "absent":
                row.replied, row.connected = round_, True
                row.seen = when or row.seen
            elif row.reason == "not there":
                row.connected = False
            elif row.reason.startswith("removed"):
                row.connected = None

    def _add_event(self, line: dict[str, Any]) -> None:
        event, name, when = text(line["event"], 60), text(line.get("site")), moment(line.get("time"))
        self.events.append(
            {
                "round": whole(line.get("round")),
                "time": when,
                "event": event,
                "site": name,
                "reason": text(line.get("reason")),
            }
        )
        if event.startswith("waiting"):
            there, needed = whole(line.get("connected")), whole(line.get("quorum"))
            self.waiting = f"{event}: {there} connected, {needed} needed"
        if event in ("started", "listening"):  # a server begins without its sites
            for each in self.rows.values():
                each.connected = False
        row = self._row(name)
        if row is None:
            return
        if event == "connected":
            row.connected, row.seen = True, when or row.seen
        elif event in ("gone", "new key"):
            row.connected = False
        elif event == "removed":
            row.connected = None


def moment(value: Any) -> float | None:
    """Seconds since 1970, of a number or of a time of day as ISO 8601 writes it."""
    found = number(value)
    if found is None and isinstance(value, str):
        try:
            found = datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError, OSError):
            return None
    return found if found is not None and 0 < found < time.time() + 86400 else None
