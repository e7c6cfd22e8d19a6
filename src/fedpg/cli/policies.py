"""`fedpg evaluate` and `fedpg play`: what a trained policy does."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from fedpg.cli.arguments import check_positive, check_seed
from fedpg.errors import ConfigError
from fedpg.screen import make_console


@dataclass(frozen=True)
class Evaluate:
    """Evaluate the policy of a run: greedy episodes from fresh starts.

    Examples:
      fedpg evaluate runs/demo --episodes 100
      fedpg evaluate runs/poles --per-agent
    """

    run: Annotated[Path, tyro.conf.Positional]
    """The run folder, or a policy file."""
    episodes: int = 100
    """How many greedy episodes; with --per-agent, of each agent."""
    per_agent: bool = False
    """In the task of every agent, where they differ, and in tasks that none of them has."""
    task: str | None = None
    """The task, where the run does not know it by a name: `package.module:object`; or another one."""
    seed: int = 0
    """The seed of the episodes' starts."""


@dataclass(frozen=True)
class Play:
    """Render the policy of a run, acting greedily, to an animated GIF.

    Example:
      fedpg play runs/demo --out cartpole.gif
    """

    run: Annotated[Path, tyro.conf.Positional]
    """The run folder, or a policy file."""
    out: Path = Path("play.gif")
    """The file to write."""
    episodes: int = 1
    """How many episodes."""
    task: str | None = None
    """The task, where the run does not know it by a name: `package.module:object`; or another one."""
    seed: int = 0
    """The seed of the episodes' starts."""


def run_evaluate(command: Evaluate) -> int:
    import jax

    from fedpg.server import evaluate
    from fedpg.summary import each_table
    from fedpg.tasks import RoundKeys
    from fedpg.training.each import measure
    from fedpg.training.load import read_policy
    from fedpg.training.room import check_room, for_tests

    check_positive("episodes", command.episodes)
    check_seed(command.seed)
    problem, params = read_policy(command.run, command.task)
    check_room(for_tests(problem, command.episodes, "episodes"))
    theta = problem.policy.ravel(params)
    key = jax.random.key(command.seed)
    if command.per_agent:
        if not problem.task.varied:
            raise ConfigError(f"the agents of {command.run} do not differ: leave --per-agent out")
        each = measure(problem, theta, RoundKeys(key, key, 0), command.episodes)
        make_console().print(each_table(each))
        return 0
    returns = evaluate(problem, theta, RoundKeys(key, key, 0), command.episodes)[0]
    mean, std = float(returns.mean()), float(returns.std())
    error = std / command.episodes**0.5
    table = Table(title=f"{problem.task.id}: greedy policy of {command.run}")
    cells = {
        "episodes": f"{command.episodes}",
        "mean return": f"{mean:.1f} ± {error:.1f}",
        "std": f"{std:.1f}",
        "worst": f"{float(returns.min()):.1f}",
        "best": f"{float(returns.max()):.1f}",
    }
    for name in cells:
        table.add_column(name, justify="right")
    table.add_row(*cells.values())
    make_console().print(table)
    return 0


def run_play(command: Play) -> int:
    from fedpg.play import render
    from fedpg.training.load import read_policy

    check_positive("episodes", command.episodes)
    check_seed(command.seed)
    problem, params = read_policy(command.run, command.task)
    returns = render(problem, params, command.out, command.episodes, command.seed)
    print(f"{command.out}: {len(returns)} episode(s), return {', '.join(f'{r:.0f}' for r in returns)}")
    return 0
