"""`fedpg adapt`: from the common policy to one of a site's own."""

import dataclasses
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from fedpg.cli.arguments import check_positive, check_seed, on_signal
from fedpg.cli.policies import settings_of
from fedpg.config import Config
from fedpg.errors import ConfigError
from fedpg.presets import defaults
from fedpg.screen import make_console
from fedpg.storage import StorageError


@dataclass(frozen=True)
class Adapt:
    """Go on alone from the policy of a run, in the task of one agent, and see what that gains.

    Examples:
      fedpg adapt runs/poles --agent 3
      fedpg adapt runs/demo --task my_plant:make --trajectories 200
    """

    run: Annotated[Path, tyro.conf.Positional]
    """The run folder, a policy file, or an exported policy."""
    agent: int | None = None
    """Whose task, of a run whose agents differ."""
    task: str | None = None
    """Or a task of your own, with the observations and actions of the run's."""
    trajectories: int = 100
    """How many more trajectories are sampled there."""
    episodes: int = 100
    """Greedy episodes before and after."""
    seed: int = 0
    """The seed of what is sampled."""
    out: Path | None = None
    """Where the run is written; by default a new folder in `runs`."""


def going_on(common: Config, task: str, vary: tuple[str, ...], trajectories: int) -> Config:
    """One agent alone in a task of its own, by natural steps, with the policy and the episodes of a common run."""
    same = (
        *("hidden", "activation", "categorical", "gaussian", "policy"),
        *("horizon", "test_horizon", "test_episodes", "batch", "discount"),
    )
    settings = {name: getattr(common, name) for name in same} | {"vary": vary, "trajectories": trajectories}
    return dataclasses.replace(defaults(common.task, "best", agents=1), task=task, **settings)


def own_task(run: Path, common: Config, agent: int | None) -> tuple[str, tuple[str, ...]]:
    """(the task of one agent of a run, and the words that say what differs in it).

    By what the run has written of its agents' tasks: a function that gave them may have changed, or not be here.
    """
    from fedpg.arena.players import as_words, own_words
    from fedpg.tasks import make_task
    from fedpg.tasks.differences import differences
    from fedpg.training.each import FILE, read_tasks

    if agent is None or not 0 <= agent < common.agents:
        raise ConfigError(f"agent must be from 0 to {common.agents - 1}, not {agent}")
    instead = f"give --task, the task of agent {agent} as package.module:factory"
    try:
        factories = make_task(common.task).varied.get("factory")
    except ConfigError as error:
        raise ConfigError(f"{common.task!r}, the task of {run}, cannot be made by this name: {instead}") from error
    task = common.task if factories is None else name_of(factories[agent])
    if not task:
        raise ConfigError(f"the agents of {run} have a factory each, and that of agent {agent} has no name: {instead}")
    folder = run if run.is_dir() else run.parent
    written = {name: values for name, values in read_tasks(folder).items() if name != "factory"}
    if any(len(values) != common.agents for values in written.values()):
        raise StorageError(f"{folder / FILE} is damaged: it is not about {common.agents} agents")
    if not (written or common.vary or factories is not None):
        raise ConfigError(f"the agents of {run} do not differ: give --task, the task to adapt to")
    try:
        words = as_words(agent, written) if written else own_words(common, agent)
        differences(make_task(task), words, 1, 0)  # what was passed in Python may not be had by its name
    except ConfigError as error:
        raise ConfigError(f"{str(error).rstrip('.')}. Instead of --agent, {instead}") from error
    return task, words


def name_of(factory: Any) -> str:
    """`package.module:name`, if that is where it can be found; else nothing."""
    from fedpg.pieces import import_object

    name = f"{getattr(factory, '__module__', '')}:{getattr(factory, '__qualname__', '')}"
    try:
        return name if import_object("task", name) is factory else ""
    except ConfigError:
        return ""


def run_adapt(command: Adapt) -> int:
    import jax

    from fedpg.assembly import make_problem
    from fedpg.export import is_exported, read_exported
    from fedpg.server import evaluate
    from fedpg.tasks import RoundKeys
    from fedpg.training import train_seeds
    from fedpg.training.folders import new_folder
    from fedpg.training.load import refuse_several
    from fedpg.training.progress import make_reporter
    from fedpg.training.start import read_start

    for name in ("trajectories", "episodes"):
        check_positive(name, getattr(command, name))
    check_seed(command.seed)
    if command.out is not None and (command.out / "config.json").exists():
        raise StorageError(f"{command.out} exists already, and adapt begins anew each time: give another --out")
    refuse_several(command.run)
    common = settings_of(command.run)
    if (command.agent is None) == (command.task is None):
        which = "not both" if command.task else "one of them"
        raise ConfigError(f"adapt to whom? Give --agent, of a run whose agents differ, or --task: {which}")
    if common.policy.startswith("custom:"):
        raise ConfigError(
            f"the network of {command.run} was passed in Python ({common.policy.removeprefix('custom:')}) and has no "
            f"name here: go on there, with fedpg.train(task, policy=..., agents=1, start={str(command.run)!r}), or "
            "train with --policy package.module:object"
        )
    task, words = own_task(command.run, common, command.agent) if command.task is None else (command.task, ())
    config = going_on(common, task, words, command.trajectories)
    problem = make_problem(config)
    common_policy: Any = read_exported(command.run)[1] if is_exported(command.run) else command.run
    start = read_start(common_policy, problem)
    folder = command.out or new_folder(config)
    stop = threading.Event()
    with on_signal(stop, "stopping after this round"):
        run = train_seeds(problem, [command.seed], folder, False, make_reporter(config), stop, start=start)[0]
    key = jax.random.key(command.seed)
    table = Table(title=f"{problem.task.id}: greedy return of {command.episodes} episodes")
    for name in ("policy", "mean", "standard error"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    means = []
    for name, theta in (("common", start), ("adapted", problem.policy.ravel(run.policy.params))):
        returns = evaluate(problem, theta, RoundKeys(key, key, 0), command.episodes)[0]
        table.add_row(name, f"{returns.mean():.1f}", f"{returns.std() / command.episodes**0.5:.1f}")
        means.append(returns.mean())
    make_console().print(table)
    if means[1] <= means[0]:
        print("Nothing was gained: keep the common policy, or go on for longer (--trajectories)")
    print(f"The adapted policy is in {folder}")
    return 0 if run.finished else 130
