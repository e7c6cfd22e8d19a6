"""ByzPG: a large batch now and then, and in between small batches that correct the last direction.

    with probability p   v_i = g(tau | theta),                                          B_t trajectories
    else                 v_i = v + g(tau | theta) - omega(tau | theta, old) g(tau | old),  b trajectories
    v <- A(v_1, ..., v_K),  old <- theta,  theta <- theta + eta v

P. Jordan et al., "Decentralized and Byzantine-robust federated policy gradient", 2024 (ByzPG), after Z. Li et al.,
"PAGE: a simple and optimal probabilistic gradient estimator", ICML 2021.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.errors import require
from fedpg.problem import (
    Agent,
    Algorithm,
    Broadcast,
    Cohort,
    Federation,
    Memory,
    Outcome,
    Problem,
    State,
    make_broadcast,
)
from fedpg.server import Server


class Direction(NamedTuple):
    """What the server remembers; both [D]."""

    v: Array  # the last direction; 0 before the first
    old: Array  # the parameters that it belongs to


def answer(cohort: Cohort, broadcast: Broadcast, memory: Memory) -> tuple[dict[str, Array], Memory]:
    """Without a direction to correct, which is 0 then, the gradient alone."""
    v, old = broadcast.vectors["v"], broadcast.vectors["old"]
    g, g_old = cohort.sampled_correction(broadcast.theta, old)
    return {"gradient": _corrected(v, g, g_old)}, memory


@jax.jit
def _corrected(v: Array, g: Array, g_old: Array) -> Array:
    return g + jnp.where(jnp.any(v != 0), v - g_old, 0.0)


def byzpg(p: float = 0.2) -> Algorithm:
    """ByzPG, with a large batch with probability `p`, and in the first round."""
    require(0 < p <= 1, f"byzpg: p must be more than 0, and 1 at the most, not {p:g}")

    def one_round(problem: Problem, state: State, federation: Federation, server: Server) -> tuple[State, Outcome]:
        t, theta, optimizer, last = state.round + 1, state.theta, state.optimizer, state.algorithm
        anew = not last.v.any() or server.draw_chance(state.key, t) < p
        batch = server.draw_batch(state.key, t) if anew else problem.config.minibatch
        v, old = (jnp.zeros_like(theta), theta) if anew else last
        broadcast = make_broadcast(state.key, t, batch, theta=theta, old=old, v=v)
        replies, agents = federation.ask(broadcast, state.agents)
        verdict, aggregator = server.aggregate(state.aggregator, replies, broadcast)
        if verdict.somebody:  # else the last direction stays, with its parameters
            last = Direction(verdict.gradient, theta)
            theta, optimizer = server.ascend(theta, optimizer, verdict.gradient)
        state = state._replace(theta=theta, optimizer=optimizer, aggregator=aggregator, agents=agents, algorithm=last)
        return state, Outcome(replies, verdict, 1, int(verdict.somebody))

    def first(problem: Problem, theta: Array) -> Memory:
        return Direction(jnp.zeros_like(theta), theta)

    return Algorithm(one_round, Agent(answer), broadcast=("theta", "old", "v"), init=first, small_batches=True)
