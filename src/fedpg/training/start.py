"""A run that begins from a policy instead of a random one."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array

from fedpg.config import Config, from_json, to_json
from fedpg.errors import ConfigError
from fedpg.policies import Params
from fedpg.problem import Problem, State
from fedpg.storage import StorageError, load_tensors
from fedpg.training.checkpoint import FILE, load_policy, policy_config, save_policy

START = "start.safetensors"
"""In a run folder: the policy that the run began from, if it did not begin from a random one."""
POLICY = "policy.safetensors"


def read_start(start: str | Path | Params, problem: Problem) -> Array:
    """theta_0 [D] from a run folder, a policy file, or named tensors; an error if they are not of this policy."""
    if isinstance(start, str | Path):
        return _of_folder(Path(start), problem) if Path(start).is_dir() else _of_file(Path(start), problem)
    shapes = {name: np.shape(value) for name, value in start.items()}
    if shapes != problem.policy.shapes:
        raise ConfigError(f"start holds the policy of another task or network: {shapes}, not {problem.policy.shapes}")
    theta = problem.policy.ravel({name: jnp.asarray(value, jnp.float32) for name, value in start.items()})
    if not bool(jnp.all(jnp.isfinite(theta))):
        raise ConfigError("start has numbers that are not finite")
    return theta


def begun(problem: Problem, state: State, theta: Array) -> State:
    """The state before round 1, with theta in the place of the random policy."""
    return state._replace(
        theta=theta,
        optimizer=problem.optimizer.init(theta),
        algorithm=problem.algorithm.init(problem, theta),
        output=theta,
    )


def keep_start(folder: Path, problem: Problem, theta: Array | None) -> None:
    """Into the folder of a new run with what it begins from; refuses one that began from something else."""
    path = folder / START
    if (folder / "config.json").exists():
        if theta is not None and not (path.exists() and np.array_equal(_of_file(path, problem), theta)):
            raise StorageError(
                f"the run in {folder} began from {'another policy' if path.exists() else 'a random policy'}: leave out "
                "--start-from to go on with it, or give another --out"
            )
    elif theta is not None:
        save_policy(path, problem.config, problem.policy, theta)


def kept_start(folder: Path, problem: Problem) -> Array | None:
    """What `keep_start` kept."""
    path = folder / START
    return _of_file(path, problem) if path.exists() else None


def _of_folder(folder: Path, problem: Problem) -> Array:
    """The newest policy of a run: that of its checkpoint, which a killed one has too."""
    if not (folder / FILE).exists():
        if any(folder.glob("seed-*")):
            names = ", ".join(sorted(str(path) for path in folder.glob("seed-*")))
            raise ConfigError(f"{folder} holds the runs of several seeds: start from one of {names}")
        return _of_file(folder / POLICY, problem)
    tensors, about = load_tensors(folder / FILE, "checkpoint")
    _check_network(folder, from_json(about["settings"]), problem)
    theta = tensors.get(".theta")
    shapes = about.get("shapes")
    if shapes is None and (folder / POLICY).exists():  # checkpoints of older versions do not have them
        shapes = {name: value.shape for name, value in load_tensors(folder / POLICY, "policy")[0].items()}
    shapes = None if shapes is None else {name: tuple(shape) for name, shape in shapes.items()}
    if theta is None or theta.shape != (problem.policy.size,) or shapes not in (None, problem.policy.shapes):
        theirs = shapes or f"{'no' if theta is None else theta.size} parameters"
        ours = problem.policy.shapes if shapes else problem.policy.size
        raise StorageError(
            f"the policy of {folder} has {theirs}, and this run's, for {problem.task.id}, has {ours}: it is of a task "
            "with other observations or actions, or of another network. Give a task with those of "
            f"{about['settings']['task']}"
        )
    return jnp.asarray(theta)


def _of_file(path: Path, problem: Problem) -> Array:
    theta = problem.policy.ravel(load_policy(path, problem))
    _check_network(path, policy_config(path), problem)
    return theta


def _check_network(path: Path, theirs: Config, problem: Problem) -> None:
    """The same numbers are another policy if, say, the activation is another."""
    kind = "categorical" if isinstance(problem.task.actions, spaces.Discrete) else "gaussian"
    names = ("policy", "hidden", "activation", kind) if problem.config.policy == "mlp" else ("policy",)
    there, here = to_json(theirs), to_json(problem.config)
    odd = [f"{name} = {there[name]!r} there, {here[name]!r} here" for name in names if there[name] != here[name]]
    if odd:
        raise StorageError(f"the policy of {path} is of another network ({', '.join(odd)}): give the same settings")
