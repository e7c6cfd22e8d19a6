"""`fedpg dashboard`."""

import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedpg.cli.arguments import on_signal
from fedpg.errors import ConfigError


@dataclass(frozen=True)
class Dashboard:
    """Show runs on a web page, while they go on or afterwards: curves, agents, the aggregator's last round, speed.

    It reads the run folders and nothing else, so a run cannot notice it. Without internet, and for this machine only,
    unless you give another --host; then the page asks for a token. Ctrl-C ends it.

    Examples:
      fedpg dashboard runs/ten
      fedpg dashboard runs --port 0
      fedpg dashboard runs/krum runs/compass --host 0.0.0.0
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders, or folders with run folders in them; new ones are shown as they come."""
    host: str = "127.0.0.1"
    """The address to listen at; 0.0.0.0 for every machine that reaches this one."""
    port: int | None = None
    """The port; by default 8000, or a free one if that is taken. 0: any free one."""
    token: str | None = None
    """What a page or a program has to show to be let in; made anew if others can reach the page and none is given."""


def run_dashboard(command: Dashboard) -> int:
    from fedpg.dashboard.watch import Watch
    from fedpg.dashboard.web import Web, address_of, choose_token, is_loopback, listen

    if not command.runs:
        raise ConfigError("say which runs to show: fedpg dashboard runs/ten, or a folder with runs in it")
    token = choose_token(command.host, command.token)
    watch = Watch(command.runs)
    listening = listen(command.host, command.port)
    stop = threading.Event()
    with on_signal(stop, "the dashboard ends"), watch:
        web = Web(listening, command.host, watch, token)
        serving = threading.Thread(target=web.serve_forever, daemon=True)
        serving.start()
        count = len(watch.views())
        print(
            f"{count} run{'s' * (count != 1)}: {address_of(command.host, web.port, token)}   (Ctrl-C ends it)",
            flush=True,
        )
        if not is_loopback(command.host):
            warn_plain()
        stop.wait()
        web.shutdown()
        web.server_close()
    return 0


def warn_plain() -> None:
    print(
        "fedpg: warning: the page is not encrypted: whoever is on the way can read it, and its token. "
        "Over networks that you do not trust use an SSH tunnel, or a proxy with TLS",
        file=sys.stderr,
    )
