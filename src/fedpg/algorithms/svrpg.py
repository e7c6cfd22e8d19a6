"""Algorithm 5, federated SVRPG: the mean of all replies, then a fixed number of variance-reduced steps of the server.

M. Papini et al., "Stochastic variance-reduced policy gradient", ICML 2018, as the paper federates it.
"""

from jax import Array

from fedpg.agents import GRADIENT
from fedpg.algorithms import released
from fedpg.problem import Algorithm, Federation, Outcome, Problem, State, make_broadcast
from fedpg.server import Server


def one_round(problem: Problem, state: State, federation: Federation, server: Server) -> tuple[State, Outcome]:
    """Round t; its lines have no numbers in the paper."""
    b = problem.config.minibatch
    t, theta_0 = state.round + 1, state.theta
    broadcast = make_broadcast(state.key, t, server.draw_batch(state.key, t), theta=theta_0)
    replies, agents = federation.ask(broadcast, state.agents)  # each agent samples B trajectories, and pushes mu_t^(k)
    verdict, aggregator = server.aggregate(state.aggregator, replies, broadcast)  # mu_t
    alone = released.alone(problem, verdict)
    mu, steps = verdict.gradient, problem.config.inner_steps  # N

    theta_n, optimizer, done = theta_0, state.optimizer, 0
    ratio: Array | float = 1.0
    for n in range(steps if verdict.somebody or alone else 0):
        if alone:
            v, ratio = released.own_direction(server, theta_n, theta_0, broadcast, n)
        elif n == 0:  # the correction is exactly zero at theta_0
            server.count(n, b)
            v = mu
        else:
            v, _, ratio = server.semi_stochastic(theta_n, theta_0, mu, broadcast, n)  # b trajectories, and v of them
        if released.too_far(problem, ratio):
            break
        theta_n, optimizer = server.ascend(theta_n, optimizer, v)
        done += 1

    outcome = Outcome(replies, verdict, steps, done, ratio, own=b * done)
    return state._replace(theta=theta_n, optimizer=optimizer, aggregator=aggregator, agents=agents), outcome


SVRPG = Algorithm(one_round, GRADIENT)
