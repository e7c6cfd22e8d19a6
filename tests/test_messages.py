"""What crosses the network, and that a round over it is a simulated round."""

import contextlib
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

from fedpg import Agent, ConfigError, Problem, Schema, make_config
from fedpg.errors import Stopped
from fedpg.federation import Local
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
from fedpg.federation.site import Site, pack_memory, unpack_memory
from fedpg.flower.exchange import RECORD, Exchange
from fedpg.problem import STATUSES, Broadcast, Memory, Outcome, Replies, make_broadcast
from fedpg.server import Server
from fedpg.sites.gathering import Gathering
from fedpg.sites.ledger import Ledger
from fedpg.training.rounds import LOGGED, advance, first_state

SIZE = 5
CONFIG = make_config(agents=4, batch=(4, 6), minibatch=2)
REPLY = {
    "format": FORMAT,
    "round": 3,
    "vector.gradient": np.arange(SIZE, dtype="<f4").tobytes(),
    "return": 9.5,
    "steps": 38,
    "seconds": 0.1,
}
SCHEMA = Schema(vectors=("gradient",))
RICH = Schema(vectors=("gradient", "momentum"), scalars=("loss",))
RICH_REPLY = REPLY | {"vector.momentum": np.ones(SIZE, "<f4").tobytes(), "scalar.loss": 0.25}


def gathering() -> Gathering:
    return Gathering(3, CONFIG, SIZE, SCHEMA, 4)


def sent(round_: int = 3, batch: int = 4) -> tuple[Broadcast, dict[str, Any]]:
    theta = jnp.arange(SIZE, dtype=jnp.float32)
    key = jax.random.key(7, impl="threefry2x32")
    broadcast = make_broadcast(key, round_, batch, theta=theta)
    return broadcast, encode_broadcast(broadcast, 2, settings_digest(CONFIG))


def data(broadcast: Broadcast) -> list[np.ndarray]:
    keys = (jax.random.key_data(broadcast.key), jax.random.key_data(broadcast.pool_key))
    return [np.asarray(x) for x in (broadcast.round, broadcast.batch, *keys, broadcast.theta)]


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
        ({"vector.gradient": b""}, "wrong length"),
        ({"vector.gradient": bytes(4 * SIZE - 4)}, "wrong length"),
        ({"vector.gradient": bytes(4 * SIZE + 1)}, "wrong length"),
        ({"vector.gradient": [0.0] * SIZE}, "wrong type"),
        ({"vector.gradient": "zero"}, "wrong type"),
        ({"round": 2}, "wrong round"),
        ({"round": True}, "wrong type"),
        ({"round": 3.0}, "wrong type"),
        ({"format": 1}, "wrong type"),
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
    assert decode_reply(REPLY, 3, SIZE, SCHEMA).steps == 38
    with pytest.raises(MessageError) as refused:
        decode_reply(REPLY | changed, 3, SIZE, SCHEMA)
    assert STATUSES[refused.value.status] == status


@pytest.mark.parametrize("name", REPLY)
def test_a_reply_without_an_entry_is_refused(name: str):
    with pytest.raises(MessageError, match=name):
        decode_reply({k: v for k, v in REPLY.items() if k != name}, 3, SIZE, SCHEMA)


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
        ({"pool_key": bytes(9)}, "pool_key has 9 bytes"),
        ({"vector.theta": np.full(SIZE, np.nan, "<f4").tobytes()}, "not finite"),
        ({"vector.theta": bytes(4 * SIZE + 4)}, "6 numbers, not 5"),
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
    round_ = gathering()
    round_.take(0, REPLY)
    for agent in (1, 2):
        round_.take(agent, REPLY | changed)
    assert round_.statuses == ["answered", "not finite", "not finite", "no answer"]
    replies = round_.replies()
    np.testing.assert_array_equal(replies.returns, [9.5] * 4)
    np.testing.assert_array_equal(replies.steps, [38, 0, 0, 0])
    most = {"return": 8e37, "steps": CONFIG.batch[1] * CONFIG.horizon}
    for agent in range(4):
        round_.take(agent, REPLY | most)
    replies = round_.replies()
    assert np.isfinite(np.sum(np.asarray(replies.returns)))
    assert int(np.sum(replies.steps)) == 4 * most["steps"]


