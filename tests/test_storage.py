"""Files are written whole or not at all, and what comes back is checked; nothing is overwritten in an error."""

import errno
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
import tensorboardX.event_file_writer

import fedpg.cli
import fedpg.training.run
from fedpg import Problem, Run, StorageError, make_config, train_seeds
from fedpg.storage import load_tensors, read_config, save_tensors, write_config, write_whole
from fedpg.training.checkpoint import FILE, load_checkpoint, load_policy, policy_config, save_checkpoint, save_policy
from fedpg.training.records import Records
from fedpg.training.rounds import first_state

SEED = 3
Content = Callable[[Path], dict[str, bytes]]
DiskFills = Callable[[str, int], pytest.MonkeyPatch]


@pytest.fixture(scope="module")
def problem(tiny: Callable[..., Problem]) -> Problem:
    return tiny()


@pytest.fixture(scope="module")
def undisturbed(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_seeds(problem, [SEED], tmp_path_factory.mktemp("undisturbed") / "run")[0]


@pytest.fixture
def run_folder(undisturbed: Run, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(undisturbed.folder, tmp_path / "run"))


@pytest.fixture
def saved_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedpg.training.run, "SECONDS_PER_CHECKPOINT", -1.0)


@pytest.fixture
def disk_fills() -> Iterator[DiskFills]:
    """From the write of the file of that name after so many of its kind there is no room; `undo` makes room."""
    with pytest.MonkeyPatch.context() as patch:

        def after(name: str, written: int) -> pytest.MonkeyPatch:
            seen, replace = [], os.replace

            def full(source: str, target: Path) -> None:
                seen.append(target.name)
                if seen.count(name) > written:
                    no_space()
                replace(source, target)

            patch.setattr(os, "replace", full)
            return patch

        yield after


def no_space(*arguments: Any, **options: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def same_run(a: Run, b: Run) -> None:
    for name in ("policy.safetensors", "policy-uniform.safetensors", FILE):
        first = safetensors.numpy.load_file(a.folder / name)
        second = safetensors.numpy.load_file(b.folder / name)
        assert first.keys() == second.keys()
        different = [key for key in first if first[key].tobytes() != second[key].tobytes()]
        assert set(different) <= {"log/seconds"}


def test_a_file_is_replaced_by_all_of_the_new_content(tmp_path: Path):
    path = tmp_path / "file"
    write_whole(path, "old, and longer than the new one")
    write_whole(path, "naïve")
    write_whole(tmp_path / "bytes", b"\x00\xff")
    assert path.read_bytes() == "naïve".encode()
    assert (tmp_path / "bytes").read_bytes() == b"\x00\xff"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bytes", "file"]


@pytest.mark.parametrize("broken", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_full_disk_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, exists: bool, content: Content
):
    path = tmp_path / "file"
    if exists:
        path.write_text("old")
    before = content(tmp_path)
    monkeypatch.setattr(os, broken, no_space)
    with pytest.raises(StorageError) as refused:
        write_whole(path, "new")
    assert content(tmp_path) == before
    for words in (str(path), "No space left", "make room"):
        assert words in str(refused.value)


def test_a_folder_that_is_not_there_is_an_error_with_the_path(tmp_path: Path):
    with pytest.raises(StorageError, match="absent"):
        write_whole(tmp_path / "absent" / "file", "new")


def test_tensors_come_back_as_they_were(tmp_path: Path):
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([True, False]), "c": np.int32(7)}
    save_tensors(tmp_path / "file", "policy", tensors, {"settings": {"x": 1}})
    loaded, about = load_tensors(tmp_path / "file", "policy")
    assert about == {"settings": {"x": 1}}
    assert {k: (v.dtype, v.shape, v.tobytes()) for k, v in loaded.items()} == {
        k: (np.asarray(v).dtype, np.asarray(v).shape, np.asarray(v).tobytes()) for k, v in tensors.items()
    }


