"""The settings of a tiny federation, and a way to compile it in half the time."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

TINY: dict[str, Any] = {
    "agents": 4,
    "byzantine": 1,
    "attack": "sign-flipping",
    "batch": (4, 5),
    "minibatch": 2,
    "horizon": 40,
    "test_horizon": 40,
    "test_episodes": 3,
    "hidden": (8,),
    "trajectories": 60,
}


@contextlib.contextmanager
def compiled_hastily(forget: bool = True) -> Iterator[None]:
    """Compiles with less optimisation, in half the time; by default leaves nothing of it to the tests after these."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
    if forget:
        jax.clear_caches()
