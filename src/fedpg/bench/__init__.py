"""Speed, measured in one run."""

from fedpg.assembly import make_problem
from fedpg.bench.compiled import bench_compiled
from fedpg.bench.pool import bench_pool
from fedpg.presets import make_config


def bench(task: str, algorithm: str, quick: bool, trajectories: int, agents: int) -> None:
    """Print the tables for a task."""
    problem = make_problem(make_config(task, algorithm=algorithm, agents=agents, trajectories=trajectories))
    if problem.task.simulator:
        bench_pool(problem)
    else:
        bench_compiled(algorithm, quick)


__all__ = ["bench"]
