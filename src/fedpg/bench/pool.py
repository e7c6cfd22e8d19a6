"""Tasks outside JAX: training against the bare simulator, and where its time goes."""

import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import jax
import numpy as np
from rich.progress import Progress
from rich.table import Table

from fedpg.bench.measure import gymnasium_speed, peak_memory, step_line
from fedpg.federation.local import Local
from fedpg.machine import cores
from fedpg.problem import Problem
from fedpg.programs import side_by_side
from fedpg.screen import make_console
from fedpg.server import Server
from fedpg.tasks.pool import Pool, pool_of, with_pool
from fedpg.tasks.simulators import EnvPoolSimulator, GymnasiumSimulator, Simulator, Step
from fedpg.tasks.task import SERVER
from fedpg.training.rounds import advance, evaluated, first_state

SECONDS_BARE = 1.5
SECONDS_BETWEEN = 12.0
"""The bare simulator is measured again and again while training goes on: the speed of a machine changes."""

WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Where the table by living episodes is divided."""

PHASES = {
    "simulate": "the simulator, as it is called",
    "act": "the policy, for each step",
    "wait": "waiting for the team that is the last to be done",
    "create": "making and resetting environments",
    "pack": "putting steps in order",
    "rest": "gradients, aggregator, optimiser, random numbers, the end of a test",
}


def bench_pool(problem: Problem) -> None:
    """Train to the configured number of trajectories, with the bare simulator in between, and print the table."""
    config, task = problem.config, problem.task
    console = make_console()
    console.print(
        f"{config.task} by {task.simulator}, {config.algorithm}, K = {config.agents}, {cores()} cores, "
        f"jax {jax.__version__}; training to {config.trajectories} trajectories",
        highlight=False,
    )
    by_width: Widths = defaultdict(lambda: (0, 0, 0.0))
    lock = threading.Lock()
    pool = pool_of(task)
    timed = with_pool(task, open=lambda *which: Timed(pool.open(*which), by_width, lock))
    testing = problem._replace(task=with_pool(timed, seconds=defaultdict(float)))  # the shares are those of rounds
    problem = problem._replace(task=timed)
    state = first_state(problem, 0)
    agents, server = Local(problem, cores()), Server(problem)
    side_by_side([*server.warm_up(state), *agents.warm_up(state.agents)])
    together = min(config.agents, max(1, task.most // config.batch[1]))  # agents, as training has them
    batch = together * sum(config.batch) // 2 + config.test_episodes
    bare: list[float] = []
    of_rounds, of_tests, seconds, rounds = 0, 0, 0.0, 0
    task.seconds.clear()
    with Progress(console=console, transient=True) as progress, ThreadPoolExecutor(1) as beside:
        line = progress.add_task("training", total=config.trajectories)
        since = float("inf")
        while state.counted < config.trajectories:
            if since > SECONDS_BETWEEN:
                bare.append(bare_speed(pool, batch))
                since = 0.0
            began = time.monotonic()
            test = beside.submit(evaluated, testing, state)  # as training does
            state, log = advance(problem, state, agents, server)
            of_tests += test.result()[1]
            spent = time.monotonic() - began
            seconds, since, rounds = seconds + spent, since + spent, rounds + 1
            of_rounds += log["agent_steps"] + log["server_steps"]
            progress.update(line, completed=state.counted)
    bare.append(bare_speed(pool, batch))
    alone = gymnasium_speed(problem, problem.policy.unravel(state.theta))
    steps = of_rounds + of_tests
    training, bare_mean = steps / seconds, float(np.mean(bare))

    table = Table(title=f"Environment steps per second ({rounds} rounds, {steps:,} steps, {seconds:.0f} s)")
    for name in ("what", "steps/s", "of the bare simulator", "times Gymnasium"):
        table.add_column(name, justify="left" if name == "what" else "right")
    rows = {
        "training, everything included": training,
        "the simulator as training calls it, in the states that training visits": of_rounds / task.seconds["simulate"],
        f"bare simulator, {batch} environments, random actions (mean of {len(bare)}; "
        f"{min(bare):,.0f} to {max(bare):,.0f})": bare_mean,
        "Gymnasium, one environment in Python, the same policy in NumPy": alone,
    }
    for what, value in rows.items():
        table.add_row(what, f"{value:,.0f}", f"{value / bare_mean:.0%}", f"{value / alone:.1f}")
    console.print(table)

    shares = Table(title="Where training's time goes")
    for name in ("phase", "share"):
        shares.add_column(name, justify="left" if name == "phase" else "right")
    clock = dict(task.seconds)
    clock["rest"] = seconds - sum(clock.get(name, 0.0) for name in PHASES if name != "rest")
    for name, text in PHASES.items():
        shares.add_row(text, f"{clock[name] / seconds:.1%}")
    console.print(shares)
    if words := step_line(problem, state, server, seconds / rounds):
        console.print(words, highlight=False)

    narrow = Table(title="A team's simulator, by how many of its episodes are alive: a few do not pay for the call")
    for name in ("alive", "calls", "us per call", "steps/s per team", "share of the steps", "share of the time"):
        narrow.add_column(name, justify="right")
    for row in width_rows(by_width):
        narrow.add_row(*row)
    console.print(narrow)
    console.print(f"peak memory {peak_memory():.2f} GB", highlight=False)


Widths = dict[int, tuple[int, int, float]]
"""By the first of WIDTHS that is no smaller (0: beyond the last): calls, steps and seconds."""


class Timed:
    """A simulator, with the time of its steps noted by how many episodes were alive."""

    def __init__(self, simulator: Simulator, by_width: Widths, lock: threading.Lock) -> None:
        self.width, self.start, self.end, self.close = simulator.width, simulator.start, simulator.end, simulator.close
        self.simulator, self.by_width, self.lock = simulator, by_width, lock
        self.began, self.alive = 0.0, 0

    def send(self, lanes: np.ndarray, actions: np.ndarray) -> None:
        self.began, self.alive = time.perf_counter(), len(lanes)
        self.simulator.send(lanes, actions)

    def receive(self) -> Step:
        result = self.simulator.receive()
        spent = time.perf_counter() - self.began
        width = next((w for w in WIDTHS if self.alive <= w), 0)
        with self.lock:  # both teams count
            calls, steps, seconds = self.by_width[width]
            self.by_width[width] = calls + 1, steps + self.alive, seconds + spent
        return result


def width_rows(by_width: Widths) -> list[tuple[str, ...]]:
    """The cells of the table by living episodes."""
    rows: list[tuple[str, ...]] = []
    every = sum(steps for _, steps, _ in by_width.values())
    seconds = sum(spent for _, _, spent in by_width.values())
    for low, width in zip((0, *WIDTHS), (*WIDTHS, 0), strict=True):
        if width in by_width:
            calls, steps, spent = by_width[width]
            alive = f"over {low}" if not width else f"{width}" if width == low + 1 else f"{low + 1} to {width}"
            each = (f"{calls:,}", f"{spent / calls * 1e6:,.0f}", f"{steps / spent:,.0f}")
            rows.append((alive, *each, f"{steps / every:.1%}", f"{spent / seconds:.1%}"))
    return rows


def bare_speed(pool: Pool, environments: int) -> float:
    """Steps per second of the simulator alone, with random actions; an episode that ends is begun again."""
    random = np.random.default_rng(0)
    seeds = np.arange(environments, dtype=np.int32)
    # Not by `pool.open`, which would drop the environments that training keeps.
    fresh = pool.simulator.startswith("EnvPool")
    nominal = np.full(environments, SERVER)
    simulator: Simulator = EnvPoolSimulator(pool.id, seeds) if fresh else pool.open(seeds, 0, nominal)
    space = pool.actions
    shape = (64, environments)
    actions: Any = (
        random.integers(0, space.n, shape)
        if isinstance(space, gymnasium.spaces.Discrete)
        else random.uniform(-1, 1, (*shape, *(space.shape or ())))
    )
    inputs = [pool.to_task(action) for action in actions]
    width = min(simulator.width, environments)
    lanes = np.arange(width, dtype=np.int32)
    simulator.start(lanes)
    steps, began = 0, time.monotonic()
    while time.monotonic() - began < SECONDS_BARE:
        simulator.send(lanes, inputs[steps // width % len(inputs)][:width])
        *_, over = simulator.receive()
        steps += width
        if isinstance(simulator, GymnasiumSimulator) and over.any():  # EnvPool begins again by itself
            simulator.end(lanes[over])
            simulator.start(lanes[over])
    return steps / (time.monotonic() - began)
