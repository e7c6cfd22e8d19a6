"""The command line: the typed settings are its options."""

import argparse
import dataclasses
import inspect
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from fedpg.config import Config, ConfigError, SimulationError, defaults, refuse_idle_attack, renamed, unknown, validate
from fedpg.storage import StorageError, read_config

USAGE = """\
fedpg: several agents learn one policy together, while some of them fail or lie.

  fedpg train       train a policy by a federation of agents
  fedpg evaluate    the return of a trained policy, greedy
  fedpg play        render a trained policy to a GIF
  fedpg bench       the speed of this machine: training against the bare simulator

Examples:
  fedpg train                                                  ten honest agents learn CartPole
  fedpg train --byzantine 3 --attack sign-flipping             three of them lie
  fedpg train --task HalfCheetah-v5                            any Gymnasium task, or your own module:factory
  fedpg train --algorithm gpomdp --byzantine 3 --attack sign-flipping    what happens without a filter
  fedpg train --seeds 0:10 --out runs/ten                      ten seeds, spread over the cores
  fedpg train --out runs/ten --resume                          go on after an interruption
  fedpg evaluate runs/ten/seed-0 --episodes 100
  fedpg play runs/ten/seed-0 --out cartpole.gif
  fedpg COMMAND --help                                         all options of a command, with their defaults
"""


MAX_SEEDS = 10_000


@dataclass(frozen=True)
class Train:
    """Train a policy by a federation of agents in this process.

    Examples:
      fedpg train --byzantine 3 --attack sign-flipping
      fedpg train --preset released --seeds 0:10 --out runs/released
      fedpg train --task LunarLander-v3
      fedpg train --task my_package.my_module:make_environment
      fedpg train --attack my_package.my_module:my_attack --byzantine 3
    """

    config: Annotated[Config, tyro.conf.arg(name="")]
    seeds: str = "0"
    """One seed (`3`), several (`0,1,5`), or a range without its end (`0:10`)."""
    out: Path | None = None
    """The run folder; by default a new one under `runs/`."""
    resume: bool = False
    """Go on with the run in `--out` from its checkpoint, or start it if there is none."""
    quiet: bool = False
    """No progress, only the summary."""


@dataclass(frozen=True)
class Evaluate:
    """Evaluate the policy of a run: greedy episodes from fresh starts.

    Example:
      fedpg evaluate runs/demo --episodes 100
    """

    run: Annotated[Path, tyro.conf.Positional]
    """The run folder, or a policy file."""
    episodes: int = 100
    """How many greedy episodes."""
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
    seed: int = 0
    """The seed of the episodes' starts."""


