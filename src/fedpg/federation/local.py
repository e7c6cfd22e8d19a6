"""The federation in this process: all agents in one compiled batch."""

from collections.abc import Callable

import jax.numpy as jnp

from fedpg.agents import Answers, Broadcast, Problem, answer
from fedpg.environments import Lanes
from fedpg.trajectories import Trajectories

Federation = Callable[[Broadcast, Lanes], tuple[Answers, Trajectories]]
"""(broadcast, the server's own episodes) -> (what the K agents answer, the server's own trajectories)."""


def local_federation(problem: Problem) -> Federation:
    """K agents in this process, the last ones Byzantine."""
    agents = jnp.arange(problem.config.agents)
    byzantine = agents >= problem.config.agents - problem.config.byzantine

    def federation(broadcast: Broadcast, own: Lanes) -> tuple[Answers, Trajectories]:
        answers, trajectories = answer(problem, broadcast, agents, byzantine, own)
        assert trajectories is not None
        return answers, trajectories

    return federation
