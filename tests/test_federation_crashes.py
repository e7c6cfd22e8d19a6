"""Federations of real processes on loopback: killed, stopped, late, started again, and out of room."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from federations import (
    AT_WORK,
    HOLD,
    Gate,
    Server,
    Sites,
    federation,
    outcomes,
    records,
    statuses,
    until,
)
from fedpg import Config
from fedpg.federation.site import Responder
from fedpg.serving.demo import SiteProcess
from fedpg.sites.folder import Federation
from processes import Process, small_files

pytestmark = pytest.mark.network


DEADLINE = 5.0
"""Seconds that a round waits for a site that was killed or stopped. Whoever is slower than that is asked again in the
next round, so a slow machine needs more rounds, and nothing else changes."""


class HeldSite(Process):
    """A site in a process of its own, whose task the test holds in the middle of a round."""

    def __init__(self, made: Federation, name: str) -> None:
        self.folder = made.folder / "sites" / name
        (self.folder / HOLD).unlink(missing_ok=True)
        (self.folder / AT_WORK).unlink(missing_ok=True)
        words = ("join", str(self.folder), "--task", "federations:held_cartpole")
        super().__init__(self.folder / "join.log", *words, folder=self.folder)

    def hold(self, after: int) -> None:
        """From its reply to this round on, which is under way, it does not come to an end with another."""
        until(lambda: f"round {after}: replied" in self.said, f"the reply to round {after}; {self.said[-500:]}")
        (self.folder / HOLD).touch()

    def at_work(self) -> None:
        until((self.folder / AT_WORK).exists, "a site in the middle of a round")


def test_sites_and_the_server_may_be_killed_stopped_late_and_started_again(
    tmp_path: Path, responders: Callable[[Config], Responder]
):
    """Two sites are threads that reply when the test lets them, two are processes that it holds, kills and stops."""
    made = federation(tmp_path / "f", deadline=DEADLINE, agents=4, trajectories=80)
    gate = Gate(responders(made.config))

    def together(expected: list[str]) -> int:
        """Let rounds pass until these are the replies to one; its number."""
        while True:
            now = gate.open + 1
            gate.let(now)
            if statuses(server.at_least(now)[now - 1]) == expected:
                return now

    with Sites(made) as sites, Server(made) as server, HeldSite(made, "site-2") as third:
        for name in made.sites[:2]:
            sites.start(name, gate)
        until(lambda: server.events("connected", "site-2"), "site-2")
        now = together(["answered", "answered", "answered", "no answer"])
        first = server.rounds()[now - 1]
        assert outcomes(first) == ["accepted", "accepted", "accepted", "absent"]
        assert first["sites"]["site-3"]["reason"] == "not there"

        # A late joiner is there from the next round that begins.
        with HeldSite(made, "site-3") as fourth:
            until(lambda: server.events("connected", "site-3"), "site-3")
            now = together(["answered"] * 4) + 1

            # Killed in the middle of a round: the others' replies count, at the deadline.
            third.hold(after=now)
            gate.let(now)
            third.at_work()
            third.signal(signal.SIGKILL)
            gate.let(now + 1)
            line = server.at_least(now + 1)[now]
            assert statuses(line) == ["answered", "answered", "no answer", "answered"]
            assert line["sites"]["site-2"]["reason"] == "no answer"
            assert outcomes(line) == ["accepted", "accepted", "absent", "accepted"]
            assert line["seconds"] >= DEADLINE

            # Stopped in the middle of a round, and continued in a later one: what it then sends is stale.
            with HeldSite(made, "site-2"):
                until(lambda: len(server.events("connected", "site-2")) == 2, "site-2 again")
                now = together(["answered"] * 4) + 1
                fourth.hold(after=now)
                gate.let(now)
                fourth.at_work()
                fourth.signal(signal.SIGSTOP)
                gate.let(now + 2)
                for line in server.at_least(now + 2)[now:]:
                    assert statuses(line) == ["answered"] * 3 + ["no answer"]
                (fourth.folder / HOLD).unlink()
                fourth.signal(signal.SIGCONT)
                stale = f"a reply to round {now + 1} in round"
                until(lambda: [e for e in server.events("stale reply", "site-3") if stale in e["reason"]], stale)

                # The server is killed in the middle of a round, and started again: everybody comes back.
                now = together(["answered"] * 4)
                server.signal(signal.SIGKILL)
                server.wait()
                before = records(server.out)
                with Server(made) as server:
                    gate.let(10**6)
                    assert server.wait() == 0, server.said
    after = records(server.out)
    assert [row["round"] for row in after] == list(range(len(after)))
    assert [r["test_return"] for r in after[: len(before) - 1]] == [r["test_return"] for r in before[:-1]]
    assert len(after) > len(before) >= now
    assert {line["round"] for line in server.rounds()} == set(range(1, len(after)))
    assert ["answered"] * 4 in [statuses(line) for line in server.rounds() if line["round"] > len(before)]
    assert sites.errors == {}
    assert "trying again" in " ".join(sites.said["site-0"])


def test_a_full_disk_ends_the_server_with_a_reason_and_nothing_is_lost(
    tmp_path: Path, responders: Callable[[Config], Responder]
):
    made = federation(tmp_path / "f", agents=4, trajectories=30)
    gate = Gate(responders(made.config))

    with Sites(made) as sites:
        for name in made.sites:
            sites.start(name, gate)
        with Server(made, first=small_files) as server:
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
    command = [sys.executable, "-m", "fedpg", "federation", "demo", *words]
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
