"""Stored runs: to the bit, and nothing that is damaged is taken or touched."""

import ast
import dataclasses
import functools
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpg
from fedpg import Config, Problem, StorageError, make_config
from fedpg.config import BUILT_IN, to_json
from fedpg.experiments import fingerprint as fingerprints
from fedpg.experiments import store
from fedpg.experiments.compare import compare
from fedpg.experiments.fingerprint import decisive, fingerprint, meaning
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
    "no format": lambda c: c.pop("format"),
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


def test_a_new_setting_leaves_the_names_of_stored_runs_as_they_are(monkeypatch: pytest.MonkeyPatch):
    config = make_config(preset="released", agents=10, sigma=0.5)
    before = store.name_of(config)
    monkeypatch.setattr(store, "to_json", lambda c: to_json(c) | {"colour": "red"})
    assert store.name_of(config) == before


def test_settings_of_the_first_edition_are_read_by_their_old_names(tmp_path: Path):
    run = stored_run(make_config(preset="released", agents=10, byzantine=3, aggregator="r2", none_accepted="skip"))
    content = json.loads(gzip.decompress(store.pack(run)))
    old = content["settings"]
    old["filter"], old["nobody"], old["attack_form"] = old.pop("aggregator"), old.pop("none_accepted"), "figures"
    del old["policy"], old["aggregator_options"]
    assert store.unpack(gzip.compress(json.dumps(content).encode()), tmp_path).key == run.key


def test_harm_is_stored_where_it_was_measured_and_older_runs_have_none(tmp_path: Path):
    config = make_config(agents=10, byzantine=3)
    rows = [
        {"trajectories": 10 * i, "test_return": 1.0, "rule": "R1", "harm": i / 3, "harm_step": None} for i in (1, 2)
    ]
    first = {"round": 0, "trajectories": 0, "test_return": 1.0}
    run = store.from_rows(config, 0, [first, *rows], "")
    back = store.unpack(store.pack(run), tmp_path)
    np.testing.assert_array_equal(back.columns["harm"], np.array([np.nan, 1 / 3, 2 / 3], np.float32))
    assert np.isnan(back.columns["harm_step"]).all()
    older = store.from_rows(
        config, 0, [first, *({k: v for k, v in row.items() if "harm" not in k} for row in rows)], ""
    )
    assert set(store.unpack(store.pack(older), tmp_path).columns) == set(store.COLUMNS)
    assert compare(run, older).bits  # harm decides nothing
    content = json.loads(gzip.decompress(store.pack(run)))
    for wrong in (["a"] * 3, [0.5], "abc"):
        content["columns"]["harm"] = wrong
        with pytest.raises(StorageError, match="damaged"):
            store.unpack(gzip.compress(json.dumps(content).encode()), tmp_path)


def test_a_run_under_another_runs_name_is_refused(tmp_path: Path):
    path = store.save(tmp_path, stored_run())
    path.rename(path.with_name("seed-1.json.gz"))
    with pytest.raises(StorageError, match="holds another run than its name says"):
        store.load_all(tmp_path)


# The fingerprint of the code

BASE = Path(fedpg.__file__).parent
WORDS = {"errors.py", "storage.py", "machine.py", "config.py"}
"""What goes wrong, how files are written, how many cores there are, what is set by default: none decides a number of
a run whose settings are known."""
CHOOSING = {
    "tasks/__init__.py",
    "tasks/registry.py",
    "aggregators/__init__.py",
    "aggregators/registry.py",
    "attacks/__init__.py",
    "algorithms/__init__.py",
    "policies/__init__.py",
}
"""These import everything that a name may stand for; which of it a run depends on is in its settings."""
ELSEWHERE = {("policies/mlp.py", "columns.py")}
"""Of this a compiled run uses nothing: products of NumPy."""
DIFFERENT = {"tasks/differences.py", "tasks/physics.py", "tasks/models.py", "training/each.py"}
"""Of these a run whose agents are alike uses nothing."""
CONFIGS = {
    f"{task}, {algorithm}, {aggregator}, {policy}": make_config(
        task, "released", algorithm, aggregator=aggregator, policy=policy
    )
    for task in ("CartPole-v1", "LunarLander-v3")
    for algorithm in ("gpomdp", "svrpg", "fedpg-br")
    for aggregator in ("mean", "fedpg", "nnm+krum")
    for policy in ("mlp", "package.module:own")
}


