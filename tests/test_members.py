"""A federation over the years: sites come, go and get new keys, runs end and begin from what was learnt."""

import functools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federations import Gate, Sites, federation, outcomes, records
from federations import until as until_then
from fedpg import Config, make_problem
from fedpg.cli import main
from fedpg.errors import ConfigError, Stopped
from fedpg.federation.messages import largest
from fedpg.federation.site import Responder
from fedpg.flower import warm
from fedpg.flower.exchange import Exchange
from fedpg.flower.link import Link
from fedpg.flower.web import Server as HttpServer
from fedpg.problem import make_broadcast
from fedpg.serving.join import join
from fedpg.serving.serve import serve
from fedpg.sites.certificates import days_left, renew_server
from fedpg.sites.folder import Federation, hosts_of, read_federation, read_site
from fedpg.sites.history import read_lines
from fedpg.sites.ledger import Ledger
from fedpg.sites.members import warn_of_expiry
from fedpg.storage import load_tensors

pytestmark = pytest.mark.network
until = functools.partial(until_then, seconds=60.0)


class Served:
    """`serve` in a thread of the test, whose programs are compiled once for all runs."""

    def __init__(self, made: Federation, out: Path, **options: Any) -> None:
        self.path, self.stop, self.error = out / "federation.jsonl", threading.Event(), None
        self.run: Any = None

        def target() -> None:
            try:
                self.run = serve(read_federation(made.folder), out, stop=self.stop, **options)
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=target, daemon=True)
        self.thread.start()

    def rounds(self) -> list[dict[str, Any]]:
        return [line for line in read_lines(self.path) if line.get("quorum") is True]

    def round(self, number: int) -> dict[str, Any]:
        """Wait for a round, and give its line."""

        def found() -> Any:
            assert self.error is None, self.error
            return [line for line in self.rounds() if line["round"] == number]

        return until(found, f"round {number}")[-1]

    def event(self, event: str, site: str) -> None:
        until(lambda: [e for e in read_lines(self.path) if (e.get("event"), e.get("site")) == (event, site)], event)


@contextmanager
def served(made: Federation, out: Path, **options: Any) -> Iterator[Served]:
    server = Served(made, out, **options)
    try:
        yield server
    finally:
        server.stop.set()
        server.thread.join(timeout=60)
    assert server.error is None, server.error


def tensors(path: Path) -> dict[str, list[Any]]:
    return {name: value.tolist() for name, value in load_tensors(path, "policy")[0].items()}


