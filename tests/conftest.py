"""A tiny federation for the tests that train, and the memory that each file gives back."""

import compiling  # noqa: F401  # isort: skip (JAX reads its settings when it is imported)
import ctypes
import dataclasses
import gc
import resource
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import settings
from jax import monitoring

from fedpg import Config, Problem, make_config, make_problem, train
from fedpg.federation.site import Responder, Site
from tiny import TINY

# The same examples everywhere, however slow the machine: a test that fails by chance tells nobody anything.
settings.register_profile("everywhere", derandomize=True, deadline=None)
settings.load_profile("everywhere")

LONG = (
    *("federation_crashes", "first_edition", "reproduce", "aggregator_contract", "federation", "theory_lab", "killed"),
    *("estimators", "extensions", "tasks", "bench", "attacks_crafted", "arena", "machines", "variants"),
)
"""The files that take longest, those that wait for other processes among those that compute: while one waits, another
has its core. Nobody should wait for one of them alone at the end."""
ROOM = 1.1e9
"""Bytes that a worker may have after a file before it forgets what it compiled."""
LARGEST = 1.15e9
"""Bytes that it may have after any test. One test alone takes up to 0.3 GB, and no worker should have 1.5 GB."""
SMALL = 0.8e9
"""Bytes that it may have before a test that takes half a gigabyte, which asks for `room`."""
PEAK = "fedpg_peak"
PEAKS = pytest.StashKey[list[float]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """After the longest come files that start servers and processes, which wait a lot. Small ones are left for the end:
    most of them train the same tiny problem, which a worker then has at hand."""
    rank = {f"test_{name}.py": place for place, name in enumerate(LONG)}
    waits = {item.path for item in items if item.get_closest_marker("network") or item.get_closest_marker("slow")}
    items.sort(key=lambda item: (rank.get(item.path.name, len(LONG)), item.path not in waits))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """What was left out for want of a browser is said, and not only counted; and how large a worker became."""
    left = [r for r in terminalreporter.stats.get("skipped", []) if "no Chromium here" in str(r.longrepr)]
    if left:
        terminalreporter.write_line(
            f"{len(left)} tests in a browser were left out: no Chromium here (apt-get install chromium)"
        )
    largest = max(config.stash.get(PEAKS, []), default=peak())  # without workers, it is this process
    terminalreporter.write_line(f"largest worker: {largest / 1e9:.2f} GB")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker says how large it became."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[PEAK] = peak()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker has ended; one that crashed has said nothing."""
    node.config.stash.setdefault(PEAKS, []).append(getattr(node, "workeroutput", {}).get(PEAK, 0.0))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was imported stays. Python would look through all of it again and again while JAX traces."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


@pytest.fixture(scope="module", autouse=True)
def _give_memory_back() -> Iterator[None]:
    """Compiled programs stay in memory until they are forgotten; not after every file, for that takes a second."""
    yield
    forget_above(ROOM)


@pytest.fixture(autouse=True)
def _stay_small() -> Iterator[None]:
    """Some files compile more than a worker may have. What a fixture of such a file compiled is then compiled again."""
    yield
    forget_above(LARGEST)


@pytest.fixture
def room() -> None:
    """For a test that takes half a gigabyte."""
    forget_above(SMALL)


def forget_above(limit: float) -> None:
    """Give memory back if there is more: what was freed, and if need be what was compiled."""
    for forget in (lambda: None, jax.clear_caches):
        if resident() <= limit:
            return
        forget()
        gc.collect()
        if sys.platform == "linux":
            getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)(0)


def resident() -> float:
    """Bytes of this process that are in memory; where nobody says so, as many as can be."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * float(resource.getpagesize())
    except OSError:
        return float("inf")


def peak() -> float:
    """The most bytes that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1.0 if sys.platform == "darwin" else 1024.0)


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Problem]:
    """Makes the tiny problem, with other settings instead."""
    return lambda **settings: make_problem(make_config(**(TINY | settings)))


@pytest.fixture(scope="session")
def as_options() -> Callable[[Config], list[str]]:
    """The tiny settings, or others in their place, as words of the command line."""

    def words(config: Config) -> list[str]:
        values = {name: getattr(config, name) for name in TINY}
        each = {f"--{k.replace('_', '-')}": v if isinstance(v, tuple) else (v,) for k, v in values.items()}
        return [str(word) for option, value in each.items() for word in (option, *value)]

    return words


@pytest.fixture(scope="session")
def content() -> Callable[[Path], dict[str, bytes]]:
    """Reads all files below a folder, by their paths."""
    return lambda folder: {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of the tiny problem; not to be changed."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert train(**TINY, out=folder).finished
    return folder


@pytest.fixture
def tiny_run(trained_folder: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may harm, alone in a folder of runs."""
    return Path(shutil.copytree(trained_folder, tmp_path / "runs" / "tiny"))


@pytest.fixture(scope="module")
def responders() -> Callable[[Config], Responder]:
    """The computation of a site, compiled once for all sites of the same settings."""
    known: dict[Config, Responder] = {}
    lock = threading.Lock()

    def responder(config: Config) -> Responder:
        config = dataclasses.replace(config, trajectories=1)
        if config not in known:
            known[config] = Site(make_problem(config))
        respond = known[config]

        def one_at_a_time(values: Mapping[str, Any]) -> dict[str, Any]:
            with lock:
                return respond(values)

        return one_at_a_time

    return responder


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """The names of what has been compiled in this test so far, in any thread."""
    names: list[str] = []

    def heard(event: str, seconds: float, **about: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(about.get("fun_name", "?"))

    monitoring.register_event_duration_secs_listener(heard)
    yield names
    monitoring.unregister_event_duration_listener(heard)
