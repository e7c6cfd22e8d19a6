"""Speed, measured in one run."""

from fedpg.agents import make_problem
from fedpg.bench.compiled import bench_compiled
from fedpg.bench.pool import bench_pool
from fedpg.config import make_config
from fedpg.environments import Pool


def bench(task: str, quick: bool, trajectories: int, agents: int) -> None:
    """Print the tables for a task."""
    problem = make_problem(make_config(task, agents=agents, trajectories=trajectories))
    if isinstance(problem.environment, Pool):
        bench_pool(problem, problem.environment)
    else:
        bench_compiled(quick)


__all__ = ["bench"]
