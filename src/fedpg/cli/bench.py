"""`fedpg bench`."""

import sys
from dataclasses import dataclass

from fedpg.cli.arguments import check_positive
from fedpg.cli.federation import need_flower
from fedpg.errors import ConfigError
from fedpg.presets import renamed


@dataclass(frozen=True)
class Bench:
    """Measure the speed of training against the bare simulator and against Gymnasium.

    Examples:
      fedpg bench --quick
      fedpg bench --task HalfCheetah-v5
      fedpg bench --task LunarLander-v3 --trajectories 10000 --algorithm fedpg-br
      fedpg bench --federation
      fedpg bench --federation --sites 10 50 200 --size 6000
    """

    task: str = "CartPole-v1"
    """The task; for CartPole-v1 also how time grows with K."""
    algorithm: str = "natural"
    """The algorithm that trains."""
    quick: bool = False
    """CartPole-v1: only the first table, of training, the bare rollout and Gymnasium."""
    agents: int = 10
    """Other tasks, and --federation: K, the number of agents."""
    trajectories: int = 500
    """Other tasks: how far to train."""
    federation: bool = False
    """Instead: what a round costs over the network, with --agents warm sites and Flower's own SuperNodes."""
    sites: tuple[int, ...] = ()
    """With --federation, instead of those: one server under load, with so many thin sites that compute nothing."""
    size: int = 6000
    """With --sites: D, the number of the policy's parameters, about."""


def run_bench(command: Bench) -> int:
    from fedpg.bench import bench
    from fedpg.tasks import TASKS

    check_positive("agents", command.agents)
    check_positive("trajectories", command.trajectories)
    if command.federation:
        need_flower()
        if command.sites:
            from fedpg.bench.load import bench_load

            check_positive("size", command.size)
            bench_load(list(command.sites), command.size)
            return 0
        from fedpg.bench.federation import bench_federation

        bench_federation(command.agents)
        return 0
    if command.sites:
        raise ConfigError("--sites are those of a federation: give --federation too")
    task, note = renamed(command.task)
    if note:
        print(f"fedpg: {note}", file=sys.stderr)
    compiled = task in TASKS
    for name in ("agents", "trajectories") if compiled else ("quick",):
        if getattr(command, name) != getattr(Bench, name):
            only = "other tasks" if compiled else "CartPole-v1"
            raise ConfigError(f"--{name} is for {only}, and means nothing for {task}: leave it out")
    bench(task, command.algorithm, command.quick, command.trajectories, command.agents)
    return 0
