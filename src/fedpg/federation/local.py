"""The federation in this process: all agents in a few compiled calls."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from fedpg.agents import answer, warm_up
from fedpg.problem import Broadcast, Outcome, Problem, Replies


class Local:
    """K agents in this process, the last ones Byzantine."""

    def __init__(self, problem: Problem, threads: int = 1, cancel: threading.Event | None = None) -> None:
        self.problem, self.cancel = problem, cancel
        self.parts = min(threads, problem.task.threads(problem.policy), problem.config.agents)
        self.threads = ThreadPoolExecutor(self.parts) if self.parts > 1 else None

    def ask(self, broadcast: Broadcast, memory: Any) -> tuple[Replies, Any]:
        """Lines 4 to 6 of Algorithm 1, for all agents."""
        agents = np.arange(self.problem.config.agents)
        got, memory = answer(self.problem, broadcast, memory, agents, self.threads, self.parts, self.cancel)
        vectors, scalars = ({name: got.sent[name] for name in names} for names in self.problem.algorithm.reply)
        return Replies(vectors, scalars, np.asarray(got.status), got.returns, got.steps, broadcast.batch), memory

    def warm_up(self, memory: Any) -> list[Callable[[], Any]]:
        """Calls that compile what rounds will need."""
        return warm_up(self.problem, memory, np.arange(self.problem.config.agents), self.parts)

    def tell(self, round_: int, outcome: Outcome) -> None:
        """They are in this process, and do not care."""
