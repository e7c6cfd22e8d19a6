"""fedpg_br: what the server makes of the gradients that the nodes send."""

from fedpg import Aggregator, Config, Problem, make_problem
from fedpg.aggregators import make_aggregator

from fedpg_br.dataset import load_environment
from fedpg_br.model import make_policy


def make_filter(config: Config) -> Aggregator:
    """Say whom to trust: by the paper's filter `fedpg`, or another by its name."""
    return make_aggregator(
        config.aggregator,
        config.aggregator_options,
        alpha=config.alpha,
        sigma=config.sigma,
        delta=config.delta,
    )


def make_federated_problem(config: Config) -> Problem:
    """Put environment, policy and filter together; server and nodes do it alike."""
    task = load_environment(config.task)
    rule = None if config.fail_closed else make_filter(config)
    return make_problem(config, task, make_policy(config, task), aggregator=rule)
