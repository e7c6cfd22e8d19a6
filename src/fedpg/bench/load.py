"""One server under load: many thin sites, which speak the real protocol and answer with ready-made gradients."""

import contextlib
import math
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from fedpg.assembly import make_problem
from fedpg.bench.federation import cpu_of, round_lines
from fedpg.child import child_command
from fedpg.errors import ConfigError, SimulationError
from fedpg.federation.messages import FORMAT, largest, vector
from fedpg.machine import cores
from fedpg.presets import make_config
from fedpg.problem import Problem
from fedpg.screen import make_console

FIRST = 2
"""Rounds that do not count: connections are made in them."""
ROUNDS = 10
PATIENCE = 1800.0
"""Seconds that all rounds may take."""


class Load(NamedTuple):
    """Of the rounds that count, in the mean."""

    sites: int
    round: float  # seconds, from the broadcast to the verdict and the server's own steps
    longest: float  # seconds of the longest of them
    cpu: float  # seconds of the server's CPU
    memory: float  # megabytes of the server, resident at the end
    thin: float  # CPU seconds of all thin sites together


def bench_load(sites: list[int], size: int) -> None:
    """Print a table with a row for each number of sites."""
    if min(sites) < 2:
        raise ConfigError(f"a federation under load has 2 sites or more, not {min(sites)}")
    width = max(1, round(math.sqrt(size + 14) - 4))  # D = h^2 + 8 h + 2 with two layers of h on CartPole
    loads = []
    for count in sites:
        config = make_config(algorithm="fedpg-br", agents=count, hidden=(width, width), trajectories=10**6)
        problem = make_problem(config)
        print(f"{count} sites, D = {problem.policy.size}: {FIRST + ROUNDS} rounds", flush=True)
        loads.append(measure(problem))
    names = ("sites", "seconds a round", "longest", "server's CPU seconds", "server's memory, MB", "sites' CPU seconds")
    table = Table(title=f"one server, thin sites on the same {cores()} cores, D = {problem.policy.size}, TLS")
    for name in names:
        table.add_column(name, justify="right")
    for load in loads:
        numbers = (f"{load.round:.2f}", f"{load.longest:.2f}", f"{load.cpu:.2f}", f"{load.memory:.0f}")
        table.add_row(str(load.sites), *numbers, f"{load.thin:.2f}")
    make_console().print(table)
    print("The sites compute nothing: a round is what the network, the server's checks and its own steps take.")


def measure(problem: Problem) -> Load:
    """`fedpg serve` in a process of its own, thin sites in threads of this one."""
    from fedpg.serving.demo import free_port
    from fedpg.sites.folder import create
    from fedpg.sites.ledger import FILE

    config = problem.config
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        made = create(Path(name) / "f", config, f"127.0.0.1:{free_port()}", deadline=300.0)
        log = stack.enter_context(open(Path(name) / "serve.log", "wb"))
        command = child_command("serve", str(made.folder), "--quiet")
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        stack.callback(end, server)
        stack.enter_context(thin_sites(made.folder, made.sites, problem))
        path = made.folder / "run" / FILE
        until = time.monotonic() + PATIENCE
        marks: list[tuple[float, float]] = []
        while len(marks) < 2:
            if server.poll() is not None or time.monotonic() > until:
                said = (Path(name) / "serve.log").read_text()[-1000:]
                raise SimulationError(f"the server did not come to {FIRST + ROUNDS} rounds: {said}")
            done = len(round_lines(path))
            if done >= FIRST + (ROUNDS if marks else 0):
                marks.append((cpu_of(server.pid), time.process_time()))
            time.sleep(0.02)
        memory = resident(server.pid)
        seconds = [line["seconds"] for line in round_lines(path)[FIRST : FIRST + ROUNDS]]
        (cpu, thin), (cpu_after, thin_after) = marks
    return Load(
        config.agents,
        float(np.mean(seconds)),
        max(seconds),
        (cpu_after - cpu) / ROUNDS,
        memory,
        (thin_after - thin) / ROUNDS,
    )


@contextlib.contextmanager
def thin_sites(folder: Path, names: tuple[str, ...], problem: Problem) -> Iterator[None]:
    """Sites that answer at once, each with its own key, connection and gradient."""
    from fedpg.flower.warm import Address, run_site
    from fedpg.sites.certificates import read_site_key
    from fedpg.sites.folder import read_site

    stop, threads = threading.Event(), []
    most = largest(problem.policy.size, len(problem.algorithm.broadcast))
    for number, name in enumerate(names):
        home = folder / "sites" / name
        address = Address(read_site(home).address, (home / "ca.crt").read_bytes(), read_site_key(home / "site.key"))
        arguments = (address, ready_made(problem, number), silent, stop, most)
        threads.append(threading.Thread(target=run_site, args=arguments, daemon=True))
        threads[-1].start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=10)


def ready_made(problem: Problem, number: int) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """The reply of a site that computes nothing: a gradient that all share, with a little of its own."""
    shared, own = np.random.default_rng(0), np.random.default_rng([1, number])
    size = problem.policy.size
    raw = (shared.normal(size=size) + 0.1 * own.normal(size=size)).astype("<f4").tobytes()
    vectors = {vector(name): raw for name in problem.algorithm.reply.vectors}

    def respond(values: Mapping[str, Any]) -> dict[str, Any]:
        about = {"format": FORMAT, "round": values["round"], "return": 1.0, "steps": int(values["batch"])}
        return about | {"seconds": 0.0} | vectors

    return respond


def silent(text: str) -> None:
    """What thin sites say is of no concern."""


def resident(pid: int) -> float:
    """Megabytes of a process that are in memory."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return float("nan")


def end(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C would."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()
