"""Checkpoints: everything that the rest of a run depends on, in one file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpg.config import Config, from_json, to_json
from fedpg.errors import ConfigError
from fedpg.policies import Params, Policy
from fedpg.problem import Problem, State
from fedpg.storage import StorageError, load_tensors, save_tensors
from fedpg.training.harm import Harm
from fedpg.training.records import Records
from fedpg.training.rounds import LOGGED, first_state, message_bytes

FILE = "checkpoint.safetensors"
COLUMNS = (*LOGGED, "seconds")
KEPT = ("tests", "test_steps")
"""Of the records, besides those of every round."""
NEW_SETTINGS: dict[str, Any] = {
    "fail_closed": False,
    "momentum": 0.0,
    "algorithm_options": [],
    "trace": 1.0,
    "categorical": "paper",
    "vary": [],
    "vary_seed": 0,
}
"""Settings that the checkpoints of older versions do not have, and what they stood at."""
RECORDS = "records.jsonl"
AFTERWARDS = (RECORDS, "policy.safetensors", "policy-uniform.safetensors", "curve.png")
"""What a run writes only when there is a checkpoint."""


def save_checkpoint(folder: Path, problem: Problem, seed: int, state: State, records: Records) -> None:
    """Parameters, optimiser, key, counters and records, written whole."""
    config = problem.config
    columns = {name: records.column(name) for name in COLUMNS} if len(records) else {}
    tests = np.array(records.tests) if records.tests else np.zeros((0, config.test_episodes), np.float32)
    columns |= {"tests": tests, "test_steps": np.array(records.test_steps, np.int64)}
    tensors = _named(state) | {f"log/{name}": value for name, value in columns.items()}
    about = {"settings": to_json(config), "seed": seed, "shapes": problem.policy.shapes}
    save_tensors(folder / FILE, "checkpoint", tensors, about)


def load_checkpoint(
    folder: Path, problem: Problem, seed: int, note: Callable[[str], None] = lambda text: None
) -> tuple[State, Records]:
    """The state and records to go on from, checked against what this run must have; `note` is told what is not kept."""
    path = folder / FILE
    tensors = _read(path, problem.config, seed)
    like = first_state(problem, seed)
    names = _named(like)
    wanted = {name: (value.dtype, value.shape) for name, value in names.items()}
    columns = {name: tensors.pop(f"log/{name}") for name in (*COLUMNS, *KEPT) if f"log/{name}" in tensors}
    if "round" in columns:  # checkpoints of older versions do not have the harm of their rounds, nor the bytes
        count = columns["round"].shape
        missed = {name: np.full(count, np.nan) for name in Harm._fields}
        columns = missed | {"bytes": np.full(count, message_bytes(problem))} | columns
    there = {name: (value.dtype, value.shape) for name, value in tensors.items()}
    ours, theirs = ({n: kinds[n] for n in kinds if n.startswith(".aggregator")} for kinds in (wanted, there))
    if theirs and ours != theirs:
        note(
            f"{path} was written by another version of fedpg, whose aggregator {problem.config.aggregator!r} "
            "remembered other things: it begins anew, and suspects nobody yet"
        )
        tensors = {n: v for n, v in tensors.items() if n not in theirs} | {n: names[n] for n in ours}
        there = {n: kind for n, kind in there.items() if n not in theirs} | ours
    if wanted != there:
        differ = [name for name in wanted | there if wanted.get(name) != there.get(name)]
        if all(name.startswith(".algorithm") for name in differ):
            raise StorageError(
                f"{path} was written by another version of fedpg, whose algorithm {problem.config.algorithm!r} "
                "remembered other things: finish the run with that version, or begin a new one from its policy, by "
                f"another --out and --start-from {folder}"
            )
        raise StorageError(f"{path} is damaged: it does not hold the state of this run")
    rounds = int(tensors[".round"])
    missing = {*KEPT, *(COLUMNS if rounds else ())} - set(columns)
    if (
        missing
        or any(columns[name].shape[:1] != (rounds,) for name in COLUMNS if rounds)
        or columns["tests"].shape not in [(n, problem.config.test_episodes) for n in (rounds, rounds + 1)]
        or columns["test_steps"].shape != columns["tests"].shape[:1]
    ):
        raise StorageError(f"{path} is damaged: it does not hold the records of its {rounds} rounds")
    leaves = [jnp.asarray(tensors[name]) for name in names]
    plain = jax.tree.unflatten(jax.tree.structure(like), leaves)
    state = plain._replace(
        key=jax.random.wrap_key_data(plain.key, impl="threefry2x32"), round=rounds, counted=int(plain.counted)
    )
    return state, _records(problem.config, columns, rounds)


def load_records(folder: Path, config: Config, seed: int) -> Records:
    """What happened in the rounds of a run folder, without what it would go on from."""
    tensors = _read(folder / FILE, config, seed)
    rounds = int(tensors[".round"])
    columns = {name: tensors[f"log/{name}"] for name in (*COLUMNS, *KEPT) if f"log/{name}" in tensors}
    # Those of older versions do not have all.
    missed = {"bytes": np.zeros(rounds)} | {name: np.full(rounds, np.nan) for name in Harm._fields}
    if rounds and not {*COLUMNS, *KEPT} <= {*missed, *columns}:
        raise StorageError(f"{folder / FILE} is damaged: it does not hold the records of its {rounds} rounds")
    return _records(config, missed | columns, rounds)


def _records(config: Config, columns: dict[str, np.ndarray], rounds: int) -> Records:
    records = Records(config)
    for i in range(rounds):
        log = {name: _plain(columns[name][i]) for name in COLUMNS}
        records.add_round(log, log["seconds"])
    for returns, steps in zip(columns["tests"], columns["test_steps"].tolist(), strict=True):
        records.add_test(returns, steps)
    return records


def _plain(value: np.ndarray) -> Any:
    """A number for what is one."""
    return value if value.ndim else value.item()


def check_progress(folder: Path, config: Config, seed: int) -> None:
    """Refuse a run folder that holds more than its checkpoint: the rounds to come would overwrite that.

    A run writes its checkpoint first, so a kill at any moment leaves none of what is refused here.
    """
    path = folder / FILE
    if not path.exists():
        left = [name for name in AFTERWARDS if (folder / name).exists()]
        if left:
            raise StorageError(
                f"{path} is missing, and starting again would overwrite what that run left ({', '.join(left)}): put "
                f"the checkpoint back, or begin a new run: move {folder} away, or give another --out"
            )
        return
    rounds = int(_read(path, config, seed)[".round"])
    reached = _rounds_in(folder / RECORDS)
    if reached > rounds:
        raise StorageError(
            f"{path} is of round {rounds}, and {RECORDS} beside it reaches round {reached}: it is not the run's last "
            f"checkpoint. Put that back; or, to do the rounds after {rounds} again, move {RECORDS} away"
        )


def _rounds_in(records: Path) -> int:
    """The rounds in a file of records, whose first row is before the first of them."""
    try:
        with open(records, "rb") as file:
            return sum(1 for line in file if line.strip()) - 1
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StorageError(f"cannot read {records}: {error.strerror or error}") from error


def _read(path: Path, config: Config, seed: int) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint of this run."""
    tensors, about = load_tensors(path, "checkpoint")
    if _comparable(about["settings"]) != _comparable(to_json(config)) or about.get("seed") != seed:
        raise StorageError(f"{path} belongs to a run with other settings or another seed")
    if ".round" not in tensors or tensors[".round"].shape:
        raise StorageError(f"{path} is damaged: it does not say of which round it is")
    return tensors


