"""CartPole: training against the bare rollout, against Gymnasium, and its growth with K."""

import functools
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from fedpg.aggregators import AGGREGATORS, Own, Sent, make_aggregator
from fedpg.assembly import make_problem
from fedpg.bench.measure import best_seconds, gymnasium_speed, peak_memory, step_line
from fedpg.errors import ConfigError
from fedpg.federation.local import Local
from fedpg.machine import cores
from fedpg.policies import Params
from fedpg.presets import make_config
from fedpg.problem import Problem, make_broadcast
from fedpg.screen import make_console
from fedpg.server import Server
from fedpg.tasks import ServerEpisodes
from fedpg.training import train_seeds
from fedpg.training.checkpoint import RECORDS
from fedpg.training.progress import Silent
from fedpg.training.rounds import advance, first_state

SETTINGS: dict[str, Any] = {"agents": 10, "byzantine": 3, "attack": "sign-flipping", "trajectories": 5000}
SEEDS = 10
ROUND_SIZES = (10, 100, 1000, 10_000)
AGGREGATOR_SIZES = (10, 100, 1000, 2000)
PARAMETERS = 6000


class Clock(Silent):
    """Notes when compiling is over."""

    compiled = 0.0

    def note(self, text: str) -> None:
        self.compiled = time.monotonic()  # the last note comes when compiling is over


def bench_compiled(algorithm: str, quick: bool = False) -> None:
    """Print the tables."""
    console = make_console()
    minutes = 2 if quick else 15
    console.print(f"{cores()} cores, jax {jax.__version__}; this takes about {minutes} minutes", highlight=False)
    problem = make_problem(make_config(algorithm=algorithm, **SETTINGS))
    params = speed(console, problem)
    if not quick:
        growth(console, algorithm, problem.policy.ravel(params))
        aggregators(console)
        start(console)


def speed(console: Console, problem: Problem) -> Params:
    """Environment steps per second, of live episodes only; returns a trained policy."""
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        ten = train_seeds(problem, range(SEEDS), Path(folder) / "ten", reporter=clock)
        ten_seconds = time.monotonic() - clock.compiled
        # The single run comes second: the first one in a process also pays for its memory pages and imports.
        one = train_seeds(problem, [0], Path(folder) / "one")[0]
    params = one.policy.params
    batch = problem.config.agents * sum(problem.config.batch) // 2
    bare_one = bare_speed(problem, params, batch, threads=1)
    bare_ten = bare_speed(problem, params, SEEDS * batch, threads=1)
    bare_cores = bare_speed(problem, params, batch, threads=cores())
    python = gymnasium_speed(problem, params)
    one_speed = one.records.steps / one.seconds
    ten_speed = sum(run.records.steps for run in ten) / ten_seconds

    title = f"CartPole-v1, {problem.config.algorithm}, K = {problem.config.agents}, 3 Byzantine; live episodes only"
    table = Table(title=f"Environment steps per second ({title})")
    on_cores = f"of the bare rollout on {cores()} cores"
    for name in ("what", "steps/s", "of the bare rollout", on_cores, "times Gymnasium", "seconds"):
        table.add_column(name, justify="left" if name == "what" else "right")

    def row(what: str, value: float, of: float | None = None, seconds: float | None = None) -> None:
        shares = ["", ""] if of is None else [f"{value / of:.0%}", f"{value / bare_cores:.0%}"]
        times = f"{value / python:,.0f}" if value != python else ""
        table.add_row(what, f"{value:,.0f}", *shares, times, "" if seconds is None else f"{seconds:.1f}")

    row(f"training, one run to {problem.config.trajectories} trajectories", one_speed, bare_one, one.seconds)
    row(f"training, {SEEDS} seeds together", ten_speed, bare_ten, ten_seconds)
    row(f"bare rollout, one call of {batch} episodes", bare_one)
    row(f"bare rollout, one call of {SEEDS * batch} episodes", bare_ten)
    row(f"bare rollout, {batch} episodes on each of {cores()} cores", bare_cores)
    row("Gymnasium in Python, the same policy in NumPy", python)
    console.print(table)
    server, state = Server(problem), first_state(problem, 0)._replace(theta=problem.policy.ravel(params))
    if words := step_line(problem, state, server, one.seconds / (len(one.records) - 1)):
        console.print(words, highlight=False)
    console.print(f"peak memory so far {peak_memory():.2f} GB", highlight=False)
    return params


