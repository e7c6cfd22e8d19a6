"""What the network costs: a round in process, over warm sites, and over Flower's own SuperNodes."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from fedpg.assembly import make_problem
from fedpg.config import Config
from fedpg.errors import SimulationError
from fedpg.federation.local import Local
from fedpg.machine import cores
from fedpg.presets import make_config
from fedpg.programs import side_by_side
from fedpg.screen import make_console
from fedpg.server import Server
from fedpg.training.rounds import advance, first_state

HIDDEN = (74, 74)
"""On CartPole, D = 6070."""
WARM_ROUNDS = 20
STOCK_ROUNDS = 2
FIRST = 2
"""Rounds that do not count: connections are made in them."""


APP = Path(__file__).parents[3] / "examples" / "flower-app"
STOCK_SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


class Cost(NamedTuple):
    """Of a round, in the mean."""

    name: str
    round: float  # seconds
    slowest: float  # of the slowest site's computing
    received: float | None  # bytes that a site sends
    sent: float | None  # bytes that it gets
    server: float  # CPU seconds
    site: float | None


def bench_federation(agents: int) -> None:
    """Print the table, with as many of Flower's own SuperNodes as there are sites."""
    config = make_config(algorithm="fedpg-br", agents=agents, hidden=HIDDEN, trajectories=10**6)
    size = make_problem(config).policy.size
    print(f"CartPole, D = {size}, {agents} sites on this machine, {cores()} cores", flush=True)
    costs = [in_process(config)]
    print(f"in process: {costs[0].round:.3f} s per round; starting {agents} sites", flush=True)
    costs.append(warm_sites(config))
    print(f"warm sites: {costs[1].round:.2f} s per round", flush=True)
    if APP.exists():
        print(f"starting {agents} SuperNodes; a round of theirs takes half a minute", flush=True)
        costs.append(stock_nodes(agents))
    else:
        print("SuperNodes are left out: they need examples/flower-app of the repository")
    table = Table(title="a round, in the mean")
    columns = (
        "",
        "seconds",
        "slowest site",
        "overhead",
        "bytes from a site",
        "bytes to it",
        "CPU s server",
        "CPU s site",
    )
    for name in columns:
        table.add_column(name, justify="right" if name else "left")
    for cost in costs:
        known = [f"{x:,.0f}" if x is not None else "" for x in (cost.received, cost.sent)]
        cpu = [f"{cost.server:.2f}", "" if cost.site is None else f"{cost.site:.2f}"]
        overhead = cost.round - cost.slowest
        table.add_row(cost.name, f"{cost.round:.3f}", f"{cost.slowest:.3f}", f"{overhead:.2f}", *known, *cpu)
    make_console().print(table)
    print(f"overhead: the round less the slowest site's computing. A vector is 4 D = {4 * size:,} bytes.")


def in_process(config: Config) -> Cost:
    """All agents in this process: there is no network to pay for."""
    problem = make_problem(config)
    state = first_state(problem, 0)
    agents, server = Local(problem, cores()), Server(problem)
    side_by_side([*server.warm_up(state), *agents.warm_up(state.agents)])
    for i in range(FIRST + WARM_ROUNDS):
        if i == FIRST:
            began, cpu = time.monotonic(), time.process_time()
        state, _ = advance(problem, state, agents, server)
    seconds = (time.monotonic() - began) / WARM_ROUNDS
    return Cost("in process", seconds, seconds, None, None, (time.process_time() - cpu) / WARM_ROUNDS, None)


