"""The federation in this process: all agents in a few compiled calls."""

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from fedpg.agents import Target, Watch, answer, warm_up
from fedpg.problem import Broadcast, Memory, Outcome, Problem, Replies, check_broadcast
from fedpg.server import Server


class Local:
    """K agents in this process, the last ones Byzantine."""

    def __init__(self, problem: Problem, threads: int = 1, cancel: threading.Event | None = None) -> None:
        self.problem, self.cancel = problem, cancel
        self.parts = min(threads, problem.task.threads(problem.policy), problem.config.agents)
        self.threads = ThreadPoolExecutor(self.parts) if self.parts > 1 else None
        self.watch: Watch | None = None

    def watching(self, server: Server, memory: Memory) -> "Local":
        """The same agents, whose attackers try their lies on the server's aggregator as it remembers in this round."""
        watchful = copy.copy(self)
        watchful.watch = lambda broadcast: Target(self.problem.aggregator, memory, server.contribution(broadcast))
        return watchful

    def ask(self, broadcast: Broadcast, memory: Any) -> tuple[Replies, Any]:
        """Lines 4 to 6 of Algorithm 1, for all agents."""
        agents = np.arange(self.problem.config.agents)
        check_broadcast(broadcast, self.problem.algorithm.broadcast, len(agents), self.problem.policy.size)
        got, memory = answer(
            self.problem, broadcast, memory, agents, self.threads, self.parts, self.cancel, watch=self.watch
        )
        vectors, scalars = ({name: got.sent[name] for name in names} for names in self.problem.algorithm.reply)
        return Replies(vectors, scalars, np.asarray(got.status), got.returns, got.steps, broadcast.batch), memory

    def warm_up(self, memory: Any) -> list[Callable[[], Any]]:
        """Calls that compile what rounds will need."""
        p = self.problem

        def watch(broadcast: Broadcast) -> Target:
            nothing = p.aggregator.init(p.config.agents, p.policy.size)
            return Target(p.aggregator, nothing, Server(p).contribution(broadcast, wanted=False))

        return warm_up(p, memory, np.arange(p.config.agents), self.parts, watch)

    def tell(self, round_: int, outcome: Outcome) -> None:
        """They are in this process, and do not care."""
