"""Folders with an exported policy: written, and read back for `fedpg evaluate` and `fedpg play`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedpg.config import Config, from_json, to_json
from fedpg.errors import ConfigError
from fedpg.export import as_numpy, as_onnx
from fedpg.export.card import card, history_of, interval_of
from fedpg.export.network import network_of
from fedpg.machine import versions
from fedpg.policies import Params
from fedpg.problem import Problem
from fedpg.storage import StorageError, check_format, write_whole
from fedpg.tasks import AnyTask
from fedpg.training.each import FILE
from fedpg.training.load import to_use

ABOUT = "policy.json"
FORMAT = "fedpg policy 1"
Form = Literal["numpy", "onnx"]
FORMS: dict[str, tuple[str, ...]] = {"numpy": as_numpy.FILES, "onnx": as_onnx.FILES}
"""What a folder of each form holds, besides README.md and policy.json."""


def export_policy(
    problem: Problem,
    params: Params,
    config: Config,
    to: Form,
    out: Path,
    run: Path,
    returns: np.ndarray,
    agents: Mapping[str, list[Any]] | None = None,
) -> list[Path]:
    """Write the policy, its card and its settings into the folder `out`; returns the files.

    `config` are the settings that it was trained with, `run` is the folder with its records, `returns` are those
    of greedy episodes, and `agents` is what the tasks of its agents differ in.
    """
    network, history = network_of(problem, params), history_of(run)
    about: dict[str, Any] = {
        "format": FORMAT,
        "form": to,
        "task": network.task,
        "settings": to_json(config),
        "seed": history.seed,
        "versions": dict(history.versions),
        "exported_by": versions(),
        "return": None if not len(returns) else dict(zip(("mean", "low", "high"), interval_of(returns), strict=True)),
    }
    if to == "numpy":
        files = as_numpy.to_numpy(network)
        use = ["```python", "from policy import act", "", "action = act(observation)  # or many: [n, F]", "```"]
        use += ["", "In this folder, or with it on the path; `policy.py` and `policy.npz` belong together."]
    else:
        files = as_onnx.to_onnx(network, {"fedpg": json.dumps(about)})
        use = ["```python", "import onnxruntime", ""]
        use += ['session = onnxruntime.InferenceSession("policy.onnx")']
        use += ['action = session.run(["action"], {"observation": observations})[0]  # [n, F], float32', "```", ""]
        others = "`logits`" if network.discrete else "`mean` and `std`, before scaling"
        use += [f"Other outputs: {others}. Operators of opset {as_onnx.OPSET}."]
    if agents:
        files[FILE] = (json.dumps({"parameters": agents}) + "\n").encode()
    files["README.md"] = card(config, network, history, returns, use).encode()
    files[ABOUT] = (json.dumps(about, indent=2) + "\n").encode()  # last: then it is complete
    _refuse(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the folder {out}: {error.strerror or error}") from error
    if not agents:
        (out / FILE).unlink(missing_ok=True)  # of what was exported here before
    for name, data in files.items():
        write_whole(out / name, data)
    return [out / name for name in files]


def _refuse(out: Path) -> None:
    """A folder that holds something else than an exported policy stays as it is."""
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not is_exported(out))):
        raise StorageError(
            f"{out} exists already, and holds something else than an exported policy: give another --out"
        )


def is_exported(path: Path) -> bool:
    """Whether this is a folder with an exported policy, or the file of one."""
    return (_folder(path) / ABOUT).exists()


def _folder(path: Path) -> Path:
    files = {ABOUT, *(name for form in FORMS.values() for name in form)}
    return path.parent if path.name in files and not path.is_dir() else path


def load_exported(
    path: Path, task: AnyTask | None = None, per_agent: bool = False
) -> tuple[Problem, dict[str, np.ndarray]]:
    """The problem and the tensors of an exported policy; with `task`, in another task than its own."""
    config, tensors = read_exported(path)
    problem = to_use(config, task, per_agent=per_agent)
    shapes = {name: value.shape for name, value in tensors.items()}
    if shapes != problem.policy.shapes:
        raise StorageError(f"{path} holds the policy of another task or network: {shapes}, not {problem.policy.shapes}")
    return problem, tensors


def read_exported(path: Path) -> tuple[Config, dict[str, np.ndarray]]:
    """The settings that an exported policy was trained with, and its tensors."""
    folder = _folder(path)
    about = folder / ABOUT
    try:
        content = json.loads(about.read_text())
        check_format(about, content.get("format"), FORMAT)
        config = from_json(content["settings"])
        file = folder / FORMS[content["form"]][-1]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        raise StorageError(f"{about} is damaged: {error}") from error
    try:
        tensors = (as_numpy if content["form"] == "numpy" else as_onnx).tensors_of(file.read_bytes())
    except ConfigError:  # onnx is not installed
        raise
    except Exception as error:  # of NumPy's reader or ONNX's: whatever is no such file
        raise StorageError(f"{file} is damaged, or no policy: {type(error).__name__}") from error
    if not all(value.dtype == np.float32 and np.isfinite(value).all() for value in tensors.values()):
        raise StorageError(f"{file} is damaged: its tensors are not those of a policy")
    return config, tensors
