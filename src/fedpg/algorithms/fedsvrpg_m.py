"""FedSVRPG-M: every agent takes some steps of its own, each along a direction that all agents' last one corrects.

    theta_{i,0} = theta_r;  for h < H:  u_{i,h} = beta g(tau | theta_{i,h})
            + (1 - beta)[u_r + g(tau | theta_{i,h}) - omega(tau | theta_{i,h}, theta_{r-1}) g(tau | theta_{r-1})]
            theta_{i,h+1} = theta_{i,h} + rate u_{i,h}
    u_{r+1} = A((theta_{i,H} - theta_r) / (H rate)),  theta_{r+1} = theta_r + H rate u_{r+1}

Agents send their moves divided by H rate, which is the mean of their directions: on the scale of gradients, where the
thresholds of aggregators lie. Every agent samples H batches a round, as the policy that it has come to.
H. Wang et al., "Momentum for the win: collaborative federated reinforcement learning across heterogeneous
environments", ICML 2024.
"""

import math
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


class Common(NamedTuple):
    """What the server remembers; both [D]."""

    u: Array  # u_r; 0 before the first
    old: Array  # theta_{r-1}, where it began


def fedsvrpg_m(rate: float = 0.1, beta: float = 0.2, steps: int = 2, longest: float = 0.5) -> Algorithm:
    """FedSVRPG-M, with H = `steps` steps at every agent of the size `rate`, and the weight `beta` on new gradients.

    No step is longer than `longest`: the gradients of some tasks are so large that a rate for all of them is none.
    """
    require(0 < rate < math.inf, f"fedsvrpg-m: rate must be a number more than 0, not {rate:g}")
    require(0 <= beta <= 1, f"fedsvrpg-m: beta must be from 0 to 1, not {beta:g}")
    require(steps >= 1, f"fedsvrpg-m: steps must be 1 or more, not {steps}")
    require(longest > 0, f"fedsvrpg-m: longest must be more than 0, not {longest:g}")

    def answer(cohort: Cohort, broadcast: Broadcast, memory: Memory) -> tuple[dict[str, Array], Memory]:
        """The mean direction of the local steps, from [D] for all agents to [K, D] with a row for each."""
        theta, old, u = broadcast.theta, broadcast.vectors["old"], broadcast.vectors["u"]
        total = jnp.zeros(())
        for h in range(steps):
            g, g_old = cohort.sampled_correction(theta, old, use=h)
            direction = _direction(u, g, g_old, beta, longest / rate)
            theta, total = _moved(theta, rate, direction), total + direction
        return {"gradient": total / steps}, memory

    def one_round(problem: Problem, state: State, federation: Federation, server: Server) -> tuple[State, Outcome]:
        t, theta, last = state.round + 1, state.theta, state.algorithm
        broadcast = make_broadcast(state.key, t, server.draw_batch(state.key, t), theta=theta, old=last.old, u=last.u)
        replies, agents = federation.ask(broadcast, state.agents)
        verdict, aggregator = server.aggregate(state.aggregator, replies, broadcast)
        if verdict.somebody:
            last = Common(verdict.gradient, theta)
            theta = theta + steps * rate * verdict.gradient
        state = state._replace(theta=theta, aggregator=aggregator, agents=agents, algorithm=last)
        return state, Outcome(replies, verdict, 1, int(verdict.somebody))

    def first(problem: Problem, theta: Array) -> Memory:
        return Common(jnp.zeros_like(theta), theta)

    sends = ("theta", "old", "u")
    return Algorithm(one_round, Agent(answer), broadcast=sends, init=first, batches=steps, optimised=False)


@jax.jit
def _direction(u: Array, g: Array, g_old: Array, beta: float, longest: float) -> Array:
    """u_{i,h} [K, D], cut down to the longest; as long as there is no u_r, g alone."""
    direction = g + jnp.where(jnp.any(u != 0), (1 - beta) * (u - g_old), 0.0)
    length = jnp.linalg.norm(direction, axis=1, keepdims=True)
    return direction * jnp.minimum(1.0, longest / jnp.where(length > 0, length, 1.0))


@jax.jit
def _moved(theta: Array, rate: float, direction: Array) -> Array:
    """theta_{i,h+1} [K, D]. Who has no finite direction stays, so that nobody acts by it; its message says the rest."""
    finite = jnp.all(jnp.isfinite(direction), axis=1, keepdims=True)
    return theta + jnp.where(finite, rate * direction, 0.0)
