"""The version of the code that decides a run's numbers: what its source files mean, not how they are written."""

import ast
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fedpg.errors
from fedpg.config import Config
from fedpg.tasks import TASKS

BASE = Path(fedpg.errors.__file__).parent

EVERY_RUN = (
    *("config.py", "pieces.py", "assembly.py", "trajectories.py", "estimators.py", "attacks.py"),
    *("policies/__init__.py", "policies/policy.py", "policies/mlp.py"),
    *("tasks/__init__.py", "tasks/task.py", "tasks/registry.py", "tasks/compiled.py"),
    *("aggregators/__init__.py", "aggregators/aggregator.py", "algorithms/__init__.py"),
    *("problem.py", "agents.py", "server.py", "federation/__init__.py", "federation/local.py"),
    *("training/rounds.py", "training/records.py"),
)
"""What the numbers of any run depend on, besides its settings and its seed."""
COMPILED = ("tasks/cartpole.py",)
SIMULATED = ("tasks/pool.py", "tasks/simulators.py", "columns.py")
"""What only runs outside JAX depend on."""
JUDGING = ("aggregators/fedpg.py", "aggregators/sigma.py")
"""What only runs depend on whose aggregator is another than the mean."""
OWN_POLICIES = ("policies/own.py", "columns.py")
"""What only a user's own policies depend on."""
ALGORITHMS = {
    "gpomdp": ("algorithms/gpomdp.py",),
    "svrpg": ("algorithms/svrpg.py", "algorithms/released.py"),
    "fedpg-br": ("algorithms/fedpg_br.py", "algorithms/released.py"),
}


def decisive(config: Config) -> tuple[str, ...]:
    """The source files that decide the numbers of a run with these settings, relative to the package.

    Of a user's own algorithm nobody knows what it uses, so it has all of them; its own file is the user's concern.
    """
    names = (
        *EVERY_RUN,
        *(COMPILED if config.task in TASKS else SIMULATED),
        *(OWN_POLICIES if config.policy != "mlp" else ()),
        *(JUDGING if config.aggregator != "mean" else ()),
        *ALGORITHMS.get(config.algorithm, [name for names in ALGORITHMS.values() for name in names]),
    )
    return tuple(dict.fromkeys(names))


def fingerprint(config: Config) -> str:
    """The version of the code that decides the numbers of a run with these settings."""
    return _digest(decisive(config))


@functools.cache
def _digest(names: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0{meaning((BASE / name).read_text())}\0".encode())
    return digest.hexdigest()[:16]


def meaning(source: str) -> str:
    """The syntax tree of a source without docstrings; comments and layout are not in it. The same in every Python."""
    return " ".join(_words(ast.parse(source)))


def _words(node: Any) -> Iterator[str]:
    # `ast.dump` has other words in other versions of Python: fields that are new there, and empty ones.
    if isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and name == "body":
                value = [child for child in value if not _is_text(child)]
            if value is not None and value != []:
                yield f"{name}="
                yield from _words(value)
        yield ")"
    elif isinstance(node, list):
        yield "["
        for child in node:
            yield from _words(child)
        yield "]"
    else:
        yield ascii(node)


def _is_text(node: ast.AST) -> bool:
    """A docstring, of whatever it stands below."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
