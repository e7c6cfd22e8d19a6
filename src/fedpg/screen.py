"""What people see: where tables are printed, and times in words."""

import sys

from rich.console import Console

WIDTH = 140
"""Columns where there is no terminal to ask."""


def make_console() -> Console:
    """As wide as the terminal; a file or a pipe has room for every table. A task `my:robot` is no emoji."""
    return Console(width=None if sys.stdout.isatty() else WIDTH, emoji=False)


def seconds_left(done: float, missing: float, seconds: float) -> float | None:
    """How long the rest takes at the pace so far; 0 where nothing is missing, None while there is no pace yet."""
    if missing <= 0:
        return 0.0
    return missing * seconds / done if done > 0 else None


def clock(seconds: float) -> str:
    """A length of time for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"
