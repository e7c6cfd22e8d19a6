"""`fedpg train`."""

import argparse
import dataclasses
import shlex
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import tyro

from fedpg.cli.arguments import draw_curve, on_signal, parse_seeds
from fedpg.config import Config, refuse_idle_attack, validate
from fedpg.errors import ConfigError
from fedpg.presets import defaults, refuse_idle, renamed
from fedpg.storage import read_config


@dataclass(frozen=True)
class Train:
    """Train a policy by a federation of agents in this process.

    Examples:
      fedpg train --byzantine 3 --attack sign-flipping
      fedpg train --preset released --seeds 0:10 --out runs/released
      fedpg train --task LunarLander-v3
      fedpg train --task my_package.my_module:make_environment
      fedpg train --attack my_package.my_module:my_attack --byzantine 3
      fedpg train --start-from runs/first --trajectories 2000 --out runs/second
    """

    config: Annotated[Config, tyro.conf.arg(name="")]
    seeds: str = "0"
    """One seed (`3`), several (`0,1,5`), or a range without its end (`0:10`)."""
    out: Path | None = None
    """The run folder; by default a new one under `runs/`."""
    start_from: Path | None = None
    """Begin from a policy instead of a random one: a run folder, or a policy file."""
    resume: bool = False
    """Go on with the run in `--out` from its checkpoint, or start it if it has written nothing yet."""
    quiet: bool = False
    """No progress, only the summary."""
    json: bool = False
    """For programs: progress as one JSON object per line, and no summary."""


def train_defaults(arguments: list[str]) -> Train:
    """What decides the other defaults is looked up first: a run to resume, or the preset, task and pieces."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    first.add_argument("--task", default="CartPole-v1")
    first.add_argument("--preset")
    first.add_argument("--algorithm")
    first.add_argument("--aggregator")
    first.add_argument("--estimator", choices=get_args(get_type_hints(Config)["estimator"]))
    first.add_argument("--agents")
    first.add_argument("--attack")
    first.add_argument("--byzantine", default="0")
    first.add_argument("--out", type=Path)
    first.add_argument("--resume", action="store_true")
    try:
        chosen, _ = first.parse_known_args(arguments)
    except argparse.ArgumentError:
        return Train(defaults())  # the real parser says what is wrong
    if chosen.resume and chosen.out is not None:
        folders = [chosen.out] if (chosen.out / "config.json").exists() else sorted(chosen.out.glob("seed-*"))
        found = [read_config(folder) for folder in folders if (folder / "config.json").exists()]
        if found:
            return Train(found[0][0], seeds=",".join(str(seed) for _, seed in found))
    if chosen.attack and chosen.byzantine == "0":
        raise ConfigError("attack is given, but no agent is Byzantine: say how many with byzantine")
    given: dict[str, Any] = {n: getattr(chosen, n) for n in ("aggregator", "estimator") if getattr(chosen, n)}
    if chosen.agents == "1":  # which has nobody to be compared with
        given["agents"] = 1
    return Train(defaults(chosen.task, chosen.preset, chosen.algorithm, **given))


def run_train(command: Train) -> int:
    from fedpg.assembly import make_problem
    from fedpg.summary import print_summary
    from fedpg.training import train_seeds
    from fedpg.training.folders import new_folder
    from fedpg.training.progress import make_reporter
    from fedpg.training.start import read_start

    task, note = renamed(command.config.task)
    if note:
        print(f"fedpg: {note}", file=sys.stderr)
    config = validate(dataclasses.replace(command.config, task=task))
    refuse_idle_attack(config)
    refuse_idle(config)
    problem = make_problem(config)
    seeds = parse_seeds(command.seeds)
    if command.resume and command.out is None:
        raise ConfigError("resume goes on with the run in a folder: give it with --out")
    start = None if command.start_from is None else read_start(command.start_from, problem)
    folder = command.out or new_folder(config)
    reporter = make_reporter(config, command.quiet, command.json)
    stop = threading.Event()
    with on_signal(stop, "stopping after this round"):
        runs = train_seeds(problem, seeds, folder, command.resume, reporter, stop, start=start)
    draw_curve(folder, runs, config.title)
    if not command.json:
        print_summary(runs, folder)
    if not all(run.finished for run in runs):
        print(f"Interrupted. Go on with: fedpg train --out {shlex.quote(str(folder))} --resume", file=sys.stderr)
        return 130
    return 0