def test_a_site_cannot_write_to_the_operators_terminal():
    round_ = gathering()
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
    answering: int, tiny: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch
):
    for name in ("_run_id", "_task_id", "_node_id"):  # which Flower's messages are marked with
        monkeypatch.setattr(TaskIdentity, name, 1)
    stop = threading.Event()
    ledger = Ledger([f"site-{i}" for i in range(4)])
    nodes = {agent: 100 + agent for agent in range(4)}
    problem = tiny(agents=4, batch=CONFIG.batch, horizon=CONFIG.horizon)
    exchange = Exchange(Scripted(answering, stop), lambda: nodes, problem, ledger, stop)
    monkeypatch.setattr(type(problem.policy), "size", SIZE)
    interrupted = pytest.raises(Stopped) if answering < 4 else contextlib.nullcontext()  # also with the quorum of 3
    with interrupted:
        replies, _ = exchange.ask(sent()[0], ())
        assert replies.status.tolist() == [0] * 4
    assert exchange.round is not None
    assert exchange.round.usable == answering


JUNK = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.floats()))


@given(st.sampled_from(sorted(REPLY)), JUNK, st.dictionaries(st.text(), JUNK))
def test_whatever_arrives_is_a_reply_or_refused(name: str, value: Any, other: dict[str, Any]):
    for values in (REPLY | {name: value}, other):
        try:
            reply = decode_reply(values, 3, SIZE, SCHEMA)
        except MessageError:
            continue
        else:
            assert reply.vectors["gradient"].shape == (SIZE,)
            assert math.isfinite(reply.mean_return)


@given(st.sampled_from(sorted(BROADCAST)), JUNK)
def test_whatever_arrives_at_a_site_is_a_broadcast_or_refused(name: str, value: Any):
    try:
        _, broadcast = decode_broadcast(sent()[1] | {name: value}, CONFIG, SIZE)
    except MessageError:
        return
    assert np.isfinite(broadcast.theta).all()


def test_what_concerns_the_server_alone_may_differ():
    same = [
        make_config(agents=4, batch=(4, 6), minibatch=2, **kw) for kw in ({"trajectories": 9}, {"aggregator": "mean"})
    ]
    assert {settings_digest(c) for c in same} == {settings_digest(CONFIG)}
    # How many sites there are, too, unless the last of them are to lie.
    assert settings_digest(make_config(agents=5, batch=(4, 6), minibatch=2)) == settings_digest(CONFIG)
    four, five = (make_config(agents=n, byzantine=1, attack="sign-flipping") for n in (4, 5))
    assert settings_digest(four) != settings_digest(five)
    assert settings_digest(make_config(agents=4, batch=(4, 7), minibatch=2)) != settings_digest(CONFIG)


class InThisProcess:
    """Sites that are only a message away."""

    def __init__(self, problem: Problem, silent: int | None = None) -> None:
        self.problem, self.silent = problem, silent
        self.site = Site(problem)
        self.rounds: list[int] = []

    def ask(self, broadcast: Broadcast, memory: Memory) -> tuple[Replies, Memory]:
        config, size = self.problem.config, self.problem.policy.size
        round_ = Gathering(broadcast.round, config, size, self.problem.algorithm.reply, broadcast.batch)
        for agent in range(config.agents):
            if agent != self.silent:
                round_.take(agent, self.site(encode_broadcast(broadcast, agent, settings_digest(config))))
        return round_.replies(), memory

    def tell(self, round_: int, outcome: Outcome) -> None:
        self.rounds.append(round_)


@pytest.fixture(scope="module")
def sites(tiny: Callable[..., Problem]) -> InThisProcess:
    """The tiny federation over messages, with batches of two sizes."""
    return InThisProcess(tiny(batch=(4, 5)))


@pytest.mark.slow
def test_a_round_over_messages_is_a_simulated_round(sites: InThisProcess):
    problem = sites.problem
    near, server = Local(problem), Server(problem)
    here = there = first_state(problem, 3)
    for _ in range(4):
        (here, log), (there, far) = (advance(problem, s, f, server) for s, f in ((here, near), (there, sites)))
        for name in LOGGED:
            np.testing.assert_allclose(log[name], far[name], rtol=2e-4, atol=1e-5, err_msg=name)
        for name in ("status", "accepted", "rule", "centre"):
            np.testing.assert_array_equal(log[name], far[name], err_msg=name)
        np.testing.assert_allclose(here.theta, there.theta, rtol=1e-4, atol=1e-6)
    assert sites.rounds == [1, 2, 3, 4]


def test_an_agent_that_is_not_there_counts_as_faulty(sites: InThisProcess, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sites, "silent", 1)
    problem = sites.problem
    state, log = advance(problem, first_state(problem, 0), sites, Server(problem))
    assert [STATUSES[s] for s in log["status"]] == ["answered", "no answer", "answered", "answered"]
    assert not log["accepted"][1]
    assert np.isfinite(state.theta).all()
    assert log["train_return"] > 5  # over those that answered


