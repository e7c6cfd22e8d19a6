"""One round over a Flower grid: a broadcast to every site, their replies until the deadline, and a quorum."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode

from fedpg.errors import Stopped
from fedpg.federation.messages import encode_broadcast, settings_digest
from fedpg.problem import STATUSES, Broadcast, Memory, Outcome, Problem, Replies
from fedpg.sites.gathering import Gathering, check_quorum
from fedpg.sites.ledger import Ledger
from fedpg.training.progress import why_unused

RECORD = "fedpg"
"""The name of the one record in a message."""
GRACE = 5.0
"""Seconds that a message outlives its deadline, so that nobody asks for one that is gone."""


class Grid(Protocol):
    """What is needed of Flower's grid."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...
    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


class Exchange:
    """The sites of a federation, behind a grid."""

    def __init__(
        self,
        grid: Grid,
        nodes: Callable[[], Mapping[int, int]],
        problem: Problem,
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
        self.grid, self.nodes, self.problem, self.ledger, self.stop = grid, nodes, problem, ledger, stop
        self.config = problem.config
        self.deadline, self.poll, self.rounds = deadline, poll, rounds
        self.quorum = check_quorum(quorum, self.config.agents)
        self.settings = settings_digest(self.config)
        self.round: Gathering | None = None

    def ask(self, broadcast: Broadcast, memory: Memory) -> tuple[Replies, Memory]:
        """Broadcast until a quorum has answered; a round without one changes nothing, and is recorded.

        What the agents remember is theirs; Stopped if it is asked to stop before enough of them answered.
        """
        attempt = 0
        while (nodes := self._wait_for_quorum(broadcast.round)) is not None:
            attempt += 1
            size, algorithm = self.problem.policy.size, self.problem.algorithm
            round_ = self.round = Gathering(
                broadcast.round, self.config, size, algorithm.reply, broadcast.batch, algorithm.batches
            )
            self.ledger.begin(round_, attempt, list(nodes))
            complete = self._collect(round_, broadcast, nodes)
            if self.stop.is_set() and not (complete and round_.usable >= self.quorum):
                break  # resumed, the run does this round as if it had not been interrupted
            if round_.usable >= self.quorum:
                return round_.replies(), memory
            self.ledger.failed(round_, self.quorum)
            self.stop.wait(1.0)
        raise Stopped

    def warm_up(self, memory: Memory) -> list[Callable[[], Any]]:
        """Nothing: the sites compile for themselves."""
        return []

    def tell(self, round_: int, outcome: Outcome) -> None:
        """What came of the replies."""
        assert self.round is not None
        unused = "" if outcome.verdict.somebody else why_unused(self.config)
        self.ledger.decided(self.round, outcome.verdict, outcome.replies.status, unused)
        if self.rounds and round_ >= self.rounds:
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

    def _collect(self, round_: Gathering, broadcast: Broadcast, nodes: Mapping[int, int]) -> bool:
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


def take_reply(round_: Gathering, agent: int, reply: Message) -> None:
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
