"""The data goes one way through the package, and nothing unsafe crosses a file boundary."""

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import gymnasium
import pytest

import fedpg
from fedpg.aggregators import AGGREGATORS
from fedpg.algorithms import ALGORITHMS
from fedpg.attacks import ATTACKS, Attack, make_attack
from fedpg.cli import COMMANDS, USAGE
from fedpg.config import BUILT_IN, Config, PresetName
from fedpg.presets import OTHER_TASKS, PRESETS, RENAMED, TASKS
from fedpg.tasks import TASKS as COMPILED
from fedpg.training.entry import Settings

SOURCE = Path(fedpg.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# The package itself ("fedpg") takes its names from training, so only what comes after that may import it.
ORDER = (
    *("errors", "extras", "machine", "programs", "screen", "child", "columns", "pieces", "config", "presets"),
    *("policies", "trajectories", "values", "tasks", "estimators", "metric", "attacks", "aggregators"),
    *("problem", "per_agent", "agents", "server", "federation", "algorithms", "assembly"),
    *("storage", "plots", "training", "summary", "experiments", "arena", "play", "export"),
    *("sites", "flower", "serving", "dashboard", "bench", "theory"),
    *("fedpg", "cli", "__main__"),
)
UNSAFE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "torch"}


def imports(source: str) -> Iterator[str]:
    """The modules that a source imports, anywhere in it, by their full names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            if node.module == "fedpg":
                parts = {path.stem for path in SOURCE.iterdir()}
                yield from (f"fedpg.{alias.name}" if alias.name in parts else "fedpg" for alias in node.names)
            else:
                yield str(node.module)


def part(module: str) -> str:
    """The part of the package that a module belongs to: fedpg.training.run -> training."""
    names = module.split(".")
    return names[1] if len(names) > 1 else names[0]


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def backward(name: str, source: str) -> list[str]:
    """What a part of the package imports that does not come before it."""
    inside = [part(m) for m in imports(source) if m.split(".")[0] == "fedpg"]
    return [other for other in inside if other != name and ORDER.index(other) > ORDER.index(name)]


def test_the_import_checker_sees_every_kind_of_import():
    source = "import numpy.linalg\nfrom fedpg import storage, train\ndef f():\n    from fedpg.cli import main\n"
    assert list(imports(source)) == ["numpy.linalg", "fedpg.storage", "fedpg", "fedpg.cli"]
    assert backward("plots", source) == ["fedpg", "cli"]


# The package's own names come from everywhere.
@pytest.mark.parametrize(
    "path", [p for p in FILES if p != SOURCE / "__init__.py"], ids=lambda p: str(p.relative_to(SOURCE))
)
def test_a_module_imports_only_from_those_before_it(path: Path):
    assert part_of(path) in ORDER, "a new module needs its place in the order"
    assert backward(part_of(path), path.read_text()) == []


def test_storage_knows_the_settings_and_the_machine_and_nothing_else_of_the_package():
    inside = {part(m) for m in imports((SOURCE / "storage.py").read_text()) if m.startswith("fedpg")}
    assert inside == {"config", "errors", "machine"}


def test_nobody_outside_the_room_of_the_tasks_asks_what_kind_a_task_is():
    """A Task is a Task: only its room knows whether JAX, EnvPool or Gymnasium simulates it."""
    kinds = {"fedpg.tasks.pool", "fedpg.tasks.compiled", "fedpg.tasks.cartpole"}
    found = {
        str(path.relative_to(SOURCE))
        for path in FILES
        if part_of(path) not in ("tasks", "bench", "theory") and kinds & set(imports(path.read_text()))
    }
    assert found == set()


def test_only_the_adapter_touches_flower():
    """What carries messages between machines can be exchanged: one room knows Flower."""
    found = {part_of(path) for path in FILES if any(m.split(".")[0] == "flwr" for m in imports(path.read_text()))}
    assert found <= {"flower", "bench"}


@pytest.mark.parametrize(
    "name", ["fedpg_br", "svrpg", "gpomdp", "released", "byzpg", "res_nharpg", "n_pg_igt", "fedsvrpg_m"]
)
def test_an_algorithm_is_one_file_of_less_than_100_lines(name: str):
    assert len((SOURCE / "algorithms" / f"{name}.py").read_text().splitlines()) < 100


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_module_uses_pickle_or_torch(path: Path):
    source = path.read_text()
    assert {m.split(".")[0] for m in imports(source)} & UNSAFE == set()
    assert "allow_pickle" not in source


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_module_is_longer_than_400_lines(path: Path):
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("form", ["paper", "released"])
@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_takes_its_form_numbers_and_words_and_changes_something(name: str, form: str):
    """Each has a default, and an annotation by which the command line reads it."""
    options = [p for p in inspect.signature(ATTACKS[name]).parameters.values() if p.name != "form"]
    for p in options:
        words = get_args(p.annotation)
        assert p.default in words if isinstance(p.default, str) else p.annotation in (int, float, float | None)
    attack = make_attack(name, form)
    assert isinstance(attack, Attack)
    assert any(part is not None for part in (attack.act, attack.rewards, attack.message, attack.recall, attack.length))


def test_python_and_the_command_line_take_the_same_settings():
    """`fedpg.train` names each of them, so that an editor can: those that are pieces, and those that are numbers."""
    pieces = set(inspect.signature(fedpg.train).parameters) - {"settings"}
    numbers = set(Settings.__annotations__)
    assert not pieces & numbers
    assert {field.name for field in dataclasses.fields(Config)} == numbers | (pieces & set(Config.__annotations__))


def test_everything_public_is_there():
    assert all(hasattr(fedpg, name) for name in fedpg.__all__)


def test_the_registries_agree_with_the_settings():
    names = {field.name for field in dataclasses.fields(Config)}
    assert set(ALGORITHMS) == set(BUILT_IN)
    assert set(PRESETS) == set(get_args(PresetName))
    assert set(TASKS) | {now for now, _ in RENAMED.values()} <= set(COMPILED) | set(gymnasium.registry)
    assert not set(RENAMED) & set(TASKS)
    assert all(task.id == name for name, task in COMPILED.items())
    assert Config().attack in ATTACKS
    assert Config().aggregator in AGGREGATORS
    for values in (*TASKS.values(), OTHER_TASKS, *PRESETS.values()):
        assert set(values) <= names
    assert all(set(values) == set(OTHER_TASKS) for values in TASKS.values())
    # A setting that one reading of the paper forgets would come from the other one.
    assert set(PRESETS["released"]) <= set(PRESETS["paper"])


def test_the_usage_names_every_command():
    assert all(f"  fedpg {name} " in USAGE for name in COMMANDS)
