"""The server of a federation: a SuperLink, the rounds, and the run folder, in one process."""

import threading
from collections.abc import Callable
from pathlib import Path

from fedpg.federation.messages import largest
from fedpg.flower.exchange import Exchange
from fedpg.flower.link import Link
from fedpg.flower.web import Server
from fedpg.sites.folder import Federation, make_federated, refuse_open, split_address
from fedpg.sites.journal import Journal, Journalled
from fedpg.sites.ledger import FILE, Ledger
from fedpg.sites.table import make_table_reporter
from fedpg.training import Run, train_seeds
from fedpg.training.folders import check_folder, make_folder


def serve(
    federation: Federation,
    out: Path,
    insecure: bool = False,
    force: bool = False,
    quiet: bool = False,
    stop: threading.Event | None = None,
    started: Callable[[Link], None] | None = None,
    journal: Journal | None = None,
) -> Run:
    """Train with the sites that come; goes on with the run in `out` if there is one. A journal hears of everything."""
    stop = stop or threading.Event()
    host, port = split_address(federation.listen)
    refuse_open(host, insecure, force)
    problem = make_federated(federation.config)
    keys = federation.public_keys()
    check_folder(out, federation.config, federation.seed, resume=True)
    ledger = Ledger(federation.sites, out / FILE)
    reporter = make_table_reporter(federation.config, ledger, quiet)
    if journal is not None:
        reporter, ledger.tell = Journalled(reporter, journal), journal.enter
    ledger.say = reporter.note
    link = Link(keys, largest(problem.policy.size, len(problem.algorithm.reply.vectors)), ledger)
    exchange = Exchange(link, link.nodes, problem, ledger, stop, deadline=federation.deadline, quorum=federation.quorum)
    files = (None, None) if insecure else (federation.folder / "server.crt", federation.folder / "server.key")
    server = Server(link, host, port, *files)
    # Only now: what cannot be served leaves no run behind. The ledger is in that folder, and begins before the run.
    make_folder(out, federation.config, federation.seed)
    with server:
        how = "without TLS" if insecure else "with TLS"
        reporter.note(f"listening at {host}:{server.port} {how}, for {len(keys)} registered sites")
        if journal is not None:
            journal.write("info", "listening", address=f"{host}:{server.port}", tls=not insecure, sites=len(keys))
        if started is not None:
            started(link)
        run = train_seeds(problem, [federation.seed], out, True, reporter, stop, exchange)[0]
        if journal is not None:
            journal.write("info", "finished" if run.finished else "stopped", round=len(run.records))
        return run
