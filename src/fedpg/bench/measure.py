"""What both tables need."""

import resource
import sys
import time
from typing import Any

import gymnasium
import jax
import numpy as np

from fedpg.pieces import import_object
from fedpg.problem import Problem


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


def peak_memory() -> float:
    """In gigabytes, of this process since its start."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / 1e6 if sys.platform != "darwin" else kilobytes / 1e9
