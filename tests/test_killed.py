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
from same import POLICIES, SEED, same_run, tensor_bits

pytestmark = [pytest.mark.slow]
AsOptions = Callable[[Config], list[str]]
Start = Callable[[Path], "subprocess.Popen[str]"]


# Every round is saved, and writing is slow, so that a kill finds files half written.
DRIVER = """
import os, sys, time
import fedpg.training.run as run
from fedpg.cli import main

fsync = os.fsync
def slow(handle):
    time.sleep(0.01)
    fsync(handle)
    time.sleep(0.01)

os.fsync = slow
run.SECONDS_PER_CHECKPOINT = -1.0
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def long_run(tiny: Callable[..., Problem], tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_seeds(tiny(trajectories=200, batch=(4, 4)), [SEED], tmp_path_factory.mktemp("long") / "run")[0]


@pytest.fixture(scope="module")
def start(long_run: Run, as_options: AsOptions) -> Start:
    """Starts, or resumes, the long run in a process of its own."""
    options = [*as_options(long_run.config), "--seeds", str(SEED), "--resume"]

    def process(folder: Path) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, "train", *options, "--out", str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return process


def wait_for(process: "subprocess.Popen[str]", event: Callable[[], bool]) -> None:
    """Until something has happened in a process that is still running."""
    deadline = time.monotonic() + 300
    while not event():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"the process ended too early, or nothing happened: {process.communicate()}")
        time.sleep(0.0005)


def rounds_saved(folder: Path) -> int:
    return int(safetensors.numpy.load_file(folder / FILE)[".round"].item())


def changed(path: Path) -> Callable[[], bool]:
    """Whether a file has been replaced, or made, since now."""
    before = path.stat().st_ino if path.exists() else None
    return lambda: path.exists() and path.stat().st_ino != before


def test_a_run_killed_at_any_moment_resumes_to_the_same_bits(start: Start, long_run: Run, tmp_path: Path):
    folder = tmp_path / "run"
    saved = [0]
    for file, pause in [("config.json", 0.0), (FILE, 0.0), (FILE, 0.005), ("records.jsonl", 0.013), (FILE, 0.03)]:
        process = start(folder)
        wait_for(process, changed(folder / file))
        time.sleep(pause)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        if file != "config.json":
            saved.append(rounds_saved(folder))
    assert all(a < b for a, b in itertools.pairwise(saved)), "every process went on where the last one died"
    assert saved[-1] < len(long_run.records)
    process = start(folder)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert f"{long_run.records.trajectories[-1]}/200 trajectories" in output
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
    process = start(folder)
    wait_for(process, changed(folder / FILE))
    process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert f"--out {folder} --resume" in errors
    assert 0 < rounds_saved(folder) < len(long_run.records)
    same_run(train_seeds(tiny(trajectories=200, batch=(4, 4)), [SEED], folder, resume=True)[0], long_run)