def test_sites_leave_come_and_get_new_keys_and_nothing_that_was_learnt_is_lost(
    tmp_path: Path, responders: Callable[[Config], Responder], capsys: pytest.CaptureFixture[str]
):
    made = federation(tmp_path / "f", agents=5, trajectories=60)
    folder, first = made.folder, made.folder / "run"
    gate = Gate(responders(made.config), rounds=2)
    command = ("federation",)
    with Sites(made) as sites:
        for name in made.sites[1:]:
            sites.start(name, gate)
        with served(made, first) as server:
            ended = threading.Event()
            home = read_site(folder / "sites" / "site-0")
            sites.run("site-0", lambda: (join(home, quiet=True, stop=ended), ended.set())[0])
            assert outcomes(server.round(2)) == ["accepted"] * 5

            # A key is out at once, and the run goes on: nothing of the site is in the round that waits for it.
            assert main([*command, "remove-site", str(folder), "site-4"]) == 0
            said = capsys.readouterr().out
            assert "1 removed counts among those, so 0 more may be" in said
            server.event("removed", "site-4")
            gate.let(3)
            line = server.round(3)
            assert outcomes(line) == ["accepted"] * 4 + ["absent"]
            assert line["sites"]["site-4"]["reason"] == "removed from the federation"
            until(lambda: "site-4" in sites.errors, "the site's word that it was taken off")
            assert "does not know this site's key" in str(sites.errors.pop("site-4"))
            assert not (folder / "keys" / "site-4.pub").exists()

            # A site with a new key keeps its place; the old key is out.
            assert main([*command, "renew", str(folder), "--site", "site-3"]) == 0
            server.event("new key", "site-3")
            sites.start("site-3", gate, sites.address("site-3"))
            # Who is added is told to wait for the next run.
            assert main([*command, "add-site", str(folder), "ward-7"]) == 0
            sites.start("ward-7", gate)
            until(lambda: "from the next one on" in " ".join(sites.said["ward-7"]), "the new site's word")
            # The certificate is renewed while the server runs.
            assert main([*command, "renew", str(folder)]) == 0
            until(lambda: "certificate was renewed" in capsys.readouterr().out, "the server's word")
            gate.let(4)
            server.round(4)
            until(lambda: "site-3" in sites.errors, "the old key's word")
            sites.errors.pop("site-3")
            assert main([*command, "status", str(folder)]) == 0
            said = capsys.readouterr().out
            assert "the server is running, round" in said
            assert "ward-7: from the next run on" in said
        # Stopped, and started again: it counts on.
        counted = counts(first, made.sites)
        with served(made, first) as server:
            gate.let(10**6)
            until(lambda: server.run or server.error, "the end of the run")
        assert all(sum(counted[name].values()) >= 4 for name in made.sites)
        total = len(records(first)) - 1
        assert {name: sum(c.values()) for name, c in counts(first, made.sites).items()} == dict.fromkeys(
            made.sites, total
        )
        assert server.run.finished

        # The sites learn that it is over: `join` ends by itself, with the policy.
        assert ended.wait(60)
        assert tensors(folder / "sites" / "site-0" / "policy.safetensors") == tensors(first / "policy.safetensors")
        assert any("the run is over" in line for line in sites.said["site-1"])
        told = {
            line["site"] for line in read_lines(first / "federation.jsonl") if line.get("event") == "policy delivered"
        }
        assert told == {"site-0", "site-1", "site-2", "site-3"}
        assert "every site has its policy" in capsys.readouterr().out
        assert main([*command, "status", str(folder)]) == 0
        said = capsys.readouterr().out
        assert "finished, round" in said
        assert "removed" in said

        # The next run has the sites of now, and begins where the last one ended.
        sites.start("site-0", gate)
        with served(made, folder / "run-2", start_from=first) as server:
            line = until(lambda: [r for r in server.rounds() if outcomes(r) == ["accepted"] * 5], "all in one round")[0]
            assert list(line["sites"]) == ["site-0", "site-1", "site-2", "site-3", "ward-7"]
        assert tensors(folder / "run-2" / "start.safetensors") == tensors(first / "policy.safetensors")
    assert sites.errors == {}
    # Every line has the time of day; a round also who returned what, how far out, and at which threshold.
    for line in read_lines(first / "federation.jsonl"):
        assert line["time"].endswith("Z")
    site = line_of(first, 2)["sites"]["site-1"]
    assert np.isfinite([site["return"], site["distance"], line_of(first, 2)["threshold"]]).all()
    assert site["how_far"] == pytest.approx(site["distance"] / line_of(first, 2)["threshold"])


def counts(run: Path, names: tuple[str, ...]) -> dict[str, dict[str, int]]:
    return {row.name: row.counts for row in Ledger(names, run / "federation.jsonl").rows}


def line_of(run: Path, number: int) -> dict[str, Any]:
    return next(x for x in read_lines(run / "federation.jsonl") if x.get("quorum") and x["round"] == number)


def test_a_certificate_that_expires_is_announced_refused_and_renewed_under_a_running_server(tmp_path: Path):
    made = federation(tmp_path / "f", agents=2, quorum=2)
    hosts, said = hosts_of("127.0.0.1"), list[str]()
    renew_server(made.folder, hosts, days=12.5)
    assert main(["federation", "status", str(made.folder)]) == 0
    ledger = Ledger(made.sites)
    link = Link(made.public_keys(), largest(10), ledger)
    _, port = made.listen.split(":")
    files = (made.folder / "server.crt", made.folder / "server.key")
    with Sites(made) as sites, HttpServer(link, "127.0.0.1", int(port), *files) as server:
        sites.start("site-0", lambda values: {})
        until(lambda: link.nodes(), "the first site")
        until(lambda: sites.said["site-0"], "its first word")
        assert "expires in 12 days" in sites.said["site-0"][0]
        renew_server(made.folder, hosts, days=-1)
        server.renew()
        sites.start("site-1", lambda values: {})
        until(lambda: sites.said["site-1"], "a site that does not trust the server")
        assert "certificate has expired" in sites.said["site-1"][0]
        assert (
            "trying again" in sites.said["site-1"][0]
        )  # whoever runs the server mends that, and no site need start again
        renew_server(made.folder, hosts)
        server.renew()
        until(lambda: len(link.nodes()) == 2, "both sites")
        assert sites.errors == {}
    renew_server(made.folder, hosts, days=-1)
    with pytest.raises(ConfigError, match=r"server\.crt expired on .*fedpg federation renew"):
        serve(made, made.folder / "run", quiet=True)
    warn_of_expiry(made.folder, said.append)
    assert "expired on" in said[0]
    away = (made.folder / "ca.key").rename(tmp_path / "ca.key")
    assert main(["federation", "renew", str(made.folder)]) == 2
    assert main(["federation", "renew", str(made.folder), "--ca-key", str(away)]) == 0
    assert days_left(made.folder / "server.crt") > 3000


