"""What both tables need."""

import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from fedpg.algorithms.natural import step as natural_step
from fedpg.metric import signal_of
from fedpg.pieces import import_object
from fedpg.problem import Problem, State, make_broadcast
from fedpg.server import Server

KEEP = 0.35
"""The default of natural steps."""


def gymnasium_speed(problem: Problem, params: Any, seconds: float = 3.0) -> float:
    """Steps per second of Gymnasium, one environment, stepped from Python with the policy in NumPy."""
    task = problem.config.task
    simulator = import_object("task", task, "factory")() if ":" in task else gymnasium.make(task)
    weights = {name: np.asarray(value) for name, value in params.items()}
    noise = np.asarray(problem.policy.noise(jax.random.key(0), 4096))
    observation, _ = simulator.reset(seed=0)
    steps, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        now = np.asarray(observation, np.float32)
        action = problem.policy.sample(weights, now, noise[:, steps % noise.shape[1]], np)
        observation, _, terminated, truncated, _ = simulator.step(problem.task.to_task(np.asarray(action)))
        steps += 1
        if terminated or truncated:
            observation, _ = simulator.reset()
    return steps / (time.monotonic() - began)


def step_line(problem: Problem, state: State, server: Server, round_seconds: float) -> str:
    """How long a natural step takes, which follows the aggregate, and which share of a round that is; else nothing.

    On no trajectories and nobody's vectors, of which it computes as much as of others.
    """
    if problem.config.algorithm != "natural":
        return ""
    theta, agents = state.theta, problem.config.agents
    own = server.contribution(make_broadcast(state.key, 1, problem.config.batch[0], theta=theta), wanted=False)
    nothing, nobody = jnp.zeros((agents, problem.policy.size)), jnp.zeros(agents, bool)

    def step() -> Any:
        signal = signal_of(theta, nothing, nobody, own.scores)
        return natural_step(problem.policy, KEEP, theta, theta, signal, own, state.algorithm)

    spent = best_seconds(step, times=20)
    return (
        f"the step itself: {spent * 1e3:.1f} ms, {spent / round_seconds:.1%} of a round of {round_seconds * 1e3:.0f} ms"
    )


def best_seconds(function: Callable[[], Any], times: int = 3) -> float:
    """The best of several calls, after one to warm up (none if it is called once only)."""
    if times > 1:
        jax.block_until_ready(function())
    best = float("inf")
    for _ in range(times):
        began = time.monotonic()
        jax.block_until_ready(function())
        best = min(best, time.monotonic() - began)
    return best


def peak_memory() -> float:
    """In gigabytes, of this process since its start."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / 1e6 if sys.platform != "darwin" else kilobytes / 1e9
