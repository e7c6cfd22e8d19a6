"""The server of a federation: a SuperLink, the rounds, and the run folder, in one process."""

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import numpy as np

from fedpg.errors import ConfigError
from fedpg.federation.messages import End, largest
from fedpg.flower.exchange import Exchange
from fedpg.flower.link import Link
from fedpg.flower.web import Server
from fedpg.sites.folder import FILE as FEDERATION
from fedpg.sites.folder import Federation, make_federated, read_federation, refuse_open, split_address
from fedpg.sites.gathering import about_quorum
from fedpg.sites.journal import Journal, Journalled
from fedpg.sites.ledger import FILE, Ledger
from fedpg.sites.members import (
    Roster,
    about_tolerance,
    refuse_expired,
    roster_of,
    warn_of_expiry,
    write_roster,
)
from fedpg.sites.table import make_table_reporter
from fedpg.storage import StorageError
from fedpg.training import Run, train_seeds
from fedpg.training.each import check_tasks
from fedpg.training.folders import check_folder, make_folder
from fedpg.training.start import keep_start, read_start

LOOK = 0.5
"""Seconds between two looks at the federation's folder."""
DAY = 86_400.0


def serve(
    federation: Federation,
    out: Path,
    insecure: bool = False,
    force: bool = False,
    quiet: bool = False,
    stop: threading.Event | None = None,
    started: Callable[[Link], None] | None = None,
    start_from: Path | None = None,
    journal: Journal | None = None,
) -> Run:
    """Train with the sites that come; goes on with the run in `out` if there is one.

    A new run has all members of the federation, and begins from a random policy or from that of `start_from`. Who is
    removed while it runs is out at once; who is added is in the next one. A journal hears of everything.
    """
    stop = stop or threading.Event()
    host, port = split_address(federation.listen)
    refuse_open(host, insecure, force)
    if not insecure:
        refuse_expired(federation.folder)
    roster = roster_of(federation, out)
    config = roster.config(federation)
    problem = make_federated(config)
    keys = roster.keys(federation)
    start = None if start_from is None else read_start(start_from, problem)
    check_folder(out, config, federation.seed, resume=True)
    check_tasks(out, problem)
    ledger = Ledger(roster.sites, out / FILE)
    reporter = make_table_reporter(config, ledger, quiet)
    if journal is not None:
        reporter, ledger.tell = Journalled(reporter, journal), journal.enter
    ledger.say = reporter.note
    link = Link(keys, largest(problem.policy.size, len(problem.algorithm.reply.vectors)), ledger)
    link.admit(keys, roster.later(federation))
    exchange = Exchange(
        link,
        link.nodes,
        problem,
        ledger,
        stop,
        deadline=federation.deadline,
        quorum=federation.quorum,
        numbers=roster.numbers,
        removed=lambda: link.removed,
    )
    files = (None, None) if insecure else (federation.folder / "server.crt", federation.folder / "server.key")
    server = Server(link, host, port, *files)

    def fill(run: Path) -> None:
        keep_start(run, problem, start)
        write_roster(run, roster)

    # Only now: what cannot be served leaves no run behind. The ledger is in that folder, and begins before the run.
    make_folder(out, config, federation.seed, fill)
    with server, Watch(federation, roster, link, server, ledger):
        how = "without TLS" if insecure else "with TLS"
        reporter.note(f"listening at {host}:{server.port} {how}, for {len(link.by_key)} registered sites")
        if journal is not None:
            journal.write(
                "info", "listening", address=f"{host}:{server.port}", tls=not insecure, sites=len(link.by_key)
            )
        reporter.note(about_tolerance(config, len(link.removed)))
        if start_from is not None:
            reporter.note(f"the run began from the policy of {start_from}")
        if text := about_quorum(federation.quorum, config):
            reporter.note(f"warning: {text}")
        if started is not None:
            started(link)
        run = train_seeds(problem, [federation.seed], out, True, reporter, stop, exchange)[0]
        if run.finished:
            theta = np.asarray(problem.policy.ravel(run.policy.params))
            end = End(len(run.records), float(run.records.test_returns[-1]), theta)
            # Of a run that was over before, somebody may have missed the end.
            patience = federation.deadline if exchange.round is None else 0.0
            missed = exchange.finish(end, ledger.told, patience)
            reporter.note(about_delivery(len(ledger.told), missed))
        if journal is not None:
            journal.write("info", "finished" if run.finished else "stopped", round=len(run.records))
        return run


def about_delivery(told: int, missed: list[str]) -> str:
    """Who has the policy."""
    if not missed:
        return "the run is over, and every site has its policy"
    return (
        f"the run is over, and {told} sites have its policy, but not {', '.join(missed)}: start the same command "
        "again, and it waits a while to hand it over"
    )


class Watch:
    """Looks at the federation's folder from time to time: who is a member, and which certificate is the server's."""

    def __init__(self, federation: Federation, roster: Roster, link: Link, server: Server, ledger: Ledger) -> None:
        self.folder, self.roster, self.link, self.server, self.ledger = federation.folder, roster, link, server, ledger
        self.seen = _stamps(self.folder)
        self.over, self.lock = threading.Event(), threading.Lock()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def look(self) -> None:
        """Do what the folder says, if it was changed since the last look."""
        with self.lock:
            now = _stamps(self.folder)
            if now == self.seen:
                return
            try:
                new = read_federation(self.folder)
                self.link.admit(self.roster.keys(new), self.roster.later(new))
                if now[1] != self.seen[1]:
                    self.server.renew()
                    self.ledger.say("the server's certificate was renewed")
            except (ConfigError, StorageError) as error:
                self.ledger.say(f"{self.folder} was changed, and cannot be used so: {error}")
            self.seen = now  # not before: what fails otherwise, for want of room, is tried again

    def _run(self) -> None:
        warned = -math.inf  # a warning at once, and one a day
        while not self.over.wait(LOOK):
            self.look()
            if time.monotonic() - warned > DAY and self.server.certificate is not None:
                warned = time.monotonic()
                with contextlib.suppress(StorageError):
                    warn_of_expiry(self.folder, self.ledger.say)

    def __enter__(self) -> Self:
        self.link.look = self.look
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


def _stamps(folder: Path) -> tuple[int, ...]:
    """When the files that may change under a running server were written."""
    stamps = []
    for name in (FEDERATION, "server.crt"):
        try:
            stamps.append(os.stat(folder / name).st_mtime_ns)
        except OSError:
            stamps.append(0)
    return tuple(stamps)