def test_the_same_tensors_make_the_same_file(tmp_path: Path):
    tensors = {"a": np.arange(6, dtype=np.float32), "b": np.ones(3)}
    for i in range(8):
        save_tensors(tmp_path / str(i), "policy", tensors, {"settings": {"x": 1}, "seed": 3})
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_no_single_wrong_bit_goes_unnoticed(tmp_path: Path):
    path = tmp_path / "file"
    save_tensors(path, "policy", {"w": np.arange(9, dtype=np.float32), "b": np.arange(3)}, {"settings": {"x": 1}})
    good = path.read_bytes()
    for i in range(len(good)):
        for bit in range(0, 8, 3):
            path.write_bytes(good[:i] + bytes([good[i] ^ 1 << bit]) + good[i + 1 :])
            with pytest.raises(StorageError, match="file"):
                load_tensors(path, "policy")


@pytest.mark.parametrize(
    ("name", "written", "rounds"),
    [(FILE, 0, 0), ("records.jsonl", 0, 1), (FILE, 2, 2), ("records.jsonl", 2, 3), ("policy.safetensors", 0, None)],
)
@pytest.mark.usefixtures("saved_every_round")
def test_a_run_on_a_full_disk_keeps_its_last_checkpoint_and_goes_on_from_it(
    problem: Problem, undisturbed: Run, tmp_path: Path, disk_fills: DiskFills, name: str, written: int, rounds: Any
):
    folder = tmp_path / "run"
    full = disk_fills(name, written)
    with pytest.raises(StorageError, match=f"{folder}/{name}.*No space left.*--resume"):
        train_seeds(problem, [SEED], folder)
    assert [path for path in folder.iterdir() if path.name.startswith(".")] == []
    if rounds == 0:
        assert not (folder / FILE).exists()
    else:
        state, records = load_checkpoint(folder, problem, SEED)
        assert len(records) == int(state.round) == (len(undisturbed.records) if rounds is None else rounds)
    full.undo()
    same_run(train_seeds(problem, [SEED], folder, resume=True)[0], undisturbed)


@pytest.mark.usefixtures("saved_every_round")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_disk_too_full_for_tensorboard_as_well_is_no_other_error(
    problem: Problem, undisturbed: Run, tmp_path: Path, disk_fills: DiskFills
):
    folder = tmp_path / "run"
    full = disk_fills(FILE, 2)
    full.setattr(tensorboardX.event_file_writer.EventsWriter, "flush", no_space)
    with pytest.raises(StorageError, match=str(folder)):
        train_seeds(problem, [SEED], folder)
    full.undo()
    same_run(train_seeds(problem, [SEED], folder, resume=True)[0], undisturbed)


