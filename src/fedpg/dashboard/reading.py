"""What a dashboard takes from files: whole lines of files that grow, and values that are what they should be.

Nothing here writes, locks or waits, so no run can notice that it is read. Whatever is missing, half written or
damaged is said to be, and never an error.
"""

import contextlib
import json
import math
import os
import stat
from pathlib import Path
from typing import Any

PART = 1 << 22
"""Bytes read at a time."""
LONGEST = 1 << 24
"""Bytes of a line; a longer one is no line of ours."""


class Tail:
    """The lines of a file that grows, or is replaced by a longer one with the same beginning."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0
        """Lines that are no JSON objects."""
        self.number = 0
        """Lines so far."""
        self.problem = ""
        """Why the file cannot be read, if so; it need not be there yet."""
        self._seen: tuple[int, int, int] | None = None
        self._at = 0  # where the first line begins that has not been read
        self._last = b""  # the line before that, by which a file is known again
        self.more = False
        """Whether there is more to read at once."""

    def read(self) -> tuple[bool, list[dict[str, Any]]]:
        """(whether it is another file, so that what came before is void; the new lines)."""
        self.problem = ""
        try:
            about = plain_file(self.path)
            seen = (about.st_ino, about.st_size, about.st_mtime_ns)
            if seen == self._seen and not self.more:
                return False, []
            with open(self.path, "rb") as file:
                other = not self._same(file)
                if other:
                    self._at, self._last, self.damaged, self.number = 0, b"", 0, 0
                file.seek(self._at)
                data = file.read(PART)
                while b"\n" not in data and len(data) < LONGEST and (more := file.read(PART)):
                    data += more
                self.more = bool(file.read(1))  # the rest comes with the next call
        except FileNotFoundError:
            other, self._seen, self._at, self._last, self.number = self._at > 0, None, 0, b"", 0
            return other, []
        except OSError as error:
            self.problem = f"{self.path.name} cannot be read: {error.strerror or error}"
            return False, []
        self._seen = seen
        end = data.rfind(b"\n") + 1  # what follows is half a line, for now
        if not end:
            if len(data) >= LONGEST:
                self.problem, self.more = f"{self.path.name} is damaged: it has a line without an end", False
            return other, []
        whole = data[:end].split(b"\n")[:-1]
        self._at += end
        self._last = whole[-1] + b"\n"
        return other, self._parsed(whole)

    def _same(self, file: Any) -> bool:
        """Whether the last line that was read is still where it was."""
        if not self._at:
            return True
        file.seek(self._at - len(self._last))
        return bool(file.read(len(self._last)) == self._last)

    def _parsed(self, lines: list[bytes]) -> list[dict[str, Any]]:
        found = []
        for line in lines:
            self.number += 1
            if not line.strip():
                continue
            values = parsed(line)
            if isinstance(values, dict):
                found.append(values)
            else:
                self.damaged += 1
        return found


def plain_file(path: Path) -> os.stat_result:
    """About a file; OSError if it is none. A pipe would be waited for."""
    about = os.stat(path)
    if not stat.S_ISREG(about.st_mode):
        raise OSError(None, "it is no file")
    return about


def parsed(text: bytes) -> Any:
    """What JSON says; None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def read_json(path: Path) -> tuple[dict[str, Any] | None, str]:
    """(the object in a file, or None; why not)."""
    try:
        if plain_file(path).st_size > LONGEST:
            return None, f"{path.name} is damaged: it is too large"
        values = parsed(path.read_bytes())
    except FileNotFoundError:
        return None, f"there is no {path.name}"
    except OSError as error:
        return None, f"{path.name} cannot be read: {error.strerror or error}"
    return (values, "") if isinstance(values, dict) else (None, f"{path.name} is damaged: it is no JSON object")


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def whole(value: Any, default: int = 0) -> int:
    """A whole number from 0."""
    found = number(value)
    return default if found is None or found < 0 else int(min(found, 2.0**53))


def text(value: Any, longest: int = 200) -> str:
    """A text of a length that fits a page; empty if it is none."""
    if not isinstance(value, str):
        return ""
    plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in value[: longest + 1])
    return plain if len(plain) <= longest else plain[:longest] + "…"


def items(value: Any) -> list[Any]:
    """A list; empty if it is none."""
    return value if isinstance(value, list) else []


def held_folders() -> set[tuple[int, int]] | None:
    """(device, inode) of what processes of this machine have locked; None where the system does not say.

    A run holds a lock on its folder. To try that lock would make a run that starts at this moment refuse the folder.
    """
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    found = set()
    for line in lines:
        words = line.split()
        if "FLOCK" not in words or "->" in words:
            continue
        with contextlib.suppress(ValueError):  # the kernel may say that a lock is of no file
            major, minor, inode = words[-3].split(":")
            found.add((os.makedev(int(major, 16), int(minor, 16)), int(inode)))
    return found
