"""The sites of a federation, live on a terminal, as lines elsewhere."""

import math
import sys
import threading
import time
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedpg.config import Config
from fedpg.problem import OUTCOMES
from fedpg.screen import make_console, seconds_left
from fedpg.sites.ledger import RECENT, REMOVED, Ledger
from fedpg.training.progress import Lines, Reporter, Silent, Snapshot

EVERY = 10.0
"""Seconds between two lines about the sites."""


class LiveTable(Silent):
    """A table that changes in place, with a line about the run below it."""

    def __init__(self, config: Config, ledger: Ledger) -> None:
        self.config, self.ledger = config, ledger
        self.console = Console()
        self.progress = "waiting for the first round"
        self.began: tuple[float, int] | None = None
        self.live = Live(console=self.console, get_renderable=self.draw, refresh_per_second=2)

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.live.stop()

    def note(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False)

    def update(self, seed: int, snapshot: Snapshot) -> None:
        self.began = self.began or (time.monotonic(), snapshot.trajectories)
        self.progress = describe(self.config, snapshot, self.began)

    def draw(self) -> Group:
        return Group(make_table(self.ledger), Text(self.progress))


class TableLines(Lines):
    """The run as lines, and every few seconds one about the sites."""

    def __init__(self, config: Config, ledger: Ledger) -> None:
        super().__init__(config)
        self.ledger = ledger
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.over.set()
        self.thread.join()
        console = make_console()
        console.print(make_table(self.ledger))

    def _tell(self) -> None:
        last = ""
        while not self.over.wait(EVERY):
            there = sum(row.connected for row in self.ledger.rows)
            odd = [f"{row.name} {row.state}" for row in self.ledger.rows if row.state not in FINE]
            text = f"sites {there}/{len(self.ledger.rows)}" + (f": {'; '.join(odd)}" if odd else "")
            if text != last:
                self.note(text)
            last = text


FINE = ("accepted", "not judged", "asked", "replied", "connected", "has the policy", REMOVED)
"""States that are no site's fault."""


HOW_FAR = (
    f"how far: distance to the centre over the rule's threshold (over the median distance if it has none), in the last "
    f"{RECENT} rounds"
)


def make_table(ledger: Ledger) -> Table:
    """A row per site, with how often it came to each outcome, and how far out it lies."""
    unused = f"; rounds not used, since nobody was accepted: {ledger.unused}" if ledger.unused else ""
    table = Table(
        title=f"round {ledger.round}{unused}",
        caption=HOW_FAR,
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("site", no_wrap=True)
    table.add_column("online", no_wrap=True)
    # In two lines where that is narrower: there is room for what a site does now on a terminal of 100 columns.
    for name in ("last\nseen", "last\nreply", *(outcome.replace(" ", "\n") for outcome in OUTCOMES), "how\nfar"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("now", overflow="fold")
    for row in list(ledger.rows):
        yes = Text("yes", "green") if row.connected else Text("no", "red")
        seen = "" if row.seen is None else f"{time.monotonic() - row.seen:.0f} s"
        counts = [str(row.counts[outcome]) for outcome in OUTCOMES]
        state = Text(row.state, "" if row.state in FINE else "yellow")
        table.add_row(row.name, yes, seen, str(row.replied or ""), *counts, _short(row.how_far), state)
    return table


def _short(value: float) -> str:
    """At most four letters."""
    if math.isnan(value):
        return ""
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}" if value < 9999.5 else f"{value:.0e}".replace("+", "")


def describe(config: Config, snapshot: Snapshot, began: tuple[float, int]) -> str:
    """The line below the table."""
    gained, spent = snapshot.trajectories - began[1], time.monotonic() - began[0]
    left = seconds_left(gained, config.trajectories - snapshot.trajectories, spent)
    ending = f", {left:.0f} s left" if left else ""
    counts = f"{min(snapshot.trajectories, config.trajectories)}/{config.trajectories} trajectories"
    return f"round {snapshot.round}, return {snapshot.test_return:.0f}, {counts}{ending}"


def make_table_reporter(config: Config, ledger: Ledger, quiet: bool) -> Reporter:
    """What fits where the output goes."""
    if quiet:
        return Silent()
    return LiveTable(config, ledger) if sys.stdout.isatty() else TableLines(config, ledger)
