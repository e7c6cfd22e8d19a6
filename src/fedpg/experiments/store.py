"""Stored runs: one small file each in the results folder, with settings, seed, code version, versions and machine."""

import gzip
import hashlib
import io
import json
import os
import platform
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpg.aggregators import RULES
from fedpg.config import Config, from_json, to_json
from fedpg.errors import ConfigError
from fedpg.experiments.fingerprint import fingerprint
from fedpg.machine import processor, versions
from fedpg.storage import StorageError, check_format, read_config, remove_unfinished, write_whole

FORMAT = "fedpg run 1"
LARGEST = 64 * 2**20
"""Bytes, unpacked: no run comes near it, and what does is not one."""
COLUMNS: dict[str, type] = {
    "trajectories": np.int64,  # as the paper counts them
    "trajectories_total": np.int64,  # of all agents and the server
    "test_return": np.float32,  # mean of the greedy episodes
    "inner_steps": np.int64,
    "rule": np.int64,  # index into RULES
    "accepted_honest": np.int64,
    "accepted_byzantine": np.int64,
}
"""One entry per row of the run's records; row 0 is the untrained policy. Floats are exact."""
MEASURED = ("harm", "harm_step", "trajectories_agent", "steps_training", "bytes")
"""More columns of floats, which older runs do not have; NaN where nothing could be measured."""

Key = tuple[Config, int]


def key_of(config: Config, seed: int) -> Key:
    """What a run is known by: its settings but its length, since a longer run begins like a shorter one; its seed."""
    return replace(config, trajectories=1), seed


@dataclass(frozen=True)
class Stored:
    """A run as it is in the results folder."""

    config: Config
    seed: int
    code: str
    """The fingerprint of the code that made it, or that made its first rounds again and got the same; "" if unknown."""
    about: Mapping[str, Any]
    """`made`, `versions`, `hardware`, `seconds`, `steps`, and how it came here if not by training."""
    columns: Mapping[str, np.ndarray]

    @property
    def key(self) -> Key:
        return key_of(self.config, self.seed)

    @property
    def current(self) -> bool:
        """Whether it is of the code as it is now."""
        return self.code == fingerprint(self.config)

    @property
    def trajectories(self) -> np.ndarray:
        return self.columns["trajectories"]

    @property
    def returns(self) -> np.ndarray:
        return self.columns["test_return"]

    @property
    def reached(self) -> int:
        """How far it got."""
        return int(self.trajectories[-1])

    @property
    def length(self) -> int:
        """How far it got of what it was made for: the last round of another run may end a few trajectories earlier."""
        return min(self.reached, self.config.trajectories)


def name_of(config: Config) -> str:
    """A folder name for these settings: readable, and different for different ones.

    Only what differs from the defaults counts, so that it stays when there is a new setting.
    """
    usual = to_json(Config(trajectories=1, aggregator="fedpg"))  # the first edition's default: names stay
    settings = {name: value for name, value in to_json(replace(config, trajectories=1)).items() if value != usual[name]}
    return f"{config.name}-{hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]}"


def path_of(results: Path, config: Config, seed: int) -> Path:
    return results / "runs" / name_of(config) / f"seed-{seed}.json.gz"


def machine() -> dict[str, Any]:
    """The processor and how many cores of it there are to use."""
    return {
        "processor": processor(),
        "cores": os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
    }


UNKNOWN: dict[str, Any] = {
    "made": "unknown",
    "versions": {},
    "hardware": {"processor": "unknown", "cores": 0, "system": "unknown"},
}
"""Of a run that was not trained by `fedpg reproduce`: its folder does not say when, with what and on what."""


def from_rows(config: Config, seed: int, rows: Iterable[Mapping[str, Any]], code: str, **about: Any) -> Stored:
    """A run from the rows of its records; the last one is left out if its policy has not been evaluated yet."""
    rows = list(rows)
    if rows and rows[-1].get("test_return") is None:
        rows = rows[:-1]
    if not rows:
        raise ValueError("it has no evaluated round")
    # Row 0 is before the first round: what only a round has is 0 there.
    full = [{name: 0 for name in COLUMNS} | {"rule": RULES[0]} | dict(row) for row in rows]
    values = {name: [row[name] for row in full] for name in COLUMNS} | {"rule": [RULES.index(r["rule"]) for r in full]}
    columns: dict[str, np.ndarray] = {name: np.array(values[name], kind) for name, kind in COLUMNS.items()}
    columns |= {name: np.array([row.get(name) for row in rows], np.float32) for name in MEASURED if name in rows[-1]}
    seconds = sum(float(row.get("seconds") or 0.0) for row in rows)
    about = {
        "made": time.strftime("%Y-%m-%d", time.gmtime()),
        "versions": versions(),
        "hardware": machine(),
        "seconds": round(seconds, 2),
        "steps": int(rows[-1].get("steps") or 0),
    } | about
    return Stored(config, seed, code, about, columns)


def from_folder(folder: Path, code: str, **about: Any) -> Stored:
    """The run of a run folder as far as its records go; nothing is written there."""
    config, seed = read_config(folder)
    path = folder / "records.jsonl"
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        run = from_rows(config, seed, rows, code, **about)
    except FileNotFoundError:
        raise StorageError(f"{folder} has no records.jsonl yet") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise StorageError(f"{path} is damaged: {error}") from error
    _check(path, run)
    return run


