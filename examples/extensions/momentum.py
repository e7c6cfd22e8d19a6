"""Momentum at the agents: an algorithm whose agents have a memory and send two vectors.

m_i <- beta m_i + (1 - beta) g_i. The server steps along the aggregate of the m_i, which vary less than the g_i.
S. P. Karimireddy, L. He, M. Jaggi, "Learning from history for Byzantine robust optimization", ICML 2021.

    fedpg train --algorithm momentum:MOMENTUM
"""

import jax.numpy as jnp

from fedpg import Agent, Algorithm, Schema
from fedpg.problem import Outcome, make_broadcast

BETA = 0.9


def answer(cohort, broadcast, memory):
    """What K agents of this process send, or the one agent of a site."""
    gradient = cohort.gradient(broadcast.theta, cohort.sample(broadcast.theta))  # [K, D]
    momentum = BETA * memory + (1 - BETA) * gradient
    return {"gradient": gradient, "momentum": momentum}, momentum


def one_round(problem, state, federation, server):
    """Ask the agents, aggregate their momenta, take one step."""
    t = state.round + 1
    broadcast = make_broadcast(state.key, t, server.draw_batch(state.key, t), theta=state.theta)
    replies, agents = federation.ask(broadcast, state.agents)
    verdict, aggregator = server.aggregate(state.aggregator, replies, broadcast, "momentum")
    theta, optimizer = state.theta, state.optimizer
    if verdict.somebody:
        theta, optimizer = server.ascend(theta, optimizer, verdict.gradient)
    state = state._replace(theta=theta, optimizer=optimizer, aggregator=aggregator, agents=agents)
    return state, Outcome(replies, verdict, 1, int(verdict.somebody))


AGENT = Agent(answer, init=lambda agents, size: jnp.zeros((agents, size)))
MOMENTUM = Algorithm(one_round, AGENT, reply=Schema(vectors=("gradient", "momentum")))
