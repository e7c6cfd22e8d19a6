"""Where tables are printed."""

import sys

from rich.console import Console

WIDTH = 140
"""Columns where there is no terminal to ask."""


def make_console() -> Console:
    """As wide as the terminal; a file or a pipe has room for every table."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)
