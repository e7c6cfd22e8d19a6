"""N-PG-IGT: gradients from a point ahead, whose average over rounds is then one of the point where it is used.

    theta' = theta_t + (1 - eta)/eta (theta_t - theta_{t-1})
    d <- (1 - eta) d + eta A(g(tau, theta')),  eta = max((2 / (t + 2))^(4/5), least), t from 0
    theta_{t+1} = theta_t + step d / |d|

If J were a parabola, d would have the mean grad J(theta_t): the new gradient is as far ahead as the old lag behind.
One batch a round, no importance weights, no Hessian. In theory steps shrink faster than eta, so that the point ahead
comes closer; here they keep their length, and `least` keeps it within (1 - least) / least steps.
I. Fatkhullin et al., "Stochastic policy gradient methods: improved sample complexity for Fisher-non-degenerate
policies", ICML 2023.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.agents import GRADIENT
from fedpg.errors import require
from fedpg.problem import Algorithm, Federation, Memory, Outcome, Problem, State, make_broadcast
from fedpg.server import Server, stride


class Transported(NamedTuple):
    """What the server remembers; both [D]."""

    d: Array
    old: Array  # theta_{t-1}


def n_pg_igt(step: float = 0.05, least: float = 0.3) -> Algorithm:
    """N-PG-IGT, with steps of the length `step` and eta at `least` so much."""
    require(0 < step < math.inf, f"n-pg-igt: step must be a number more than 0, not {step:g}")
    require(0 < least <= 1, f"n-pg-igt: least must be more than 0, and 1 at the most, not {least:g}")

    def one_round(problem: Problem, state: State, federation: Federation, server: Server) -> tuple[State, Outcome]:
        t, theta, last = state.round + 1, state.theta, state.algorithm
        eta = max((2 / (t + 1)) ** 0.8, least)
        broadcast = make_broadcast(state.key, t, server.draw_batch(state.key, t), theta=ahead(theta, last.old, eta))
        replies, agents = federation.ask(broadcast, state.agents)
        verdict, aggregator = server.aggregate(state.aggregator, replies, broadcast)
        if verdict.somebody:
            last = Transported(_averaged(last.d, verdict.gradient, eta), theta)
            theta = stride(theta, last.d, step)
        state = state._replace(theta=theta, aggregator=aggregator, agents=agents, algorithm=last)
        return state, Outcome(replies, verdict, 1, int(verdict.somebody))

    def first(problem: Problem, theta: Array) -> Memory:
        return Transported(jnp.zeros_like(theta), theta)

    return Algorithm(one_round, GRADIENT, init=first, optimised=False)


@jax.jit
def ahead(theta: Array, old: Array, eta: float) -> Array:
    """Where the agents sample."""
    return theta + (1 - eta) / eta * (theta - old)


@jax.jit
def _averaged(d: Array, new: Array, eta: float) -> Array:
    return (1 - eta) * d + eta * new
