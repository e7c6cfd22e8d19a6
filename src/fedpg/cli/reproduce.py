"""`fedpg reproduce`."""

import shlex
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich import box
from rich.markup import escape
from rich.table import Table

from fedpg.cli.arguments import check_folder_name, check_positive, check_seed, on_signal, parse_seeds
from fedpg.errors import ConfigError
from fedpg.extras import need
from fedpg.machine import versions
from fedpg.presets import defaults
from fedpg.screen import clock, make_console

if TYPE_CHECKING:
    from fedpg.experiments.compare import Likeness
    from fedpg.experiments.panels import Experiment
    from fedpg.experiments.store import Key, Stored
    from fedpg.experiments.work import Unit


HETEROGENEITY = "heterogeneity"
"""The experiment that is played as an arena is."""


@dataclass(frozen=True)
class Reproduce:
    """Run the paper's experiments: what is missing is trained, stored at once, and drawn beside the paper's curves.

    Without a name it lists the experiments. An interrupted command goes on where it stopped when it is given again.

    Examples:
      fedpg reproduce figure1 --task CartPole-v1 --seeds 0:10
      fedpg reproduce figure2 figure3 --seeds 0 --trajectories 3000
      fedpg reproduce algorithms --task LunarLander-v3 --only natural --seeds 0:5
      fedpg reproduce heterogeneity --task CartPole-v1 --seeds 0:10
      fedpg reproduce all --dry-run
      fedpg reproduce all --old verify
      fedpg reproduce --adopt runs/my-run
      fedpg reproduce figure1 --engine ray --address auto
    """

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Experiments by name, or `all`; `heterogeneity` alone."""
    task: tuple[str, ...] = ()
    """Only the panels of these tasks."""
    only: tuple[str, ...] = ()
    """Only the curves with one of these words in their name or their panel's (`--only natural "server alone"`, `--only
    "honest agents: FedPG-BR"`)."""
    seeds: str = "0:10"
    """One seed (`3`), several (`0,1,5`), or a range without its end (`0:10`)."""
    trajectories: int | None = None
    """Train no further than this; by default as far as the paper (5000 on CartPole, 10000 on the others)."""
    results: Path = Path("results")
    """Where runs are stored, and figures drawn."""
    runs: Path = Path("runs/reproduce")
    """Where the run folders are, from which an interrupted run goes on."""
    old: Literal["refuse", "verify", "keep", "again"] = "refuse"
    """Stored runs of another version of the code: refuse them; verify them, by making their first rounds again and
    comparing (same bits, same to rounding until round n, or different); keep them as they are, which the report says;
    or train them again."""
    adopt: tuple[Path, ...] = ()
    """Store the runs of these run folders of `fedpg train`, as far as they are, if an experiment has them."""
    engine: Literal["local", "ray"] = "local"
    """Processes on this machine, or a Ray cluster (the extra `ray`)."""
    address: str | None = None
    """Of the Ray cluster (`auto`: the one that runs here); without it a local one is started."""
    dry_run: bool = False
    """Train nothing; only say what would be, as commands of `fedpg train`. With `--old verify`, stored runs are still
    verified, and marked as such."""


def run_reproduce(command: Reproduce) -> int:
    from fedpg.experiments.catalogue import configs_of, find
    from fedpg.experiments.runner import plan, rates_of, say, seconds_of
    from fedpg.experiments.store import load_all

    if command.address is not None and command.engine != "ray":
        raise ConfigError("address is that of a Ray cluster: add --engine ray")
    if command.adopt and command.dry_run:
        raise ConfigError("adopt stores runs, which a dry run does not: give one of --adopt and --dry-run")
    if command.trajectories is not None:
        check_positive("trajectories", command.trajectories)
    seeds = parse_seeds(command.seeds)
    for seed in seeds:
        check_seed(seed)
    if len(set(seeds)) != len(seeds):
        raise ConfigError(f"seeds {command.seeds!r} overlap: give each once")
    if HETEROGENEITY in command.names:
        from fedpg.cli.heterogeneity import reproduce_heterogeneity

        if len(command.names) > 1:
            raise ConfigError(f"{HETEROGENEITY} is played, not trained as the others: give it alone")
        return reproduce_heterogeneity(command, seeds)
    experiments = find(command.names or ("all",), command.task, command.only)
    check_folder_name("results", command.results)
    check_folder_name("runs", command.runs)
    if command.adopt:
        adopt(command.adopt, command.results)
        if not command.names:
            return 0
    stored = load_all(command.results)
    if not command.names:
        print_list(experiments, seeds, stored, command.trajectories)
        return 0
    if not command.dry_run:
        need("matplotlib", "PIL")  # for the pictures at the end
    configs = configs_of(experiments, command.trajectories)
    todo = plan(configs, seeds, stored, again=command.old == "again")
    if todo.old and command.old == "verify":
        verify_stored(todo.old, command.results)
        stored = load_all(command.results)
        todo = plan(configs, seeds, stored, again=False)
    if todo.old and command.old != "keep" and not command.dry_run:
        raise ConfigError(
            f"{len(todo.old)} of these runs in {command.results} were made by another version of the code. Add "
            "--old verify (make their first rounds again and compare), --old again (train them again) or "
            "--old keep (use them as they are)"
        )
    if command.dry_run:
        if todo.old and command.old != "keep":
            say(f"{len(todo.old)} runs of another version of the code are not among these: see --old")
        for unit in todo.units:
            print(as_train_command(unit))
        return 0
    if todo.units:
        rates = rates_of(stored.values())
        runs = sum(len(unit.seeds) for unit in todo.units)
        seconds = sum(seconds_of(unit, rates) for unit in todo.units)
        done = train_missing(command, todo.units, rates, runs, seconds)
        if done < runs:
            say(f"stopped: {done} of {runs} runs were stored. Give the same command to go on")
            return 130
    else:
        say(f"all {todo.wanted} runs are in {command.results} already")
    if todo.old:
        short = f", {todo.short} of which are shorter than wanted" if todo.short else ""
        say(f"{len(todo.old)} runs of another version of the code are used as they are{short}")
    show(experiments, command.results, keep=command.old == "keep")
    return 0


def show(experiments: Sequence["Experiment"], results: Path, keep: bool) -> None:
    """Draw the pictures, and print the numbers beside the paper's; runs of other code only if they are to be kept."""
    from fedpg.experiments.catalogue import EXPERIMENTS
    from fedpg.experiments.report import write_pictures
    from fedpg.experiments.runner import say
    from fedpg.experiments.store import load_all
    from fedpg.experiments.tables import learning, overview

    everything = load_all(results)
    stored = {key: run for key, run in everything.items() if keep or run.current}
    if len(stored) < len(everything):
        say(f"{len(everything) - len(stored)} stored runs of another version of the code are not shown: see --old")
    console = make_console()
    for experiment in experiments:
        found = overview(experiment.panels, stored)
        if not any(any(row[found.words + 1 :]) for row in found.rows):  # nobody got to the first mark
            found = learning(experiment.panels, stored)
        table = Table(title=experiment.title, caption=escape(found.caption), box=box.SIMPLE_HEAD, pad_edge=False)
        for i, name in enumerate(found.columns):
            table.add_column(name, justify="left" if i < found.words else "right")
        for row in found.rows:
            table.add_row(*map(escape, row))
        console.print(table)
    whole = [EXPERIMENTS[experiment.name] for experiment in experiments]  # a picture has all of its panels
    for path in write_pictures(whole, stored, results, say):
        print(path)


def train_missing(
    command: Reproduce, units: Sequence["Unit"], rates: dict[str, float], runs: int, seconds: float
) -> int:
    """Train the units by the engine; Ctrl-C stops them after their rounds."""
    from fedpg.experiments import runner

    stop = threading.Event()
    if command.engine == "ray":
        from fedpg.experiments.ray_engine import ray_engine

        engine, total = ray_engine(command.address, command.runs, stop)
    else:
        engine, total = runner.local_engine(command.runs, stop), runner.every_core()
    count, share = runner.slots_of(units, total)
    by = "Ray" if command.engine == "ray" else "this machine"
    runner.say(
        f"{runs} runs to train on {by}, {count} at a time with {share} core(s) each: about {clock(seconds / count)}"
    )
    with on_signal(stop, "stopping after these rounds"):
        return runner.run_units(units, engine, total, command.results, rates, stop)


def adopt(folders: Sequence[Path], results: Path) -> None:
    """Store the runs of ordinary run folders; a stored run that is longer stays, one that differs too."""
    from fedpg.experiments import store
    from fedpg.experiments.catalogue import EXPERIMENTS, configs_of
    from fedpg.experiments.compare import ENOUGH, compare
    from fedpg.experiments.runner import say

    for given in folders:
        if not given.is_dir():
            raise ConfigError(f"cannot adopt {given}: it is not a run folder")
    known = {store.key_of(config, 0)[0] for config in configs_of(EXPERIMENTS.values())}
    stored = store.load_all(results)
    for given in folders:
        found = [given] if (given / "config.json").exists() else sorted(given.glob("seed-*"))
        for folder in found or [given]:
            run = store.from_folder(folder, "", adopted=True, **store.UNKNOWN)
            before = stored.get(run.key)
            likeness = None if before is None else compare(before, run)
            if run.reached == 0:
                say(f"{folder} has no trained round yet: left alone")
            elif run.key[0] not in known:
                say(f"{folder} has settings that no experiment has: left alone")
            elif likeness is not None and not likeness.same:
                say(f"{folder} has other numbers than the stored run of its settings and seed ({likeness}): left alone")
            elif before is not None and before.reached >= run.reached:
                say(f"{folder}: stored already, to {before.reached} trajectories")
            else:
                if before is not None and likeness is not None and likeness.bits and len(before.returns) > ENOUGH:
                    # What begins like a run of known code, over all of its rounds and to the bit, is of that code.
                    run = replace(run, code=before.code, about=dict(before.about) | dict(run.about))
                stored[run.key] = run
                say(f"{folder}: stored to {run.reached} trajectories at {store.save(results, run)}")


def verify_stored(runs: Sequence["Stored"], results: Path) -> None:
    """Put the runs whose first rounds come out the same under this version of the code."""
    from fedpg.experiments import store
    from fedpg.experiments.probe import verify
    from fedpg.experiments.runner import say

    found: Counter[str] = Counter()

    def each(run: "Stored", likeness: "Likeness") -> None:
        found["same bits" if likeness.bits else "same to rounding" if likeness.same else "different"] += 1
        if likeness.same:
            store.save(results, run)
        outcome = f"{likeness}" if likeness.same else f"{likeness}: it stays under the code that made it"
        alike = run.about["hardware"] == store.machine() and run.about["versions"] == versions()
        if likeness.same and not likeness.bits and alike:
            outcome += ", by these versions on a machine like this one: did the code change, or the number of cores?"
        say(f"{found.total()} of {len(runs)}: {run.config.name}, seed {run.seed}: {outcome}")

    say(f"making the first rounds of {len(runs)} runs again")
    verify(runs, each)
    say(", ".join(f"{count} {verdict}" for verdict, count in found.most_common()))
    if found["different"]:
        say(
            "a run that differs was made by other code or other versions of the packages that compute; or, in a task "
            "that carries the last digit far (HalfCheetah's contacts), by another processor or number of cores: "
            "`taskset -c 0 fedpg reproduce ...` verifies those that were trained on one core each"
        )


def print_list(
    experiments: Sequence["Experiment"], seeds: Sequence[int], stored: dict["Key", "Stored"], limit: int | None
) -> None:
    """The experiments, their runs, and the time on this machine."""
    from fedpg.experiments.catalogue import configs_of
    from fedpg.experiments.runner import every_core, plan, rates_of, seconds_of

    rates = rates_of(stored.values())
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, justify in (("experiment", "left"), ("what", "left"), ("runs", "right"), ("stored", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("time left", justify="right", no_wrap=True)

    def row(name: str, what: str, chosen: Sequence["Experiment"]) -> None:
        todo = plan(configs_of(chosen, limit), seeds, stored, again=False)
        missing = sum(len(unit.seeds) for unit in todo.units)
        seconds = sum(seconds_of(unit, rates) for unit in todo.units) / max(1, min(every_core(), len(todo.units)))
        have = f"{todo.wanted - missing}" + (f" ({len(todo.old)} old)" if todo.old else "")
        table.add_row(name, what, str(todo.wanted), have, clock(seconds) if missing else "")

    for experiment in experiments:
        row(experiment.name, experiment.title, [experiment])
    row("all", "everything; figures share runs", experiments)
    table.add_row(HETEROGENEITY, "Agents that differ, with and without liars (a study of its own)", "", "", "")
    make_console().print(table)
    print(f"{len(seeds)} seed(s). Run one with: fedpg reproduce NAME --task CartPole-v1 --seeds 0:10")


def as_train_command(unit: "Unit") -> str:
    """The unit as a command of `fedpg train`."""
    config = unit.config
    # The preset is always named: what an attack means depends on whether it is.
    given = {name: getattr(config, name) for name in ("task", "preset", "algorithm", "trajectories")}
    base = defaults(config.task, config.preset, config.algorithm)
    given |= {name: value for name, value in vars(config).items() if value != getattr(base, name)}
    words = ["fedpg", "train"]
    for name, value in given.items():
        words += [f"--{name.replace('_', '-')}", *(map(str, value) if isinstance(value, tuple) else (str(value),))]
    return shlex.join([*words, "--seeds", ",".join(map(str, unit.seeds))])