@dataclass(frozen=True)
class Bench:
    """Measure the speed of training against the bare simulator and against Gymnasium.

    Examples:
      fedpg bench --quick
      fedpg bench --task HalfCheetah-v5
      fedpg bench --task LunarLander-v3 --trajectories 10000
    """

    task: str = "CartPole-v1"
    """The task; for CartPole-v1 also how time grows with K."""
    quick: bool = False
    """CartPole-v1: only the first table, of training, the bare rollout and Gymnasium."""
    agents: int = 10
    """Other tasks: K, the number of agents."""
    trajectories: int = 500
    """Other tasks: how far to train."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The `fedpg` command; returns its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if "" not in sys.path:
        sys.path.insert(0, "")  # a user's own attack may lie in the current folder
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if arguments[0] == "--version":
        from fedpg import __version__

        print(f"fedpg {__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    try:
        if name not in COMMANDS:
            raise unknown("command", name, COMMANDS)
        kind, run = COMMANDS[name]
        options: dict[str, Any] = {"prog": f"fedpg {name}", "description": inspect.getdoc(kind), "args": rest}
        return run(tyro.cli(kind, config=(tyro.conf.FlagCreatePairsOff,), **options, **_defaults(name, rest)))
    except (ConfigError, SimulationError, StorageError) as error:
        print(f"fedpg: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fedpg: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # nobody reads what is printed any more, as after `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _defaults(command: str, arguments: list[str]) -> dict[str, Any]:
    """What decides the other defaults is looked up first: a run to resume, or the preset, task and algorithm."""
    if command != "train":
        return {}
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    first.add_argument("--task", default="CartPole-v1")
    first.add_argument("--preset")
    first.add_argument("--algorithm", default="fedpg-br")
    first.add_argument("--out", type=Path)
    first.add_argument("--resume", action="store_true")
    try:
        chosen, _ = first.parse_known_args(arguments)
    except argparse.ArgumentError:
        return {"default": Train(defaults())}  # the real parser says what is wrong
    if chosen.resume and chosen.out is not None:
        folders = [chosen.out] if (chosen.out / "config.json").exists() else sorted(chosen.out.glob("seed-*"))
        found = [read_config(folder) for folder in folders if (folder / "config.json").exists()]
        if found:
            return {"default": Train(found[0][0], seeds=",".join(str(seed) for _, seed in found))}
    return {"default": Train(defaults(chosen.task, chosen.preset, chosen.algorithm))}


def parse_seeds(text: str) -> list[int]:
    """`3`, `0,1,5` or `0:10` as a list of seeds."""
    try:
        if ":" in text:
            start, stop = text.split(":")
            first, last = int(start or 0), int(stop)
        else:
            return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"seeds must be like 3, 0,1,5 or 0:10, not {text!r}") from None
    if last <= first:
        raise ConfigError(f"seeds {text!r} is an empty range")
    if last - first > MAX_SEEDS:
        raise ConfigError(f"seeds {text!r} are {last - first} seeds; at most {MAX_SEEDS} go in one call")
    return list(range(first, last))


def _train(command: Train) -> int:
    from fedpg.agents import make_problem
    from fedpg.plots import plot_curve
    from fedpg.summary import print_summary, title_of
    from fedpg.training import train_seeds
    from fedpg.training.progress import make_reporter

    task, note = renamed(command.config.task)
    if note:
        print(f"fedpg: {note}", file=sys.stderr)
    config = validate(dataclasses.replace(command.config, task=task))
    refuse_idle_attack(config)
    problem = make_problem(config)
    seeds = parse_seeds(command.seeds)
    if command.resume and command.out is None:
        raise ConfigError("resume goes on with the run in a folder: give it with --out")
    stop = threading.Event()

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        if stop.is_set():  # a second Ctrl-C does not wait
            os._exit(130)  # what is written is written whole, so nothing more is lost
        print("fedpg: stopping after this round (again: at once)", file=sys.stderr)
        stop.set()

    previous = {number: signal.signal(number, on_interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        runs = train_seeds(problem, seeds, command.out, command.resume, make_reporter(config, command.quiet), stop)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    folder = runs[0].folder if len(runs) == 1 else runs[0].folder.parent
    plot_curve(folder / "curve.png", [run.records for run in runs], title_of(config))
    print_summary(runs, folder)
    if not all(run.finished for run in runs):
        print(f"Interrupted. Go on with: fedpg train --out {shlex.quote(str(folder))} --resume", file=sys.stderr)
        return 130
    return 0


def _evaluate(command: Evaluate) -> int:
    import jax

    from fedpg.training.rounds import make_evaluator

    _positive("episodes", command.episodes)
    _seed(command.seed)
    problem, params = _load(command.run)
    returns = make_evaluator(problem, command.episodes)(params, jax.random.key(command.seed)).returns
    mean, std = float(returns.mean()), float(returns.std())
    error = std / command.episodes**0.5
    table = Table(title=f"{problem.config.task}: greedy policy of {command.run}")
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
    Console().print(table)
    return 0


def _play(command: Play) -> int:
    from fedpg.play import render

    _positive("episodes", command.episodes)
    _seed(command.seed)
    problem, params = _load(command.run)
    returns = render(problem, params, command.out, command.episodes, command.seed)
    print(f"{command.out}: {len(returns)} episode(s), return {', '.join(f'{r:.0f}' for r in returns)}")
    return 0


def _bench(command: Bench) -> int:
    from fedpg.bench import bench

    bench(renamed(command.task)[0], command.quick, command.trajectories, command.agents)
    return 0


def _load(path: Path) -> tuple[Any, Any]:
    """The problem and the parameters of a run folder or a policy file."""
    from fedpg.agents import make_problem
    from fedpg.training.checkpoint import load_policy, policy_config

    if any(path.glob("seed-*")):
        names = ", ".join(sorted(str(folder) for folder in path.glob("seed-*")))
        raise ConfigError(f"{path} holds the runs of several seeds: give one of {names}")
    file = path / "policy.safetensors" if path.is_dir() else path
    # How the agents attacked is of no concern here, and may be code that this machine does not have.
    config = dataclasses.replace(policy_config(file), byzantine=0, attack="random-noise", attack_options=())
    problem = make_problem(config)
    return problem, load_policy(file, problem)


def _seed(value: int) -> None:
    if not 0 <= value < 2**32:
        raise ConfigError(f"seed must be from 0 to 2^32 - 1, not {value}")


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} must be 1 or more, not {value}")


COMMANDS: dict[str, tuple[Any, Callable[[Any], int]]] = {
    "train": (Train, _train),
    "evaluate": (Evaluate, _evaluate),
    "play": (Play, _play),
    "bench": (Bench, _bench),
}

if __name__ == "__main__":
    sys.exit(main())
