"""What a run has written is never shortened unasked: a lost or an old checkpoint stops a resumed run."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedpg
from federations import Server, federation
from fedpg import Problem, Run, StorageError, make_problem, train_seeds
from fedpg.cli import main
from fedpg.config import to_json
from fedpg.errors import SimulationError
from fedpg.experiments.fingerprint import fingerprint
from fedpg.experiments.store import name_of
from fedpg.experiments.work import work
from same import SEED, same_run

pytestmark = [pytest.mark.slow]
CHECKPOINT, RECORDS, POLICIES = (
    "checkpoint.safetensors",
    "records.jsonl",
    ("policy.safetensors", "policy-uniform.safetensors"),
)
Content = Callable[[Path], dict[str, bytes]]


@pytest.fixture(scope="module")
def problem(tiny: Callable[..., Problem]) -> Problem:
    return tiny()


@pytest.fixture(scope="module")
def whole(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run to its end."""
    return train_seeds(problem, [SEED], tmp_path_factory.mktemp("whole") / "run")[0]


@pytest.fixture(scope="module")
def half(tiny: Callable[..., Problem], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same run, but shorter."""
    return train_seeds(tiny(trajectories=30), [SEED], tmp_path_factory.mktemp("half") / "run")[0]


@pytest.fixture
def folder(whole: Run, tmp_path: Path) -> Path:
    """A copy of the whole run to take files from."""
    return Path(shutil.copytree(whole.folder, tmp_path / "run"))


def keep(folder: Path, *names: str) -> None:
    """Delete everything else, but for the settings and TensorBoard's log."""
    for path in folder.iterdir():
        if path.name not in ("config.json", *names) and "tfevents" not in path.name:
            path.unlink()


def refused(folder: Path, content: Content, start: Callable[[], Any]) -> str:
    """Why a run does not start; every file below the folder is as it was."""
    before = content(folder)
    with pytest.raises(StorageError) as error:
        start()
    assert content(folder) == before
    return str(error.value)


@pytest.mark.parametrize("left", [(RECORDS, *POLICIES), (RECORDS,), POLICIES, POLICIES[:1], POLICIES[1:]], ids=str)
def test_a_run_whose_checkpoint_is_gone_is_not_started_over(
    problem: Problem, folder: Path, content: Content, left: tuple[str, ...]
):
    keep(folder, *left)
    words = refused(folder, content, lambda: train_seeds(problem, [SEED], folder, resume=True))
    assert str(folder / CHECKPOINT) in words
    assert all(name in words for name in (*left, "missing", "put the checkpoint back", "--out"))


@pytest.mark.parametrize("longer", [[], ["--trajectories", "90"]], ids=["as it was", "longer"])
def test_the_command_says_what_is_missing_and_ends_with_2(
    folder: Path, content: Content, capsys: pytest.CaptureFixture[str], longer: list[str]
):
    (folder / CHECKPOINT).unlink()
    before = content(folder)
    assert main(["train", "--resume", "--out", str(folder), *longer]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fedpg: {folder / CHECKPOINT} is missing")
    assert content(folder) == before


def test_from_python_it_is_the_same_error(problem: Problem, folder: Path, content: Content):
    (folder / CHECKPOINT).unlink()
    settings = vars(problem.config)
    assert "missing" in refused(folder, content, lambda: fedpg.train(**settings, seed=SEED, out=folder, resume=True))


def test_a_checkpoint_of_an_earlier_round_than_the_records_is_refused(
    problem: Problem, half: Run, whole: Run, folder: Path, content: Content
):
    assert 0 < len(half.records) < len(whole.records)
    shutil.copy(half.folder / CHECKPOINT, folder / CHECKPOINT)
    words = refused(folder, content, lambda: train_seeds(problem, [SEED], folder, resume=True))
    assert str(folder / CHECKPOINT) in words
    assert all(f"round {len(run.records)}" in words for run in (half, whole))
    # What it says to do if one wants to go on from there does that.
    (folder / RECORDS).rename(folder.parent / RECORDS)
    same_run(train_seeds(problem, [SEED], folder, resume=True)[0], whole)


@pytest.mark.parametrize("left", [(), (RECORDS,)], ids=["no records yet", "records of an earlier round"])
def test_a_checkpoint_that_is_ahead_of_the_records_goes_on(
    problem: Problem, half: Run, whole: Run, folder: Path, left: tuple[str, ...]
):
    """A kill between the two leaves that: the checkpoint is written first."""
    keep(folder, CHECKPOINT)
    for name in left:
        shutil.copy(half.folder / name, folder / name)
    same_run(train_seeds(problem, [SEED], folder, resume=True)[0], whole)


def test_a_run_killed_before_its_first_checkpoint_starts(problem: Problem, whole: Run, folder: Path):
    keep(folder)
    (folder / ".checkpoint.safetensors.x.unfinished").write_bytes(b"half")
    assert any("tfevents" in path.name for path in folder.iterdir())
    same_run(train_seeds(problem, [SEED], folder, resume=True)[0], whole)


@pytest.mark.parametrize("how", ["lost", "old", "damaged"])
def test_one_bad_seed_of_several_stops_all_before_anything_is_written(
    problem: Problem, half: Run, whole: Run, tmp_path: Path, content: Content, how: str
):
    """Seed 1 has no folder yet, seed 2 could go on."""
    out = tmp_path / "runs"
    train_seeds(problem, [2, SEED], out)
    keep(out / "seed-2")
    path = out / f"seed-{SEED}" / CHECKPOINT
    if how == "lost":
        path.unlink()
    elif how == "old":
        shutil.copy(half.folder / CHECKPOINT, path)
    else:
        path.write_bytes(path.read_bytes()[:-1])
    words = refused(out, content, lambda: train_seeds(problem, [1, 2, SEED], out, resume=True))
    assert str(path) in words
    assert not (out / "seed-1").exists()


@pytest.mark.network
def test_a_server_whose_checkpoint_is_gone_does_not_start(tmp_path: Path, content: Content):
    made = federation(tmp_path / "f", agents=4)
    out = made.folder / "run"
    train_seeds(make_problem(made.config), [made.seed], out)
    (out / CHECKPOINT).unlink()
    before = content(out)
    with Server(made) as server:
        assert server.wait(120) == 2, server.said
        assert f"{out / CHECKPOINT} is missing" in server.said
    assert content(out) == before


def test_a_unit_of_an_experiment_whose_checkpoint_is_gone_is_an_error_that_says_so(
    problem: Problem, half: Run, tmp_path: Path, content: Content
):
    folder = tmp_path / fingerprint(problem.config) / name_of(problem.config) / f"seed-{SEED}"
    shutil.copytree(half.folder, folder)
    (folder / CHECKPOINT).unlink()
    before = content(folder)
    with pytest.raises(SimulationError, match=f"{CHECKPOINT} is missing"):
        list(work(to_json(problem.config), (SEED,), str(tmp_path), fingerprint(problem.config), 1))
    assert content(folder) == before
