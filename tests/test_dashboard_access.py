"""Who may look at a dashboard; the commands that start one; logs for programs."""

import json
import re
import shutil
import signal
import socket
from pathlib import Path

import pytest

from dashboards import SITE_LINE, Client, serving
from federations import until
from fedpg.cli import main
from fedpg.dashboard import web
from fedpg.dashboard.beside import Beside
from fedpg.dashboard.runs import find_runs
from fedpg.dashboard.watch import Watch
from fedpg.dashboard.web import choose_token, is_loopback, listen
from fedpg.errors import ConfigError
from fedpg.sites.journal import Journal
from fedpg.sites.ledger import Ledger
from processes import Process


def test_a_token_lets_in_by_address_once_by_cookie_and_by_header(tiny_run: Path):
    token = "a-long-enough-token"
    with serving(tiny_run, token=token) as client:
        for path in ("/", "/runs.json", "/events", "/metrics", "/page.js", "/nothing", f"/?token={token}x", "/?token="):
            status, headers, body = client.ask(path)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
            assert "tiny" not in body
        status, headers, _ = client.ask(f"/?token={token}")
        assert (status, headers["Location"]) == (303, "/")
        cookie = headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite" in cookie
        assert client.ask("/", Cookie=cookie.split(";")[0])[0] == 200
        assert client.ask("/", Cookie=cookie.split(";")[0] + "x")[0] == 401
        assert client.ask("/metrics", Authorization=f"Bearer {token}")[0] == 200
        for wrong in (f"Basic {token}", "Bearer", "Bearer é", f"Bearer {token[:-1]}"):
            assert client.ask("/metrics", Authorization=wrong)[0] == 401
        assert client.ask(f"/runs.json?token={token}", Host="elsewhere.example")[0] == 200


def test_without_a_token_a_name_of_somebody_else_is_refused(tiny_run: Path):
    """A page of another site that makes its name lead to this machine gets nothing."""
    with serving(tiny_run) as client:
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1", "10.0.0.1"):
            assert client.ask("/runs.json", Host=host)[0] == 403
        for host in ("localhost", f"127.0.0.1:{client.port}", "[::1]:9"):
            assert client.ask("/runs.json", Host=host)[0] == 200


