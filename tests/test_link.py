"""What the door of a federation lets in, and what leaves a site."""

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jax
import jax.numpy as jnp
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata, PullObjectRequest, PushObjectRequest
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supernode.fleet_http_client import FleetHttpClient
from google.protobuf.message import DecodeError

from federations import SECRET, SHARED, LostRecord, Server, Sites, federation
from fedpg import Config
from fedpg.assembly import make_problem
from fedpg.errors import ConfigError
from fedpg.federation.messages import REPLY, largest
from fedpg.federation.site import Responder
from fedpg.flower import warm
from fedpg.flower.exchange import RECORD, Exchange, status_of
from fedpg.flower.link import Link
from fedpg.flower.web import Server as HttpServer
from fedpg.problem import make_broadcast
from fedpg.serving.join import join
from fedpg.sites.folder import Federation, read_site
from fedpg.sites.ledger import NOTES, Ledger
from processes import Process

pytestmark = pytest.mark.network


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
    return [warm.fetch(work)[0] for work in works]


def test_what_a_liar_pushes_is_gone_after_the_round(
    listening: tuple[Federation, Link, Ledger], two_sites: list[tuple[FleetHttpClient, Any]]
):
    made, link, _ = listening
    message, _ = ask_both(link, two_sites)
    client, node = two_sites[0]
    bare = Message(RecordDict(), reply_to=message)
    bare.metadata.__dict__["_message_id"] = "an id"
    head = message_to_proto(bare)

    def push(code: str, heads: list[Any]) -> None:
        with pytest.raises(httpx.HTTPStatusError, match=code):
            client.PushMessages(PushMessagesRequest(node=node, messages_list=heads))

    push("400", [])
    push("400", [head, head])
    assert link.replies == {}
    assert warm.send_reply(client, node, message, RecordDict({RECORD: ConfigRecord({"a": 1})}), 0.1)
    push("409", [head])
    assert not warm.send_reply(client, node, message, RecordDict({RECORD: ConfigRecord({"a": 2})}), 0.1)
    assert len(link.replies) == 1
    # What Flower's own nodes do in parts is not done here, and nothing of it is kept.
    for request in (
        lambda: client.PushObject(PushObjectRequest(node=node, object_id="x", object_content=b"y")),
        lambda: client.PullObject(PullObjectRequest(node=node, object_id="x")),
        lambda: client.GetRun(GetRunRequest(node=node, run_id=link.run_id)),
    ):
        with pytest.raises(httpx.HTTPStatusError, match="403"):
            request()
    events = [json.loads(line) for line in (made.folder / "events.jsonl").read_text().splitlines()]
    assert "push-object" in [e for e in events if e["event"] == "refused"][-3]["reason"]
    link.push_messages([])
    assert link.replies == link.outbox == link.open == {}
    assert len(link.state.object_store) == 0


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
    request = PushMessagesRequest(node=node, messages_list=[message_to_proto(forged)])
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
    voice = warm.Voice(said.append, said.append, share_errors=False)
    warm._answer(None, None, work, lambda values: {}, voice, 10**6)  # type: ignore[arg-type]
    assert "not made as agreed on" in said[0]
    sent: list[Any] = []
    monkeypatch.setattr(warm, "fetch", lambda work: (None, {}))
    work = PullMessagesResponse(messages_list=[ProtoMessage(metadata=Metadata(message_id="x" * 1001))])
    monkeypatch.setattr(warm, "send_reply", lambda *arguments: bool(sent.append(arguments[3])))
    warm._answer(None, None, work, lambda values: {}, voice, 1000)  # type: ignore[arg-type]
    assert status_of(sent[0].code) == "too large"
    stop = threading.Event()

    def junk(*_: Any) -> None:
        stop.set()
        raise ValueError("Invalid protobuf response payload") from DecodeError()

    monkeypatch.setattr(warm, "_serve", junk)
    warm.run_site(Sites(made).address("site-0"), lambda values: {}, said.append, stop, 1000)
    assert "trying again" in said[-1]