def exchange_of(made: Federation, nodes: dict[int, int], **options: Any) -> Exchange:
    return Exchange(
        NoGrid(), lambda: nodes, make_problem(made.config), Ledger(made.sites), threading.Event(), **options
    )


class NoGrid:
    """Takes no message."""

    def push_messages(self, messages: Any) -> list[str]:
        return ["" for _ in messages]

    def pull_messages(self, ids: Any) -> list[Any]:
        return []


def test_a_round_that_finds_no_quorum_is_tried_again_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = federation(tmp_path / "f", agents=3)
    exchange, waits = exchange_of(made, {0: 10, 1: 11, 2: 12}), list[float]()

    def pause(seconds: float, nodes: Any) -> None:
        waits.append(seconds)
        if len(waits) == 8:
            exchange.stop.set()

    monkeypatch.setattr(exchange, "_pause", pause)
    broadcast = make_broadcast(
        jax.random.key(0, impl="threefry2x32"), 1, 4, theta=jnp.zeros(exchange.problem.policy.size)
    )
    with pytest.raises(Stopped):
        exchange.ask(broadcast, ())
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    # Too few of those that the run began with are left: nobody waits for ever.
    with pytest.raises(ConfigError, match="only 1 of the 3 sites that this run began with are left"):
        exchange_of(made, {0: 10}, removed=lambda: {1, 2}).ask(broadcast, ())


def test_a_connection_that_was_of_use_is_made_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = federation(tmp_path / "f", agents=2)
    waits = list[float]()

    class Patient(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            if len(waits) == 9:
                self.set()
            return self.is_set()

    def breaks(*arguments: Any) -> None:
        arguments[-1].useful = len(waits) == 7  # it answered rounds, and then the server was started again
        raise httpx.ConnectError("gone")

    monkeypatch.setattr(warm, "_serve", breaks)
    said: list[str] = []
    warm.run_site(Sites(made).address("site-0"), lambda values: {}, said.append, Patient(), 1000)
    assert waits[6] > 20
    assert max(waits[7:]) < 2
    # The same trouble is not told again and again.
    twice: list[str] = []
    sparing = warm.Sparing(twice.append)
    for text in ("other settings", "other settings", "other settings", "a clock", "other settings"):
        sparing(text)
    assert twice == ["other settings", "a clock", "other settings"]


def test_what_came_before_can_be_read_whatever_was_written(tmp_path: Path):
    path = tmp_path / "federation.jsonl"
    site = {"outcome": "accepted", "how_far": 2.0}
    rows = [
        {"round": 1, "event": "connected", "site": "a"},
        {"round": 1, "quorum": False, "sites": {"a": {"outcome": "not judged"}}},
        {"round": 1, "quorum": True, "sites": {"a": site, "stranger": site}, "unused": "why"},
        {"round": 1, "quorum": True, "sites": {"a": site}, "unused": ""},  # again, after the server was killed
        {"round": 2, "quorum": True, "sites": {"a": {"outcome": "absent", "reason": "not there"}}},
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + '\n{"round": 3, "quo')
    past = counts(tmp_path, ("a",))["a"]
    assert {k: v for k, v in past.items() if v} == {"accepted": 1, "not judged": 1, "absent": 1}