def save(results: Path, run: Stored) -> Path:
    """Write a run, whole or not at all."""
    path = path_of(results, run.config, run.seed)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {path.parent}: {error.strerror or error}") from error
    remove_unfinished(path.parent, path.name)  # another file's may be somebody's who is writing it
    write_whole(path, pack(run))
    return path


def pack(run: Stored) -> bytes:
    """The bytes of a run's file."""
    # A float32 in its shortest decimal form comes back as the same float32.
    columns = {
        name: [float(str(x)) if np.isfinite(x) else None for x in values]
        if values.dtype == np.float32
        else values.tolist()
        for name, values in run.columns.items()
    }
    content = {"format": FORMAT, "settings": to_json(run.config), "seed": run.seed, "code": run.code}
    return gzip.compress(json.dumps(content | dict(run.about) | {"columns": columns}).encode(), mtime=0)


DAMAGE = (
    *(OSError, EOFError, zlib.error, RecursionError, ConfigError),
    *(ValueError, KeyError, TypeError, AttributeError, OverflowError),
)
"""What reading a file that is no stored run may raise."""


def unpack(data: bytes, path: Path) -> Stored:
    """The run of a file's bytes, or a StorageError that says what is wrong with it."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            raw = file.read(LARGEST + 1)
        if len(raw) > LARGEST:
            raise ValueError("it is too large")
        content = json.loads(raw)
        check_format(path, content.pop("format"), FORMAT)
        config = from_json(content.pop("settings"))
        seed, code, columns = content.pop("seed"), content.pop("code"), content.pop("columns")
        known = type(seed) is int and 0 <= seed < 2**32 and isinstance(code, str)
        if not known or set(columns) - set(MEASURED) != set(COLUMNS):
            raise ValueError("it has another seed, code or columns than a run has")
        _check_about(content)
        arrays = {name: _array(columns[name], kind) for name, kind in COLUMNS.items()}
        arrays |= {name: _measured(columns[name]) for name in MEASURED if name in columns}
    except DAMAGE as error:
        raise StorageError(f"{path} is damaged or no stored run: {error}. {WHAT_TO_DO}") from error
    run = Stored(config, seed, code, content, arrays)
    _check(path, run)
    return run


def _array(values: Any, kind: type) -> np.ndarray:
    """A column of numbers; whole ones must be whole."""
    allowed = (int, float) if kind is np.float32 else (int,)
    if not isinstance(values, list) or not all(type(x) in allowed for x in values):
        raise ValueError("a column holds something else than its numbers")
    with np.errstate(over="ignore"):  # too large for a float32: infinite, which is refused later
        return np.array(values, kind)


def _measured(values: Any) -> np.ndarray:
    """A column of floats; None is NaN."""
    if not isinstance(values, list):
        raise ValueError("a column holds something else than its numbers")
    return _array([float("nan") if x is None else x for x in values], np.float32)


def _check_about(about: Mapping[str, Any]) -> None:
    """Refuse notes that the report cannot use."""
    hardware, found = about["hardware"], about["versions"]
    good = (
        type(about["seconds"]) in (int, float)
        and 0 <= about["seconds"] < float("inf")
        and all(isinstance(hardware[name], str) for name in ("processor", "system"))
        and type(hardware["cores"]) is int
        and all(isinstance(text, str) for text in found.values())
        and isinstance(about.get("verified", {}), dict)
    )
    if not good:
        raise ValueError("its time, machine or versions are not those of a run")


WHAT_TO_DO = "Move it away, or restore it (it may be under version control), and run the command again."


def load(path: Path) -> Stored:
    """A stored run."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    return unpack(data, path)


def load_all(results: Path) -> dict[Key, Stored]:
    """Every run of the results folder."""
    runs: dict[Key, Stored] = {}
    for path in sorted((results / "runs").glob("*/*.json.gz")):
        run = load(path)
        if path != path_of(results, run.config, run.seed):
            where = path_of(results, run.config, run.seed)
            raise StorageError(f"{path} holds another run than its name says: it belongs at {where}. {WHAT_TO_DO}")
        runs[run.key] = run
    return runs


def _check(path: Path, run: Stored) -> None:
    """Refuse columns that no run can have."""
    c, honest = run.columns, run.config.agents - run.config.byzantine
    rows = len(c["trajectories"])
    good = (
        rows > 0
        and all(values.shape == (rows,) for values in c.values())
        and c["trajectories"][0] == 0
        and bool((np.diff(c["trajectories"]) >= 0).all())
        and c["trajectories_total"][0] >= 0
        and bool((np.diff(c["trajectories_total"]) >= 0).all())
        and bool(np.isfinite(c["test_return"]).all())
        and bool(((c["rule"] >= 0) & (c["rule"] < len(RULES))).all())
        and bool(((c["accepted_honest"] >= 0) & (c["accepted_honest"] <= honest)).all())
        and bool(((c["accepted_byzantine"] >= 0) & (c["accepted_byzantine"] <= run.config.byzantine)).all())
    )
    if not good:
        raise StorageError(f"{path} is damaged: its columns are not those of a run. {WHAT_TO_DO}")
