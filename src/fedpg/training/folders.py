"""Run folders: whose they are, what is in them, and that nobody else writes there."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from fedpg.config import Config
from fedpg.storage import UNFINISHED, StorageError, locked, read_config, write_config
from fedpg.training.checkpoint import check_progress


def new_folder(config: Config) -> Path:
    """A folder under `runs/` that does not exist yet."""
    base = Path("runs") / config.name
    candidates = [base, *(base.with_name(f"{base.name}-{i}") for i in range(2, 10_000))]
    return next(path for path in candidates if not path.exists())


def check_folder(folder: Path, config: Config, seed: int, resume: bool) -> None:
    """Refuse a folder that holds something else, or more than a resumed run would go on from."""
    try:
        exists = folder.exists()
    except OSError as error:
        raise StorageError(f"{folder} cannot be a run folder: {error.strerror or error}") from error
    if resume and (folder / "config.json").exists():
        theirs, their_seed = read_config(folder)
        changed = [name for name, value in vars(config).items() if getattr(theirs, name) != value]
        if their_seed != seed:
            raise StorageError(f"{folder} belongs to seed {their_seed}, not {seed}")
        if set(changed) - {"trajectories"}:
            differences = ", ".join(f"{n} = {getattr(theirs, n)!r} there, {getattr(config, n)!r} now" for n in changed)
            raise StorageError(f"{folder} belongs to other settings ({differences}): give those, or another --out")
        if config.trajectories < theirs.trajectories:
            raise StorageError(
                f"{folder} runs to {theirs.trajectories} trajectories; a resumed run can be made longer, not shorter"
            )
        check_progress(folder, config, seed)
        return
    if exists and (not folder.is_dir() or any(not p.name.endswith(UNFINISHED) for p in folder.iterdir())):
        hint = "give another --out"
        if (folder / "config.json").exists():
            hint = "give --resume to go on with it, or another --out"
        elif any(folder.glob("seed-*/config.json")):
            hint = "it holds the runs of several seeds; give those seeds and --resume, or another --out"
        raise StorageError(f"{folder} exists already: {hint}")


@contextlib.contextmanager
def made_before(folder: Path) -> Iterator[None]:
    """The folder is there, and can be written to, before anything is computed; it goes again if it stays empty."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the run folder {folder}: {error.strerror or error}") from error
    if not os.access(folder, os.W_OK):
        raise StorageError(f"cannot write to the run folder {folder}: give another --out")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # it holds something
            folder.rmdir()


def make_folder(folder: Path, config: Config, seed: int, fill: Callable[[Path], None] = lambda folder: None) -> None:
    """A folder with the settings in it; those of a run to be resumed stay until its checkpoint has been read.

    `fill` writes what else belongs to a run before its first round: a folder with settings is complete.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the run folder {folder}: {error.strerror or error}") from error
    fill(folder)
    if not (folder / "config.json").exists():
        write_config(folder, config, seed)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Refuse a folder that another process trains in."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked(folder, wait=False))
        except BlockingIOError:
            raise StorageError(f"{folder} is being trained by another process: wait for it, or stop it") from None
        yield
