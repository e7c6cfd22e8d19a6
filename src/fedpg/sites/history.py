"""What federation.jsonl says of a run so far: for a server that goes on with it, and for whoever asks how it is."""

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedpg.problem import OUTCOMES


class Past(NamedTuple):
    """Of one site."""

    counts: dict[str, int]  # of each outcome, since the beginning of the run
    replied: int  # the last round it replied to
    heard: float | None  # seconds since the epoch of the last that was heard of it
    far: list[float]  # how far out its replies were, the newest last
    connected: bool  # by what was written last
    told: bool  # whether it has the policy of the run
    last: str  # its last outcome, with the reason


class History(NamedTuple):
    """Of all sites, by name."""

    sites: dict[str, Past]
    round: int  # the last that was decided
    unused: int  # rounds in which nobody was accepted
    time: float | None  # of the last line


def now_as_text() -> str:
    """The time of day in a line of the file: UTC, to the millisecond."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All lines that are whole; one that a killed server left half, or that somebody else wrote, is passed over."""
    lines: list[dict[str, Any]] = []
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return lines
    for row in raw.split(b"\n"):
        try:
            line = json.loads(row)
        except ValueError:
            continue
        if isinstance(line, dict):
            lines.append(line)
    return lines


def read_history(path: Path, names: tuple[str, ...]) -> History:
    """What became of each site. A round that was decided again, after a server was killed, counts once."""
    lines = read_lines(path)
    last = {line["round"]: i for i, line in enumerate(lines) if line.get("quorum") is True and "sites" in line}
    kept = [line for i, line in enumerate(lines) if line.get("quorum") is not True or last.get(line["round"]) == i]
    found: dict[str, dict[str, Any]] = {
        name: {
            "counts": dict.fromkeys(OUTCOMES, 0),
            "replied": 0,
            "heard": None,
            "far": [],
            "connected": False,
            "told": False,
            "last": "",
        }
        for name in names
    }
    for line in kept:
        for name, site in _about(line):
            past = found.get(name)
            if past is not None:
                _enter(past, line, site)
    decided = [line for line in kept if line.get("quorum") is True]
    stamps = [stamp for stamp in map(time_of, lines) if stamp is not None]
    return History(
        {name: Past(**values) for name, values in found.items()},
        round=max((line["round"] for line in decided), default=0),
        unused=sum(bool(line.get("unused")) for line in decided),
        time=stamps[-1] if stamps else None,
    )


def time_of(line: Mapping[str, Any]) -> float | None:
    """Seconds since the epoch; None in the lines of older versions."""
    try:
        return datetime.datetime.fromisoformat(str(line["time"])).timestamp()
    except (KeyError, ValueError):
        return None


def _about(line: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The sites that a line is about, with what it says of each."""
    if isinstance(line.get("sites"), dict):
        return list(line["sites"].items())
    return [(line["site"], {})] if isinstance(line.get("site"), str) else []


def _enter(past: dict[str, Any], line: Mapping[str, Any], site: Mapping[str, Any]) -> None:
    event, outcome = line.get("event"), site.get("outcome")
    if outcome in past["counts"]:
        past["counts"][outcome] += 1
        reason = site.get("reason") or ""
        past["last"] = outcome if outcome == "accepted" or not reason else f"{outcome}: {reason}"
        if outcome != "absent":
            past["replied"], past["heard"] = line["round"], time_of(line) or past["heard"]
        if site.get("how_far") is not None:
            past["far"].append(float(site["how_far"]))
    if event == "connected":
        past["connected"], past["heard"] = True, time_of(line) or past["heard"]
    elif event in ("gone", "removed", "new key"):
        past["connected"] = False
    elif event == "policy delivered":
        past["told"] = True
