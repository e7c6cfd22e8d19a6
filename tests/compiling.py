"""How the tests compile: in a hurry, and once for all processes and runs. Imported before anything of the package.

Most of their time would go into optimising code that runs once: a round is compiled in a second instead of seven. With
OPTIMISED=1 in the environment they compile as users do; `make test-kernels` runs those that rest on it again so.

What one run of the tests compiled is there for the next, in `.pytest_cache`. JAX writes its files in place, and tests
kill the processes that write them. So each run has a folder of its own, which begins with links to what is kept; at its
end the new files that can be unpacked are linked to what is kept. Two runs at once do not meet.
"""

import atexit
import contextlib
import hashlib
import os
import runpy
import shutil
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

HASTY = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",  # pytest's workers have all cores already
)
CACHE = "JAX_COMPILATION_CACHE_DIR"
ROOT = Path(__file__).parents[1]
KEPT = ROOT / ".pytest_cache"
LARGEST = 500e6
"""Bytes of all that is kept; programs that nobody uses any more are forgotten with all others."""
ABANDONED = 24 * 3600.0
"""Seconds after which the folder of a run is one that was killed."""


def kept_in(base: Path) -> Path:
    """Where programs are kept: apart for each processor, JAX, and way to compile."""
    abilities = runpy.run_path(str(ROOT / "src" / "fedpg" / "machine.py"))["abilities"]  # the package would import JAX
    differs = (abilities(), version("jax"), version("jaxlib"), os.environ.get("XLA_FLAGS", ""))
    return base / f"compiled-{hashlib.sha256(repr(differs).encode()).hexdigest()[:12]}"


def tidy(base: Path) -> None:
    """Remove what runs that were killed left behind, and everything if it is too much."""
    for folder in base.glob("compiling-*"):
        if time.time() - folder.stat().st_mtime > ABANDONED:
            shutil.rmtree(folder, ignore_errors=True)
    folders = list(base.glob("compiled-*"))
    if sum(path.stat().st_size for folder in folders for path in folder.iterdir()) > LARGEST:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def begin(base: Path, kept: Path) -> Path:
    """A folder for this run, with all that earlier ones have compiled."""
    base.mkdir(parents=True, exist_ok=True)
    tidy(base)
    folder = Path(tempfile.mkdtemp(prefix="compiling-", dir=base))
    try:
        for path in programs(kept):
            os.link(path, folder / path.name)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def end(folder: Path, kept: Path) -> None:
    """Keep what is new, then remove the folder."""
    try:
        kept.mkdir(exist_ok=True)
        known = {path.name for path in programs(kept)}
        for path in programs(folder):
            if path.name not in known and is_whole(path):
                with contextlib.suppress(FileExistsError):  # another run has kept it just now
                    os.link(path, kept / path.name)
    except OSError:  # somebody removes the folder, say: the next run compiles again
        pass
    shutil.rmtree(folder, ignore_errors=True)


def programs(folder: Path) -> Iterator[Path]:
    """The files of JAX in a folder."""
    return folder.glob("*-cache")


def is_whole(path: Path) -> bool:
    """Whether JAX can unpack it: one that was killed while it wrote leaves half a file."""
    try:
        from jax._src.compilation_cache import decompress_executable

        return bool(decompress_executable(path.read_bytes()))
    except Exception:  # whatever is wrong with it, or with that function in another JAX: it is only compiled again
        return False


# In the environment, so that pytest's workers and every process that a test starts have it from us.
flags = os.environ.get("XLA_FLAGS", "").split()
if not os.environ.get("OPTIMISED"):
    os.environ["XLA_FLAGS"] = " ".join([*flags, *(flag for flag in HASTY if flag not in flags)])
if CACHE not in os.environ:
    try:
        kept = kept_in(KEPT)
        os.environ[CACHE] = str(begin(KEPT, kept))
        atexit.register(end, Path(os.environ[CACHE]), kept)
    except OSError:  # a checkout that cannot be written to, or files that cannot be linked
        os.environ[CACHE] = tempfile.mkdtemp(prefix="fedpg-tests-")
        atexit.register(shutil.rmtree, os.environ[CACHE], ignore_errors=True)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# A cache for GPUs, whose path JAX would make a part of every key: then no run would find what another has compiled.
os.environ.setdefault("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "none")
