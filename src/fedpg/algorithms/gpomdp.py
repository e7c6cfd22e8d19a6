"""Algorithm 4, federated GPOMDP: one step a round on the mean of the agents' gradients.

J. Baxter and P. L. Bartlett, "Infinite-horizon policy-gradient estimation", 2001, as the paper federates it.
"""

from fedpg.agents import GRADIENT
from fedpg.problem import Algorithm, Federation, Outcome, Problem, State, make_broadcast
from fedpg.server import Server


def one_round(problem: Problem, state: State, federation: Federation, server: Server) -> tuple[State, Outcome]:
    """Round t; its lines have no numbers in the paper."""
    t = state.round + 1
    broadcast = make_broadcast(state.key, t, server.draw_batch(state.key, t), theta=state.theta)
    replies, agents = federation.ask(broadcast, state.agents)  # each agent samples B trajectories, and pushes mu_t^(k)
    verdict, aggregator = server.aggregate(state.aggregator, replies, broadcast)  # mu_t
    theta, optimizer = state.theta, state.optimizer
    if verdict.somebody:
        theta, optimizer = server.ascend(theta, optimizer, verdict.gradient)
    outcome = Outcome(replies, verdict, 1, int(verdict.somebody))
    return state._replace(theta=theta, optimizer=optimizer, aggregator=aggregator, agents=agents), outcome


GPOMDP = Algorithm(one_round, GRADIENT)
