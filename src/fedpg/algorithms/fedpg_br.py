"""Algorithm 1, FedPG-BR: filtered federation, then variance-reduced steps of the server.

Fan et al., "Fault-tolerant federated reinforcement learning with theoretical guarantee", NeurIPS 2021.
"""

from jax import Array

from fedpg.agents import GRADIENT
from fedpg.algorithms import released
from fedpg.problem import Algorithm, Federation, Outcome, Problem, State, make_broadcast
from fedpg.server import Server


def one_round(problem: Problem, state: State, federation: Federation, server: Server) -> tuple[State, Outcome]:
    """Round t; the line numbers are those of Algorithm 1."""
    b = problem.config.minibatch
    t, theta_0 = state.round + 1, state.theta
    batch = server.draw_batch(state.key, t)  # B_t
    broadcast = make_broadcast(state.key, t, batch, theta=theta_0)  # line 3
    replies, agents = federation.ask(broadcast, state.agents)  # lines 4-6
    verdict, aggregator = server.aggregate(state.aggregator, replies, broadcast)  # line 7
    mu = verdict.gradient
    alone = released.alone(problem, verdict)
    drawn = server.draw_inner_steps(broadcast)  # line 8

    theta_n, optimizer, done = theta_0, state.optimizer, 0
    ratio: Array | float = 1.0
    for n in range(drawn if verdict.somebody or alone else 0):  # line 9
        if alone:
            v, ratio = released.own_direction(server, theta_n, theta_0, broadcast, n)
        elif n == 0:  # the correction is exactly zero at theta_0: its trajectories need not be simulated
            server.count(n, b)
            v = mu
        else:
            v, _, ratio = server.semi_stochastic(theta_n, theta_0, mu, broadcast, n)  # lines 10 and 11
        if released.too_far(problem, ratio):
            break
        theta_n, optimizer = server.ascend(theta_n, optimizer, v)  # line 12
        done += 1

    outcome = Outcome(replies, verdict, drawn, done, ratio, own=b * done)
    return state._replace(theta=theta_n, optimizer=optimizer, aggregator=aggregator, agents=agents), outcome  # line 13


FEDPG_BR = Algorithm(one_round, GRADIENT)
