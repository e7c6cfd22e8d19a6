"""CartPole: training against the bare rollout, against Gymnasium, and its growth with K."""

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from fedpg.agents import Problem, Replies, episode_keys, make_problem
from fedpg.aggregators import make_filter
from fedpg.algorithms import first_state
from fedpg.bench.measure import gymnasium_speed, peak_memory
from fedpg.config import make_config
from fedpg.environments import lanes, rollout
from fedpg.policies import Params
from fedpg.screen import make_console
from fedpg.training import train_seeds
from fedpg.training.progress import Silent
from fedpg.training.rounds import FOREVER, compile_rounds
from fedpg.trajectories import Trajectories

SETTINGS: dict[str, Any] = {"agents": 10, "byzantine": 3, "attack": "sign-flipping"}
SEEDS = 10
ROUND_SIZES = (10, 100, 1000, 10_000)
FILTER_SIZES = (10, 100, 1000, 2000)
FILTER_PARAMETERS = 6000


class Clock(Silent):
    """Notes when compiling is over."""

    compiled = 0.0

    def note(self, text: str) -> None:
        self.compiled = time.monotonic()  # the last note comes when compiling is over


def bench_compiled(quick: bool = False) -> None:
    """Print the tables."""
    console = make_console()
    console.print(f"{os.cpu_count()} cores, jax {jax.__version__}; this takes about 2 minutes", highlight=False)
    problem = make_problem(make_config(**SETTINGS))
    params = speed(console, problem)
    if not quick:
        growth(console, problem.policy.ravel(params))
        filters(console)
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
    cores = os.cpu_count() or 1
    bare_one = bare_speed(problem, params, batch, threads=1)
    bare_ten = bare_speed(problem, params, SEEDS * batch, threads=1)
    bare_cores = bare_speed(problem, params, batch, threads=cores)
    python = gymnasium_speed(problem, params)
    one_speed = one.records.steps / one.seconds
    ten_speed = sum(run.records.steps for run in ten) / ten_seconds

    table = Table(title="Environment steps per second (CartPole-v1, K = 10, 3 Byzantine; live episodes only)")
    for name in ("what", "steps/s", "of the bare rollout", "times Gymnasium", "seconds"):
        table.add_column(name, justify="left" if name == "what" else "right")

    def row(what: str, value: float, of: float | None = None, seconds: float | None = None) -> None:
        share = "" if of is None else f"{value / of:.0%}"
        times = f"{value / python:,.0f}" if value != python else ""
        table.add_row(what, f"{value:,.0f}", share, times, "" if seconds is None else f"{seconds:.1f}")

    row("training, one run to 5000 trajectories", one_speed, bare_one, one.seconds)
    row(f"training, {SEEDS} seeds together, same run", ten_speed, bare_ten, ten_seconds)
    row(f"the same, against the bare rollout on {cores} cores", ten_speed, bare_cores)
    row(f"bare rollout, one call of {batch} episodes", bare_one)
    row(f"bare rollout, one call of {SEEDS * batch} episodes", bare_ten)
    row(f"bare rollout, {batch} episodes on each of {cores} cores", bare_cores)
    row("Gymnasium in Python, the same policy in NumPy", python)
    console.print(table)
    console.print(f"peak memory so far {peak_memory():.2f} GB", highlight=False)
    return params


def bare_speed(problem: Problem, params: Params, batch: int, threads: int) -> float:
    """Steps per second of the compiled rollout alone, with a trained policy."""

    def roll(key: jax.Array) -> Trajectories:
        honest = lanes(episode_keys(key, batch), problem.steps)
        return rollout(problem.environment, problem.policy, params, honest, problem.steps)

    # All of what a rollout returns, so that nothing of it is optimised away.
    compiled = jax.jit(roll).lower(jax.random.key(0)).compile()
    calls = max(2, 16_000 // batch)

    def some(thread: int) -> int:
        keys = [jax.random.key(100 * thread + i) for i in range(calls)]
        return sum(int(compiled(key).lengths.sum()) for key in keys)

    some(0)
    with ThreadPoolExecutor(threads) as pool:
        began = time.monotonic()
        steps = sum(pool.map(some, range(threads)))
        return steps / (time.monotonic() - began)


def growth(console: Console, theta: jax.Array) -> None:
    """The time of a round against K."""
    table = Table(title="Time of a round (all honest, a trained policy)")
    for name in ("K", "seconds", "times the row above", "steps/s", "peak memory so far"):
        table.add_column(name, justify="right")
    before = None
    for agents in ROUND_SIZES:
        problem = make_problem(make_config(agents=agents, batch=(16, 16)))
        advance = compile_rounds(problem)
        state = first_state(problem, 0)._replace(theta=theta)
        one_round = functools.partial(advance, state, jnp.int32(1), jnp.int32(FOREVER))
        seconds = _seconds(one_round, times=3 if agents <= 1000 else 2)
        log = one_round()[2]
        steps = sum(int(x[0]) for x in (log.agent_steps, log.server_steps, log.test_steps))
        ratio = "" if before is None else f"{seconds / before:.1f}"
        table.add_row(f"{agents:,}", f"{seconds:.3f}", ratio, f"{steps / seconds:,.0f}", f"{peak_memory():.2f} GB")
        before = seconds
    console.print(table)


def filters(console: Console) -> None:
    """The time of the filter against K."""
    table = Table(title=f"Time of the filter (D = {FILTER_PARAMETERS})")
    table.add_column("K", justify="right")
    names = ("fedpg", "majority", "mean")
    for name in names:
        table.add_column(f"{name}, ms", justify="right")
    for agents in FILTER_SIZES:
        gradients = jax.random.normal(jax.random.key(0), (agents, FILTER_PARAMETERS))
        replies = Replies(gradients, jnp.full((agents,), FILTER_PARAMETERS))
        cells = []
        for name in names:
            config = make_config(agents=agents, filter=name)
            compiled = jax.jit(make_filter(config), static_argnums=3)
            call = functools.partial(compiled, replies, jnp.float32(60.0), jnp.int32(16), config)
            cells.append(f"{_seconds(call) * 1e3:.1f}")
        table.add_row(f"{agents:,}", *cells)
    console.print(table)


def start(console: Console) -> None:
    """From the command to the end of a run of one round, in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "fedpg.cli",
            "train",
            "--trajectories",
            "1",
            "--out",
            f"{folder}/run",
            "--quiet",
        ]
        began = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        console.print(
            f"start to the end of the first round, a new process: {time.monotonic() - began:.1f} s", highlight=False
        )


def _seconds(function: Callable[[], Any], times: int = 3) -> float:
    """The best of several calls, after one to warm up (none if it is called once only)."""
    if times > 1:
        jax.block_until_ready(function())
    best = float("inf")
    for _ in range(times):
        began = time.monotonic()
        jax.block_until_ready(function())
        best = min(best, time.monotonic() - began)
    return best
