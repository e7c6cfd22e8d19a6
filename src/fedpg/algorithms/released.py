"""What only the released code does; the paper's text has none of it.

(Its other departures are settings with a `released` value: the form of an attack, the estimator, the law of N.)
"""

from jax import Array

from fedpg.aggregators import Verdict
from fedpg.problem import Broadcast, Problem
from fedpg.server import Server


def too_far(problem: Problem, ratio: Array | float) -> bool:
    """The inner loop stops before a step whose mean importance weight is further than `ratio_bound` from 1."""
    bound = problem.config.ratio_bound
    return bound < float("inf") and abs(float(ratio) - 1.0) > bound


def alone(problem: Problem, verdict: Verdict) -> bool:
    """If the aggregator accepts nobody, the server goes on alone instead of skipping the round."""
    return not verdict.somebody and problem.config.none_accepted == "server"


def own_direction(server: Server, theta: Array, theta_0: Array, broadcast: Broadcast, n: int) -> tuple[Array, Array]:
    """(the server's own plain gradient at theta, the mean importance weight): a step where there is no mu_t."""
    _, plain, ratio = server.semi_stochastic(theta, theta_0, theta_0, broadcast, n)
    return plain, ratio
