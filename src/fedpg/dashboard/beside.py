"""A dashboard beside a run: a process of its own, with a low priority, that ends with who started it.

The run shares no lock, no thread and no memory with it: whatever becomes of the page, the run goes on.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedpg.dashboard.watch import EVERY, Watch
from fedpg.dashboard.web import Web, address_of, choose_token, listen
from fedpg.errors import ConfigError

LAST = 2 * EVERY
"""Seconds that the page has for the last news of the run."""


class Beside:
    """Shows a run folder, which need not exist yet, while it is entered; what cannot work is refused before."""

    def __init__(
        self, run: Path, host: str, port: int | None, token: str | None = None, warn: Callable[[str], None] = print
    ) -> None:
        if os.name == "nt":
            raise ConfigError(
                f"--dashboard needs a system that is no Windows: there, start fedpg dashboard {run} beside"
            )
        self.run, self.host, self.warn = run, host, warn
        self.token = choose_token(host, token)
        self.socket = listen(host, port)
        self.address = address_of(host, self.socket.getsockname()[1], self.token)
        self.process: subprocess.Popen[bytes] | None = None
        self._left = threading.Event()

    def __enter__(self) -> Self:
        with self.socket:
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "fedpg.dashboard.beside"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=(self.socket.fileno(),),
                    start_new_session=True,  # Ctrl-C is for the run
                )
                # By its input and not as words: a token must not be in the list of processes.
                told = {"run": str(self.run), "host": self.host, "token": self.token, "socket": self.socket.fileno()}
                assert self.process.stdin is not None
                self.process.stdin.write(json.dumps(told).encode() + b"\n")
                self.process.stdin.flush()
            except OSError as error:
                self.warn(f"the dashboard did not start: {error.strerror or error}; the run goes on without")
                return self
        threading.Thread(target=self._wait, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._left.set()
        if self.process is None:
            return
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(timeout=5)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()

    def _wait(self) -> None:
        """Say so if it ends while the run goes on."""
        assert self.process is not None
        assert self.process.stderr is not None
        said = b""
        with self.process.stderr:
            for line in self.process.stderr:
                said = (said + line)[-2000:]
        self.process.wait()
        if not self._left.is_set():
            why = (said.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
            self.warn(f"the dashboard ended ({why}); the run goes on. Start it again with: fedpg dashboard {self.run}")


def main() -> None:
    """The process itself: what to show comes as a line of its input, and the end of the input ends it."""
    os.nice(10)
    told: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    listening = socket.socket(fileno=told["socket"])
    with Watch([Path(told["run"])], must_exist=False) as watch:
        web = Web(listening, told["host"], watch, told["token"])
        threading.Thread(target=web.serve_forever, daemon=True).start()
        sys.stdin.buffer.read()
        time.sleep(LAST)
        web.shutdown()
        web.server_close()


if __name__ == "__main__":
    main()
