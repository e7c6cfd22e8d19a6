"""A policy as plain layers and numbers: what both exported forms are written from."""

from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from fedpg.errors import ConfigError
from fedpg.policies import Params
from fedpg.problem import Problem


class Layer(NamedTuple):
    """activation(W x + b), by the names of its tensors; "" for what it does not have."""

    weight: str
    bias: str
    activation: str


class Actions(NamedTuple):
    """From what the policy gives to what the task takes.

    One of n: the index plus `start`. A box: clip(centre + half * mean, low, high).
    """

    dtype: np.dtype
    start: int = 0
    centre: np.ndarray | None = None
    half: np.ndarray | None = None
    low: np.ndarray | None = None
    high: np.ndarray | None = None


class Network(NamedTuple):
    """Observations [n, F], as the task gives them -> layers -> logits [n, A], or mean and std [n, A] -> actions."""

    task: str
    observations: int
    hidden: tuple[Layer, ...]
    head: Layer
    """The logits, or the mean."""
    std: Layer | None
    """The head that makes tanh(exp(clip(., -20, -2))); None: exp(log_std), or no Gaussian."""
    actions: Actions
    tensors: dict[str, np.ndarray]
    """By their names in the policy; weights are (out, in)."""

    @property
    def discrete(self) -> bool:
        return self.actions.centre is None

    @property
    def outputs(self) -> int:
        return len(self.tensors[self.head.weight])


def network_of(problem: Problem, params: Params) -> Network:
    """The layers of a policy of ours; of a user's own network nobody knows them."""
    config, task = problem.config, problem.task
    if config.policy != "mlp":
        raise ConfigError(
            f"the policy {config.policy!r} is a function in JAX, with no layers that NumPy or ONNX could have. "
            "Its parameters are plain tensors: read policy.safetensors (safetensors.numpy.load_file), and write its "
            "few lines in NumPy yourself; or keep JAX, and save the function with jax.export"
        )
    discrete = isinstance(task.actions, spaces.Discrete)
    released = not discrete and config.gaussian == "released"
    count = len(config.hidden)
    names = [Layer(f"w{i}", f"b{i}", config.activation) for i in range(count)]
    if released:  # whose last hidden layer has no activation
        names[-1] = names[-1]._replace(activation="")
    squashed = not discrete or config.categorical == "paper"
    last = ("mean", "") if released else (f"w{count}", f"b{count}")
    return Network(
        task=task.id,
        observations=task.observations,
        hidden=tuple(names),
        head=Layer(*last, "tanh" if squashed else ""),
        std=Layer("std", "", "") if released else None,
        actions=_actions(problem),
        tensors={name: np.asarray(value, np.float32) for name, value in params.items()},
    )


def _actions(problem: Problem) -> Actions:
    """How the task takes actions, from what it makes of a few."""
    seen, to_task = problem.task.actions, problem.task.to_task
    if isinstance(seen, spaces.Discrete):
        return Actions(np.dtype(np.int64), start=int(to_task(np.array(0))))
    assert isinstance(seen, spaces.Box)
    ends = np.isfinite(seen.low) & np.isfinite(seen.high)  # these are (-1, 1) to the policy
    least, most = (to_task(np.full(seen.shape, end, np.float32)) for end in (-1.0, 1.0))
    low = np.where(ends, least, seen.low).astype(np.float64)
    high = np.where(ends, most, seen.high).astype(np.float64)
    return Actions(
        dtype=np.asarray(least).dtype,
        centre=np.where(ends, (np.where(ends, low, 0) + np.where(ends, high, 0)) / 2, 0.0),
        half=np.where(ends, (np.where(ends, high, 1) - np.where(ends, low, -1)) / 2, 1.0),
        low=low,
        high=high,
    )
