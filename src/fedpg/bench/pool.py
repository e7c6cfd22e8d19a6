"""Tasks outside JAX: training against the bare simulator, and where its time goes."""

import os
import time
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import Progress
from rich.table import Table

from fedpg.agents import Problem
from fedpg.algorithms import State, first_state
from fedpg.bench.measure import gymnasium_speed, peak_memory
from fedpg.environments import Pool
from fedpg.environments.pool import EnvPoolSimulator, GymnasiumSimulator, Simulator
from fedpg.environments.tasks import cores
from fedpg.screen import make_console
from fedpg.training.rounds import compile_rounds

SECONDS_BARE = 1.5
SECONDS_BETWEEN = 12.0
"""The bare simulator is measured again and again while training goes on: the speed of a machine changes."""

PHASES = {
    "simulate": "the simulator, as it is called",
    "act": "the policy, for each step",
    "create": "making and resetting environments",
    "pack": "putting steps in order",
    "rest": "gradients, filter, optimiser, random numbers",
}


def bench_pool(problem: Problem, pool: Pool) -> None:
    """Train to the configured number of trajectories, with the bare simulator in between, and print the table."""
    config = problem.config
    console = make_console()
    console.print(
        f"{config.task} by {pool.simulator}, K = {config.agents}, {os.cpu_count()} cores, jax {jax.__version__}; "
        f"training to {config.trajectories} trajectories",
        highlight=False,
    )
    advance = compile_rounds(problem)
    state: State = first_state(problem, 0)
    batch = config.agents * sum(config.batch) // 2 + config.test_episodes
    bare: list[float] = []
    steps, seconds, rounds = 0, 0.0, 0
    pool.clock.clear()
    with Progress(console=console, transient=True) as progress:
        line = progress.add_task("training", total=config.trajectories)
        since = float("inf")
        while int(state.counted) < config.trajectories:
            if since > SECONDS_BETWEEN:
                bare.append(bare_speed(pool, batch))
                since = 0.0
            began = time.monotonic()
            _, state, log = advance(state, jnp.int32(1), jnp.int32(config.trajectories))
            spent = time.monotonic() - began
            seconds, since, rounds = seconds + spent, since + spent, rounds + 1
            steps += int(log.agent_steps[0] + log.server_steps[0] + log.test_steps[0])
            progress.update(line, completed=int(state.counted))
    bare.append(bare_speed(pool, batch))
    alone = gymnasium_speed(problem, problem.policy.unravel(state.theta))
    training, bare_mean = steps / seconds, float(np.mean(bare))

    table = Table(title=f"Environment steps per second ({rounds} rounds, {steps:,} steps, {seconds:.0f} s)")
    for name in ("what", "steps/s", "of the bare simulator", "times Gymnasium"):
        table.add_column(name, justify="left" if name == "what" else "right")
    rows = {
        "training, everything included": training,
        "the simulator as training calls it, in the states that training visits": steps / pool.clock["simulate"],
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
    clock = dict(pool.clock)
    clock["rest"] = seconds - sum(clock.get(name, 0.0) for name in PHASES if name != "rest")
    for name, text in PHASES.items():
        shares.add_row(text, f"{clock[name] / seconds:.1%}")
    console.print(shares)
    console.print(f"peak memory {peak_memory():.2f} GB", highlight=False)


def bare_speed(pool: Pool, environments: int) -> float:
    """Steps per second of the simulator alone, with random actions; an episode that ends is begun again."""
    random = np.random.default_rng(0)
    seeds = np.arange(environments, dtype=np.int32)
    # Not by `pool.open`, which would drop the environments that training keeps.
    fresh = pool.simulator.startswith("EnvPool")
    simulator: Simulator = EnvPoolSimulator(pool.id, seeds, cores()) if fresh else pool.open(seeds, 0)
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
        _, _, over = simulator.step(lanes, inputs[steps // width % len(inputs)][:width])
        steps += width
        if isinstance(simulator, GymnasiumSimulator) and over.any():  # EnvPool begins again by itself
            simulator.end(lanes[over])
            simulator.start(lanes[over])
    return steps / (time.monotonic() - began)
