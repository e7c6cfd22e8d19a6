"""One round over a Flower grid: a broadcast to every site, their replies until the deadline, and a quorum."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode

from fedpg.agents import STATUSES, Answers, Broadcast, Replies
from fedpg.algorithms import Log
from fedpg.config import Config, ConfigError
from fedpg.federation.messages import MessageError, check_sums, decode_reply, encode_broadcast, settings_digest
from fedpg.flower.ledger import Ledger

RECORD = "fedpg"
"""The name of the one record in a message."""
GRACE = 5.0
"""Seconds that a message outlives its deadline, so that nobody asks for one that is gone."""


class Grid(Protocol):
    """What is needed of Flower's grid."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...
    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


class Round:
    """The replies to one broadcast, as they come in."""

    def __init__(self, number: int, config: Config, size: int) -> None:
        self.number, self.config, self.size = number, config, size
        self.heard: set[int] = set()
        self.reasons: dict[int, str] = {}
        self.seconds: dict[int, float] = {}
        self.began = time.monotonic()
        agents = config.agents
        self._gradients = np.zeros((agents, size), np.float32)
        self._lengths, self._faults, self._steps = np.zeros((3, agents), np.int32)
        self._returns = np.zeros(agents, np.float32)

    def take(self, agent: int, values: Mapping[str, Any]) -> None:
        """The reply of an agent, usable or not."""
        try:
            reply = decode_reply(values, self.number, self.size)
            check_sums(reply, self.config)
        except MessageError as error:
            self.refuse(agent, STATUSES[error.status], str(error))
            return
        self._gradients[agent], self._lengths[agent] = reply.gradient, self.size
        self._returns[agent], self._steps[agent] = reply.mean_return, reply.steps
        self.heard.add(agent)
        self.seconds[agent] = reply.seconds
        if not np.isfinite(reply.gradient).all():  # the status says so too; this is for people
            self.reasons[agent] = "a gradient with entries that are not finite"

    def refuse(self, agent: int, status: str, reason: str) -> None:
        """What an agent sent cannot be used."""
        self._faults[agent] = STATUSES.index(status)
        self.heard.add(agent)
        self.reasons[agent] = "".join(c if c.isprintable() else "?" for c in reason[:200])  # it goes to a terminal

    @property
    def replies(self) -> Replies:
        """For the filter."""
        return Replies(jnp.asarray(self._gradients), jnp.asarray(self._lengths), jnp.asarray(self._faults))

    @property
    def statuses(self) -> list[str]:
        """Of all K agents."""
        return [STATUSES[s] for s in np.asarray(self.replies.status)]

    @property
    def usable(self) -> int:
        """How many replies can go to the filter."""
        return self.statuses.count("answered")

    def answers(self) -> Answers:
        """For the round. Who did not answer counts in the mean training return as the mean of those who did."""
        answered = np.array([status == "answered" for status in self.statuses])
        known = answered & (np.arange(len(answered)) < self.config.agents - self.config.byzantine)
        filled = np.where(answered, self._returns, self._returns[known].mean() if known.any() else 0.0)
        return Answers(self.replies, jnp.asarray(filled, jnp.float32), jnp.asarray(self._steps))


