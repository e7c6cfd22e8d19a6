"""Compiled programs, kept from one process to the next: a task that was seen before starts at once."""

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from fedpg.machine import abilities, cores


def keep_compiled(folder: Path | None = None) -> None:
    """Keep compiled programs in a folder, by default one of the user's cache, unless the user has chosen one."""
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(folder or _cache()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def wait_for_calls() -> None:
    """Compiled calls on a CPU end before they return. Every piece of a round waits for the one before it, so handing it
    to a thread of XLA and back only costs time. It must be said before anything is computed, and for the whole process:
    so commands say it, and the library does not."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def side_by_side(calls: Sequence[Callable[[], Any]]) -> None:
    """Make calls that compile, as many at a time as there are cores: the compiler itself has one thread each."""
    with ThreadPoolExecutor(max(1, min(len(calls), cores()))) as threads:
        for job in [threads.submit(call) for call in calls]:
            job.result()


def _cache() -> Path:
    """One folder for each kind of processor: homes may be shared, and machine code must not be."""
    home = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    base = Path(os.environ.get("XDG_CACHE_HOME") or home)
    return base / "fedpg" / hashlib.sha256(abilities().encode()).hexdigest()[:12]
