"""One round over a Flower grid: a broadcast to every site, their replies until the deadline, and a quorum."""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode

from fedpg.errors import ConfigError, Stopped
from fedpg.federation.messages import End, encode_broadcast, encode_end, settings_digest
from fedpg.problem import STATUSES, Broadcast, Memory, Outcome, Problem, Replies
from fedpg.sites.gathering import Gathering, check_quorum
from fedpg.sites.ledger import Ledger
from fedpg.training.progress import why_unused

RECORD = "fedpg"
"""The name of the one record in a message."""
GRACE = 5.0
"""Seconds that a message outlives its deadline, so that nobody asks for one that is gone."""
LONGEST = 30.0
"""Seconds between two attempts at a round that found no quorum, at the most."""
HANDOVER = 20.0
"""Seconds that the server waits, at the most, until the sites have taken the policy of a run that is over."""


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
        numbers: Sequence[int] | None = None,
        removed: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """`nodes` gives the sites that are connected: the row of the site in this run -> Flower's number of the node.

        After round `rounds` it asks to stop, if that is not 0. `numbers` are those of the agents, by row, if they are
        not 0, 1, ...; `removed` gives the rows whose sites are no members any more.
        """
        self.numbers, self.removed = numbers or range(problem.config.agents), removed
        self.grid, self.nodes, self.problem, self.ledger, self.stop = grid, nodes, problem, ledger, stop
        self.config = problem.config
        self.deadline, self.poll, self.rounds = deadline, poll, rounds
        self.quorum = check_quorum(quorum, self.config)
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
            for agent in self.removed():  # whoever was taken off meanwhile has no part in this round any more
                round_.refuse(agent, "no answer", "removed from the federation")
            if self.stop.is_set() and not (complete and round_.usable >= self.quorum):
                break  # resumed, the run does this round as if it had not been interrupted
            if round_.usable >= self.quorum:
                return round_.replies(), memory
            self.ledger.failed(round_, self.quorum)
            self._pause(min(LONGEST, 2.0 ** min(attempt - 1, 10)), nodes)
        raise Stopped

    def _pause(self, seconds: float, nodes: Mapping[int, int]) -> None:
        """Until there is reason to believe that another attempt goes better: other sites, or some time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.stop.is_set() and self.nodes() == nodes:
            self.stop.wait(0.1)

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

    def finish(self, end: End, told: Collection[str], patience: float) -> list[str]:
        """Hand the policy of a run that is over to the sites that are connected, and wait so many seconds for those
        that are not; `told` have it already. The names of those that have not got it in the end."""
        rows = {row: site.name for row, site in enumerate(self.ledger.rows)}
        lacking = {row for row, name in rows.items() if name not in told} - set(self.removed())
        until = time.monotonic() + patience
        while lacking and not self.stop.is_set():
            there = {row: node for row, node in self.nodes().items() if row in lacking}
            contents = {row: encode_end(end, self.numbers[row], self.settings) for row in there}
            waiting = self._push(contents, there, end.rounds, HANDOVER)
            limit = time.monotonic() + HANDOVER
            while waiting and not self.stop.is_set() and time.monotonic() < limit:
                for reply in self.grid.pull_messages(list(waiting)):
                    row = waiting.pop(reply.metadata.reply_to_message_id, None)
                    if row is not None and not reply.has_error():
                        lacking.discard(row)
                        self.ledger.delivered(row, end.rounds)
                self.stop.wait(self.poll)
            if time.monotonic() > until:
                break
            self.stop.wait(0.2)
        return [rows[row] for row in sorted(lacking)]

    def _push(
        self, contents: Mapping[int, dict[str, Any]], nodes: Mapping[int, int], round_: int, seconds: float
    ) -> dict[str, int]:
        """Send each row's values to its node; message -> row, of those that were taken."""
        messages = [
            Message(
                RecordDict({RECORD: ConfigRecord(values)}),
                dst_node_id=nodes[row],
                message_type="train",
                ttl=seconds + GRACE,
                group_id=str(round_),
            )
            for row, values in contents.items()
        ]
        ids = list(self.grid.push_messages(messages))
        return {id_: row for id_, row in zip(ids, contents, strict=True) if id_}

    def _wait_for_quorum(self, round_: int) -> Mapping[int, int] | None:
        """The sites that are connected, if they are enough; a server's first round waits for all a while longer."""
        said: bool | None = None
        enough_since: float | None = None
        while not self.stop.is_set():
            nodes, members = self.nodes(), self.config.agents - len(self.removed())
            if members < self.quorum:
                raise ConfigError(
                    f"a round needs {self.quorum} replies, and only {members} of the {self.config.agents} sites that "
                    "this run began with are left: begin a new run from its policy, with the sites of now: fedpg serve "
                    "... --out NEW --start-from OLD"
                )
            if len(nodes) >= self.quorum:
                enough_since = enough_since or time.monotonic()
                late = time.monotonic() - enough_since > self.deadline
                if self.round is not None or late or len(nodes) == members:
                    return nodes
            enough = len(nodes) >= self.quorum
            if enough is not said:
                self.ledger.waiting(round_, len(nodes), self.quorum, self.deadline)
                said = enough
            self.stop.wait(0.1)
        return None

    def _collect(self, round_: Gathering, broadcast: Broadcast, nodes: Mapping[int, int]) -> bool:
        """Ask, and take the replies until the deadline or `stop`; whether all who were asked have replied."""
        contents = {row: encode_broadcast(broadcast, self.numbers[row], self.settings, row) for row in nodes}
        waiting = self._push(contents, nodes, round_.number, self.deadline)
        until = round_.began + self.deadline
        while waiting and not self.stop.is_set() and time.monotonic() < until:
            for reply in self.grid.pull_messages(list(waiting)):
                agent = waiting.pop(reply.metadata.reply_to_message_id, None)
                if agent is not None:
                    take_reply(round_, agent, reply)
                    if not reply.has_error() or status_of(reply.error.code) != "no answer":  # nothing came: it is gone
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
