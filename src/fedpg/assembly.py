"""From settings to a problem: everything that they name, looked up or taken as it was passed."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import optax

from fedpg.agents import with_momentum
from fedpg.aggregators import Aggregator, Own, closed, make_aggregator
from fedpg.algorithms import make_algorithm
from fedpg.attacks import Attack, as_attack, make_attack
from fedpg.config import Config
from fedpg.errors import ConfigError, unknown
from fedpg.estimators import make_estimator
from fedpg.pieces import import_object, look_up
from fedpg.policies import Policy, make_mlp
from fedpg.problem import Algorithm, Problem
from fedpg.tasks import Task, make_task
from fedpg.tasks.differences import check_physics, differences

TURN_AWAY = ("krum", "dnc", "server", "multi-krum", "mda", "smea", "monna")
"""Rules that turn as many agents away as alpha allows, or more, on purpose."""
Piece = TypeVar("Piece")
MakePolicy = Callable[[Task], Policy]
"""A user's own policy: what makes it for a task."""


def make_problem(
    config: Config,
    task: Task | None = None,
    policy: Policy | MakePolicy | None = None,
    attack: Attack | Callable[..., Any] | None = None,
    aggregator: Aggregator | Callable[..., Aggregator] | None = None,
    optimizer: optax.GradientTransformation | Callable[[float], optax.GradientTransformation] | None = None,
    algorithm: Algorithm | Callable[..., Algorithm] | None = None,
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
        check_physics(task, parameters)
        task = task.vary(parameters)
    if config.vary:
        task = task.vary(*differences(task, config.vary, config.agents, config.vary_seed))
    if task.agents not in (None, config.agents):
        raise ConfigError(f"the task {task.id} was made for {task.agents} agents, not for {config.agents}")
    *steps, last = config.aggregator.split("+")
    if config.fail_closed and aggregator is None and (last in TURN_AWAY or "bucketing" in steps):
        raise ConfigError(
            f"fail_closed with the aggregator {config.aggregator!r} would use no round, or none in which an agent is "
            "silent: it turns away as many agents as alpha allows, or more, whoever lies. Leave fail_closed out, or "
            "use another (compass)"
        )
    algorithm = _made("algorithm", Algorithm, algorithm) or make_algorithm(config.algorithm, config.algorithm_options)
    told = {"alpha": config.alpha, "sigma": config.sigma, "delta": config.delta}
    rule = _made("aggregator", Aggregator, aggregator, **told) or make_aggregator(
        config.aggregator, config.aggregator_options, **told
    )
    for what, needs in (("aggregator", rule.needs), ("algorithm", algorithm.needs)):
        for name in needs:
            if name not in Own._fields:
                raise unknown(f"need of the {what}", name, Own._fields)
    lies, rate = (config.attack, config.attack_form, config.attack_options), config.learning_rate
    return Problem(
        config=config,
        task=task,
        policy=_policy(config, task, policy),
        estimator=make_estimator(config.estimator, config.discount, config.baseline, config.importance, config.trace),
        attack=make_attack(*lies) if attack is None else as_attack(attack, config.attack_form),
        aggregator=closed(rule, config.alpha) if config.fail_closed else rule,
        optimizer=_optimizer(config.optimizer, rate) if optimizer is None else _transformation(optimizer, rate),
        algorithm=_averaging(algorithm, config.momentum) if config.momentum else algorithm,
    )


def _made(kind: str, wanted: type[Piece], given: Any, **settings: Any) -> Piece | None:
    """What a user passed: the piece itself, or what a function makes of its defaults and of the settings it takes."""
    if given is None or isinstance(given, wanted):
        return given
    name = getattr(given, "__name__", type(given).__name__)
    made = look_up(kind, name, {name: given}, **settings) if callable(given) else given
    if not isinstance(made, wanted):
        raise ConfigError(f"the {kind} {name!r} is neither an {wanted.__name__} nor a function that makes one")
    return made


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
    policy = given(task) if callable(given) and not isinstance(given, Policy) else given
    if not isinstance(policy, Policy):
        raise ConfigError(f"the policy {config.policy!r} is neither a Policy nor a function that makes one for a task")
    return policy


OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {"adam": optax.adam, "sgd": optax.sgd}


@functools.cache  # the same optimiser is the same object, so that nothing is compiled twice for it
def _optimizer(name: str, learning_rate: float) -> optax.GradientTransformation:
    if ":" not in name:
        return look_up("optimizer", name, OPTIMIZERS, learning_rate=learning_rate)
    return _transformation(import_object("optimizer", name), learning_rate, name)


def _transformation(own: Any, learning_rate: float, name: str = "") -> optax.GradientTransformation:
    """What a user passed: a transformation, or a function of the learning rate that makes one."""
    made = own(learning_rate) if callable(own) and not isinstance(own, optax.GradientTransformation) else own
    if not isinstance(made, optax.GradientTransformation):
        what = repr(name) if name else f"{own!r:.60}"
        raise ConfigError(f"the optimizer {what} is neither an optax.GradientTransformation nor makes one of a rate")
    return made