def _comparable(settings: dict[str, Any]) -> dict[str, Any]:
    """All settings but the length of the run, which may be raised when it is resumed; new ones at their defaults."""
    return {name: value for name, value in (NEW_SETTINGS | settings).items() if name != "trajectories"}


def _named(state: State) -> dict[str, np.ndarray]:
    plain = state._replace(key=jax.random.key_data(state.key))
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(plain)}


def save_policy(path: Path, config: Config, policy: Policy, theta: jax.Array) -> None:
    """The policy alone: named tensors, with the settings that say how to build the network."""
    tensors = {name: np.asarray(value) for name, value in policy.unravel(theta).items()}
    save_tensors(path, "policy", tensors, {"settings": to_json(config)})


def load_policy(path: Path, problem: Problem) -> Params:
    """The named tensors of a policy for this problem."""
    tensors, _ = load_tensors(path, "policy")
    shapes = {name: value.shape for name, value in tensors.items()}
    if shapes != problem.policy.shapes:
        raise StorageError(f"{path} holds the policy of another task or network: {shapes}, not {problem.policy.shapes}")
    if not all(np.isfinite(value).all() and value.dtype == np.float32 for value in tensors.values()):
        raise StorageError(f"{path} is damaged: its parameters must be finite float32 numbers")
    return {name: jnp.asarray(value) for name, value in tensors.items()}


def policy_config(path: Path) -> Config:
    """The settings that a policy file was trained with."""
    try:
        return from_json(load_tensors(path, "policy")[1]["settings"])
    except ConfigError as error:
        raise StorageError(f"{path} has settings that cannot work: {error}") from error
