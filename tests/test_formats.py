"""What the previous edition wrote is read and gone on with; what a newer one wrote is refused, and says so."""

import importlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpg import Problem, StorageError, train_seeds
from fedpg.experiments import store
from fedpg.federation.messages import FORMAT, MessageError, decode_broadcast, decode_reply
from fedpg.storage import FOLDER_FORMAT, check_format, load_tensors, read_config, save_tensors
from fedpg.training.checkpoint import FILE, load_policy, policy_config
from tiny import TINY

OLD = Path(__file__).parent / "data" / "edition-0.2"
"""Written by version 0.2.0: four agents, 7 rounds of at most 30 trajectories, seed 3; a broadcast and its reply."""
SEED, ROUNDS = 3, 7


@pytest.fixture(scope="module")
def problem(tiny: Callable[..., Problem]) -> Problem:
    return tiny(batch=(4, 5))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD / "run", tmp_path / "run"))


def messages() -> dict[str, dict[str, Any]]:
    """As they crossed the network: what is bytes there is hexadecimal in the file."""
    content = json.loads((OLD / "messages.json").read_text())
    raw = ("key", "pool_key")
    return {
        kind: {k: bytes.fromhex(v) if k in raw or k.startswith("vector.") else v for k, v in values.items()}
        for kind, values in content.items()
    }


def test_the_page_on_releasing_names_the_formats_that_the_code_has():
    root = Path(__file__).parents[1]
    page = (root / "docs" / "releasing.md").read_text()
    rows = re.findall(r"(?m)\| `(\w+)` in `src/(fedpg/[\w/]+)\.py` \| (\w+)", page)
    named = {(path, name): number for name, path, number in rows}
    there = {
        (str(path.relative_to(root / "src").with_suffix("")), name)
        for path in (root / "src").rglob("*.py")
        for name in re.findall(r"(?m)^(\w*FORMAT) = ", path.read_text())
    }
    assert set(named) == there
    for (path, name), number in named.items():
        value = getattr(importlib.import_module(path.replace("/", ".")), name)
        assert str(value).split()[-1] == number, (path, name)  # some say what they are, before it


def test_the_settings_of_an_older_run_folder_are_read(folder: Path):
    config, seed = read_config(folder)
    assert "format" not in json.loads((folder / "config.json").read_text())
    assert seed == SEED
    assert {name: getattr(config, name) for name in TINY} == TINY | {"trajectories": 30, "batch": (4, 5)}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def alike(new: Any, old: Any) -> bool:
    """The same, but for the last digits of means, which are now those of float64."""
    numbers = isinstance(new, float) and isinstance(old, float)
    return bool(np.isclose(new, old, rtol=1e-6)) if numbers else bool(new == old)


@pytest.mark.slow
def test_an_older_run_is_resumed_from_its_checkpoint_and_made_longer(folder: Path, problem: Problem):
    before = rows_of(folder)
    run = train_seeds(problem, [SEED], folder, resume=True)[0]
    assert run.finished
    assert len(run.records) > ROUNDS
    for after, row in zip(rows_of(folder), before, strict=False):
        assert after.keys() >= row.keys()
        assert [name for name, value in row.items() if not alike(after[name], value)] == []
    assert json.loads((folder / "config.json").read_text())["format"] == FOLDER_FORMAT


def test_an_older_policy_file_is_read(folder: Path, problem: Problem):
    path = folder / "policy.safetensors"
    assert policy_config(path).hidden == TINY["hidden"]
    assert all(np.isfinite(value).all() for value in load_policy(path, problem).values())


def test_an_older_stored_run_is_read(folder: Path):
    run = store.unpack((OLD / "stored.json.gz").read_bytes(), OLD / "stored.json.gz")
    rows = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert run.seed == SEED
    assert run.returns.tolist() == [np.float32(row["test_return"]) for row in rows]


def test_older_messages_are_refused_with_what_to_do(problem: Problem):
    """What is carried has changed since: a message and its reply go whole."""
    both = messages()
    update = r"messages of format 2, not 3: update fedpg at the other end"
    with pytest.raises(MessageError, match=update):
        decode_broadcast(both["broadcast"], problem.config, problem.policy.size)
    with pytest.raises(MessageError, match=update):
        decode_reply(both["reply"], 7, problem.policy.size, problem.algorithm.reply)


def test_a_newer_run_folder_is_refused(folder: Path):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": str(int(FOLDER_FORMAT) + 1)}))
    with pytest.raises(StorageError, match=r"config\.json was written by a newer fedpg .* update fedpg"):
        read_config(folder)


def test_a_newer_checkpoint_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as newer:
        newer.setattr("fedpg.storage.FORMAT", "2")
        save_tensors(folder / FILE, "checkpoint", {"x": np.zeros(1)}, {"settings": {}})
    with pytest.raises(StorageError, match="newer fedpg"):
        load_tensors(folder / FILE, "checkpoint")


def test_a_newer_stored_run_is_refused(monkeypatch: pytest.MonkeyPatch):
    path = OLD / "stored.json.gz"
    run = store.unpack(path.read_bytes(), path)
    with monkeypatch.context() as newer:
        newer.setattr(store, "FORMAT", "fedpg run 2")
        data = store.pack(run)
    with pytest.raises(StorageError, match="newer fedpg"):
        store.unpack(data, path)


@pytest.mark.parametrize(("number", "who"), [(FORMAT + 1, "here"), (FORMAT - 1, "at the other end")])
def test_messages_of_another_format_say_who_must_update(number: int, who: str, problem: Problem):
    values = messages()["broadcast"] | {"format": number, "of_tomorrow": 1}
    with pytest.raises(MessageError, match=f"update fedpg {who}"):
        decode_broadcast(values, problem.config, problem.policy.size)


@pytest.mark.parametrize("found", ["0", "-1", "two", "", None, [], "fedpg arena 1", "fedpg run"])
def test_what_is_no_format_of_this_kind_is_refused(found: Any):
    with pytest.raises(StorageError, match="is of the format"):
        check_format(Path("file"), found, "fedpg run 1")
    check_format(Path("file"), "fedpg run 1", "fedpg run 3")