def test_messages_hold_as_many_vectors_and_scalars_as_the_algorithm_declares():
    reply = decode_reply(RICH_REPLY, 3, SIZE, RICH)
    np.testing.assert_array_equal(reply.vectors["momentum"], np.ones(SIZE))
    assert reply.scalars == {"loss": 0.25}
    for values, schema in ((RICH_REPLY, SCHEMA), (REPLY, RICH)):
        with pytest.raises(MessageError, match="momentum"):
            decode_reply(values, 3, SIZE, schema)
    round_ = Gathering(3, CONFIG, SIZE, RICH, 4)
    round_.take(0, RICH_REPLY)
    round_.take(1, RICH_REPLY | {"scalar.loss": math.nan})
    round_.take(2, RICH_REPLY | {"vector.momentum": np.full(SIZE, np.inf, "<f4").tobytes()})
    round_.take(3, RICH_REPLY | {"vector.momentum": bytes(4)})
    assert round_.statuses == ["answered", "not finite", "not finite", "wrong length"]
    replies = round_.replies()
    np.testing.assert_array_equal(replies.vectors["momentum"][0], np.ones(SIZE))
    assert float(replies.scalars["loss"][0]) == 0.25


def test_a_broadcast_has_a_row_for_each_agent_where_the_algorithm_wants_that():
    key = jax.random.key(7, impl="threefry2x32")
    rows = jnp.arange(4.0 * SIZE).reshape(4, SIZE)
    broadcast = make_broadcast(key, 3, 4, theta=rows, anchor=jnp.ones(SIZE))
    for agent in range(4):
        values = encode_broadcast(broadcast, agent, settings_digest(CONFIG))
        _, arrived = decode_broadcast(values, CONFIG, SIZE, ("theta", "anchor"))
        np.testing.assert_array_equal(arrived.theta, rows[agent])
        np.testing.assert_array_equal(arrived.vectors["anchor"], np.ones(SIZE))
    with pytest.raises(MessageError, match="anchor"):
        decode_broadcast(values, CONFIG, SIZE)


def remembering(problem: Problem) -> Problem:
    """Agents that send the mean of their gradients so far."""

    def answer(cohort: Any, broadcast: Broadcast, memory: Memory) -> tuple[dict[str, Any], Memory]:
        gradient = cohort.gradient(broadcast.theta, cohort.sample(broadcast.theta))
        total = {"sum": memory["sum"] + gradient, "count": memory["count"] + 1}
        return {"gradient": total["sum"] / total["count"][:, None]}, total

    def init(agents: int, size: int) -> Memory:
        return {"sum": np.zeros((agents, size), np.float32), "count": np.zeros(agents, np.float32)}

    return problem._replace(algorithm=problem.algorithm._replace(agent=Agent(answer, init)))


@pytest.mark.slow
def test_a_site_remembers_as_the_agent_of_a_simulation_does_and_a_round_asked_for_again_counts_once(
    tiny: Callable[..., Problem],
):
    problem = remembering(tiny(byzantine=0, attack="random-noise", batch=(4, 4)))
    sites, near, server = InThisProcess(problem), Local(problem), Server(problem)
    here = there = first_state(problem, 3)
    for _ in range(3):
        (again, _), _ = (advance(problem, there, sites, server) for _ in range(2))
        (here, log), (there, far) = (advance(problem, s, f, server) for s, f in ((here, near), (there, sites)))
        np.testing.assert_array_equal(again.theta, there.theta)
        np.testing.assert_allclose(log["norms"], far["norms"], rtol=1e-4)
    assert float(here.agents["agents"]["count"][0]) == 3
    # And elsewhere between two messages.
    for agent, remembered in sites.site.memories.items():
        back = unpack_memory(pack_memory(remembered), problem)
        assert back.round == 3, agent
        jax.tree.map(np.testing.assert_array_equal, back, remembered)
    with pytest.raises(ConfigError, match="remembers is damaged"):
        unpack_memory(b"junk", problem)
    with pytest.raises(ConfigError, match="another algorithm"):
        unpack_memory(pack_memory(remembered), tiny())


@pytest.mark.parametrize("attack", ["fedpg-attack", "variance-attack"])
def test_sites_cannot_collude(attack: str, tiny: Callable[..., Problem]):
    with pytest.raises(ConfigError, match="sites do not see"):
        Site(tiny(attack=attack))
