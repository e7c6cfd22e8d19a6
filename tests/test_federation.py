"""Federations of real processes on loopback: what goes wrong between machines, and what the server makes of it."""

import contextlib
import dataclasses
import json
import resource
import signal
import ssl
import stat
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
from flwr.app import ConfigRecord, RecordDict
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supernode.fleet_http_client import FleetHttpClient

from conftest import TINY
from federations import SLOW, Process, Server, Sites, compiled_hastily, until
from fedpg import Config, make_config
from fedpg.agents import make_broadcast, make_problem
from fedpg.config import ConfigError
from fedpg.federation.messages import REPLY, largest
from fedpg.federation.site import Responder, make_responder
from fedpg.flower import warm
from fedpg.flower.certificates import read_site_key
from fedpg.flower.demo import free_port
from fedpg.flower.exchange import RECORD, Exchange
from fedpg.flower.folder import Federation, create, read_federation, read_site, refuse_open
from fedpg.flower.join import join
from fedpg.flower.ledger import Ledger
from fedpg.flower.link import Link
from fedpg.flower.link import Server as HttpServer
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
        for _ in range(2):
            reply = respond(dict(ConfigRecord.inflate(raw)))
            warm.send_reply(client, node, message, RecordDict({RECORD: ConfigRecord(reply)}), 0.1)

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


@pytest.fixture(scope="module")
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
        warm.run_site(address, lambda values: {}, print, threading.Event())
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
    with Sites(made) as sites:
        for name in made.sites:
            sites.start(name, responders(made.config))
        for t in (1, 2, 3):
            key = jax.random.key(0, impl="threefry2x32")
            broadcast = make_broadcast(jnp.zeros(size), key, jnp.int32(t), jnp.int32(4))
            answers = exchange.ask(broadcast)
            assert answers is not None
            assert (np.asarray(answers.replies.lengths) == size).all()
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


@pytest.mark.parametrize("address", ["host", "host:", ":1", "host:0", "host:99999", "host:http"])
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


def test_a_key_that_others_can_read_is_refused(tmp_path: Path):
    made = federation(tmp_path / "f", agents=3)
    path = made.folder / "sites" / "site-0" / "site.key"
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_site_key(path)
