"""Whether a run fits into memory: asked before anything is compiled."""

from fedpg.errors import ConfigError
from fedpg.machine import memory
from fedpg.problem import Problem
from fedpg.server import SCORES

NUMBER = 4
"""Bytes of a float32."""
COPIES = 12.0
"""Of the agents' vectors, and of what these are compared with, that an aggregate takes at the least. Natural steps with
compass and 10,000 agents of 386 parameters were seen to take 54 kB an agent, twice as much as this says."""


def needed(problem: Problem) -> dict[str, float]:
    """The bytes that a round takes at the least, by what takes them; it may take several times as much."""
    c, task, size = problem.config, problem.task, problem.policy.size
    together = max(c.batch[1], min(c.agents * c.batch[1], task.most))  # episodes that are rolled out at a time
    # Outside JAX only what was simulated is touched, whatever is reserved.
    per_step = 2 if task.simulator else task.observations + 2
    rows = SCORES if problem.algorithm.needs else 4
    steps = float(together * problem.steps)
    return {
        f"the gradients of {c.agents:,} agents, {size:,} parameters each": COPIES * NUMBER * c.agents * (size + rows),
        f"the server's share, {rows} vectors of {size:,} parameters (hidden = {c.hidden})": float(NUMBER) * rows * size,
        f"{together:,} trajectories of up to {problem.steps:,} steps": per_step * NUMBER * steps,
        **for_tests(problem, c.test_episodes, "test_episodes"),
    }


def for_tests(problem: Problem, episodes: int, name: str) -> dict[str, float]:
    """The bytes of so many greedy episodes."""
    what = f"{episodes:,} greedy episodes ({name}) of up to {problem.test_steps:,} steps"
    return {what: float(NUMBER) * episodes * problem.test_steps}


def check_room(parts: dict[str, float]) -> None:
    """A ConfigError with the numbers, if these parts together are more than this machine has."""
    there, total = memory(), sum(parts.values())
    if total > there:
        largest = max(parts, key=lambda name: parts[name])
        raise ConfigError(
            f"this takes at least {_gigabytes(total)} of memory, and this machine has {_gigabytes(there)}. Most of it, "
            f"{_gigabytes(parts[largest])}, would be {largest}"
        )


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:,.0f} GB" if count >= 1e10 else f"{count / 1e9:.1f} GB"