def test_a_site_goes_on_trying_for_as_long_as_it_takes(
    listening: tuple[Federation, Link, Ledger], monkeypatch: pytest.MonkeyPatch
):
    """A night without a server; then one whose clock is wrong."""
    made, _, _ = listening
    address = Sites(made).address("site-0")
    said, waits = list[str](), list[float]()
    request = httpx.Request("POST", "https://there")
    refusal = httpx.HTTPStatusError("401", request=request, response=httpx.Response(401, request=request))

    class Patient(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            if len(waits) == 2000:
                self.set()
            return self.is_set()

    def down(*_: Any) -> None:
        raise httpx.ConnectError("nobody there") if len(waits) < 1999 else refusal

    monkeypatch.setattr(warm, "_serve", down)
    warm.run_site(address, lambda values: {}, said.append, Patient(), 1000)
    assert waits[0] <= 0.6
    assert waits[3] < waits[8] <= max(waits) <= 1.2 * warm.LONGEST
    assert "clock" in said[-1]


def test_an_address_that_no_site_can_use_is_named(listening: tuple[Federation, Link, Ledger]):
    made, _, _ = listening
    address = Sites(made).address("site-0")._replace(server="xn--a:5")
    assert "xn--a:5 is no address" in refused(made, address)


def test_nobody_registers_a_key_at_the_door(listening: tuple[Federation, Link, Ledger]):
    made, _, _ = listening
    stranger = Sites(made).address("site-0")._replace(key=ec.generate_private_key(ec.SECP384R1()))
    key = public_key_to_bytes(stranger.key.public_key())
    with warm._client(stranger) as client, pytest.raises(httpx.HTTPStatusError, match="403"):
        client.RegisterNode(RegisterNodeFleetRequest(public_key=key))
    events = [json.loads(line) for line in (made.folder / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["refused"]


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


def test_a_site_does_not_fill_the_ledger(tmp_path: Path):
    said: list[str] = []
    ledger = Ledger(["site-0", "site-1"], tmp_path / "events.jsonl", said.append)
    for _ in range(200):
        ledger.note(0, "stale reply", "again")
    assert NOTES <= len(said) == len((tmp_path / "events.jsonl").read_text().splitlines()) <= NOTES + 1
    ledger.note(1, "stale reply", "of another")
    assert said[-1].startswith("site-1")


def test_only_flowers_fleet_api_is_served(listening: tuple[Federation, Link, Ledger]):
    made, _, _ = listening
    verify = ssl.create_default_context(cafile=str(made.folder / "ca.crt"))
    as_flower = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE}
    with httpx.Client(base_url=f"https://{made.address}", verify=verify, headers=as_flower) as client:
        for path in ("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/push-messages", "/docs"):
            assert client.post(path, content=b"").status_code == 404, path
        assert client.post("/v1/fleet/pull-messages", content=b"").status_code == 401
        assert client.post("/v1/fleet/pull-messages", content=bytes(10**6)).status_code == 413


def spied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """All requests that the sites of this process send from now on: (what, the request)."""
    sent: list[tuple[str, Any]] = []
    original = FleetHttpClient._unary_unary

    def spy(self: Any, *, path: str, request: Any, **rest: Any) -> Any:
        sent.append((path.rpartition("/")[2], request))
        return original(self, path=path, request=request, **rest)

    monkeypatch.setattr(FleetHttpClient, "_unary_unary", spy)
    return sent


def test_one_vector_and_a_few_numbers_leave_a_site(
    listening: tuple[Federation, Link, Ledger],
    monkeypatch: pytest.MonkeyPatch,
    responders: Callable[[Config], Responder],
):
    """Every byte that two sites send in three rounds."""
    made, link, ledger = listening
    problem = make_problem(made.config)
    size = problem.policy.size
    sent = spied(monkeypatch)
    stop = threading.Event()
    exchange = Exchange(link, link.nodes, problem, ledger, stop, deadline=30.0)
    limit = threading.Timer(120, stop.set)  # it asks again and again until somebody answers
    limit.start()
    with Sites(made) as sites:
        for name in made.sites:
            sites.start(name, responders(made.config))
        for t in (1, 2, 3):
            key = jax.random.key(0, impl="threefry2x32")
            replies, _ = exchange.ask(make_broadcast(key, t, 4, theta=jnp.zeros(size)), ())
            assert (replies.status == 0).all()
    limit.cancel()
    replies = [message for what, request in sent if what == "push-messages" for message in request.messages_list]
    assert len(replies) == 6
    for proto in replies:
        records = dict(message_from_proto(proto).content)
        assert set(records) == {RECORD}
        record = dict(records[RECORD])
        assert {name: type(value) for name, value in record.items()} == REPLY | {"vector.gradient": bytes}
        assert len(record["vector.gradient"]) == 4 * size
        assert proto.ByteSize() < 4 * size + 1000
    # Everything else is small, and none of it is of the task.
    known = {"activate-node", "deactivate-node", "pull-messages", "push-messages", "send-node-heartbeat"}
    assert {what for what, _ in sent} <= known
    assert all(request.ByteSize() < 2000 for what, request in sent if what != "push-messages")


def test_the_text_of_an_error_stays_at_the_site_unless_that_shares_it(
    tmp_path: Path,
    responders: Callable[[Config], Responder],
    content: Callable[[Path], dict[str, bytes]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """Two sites' tasks fail with an error that quotes a record; one of them was started with --share-errors."""
    made = federation(tmp_path / "f", agents=4, quorum=2, trajectories=14)
    sent = spied(monkeypatch)
    home = made.folder / "sites"
    words = ("join", str(home / "site-3"), "--task", "federations:sharing_cartpole", "--quiet", "--share-errors")
    with Sites(made) as sites, Server(made) as server, Process(tmp_path / "site-3.log", *words) as shares:
        for name in made.sites[:2]:
            sites.start(name, responders(made.config))
        site = read_site(home / "site-2")
        task = "federations:failing_cartpole"
        sites.run("site-2", lambda: join(site, task, quiet=True, stop=sites.stop))
        assert server.wait() == 0, server.said
    assert sites.errors == {}
    rounds = server.rounds()
    assert len(rounds) >= 3
    for line in rounds:
        assert line["sites"]["site-2"]["outcome"] == line["sites"]["site-3"]["outcome"] == "failed"
        assert line["sites"]["site-2"]["reason"] == f"failed at the site: {LostRecord.__name__}"
        assert line["sites"]["site-3"]["reason"] == f"failed at the site: {LostRecord.__name__}: {SHARED}"
    left = b"".join(request.SerializeToString() for _, request in sent)
    assert LostRecord.__name__.encode() in left
    there = content(server.out) | {"what it said": server.said.encode()}
    for name, found in (there | {"what left the sites": left}).items():
        assert SECRET.encode() not in found, name
    # At the site it is printed, however quiet that is.
    printed = capsys.readouterr()
    assert SECRET in printed.err
    assert SECRET not in printed.out
    assert SHARED in shares.said
