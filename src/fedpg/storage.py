"""Files: written whole or not at all, and checked when they come back."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from fedpg.config import Config, from_json, to_json
from fedpg.errors import ConfigError
from fedpg.machine import versions

FORMAT = "1"
"""Of checkpoints and policy files. A reader takes its own and all older ones; a change that older readers would
misunderstand raises it."""
FOLDER_FORMAT = "2"
"""Of run folders, in config.json. 1, which has no number there, is that of 0.2 and before."""
UNFINISHED = ".unfinished"
"""How the names of temporary files end: what a killed process may leave behind."""


class StorageError(RuntimeError):
    """A file that could not be written, or that cannot be trusted; the message says which, and what to do."""


def write_whole(path: Path, data: bytes | str) -> None:
    """Replace a file by `data` in one step: a reader, or a crash at any moment, sees the old file or the new one."""
    raw = data.encode() if isinstance(data, str) else data
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED)
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}. The file is as it was before; make room and try again "
            "(a training run goes on with --resume), or choose another --out."
        ) from error


def remove_unfinished(folder: Path, name: str = "") -> None:
    """Delete the temporary files, of all files or of one, of a process that was killed while it wrote."""
    for path in folder.glob(f".{name}.*{UNFINISHED}" if name else f".*{UNFINISHED}"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[None]:
    """Alone among processes that lock this folder; the system forgets the lock when a process ends, however.

    It waits for the others, or raises BlockingIOError.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(handle)


def save_tensors(path: Path, kind: str, tensors: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
    """A safetensors file with what it is (`about` has the settings), and a digest of what it holds."""
    arrays = {name: np.require(value, requirements="C") for name, value in tensors.items()}
    header = {"format": FORMAT, "kind": kind, "about": about, "digest": _digest(arrays, about)}
    # One entry, because safetensors writes several in random order: the same content is the same bytes.
    write_whole(path, safetensors.numpy.save(arrays, {"fedpg": json.dumps(header)}))


def load_tensors(path: Path, kind: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What `save_tensors` wrote, or a StorageError if this is anything else."""
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise StorageError(f"{path} is no {kind}: it is not a file")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        raise StorageError(f"there is no {kind} at {path}") from None
    except (OSError, safetensors.SafetensorError, ValueError, TypeError, AttributeError) as error:
        raise StorageError(f"{path} is damaged or no {kind}: {error}") from error
    try:
        header = json.loads(metadata["fedpg"])
        found = header["format"], header["kind"]
        about, digest = header["about"], header["digest"]
    except (KeyError, ValueError, TypeError) as error:
        raise StorageError(f"{path} is damaged or no {kind} of fedpg") from error
    if found[1] != kind:
        raise StorageError(f"{path} is no {kind}, but a {found[1]}")
    check_format(path, found[0], FORMAT)
    if digest != _digest(arrays, about):
        raise StorageError(f"{path} is damaged: its content does not match its digest")
    if not isinstance(about, dict) or not isinstance(about.get("settings"), dict):
        raise StorageError(f"{path} is damaged: it has no settings")
    return arrays, about


def check_format(path: Path, found: Any, known: str) -> None:
    """Refuse a file whose format (a number, or a kind and a number) is newer than `known`, or of another kind."""
    theirs, _, number = str(found).rpartition(" ")
    kind, _, newest = known.rpartition(" ")
    if theirs != kind or not number.isdecimal() or int(number) < 1:
        raise StorageError(f"{path} is of the format {str(found)!r:.40}, not {known!r}")
    if int(number) > int(newest):
        raise StorageError(
            f"{path} was written by a newer fedpg (its format is {found}; this one reads up to {known}): update fedpg"
        )


def _digest(arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(arrays):
        value = arrays[name]
        digest.update(f"{name} {value.dtype} {value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def read_config(folder: Path) -> tuple[Config, int]:
    """The settings and the seed of a run folder."""
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text())
        check_format(path, values.get("format", "1"), FOLDER_FORMAT)
        return from_json(values["settings"]), int(values["seed"])
    except FileNotFoundError:
        raise StorageError(f"{folder} is not a run folder: it has no config.json") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        raise StorageError(f"{path} is damaged: {error}") from error


def write_config(folder: Path, config: Config, seed: int) -> None:
    """What `read_config` reads, and by what versions the run was made."""
    values = {"format": FOLDER_FORMAT, "settings": to_json(config), "seed": seed, "versions": versions()}
    write_whole(folder / "config.json", json.dumps(values, indent=2) + "\n")
