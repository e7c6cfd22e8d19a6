"""The version of the code that decides a run's numbers: what its source files mean, not how they are written."""

import ast
import functools
import hashlib
import importlib.util
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fedpg.errors
from fedpg.aggregators import AGGREGATORS, PRE
from fedpg.attacks import ATTACKS
from fedpg.config import Config
from fedpg.tasks import TASKS

BASE = Path(fedpg.errors.__file__).parent

RULES = AGGREGATORS | PRE
EVERY_RUN = (
    *("pieces.py", "assembly.py", "trajectories.py", "values.py", "estimators.py", "metric.py", "attacks/attack.py"),
    *("policies/__init__.py", "policies/policy.py", "policies/mlp.py"),
    *("tasks/__init__.py", "tasks/task.py", "tasks/registry.py", "tasks/compiled.py"),
    *("aggregators/aggregator.py", "aggregators/guards.py", "algorithms/__init__.py"),
    *("problem.py", "agents.py", "per_agent.py", "server.py", "federation/__init__.py", "federation/local.py"),
    *("training/rounds.py", "training/harm.py", "training/records.py"),
)
"""What the numbers of any run depend on, besides its settings and its seed. Not config.py: a stored run has all of its
settings with it, whatever the defaults are by now."""
COMPILED = ("tasks/cartpole.py",)
SIMULATED = ("tasks/pool.py", "tasks/simulators.py", "columns.py")
DIFFERENT = ("tasks/differences.py", "tasks/physics.py", "tasks/models.py", "training/each.py")
"""What only runs outside JAX depend on, and those of agents that differ."""
COMPOSED = ("aggregators/registry.py",)
"""What only composed aggregators depend on: who is told of how many liars."""
OWN_POLICIES = ("policies/own.py", "columns.py")
"""What only a user's own policies depend on."""
ALGORITHMS = {
    "natural": ("algorithms/natural.py",),
    "gpomdp": ("algorithms/gpomdp.py",),
    "svrpg": ("algorithms/svrpg.py", "algorithms/released.py"),
    "fedpg-br": ("algorithms/fedpg_br.py", "algorithms/released.py"),
    "byzpg": ("algorithms/byzpg.py",),
    "res-nharpg": ("algorithms/res_nharpg.py",),
    "n-pg-igt": ("algorithms/n_pg_igt.py",),
    "fedsvrpg-m": ("algorithms/fedsvrpg_m.py",),
}


def decisive(config: Config) -> tuple[str, ...]:
    """The source files that decide the numbers of a run with these settings, relative to the package.

    Of a user's own algorithm nobody knows what it uses, so it has all of them. Of an
    aggregator or an attack it is the file that it is made in, and those of the same room that this one imports.
    """
    names = (
        *EVERY_RUN,
        *(COMPILED if config.task in TASKS else SIMULATED),
        *(DIFFERENT if config.vary else ()),
        *(OWN_POLICIES if config.policy != "mlp" else ()),
        *(name for part in config.aggregator.split("+") for name in _behind(RULES.get(part))),
        *(COMPOSED if "+" in config.aggregator else ()),
        *(_behind(ATTACKS.get(config.attack)) if config.byzantine else ()),
        *ALGORITHMS.get(config.algorithm, [name for names in ALGORITHMS.values() for name in names]),
    )
    return tuple(dict.fromkeys(names))


def _behind(maker: Callable[..., Any] | None) -> Iterator[str]:
    """The file in which a piece is made, and those of its room that it needs; nothing for a user's own."""
    if maker is not None:
        module = maker.__module__.split(".")
        yield from _needed("/".join(module[1:]) + ".py")


@functools.cache
def _needed(name: str) -> tuple[str, ...]:
    room = name.split("/")[0]
    found = [name]
    for node in ast.walk(_parsed((BASE / name).read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"fedpg.{room}."):
            found += _needed(f"{room}/{str(node.module).split('.')[-1]}.py")
    return tuple(dict.fromkeys(found))


def fingerprint(config: Config) -> str:
    """The version of the code that decides the numbers of a run with these settings."""
    named = (config.task, config.algorithm, config.attack, config.policy, config.optimizer)
    varied = [word for word in config.vary if "=" not in word]  # functions, and settings of ours
    own = [name for name in (*named, *config.aggregator.split("+"), *varied) if ":" in name]
    return _digest(decisive(config), tuple(own))


@functools.cache
def _digest(names: tuple[str, ...], own: tuple[str, ...] = ()) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0{meaning((BASE / name).read_text())}\0".encode())
    for name in own:
        digest.update(f"{name}\0{_own_meaning(name.split(':')[0])}\0".encode())
    return digest.hexdigest()[:16]


def _own_meaning(module: str) -> str:
    """What the module of a user's own piece means; what that one imports is the user's concern."""
    try:
        spec = importlib.util.find_spec(module)
        return meaning(Path(str(spec.origin)).read_text()) if spec is not None else ""
    except (ImportError, ValueError, OSError, SyntaxError):  # no file that can be read
        return ""


@functools.cache
def meaning(source: str) -> str:
    """The syntax tree of a source without docstrings and without what is raised, which no run outlives.

    Comments and layout are not in it. The same in every Python.
    """
    return " ".join(_words(_parsed(source)))


_one_at_a_time = threading.Lock()


def _parsed(source: str) -> ast.Module:
    """The syntax tree; Python 3.11 counts the depth of all trees under way together, so threads take turns."""
    with _one_at_a_time:
        return ast.parse(source)


def _words(node: Any) -> Iterator[str]:
    # `ast.dump` has other words in other versions of Python: fields that are new there, and empty ones.
    if isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name, value in () if isinstance(node, ast.Raise) else ast.iter_fields(node):
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
