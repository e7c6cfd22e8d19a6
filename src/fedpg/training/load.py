"""Runs and policies from their files."""

import dataclasses
from pathlib import Path

from fedpg.assembly import MakePolicy, make_problem
from fedpg.config import Config
from fedpg.errors import ConfigError
from fedpg.policies import Params, Policy
from fedpg.problem import Problem
from fedpg.storage import StorageError, read_config
from fedpg.tasks import AnyTask, make_task
from fedpg.tasks.differences import WINDS
from fedpg.training.checkpoint import load_policy, load_records, policy_config
from fedpg.training.each import read_each
from fedpg.training.result import Run, trained

POLICY, OUTPUT = "policy.safetensors", "policy-uniform.safetensors"
TRAINED_BY = (
    *("algorithm", "algorithm_options", "byzantine", "attack", "attack_options", "aggregator", "aggregator_options"),
    *("optimizer", "fail_closed", "momentum"),
)
"""How a policy was trained is of no concern to who uses it, and may be code that this machine does not have."""


def load(folder: str | Path, task: AnyTask | None = None, policy: Policy | MakePolicy | None = None) -> Run:
    """The run of a folder that `fedpg train` wrote, or `fedpg.train` with `out`.

    `task` and `policy` are the objects that it was trained with, where they have no name: a function that makes a
    Gymnasium environment, an `Environment` in JAX, a network of your own.
    """
    folder = Path(folder)
    refuse_several(folder)
    config, seed = read_config(folder)
    problem = to_use(config, task, policy)
    last, output = (trained(problem, load_policy(folder / name, problem)) for name in (POLICY, OUTPUT))
    records = load_records(folder, config, seed)
    finished = bool(records.trajectories[-1] >= config.trajectories)
    each = read_each(folder) if finished else None  # of a run that was made longer, what is there is old
    return Run(config, seed, last, output, records, folder, float(records.column("seconds").sum()), finished, each)


def read_policy(path: Path, task: AnyTask | None = None, per_agent: bool = False) -> tuple[Problem, Params]:
    """The problem and the parameters of a run folder or a policy file."""
    refuse_several(path)
    file = policy_file(path)
    problem = to_use(policy_config(file), task, per_agent=per_agent)
    return problem, load_policy(file, problem)


def policy_file(path: Path) -> Path:
    """The policy of a run folder, or the file itself."""
    return path / POLICY if path.is_dir() else path


def refuse_several(path: Path) -> None:
    if any(path.glob("seed-*")):
        names = ", ".join(sorted(str(folder) for folder in path.glob("seed-*")))
        raise ConfigError(f"{path} holds the runs of several seeds: give one of {names}")


def plain(config: Config) -> Config:
    """The settings, without how a policy was trained."""
    return dataclasses.replace(config, **{name: getattr(Config, name) for name in TRAINED_BY})


def to_use(
    config: Config, task: AnyTask | None, policy: Policy | MakePolicy | None = None, per_agent: bool = False
) -> Problem:
    """What a policy with these settings is used in: its task, or another one.

    What the agents differ in is left out where it cannot be had here, unless the tasks of the agents are wanted, or
    the server's could depend on it.
    """
    config = plain(config)
    if task is None:
        try:
            found = make_task(config.task)
        except ConfigError as error:
            raise StorageError(
                f"the task {config.task!r} of this run cannot be made by its name ({error}). Say what it is: "
                "fedpg.load(folder, task=...), or --task package.module:object"
            ) from error
    else:
        found = make_task(task)
    if policy is None and config.policy.startswith("custom:"):
        raise StorageError("this run has a policy of its own, without a name: fedpg.load(folder, policy=...)")
    try:
        return make_problem(config, found, policy)
    except ConfigError as error:
        if not config.vary:
            raise
        alike = make_problem(dataclasses.replace(config, vary=()), found, policy)  # what else is wrong is said first
        what = f"what its agents differ in ({' '.join(config.vary)})"
        lacking = f"{what} cannot be had of {found.id} here: {str(error).rstrip('.')}"
        if per_agent:
            raise StorageError(f"{lacking}. Leave --per-agent out, or give what is lacking") from error
        if task is None and (config.agents == 1 or found.nominal.keys() & set(WINDS)):
            raise StorageError(
                f"{lacking}. The server's own task may depend on it, so say which it is to be: --task {found.id}, or "
                "task=... in Python"
            ) from error
        return alike
