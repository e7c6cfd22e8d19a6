"""What crosses the network, and that a round over it is a simulated round."""

import math
import threading
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st

from fedpg.agents import STATUSES, Answers, Broadcast, Problem, make_broadcast
from fedpg.algorithms import Log, first_state
from fedpg.config import ConfigError, make_config
from fedpg.federation.messages import (
    BROADCAST,
    FORMAT,
    MessageError,
    decode_broadcast,
    decode_reply,
    encode_broadcast,
    largest,
    settings_digest,
)
from fedpg.federation.site import make_responder
from fedpg.flower.exchange import RECORD, Exchange, Round
from fedpg.flower.ledger import Ledger
from fedpg.training.rounds import Advance, compile_apart

SIZE = 5
CONFIG = make_config(agents=4, batch=(4, 6), minibatch=2)
REPLY = {
    "format": FORMAT,
    "round": 3,
    "gradient": np.arange(SIZE, dtype="<f4").tobytes(),
    "return": 9.5,
    "steps": 38,
    "seconds": 0.1,
}


def sent(round_: int = 3, batch: int = 4) -> tuple[Broadcast, dict[str, Any]]:
    theta = jnp.arange(SIZE, dtype=jnp.float32)
    key = jax.random.key(7, impl="threefry2x32")
    broadcast = make_broadcast(theta, key, jnp.int32(round_), jnp.int32(batch))
    return broadcast, encode_broadcast(broadcast, 2, settings_digest(CONFIG))


def data(broadcast: Broadcast) -> list[np.ndarray]:
    plain = broadcast._replace(key=jax.random.key_data(broadcast.key), season=jax.random.key_data(broadcast.season))
    return [np.asarray(x) for x in plain]


def test_a_broadcast_arrives_as_it_was_sent():
    broadcast, values = sent()
    agent, arrived = decode_broadcast(values, CONFIG, SIZE)
    assert agent == 2
    for a, b in zip(data(broadcast), data(arrived), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


def test_a_message_is_its_vector_and_less_than_8_kilobytes():
    _, values = sent()
    size = sum(len(v) if isinstance(v, bytes | str) else 8 for v in values.values()) + sum(map(len, values))
    assert size - 4 * SIZE < 300 < largest(SIZE) - 4 * SIZE == 8192


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"gradient": b""}, "wrong length"),
        ({"gradient": bytes(4 * SIZE - 4)}, "wrong length"),
        ({"gradient": bytes(4 * SIZE + 1)}, "wrong length"),
        ({"gradient": [0.0] * SIZE}, "wrong type"),
        ({"gradient": "zero"}, "wrong type"),
        ({"round": 2}, "wrong round"),
        ({"round": True}, "wrong type"),
        ({"round": 3.0}, "wrong type"),
        ({"format": 2}, "wrong type"),
        ({"return": math.nan}, "not finite"),
        ({"return": 1}, "wrong type"),
        ({"steps": -1}, "not finite"),
        ({"steps": 2**31}, "not finite"),
        ({"seconds": math.inf}, "not finite"),
        ({"seconds": -1.0}, "not finite"),
        ({"observations": b"the site's own"}, "wrong type"),
    ],
)
def test_a_reply_that_is_not_as_agreed_is_refused_and_named(changed: dict[str, Any], status: str):
    assert decode_reply(REPLY, 3, SIZE).steps == 38
    with pytest.raises(MessageError) as refused:
        decode_reply(REPLY | changed, 3, SIZE)
    assert STATUSES[refused.value.status] == status


@pytest.mark.parametrize("name", REPLY)
def test_a_reply_without_an_entry_is_refused(name: str):
    with pytest.raises(MessageError, match=name):
        decode_reply({k: v for k, v in REPLY.items() if k != name}, 3, SIZE)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"settings": "0" * 16}, "other settings"),
        ({"agent": 4}, "agent 4 of 4"),
        ({"agent": -1}, "agent -1"),
        ({"round": 0}, "round 0"),
        ({"round": 2**31}, "round"),
        ({"batch": 3}, "batch of 3"),
        ({"batch": 10**6}, "batch"),
        ({"key": b"short"}, "key has 5 bytes"),
        ({"season": bytes(9)}, "season has 9 bytes"),
        ({"theta": np.full(SIZE, np.nan, "<f4").tobytes()}, "not finite"),
        ({"theta": bytes(4 * SIZE + 4)}, "6 numbers, not 5"),
        ({"code": "import os"}, "code"),
    ],
)
def test_a_site_checks_its_server(changed: dict[str, Any], message: str):
    _, values = sent()
    with pytest.raises(MessageError, match=message):
        decode_broadcast(values | changed, CONFIG, SIZE)