def test_whoever_is_reachable_has_a_token():
    assert choose_token("127.0.0.1", None) is None
    assert choose_token("localhost", "0123456789ab") == "0123456789ab"
    made = {choose_token("0.0.0.0", None) for _ in range(2)}
    assert len(made) == 2
    assert all(token is not None and len(token) >= 32 for token in made)
    for bad in ("", "short", "with space in it", "semicolon;semicolon", "x" * 201):
        with pytest.raises(ConfigError, match="12 to 200"):
            choose_token("127.0.0.1", bad)
    assert [is_loopback(h) for h in ("::1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "fl.example.org")] == [True] * 2 + [
        False
    ] * 3


def test_too_many_guests_are_sent_away_and_the_others_stay(tiny_run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(web, "GUESTS", 2)
    with serving(tiny_run) as client, client.events() as first, client.events() as second:
        next(first), next(second)
        assert client.ask("/")[0] == 503
        assert next(first)[0] == "run"


def words_of_refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["dashboard", *words]) == 2
    return capsys.readouterr().err


def test_what_cannot_work_is_refused_with_a_reason(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "empty").mkdir()
    assert "does not exist" in words_of_refusal([str(tmp_path / "nowhere")], capsys)
    assert "is no folder" in words_of_refusal([str(tiny_run / "config.json")], capsys)
    assert "there is no run in" in words_of_refusal([str(tmp_path / "empty")], capsys)
    assert "say which runs" in words_of_refusal([], capsys)
    assert "12 to 200" in words_of_refusal([str(tiny_run), "--token", "x"], capsys)
    assert "0 (any free one) to 65535" in words_of_refusal([str(tiny_run), "--port", "65536"], capsys)
    assert "no address" in words_of_refusal([str(tiny_run), "--host", "no.such.host.invalid"], capsys)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "in use" in words_of_refusal([str(tiny_run), "--port", str(port)], capsys)


def test_a_privileged_port_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch):
    def bind(self: socket.socket, address: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", bind, raising=False)
    with pytest.raises(ConfigError, match="below 1024"):
        listen("127.0.0.1", 80)


def test_runs_are_found_alone_as_seeds_and_in_folders(tiny_run: Path, tmp_path: Path):
    for name in ("ten/seed-10", "ten/seed-2", "deep/er/still/seed-0"):
        shutil.copytree(tiny_run, tmp_path / "all" / name)
    assert find_runs(tiny_run) == [tiny_run]
    assert [str(p.relative_to(tmp_path)) for p in find_runs(tmp_path / "all" / "ten")] == [
        "all/ten/seed-2",
        "all/ten/seed-10",
    ]
    assert find_runs(tmp_path / "all") == find_runs(tmp_path / "all" / "ten")
    names = [view["name"] for view in Watch([tiny_run, tmp_path / "all", tiny_run]).views()]
    assert names == ["tiny", "all/ten/seed-2", "all/ten/seed-10"]


@pytest.mark.slow
def test_the_command_says_where_and_ends_at_an_interrupt(tiny_run: Path, tmp_path: Path):
    with Process(tmp_path / "log", "dashboard", str(tiny_run), "--port", "0") as process:
        address = until(lambda: re.search(r"http://127\.0\.0\.1:(\d+)/", process.said), "the address")
        assert Client(int(address[1])).views()[0]["name"] == "tiny"
        with Client(int(address[1])).events() as events:  # an open page does not hold it up
            next(events)
            process.signal(signal.SIGINT)
            assert process.wait(30) == 0
    assert "Traceback" not in process.said


@pytest.mark.slow
def test_a_dashboard_beside_a_run_may_die_and_its_token_is_no_word_of_a_command(tiny_run: Path):
    warnings: list[str] = []
    with Beside(tiny_run, "127.0.0.1", 0, "token-of-the-test", warnings.append) as beside:
        assert beside.process is not None
        port = int(re.search(r":(\d+)/\?token=token-of-the-test$", beside.address)[1])  # type: ignore[index]
        assert Client(port).ask("/runs.json", Authorization="Bearer token-of-the-test")[0] == 200
        words = Path(f"/proc/{beside.process.pid}/cmdline")
        assert not words.exists() or b"token-of" not in words.read_bytes()
        beside.process.kill()
        until(lambda: warnings, "the warning")
    assert "the run goes on" in warnings[0]


def test_a_journal_is_json_lines_with_time_level_event_and_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    journal = Journal(tmp_path / "log")
    journal.enter({"round": 1, "event": "connected", "site": "a"})
    journal.enter({"round": 1, "event": "stale reply", "site": "b", "reason": "late"})
    sites = {"a": SITE_LINE | {"accepted": True, "outcome": "accepted"}, "b": SITE_LINE}
    journal.enter(
        {"round": 1, "attempt": 1, "quorum": True, "seconds": 1.0, "rule": "R1", "unused": "", "sites": sites}
    )
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(line["level"], line["event"], line["site"]) for line in lines] == [
        ("info", "connected", "a"),
        ("warning", "stale reply", "b"),
        ("info", "round", None),
        ("warning", "turned away", "b"),
    ]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]{12}[+-]\d\d:\d\d", line["time"]) for line in lines)
    assert (lines[2]["accepted"], lines[2]["sites"], lines[1]["reason"]) == (1, 2, "late")
    (tmp_path / "log").unlink()
    (tmp_path / "log").mkdir()  # what cannot be written is said once, and stops nothing
    journal.write("info", "x")
    journal.write("info", "x")
    assert capsys.readouterr().err.count("going on") == 1
    with pytest.raises(ConfigError, match="cannot write the log"):
        Journal(tmp_path / "no" / "log")


def test_a_journal_warns_of_what_is_wrong_only(tmp_path: Path):
    journal = Journal(tmp_path / "log")
    ledger = Ledger(["a", "b"])
    ledger.tell = journal.enter
    ledger.waiting(1, 0, 2, 1.0)
    ledger.connected(0)
    ledger.waiting(1, 1, 1, 1.0)
    ledger.lost(0)
    ledger.delivered(0, 9)
    ledger.shut_out(0, removed=False)  # it is out until it has its new folder
    ledger.shut_out(1, removed=True)  # as the operator wanted it
    ledger.note(0, "stale reply", "late")
    late = SITE_LINE | {"outcome": "not judged", "reason": "too few replies: no aggregator ran"}
    gone = SITE_LINE | {"outcome": "absent", "reason": "removed from the federation"}
    journal.enter({"round": 1, "quorum": False, "unused": "", "sites": {"a": late, "b": gone}})
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(line["level"], line["event"]) for line in lines] == [
        ("warning", "waiting for a quorum"),
        ("info", "connected"),
        ("info", "waiting for the other sites"),
        ("warning", "gone"),
        ("info", "policy delivered"),
        ("warning", "new key"),
        ("info", "removed"),
        ("warning", "stale reply"),
        ("warning", "round"),
        ("info", "not judged"),
        ("info", "absent"),
    ]
