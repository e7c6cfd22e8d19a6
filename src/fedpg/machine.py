"""What this machine is: its processor, the cores that may be used, and the packages that compute."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("fedpg", "jax", "jaxlib", "numpy", "optax", "gymnasium", "envpool", "mujoco")


def cores() -> int:
    """The cores that this thread may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> float:
    """The bytes of memory that this process may have; infinity where nobody says so."""
    try:
        whole = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):  # Windows
        return float("inf")
    try:
        return min(whole, float(Path("/sys/fs/cgroup/memory.max").read_text()))  # of a container
    except (OSError, ValueError):  # there is none, or it says "max"
        return whole


def processor() -> str:
    """The name of the processor."""
    named = (line.split(":", 1)[1].strip() for line in _description() if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def abilities() -> str:
    """What the processor can do: machine code for one is not for another."""
    lines = {line for line in _description() if line.startswith(("model name", "flags", "Features"))}
    return "".join(sorted(lines)) or f"{platform.machine()} {platform.processor()}"


def versions() -> dict[str, str]:
    """Python and the packages that compute."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _description() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return []
