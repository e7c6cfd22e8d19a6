"""Federations of real processes on loopback: killed, stopped, late, started again, and out of room."""

import contextlib
import fcntl
import os
import pty
import re
import resource
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from federations import SLOW, Gate, Process, Server, Sites, federation, outcomes, records, statuses, until
from fedpg import Config
from fedpg.federation.site import Responder
from fedpg.serving.demo import SiteProcess

pytestmark = pytest.mark.network


def test_sites_and_the_server_may_be_killed_stopped_late_and_started_again(
    tmp_path: Path, responders: Callable[[Config], Responder]
):
    """Two sites are threads that reply when the test lets them, two are slow processes that it kills and stops."""
    made = federation(tmp_path / "f", deadline=4.0, agents=4, trajectories=50)
    gate = Gate(responders(made.config))
    slow = ("--task", "federations:slow_cartpole")

    def process(name: str) -> Process:
        folder = made.folder / "sites" / name
        return Process(folder / "join.log", "join", str(folder), *slow)

    def into_the_next_round() -> None:
        """It began when the last one ended; the slow sites were asked, and have not replied yet."""
        time.sleep(SLOW * 2)

    with Sites(made) as sites, Server(made) as server, process("site-2") as third:
        for name in made.sites[:2]:
            sites.start(name, gate)
        until(lambda: server.events("connected", "site-2"), "site-2")
        gate.let(1)
        first = server.at_least(1)[0]
        assert statuses(first) == ["answered", "answered", "answered", "no answer"]
        assert outcomes(first) == ["accepted", "accepted", "accepted", "absent"]
        assert first["sites"]["site-3"]["reason"] == "not there"

        # A late joiner is there from the next round that begins.
        with process("site-3") as fourth:
            until(lambda: server.events("connected", "site-3"), "site-3")
            gate.let(3)
            assert statuses(server.at_least(3)[2]) == ["answered"] * 4

            # Killed in the middle of a round: the others' replies count, at the deadline.
            into_the_next_round()
            third.signal(signal.SIGKILL)
            gate.let(4)
            line = server.at_least(4)[3]
            assert statuses(line) == ["answered", "answered", "no answer", "answered"]
            assert line["sites"]["site-2"]["reason"] == "no answer"
            assert outcomes(line) == ["accepted", "accepted", "absent", "accepted"]
            assert line["seconds"] >= 4.0

            # Stopped in the middle of a round, and continued in a later one: what it then sends is stale.
            third = process("site-2")
            with third:
                until(lambda: len(server.events("connected", "site-2")) == 2, "site-2 again")
                gate.let(5)
                server.at_least(5)
                into_the_next_round()
                fourth.signal(signal.SIGSTOP)
                gate.let(7)
                for line in server.at_least(7)[5:]:
                    assert statuses(line) == ["answered"] * 3 + ["no answer"]
                fourth.signal(signal.SIGCONT)
                stale = until(lambda: server.events("stale reply", "site-3"), "a stale reply")[0]
                assert "to round 6 in round" in stale["reason"]

                # The server is killed in the middle of a round, and started again: everybody comes back.
                gate.let(9)
                done = len(server.at_least(9))
                server.signal(signal.SIGKILL)
                server.wait()
                before = records(server.out)
                with Server(made) as server:
                    gate.let(10**6)
                    assert server.wait() == 0, server.said
    after = records(server.out)
    assert [row["round"] for row in after] == list(range(len(after)))
    assert [r["test_return"] for r in after[: len(before) - 1]] == [r["test_return"] for r in before[:-1]]
    assert len(after) > len(before) >= done
    assert {line["round"] for line in server.rounds()} == set(range(1, len(after)))
    assert statuses(server.rounds()[-1]) == ["answered"] * 4
    assert sites.errors == {}
    assert "trying again" in " ".join(sites.said["site-0"])


def test_a_full_disk_ends_the_server_with_a_reason_and_nothing_is_lost(
    tmp_path: Path, responders: Callable[[Config], Responder]
):
    made = federation(tmp_path / "f", agents=4, trajectories=30)
    gate = Gate(responders(made.config))

    def limit() -> None:  # no file may grow beyond this
        resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, resource.RLIM_INFINITY))

    with Sites(made) as sites:
        for name in made.sites:
            sites.start(name, gate)
        with Server(made, preexec_fn=limit) as server:
            gate.let(10**6)
            assert server.wait() == 2
            assert "cannot write" in server.said
            assert "make room" in server.said.lower()
            assert "Traceback" not in server.said
        with Server(made) as server:
            assert server.wait() == 0, server.said
    rows = records(server.out)
    assert [row["round"] for row in rows] == list(range(len(rows)))


def test_the_demo_shows_its_sites_live_on_a_terminal(tmp_path: Path):
    """A server and three site processes, from the command to the end of its run; on a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    words = ["--sites", "3", "--byzantine", "0", "--trajectories", "60", "--out", str(tmp_path / "f")]
    command = [sys.executable, "-m", "fedpg.cli", "federation", "demo", *words]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"}
    screen = bytearray()
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        with contextlib.suppress(OSError):  # the other end is closed: the command is over
            while part := os.read(ours, 65536):
                screen += part
    os.close(ours)
    shown = screen.decode()
    assert process.returncode == 0, shown[-2000:]
    assert shown.count("unusable") > 3  # drawn anew, again and again
    assert "\x1b[1A" in shown  # in its place
    rows = records(tmp_path / "f" / "run")
    assert len(rows) > 3
    plain = re.sub("\x1b[^A-Za-z]*[A-Za-z]", "", shown)
    last = plain.rpartition("unusable")[2]  # the table as it was left
    assert all(word in last for word in ("failed", "absent", "now"))  # none of its columns is cut off
    for i in range(3):
        row = re.search(
            rf"site-{i} +yes +\d+ s +{len(rows) - 1}((?: +\d+){{6}}) +\d+\.\d +(?:accepted|turned away)", last
        )
        assert row is not None, last
        assert sum(map(int, row[1].split())) == len(rows) - 1
    assert f"round {len(rows) - 1}, return " in last
    assert all(row["accepted_honest"] >= 2 for row in rows[1:])
    for name in ("site-0", "site-1", "site-2"):
        assert "round 2" in (tmp_path / "f" / "sites" / name / "join.log").read_text()


def test_a_site_of_the_demo_does_not_outlive_it(tmp_path: Path):
    """However the demo ended: a site's input is a pipe of the demo's."""
    made = federation(tmp_path / "f", agents=3)
    home = made.folder / "sites" / "site-0"
    with SiteProcess(home, tmp_path / "compiled") as site:
        until(lambda: "trying again" in (home / "join.log").read_text(), "the site's word that nobody is there")
        assert site.process.stdin is not None
        site.process.stdin.close()
        assert site.process.wait(timeout=60) == 0
