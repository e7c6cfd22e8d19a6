"""Stored runs: to the bit, and nothing that is damaged is taken or touched."""

import ast
import dataclasses
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpg
from fedpg import StorageError, make_config
from fedpg.agents import Problem
from fedpg.experiments import store
from fedpg.experiments.compare import compare
from fedpg.training import train_seeds
from stored import stored_run

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)


@SETTINGS
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
    st.integers(0, 2**32 - 1),
)
def test_a_stored_run_comes_back_to_the_bit(returns: list[float], seed: int):
    run = stored_run(seed=seed, returns=returns)
    again = store.unpack(store.pack(run), Path("x"))
    assert again.key == run.key
    assert compare(again, run).bits
    assert compare(run, again).bits
    assert again.about == run.about
    assert store.pack(again) == store.pack(run)


def test_a_run_is_known_by_its_settings_and_seed_but_not_by_its_length(tmp_path: Path):
    config = make_config(preset="released", agents=10)
    longer = dataclasses.replace(config, trajectories=9999)
    assert store.key_of(config, 0) == store.key_of(longer, 0) != store.key_of(config, 1)
    assert store.path_of(tmp_path, config, 0) == store.path_of(tmp_path, longer, 0)
    others = [
        make_config(preset="released", agents=10, **{k: v})
        for k, v in {"alpha": 0.2, "sigma": 1.0, "discount": 0.9}.items()
    ]
    assert len({store.name_of(c) for c in (config, *others)}) == 4


def write(results: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A stored run whose content has been changed."""
    path = store.save(results, stored_run())
    content = json.loads(gzip.decompress(path.read_bytes()))
    change(content)
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another format": lambda c: c.update(format="fedpg run 2"),
    "no settings": lambda c: c.pop("settings"),
    "impossible settings": lambda c: c["settings"].update(agents=-1),
    "unknown setting": lambda c: c["settings"].update(colour=1),
    "seed": lambda c: c.update(seed="0"),
    "seed out of range": lambda c: c.update(seed=-1),
    "no machine": lambda c: c.pop("hardware"),
    "a machine without cores": lambda c: c["hardware"].pop("cores"),
    "endless": lambda c: c.update(seconds=float("inf")),
    "no time": lambda c: c.update(seconds="2"),
    "versions": lambda c: c.update(versions={"jax": 1}),
    "returns that are words": lambda c: c["columns"].update(test_return=["1", "2", "3"]),
    "fewer than none": lambda c: c["columns"].update(trajectories_total=[-1, 5, 9]),
    "column missing": lambda c: c["columns"].pop("rule"),
    "column short": lambda c: c["columns"]["rule"].pop(),
    "not a number": lambda c: c["columns"].update(test_return=[float("nan")] * 3),
    "half an agent": lambda c: c["columns"].update(accepted_honest=[0, 1.5, 1]),
    "too many agents": lambda c: c["columns"].update(accepted_honest=[0, 11, 1]),
    "going back": lambda c: c["columns"].update(trajectories=[0, 9, 5]),
    "unknown rule": lambda c: c["columns"].update(rule=[0, 99, 1]),
    "too large a number": lambda c: c["columns"].update(trajectories=[0, 1, 10**30]),
    "not a list": lambda c: c.update(columns=3),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_named_and_stays_as_it_is(name: str, tmp_path: Path):
    path = write(tmp_path, DAMAGES[name])
    before = path.read_bytes()
    with pytest.raises(StorageError, match=r"seed-0\.json\.gz is damaged"):
        store.load_all(tmp_path)
    assert path.read_bytes() == before


def broken_stream() -> bytes:
    """A gzip file whose compressed bytes are not those of any text."""
    whole = gzip.compress(bytes(range(256)))
    return whole[:10] + b"\xff" * 20 + whole[30:]


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"x", gzip.compress(b"[]"), gzip.compress(b"{}")[:-4]),
        *(broken_stream(), gzip.compress(b"[" * 200_000)),
    ],
    ids=["empty", "a letter", "a list", "cut off", "broken", "deep"],  # gzip notes the time: not the bytes themselves
)
def test_what_is_no_stored_run_at_all_is_named(data: bytes, tmp_path: Path):
    path = store.save(tmp_path, stored_run())
    path.write_bytes(data)
    with pytest.raises(StorageError, match="Move it away"):
        store.load_all(tmp_path)


def test_a_file_that_unpacks_to_more_than_a_run_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store, "LARGEST", 100)
    with pytest.raises(StorageError, match="too large"):
        store.unpack(gzip.compress(b" " * 10_000), Path("x"))


def test_saving_a_run_leaves_the_unfinished_files_of_others_alone(tmp_path: Path):
    folder = store.save(tmp_path, stored_run()).parent
    mine, other = (folder / f".seed-{seed}.json.gz.abc.unfinished" for seed in (0, 1))
    for path in (mine, other):
        path.touch()
    store.save(tmp_path, stored_run())
    assert not mine.exists()
    assert other.exists()


def test_a_run_under_another_runs_name_is_refused(tmp_path: Path):
    path = store.save(tmp_path, stored_run())
    path.rename(path.with_name("seed-1.json.gz"))
    with pytest.raises(StorageError, match="holds another run than its name says"):
        store.load_all(tmp_path)


def test_the_fingerprint_covers_everything_that_a_round_imports():
    base = Path(fedpg.__file__).parent

    def files_of(module: str) -> list[Path]:
        path = base.joinpath(*module.split(".")[1:])
        return [p for p in (path.with_suffix(".py"), path / "__init__.py") if p.exists() and path != base]

    todo, seen = [base / "training" / "rounds.py"], set()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedpg"):
                todo += files_of(str(node.module))
                todo += [f for alias in node.names for f in files_of(f"{node.module}.{alias.name}")]
    covered = {
        p for name in store.DECISIVE for p in ([base / name] if name.endswith(".py") else (base / name).rglob("*.py"))
    }
    assert seen <= covered
    assert all(path.exists() for path in covered)


def test_a_run_folder_is_stored_as_far_as_it_goes(
    tiny: Callable[..., Problem], compiled: Any, content: Callable[[Path], dict[str, bytes]], tmp_path: Path
):
    (run,) = train_seeds(tiny(), [3], tmp_path / "run")
    before = content(tmp_path)
    found = store.from_folder(tmp_path / "run", "code", adopted=True)
    assert content(tmp_path) == before
    assert found.key == store.key_of(run.config, 3)
    assert found.trajectories.tolist() == run.records.trajectories.tolist()
    assert found.returns.tolist() == run.records.test_returns.tolist()
    assert found.columns["accepted_honest"][1:].tolist() == run.records.accepted()[0].tolist()
    assert found.about["steps"] == run.records.steps
    rows = (tmp_path / "run" / "records.jsonl").read_text().splitlines()
    unfinished = [*rows[:3], json.dumps(json.loads(rows[3]) | {"test_return": None})]
    (tmp_path / "run" / "records.jsonl").write_text("\n".join(unfinished))
    assert len(store.from_folder(tmp_path / "run", "").returns) == 3
    (tmp_path / "run" / "records.jsonl").write_text(rows[0] + "\n{")
    with pytest.raises(StorageError, match=r"records\.jsonl is damaged"):
        store.from_folder(tmp_path / "run", "")
