"""A process that is killed or interrupted, at any moment, loses nothing."""

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.numpy

from fedpg import Config, Problem, Run, train_seeds
from fedpg.training.checkpoint import FILE
from processes import Process, slow_writing
from same import POLICIES, SEED, same_run, tensor_bits

pytestmark = [pytest.mark.slow]
AsOptions = Callable[[Config], list[str]]
Start = Callable[[Path], Process]


@pytest.fixture(scope="module")
def long_run(tiny: Callable[..., Problem], tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_seeds(tiny(trajectories=200, batch=(4, 5)), [SEED], tmp_path_factory.mktemp("long") / "run")[0]


@pytest.fixture(scope="module")
def options(long_run: Run, as_options: AsOptions) -> list[str]:
    """The long run, begun or resumed, as words of the command line."""
    return ["train", *as_options(long_run.config), "--seeds", str(SEED), "--resume"]


@pytest.fixture(scope="module")
def start(options: list[str]) -> Start:
    """Starts, or resumes, the long run in a process of its own."""

    def process(folder: Path) -> Process:
        log = folder.with_suffix(".log")
        log.unlink(missing_ok=True)
        return Process(log, *options, "--out", str(folder), first=slow_writing)

    return process


def wait_for(process: Process, event: Callable[[], bool]) -> None:
    """Until something has happened in a process that is still running."""
    deadline = time.monotonic() + 300
    while not event():
        if process.ended or time.monotonic() > deadline:
            pytest.fail(f"the process ended too early, or nothing happened: {process.said}")
        time.sleep(0.0005)


def rounds_saved(folder: Path) -> int:
    return int(safetensors.numpy.load_file(folder / FILE)[".round"].item())


def changed(path: Path) -> Callable[[], bool]:
    """Whether a file has been replaced, or made, since now."""
    before = path.stat().st_ino if path.exists() else None
    return lambda: path.exists() and path.stat().st_ino != before


def test_a_run_killed_at_any_moment_resumes_to_the_same_bits(
    start: Start, options: list[str], long_run: Run, tmp_path: Path
):
    folder = tmp_path / "run"
    saved = [0]
    for file, pause in [("config.json", 0.0), (FILE, 0.0), (FILE, 0.005), ("records.jsonl", 0.013), (FILE, 0.03)]:
        with start(folder) as process:
            wait_for(process, changed(folder / file))
            time.sleep(pause)
            process.signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
        if file != "config.json":
            saved.append(rounds_saved(folder))
    assert all(a < b for a, b in itertools.pairwise(saved)), "every process went on where the last one died"
    assert saved[-1] < len(long_run.records)
    # The last one is a new interpreter, as a user starts it.
    command = [sys.executable, "-m", "fedpg", *options, "--out", str(folder)]
    last = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert last.returncode == 0, last.stderr
    assert f"{long_run.records.trajectories[-1]}/200 trajectories" in last.stdout
    for name in (*POLICIES, FILE):
        assert tensor_bits(folder / name) == tensor_bits(long_run.folder / name)
    for name in POLICIES:
        assert (folder / name).read_bytes() == (long_run.folder / name).read_bytes()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.more)], ids=lambda number: number.name
)
def test_an_interrupted_command_saves_says_how_to_go_on_and_ends_with_130(
    start: Start,
    tiny: Callable[..., Problem],
    long_run: Run,
    tmp_path: Path,
    number: signal.Signals,
):
    folder = tmp_path / "run"
    with start(folder) as process:
        wait_for(process, changed(folder / FILE))
        process.signal(number)
        assert process.wait() == 130
    assert "Traceback" not in process.said
    assert f"--out {folder} --resume" in process.said
    assert 0 < rounds_saved(folder) < len(long_run.records)
    same_run(train_seeds(tiny(trajectories=200, batch=(4, 5)), [SEED], folder, resume=True)[0], long_run)
