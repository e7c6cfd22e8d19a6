"""What is promised of a run on another machine: the kernels of another processor, another number of cores."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

from fedpg import make_config, make_problem, train_seeds
from fedpg.experiments.compare import compare
from fedpg.experiments.cores import bound_to
from fedpg.experiments.store import Stored, from_folder
from tiny import TINY

pytestmark = [pytest.mark.slow, pytest.mark.simulators]

SEED = 3
NEWER = [name for name, here in __cpu_features__.items() if here and name in __cpu_dispatch__]
"""What NumPy's own loops would use of this processor."""
TASKS: dict[str, dict[str, Any]] = {
    "CartPole-v1": TINY | {"trajectories": 60},
    # Not HalfCheetah: its feet carry a difference in the last digit to the third within thirty steps.
    "InvertedPendulum-v5": TINY | {"trajectories": 15, "batch": (2, 3), "horizon": 30, "test_horizon": 30},
}
OLD = {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": " ".join(NEWER)}


def elsewhere(task: str, folder: Path, isa: str = "", cores: int | None = None, **environment: str) -> Stored:
    """The run by `fedpg train`, in a process that believes to be on another machine."""
    words = [str(word) for name, value in TASKS[task].items() for word in _option(name, value)]
    command = [sys.executable, "-m", "fedpg", "train", "--task", task, *words, "--seeds", str(SEED), "--quiet"]
    flags = os.environ.get("XLA_FLAGS", "") + (f" --xla_cpu_max_isa={isa}" if isa else "")
    with bound_to(set(sorted(os.sched_getaffinity(0))[:cores]) if cores else set()):
        subprocess.run(
            [*command, "--out", str(folder)], env=os.environ | {"XLA_FLAGS": flags} | environment, check=True
        )
    return from_folder(folder, "")


def _option(name: str, value: Any) -> list[Any]:
    return [f"--{name.replace('_', '-')}", *(value if isinstance(value, tuple) else (value,))]


@pytest.fixture(scope="module", params=["CartPole-v1", pytest.param("InvertedPendulum-v5", marks=pytest.mark.more)])
def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Stored]:
    task = str(request.param)
    folder = tmp_path_factory.mktemp("here") / "run"
    train_seeds(make_problem(make_config(task, **TASKS[task])), [SEED], folder)
    return task, from_folder(folder, "")


def test_a_run_is_the_same_to_rounding_on_one_core_of_a_very_old_processor(here: tuple[str, Stored], tmp_path: Path):
    task, mine = here
    assert mine.reached >= TASKS[task]["trajectories"]
    found = compare(mine, elsewhere(task, tmp_path / "there", isa="SSE4_2", cores=1, **OLD))
    assert found.same, str(found)
