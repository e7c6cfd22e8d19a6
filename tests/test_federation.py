"""Federations of real processes on loopback: what goes wrong between machines, and what the server makes of it."""

import contextlib
import dataclasses
import fcntl
import json
import os
import pty
import re
import resource
import signal
import ssl
import stat
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import DeactivateNodeRequest, PullMessagesRequest, PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supernode.fleet_http_client import FleetHttpClient
from google.protobuf.message import DecodeError

from conftest import TINY
from federations import SLOW, Process, Server, Sites, compiled_hastily, until
from fedpg import Config, make_config
from fedpg.agents import make_broadcast, make_problem
from fedpg.cli import main
from fedpg.cli.federation import Serve, words_of
from fedpg.config import ConfigError
from fedpg.federation.messages import REPLY, largest
from fedpg.federation.site import Responder, make_responder
from fedpg.flower import warm
from fedpg.flower.certificates import read_site_key
from fedpg.flower.demo import free_port
from fedpg.flower.exchange import RECORD, Exchange, status_of
from fedpg.flower.folder import Federation, _listen, create, read_federation, read_site, refuse_open, split_address
from fedpg.flower.join import join
from fedpg.flower.ledger import Ledger
from fedpg.flower.link import PARTS, Link
from fedpg.flower.web import Server as HttpServer
from fedpg.storage import StorageError
from fedpg.training import train_seeds

HONEST: dict[str, Any] = TINY | {"byzantine": 0, "attack": "random-noise", "sigma": 1e9}
"""Everybody whose reply can be used is accepted."""


@pytest.fixture(scope="module", autouse=True)
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All processes of these tests share what they compile, and spend little on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
        with compiled_hastily():
            yield


@pytest.fixture(scope="module")
def responders() -> Callable[[Config], Responder]:
    """The computation of a site, compiled once for all sites of the same settings."""
    known: dict[Config, Responder] = {}
    lock = threading.Lock()

    def responder(config: Config) -> Responder:
        config = dataclasses.replace(config, trajectories=1)
        if config not in known:
            known[config] = make_responder(make_problem(config))
        respond = known[config]

        def one_at_a_time(values: Mapping[str, Any]) -> dict[str, Any]:
            with lock:
                return respond(values)

        return one_at_a_time

    return responder


def federation(folder: Path, deadline: float = 60.0, quorum: int = 0, seed: int = 0, **settings: Any) -> Federation:
    config = make_config(**(HONEST | settings))
    return create(folder, config, f"127.0.0.1:{free_port()}", deadline, quorum, seed)


def statuses(line: dict[str, Any]) -> list[str]:
    return [site["status"] for site in line["sites"].values()]


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def test_a_federation_trains_as_a_simulation_does(tmp_path: Path, responders: Callable[[Config], Responder]):
    """Ten sites, three of them flip signs; over TLS, with keys, the server in a process of its own."""
    made = federation(
        tmp_path / "f", agents=10, byzantine=3, attack="sign-flipping", sigma="auto", trajectories=60, seed=5
    )
    with Sites(made) as sites, Server(made, "--quiet") as server:
        for name in made.sites:
            sites.start(name, responders(made.config))
        assert server.wait() == 0, server.said
        assert sites.errors == {}
    simulated = train_seeds(make_problem(made.config), [5], tmp_path / "simulated")[0]
    there, here = records(server.out), records(simulated.folder)
    assert len(there) == len(here) > 8
    for ours, theirs in zip(here, there, strict=True):
        for name in set(ours) - {"seconds"}:
            if isinstance(ours[name], float):
                assert theirs[name] == pytest.approx(ours[name], rel=1e-3, abs=1e-4), (ours["round"], name)
            elif name in ("accepted", "status", "rule", "round", "trajectories", "steps"):
                assert theirs[name] == ours[name], (ours["round"], name)
    # The run folder is the same as that of `fedpg train`, and says more.
    names = {p.name for p in server.out.iterdir() if "tfevents" not in p.name}
    assert names == {p.name for p in simulated.folder.iterdir() if "tfevents" not in p.name} | {
        "federation.jsonl",
        "curve.png",
    }


