"""Federations of real processes on loopback: they train as a simulation does, whatever their sites reply."""

import contextlib
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest

from federations import Server, Sites, federation, outcomes, records, statuses, until
from fedpg import Config
from fedpg.assembly import make_problem
from fedpg.config import SUCCESSORS
from fedpg.federation.site import Responder
from fedpg.flower import warm
from fedpg.flower.exchange import RECORD
from fedpg.problem import OUTCOMES
from fedpg.sites.folder import Federation
from fedpg.training import train_seeds
from fedpg.training.harm import Harm
from fedpg.training.result import Run

pytestmark = pytest.mark.network


Rows = list[dict[str, Any]]


def both_ways(
    made: Federation, responders: Callable[[Config], Responder], folder: Path
) -> tuple[Server, Rows, Run, Rows]:
    """The same settings between processes and in one: (the server, its records, the run, its records)."""
    with Sites(made) as sites, Server(made, "--quiet") as server:
        for name in made.sites:
            sites.start(name, responders(made.config))
        assert server.wait() == 0, server.said
        assert sites.errors == {}
    simulated = train_seeds(make_problem(made.config), [5], folder / "simulated")[0]
    return server, records(server.out), simulated, records(simulated.folder)


def test_a_federation_trains_as_a_simulation_does(tmp_path: Path, responders: Callable[[Config], Responder]):
    """Ten sites, three of them flip signs; over TLS, with keys, the server in a process of its own."""
    settings = {"agents": 10, "byzantine": 3, "attack": "sign-flipping", "sigma": "auto", "batch": (4, 5)}
    made = federation(tmp_path / "f", **settings, trajectories=45, seed=5)
    server, there, simulated, here = both_ways(made, responders, tmp_path)
    assert len(there) == len(here) > 8
    for ours, theirs in zip(here, there, strict=True):
        for name in set(ours) - {"seconds", *Harm._fields}:
            if isinstance(ours[name], float):
                assert theirs[name] == pytest.approx(ours[name], rel=1e-3, abs=1e-4), (ours["round"], name)
            elif name in ("accepted", "status", "outcome", "rule", "round", "trajectories", "steps"):
                assert theirs[name] == ours[name], (ours["round"], name)
    assert [outcomes(line) for line in server.rounds()] == [row["outcome"] for row in here[1:]]
    assert any("turned away" in row["outcome"] for row in here[1:])
    # Who lies is known in the simulation only.
    assert any(row["harm"] is not None for row in here[1:])
    assert all(row[name] is None for row in there[1:] for name in Harm._fields)
    # The run folder is the same as that of `fedpg train`, and says more.
    names = {p.name for p in server.out.iterdir() if "tfevents" not in p.name}
    assert names == {p.name for p in simulated.folder.iterdir() if "tfevents" not in p.name} | {
        "federation.jsonl",
        "sites.json",
        "curve.png",
    }


@pytest.mark.more
@pytest.mark.parametrize("algorithm", SUCCESSORS)
def test_successors_train_between_machines_as_they_do_in_a_simulation(
    algorithm: str, tmp_path: Path, responders: Callable[[Config], Responder]
):
    settings = {"agents": 4, "byzantine": 1, "attack": "sign-flipping", "aggregator": "compass", "sigma": "auto"}
    made = federation(tmp_path / "f", algorithm=algorithm, **settings, batch=(4, 4), trajectories=24, seed=5)
    _, there, _, here = both_ways(made, responders, tmp_path)
    assert len(there) == len(here) > 2
    for ours, theirs in zip(here[1:], there[1:], strict=True):
        assert [theirs[name] for name in ("round", "trajectories", "status")] == [
            ours[name] for name in ("round", "trajectories", "status")
        ]
        assert theirs["gradient_norm"] == pytest.approx(ours["gradient_norm"], rel=1e-2), ours["round"]


