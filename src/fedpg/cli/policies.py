"""`fedpg evaluate`, `fedpg play` and `fedpg export`: what a trained policy does, and how to take it away."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from rich.table import Table

from fedpg.cli.arguments import check_positive, check_seed
from fedpg.config import Config
from fedpg.errors import ConfigError
from fedpg.extras import need
from fedpg.screen import make_console

TOGETHER = 1000
"""Episodes that are evaluated at a time."""


@dataclass(frozen=True)
class Evaluate:
    """Evaluate the policy of a run: greedy episodes from fresh starts.

    Examples:
      fedpg evaluate runs/demo --episodes 100
      fedpg evaluate runs/poles --per-agent
    """

    run: Annotated[Path, tyro.conf.Positional]
    """The run folder, a policy file, or an exported policy."""
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
    """The run folder, a policy file, or an exported policy."""
    out: Path = Path("play.gif")
    """The file to write."""
    episodes: int = 1
    """How many episodes."""
    task: str | None = None
    """The task, where the run does not know it by a name: `package.module:object`; or another one."""
    seed: int = 0
    """The seed of the episodes' starts."""


@dataclass(frozen=True)
class Export:
    """Write the policy of a run so that it runs without fedpg and without JAX, with a model card.

    Examples:
      fedpg export runs/demo --to numpy
      fedpg export runs/demo --to onnx --out policy
    """

    run: Annotated[Path, tyro.conf.Positional]
    """The run folder, or a policy file in one."""
    to: Literal["numpy", "onnx"] = "numpy"
    """policy.py and policy.npz, which need NumPy only; or policy.onnx."""
    out: Path | None = None
    """The folder to write; by default exported-numpy or exported-onnx in the run folder."""
    episodes: int = 100
    """Greedy episodes that the return on the card is of; 0: do not measure."""
    task: str | None = None
    """The task, where the run does not know it by a name: `package.module:object`."""
    seed: int = 0
    """The seed of the episodes' starts."""


def run_export(command: Export) -> int:
    from fedpg.export import export_policy
    from fedpg.export.network import network_of
    from fedpg.training.checkpoint import policy_config
    from fedpg.training.each import read_tasks
    from fedpg.training.room import check_room, for_tests

    if command.episodes < 0:
        raise ConfigError(f"episodes must be 0 or more, not {command.episodes}")
    check_seed(command.seed)
    if command.to == "onnx":
        need("onnx")
    problem, params = policy_of(command.run, command.task)
    network_of(problem, params)  # what has none is refused before it is measured
    check_room(for_tests(problem, command.episodes, "episodes"))
    folder = command.run if command.run.is_dir() else command.run.parent
    config = policy_config(folder / "policy.safetensors" if command.run.is_dir() else command.run)
    agents = read_tasks(folder) if command.task is None else {}
    if command.task is not None:
        config = replace(config, task=command.task, vary=problem.config.vary)
    returns = greedy_returns(problem, params, command.episodes, command.seed) if command.episodes else np.zeros(0)
    out = command.out or folder / f"exported-{command.to}"
    for path in export_policy(problem, params, config, command.to, out, folder, returns, agents):
        print(path)
    return 0


def greedy_returns(problem: Any, params: Any, episodes: int, seed: int) -> np.ndarray:
    """The returns of greedy episodes from fresh starts; of many, some at a time, and with the time left."""
    import jax
    from rich.progress import track

    from fedpg.server import evaluate
    from fedpg.tasks import RoundKeys

    first, together = jax.random.key(seed), min(episodes, TOGETHER)
    keys = [first, *(jax.random.fold_in(first, i) for i in range(1, -(-episodes // together)))]
    theta = problem.policy.ravel(params)
    shown = track(keys, "evaluating", console=make_console(), transient=True, disable=len(keys) == 1)
    found = [evaluate(problem, theta, RoundKeys(key, key, 0), together)[0] for key in shown]
    return np.concatenate(found)[:episodes]


def policy_of(path: Path, task: str | None = None, per_agent: bool = False) -> tuple[Any, Any]:
    """The problem and the parameters of a run folder, a policy file or an exported policy."""
    from fedpg.export import is_exported, load_exported
    from fedpg.training.load import read_policy

    read = load_exported if is_exported(path) else read_policy
    problem, params = read(path, task, per_agent)
    if (vary := settings_of(path).vary) and not problem.config.vary:
        what = f"what the agents of {path} differ in ({' '.join(vary)}) is left out"
        print(f"fedpg: {what}: it cannot be had of {problem.task.id} here", file=sys.stderr)
    return problem, params


def settings_of(path: Path) -> Config:
    """The settings that the policy there was trained with."""
    from fedpg.export import is_exported, read_exported
    from fedpg.training.checkpoint import policy_config
    from fedpg.training.load import policy_file

    return read_exported(path)[0] if is_exported(path) else policy_config(policy_file(path))


def run_evaluate(command: Evaluate) -> int:
    from fedpg.training.room import check_room, for_tests

    check_positive("episodes", command.episodes)
    check_seed(command.seed)
    problem, params = policy_of(command.run, command.task, command.per_agent)
    check_room(for_tests(problem, command.episodes, "episodes"))
    if command.per_agent:
        return print_each(command, problem, params)
    returns = greedy_returns(problem, params, command.episodes, command.seed)
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


def print_each(command: Evaluate, problem: Any, params: Any) -> int:
    """The returns in the task of every agent."""
    import jax

    from fedpg.summary import each_table, is_of_sites
    from fedpg.tasks import RoundKeys
    from fedpg.training.each import FILE, check_tasks, measure, read_tasks

    folder, task = command.run if command.run.is_dir() else command.run.parent, problem.task
    if command.task is None or not task.varied:
        lacking = read_tasks(folder).keys() - task.varied.keys()
        if lacking:
            raise ConfigError(
                f"the agents of {command.run} differ in what was passed in Python, or is not of {task.id} "
                f"({', '.join(sorted(lacking))}): leave --per-agent out. What a run's own policy is worth to each is "
                f"in its {FILE}"
            )
        if not task.varied:
            raise ConfigError(f"the agents of {command.run} do not differ: leave --per-agent out")
        check_tasks(folder, problem)  # a function that gives them may have changed since
    key = jax.random.key(command.seed)
    each = measure(problem, problem.policy.ravel(params), RoundKeys(key, key, 0), command.episodes)
    make_console().print(each_table(each, settings_of(command.run).byzantine, is_of_sites(folder)))
    return 0


def run_play(command: Play) -> int:
    need("PIL")
    from fedpg.play import render

    check_positive("episodes", command.episodes)
    check_seed(command.seed)
    problem, params = policy_of(command.run, command.task)
    returns = render(problem, params, command.out, command.episodes, command.seed)
    print(f"{command.out}: {len(returns)} episode(s), return {', '.join(f'{r:.0f}' for r in returns)}")
    if problem.task.varied:
        print("The agents' tasks differ; what is drawn here is the nominal one")
    return 0