def warm_sites(config: Config) -> Cost:
    """`fedpg serve` in this process and `fedpg join` in one for each site, over TLS."""
    from fedpg.serving.demo import free_port, sites_of
    from fedpg.serving.serve import serve
    from fedpg.sites.folder import create
    from fedpg.sites.ledger import FILE

    with tempfile.TemporaryDirectory() as name:
        made = create(Path(name) / "f", config, f"127.0.0.1:{free_port()}", deadline=120.0)
        stop, links = threading.Event(), list[Any]()
        run = made.folder / "run"
        with sites_of(made, stop) as processes:

            def now() -> np.ndarray:
                theirs = sum(cpu_of(process.process.pid) for process in processes)
                moved = [sum(getattr(links[0], way).values()) for way in ("received", "sent")]
                return np.array([time.process_time(), theirs, *moved])

            with watching(run / FILE, FIRST, WARM_ROUNDS, now, stop) as marks:
                serve(made, run, quiet=True, stop=stop, started=links.append)
        lines = round_lines(run / FILE)[FIRST : FIRST + WARM_ROUNDS]
        rows = [json.loads(row) for row in (run / "records.jsonl").read_text().splitlines()]
    seconds = float(np.mean([row["seconds"] for row in rows[1 + FIRST : 1 + FIRST + WARM_ROUNDS]]))
    own, theirs, received, sent = (marks[1] - marks[0]) / WARM_ROUNDS
    each = (x / config.agents for x in (received, sent, theirs))
    return Cost(f"{config.agents} warm sites, TLS", seconds, slowest(lines), next(each), next(each), own, next(each))


def stock_nodes(nodes: int) -> Cost:
    """`flwr run` with a SuperLink and SuperNodes as Flower starts them: a new process for every message."""
    from fedpg.serving.demo import free_port

    settings = os.environ | STOCK_SETTINGS
    settings["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder, port = Path(name), free_port()
        settings["FLWR_HOME"] = name
        (folder / "config.toml").write_text(f'[superlink.bench]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
        log = stack.enter_context(open(folder / "log", "wb"))
        started: list[subprocess.Popen[bytes]] = []

        def start(*words: str) -> None:
            started.append(subprocess.Popen(words, env=settings, stdout=log, stderr=log, cwd=folder))
            stack.callback(end_tree, started[-1])

        start("flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port))
        wait_for_port(port)
        for i in range(nodes):
            where = ("--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1", "--port", str(free_port()))
            start("flower-supernode", "--insecure", *where, "--node-config", f"number={i}")

        def now() -> np.ndarray:
            return np.array([tree_cpu(started[0].pid), sum(tree_cpu(node.pid) for node in started[1:])])

        path, stop = folder / "run" / "federation.jsonl", threading.Event()
        wanted = f'agents={nodes} rounds={1 + STOCK_ROUNDS} deadline=300.0 out="{folder / "run"}"'
        with watching(path, 1, STOCK_ROUNDS, now, stop) as marks:
            start("flwr", "run", str(APP), "bench", "--stream", "--run-config", wanted)
            if not stop.wait(900):
                raise SimulationError(f"Flower's SuperNodes did not finish: {(folder / 'log').read_text()[-1000:]}")
        lines = round_lines(path)[1:]
    server, site = (marks[1] - marks[0]) / STOCK_ROUNDS
    seconds = float(np.mean([line["seconds"] for line in lines]))
    return Cost(f"{nodes} SuperNodes", seconds, slowest(lines), None, None, server, site / nodes)


@contextlib.contextmanager
def watching(
    path: Path, first: int, rounds: int, now: Callable[[], np.ndarray], stop: threading.Event
) -> Iterator[list[np.ndarray]]:
    """Notes what `now` gives when the rounds that count begin and end, and then asks to stop."""
    marks: list[np.ndarray] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02) and not stop.is_set():
            done = len(round_lines(path))
            if done >= first and not marks:
                marks.append(now())
            if done >= first + rounds:
                marks.append(now())
                stop.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield marks
    finally:
        over.set()
        watcher.join()


def round_lines(path: Path) -> list[dict[str, Any]]:
    """The rounds of a federation so far, from its record."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [line for line in lines if line.get("quorum")]


def slowest(lines: list[dict[str, Any]]) -> float:
    """Seconds of the slowest site's computing, in the mean over the rounds."""
    return float(np.mean([max(site["seconds"] or 0.0 for site in line["sites"].values()) for line in lines]))


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and of the children that it has outlived."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """A process and all that it started."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def tree_cpu(pid: int) -> float:
    return sum(map(cpu_of, descendants(pid)))


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """Flower's processes leave theirs behind for seconds: end them all."""
    family = descendants(process.pid)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=3)
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def wait_for_port(port: int) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise SimulationError("Flower's SuperLink did not start within a minute")
