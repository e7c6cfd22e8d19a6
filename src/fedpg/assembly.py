"""From settings to a problem: everything that they name, looked up or taken as it was passed."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optax

from fedpg.agents import with_momentum
from fedpg.aggregators import Aggregator, closed, make_aggregator
from fedpg.algorithms import make_algorithm
from fedpg.attacks import Attack, make_attack
from fedpg.config import Config
from fedpg.errors import ConfigError
from fedpg.estimators import make_estimator
from fedpg.pieces import import_object, look_up
from fedpg.policies import Policy, make_mlp
from fedpg.problem import Algorithm, Problem
from fedpg.tasks import Task, make_task
from fedpg.tasks.differences import differences

LISTEN_TO_FEW = ("krum", "dnc", "server")
"""Rules that turn more agents away than alpha allows on purpose."""
MakePolicy = Callable[[Task], Policy]
"""A user's own policy: what makes it for a task."""


def make_problem(
    config: Config,
    task: Task | None = None,
    policy: Policy | MakePolicy | None = None,
    attack: Attack | None = None,
    aggregator: Aggregator | None = None,
    optimizer: optax.GradientTransformation | None = None,
    algorithm: Algorithm | None = None,
    parameters: Mapping[str, Sequence[Any]] | None = None,
) -> Problem:
    """The settings, with everything they name looked up; what is passed is used instead of what they name.

    `parameters` are those of the task that differ between agents, one value per agent each.
    """
    task = task or make_task(config.task)
    if parameters:
        wrong = [name for name, values in parameters.items() if len(values) != config.agents]
        if wrong:
            raise ConfigError(f"parameter {wrong[0]!r} needs one value for each of the {config.agents} agents")
        task = task.vary(parameters)
    if config.vary:
        task = task.vary(*differences(task, config.vary, config.agents, config.vary_seed))
    if task.agents not in (None, config.agents):
        raise ConfigError(f"the task {task.id} was made for {task.agents} agents, not for {config.agents}")
    if config.fail_closed and aggregator is None and config.aggregator.split("+")[-1] in LISTEN_TO_FEW:
        raise ConfigError(
            f"fail_closed with the aggregator {config.aggregator!r} would use no round at all: it turns away more "
            "agents than alpha allows, on purpose. Leave fail_closed out, or use another (multi-krum, compass)"
        )
    algorithm = algorithm or make_algorithm(config.algorithm, config.algorithm_options)
    rule = aggregator or make_aggregator(
        config.aggregator, config.aggregator_options, alpha=config.alpha, sigma=config.sigma, delta=config.delta
    )
    return Problem(
        config=config,
        task=task,
        policy=_policy(config, task, policy),
        estimator=make_estimator(config.estimator, config.discount, config.baseline, config.importance, config.trace),
        attack=attack or make_attack(config.attack, config.attack_form, config.attack_options),
        aggregator=closed(rule, config.alpha) if config.fail_closed else rule,
        optimizer=optimizer or _optimizer(config.optimizer, config.learning_rate),
        algorithm=_averaging(algorithm, config.momentum) if config.momentum else algorithm,
    )


@functools.cache  # the same algorithm is the same object for equal settings
def _averaging(algorithm: Algorithm, momentum: float) -> Algorithm:
    """The algorithm, with agents who send averages over rounds."""
    return algorithm._replace(agent=with_momentum(algorithm.agent, momentum, algorithm.reply.vectors))


def _policy(config: Config, task: Task, given: Policy | MakePolicy | None) -> Policy:
    if given is None and ":" in config.policy:
        given = import_object("policy", config.policy)
    if given is None:
        if config.policy != "mlp":
            raise ConfigError(f"unknown policy {config.policy!r}: it must be mlp, or your own as package.module:object")
        return make_mlp(
            task.observations, task.actions, config.hidden, config.activation, config.gaussian, config.categorical
        )
    policy = given if isinstance(given, Policy) else given(task)
    if not isinstance(policy, Policy):
        raise ConfigError(f"the policy {config.policy!r} is neither a Policy nor a function that makes one for a task")
    return policy


OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {"adam": optax.adam, "sgd": optax.sgd}


@functools.cache  # the same optimiser is the same object, so that nothing is compiled twice for it
def _optimizer(name: str, learning_rate: float) -> optax.GradientTransformation:
    if ":" not in name:
        return look_up("optimizer", name, OPTIMIZERS, learning_rate=learning_rate)
    own = import_object("optimizer", name)
    made = own if isinstance(own, optax.GradientTransformation) else own(learning_rate)
    if not isinstance(made, optax.GradientTransformation):
        raise ConfigError(f"the optimizer {name!r} is neither an optax.GradientTransformation nor makes one of a rate")
    return made
