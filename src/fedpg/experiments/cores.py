"""Cores of this machine for one run at a time: nobody's threads are more than the cores that they have."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

WAIT = 0.2


@contextlib.contextmanager
def lease(folder: Path, count: int, stop: threading.Event) -> Iterator[set[int]]:
    """`count` cores that no other leaseholder in this folder has, be it in another process; waits until they are free.

    Locks on files, which the system drops when a process ends, however it ends. Where processes cannot be bound to
    cores there is nothing to lease, and the set is empty; so it is if `stop` was set while waiting.
    """
    if not hasattr(os, "sched_getaffinity"):
        yield set()
        return
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    allowed = sorted(os.sched_getaffinity(0))
    wanted = min(count, len(allowed))
    held: dict[int, int] = {}
    try:
        while len(held) < wanted and not stop.is_set():
            for core in allowed:
                handle = os.open(folder / f"core-{core}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    held[core] = handle
                except OSError:
                    os.close(handle)
                if len(held) == wanted:
                    break
            else:  # all or none: two who wait for each other's cores would wait for ever
                _release(held)
                time.sleep(WAIT)
        yield set(held)
    finally:
        _release(held)


def _release(held: dict[int, int]) -> None:
    while held:
        os.close(held.popitem()[1])


@contextlib.contextmanager
def bound_to(cores: set[int]) -> Iterator[None]:
    """Processes that this thread starts in here use these cores only."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
