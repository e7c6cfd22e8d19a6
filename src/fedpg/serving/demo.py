"""A whole federation on this machine: the server in this process, every site in one of its own."""

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedpg.child import child_command
from fedpg.config import Config
from fedpg.serving.serve import serve
from fedpg.sites.folder import Federation, create
from fedpg.training import Run


def new_folder() -> Path:
    """A folder under `runs/` that does not exist yet."""
    return next(path for i in range(1, 10_000) if not (path := Path("runs") / f"federation-{i}").exists())


def demo(config: Config, seed: int, folder: Path, quiet: bool, stop: threading.Event) -> Run:
    """Create a federation, start its sites, serve it; everything is as between machines, but for the address."""
    federation = create(folder, config, f"127.0.0.1:{free_port()}", deadline=120.0, seed=seed)
    print(f"{folder}: {config.agents} sites, TLS, a key each; the sites' words are in sites/*/join.log", flush=True)
    with sites_of(federation, stop):
        return serve(federation, folder / "run", quiet=quiet, stop=stop)


@contextmanager
def sites_of(federation: Federation, stop: threading.Event) -> Iterator[list["SiteProcess"]]:
    """All sites of a federation as processes of this machine. The first one compiles for all."""
    compiled = federation.folder / "compiled"
    processes: list[SiteProcess] = []
    over = threading.Event()

    def start() -> None:
        for name in federation.sites:
            processes.append(stack.enter_context(SiteProcess(federation.folder / "sites" / name, compiled)))
            while len(processes) == 1 and processes[0].process.poll() is None and not any(compiled.glob("*")):
                if over.wait(0.1) or stop.is_set():
                    return

    with ExitStack() as stack:
        starting = threading.Thread(target=start)
        starting.start()
        try:
            yield processes
        finally:
            over.set()
            starting.join()


class SiteProcess:
    """`fedpg join` in a process of its own, ended when it is left."""

    def __init__(self, folder: Path, compiled: Path, *words: str) -> None:
        settings = {"JAX_COMPILATION_CACHE_DIR": str(compiled.resolve())}
        with open(folder / "join.log", "ab") as log:
            self.process = subprocess.Popen(
                child_command("join", str(folder), *words),
                env=os.environ | settings,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> "SiteProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
