"""A `fedpg` command in a process of its own that does not outlive who started it."""

import sys

CODE = """
import os, signal, sys, threading, time

def watch():
    os.read(0, 1)
    while True:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(15)

threading.Thread(target=watch, daemon=True).start()
from fedpg.cli import main
sys.exit(main())
"""
"""Stops, as by Ctrl-C, when its input ends: when who started it is gone, however that came about.

An interrupt can be lost while modules are imported, so it is given again.
"""


def child_command(*words: str) -> list[str]:
    """The command line; to be started with a pipe as its input."""
    return [sys.executable, "-c", CODE, *words]