@functools.cache
def imported(name: str) -> set[str]:
    """The files of the package that one of them imports."""

    def files_of(module: str) -> list[Path]:
        path = BASE.joinpath(*module.split(".")[1:])
        return [p for p in (path.with_suffix(".py"), path / "__init__.py") if p.exists() and path != BASE]

    found: list[Path] = []
    for node in ast.walk(ast.parse((BASE / name).read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedpg"):
            found += files_of(str(node.module))
            found += [f for alias in node.names for f in files_of(f"{node.module}.{alias.name}")]
    return {path.relative_to(BASE).as_posix() for path in found}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_fingerprint_covers_everything_that_a_run_imports(config: Config):
    covered = set(decisive(config))
    assert all((BASE / name).exists() for name in covered)
    assert {"training/rounds.py", "training/records.py", "assembly.py", "federation/local.py"} <= covered
    compiled = config.task == "CartPole-v1"
    for name in covered - CHOOSING:
        needs = imported(name) - WORDS - CHOOSING - DIFFERENT
        if compiled:
            needs -= {other for this, other in ELSEWHERE if this == name}
        assert needs <= covered, name
    # Whatever is in a room of pieces is one that a name stands for, or covered for everybody.
    pieces = {"tasks/cartpole.py": compiled, "tasks/pool.py": not compiled, "tasks/simulators.py": not compiled}
    pieces |= {f"algorithms/{x.replace('-', '_')}.py": config.algorithm == x for x in BUILT_IN}
    pieces |= {"algorithms/released.py": config.algorithm in ("svrpg", "fedpg-br")}
    pieces |= {"policies/own.py": config.policy != "mlp"} | dict.fromkeys(DIFFERENT, False)
    for room in ("tasks", "algorithms", "policies"):
        for path in (BASE / room).rglob("*.py"):
            name = path.relative_to(BASE).as_posix()
            assert (name in covered) == pieces.get(name, True), name
    judging = {"mean": [], "fedpg": ["fedpg", "sigma"], "nnm+krum": ["distances", "parts", "pre", "registry"]}[
        config.aggregator
    ]
    found = sorted(Path(name).stem for name in covered if name.startswith("aggregators/"))
    assert found == sorted(["aggregator", "guards", *judging])
    assert set(decisive(dataclasses.replace(config, vary=("gravity=0.1",)))) == covered | DIFFERENT
    lying = decisive(dataclasses.replace(config, byzantine=1, attack="opt-ipm"))
    assert {"attacks/adaptive.py", "attacks/crafted.py"} <= set(lying) - covered


def test_a_users_own_algorithm_may_use_all_of_ours():
    own = dataclasses.replace(make_config(), algorithm="package.module:own")
    assert set(decisive(make_config())) < set(decisive(own))
    assert {f"algorithms/{name}.py" for name in ("gpomdp", "svrpg", "fedpg_br", "released")} <= set(decisive(own))


SOURCE = '''
"""About the module."""
import math  # for pi

AREA = math.pi
"""About a number."""


class Shape:
    """About a class."""

    def area(self, r: float = 1.0) -> float:
        """About a function."""
        # Because of circles.
        if r < 0:
            raise ValueError("a word")
        return AREA * r**2 if r else f"{r:.1f}"
'''


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("# Because of circles.", "# For another reason.", True),
        ("About a function.", "What it does, in other words.", True),
        ("About a class.", "What it is.", True),
        ("About a number.", "Of a disc.", True),
        ("About the module.", "Another one.", True),
        ("AREA * r**2", "(AREA * (r ** 2))", True),
        ("a word", "two words", True),
        ("r < 0", "r < 1", False),
        ("r**2", "r**3", False),
        ("r: float = 1.0", "r: float = 2.0", False),
        ("math.pi", "math.e", False),
        (".1f", ".2f", False),
        ("if r else", "if not r else", False),
        ("def area", "def volume", False),
    ],
)
def test_a_source_means_what_it_does_and_not_how_it_is_written(old: str, new: str, same: bool):
    assert SOURCE.count(old) == 1 or old == "r**2"
    assert (meaning(SOURCE) == meaning(SOURCE.replace(old, new))) == same


def test_the_meaning_of_a_source_is_the_same_in_every_version_of_python():
    assert meaning("def f(x): 'Twice.'; return x + [1, None]") == (
        "(Module body= [ (FunctionDef name= 'f' args= (arguments args= [ (arg arg= 'x' ) ] ) body= [ (Return value= "
        "(BinOp left= (Name id= 'x' ctx= (Load ) ) op= (Add ) right= (List elts= [ (Constant value= 1 ) (Constant ) ] "
        "ctx= (Load ) ) ) ) ] ) ] )"
    )


@pytest.mark.slow
def test_a_change_makes_the_runs_old_that_depend_on_it_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cart, lander = make_config("CartPole-v1", "released", "gpomdp"), make_config("LunarLander-v3", "released")
    for name in {*decisive(cart), *decisive(lander)}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((BASE / name).read_text())
    monkeypatch.setattr(fingerprints, "BASE", tmp_path)
    monkeypatch.setattr(fingerprints, "meaning", functools.cache(meaning))  # of a text, which most files keep

    def codes() -> list[str]:
        fingerprints._digest.cache_clear()
        return [fingerprint(config) for config in (cart, lander)]

    def old_after(name: str, more: str) -> list[bool]:
        """Whether a change in one file gives the two runs another fingerprint."""
        before = codes()
        with open(tmp_path / name, "a") as file:
            file.write(more)
        return [now != then for now, then in zip(codes(), before, strict=True)]

    try:
        assert old_after("server.py", "# a comment\n") == [False, False]
        assert old_after("server.py", "LATER = 1\n") == [True, True]
        assert old_after("tasks/pool.py", "LATER = 1\n") == [False, True]
        assert old_after("algorithms/fedpg_br.py", "LATER = 1\n") == [False, True]
        assert old_after("tasks/cartpole.py", "LATER = 1\n") == [True, False]
        assert old_after("algorithms/gpomdp.py", "LATER = 1\n") == [True, False]
    finally:
        fingerprints._digest.cache_clear()


@pytest.mark.slow
def test_a_run_folder_is_stored_as_far_as_it_goes(
    tiny: Callable[..., Problem], content: Callable[[Path], dict[str, bytes]], tmp_path: Path
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
