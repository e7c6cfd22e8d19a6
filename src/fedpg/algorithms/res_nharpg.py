"""Res-NHARPG: agents carry their directions along by the curvature, and the server takes steps of one length.

    theta' = q theta_t + (1 - q) theta_{t-1}, q uniform from [0, 1) and the same for all
    d_i <- (1 - eta)(d_i + H(tau', theta')(theta_t - theta_{t-1})) + eta g(tau, theta_t),  eta = 2 / (t + 2), t from 0
    theta_{t+1} = theta_t + step A(d) / |A(d)|

H u estimates the Hessian of J times u (`estimators.hessian_product`). Its mean over q is grad J(theta_t) -
grad J(theta_{t-1}), without importance weights. Every agent samples two batches a round.
S. Ganesh et al., "Global convergence guarantees for federated policy gradient methods with adversaries", 2024, after
I. Fatkhullin et al., "Stochastic policy gradient methods: improved sample complexity for Fisher-non-degenerate
policies", ICML 2023.
"""

import math

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
    Outcome,
    Problem,
    State,
    make_broadcast,
)
from fedpg.server import Server, stride


def answer(cohort: Cohort, broadcast: Broadcast, d: Array) -> tuple[dict[str, Array], Array]:
    """What K agents send, and remember: their d_i [K, D]. In the first round eta = 1, and nothing has moved yet."""
    between, move = broadcast.vectors["between"], broadcast.vectors["move"]
    turn = cohort.sampled_hessian_product(between, move, use=1)
    g = cohort.sampled_gradient(broadcast.theta)
    d = _carried(d, turn, g, 2 / (broadcast.round + 1))
    return {"gradient": d}, d


@jax.jit
def _carried(d: Array, turn: Array, g: Array, eta: float) -> Array:
    return (1 - eta) * (d + turn) + eta * g


def res_nharpg(step: float = 0.15) -> Algorithm:
    """Res-NHARPG, with steps of the length `step`."""
    require(0 < step < math.inf, f"res-nharpg: step must be a number more than 0, not {step:g}")

    def one_round(problem: Problem, state: State, federation: Federation, server: Server) -> tuple[State, Outcome]:
        t, theta, old = state.round + 1, state.theta, state.algorithm
        between, move = _between(theta, old, server.draw_chance(state.key, t))
        batch = server.draw_batch(state.key, t)
        broadcast = make_broadcast(state.key, t, batch, theta=theta, between=between, move=move)
        replies, agents = federation.ask(broadcast, state.agents)
        verdict, aggregator = server.aggregate(state.aggregator, replies, broadcast)
        after = stride(theta, verdict.gradient, step) if verdict.somebody else theta
        # The agents have carried their directions to theta, whether it moves on from there or not.
        state = state._replace(theta=after, aggregator=aggregator, agents=agents, algorithm=theta)
        return state, Outcome(replies, verdict, 1, int(verdict.somebody))

    agent = Agent(answer, init=lambda agents, size: jnp.zeros((agents, size)))
    sends = ("theta", "between", "move")
    return Algorithm(one_round, agent, broadcast=sends, init=lambda problem, theta: theta, batches=2, optimised=False)


@jax.jit
def _between(theta: Array, old: Array, q: float) -> tuple[Array, Array]:
    return q * theta + (1 - q) * old, theta - old
