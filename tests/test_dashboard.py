"""The dashboard over HTTP: what it shows, and that nothing which happens to a folder can stop it."""

import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedpg
from dashboards import EVIL, SITE_LINE, rows_of, serving
from federations import until
from fedpg.dashboard import web
from fedpg.dashboard.metrics import OUTCOMES, RUN, SITE, STATE, metrics
from fedpg.dashboard.reading import Tail, held_folders, number, text
from fedpg.dashboard.runs import POINTS, Point, thinned
from fedpg.dashboard.watch import Watch
from fedpg.storage import locked
from tiny import TINY

PAGE = Path(web.__file__).parent


def test_a_finished_folder_is_shown_as_its_records_have_it(tiny_run: Path):
    rows = rows_of(tiny_run)
    with serving(tiny_run) as client:
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


def test_the_page_comes_with_headers_that_keep_everything_else_out(tiny_run: Path):
    with serving(tiny_run) as client:
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
        with socket.create_connection(("127.0.0.1", client.port)) as raw:
            raw.sendall(b"GET http://[ HTTP/1.0\r\nHost: localhost\r\n\r\n")
            assert b" 400 " in raw.recv(100)
        for path in ("/page", "/../config.json", "/%2e%2e/config.json", f"/{tiny_run}/config.json", "//etc/passwd"):
            assert client.ask(path)[0] == 404


def test_the_page_never_makes_markup_of_texts():
    """Site names and reasons come from other machines; they become text nodes and attributes only."""
    for name in ("page.js", "charts.js"):
        script = (PAGE / name).read_text()
        assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", script)
    assert not re.findall(r"\son\w+=|<script>|style=", (PAGE / "page.html").read_text())