@pytest.mark.usefixtures("saved_every_round")
def test_the_command_on_a_full_disk_says_what_to_do_and_ends_with_2(
    problem: Problem,
    tmp_path: Path,
    disk_fills: DiskFills,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(fedpg.cli.train, "validate", lambda _: problem.config)
    disk_fills(FILE, 1)
    folder = tmp_path / "run"
    assert fedpg.cli.main(["train", "--out", str(folder), "--quiet"]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    for words in ("fedpg: ", str(folder), "No space left", "--resume"):
        assert words in message


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    good = path.read_bytes()
    path.write_bytes(good[:-50] + bytes([good[-50] ^ 1]) + good[-49:])


def foreign(path: Path) -> None:
    safetensors.numpy.save_file({"layer.weight": np.zeros((3, 3), np.float32)}, path)


def foreign_numbers(path: Path) -> None:
    header = json.dumps({"layer.weight": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "truncated": truncate,
    "flipped": flip,
    "empty": lambda path: path.write_bytes(b""),
    "random": lambda path: path.write_bytes(np.random.default_rng(0).bytes(5000)),
    "json": lambda path: path.write_text(json.dumps({"round": 3})),
    "foreign": foreign,
    "foreign numbers": foreign_numbers,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


def refuses_to_resume(problem: Problem, folder: Path, content: Content) -> None:
    before = content(folder)
    with pytest.raises(StorageError) as refused:
        train_seeds(problem, [SEED], folder, resume=True)
    assert str(folder / FILE) in str(refused.value)
    assert content(folder) == before


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_refused_by_name_and_nothing_is_overwritten(
    problem: Problem, run_folder: Path, damage: str, content: Content
):
    DAMAGE[damage](run_folder / FILE)
    refuses_to_resume(problem, run_folder, content)


def test_a_damaged_checkpoint_is_refused_before_the_run_is_made_longer(
    tiny: Callable[..., Problem], run_folder: Path, content: Content
):
    flip(run_folder / FILE)
    refuses_to_resume(tiny(trajectories=90), run_folder, content)


@pytest.mark.parametrize(
    "other", [{"learning_rate": 0.5}, {"hidden": (9,)}, {"agents": 5}, {"optimizer": "sgd"}], ids=str
)
def test_a_checkpoint_of_other_settings_is_refused(
    problem: Problem, tiny: Callable[..., Problem], run_folder: Path, other: dict[str, Any], content: Content
):
    theirs = tiny(**other)
    save_checkpoint(run_folder, theirs, SEED, first_state(theirs, SEED), Records(theirs.config))
    refuses_to_resume(problem, run_folder, content)


def test_a_checkpoint_of_another_seed_is_refused(problem: Problem, run_folder: Path, content: Content):
    save_checkpoint(run_folder, problem, SEED + 1, first_state(problem, SEED + 1), Records(problem.config))
    refuses_to_resume(problem, run_folder, content)


@pytest.mark.parametrize(
    "missing", ["log/round", "log/accepted", ".theta", ".optimizer[0].mu", ".key", ".counted", ".round"]
)
def test_a_checkpoint_without_all_of_its_tensors_is_refused(
    problem: Problem, run_folder: Path, missing: str, content: Content
):
    tensors, about = load_tensors(run_folder / FILE, "checkpoint")
    save_tensors(run_folder / FILE, "checkpoint", {k: v for k, v in tensors.items() if k != missing}, about)
    assert missing in tensors
    refuses_to_resume(problem, run_folder, content)


@pytest.mark.slow
def test_an_aggregator_that_remembered_other_things_in_an_older_version_begins_anew_and_nothing_else_does(
    tiny: Callable[..., Problem], tmp_path: Path
):
    problem = tiny(aggregator="centred-clipping")
    train_seeds(problem, [SEED], tmp_path / "run")
    tensors, about = load_tensors(tmp_path / "run" / FILE, "checkpoint")
    (memory,) = [name for name in tensors if name.startswith(".aggregator") and tensors[name].any()]
    save_tensors(tmp_path / "run" / FILE, "checkpoint", tensors | {memory: np.stack([tensors[memory]] * 2)}, about)
    notes: list[str] = []
    state, records = load_checkpoint(tmp_path / "run", problem, SEED, notes.append)
    assert len(notes) == 1
    assert "'centred-clipping' remembered other things: it begins anew" in notes[0]
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(state.aggregator))
    np.testing.assert_array_equal(state.theta, tensors[".theta"])
    longer = tiny(aggregator="centred-clipping", trajectories=3 * problem.config.trajectories)
    (resumed,) = train_seeds(longer, [SEED], tmp_path / "run", resume=True)
    assert len(resumed.records) > len(records)


def test_a_checkpoint_with_too_few_records_is_refused(problem: Problem, run_folder: Path, content: Content):
    tensors, about = load_tensors(run_folder / FILE, "checkpoint")
    tensors["log/ratio"] = tensors["log/ratio"][:-1]
    save_tensors(run_folder / FILE, "checkpoint", tensors, about)
    refuses_to_resume(problem, run_folder, content)


@pytest.mark.parametrize("about", [{}, {"seed": SEED}, []], ids=str)
def test_a_checkpoint_that_does_not_say_whose_it_is_is_refused(
    problem: Problem, run_folder: Path, about: Any, content: Content
):
    tensors, _ = load_tensors(run_folder / FILE, "checkpoint")
    save_tensors(run_folder / FILE, "checkpoint", tensors, about)
    refuses_to_resume(problem, run_folder, content)


def test_a_policy_is_no_checkpoint(problem: Problem, run_folder: Path, content: Content):
    shutil.copy(run_folder / "policy.safetensors", run_folder / FILE)
    refuses_to_resume(problem, run_folder, content)


def test_a_checkpoint_is_no_policy(run_folder: Path):
    with pytest.raises(StorageError, match=FILE):
        policy_config(run_folder / FILE)


def test_a_policy_comes_back_as_it_was(problem: Problem, undisturbed: Run):
    path = undisturbed.folder / "policy.safetensors"
    assert policy_config(path) == problem.config
    loaded = load_policy(path, problem)
    assert {k: np.asarray(v).tobytes() for k, v in loaded.items()} == {
        k: np.asarray(v).tobytes() for k, v in undisturbed.policy.params.items()
    }


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_policy_is_refused_by_name(problem: Problem, run_folder: Path, damage: str):
    path = run_folder / "policy.safetensors"
    DAMAGE[damage](path)
    with pytest.raises(StorageError) as refused:
        load_policy(path, problem)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("settings", [{"hidden": (9,)}, {"hidden": (8, 8)}, {"hidden": ()}], ids=str)
def test_a_policy_of_another_network_is_refused(
    problem: Problem, tiny: Callable[..., Problem], tmp_path: Path, settings: dict[str, Any]
):
    theirs = tiny(**settings)
    save_policy(tmp_path / "theirs", theirs.config, theirs.policy, first_state(theirs, 0).theta)
    with pytest.raises(StorageError, match="theirs"):
        load_policy(tmp_path / "theirs", problem)


@pytest.mark.parametrize("value", [np.float32(np.nan), np.float32(np.inf), np.float64(0.5), np.int32(1)], ids=repr)
def test_a_policy_of_anything_but_finite_numbers_is_refused(problem: Problem, run_folder: Path, value: Any):
    path = run_folder / "policy.safetensors"
    tensors, about = load_tensors(path, "policy")
    tensors["w0"] = np.full_like(tensors["w0"], value, dtype=value.dtype)
    save_tensors(path, "policy", tensors, about)
    with pytest.raises(StorageError, match=r"policy\.safetensors"):
        load_policy(path, problem)


@pytest.mark.parametrize("about", [{}, [], {"settings": 3}, {"settings": {"agents": -1}}, {"settings": []}], ids=str)
def test_a_policy_without_settings_that_can_be_read_is_refused(run_folder: Path, about: Any):
    path = run_folder / "policy.safetensors"
    tensors, _ = load_tensors(path, "policy")
    save_tensors(path, "policy", tensors, about)
    with pytest.raises(StorageError, match=r"policy\.safetensors"):
        policy_config(path)


def test_the_settings_of_a_run_come_back_as_they_were(tmp_path: Path):
    config = make_config(preset="paper", attack_options=("scale=4",))
    write_config(tmp_path, config, 7)
    assert read_config(tmp_path) == (config, 7)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        "{}",
        '{"settings": {}}',
        '{"settings": [], "seed": 0}',
        '{"settings": {"agents": 0}, "seed": 0}',
        '{"settings": {"agent": 3}, "seed": 0}',
        '{"settings": {}, "seed": "x"}',
        '{"settings": {"batch": {}}, "seed": 0}',
        "\udcff",
    ],
)
def test_damaged_settings_are_refused_by_name_and_nothing_is_overwritten(
    problem: Problem, run_folder: Path, text: str, content: Content
):
    (run_folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    before = content(run_folder)
    with pytest.raises(StorageError, match=r"config\.json"):
        train_seeds(problem, [SEED], run_folder, resume=True)
    assert content(run_folder) == before


def test_what_a_kill_left_half_written_does_not_stop_a_run_from_going_on(
    problem: Problem, undisturbed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Killed(BaseException):
        pass

    def killed(*arguments: Any) -> None:
        raise Killed

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(Killed):
            train_seeds(problem, [SEED], folder)
    same_run(train_seeds(problem, [SEED], folder, resume=True)[0], undisturbed)
