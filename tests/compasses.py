"""Federations of vectors for tests of compass."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedpg.aggregators import Own, Sent, Verdict, compass

ROUNDS = 30
SIZE, AGENTS, LIARS = 200, 10, 3
NOISE = 5.0
"""The length of an honest agent's noise over that of the gradient."""


def federation(seed: int, scale: np.ndarray | float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(the true gradient, what ten agents would honestly send, the server's own over rounds), noise of that scale."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=SIZE) / np.sqrt(SIZE) * scale
    noise = NOISE * rng.normal(size=(AGENTS + 1, SIZE)) / np.sqrt(SIZE) * scale
    return truth, truth + noise[1:], truth + 0.1 * noise[0]


compiled = jax.jit(compass().update)


def update(memory: Any, sent: Sent, own: Own) -> tuple[Verdict, Any]:
    """A round, in arrays of NumPy."""
    return jax.tree.map(np.asarray, compiled(memory, sent, own))


@functools.cache
def fresh(agents: int = AGENTS, size: int = SIZE) -> Any:
    """The memory before the first round."""
    return jax.tree.map(np.asarray, jax.jit(lambda: compass().init(agents, size))())


def sent_by_all(vectors: np.ndarray, valid: np.ndarray | None = None) -> Sent:
    everybody = np.ones(len(vectors), bool)
    return Sent(vectors.astype(np.float32), everybody if valid is None else valid, 16)


def own_of(server: np.ndarray, **more: np.ndarray) -> Own:
    return Own(server.astype(np.float32), **more)


def judged(vectors: np.ndarray, server: np.ndarray, valid: np.ndarray | None = None) -> Verdict:
    """The verdict of the first round."""
    return update(fresh(*vectors.shape), sent_by_all(vectors, valid), own_of(server))[0]


def lying(honest: np.ndarray, lie: np.ndarray) -> np.ndarray:
    return np.concatenate([honest[:-LIARS], np.broadcast_to(lie, (LIARS, SIZE))]).astype(np.float32)


def shares(sent: Callable[[int, np.ndarray], np.ndarray], signal: float = 1.0, agents: int = AGENTS) -> np.ndarray:
    """How much each agent counts in each of some rounds, as a share of all: the aggregate in terms of what was sent.

    Where there is no signal, the server knows that it knows nothing.
    """
    rng = np.random.default_rng(2)
    truth = signal * rng.normal(size=SIZE) / np.sqrt(SIZE)
    memory, found = fresh(agents), []
    for t in range(ROUNDS):
        noise = NOISE * rng.normal(size=(agents + 1, SIZE)) / np.sqrt(SIZE)
        vectors = sent(t, truth + noise[1:]).astype(np.float32)
        verdict, memory = update(memory, sent_by_all(vectors), own_of((signal > 0) * (truth + noise[0])))
        found.append(np.linalg.lstsq(vectors.T, verdict.gradient, rcond=None)[0])
    return np.array(found) / np.sum(found, axis=1, keepdims=True)