class Exchange:
    """The sites of a federation, behind a grid."""

    def __init__(
        self,
        grid: Grid,
        nodes: Callable[[], Mapping[int, int]],
        config: Config,
        ledger: Ledger,
        stop: threading.Event,
        deadline: float = 60.0,
        quorum: int = 0,
        poll: float = 0.02,
        rounds: int = 0,
    ) -> None:
        """`nodes` gives the sites that are connected: the agent's number -> Flower's number of the node.

        After round `rounds` it asks to stop, if that is not 0.
        """
        self.grid, self.nodes, self.config, self.ledger, self.stop = grid, nodes, config, ledger, stop
        self.deadline, self.poll, self.rounds = deadline, poll, rounds
        self.quorum = check_quorum(quorum, config.agents)
        self.settings = settings_digest(config)
        self.round: Round | None = None

    def ask(self, broadcast: Broadcast) -> Answers | None:
        """Broadcast until a quorum has answered; a round without one changes nothing, and is recorded."""
        attempt = 0
        while (nodes := self._wait_for_quorum(int(broadcast.round))) is not None:
            attempt += 1
            round_ = self.round = Round(int(broadcast.round), self.config, len(broadcast.theta))
            self.ledger.begin(round_, attempt, list(nodes))
            complete = self._collect(round_, broadcast, nodes)
            if self.stop.is_set() and not (complete and round_.usable >= self.quorum):
                return None  # resumed, the run does this round as if it had not been interrupted
            if round_.usable >= self.quorum:
                return round_.answers()
            self.ledger.failed(round_, self.quorum)
            self.stop.wait(1.0)
        return None

    def tell(self, log: Log) -> None:
        """What came of the replies."""
        assert self.round is not None
        self.ledger.decided(self.round, np.asarray(log.accepted), np.asarray(log.status))
        if self.rounds and int(log.round) >= self.rounds:
            self.stop.set()

    def _wait_for_quorum(self, round_: int) -> Mapping[int, int] | None:
        """The sites that are connected, if they are enough; a server's first round waits for all a while longer."""
        said: bool | None = None
        enough_since: float | None = None
        while not self.stop.is_set():
            nodes = self.nodes()
            if len(nodes) >= self.quorum:
                enough_since = enough_since or time.monotonic()
                late = time.monotonic() - enough_since > self.deadline
                if self.round is not None or late or len(nodes) == self.config.agents:
                    return nodes
            enough = len(nodes) >= self.quorum
            if enough is not said:
                self.ledger.waiting(round_, len(nodes), self.quorum, self.deadline)
                said = enough
            self.stop.wait(0.1)
        return None

    def _collect(self, round_: Round, broadcast: Broadcast, nodes: Mapping[int, int]) -> bool:
        """Ask, and take the replies until the deadline or `stop`; whether all who were asked have replied."""
        messages = [
            Message(
                RecordDict({RECORD: ConfigRecord(encode_broadcast(broadcast, agent, self.settings))}),
                dst_node_id=node,
                message_type="train",
                ttl=self.deadline + GRACE,
                group_id=str(round_.number),
            )
            for agent, node in nodes.items()
        ]
        ids = list(self.grid.push_messages(messages))
        waiting = {id_: agent for id_, agent in zip(ids, nodes, strict=True) if id_}
        until = round_.began + self.deadline
        while waiting and not self.stop.is_set() and time.monotonic() < until:
            for reply in self.grid.pull_messages(list(waiting)):
                agent = waiting.pop(reply.metadata.reply_to_message_id, None)
                if agent is not None:
                    take_reply(round_, agent, reply)
                    self.ledger.heard(round_, agent)
            if waiting:
                self.stop.wait(self.poll)
        return not waiting


def take_reply(round_: Round, agent: int, reply: Message) -> None:
    """Into the round with a reply, whatever it holds."""
    if reply.has_error():
        round_.refuse(agent, status_of(reply.error.code), reply.error.reason or "no reason given")
        return
    records = dict(reply.content)
    record = records.get(RECORD)
    if set(records) != {RECORD} or not isinstance(record, ConfigRecord):
        round_.refuse(agent, "wrong type", "a reply with other records than the one agreed on")
        return
    round_.take(agent, dict(record))


FAULTS = 1000
"""Our codes of errors among Flower's: this, and the index into STATUSES."""


def code_of(status: str) -> int:
    """The code of an error that stands for a reply of that status."""
    return FAULTS + STATUSES.index(status)


def status_of(code: int) -> str:
    """What an error says of a reply."""
    if FAULTS < code < FAULTS + len(STATUSES):
        return STATUSES[code - FAULTS]
    return "no answer" if code in (ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE) else "failed at the site"


def check_quorum(quorum: int, agents: int) -> int:
    """The replies that a round needs: as given, or (0) more than half of the agents, as every rule of the filter."""
    if not 0 <= quorum <= agents:
        raise ConfigError(f"quorum = {quorum} cannot be: there are {agents} sites; 0 stands for more than half of them")
    return quorum or agents // 2 + 1
