"""Cores of this machine for one run at a time: nobody's threads are more than the cores that they have."""

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

WAIT = 0.2


@contextlib.contextmanager
def lease(count: int, stop: threading.Event) -> Iterator[set[int]]:
    """`count` cores that no other leaseholder of this user has, also in other processes; waits until they are free.

    Locks on files, which the system drops when a process ends, however it ends. Where processes cannot be bound to
    cores there is nothing to lease, and the set is empty; so it is if `stop` was set while waiting.
    """
    if not hasattr(os, "sched_getaffinity"):
        yield set()
        return
    import fcntl

    folder = Path(tempfile.gettempdir()) / f"fedpg-cores-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    allowed = sorted(os.sched_getaffinity(0))
    wanted = min(count, len(allowed))
    while True:
        held: dict[int, int] = {}
        for core in allowed:
            handle = os.open(folder / f"core-{core}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held[core] = handle
            except OSError:
                os.close(handle)
            if len(held) == wanted:
                break
        if len(held) == wanted or stop.is_set():
            break
        for handle in held.values():  # all or none: two who wait for each other's cores would wait for ever
            os.close(handle)
        time.sleep(WAIT)
    try:
        yield set(held)
    finally:
        for handle in held.values():
            os.close(handle)


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