LIES: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "nan": (lambda reply: reply | {"gradient": b"\xff" * len(reply["gradient"])}, "not finite"),
    "infinity": (
        lambda reply: reply | {"gradient": np.float32(np.inf).tobytes() + reply["gradient"][4:]},
        "not finite",
    ),
    "short": (lambda reply: reply | {"gradient": reply["gradient"][:-4]}, "wrong length"),
    "empty": (lambda reply: reply | {"gradient": b""}, "wrong length"),
    "a list": (lambda reply: reply | {"gradient": [0.0] * (len(reply["gradient"]) // 4)}, "wrong type"),
    "more": (lambda reply: reply | {"trajectories": b"private"}, "wrong type"),
    "another round": (lambda reply: reply | {"round": reply["round"] + 1}, "wrong round"),
    "raises": (lambda reply: 1 // 0, "failed at the site"),  # type: ignore[dict-item,return-value]
}


def test_every_kind_of_bad_reply_is_refused_and_named_and_training_goes_on(
    tmp_path: Path, responders: Callable[[Config], Responder]
):
    agents = 2 * (len(LIES) + 2) + 2  # more honest than not
    made = federation(tmp_path / "f", deadline=2.0, agents=agents, trajectories=14)
    honest = responders(made.config)

    def lying(lie: Callable[[dict[str, Any]], dict[str, Any]]) -> Responder:
        return lambda values: lie(honest(values))

    with Sites(made) as sites, Server(made) as server:
        for name, (lie, _) in zip(made.sites, LIES.values(), strict=False):
            sites.start(name, lying(lie))
        double = made.sites[len(LIES)]
        sites.run(double, lambda: reply_twice(sites, double, honest))
        forger, heavy = made.sites[len(LIES) + 1 : len(LIES) + 3]
        sites.run(forger, lambda: reply_for_another(sites, forger, honest))
        sites.run(heavy, lambda: reply_with_100_megabytes(sites, heavy))
        for name in made.sites[len(LIES) + 3 :]:
            sites.start(name, honest)
        assert server.wait() == 0, server.said
    rounds = server.rounds()
    assert len(rounds) >= 3
    for line in rounds:
        for name, (lie, (_, status)) in zip(made.sites, LIES.items(), strict=False):
            site = line["sites"][name]
            assert site["status"] == status, (lie, line["round"], site)
            assert site["reason"].startswith(status)
            assert not site["accepted"]
        for name in (double, *made.sites[len(LIES) + 3 :]):
            assert line["sites"][name]["accepted"], (name, line)
        assert line["sites"][heavy]["status"] == "too large"
    assert "ZeroDivisionError" in rounds[0]["sites"][made.sites[len(LIES) - 1]]["reason"]
    assert "100000" in server.events("too large", heavy)[0]["reason"]
    assert server.events("second reply", double)
    assert server.events("refused", forger)
    # The run's own records have the same, by the numbers of the agents.
    for line, row in zip(rounds, records(server.out)[1:], strict=True):
        assert row["status"] == statuses(line)
        assert row["accepted"] == [site["accepted"] for site in line["sites"].values()]
    assert all(np.isfinite(row["test_return"]) for row in records(server.out))


def by_hand(sites: Sites, name: str, answer: Callable[[Any, Any, Any], None]) -> None:
    """A site that is not `run_site`: (client, node, message) -> whatever it likes."""
    address = sites.address(name)
    with warm._client(address) as client:
        node = until(lambda: knock(client, address), "the server")
        heart = threading.Thread(target=warm._beat, args=(client, node, sites.stop), daemon=True)
        heart.start()
        while not sites.stop.is_set():
            with contextlib.suppress(httpx.TransportError):  # the server ends before its sites
                work = client.PullMessages(PullMessagesRequest(node=node))
                if work.messages_list:
                    answer(client, node, work)
        heart.join()


def knock(client: Any, address: warm.Address) -> Any:
    with contextlib.suppress(httpx.TransportError):
        return warm._activate(client, address)


def reply_twice(sites: Sites, name: str, respond: Responder) -> None:
    def answer(client: Any, node: Any, work: Any) -> None:
        message, raw = warm.fetch(client, node, work)
        for first in (True, False):
            reply = respond(dict(ConfigRecord.inflate(raw)))
            taken = warm.send_reply(client, node, message, RecordDict({RECORD: ConfigRecord(reply)}), 0.1)
            assert first or not taken

    by_hand(sites, name, answer)


def reply_for_another(sites: Sites, name: str, respond: Responder) -> None:
    def answer(client: Any, node: Any, work: Any) -> None:
        message, raw = warm.fetch(client, node, work)
        reply = respond(dict(ConfigRecord.inflate(raw)))
        message.metadata.__dict__["_dst_node_id"] = node.node_id + 1  # a reply comes from where the message went
        with pytest.raises(httpx.HTTPStatusError, match="403"):
            warm.send_reply(client, node, message, RecordDict({RECORD: ConfigRecord(reply)}), 0.1)

    by_hand(sites, name, answer)


def reply_with_100_megabytes(sites: Sites, name: str) -> None:
    def answer(client: Any, node: Any, work: Any) -> None:
        message, _ = warm.fetch(client, node, work)
        request = PushObjectRequest(node=node, run_id=message.metadata.run_id, object_content=bytes(100_000_000))
        with pytest.raises(httpx.HTTPError):  # refused, or the connection is closed before it has all been sent
            client.PushObject(request)

    by_hand(sites, name, answer)


class Gate:
    """Lets the sites that share it reply to as many rounds as the test wants."""

    def __init__(self, respond: Responder, rounds: int = 0) -> None:
        self.respond, self.open = respond, rounds
        self.changed = threading.Condition()

    def __call__(self, values: Mapping[str, Any]) -> dict[str, Any]:
        with self.changed:
            assert self.changed.wait_for(lambda: values["round"] <= self.open, timeout=100)
        return self.respond(values)

    def let(self, rounds: int) -> None:
        with self.changed:
            self.open = rounds
            self.changed.notify_all()


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


def test_the_demo_shows_its_sites_live_on_a_terminal(tmp_path: Path):
    """A server and three site processes, from the command to the end of its run; on a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    words = ["--sites", "3", "--byzantine", "0", "--trajectories", "80", "--out", str(tmp_path / "f")]
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
    assert shown.count("last seen") > 3  # drawn anew, again and again
    assert "\x1b[1A" in shown  # in its place
    rows = records(tmp_path / "f" / "run")
    assert len(rows) > 3
    plain = re.sub("\x1b[^A-Za-z]*[A-Za-z]", "", shown)
    last = plain.rpartition("last seen")[2]  # the table as it was left
    for i in range(3):
        row = re.search(rf"site-{i} +yes +\d+ s ago +round {len(rows) - 1} +(\d+) +(\d+)", last)
        assert row is not None, last
        assert int(row[1]) + int(row[2]) == len(rows) - 1
    assert f"round {len(rows) - 1}, return " in last
    assert all(row["accepted_honest"] >= 2 for row in rows[1:])
    for name in ("site-0", "site-1", "site-2"):
        assert "round 2" in (tmp_path / "f" / "sites" / name / "join.log").read_text()


def test_a_round_without_a_quorum_changes_nothing_and_is_tried_again(
    tmp_path: Path, responders: Callable[[Config], Responder]
):
    made = federation(tmp_path / "f", deadline=1.0, quorum=3, agents=4, trajectories=10)
    honest = responders(made.config)
    with Sites(made) as sites, Server(made) as server:
        for name in made.sites[:2]:
            sites.start(name, honest)
        until(lambda: server.events("waiting for a quorum"), "too few sites")
        assert server.events("waiting for a quorum")[0]["connected"] < 3
        sites.start("site-2", lambda values: 1 // 0)  # type: ignore[arg-type,return-value]
        until(lambda: sum(line.get("quorum") is False for line in server.lines()) >= 2, "attempts without a quorum")
        assert not server.rounds()
        assert not (server.out / "records.jsonl").exists()
        sites.start("site-3", honest)
        assert server.wait() == 0, server.said
    failed = [line for line in server.lines() if line.get("quorum") is False]
    assert {line["round"] for line in failed} == {1}
    assert [line["attempt"] for line in failed] == list(range(1, len(failed) + 1))
    assert failed[0]["sites"]["site-2"]["status"] == "failed at the site"
    rounds = server.rounds()
    assert rounds[0]["round"] == 1
    assert rounds[0]["attempt"] == len(failed) + 1
    # What it came to is a simulation's with the same agent missing: the attempts that failed left no trace.
    assert [row["round"] for row in records(server.out)] == [0, *(line["round"] for line in rounds)]


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


@pytest.fixture  # one for each test: Flower's messages bear the run of the link that was made last in this process
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Federation, Link, Ledger]]:
    """A link of two sites in this process, and its ledger."""
    made = federation(tmp_path_factory.mktemp("l") / "f", agents=2, quorum=2)
    path = made.folder / "events.jsonl"
    ledger = Ledger(made.sites, path)
    link = Link(made.public_keys(), largest(make_problem(made.config).policy.size), ledger)
    _, port = made.listen.split(":")
    with HttpServer(link, "127.0.0.1", int(port), made.folder / "server.crt", made.folder / "server.key"):
        yield made, link, ledger


def refused(made: Federation, address: warm.Address) -> str:
    """What a site says that cannot join."""
    with pytest.raises(ConfigError) as error:
        warm.run_site(address, lambda values: {}, print, threading.Event(), 10**6)
    return str(error.value)


def test_a_site_with_a_key_that_is_not_registered_is_refused(listening: tuple[Federation, Link, Ledger]):
    made, link, _ = listening
    stranger = Sites(made).address("site-0")._replace(key=ec.generate_private_key(ec.SECP384R1()))
    assert "does not know this site's key" in refused(made, stranger)
    events = [json.loads(line) for line in (made.folder / "events.jsonl").read_text().splitlines()]
    assert {k: events[-1][k] for k in ("event", "site")} == {"event": "refused", "site": None}
    assert link.nodes() == {}


def test_a_site_of_another_authority_does_not_trust_this_server(
    listening: tuple[Federation, Link, Ledger], tmp_path: Path
):
    made, link, _ = listening
    other = federation(tmp_path / "other", agents=2)
    address = Sites(made).address("site-0")
    theirs = address._replace(certificates=(other.folder / "ca.crt").read_bytes())
    assert "cannot be trusted" in refused(made, theirs)
    assert link.nodes() == {}


def test_a_site_without_tls_is_told_so(listening: tuple[Federation, Link, Ledger]):
    made, link, _ = listening
    assert "it uses TLS" in refused(made, Sites(made).address("site-0")._replace(certificates=None))
    assert link.nodes() == {}


@pytest.fixture
def two_sites(listening: tuple[Federation, Link, Ledger]) -> Iterator[list[tuple[FleetHttpClient, Any]]]:
    """Both sites of `listening`, connected: (client, node) each."""
    made, link, _ = listening
    with contextlib.ExitStack() as stack:
        found = []
        for name in made.sites:
            address = Sites(made).address(name)
            client = stack.enter_context(warm._client(address))
            found.append((client, warm._activate(client, address)))
        yield found
        for client, node in found:
            client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))
        link.push_messages([])


def ask_both(link: Link, sites: list[tuple[FleetHttpClient, Any]]) -> list[Message]:
    """A message to each site, as it arrives there."""
    link.push_messages(
        Message(RecordDict({RECORD: ConfigRecord({"agent": agent})}), node, "train", ttl=60.0, group_id="1")
        for agent, node in link.nodes().items()
    )
    works = [client.PullMessages(PullMessagesRequest(node=node)) for client, node in sites]
    return [warm.fetch(client, node, work)[0] for (client, node), work in zip(sites, works, strict=True)]


def test_what_a_liar_pushes_is_gone_after_the_round(
    listening: tuple[Federation, Link, Ledger], two_sites: list[tuple[FleetHttpClient, Any]]
):
    _, link, _ = listening
    link.push_messages([])
    store = link.state.object_store
    before = len(store)
    message, _ = ask_both(link, two_sites)
    client, node = two_sites[0]
    bare = Message(RecordDict(), reply_to=message)
    bare.metadata.__dict__["_message_id"] = bare.object_id
    head, tree = message_to_proto(bare), get_object_tree(bare)
    others = [get_object_tree(RecordDict({"x": ConfigRecord({"a": k})})) for k in range(5)]
    many = ObjectTree(object_id=tree.object_id, children=others)

    def push(code: str, heads: list[Any], trees: list[Any]) -> None:
        with pytest.raises(httpx.HTTPStatusError, match=code):
            client.PushMessages(PushMessagesRequest(node=node, messages_list=heads, message_object_trees=trees))

    asked = len(store)
    push("400", [], [])
    push("400", [head, head], [tree, tree])
    push("400", [head], [others[0]])
    push("400", [head], [many])
    assert len(store) == asked
    assert warm.send_reply(client, node, message, RecordDict({RECORD: ConfigRecord({"a": 1})}), 0.1)
    assert len(store) == asked + PARTS
    for other in others:
        push("409", [head], [other])
    assert not warm.send_reply(client, node, message, RecordDict({RECORD: ConfigRecord({"a": 2})}), 0.1)
    assert len(store) == asked + PARTS
    link.push_messages([])
    assert len(store) == before


def test_a_site_cannot_reply_to_what_another_was_asked(
    listening: tuple[Federation, Link, Ledger], two_sites: list[tuple[FleetHttpClient, Any]]
):
    _, link, _ = listening
    messages = ask_both(link, two_sites)
    ids = list(link.open)
    (client, node), (other, other_node) = two_sites
    forged = Message(RecordDict(), reply_to=messages[0])
    forged.metadata.__dict__["_reply_to_message_id"] = messages[1].metadata.message_id
    forged.metadata.__dict__["_message_id"] = forged.object_id
    request = PushMessagesRequest(
        node=node, messages_list=[message_to_proto(forged)], message_object_trees=[get_object_tree(forged)]
    )
    with pytest.raises(httpx.HTTPStatusError, match="403"):
        client.PushMessages(request)
    assert link.pull_messages(ids) == []
    honest = RecordDict({RECORD: ConfigRecord({"a": 1})})
    assert warm.send_reply(other, other_node, messages[1], honest, 0.1)
    assert [r.metadata.reply_to_message_id for r in link.pull_messages(ids)] == [messages[1].metadata.message_id]


def test_without_tls_a_site_outlives_its_server(
    listening: tuple[Federation, Link, Ledger], monkeypatch: pytest.MonkeyPatch
):
    """A connection that breaks after it has worked is no sign of TLS."""
    made, _, _ = listening
    stop, said = threading.Event(), list[str]()

    def works_once(*arguments: Any) -> None:
        known = arguments[-1]
        if known.is_set():
            stop.set()
        known.set()
        raise httpx.ReadError("reset")

    monkeypatch.setattr(warm, "_serve", works_once)
    address = Sites(made).address("site-0")._replace(certificates=None)
    warm.run_site(address, lambda values: {}, said.append, stop, 10**6)
    assert len(said) == 2
    assert all("trying again" in line for line in said)


def test_whatever_a_server_makes_up_a_site_stays(
    listening: tuple[Federation, Link, Ledger], monkeypatch: pytest.MonkeyPatch
):
    made, _, _ = listening
    said: list[str] = []
    work = PullMessagesResponse(messages_list=[PullMessagesResponse().messages_list.add()])
    warm._answer(None, None, work, lambda values: {}, said.append, 10**6)  # type: ignore[arg-type]
    assert "not made as agreed on" in said[0]
    sent: list[Any] = []
    monkeypatch.setattr(warm, "fetch", lambda *_: (None, bytes(1001)))
    monkeypatch.setattr(warm, "send_reply", lambda *arguments: bool(sent.append(arguments[3])))
    warm._answer(None, None, work, lambda values: {}, said.append, 1000)  # type: ignore[arg-type]
    assert status_of(sent[0].code) == "too large"
    stop = threading.Event()

    def junk(*_: Any) -> None:
        stop.set()
        raise ValueError("Invalid protobuf response payload") from DecodeError()

    monkeypatch.setattr(warm, "_serve", junk)
    warm.run_site(Sites(made).address("site-0"), lambda values: {}, said.append, stop, 1000)
    assert "trying again" in said[-1]


def test_a_site_that_connects_twice_is_noted(
    listening: tuple[Federation, Link, Ledger], two_sites: list[tuple[FleetHttpClient, Any]]
):
    made, _, _ = listening
    client, _ = two_sites[1]
    warm._activate(client, Sites(made).address("site-1"))
    events = [json.loads(line) for line in (made.folder / "events.jsonl").read_text().splitlines()]
    assert [e["site"] for e in events if e["event"] == "connected twice"] == ["site-1"]


def test_strangers_do_not_fill_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    ledger = Ledger(["site-0"], tmp_path / "events.jsonl", said.append)
    for _ in range(50):
        ledger.stranger()
    assert len(said) == len((tmp_path / "events.jsonl").read_text().splitlines()) == 1
    ledger._silent_until = 0.0  # ten seconds later
    ledger.stranger()
    assert "50" in said[1]


def test_keys_and_certificates_that_cannot_work_are_named(tmp_path: Path):
    made = federation(tmp_path / "f", agents=3)
    public, site = made.folder / "keys", made.folder / "sites" / "site-0"
    (public / "site-2.pub").write_bytes((public / "site-0.pub").read_bytes())
    with pytest.raises(ConfigError, match=r"site-0\.pub and .*site-2\.pub are the same key"):
        made.public_keys()
    (site / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\njunk\n")
    with pytest.raises(StorageError, match=r"ca\.crt is no certificate"):
        join(read_site(site), quiet=True)
    text = (site / "site.toml").read_text()
    (site / "site.toml").write_text(text.replace("agent = 0", "agent = 3", 1))
    with pytest.raises(ConfigError, match="agent = 3"):
        read_site(site)
    link = Link([], 1000, Ledger([]))
    for certificate, key in (("server.crt", "no.key"), ("README.md", "server.key")):
        with pytest.raises(ConfigError, match=certificate):
            HttpServer(link, "127.0.0.1", 0, made.folder / certificate, made.folder / key)


@pytest.mark.parametrize(
    ("address", "listen"),
    [
        ("[::1]:18444", "[::1]:18444"),
        ("[2001:db8::1]:1", "[::]:1"),
        ("127.0.0.2:5", "127.0.0.1:5"),
        ("localhost:5", "127.0.0.1:5"),
        ("fl.example.org:8443", "0.0.0.0:8443"),
    ],
)
def test_a_server_listens_in_the_family_of_its_address(address: str, listen: str):
    host, port = split_address(address)
    assert f"{_listen(host)}:{port}" == listen
    split_address(listen)


def test_only_flowers_fleet_api_is_served(listening: tuple[Federation, Link, Ledger]):
    made, _, _ = listening
    verify = ssl.create_default_context(cafile=str(made.folder / "ca.crt"))
    as_flower = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE}
    with httpx.Client(base_url=f"https://{made.address}", verify=verify, headers=as_flower) as client:
        for path in ("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/push-messages", "/docs"):
            assert client.post(path, content=b"").status_code == 404, path
        assert client.post("/v1/fleet/pull-messages", content=b"").status_code == 401
        assert client.post("/v1/fleet/pull-messages", content=bytes(10**6)).status_code == 413


def test_one_vector_and_a_few_numbers_leave_a_site(
    listening: tuple[Federation, Link, Ledger],
    monkeypatch: pytest.MonkeyPatch,
    responders: Callable[[Config], Responder],
):
    """Every byte that two sites send in three rounds."""
    made, link, ledger = listening
    problem = make_problem(made.config)
    size = problem.policy.size
    sent: list[Any] = []
    original = FleetHttpClient._unary_unary

    def spy(self: Any, *, path: str, request: Any, **rest: Any) -> Any:
        sent.append((path.rpartition("/")[2], request))
        return original(self, path=path, request=request, **rest)

    monkeypatch.setattr(FleetHttpClient, "_unary_unary", spy)
    stop = threading.Event()
    exchange = Exchange(link, link.nodes, made.config, ledger, stop, deadline=30.0)
    limit = threading.Timer(120, stop.set)  # it asks again and again until somebody answers
    limit.start()
    with Sites(made) as sites:
        for name in made.sites:
            sites.start(name, responders(made.config))
        for t in (1, 2, 3):
            key = jax.random.key(0, impl="threefry2x32")
            broadcast = make_broadcast(jnp.zeros(size), key, jnp.int32(t), jnp.int32(4))
            answers = exchange.ask(broadcast)
            assert answers is not None
            assert (np.asarray(answers.replies.lengths) == size).all()
    limit.cancel()
    objects = [request.object_content for what, request in sent if what == "push-object"]
    heads = [content.split(b"\0", 1)[0].split(b" ")[0].decode() for content in objects]
    assert sorted(heads) == sorted(["Message", "RecordDict", "ConfigRecord"] * 6)
    for head, content in zip(heads, objects, strict=True):
        if head == "ConfigRecord":
            record = dict(ConfigRecord.inflate(content))
            assert {name: type(value) for name, value in record.items()} == REPLY
            assert len(record["gradient"]) == 4 * size
        else:
            assert len(content) < 600
        assert len(content) < 4 * size + 8192
    # Everything else is small, and none of it is of the task.
    known = {"activate-node", "deactivate-node", "pull-messages", "pull-object", "confirm-message-received"}
    known |= {"push-messages", "push-object", "send-node-heartbeat"}
    assert {what for what, _ in sent} <= known
    assert all(request.ByteSize() < 2000 for what, request in sent if what != "push-object")


def test_a_federations_folder_is_made_whole_with_its_keys_closed(tmp_path: Path):
    made = federation(tmp_path / "f", agents=3, deadline=7, seed=9)
    assert read_federation(made.folder) == made._replace(deadline=7)
    secrets = [*made.folder.rglob("*.key")]
    assert {p.name for p in secrets} == {"ca.key", "server.key", "site.key"}
    assert len(secrets) == 5
    assert {stat.S_IMODE(p.stat().st_mode) for p in secrets} == {0o600}
    for agent, name in enumerate(made.sites):
        site = read_site(made.folder / "sites" / name)
        assert site.parameters == make_problem(made.config).policy.size
        assert (site.name, site.agent, site.config) == (name, agent, made.config)
        handed = {p.name for p in (made.folder / "sites" / name).iterdir()}
        assert handed == {"ca.crt", "site.key", "site.toml", "README.md"}
    assert "fedpg serve" in (made.folder / "README.md").read_text()
    with pytest.raises(StorageError, match="exists already"):
        create(made.folder, made.config, "127.0.0.1:8443")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("deadline = 60.0", "deadline = 0.5", "deadline"),
        ("quorum = 2", "quorum = 9", "quorum = 9"),
        ("seed = 0", 'seed = "0"', "seed"),
        ('"site-2"]', '"site-1"]', "sites"),
        ('"site-2"]', '"../../etc"]', "name"),
        ('"site-0", "site-1", "site-2"]', "[1], [2], [3]]", "a name of its own"),
        ("agents = 3", "agents = 4", "agents = 4"),
        ("agents = 3", "agents = many", "cannot be read"),
        ("seed = 0", "seed = 0\ncolour = 1", "colour"),
        ("discount = ", "discounts = ", "discounts"),
    ],
)
def test_a_federation_file_that_cannot_work_is_refused(tmp_path: Path, old: str, new: str, message: str):
    made = federation(tmp_path / "f", agents=3)
    text = (made.folder / "federation.toml").read_text()
    assert old in text
    (made.folder / "federation.toml").write_text(text.replace(old, new, 1))
    with pytest.raises((ConfigError, StorageError), match=message):
        read_federation(made.folder)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "host",
            "host:",
            ":1",
            "host:0",
            "host:99999",
            "host:http",
            "http://host:1",
            "host/path:1",
            "::1:1",
            "[host]:1",
        ),
        *("m\u00fcnchen.example:8443", "-host:1", "a..b:1", "a b:1"),
    ],
)
def test_an_address_is_a_host_and_a_port(tmp_path: Path, address: str):
    with pytest.raises(ConfigError, match="host:port"):
        create(tmp_path / "f", make_config(**HONEST), address)
    assert not (tmp_path / "f").exists()


def test_without_tls_only_on_this_machine_unless_forced(tmp_path: Path):
    assert refuse_open("127.0.0.1", insecure=True, force=False) is None
    assert refuse_open("0.0.0.0", insecure=False, force=False) is None
    assert refuse_open("0.0.0.0", insecure=True, force=True) is None
    for host in ("0.0.0.0", "10.0.0.1", "fl.example.org", "::"):
        with pytest.raises(ConfigError, match="--force"):
            refuse_open(host, insecure=True, force=False)


def test_a_site_whose_task_does_not_fit_is_told_so(tmp_path: Path):
    made = federation(tmp_path / "f", agents=3)
    with pytest.raises(ConfigError, match=r"every site's task must have the sizes of the server's, CartPole-v1"):
        join(read_site(made.folder / "sites" / "site-0"), task="Acrobot-v1", quiet=True)


def test_an_interrupted_server_is_told_how_to_go_on():
    command = Serve(Path("my f"), out=Path("runs/b"), insecure=True, force=True)
    assert words_of(command) == ["fedpg", "serve", "my f", "--out", "runs/b", "--insecure", "--force"]
    assert words_of(Serve(Path("f"))) == ["fedpg", "serve", "f"]


@pytest.mark.parametrize("words", [["federation"], ["federation", "--help"]])
def test_the_commands_of_a_federation_are_listed(words: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "fedpg federation create" in said
    assert "fedpg federation demo" in said
    assert "fedpg train" not in said


def test_a_key_that_others_can_read_is_refused(tmp_path: Path):
    made = federation(tmp_path / "f", agents=3)
    path = made.folder / "sites" / "site-0" / "site.key"
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_site_key(path)