@pytest.mark.parametrize(
    "changed",
    [{"return": 1e300}, {"return": -3e38}, {"steps": 2**31 - 1}, {"steps": CONFIG.batch[1] * CONFIG.horizon + 1}],
)
def test_numbers_that_overflow_in_a_sum_over_the_agents_are_refused(changed: dict[str, Any]):
    round_ = Round(3, CONFIG, SIZE)
    round_.take(0, REPLY)
    for agent in (1, 2):
        round_.take(agent, REPLY | changed)
    assert round_.statuses == ["answered", "not finite", "not finite", "no answer"]
    answers = round_.answers()
    np.testing.assert_array_equal(answers.returns, [9.5] * 4)
    np.testing.assert_array_equal(answers.steps, [38, 0, 0, 0])
    most = {"return": 8e37, "steps": CONFIG.batch[1] * CONFIG.horizon}
    for agent in range(4):
        round_.take(agent, REPLY | most)
    answers = round_.answers()
    assert np.isfinite(np.sum(np.asarray(answers.returns)))
    assert int(jnp.sum(answers.steps)) == 4 * most["steps"]


def test_a_site_cannot_write_to_the_operators_terminal():
    round_ = Round(3, CONFIG, SIZE)
    round_.refuse(0, "failed at the site", "\x1b]0;mine\x07\x9b2J\r\nround 9: accepted, caf\u00e9 \u202e" + "x" * 300)
    assert round_.reasons[0].startswith("?]0;mine??2J??round 9: accepted, caf\u00e9 ?xx")
    assert len(round_.reasons[0]) == 200


class Scripted:
    """A grid on which the first `answering` sites reply, and then somebody asks the server to stop."""

    def __init__(self, answering: int, stop: threading.Event) -> None:
        self.answering, self.stop = answering, stop
        self.asked: dict[str, Message] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self.asked = {str(i): message for i, message in enumerate(messages)}
        return list(self.asked)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        for id_ in sorted(message_ids)[: self.answering]:
            reply = Message(RecordDict({RECORD: ConfigRecord(REPLY)}), reply_to=self.asked[id_])
            reply.metadata.__dict__["_reply_to_message_id"] = id_
            replies.append(reply)
        self.stop.set()
        return replies


@pytest.mark.parametrize("answering", [2, 3, 4])
def test_a_round_that_is_interrupted_while_somebody_is_awaited_is_not_counted(
    answering: int, monkeypatch: pytest.MonkeyPatch
):
    for name in ("_run_id", "_task_id", "_node_id"):  # which Flower's messages are marked with
        monkeypatch.setattr(TaskIdentity, name, 1)
    stop = threading.Event()
    ledger = Ledger([f"site-{i}" for i in range(4)])
    nodes = {agent: 100 + agent for agent in range(4)}
    exchange = Exchange(Scripted(answering, stop), lambda: nodes, CONFIG, ledger, stop)
    answers = exchange.ask(sent()[0])
    assert exchange.round is not None
    assert exchange.round.usable == answering
    assert (answers is not None) == (answering == 4)  # also with the quorum of 3


JUNK = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.floats()))


@given(st.sampled_from(sorted(REPLY)), JUNK, st.dictionaries(st.text(), JUNK))
def test_whatever_arrives_is_a_reply_or_refused(name: str, value: Any, other: dict[str, Any]):
    for values in (REPLY | {name: value}, other):
        try:
            reply = decode_reply(values, 3, SIZE)
        except MessageError:
            continue
        else:
            assert reply.gradient.shape == (SIZE,)
            assert math.isfinite(reply.mean_return)