def test_events_tell_everything_at_first_and_then_what_changes(tiny_run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fedpg.dashboard.watch.SCAN", 0.5)
    lines = (tiny_run / "records.jsonl").read_text().splitlines(keepends=True)
    (tiny_run / "records.jsonl").write_text("".join(lines[:3]))
    with serving(tiny_run.parent) as client, client.events() as events:
        assert next(events) == ("begin", {"runs": 1})
        name, view = next(events)
        assert (name, view["round"], view["state"]) == ("run", 2, "running")
        new = tiny_run / "new"
        new.write_text("".join(lines))  # as a run does it: another file in its place
        os.replace(new, tiny_run / "records.jsonl")
        later = next(data for name, data in events if name == "run")
        assert (later["round"], later["state"]) == (len(lines) - 1, "finished")
        shutil.copytree(tiny_run, tiny_run.parent / "second")
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
    "records are a pipe": lambda run: ((run / "records.jsonl").unlink(), os.mkfifo(run / "records.jsonl")),
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
def test_a_damaged_folder_is_shown_as_such_and_stops_nothing(tiny_run: Path, harm: Callable[[Path], object]):
    good = shutil.copytree(tiny_run, tiny_run.parent / "good")
    with serving(tiny_run, good) as client:
        before = client.views()[0]
        harm(tiny_run)
        with Watch([tiny_run], must_exist=False) as late:
            assert late.views()[0]["state"] in ("waiting", "running", "finished", "damaged", "removed", "quiet")
        until(lambda: client.views()[0] != before, "the damage", 30)
        for path in ("/", "/metrics", "/runs.json"):
            assert client.ask(path)[0] == 200
        assert client.views()[1]["state"] == "finished"


def test_a_run_that_is_removed_and_comes_back_is_shown_again(tiny_run: Path):
    with serving(tiny_run) as client:
        shutil.move(tiny_run, tiny_run.parent / "away")
        view = until(lambda: (v := client.views()[0])["state"] == "removed" and v, "its end", 30)
        assert "not there" in view["why"]
        shutil.move(tiny_run.parent / "away", tiny_run)
        assert until(lambda: (v := client.views()[0])["state"] == "finished" and v, "its return", 30)["round"] > 1


def test_a_run_that_holds_its_folder_is_running_and_one_that_is_silent_is_quiet(
    tiny_run: Path, monkeypatch: pytest.MonkeyPatch
):
    lines = (tiny_run / "records.jsonl").read_text().splitlines(keepends=True)
    (tiny_run / "records.jsonl").write_text("".join(lines[:4]))
    old = time.time() - 7200
    os.utime(tiny_run / "records.jsonl", (old, old))
    assert Watch([tiny_run]).views()[0]["state"] == "quiet"
    if held_folders() is None:
        pytest.skip("this system does not say what is locked")
    with locked(tiny_run):
        watch = Watch([tiny_run])
        assert watch.views()[0]["state"] == "running"
    os.utime(tiny_run / "records.jsonl")
    monkeypatch.setattr("fedpg.dashboard.watch.SCAN", 0.0)
    watch.look()
    (view,) = watch.views()
    assert (view["state"], "has ended" in view["why"]) == ("quiet", True)


def test_a_run_that_ended_before_its_first_round_is_quiet_and_waits_no_more(tiny_run: Path):
    (tiny_run / "records.jsonl").unlink()
    settings = tiny_run / "config.json"
    watch = Watch([tiny_run])
    os.utime(settings)
    watch.look()
    assert watch.views()[0]["state"] == "waiting"
    old = time.time() - 7200
    os.utime(settings, (old, old))
    watch.look()
    (view,) = watch.views()
    assert (view["state"], "stopped" in view["why"], view["changed"]) == ("quiet", True, pytest.approx(old))
    os.utime(settings)  # it goes on
    watch.look()
    assert watch.views()[0]["state"] == "waiting"
    if held_folders() is not None:
        os.utime(settings, (old, old))
        with locked(tiny_run):
            assert Watch([tiny_run]).views()[0]["state"] == "waiting"


def test_only_a_run_that_goes_on_has_a_time_left(tiny_run: Path):
    records = tiny_run / "records.jsonl"
    lines = records.read_text().splitlines(keepends=True)
    records.write_text("".join(lines[:4]))
    (view,) = Watch([tiny_run]).views()
    assert view["state"] == "running"
    assert view["seconds_left"] > 0
    assert "fedpg_left_seconds" in metrics([view])
    old = time.time() - 7200
    os.utime(records, (old, old))
    watch = Watch([tiny_run])
    (view,) = watch.views()
    assert (view["state"], view["seconds_left"]) == ("quiet", None)
    assert view["seconds_per_round"] > 0  # of what was
    assert "fedpg_left_seconds" not in metrics([view])
    shutil.rmtree(tiny_run)
    watch.look()
    (view,) = watch.views()
    assert (view["state"], view["seconds_left"], view["changed"]) == ("removed", None, pytest.approx(old))


def test_nothing_is_written_locked_or_kept_open(tiny_run: Path, content: Callable[[Path], dict[str, bytes]]):
    """A run can start, write and end in a folder that is watched."""
    before = content(tiny_run), sorted(os.listdir(tiny_run)), os.stat(tiny_run).st_mtime_ns
    with serving(tiny_run) as client:
        client.views()
        with locked(tiny_run, wait=False):
            pass
        assert (content(tiny_run), sorted(os.listdir(tiny_run)), os.stat(tiny_run).st_mtime_ns) == before


def test_a_run_that_is_watched_computes_the_same(trained_folder: Path, tmp_path: Path):
    folder = tmp_path / "watched"
    with serving(folder, must_exist=False) as client, client.events() as events:
        next(events)
        assert client.views()[0]["state"] == "removed"
        assert fedpg.train(**TINY, out=folder).finished
        view = until(lambda: (v := client.views()[0])["state"] == "finished" and v, "its end", 30)
    without = [row | {"seconds": 0} for row in rows_of(trained_folder)]
    assert [row | {"seconds": 0} for row in rows_of(folder)] == without
    assert view["round"] == len(without) - 1


def test_every_metric_is_typed_documented_and_escaped(tiny_run: Path):
    (tiny_run / "federation.jsonl").write_text(
        json.dumps({"round": 1, "event": "connected", "site": EVIL, "time": "2026-01-02T03:04:05.678Z"})
        + "\n"
        + json.dumps({"round": 1, "quorum": True, "sites": {EVIL: SITE_LINE, "b": SITE_LINE, "c": {}, "d": {}}})
        + "\n"
    )
    said = metrics(Watch([tiny_run]).views())
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


def test_the_sites_are_where_the_ledger_says(tiny_run: Path):
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
    (tiny_run / "federation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (view,) = Watch([tiny_run]).views()
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