LIES: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "nan": (lambda reply: reply | {"vector.gradient": b"\xff" * len(reply["vector.gradient"])}, "not finite"),
    "infinity": (
        lambda reply: reply | {"vector.gradient": np.float32(np.inf).tobytes() + reply["vector.gradient"][4:]},
        "not finite",
    ),
    "short": (lambda reply: reply | {"vector.gradient": reply["vector.gradient"][:-4]}, "wrong length"),
    "empty": (lambda reply: reply | {"vector.gradient": b""}, "wrong length"),
    "a list": (lambda reply: reply | {"vector.gradient": [0.0] * (len(reply["vector.gradient"]) // 4)}, "wrong type"),
    "more": (lambda reply: reply | {"trajectories": b"private"}, "wrong type"),
    "another round": (lambda reply: reply | {"round": reply["round"] + 1}, "wrong round"),
    "raises": (lambda reply: 1 // 0, "failed at the site"),  # type: ignore[dict-item,return-value]
}


@pytest.mark.usefixtures("room")
def test_every_kind_of_bad_reply_is_refused_and_named_and_training_goes_on(
    tmp_path: Path, responders: Callable[[Config], Responder]
):
    agents = 2 * (len(LIES) + 2) + 2  # more honest than not
    made = federation(tmp_path / "f", agents=agents, trajectories=12)  # everybody replies: no round waits for a clock
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
            assert site["outcome"] == ("failed" if lie == "raises" else "unusable")
            assert site["reason"].startswith(status)
            assert not site["accepted"]
        for name in (double, forger, *made.sites[len(LIES) + 3 :]):
            assert line["sites"][name]["accepted"], (name, line)
            assert (line["sites"][name]["outcome"], line["sites"][name]["reason"]) == ("accepted", "")
        assert line["sites"][heavy]["status"] == "too large"
        assert line["sites"][heavy]["outcome"] == "unusable"
    assert "ZeroDivisionError" in rounds[0]["sites"][made.sites[len(LIES) - 1]]["reason"]
    assert "100000" in server.events("too large", heavy)[0]["reason"]
    assert server.events("second reply", double)
    assert len(server.events("refused", forger)) >= len(rounds)
    # The run's own records have the same, by the numbers of the agents.
    for line, row in zip(rounds, records(server.out)[1:], strict=True):
        assert row["status"] == statuses(line)
        assert row["outcome"] == outcomes(line)
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
        message, values = warm.fetch(work)
        for first in (True, False):
            reply = respond(values)
            taken = warm.send_reply(client, node, message, RecordDict({RECORD: ConfigRecord(reply)}), 0.1)
            assert first or not taken

    by_hand(sites, name, answer)


def reply_for_another(sites: Sites, name: str, respond: Responder) -> None:
    def answer(client: Any, node: Any, work: Any) -> None:
        message, values = warm.fetch(work)
        reply = respond(values)
        message.metadata.__dict__["_dst_node_id"] = node.node_id + 1  # a reply comes from where the message went
        with pytest.raises(httpx.HTTPStatusError, match="403"):
            warm.send_reply(client, node, message, RecordDict({RECORD: ConfigRecord(reply)}), 0.1)
        message.metadata.__dict__["_dst_node_id"] = node.node_id
        assert warm.send_reply(client, node, message, RecordDict({RECORD: ConfigRecord(reply)}), 0.1)

    by_hand(sites, name, answer)


def reply_with_100_megabytes(sites: Sites, name: str) -> None:
    def answer(client: Any, node: Any, work: Any) -> None:
        message, _ = warm.fetch(work)
        request = PushObjectRequest(node=node, run_id=message.metadata.run_id, object_content=bytes(100_000_000))
        with pytest.raises(httpx.HTTPError):  # refused, or the connection is closed before it has all been sent
            client.PushObject(request)

    by_hand(sites, name, answer)


def test_a_round_without_a_quorum_changes_nothing_and_is_tried_again(
    tmp_path: Path, responders: Callable[[Config], Responder]
):
    made = federation(tmp_path / "f", deadline=3.0, quorum=3, agents=4, trajectories=10)
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
    # Nobody is blamed for it who was there and answered.
    assert all(outcomes(line) == ["not judged", "not judged", "failed", "absent"] for line in failed)
    assert {line["sites"]["site-0"]["reason"] for line in failed} == {"too few replies: no aggregator ran"}
    assert not any(site["accepted"] for line in failed for site in line["sites"].values())
    rounds = server.rounds()
    assert all(outcomes(line) == ["accepted", "accepted", "failed", "accepted"] for line in rounds)
    assert [row["outcome"] for row in records(server.out)[1:]] == [outcomes(line) for line in rounds]
    # The table counts the same words.
    table = server.said.rpartition("unusable")[2]
    for name in made.sites:
        found = [line["sites"][name]["outcome"] for line in (*failed, *rounds)]
        row = re.search(rf"{name} +(?:yes|no) +\d+ s +\d+((?: +\d+){{6}}) ", table)
        assert row is not None, server.said
        assert [int(n) for n in row[1].split()] == [found.count(word) for word in OUTCOMES]
    assert rounds[0]["round"] == 1
    assert rounds[0]["attempt"] == len(failed) + 1
    # What it came to is a simulation's with the same agent missing: the attempts that failed left no trace.
    assert [row["round"] for row in records(server.out)] == [0, *(line["round"] for line in rounds)]
