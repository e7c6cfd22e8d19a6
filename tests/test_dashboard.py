"""The dashboard over HTTP: what it shows, to whom, and that nothing which happens to a folder can stop it."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import fedpg
from federations import Process, until
from fedpg.cli import main
from fedpg.dashboard import web
from fedpg.dashboard.beside import Beside
from fedpg.dashboard.metrics import OUTCOMES, RUN, SITE, STATE, metrics
from fedpg.dashboard.reading import Tail, held_folders, number, text
from fedpg.dashboard.runs import POINTS, Point, find_runs, thinned
from fedpg.dashboard.watch import Watch
from fedpg.dashboard.web import Web, choose_token, is_loopback, listen
from fedpg.errors import ConfigError
from fedpg.sites.journal import Journal
from fedpg.storage import locked
from tiny import TINY

PAGE = Path(web.__file__).parent
EVIL = '<img src=x onerror="document.title=1">"\\\n</script>'


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert fedpg.train(**TINY, out=folder).finished
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy that a test may harm."""
    return Path(shutil.copytree(trained, tmp_path / "runs" / "tiny"))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


class Client:
    """Asks a server, as a browser or a program would."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()

    def views(self) -> list[dict[str, Any]]:
        return json.loads(self.ask("/runs.json")[2])["runs"]

    @contextmanager
    def events(self) -> Iterator[Iterator[tuple[str, Any]]]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request("GET", "/events")
            answer = connection.getresponse()
            assert answer.getheader("Content-Type") == "text/event-stream"

            def read() -> Iterator[tuple[str, Any]]:
                name = ""
                while line := answer.readline().decode():
                    if line.startswith("event: "):
                        name = line[7:].strip()
                    elif line.startswith("data: "):
                        yield name, json.loads(line[6:])

            yield read()


@contextmanager
def serving(*paths: Path, token: str | None = None, must_exist: bool = True) -> Iterator[Client]:
    with Watch(paths, must_exist) as watch:
        server = Web(listen("127.0.0.1", 0), "127.0.0.1", watch, token)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield Client(server.port)
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def test_a_finished_folder_is_shown_as_its_records_have_it(run: Path):
    rows = rows_of(run)
    with serving(run) as client:
        (view,) = client.views()
    assert (view["name"], view["state"], view["round"]) == ("tiny", "finished", rows[-1]["round"])
    assert view["test_return"] == rows[-1]["test_return"]
    assert [point[:3] for point in view["points"]] == [[r["round"], r["trajectories"], r["test_return"]] for r in rows]
    assert [row["outcome"] for row in view["rows"]] == rows[-1]["outcome"]
    assert [row["distance"] for row in view["rows"]] == rows[-1]["distances"]
    assert [row["byzantine"] for row in view["rows"]] == [False, False, False, True]
    for agent, row in enumerate(view["rows"]):
        assert row["counts"].get("accepted", 0) == sum(r["accepted"][agent] for r in rows[1:])
        assert sum(row["counts"].values()) == len(rows) - 1
        assert row["replied"] == rows[-1]["round"]
    harms = [r["harm"] for r in rows[1:] if r["harm"] is not None][-20:]
    assert view["harm"] == pytest.approx(sum(harms) / len(harms))
    spent = sum(r["seconds"] for r in rows[1:][-19:])
    assert view["steps_per_second"] == pytest.approx((rows[-1]["steps"] - rows[-20:][0].get("steps", 0)) / spent)
    assert view["seconds_left"] == 0


def test_the_page_comes_with_headers_that_keep_everything_else_out(run: Path):
    with serving(run) as client:
        for path in web.FILES:
            status, headers, body = client.ask(path)
            assert status == 200
            assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
            assert "unsafe" not in headers["Content-Security-Policy"]
            assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
            head = client.ask(path, "HEAD")
            assert (head[0], head[2], head[1]["Content-Length"]) == (200, "", str(len(body.encode())))
            outside = set(re.findall(r"https?://[^\s\"'`]+", body)) - {"http://www.w3.org/2000/svg"}
            assert outside == set()
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"):
            status, headers, body = client.ask("/", method)
            assert status in (405, 501)
            assert "<" not in body
            assert headers["X-Content-Type-Options"] == "nosniff"
        for path in ("/page", "/../config.json", "/%2e%2e/config.json", f"/{run}/config.json", "//etc/passwd"):
            assert client.ask(path)[0] == 404


def test_the_page_never_makes_markup_of_texts():
    """Site names and reasons come from other machines; they become text nodes and attributes only."""
    for name in ("page.js", "charts.js"):
        script = (PAGE / name).read_text()
        assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", script)
    assert not re.findall(r"\son\w+=|<script>|style=", (PAGE / "page.html").read_text())


def test_events_tell_everything_at_first_and_then_what_changes(run: Path):
    lines = (run / "records.jsonl").read_text().splitlines(keepends=True)
    (run / "records.jsonl").write_text("".join(lines[:3]))
    with serving(run.parent) as client, client.events() as events:
        assert next(events) == ("begin", {"runs": 1})
        name, view = next(events)
        assert (name, view["round"], view["state"]) == ("run", 2, "running")
        new = run / "new"
        new.write_text("".join(lines))  # as a run does it: another file in its place
        os.replace(new, run / "records.jsonl")
        later = next(data for name, data in events if name == "run")
        assert (later["round"], later["state"]) == (len(lines) - 1, "finished")
        shutil.copytree(run, run.parent / "second")
        added = next(data for name, data in events if name == "run" and data["id"] == 1)
        assert added["name"] == "runs/second"


def test_half_a_line_is_not_shown_until_it_is_whole(tmp_path: Path):
    path = tmp_path / "records.jsonl"
    tail = Tail(path)
    assert tail.read() == (False, [])
    path.write_text('{"round": 0}\n{"rou')
    assert tail.read() == (False, [{"round": 0}])
    assert tail.read() == (False, [])
    with open(path, "a") as file:
        file.write('nd": 1}\n')
    assert tail.read() == (False, [{"round": 1}])
    with open(path, "a") as file:
        file.write('not json\n[1]\n\n{"round": 2}\n')
    assert tail.read() == (False, [{"round": 2}])
    assert tail.damaged == 2
    # A resumed run goes on from its checkpoint, and what came after that is another story.
    path.write_text('{"round": 0}\n{"round": 1, "again": true}\n')
    assert tail.read() == (True, [{"round": 0}, {"round": 1, "again": True}])
    path.unlink()
    assert tail.read() == (True, [])


def test_a_long_file_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fedpg.dashboard.reading.PART", 64)
    path = tmp_path / "records.jsonl"
    rows = [{"round": i, "text": "x" * (i % 90)} for i in range(50)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tail, found = Tail(path), []
    while not found or tail.more:
        found += tail.read()[1]
    assert found == rows


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no settings": lambda run: (run / "config.json").write_text("{}"),
    "half a config": lambda run: (run / "config.json").write_text('{"settings": {"ta'),
    "wrong kinds": lambda run: (run / "config.json").write_text(
        json.dumps({"seed": "x", "settings": {"agents": "many", "byzantine": -1, "trajectories": [], "task": 7}})
    ),
    "too many agents": lambda run: (run / "config.json").write_text(
        json.dumps({"seed": 0, "settings": {"agents": 1e300, "trajectories": 1}})
    ),
    "no records": lambda run: (run / "records.jsonl").unlink(),
    "binary records": lambda run: (run / "records.jsonl").write_bytes(os.urandom(5000)),
    "deep records": lambda run: (run / "records.jsonl").write_text("[" * 100_000 + "\n"),
    "records are a folder": lambda run: ((run / "records.jsonl").unlink(), (run / "records.jsonl").mkdir()),
    "odd values": lambda run: (run / "records.jsonl").write_text(
        '{"round": NaN, "trajectories": Infinity, "test_return": "9", "outcome": 5, "distances": {"a": 1}}\n'
        f'{{"round": {10**400}, "outcome": [1, null, "accepted"], "distances": [true], "steps": -4, "seconds": 0}}\n'
        '{"round": true, "rule": ["nobody"], "threshold": 0.0, "outcome": ["turned away"], "distances": [1]}\n'
    ),
    "odd ledger": lambda run: (run / "federation.jsonl").write_text(
        '{"sites": {"": {}, "a": 5, "b": {"outcome": 1, "how_far": NaN}}, "round": []}\n'
        '{"event": "gone", "site": 7}\n{"event": 5}\n{"sites": []}\n{"event": "gone", "site": "b", "time": "soon"}\n'
    ),
    "removed": shutil.rmtree,
}


@pytest.mark.parametrize("harm", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_is_shown_as_such_and_stops_nothing(run: Path, harm: Callable[[Path], object]):
    good = shutil.copytree(run, run.parent / "good")
    with serving(run, good) as client:
        before = client.views()[0]
        harm(run)
        with Watch([run], must_exist=False) as late:
            assert late.views()[0]["state"] in ("waiting", "running", "finished", "damaged", "removed", "quiet")
        until(lambda: client.views()[0] != before, "the damage", 30)
        for path in ("/", "/metrics", "/runs.json"):
            assert client.ask(path)[0] == 200
        assert client.views()[1]["state"] == "finished"


def test_a_run_that_is_removed_and_comes_back_is_shown_again(run: Path):
    with serving(run) as client:
        shutil.move(run, run.parent / "away")
        view = until(lambda: (v := client.views()[0])["state"] == "removed" and v, "its end", 30)
        assert "not there" in view["why"]
        shutil.move(run.parent / "away", run)
        assert until(lambda: (v := client.views()[0])["state"] == "finished" and v, "its return", 30)["round"] > 1


def test_a_run_that_holds_its_folder_is_running_and_one_that_is_silent_is_quiet(run: Path):
    lines = (run / "records.jsonl").read_text().splitlines(keepends=True)
    (run / "records.jsonl").write_text("".join(lines[:4]))
    old = time.time() - 7200
    os.utime(run / "records.jsonl", (old, old))
    assert Watch([run]).views()[0]["state"] == "quiet"
    if held_folders() is None:
        pytest.skip("this system does not say what is locked")
    with locked(run):
        assert Watch([run]).views()[0]["state"] == "running"


def test_nothing_is_written_locked_or_kept_open(run: Path, content: Callable[[Path], dict[str, bytes]]):
    """A run can start, write and end in a folder that is watched."""
    before = content(run), sorted(os.listdir(run)), os.stat(run).st_mtime_ns
    with serving(run) as client:
        client.views()
        with locked(run, wait=False):
            pass
        for path in run.iterdir():
            path.chmod(0o444)
        assert (content(run), sorted(os.listdir(run)), os.stat(run).st_mtime_ns) == before


def test_a_run_that_is_watched_computes_the_same(trained: Path, tmp_path: Path):
    folder = tmp_path / "watched"
    with serving(folder, must_exist=False) as client, client.events() as events:
        next(events)
        assert client.views()[0]["state"] == "removed"
        assert fedpg.train(**TINY, out=folder).finished
        view = until(lambda: (v := client.views()[0])["state"] == "finished" and v, "its end", 30)
    without = [row | {"seconds": 0} for row in rows_of(trained)]
    assert [row | {"seconds": 0} for row in rows_of(folder)] == without
    assert view["round"] == len(without) - 1


# Who may look


def test_a_token_lets_in_by_address_once_by_cookie_and_by_header(run: Path):
    token = "a-long-enough-token"
    with serving(run, token=token) as client:
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


def test_without_a_token_a_name_of_somebody_else_is_refused(run: Path):
    """A page of another site that makes its name lead to this machine gets nothing."""
    with serving(run) as client:
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


def test_too_many_guests_are_sent_away_and_the_others_stay(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(web, "GUESTS", 2)
    with serving(run) as client, client.events() as first, client.events() as second:
        next(first), next(second)
        assert client.ask("/")[0] == 503
        assert next(first)[0] == "run"


# The command


def words_of_refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["dashboard", *words]) == 2
    return capsys.readouterr().err


def test_what_cannot_work_is_refused_with_a_reason(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "empty").mkdir()
    assert "does not exist" in words_of_refusal([str(tmp_path / "nowhere")], capsys)
    assert "is no folder" in words_of_refusal([str(run / "config.json")], capsys)
    assert "there is no run in" in words_of_refusal([str(tmp_path / "empty")], capsys)
    assert "say which runs" in words_of_refusal([], capsys)
    assert "12 to 200" in words_of_refusal([str(run), "--token", "x"], capsys)
    assert "0 (any free one) to 65535" in words_of_refusal([str(run), "--port", "65536"], capsys)
    assert "no address" in words_of_refusal([str(run), "--host", "no.such.host.invalid"], capsys)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "in use" in words_of_refusal([str(run), "--port", str(port)], capsys)


def test_a_privileged_port_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch):
    def bind(self: socket.socket, address: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", bind, raising=False)
    with pytest.raises(ConfigError, match="below 1024"):
        listen("127.0.0.1", 80)


def test_runs_are_found_alone_as_seeds_and_in_folders(run: Path, tmp_path: Path):
    for name in ("ten/seed-10", "ten/seed-2", "deep/er/still/seed-0"):
        shutil.copytree(run, tmp_path / "all" / name)
    assert find_runs(run) == [run]
    assert [str(p.relative_to(tmp_path)) for p in find_runs(tmp_path / "all" / "ten")] == [
        "all/ten/seed-2",
        "all/ten/seed-10",
    ]
    assert find_runs(tmp_path / "all") == find_runs(tmp_path / "all" / "ten")
    names = [view["name"] for view in Watch([run, tmp_path / "all", run]).views()]
    assert names == ["tiny", "all/ten/seed-2", "all/ten/seed-10"]


def test_the_command_says_where_and_ends_at_an_interrupt(run: Path, tmp_path: Path):
    with Process(tmp_path / "log", "dashboard", str(run), "--port", "0") as process:
        address = until(lambda: re.search(r"http://127\.0\.0\.1:(\d+)/", process.said), "the address")
        assert Client(int(address[1])).views()[0]["name"] == "tiny"
        with Client(int(address[1])).events() as events:  # an open page does not hold it up
            next(events)
            process.signal(signal.SIGINT)
            assert process.wait(30) == 0
    assert "Traceback" not in process.said


def test_a_dashboard_beside_a_run_may_die_and_ends_with_the_run(run: Path):
    warnings: list[str] = []
    with Beside(run, "127.0.0.1", 0, "token-of-the-test", warnings.append) as beside:
        assert beside.process is not None
        port = int(re.search(r":(\d+)/\?token=token-of-the-test$", beside.address)[1])  # type: ignore[index]
        assert Client(port).ask("/runs.json", Authorization="Bearer token-of-the-test")[0] == 200
        words = Path(f"/proc/{beside.process.pid}/cmdline")
        assert not words.exists() or b"token-of" not in words.read_bytes()
        beside.process.kill()
        until(lambda: warnings, "the warning")
    assert "the run goes on" in warnings[0]
    warnings.clear()
    with Beside(run.parent / "later", "127.0.0.1", 0, None, warnings.append) as beside:
        assert beside.process is not None
    assert beside.process.poll() == 0
    assert warnings == []


# Numbers for programs


def test_every_metric_is_typed_documented_and_escaped(run: Path):
    (run / "federation.jsonl").write_text(
        json.dumps({"round": 1, "event": "connected", "site": EVIL, "time": "2026-01-02T03:04:05.678Z"})
        + "\n"
        + json.dumps({"round": 1, "quorum": True, "sites": {EVIL: SITE_LINE, "b": SITE_LINE, "c": {}, "d": {}}})
        + "\n"
    )
    said = metrics(Watch([run]).views())
    typed = dict(re.findall(r"(?m)^# TYPE (\w+) (gauge|counter)$", said))
    label = r'\w+="(?:[^"\\\n]|\\["\\n])*"'
    for line in said.splitlines():
        assert line.startswith("#") or re.fullmatch(rf"\w+\{{{label}(?:,{label})*\}} [-+.\de]+", line), line
        assert line.startswith("#") or line.partition("{")[0] in typed
    assert said.count("# HELP") == said.count("# TYPE") == len(typed)
    assert 'fedpg_site_outcomes_total{run="tiny",site="b",outcome="turned away"} 1.0' in said
    assert 'fedpg_site_connected{run="tiny",site="b"} 1.0' in said
    page = (Path(__file__).parents[1] / "docs" / "dashboard.md").read_text()
    every = [*RUN.values(), STATE, *SITE.values(), OUTCOMES]
    assert [metric.name for metric in every if f"`{metric.name}`" not in page] == []


SITE_LINE = {"outcome": "turned away", "accepted": False, "how_far": 2.5, "reason": "", "seconds": 0.5, "return": 7.0}


def test_the_sites_are_where_the_ledger_says(run: Path):
    def site(outcome: str, reason: str = "") -> dict[str, Any]:
        return SITE_LINE | {"outcome": outcome, "reason": reason}

    def attempt(round_: int, quorum: bool, *outcomes: Any) -> dict[str, Any]:
        about = {"round": round_, "quorum": quorum, "seconds": 1.0, "rule": "R1", "unused": ""}
        return about | {"time": "2026-01-02T03:04:05Z", "sites": dict(zip(SITES, outcomes, strict=True))}

    SITES = ("a", "b", "c", "d")
    lines = [
        {"round": 1, "event": "waiting for a quorum", "connected": 1, "quorum": 3},
        *({"round": 1, "event": "connected", "site": name} for name in ("c", "a", "b")),
        attempt(1, False, site("not judged"), site("not judged"), site("failed", "boom"), site("absent", "not there")),
        attempt(1, True, site("accepted"), site("accepted"), site("accepted"), site("absent", "not there")),
        attempt(1, True, site("accepted"), site("turned away"), site("accepted"), site("absent", "not there")),
        {"round": 2, "event": "gone", "site": "c"},
    ]
    (run / "federation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (view,) = Watch([run]).views()
    assert [row["name"] for row in view["rows"]] == list(SITES)
    assert [row["connected"] for row in view["rows"]] == [True, True, False, False]
    # A round that was decided again, after the server was killed, counts once.
    assert view["rows"][1]["counts"] == {"not judged": 1, "accepted": 0, "turned away": 1}
    assert [list(pair) for pair in view["rows"][1]["recent"]] == [[1, "not judged"], [1, "turned away"]]
    assert view["rows"][1]["reason"] == "2.5 times the threshold"
    assert view["rows"][0]["seen"] == pytest.approx(1767323045)
    assert {"c is gone", "d has not come"} <= set(view["warnings"])
    assert [event["event"] for event in view["events"]][-1] == "gone"


def test_a_curve_has_few_points_and_the_last_one():
    points = [Point(i, i, 0.0, 0.0, None, 0, 1.0) for i in range(12_345)]
    few = thinned(points)
    assert POINTS / 2 < len(few) <= POINTS
    assert few[-1] == points[-1]
    assert thinned(points[:POINTS]) == points[:POINTS]


def test_values_of_files_are_what_they_should_be():
    assert [number(x) for x in (1, 2.5, True, None, "3", float("nan"), float("inf"), 10**400)] == [1.0, 2.5] + [
        None
    ] * 6
    assert text("a\nb\x1b[0m\u202e") == "a�b�[0m�"
    assert text("x" * 300) == "x" * 200 + "…"
    assert text(5) == ""


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
