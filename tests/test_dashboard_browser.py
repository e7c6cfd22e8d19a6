"""The dashboard in a real browser: it changes while a run goes on, names who is killed, and fits a desk and a phone."""

import json
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from browser import Chromium, find_chromium
from dashboards import EVIL, SITE_LINE, serving
from federations import Gate, Server, Sites, federation, until
from fedpg import Config
from fedpg.federation.site import Responder
from fedpg.serving.demo import free_port
from processes import Process

pytestmark = [
    pytest.mark.browser,
    pytest.mark.network,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium here: apt-get install chromium"),
]
WIDTHS = (1280, 390)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("browser") / "home") as browser:
        yield browser


@pytest.fixture(autouse=True)
def _nothing_odd(page: Chromium) -> Iterator[None]:
    """Whatever a test does: no complaint in the console, and no request to another machine."""
    page.requests.clear()
    page.complaints.clear()
    yield
    assert page.strangers() == set()
    page.call("Page.navigate", url="about:blank")


def fits(page: Chromium) -> None:
    for width in WIDTHS:
        page.resize(width)
        page.until(f"window.innerWidth === {width}")
        # Drawn anew for this width.
        page.until("[...document.querySelectorAll('.chart svg')].every(s => s.viewBox.baseVal.width <= innerWidth)")
        assert page.overflow() <= 0, width


def test_a_federation_is_shown_while_it_learns_and_who_is_killed_is_named(
    page: Chromium, tmp_path: Path, responders: Callable[[Config], Responder]
):
    made = federation(tmp_path / "f", deadline=3.0, agents=3, trajectories=10**6)
    gate = Gate(responders(made.config))
    killed = made.folder / "sites" / "site-2"
    with (
        Sites(made) as sites,
        Server(made, "--dashboard-address", f"127.0.0.1:{free_port()}", "--log-json", str(tmp_path / "log")) as server,
    ):
        address = until(lambda: re.search(r"dashboard: (http://127\.0\.0\.1:\d+/)", server.said), "the address")[1]
        page.open(address)
        page.until("document.querySelector('.state')?.textContent.includes('waiting')")
        with Process(killed / "join.log", "join", str(killed)) as third:
            for name in made.sites[:2]:
                sites.start(name, gate)
            until(lambda: server.events("connected", "site-2"), "site-2")
            page.until("document.querySelector('.agents')?.innerText.includes('site-2')")
            gate.let(2)
            page.until("document.title.includes('round 2')")
            curve = "document.querySelector('.chart path[stroke]').getAttribute('d').split('L').length"
            before = page.evaluate(curve)
            gate.let(5)
            page.until("document.title.includes('round 5')")
            assert page.evaluate(curve) > before  # the curve has grown
            assert "live" in page.text()
            third.signal(signal.SIGKILL)
            gate.let(8)  # it may have answered the next round already
        page.until("/site-2 (absent|is gone)/.test(document.querySelector('.warnings').innerText)")
        row = "[...document.querySelectorAll('.agents tr')].find(r => /site-2/.test(r.innerText)).innerText"
        page.until(f"/absent\\s+(no answer|not there)/.test({row})")
        fits(page)
        assert page.complaints == []
        gate.let(10**6)
        server.signal(signal.SIGTERM)
        assert server.wait() == 130, server.said
        page.until("document.getElementById('link').innerText.includes('the server is gone')")
        assert "dashboard-address" in server.said  # in the command that goes on
        assert "the dashboard ended" not in server.said  # by itself
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {"listening", "connected", "round", "progress", "absent", "stopped"} <= {event["event"] for event in events}
    assert any(event["site"] == "site-2" and event["event"] == "absent" for event in events)


def test_several_finished_runs_are_side_by_side(page: Chromium, tiny_run: Path):
    second = shutil.copytree(tiny_run, tiny_run.parent / "second")
    shutil.copytree(tiny_run, tiny_run.parent / "third")
    rows = [json.loads(line) for line in (second / "records.jsonl").read_text().splitlines()]
    (second / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:4]))
    with serving(tiny_run.parent) as client:
        page.open(f"http://127.0.0.1:{client.port}/", dark=True)
        page.until("document.querySelectorAll('#runs tbody tr').length === 3")
        assert page.evaluate("document.querySelectorAll('#together path[stroke]').length") == 3
        assert page.evaluate("document.querySelectorAll('.panel').length") == 1
        page.evaluate("document.querySelectorAll('#runs input')[2].click()")
        tops = page.evaluate("[...document.querySelectorAll('.panel')].map(p => p.getBoundingClientRect().top)")
        assert len(tops) == 2
        assert tops[0] == tops[1]  # beside each other on a desk
        states = page.evaluate("[...document.querySelectorAll('#runs .state')].map(s => s.className)")
        assert states == ["state running", "state finished", "state finished"]
        page.evaluate("document.querySelector('.panel .chart').scrollIntoView({block: 'center'})")
        page.over(".panel .chart svg", "/round \\d+/.test(document.querySelector('.tip:not([hidden])')?.innerText)")
        fits(page)
        assert page.complaints == []
        # Everything has a name for those who do not see it.
        assert page.evaluate("[...document.querySelectorAll('svg[role=img]')].every(s => s.getAttribute('aria-label'))")


def test_a_hostile_name_is_shown_as_text(page: Chromium, tiny_run: Path):
    names = [EVIL, "b" * 150, "c", "d"]
    about = {"round": 1, "quorum": True, "unused": EVIL, "rule": EVIL, "seconds": 1}
    line = about | {"sites": {name: SITE_LINE | {"reason": EVIL, "outcome": "failed"} for name in names}}
    event = {"round": 1, "event": EVIL[:50], "site": EVIL, "reason": EVIL}
    (tiny_run / "federation.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(event) + "\n")
    settings = json.loads((tiny_run / "config.json").read_text())
    settings["settings"]["task"] = EVIL
    (tiny_run / "config.json").write_text(json.dumps(settings))
    with serving(tiny_run) as client:
        page.open(f"http://127.0.0.1:{client.port}/")
        page.until("document.querySelector('.agents')?.innerText.includes('<img src=x')")
        assert page.evaluate("document.querySelectorAll('main img').length") == 0
        assert page.evaluate("document.title") != "1"
        page.evaluate("document.querySelector('details').open = true")
        fits(page)
        assert page.complaints == []
