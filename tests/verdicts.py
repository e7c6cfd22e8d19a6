"""What the rules of Algorithm 1.1 make of a few vectors."""

import functools

import jax
import numpy as np

from fedpg.aggregators import RULES, Own, Sent, make_aggregator
from fedpg.problem import status_of

WIDTH = 6
"""Numbers of every vector, of which the last are 0 where a test has fewer: distances stay, and so do the programs."""


@functools.partial(jax.jit, static_argnums=0)
def verdict_of(aggregator, vectors, lengths, batch, influences):
    sent = Sent(vectors, status_of({"gradient": vectors}, {}, lengths) == 0, batch)
    return aggregator.update(aggregator.init(*vectors.shape), sent, Own(influences=influences))[0]


def padded(vectors):
    vectors = np.asarray(vectors, np.float32)
    return np.pad(vectors, ((0, 0), (0, WIDTH - vectors.shape[1])))


def judge(name, vectors, sigma=1.0, batch=1e6, lengths=None, alpha=0.3, delta=0.6, influences=None):
    """The verdict of an aggregator; the default batch makes R1's radius next to nothing."""
    size = np.shape(vectors)[1]
    lengths = np.full(len(vectors), size) if lengths is None else np.asarray(lengths)
    lengths = np.where(lengths == 0, 0, lengths + WIDTH - size).astype(np.int32)  # nothing at all stays nothing
    aggregator = make_aggregator(name, alpha=alpha, sigma=sigma, delta=delta)
    seen = None if influences is None else padded(influences)
    verdict = jax.tree.map(np.asarray, verdict_of(aggregator, padded(vectors), lengths, float(batch), seen))
    assert not verdict.gradient[size:].any()
    return verdict._replace(rule=RULES[int(verdict.rule)], gradient=verdict.gradient[:size])


def on_a_line(*points):
    return np.array(points, np.float32)[:, None] * np.array([[0.6, 0.8]], np.float32)