def bare_speed(problem: Problem, params: Params, batch: int, threads: int) -> float:
    """Steps per second of the compiled rollout alone, with a trained policy."""
    theta = problem.policy.ravel(params)
    plan = ServerEpisodes(batch, problem.steps)
    calls = max(2, 16_000 // batch)

    def some(thread: int) -> int:
        keys = [make_broadcast(jax.random.key(thread), i + 1, 0).keys for i in range(calls)]
        played = (problem.task.rollout(problem.policy, plan, theta, (key,)) for key in keys)
        return sum(int(np.asarray(each.lengths).sum()) for each in played)

    some(0)
    with ThreadPoolExecutor(threads) as pool:
        began = time.monotonic()
        steps = sum(pool.map(some, range(threads)))
        return steps / (time.monotonic() - began)


def growth(console: Console, algorithm: str, theta: jax.Array) -> None:
    """The time of a round against K."""
    table = Table(title="Time of a round (all honest, a trained policy)")
    for name in ("K", "seconds", "times the row above", "steps/s", "peak memory so far"):
        table.add_column(name, justify="right")
    before = None
    for agents in ROUND_SIZES:
        problem = make_problem(make_config(algorithm=algorithm, agents=agents, batch=(16, 16)))
        state = first_state(problem, 0)._replace(theta=theta)
        one_round = functools.partial(advance, problem, state, Local(problem, cores()), Server(problem))
        seconds = best_seconds(one_round, times=3 if agents <= 1000 else 2)
        log = one_round()[1]
        steps = log["agent_steps"] + log["server_steps"]
        ratio = "" if before is None else f"{seconds / before:.1f}"
        table.add_row(f"{agents:,}", f"{seconds:.3f}", ratio, f"{steps / seconds:,.0f}", f"{peak_memory():.2f} GB")
        before = seconds
    console.print(table)


def aggregators(console: Console) -> None:
    """The time of each aggregator against K."""
    table = Table(title=f"Milliseconds of an aggregator (D = {PARAMETERS})")
    for name in ("", *(f"K = {agents:,}" for agents in AGGREGATOR_SIZES)):
        table.add_column(name, justify="right" if name else "left")
    few = jax.random.normal(jax.random.key(1), (8, PARAMETERS))
    for name in AGGREGATORS:
        aggregator = make_aggregator(name, alpha=0.3, sigma=60.0, delta=0.6)
        own = Own(**{need: few[0] if need == "gradient" else few for need in aggregator.needs})
        update = jax.jit(aggregator.update)
        cells = []
        for agents in AGGREGATOR_SIZES:
            vectors = jax.random.normal(jax.random.key(0), (agents, PARAMETERS))
            sent = Sent(vectors, jnp.ones(agents, bool), jnp.int32(16))
            try:
                memory = aggregator.init(agents, PARAMETERS)
            except ConfigError:  # it would try too many subsets
                cells.append("refused")
                continue
            cells.append(f"{best_seconds(functools.partial(update, memory, sent, own)) * 1e3:.1f}")
        table.add_row(name, *cells)
    console.print(table)


def start(console: Console) -> None:
    """From the command to the end of its first round, in a new process: with nothing compiled before, and with all."""
    with tempfile.TemporaryDirectory() as folder:
        kept = {"JAX_COMPILATION_CACHE_DIR": f"{folder}/compiled", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        for name in ("an empty", "a warm"):
            run = Path(folder) / name
            command = [sys.executable, "-m", "fedpg", "train", "--trajectories", "1", "--quiet", "--out", str(run)]
            began = time.time()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | kept)
            # Written when the round is over; what is left is to write the policy and to end.
            seconds = (run / RECORDS).stat().st_mtime - began
            console.print(
                f"`fedpg train` to the end of its first round, a new process with {name} compilation cache: "
                f"{seconds:.1f} s",
                highlight=False,
            )
