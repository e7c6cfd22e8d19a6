"""The examples of extensions, by name, and small runs with them."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedpg
from fedpg.problem import Problem
from tiny import TINY

EXTENSIONS = Path(__file__).parents[1] / "examples" / "extensions"
SMALL = TINY | {"batch": (4, 4), "trajectories": 16}
PLAIN = SMALL | {"trajectories": 6, "algorithm": "gpomdp", "aggregator": "mean"}
"""For what neither asks how the server learns nor whom it trusts."""
SEED = 7


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXTENSIONS)
        yield


def load(path: str) -> Any:
    """What `module:object` is."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def problem_of(**settings: Any) -> Problem:
    return fedpg.make_problem(fedpg.make_config(**(SMALL | settings)))