@given(st.sampled_from(sorted(BROADCAST)), JUNK)
def test_whatever_arrives_at_a_site_is_a_broadcast_or_refused(name: str, value: Any):
    try:
        _, broadcast = decode_broadcast(sent()[1] | {name: value}, CONFIG, SIZE)
    except MessageError:
        return
    assert np.isfinite(broadcast.theta).all()


def test_what_concerns_the_server_alone_may_differ():
    same = [make_config(agents=4, batch=(4, 6), minibatch=2, **kw) for kw in ({"trajectories": 9}, {"filter": "mean"})]
    assert {settings_digest(c) for c in same} == {settings_digest(CONFIG)}
    assert settings_digest(make_config(agents=5, batch=(4, 6), minibatch=2)) != settings_digest(CONFIG)


class InThisProcess:
    """Sites that are only a message away."""

    def __init__(self, problem: Problem, silent: int | None = None) -> None:
        self.problem, self.silent = problem, silent
        self.respond = make_responder(problem)
        self.logs: list[Log] = []

    def ask(self, broadcast: Broadcast) -> Answers | None:
        config, size = self.problem.config, self.problem.policy.size
        round_ = Round(int(broadcast.round), config, size)
        for agent in range(config.agents):
            if agent != self.silent:
                round_.take(agent, self.respond(encode_broadcast(broadcast, agent, settings_digest(config))))
        return round_.answers()

    def tell(self, log: Log) -> None:
        self.logs.append(log)


@pytest.fixture(scope="module")
def apart(tiny: Callable[..., Problem]) -> tuple[InThisProcess, Advance]:
    """The tiny federation over messages, compiled once."""
    sites = InThisProcess(tiny())
    return sites, compile_apart(sites.problem, sites)


def test_a_round_over_messages_is_a_simulated_round(
    apart: tuple[InThisProcess, Advance], compiled: Callable[[Problem], Advance]
):
    sites, far = apart
    near = compiled(sites.problem)
    here = there = first_state(sites.problem, 3)
    for _ in range(4):
        (done, here, logs), (one, there, log) = (
            f(s, jnp.int32(1), jnp.int32(10**6)) for f, s in ((near, here), (far, there))
        )
        assert int(done) == int(one) == 1
        for name in Log._fields:
            a, b = np.asarray(getattr(logs, name)[0]), np.asarray(getattr(log, name)[0])
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5, err_msg=name)
        for name in ("status", "accepted", "rule", "centre"):
            np.testing.assert_array_equal(getattr(logs, name)[0], getattr(log, name)[0], err_msg=name)
        np.testing.assert_allclose(here.theta, there.theta, rtol=1e-4, atol=1e-6)
    assert [int(log.round) for log in sites.logs] == [1, 2, 3, 4]


def test_an_agent_that_is_not_there_counts_as_faulty(
    apart: tuple[InThisProcess, Advance], monkeypatch: pytest.MonkeyPatch
):
    sites, far = apart
    monkeypatch.setattr(sites, "silent", 1)
    _, state, log = far(first_state(sites.problem, 0), jnp.int32(1), jnp.int32(100))
    assert [STATUSES[s] for s in log.status[0]] == ["answered", "no answer", "answered", "answered"]
    assert not log.accepted[0][1]
    assert np.isfinite(state.theta).all()
    assert float(log.train_return[0]) > 5  # over those that answered


def test_asked_to_stop_a_round_changes_nothing(apart: tuple[InThisProcess, Advance], monkeypatch: pytest.MonkeyPatch):
    sites, far = apart
    monkeypatch.setattr(sites, "ask", lambda broadcast: None)
    state = first_state(sites.problem, 0)
    done, after, log = far(state, jnp.int32(1), jnp.int32(100))
    assert int(done) == 0
    assert after is state
    assert len(log.round) == 0


@pytest.mark.parametrize("attack", ["fedpg-attack", "variance-attack"])
def test_sites_cannot_collude(attack: str, tiny: Callable[..., Problem]):
    with pytest.raises(ConfigError, match="sites do not see"):
        make_responder(tiny(attack=attack))
