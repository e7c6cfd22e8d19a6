"""`fedpg theory lab`: runs the experiments one by one, stores each when it is done, and draws the figures."""

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fedpg.errors import ConfigError, unknown
from fedpg.screen import seconds_left
from fedpg.storage import StorageError, remove_unfinished, write_whole
from fedpg.theory.lab import QUICK, Note, Result, Scale
from fedpg.theory.rules import experiment_error, experiment_rules
from fedpg.theory.sweeps import experiment_agents, experiment_alpha, experiment_epsilon

EXPERIMENTS: dict[str, Callable[[Scale, Note], Result]] = {
    "epsilon": experiment_epsilon,
    "agents": experiment_agents,
    "alpha": experiment_alpha,
    "error": experiment_error,
    "rules": experiment_rules,
}
FORMAT = 1
WEIGHTS = {"epsilon": 298, "agents": 89, "alpha": 315, "error": 219, "rules": 78}
"""The seconds that each took when the stored results were measured, for the time left."""


def run_lab(out: Path, quick: bool = False, only: Sequence[str] = (), quiet: bool = False) -> dict[str, Result]:
    """Every experiment that `out` does not hold yet; then all that it holds."""
    for name in only:
        if name not in EXPERIMENTS:
            raise unknown("experiment", name, EXPERIMENTS)
    scale = QUICK if quick else Scale()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the folder {out}: {error.strerror or error}; choose another --out") from error
    remove_unfinished(out)
    wanted = [name for name in EXPERIMENTS if not only or name in only]
    missing = [name for name in wanted if not (out / f"{name}.json").exists()]
    found = {name: read_result(out, name, scale) for name in wanted if name not in missing}
    with _progress(missing, quiet) as report:
        for name in missing:
            began = time.monotonic()
            result = EXPERIMENTS[name](scale, lambda share, what: report(name, share, what))  # noqa: B023
            taken = round(time.monotonic() - began, 1)
            about = {"format": FORMAT, "experiment": name, "scale": _plain(scale), "seconds": taken}
            write_whole(out / f"{name}.json", _compact(about | {"result": result}))
            found[name] = result
            report(name, 1.0, f"done in {taken:.0f} s")
    return {name: found[name] for name in wanted}


def read_result(out: Path, name: str, scale: Scale) -> Result:
    """A stored result, if it is whole and was measured at this scale."""
    path = out / f"{name}.json"
    try:
        stored = json.loads(path.read_text())
        if stored["format"] != FORMAT or stored["experiment"] != name:
            raise ValueError("it is of another kind")
        measured, result = stored["scale"], dict(stored["result"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is damaged ({error}): delete it, and run again") from error
    if measured != _plain(scale):
        raise ConfigError(
            f"{path} was measured with other repetitions or points: give another folder with --out, or delete it"
        )
    return result


def _plain(scale: Scale) -> Any:
    return json.loads(json.dumps(scale._asdict()))


def _compact(value: dict[str, Any]) -> str:
    """JSON with a line for each row of a table: it stays small, and two versions can be compared."""

    def lines(value: Any, depth: int) -> str:
        if isinstance(value, dict) and depth < 2:
            inside = (f"{json.dumps(k)}: {lines(v, depth + 1)}" for k, v in value.items())
            return "{\n" + ",\n".join(inside) + "\n}"
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "[\n" + ",\n".join(json.dumps(row) for row in value) + "\n]"
        return json.dumps(value)

    return lines(value, 0) + "\n"


@dataclasses.dataclass
class _Clock:
    """How much of all that is missing is done, and how long the rest may take."""

    missing: list[str]
    began: float = dataclasses.field(default_factory=time.monotonic)

    def share(self, name: str, part: float) -> float:
        total = sum(WEIGHTS[n] for n in self.missing)
        before = sum(WEIGHTS[n] for n in self.missing[: self.missing.index(name)])
        return (before + WEIGHTS[name] * part) / total

    def left(self, share: float) -> float:
        return seconds_left(share, 1 - share, time.monotonic() - self.began) or 0.0


@contextlib.contextmanager
def _progress(missing: list[str], quiet: bool) -> Any:
    """Says where the lab is: a bar on a terminal, a line every ten seconds elsewhere, or nothing."""
    clock = _Clock(missing)
    if quiet or not missing:
        yield lambda name, share, what: None
        return
    if sys.stdout.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(20), TimeRemainingColumn(compact=True))
        with Progress(*columns, console=Console()) as bar:
            task = bar.add_task("", total=1.0)
            yield lambda name, share, what: bar.update(
                task, completed=clock.share(name, share), description=f"{name}: {what}"
            )
        return
    said = -1e9

    def line(name: str, share: float, what: str) -> None:
        nonlocal said
        now, done = time.monotonic(), clock.share(name, share)
        if now - said < 10 and share < 1:
            return
        said = now
        left = f", about {clock.left(done):.0f} s left" if 0.02 < done < 1 else ""
        print(f"{100 * done:3.0f}% {name}: {what}{left}", flush=True)

    yield line
