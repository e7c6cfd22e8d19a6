"""A user's own pieces that do not fit are refused where they show it, with what was wrong and what it must be."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnasium import spaces

from fedpg import (
    Agent,
    Aggregator,
    Algorithm,
    Attack,
    ConfigError,
    Environment,
    Schema,
    SimulationError,
    StorageError,
    make_config,
    make_problem,
    make_task,
    train,
)
from fedpg.agents import GRADIENT
from fedpg.aggregators import Sent, decide, krum, make_aggregator, mean
from fedpg.algorithms import ALGORITHMS
from fedpg.problem import Outcome, make_broadcast
from tiny import TINY

ROUND = {**TINY, "trajectories": 4, "progress": False}


def algorithm(
    answer: Callable[..., Any], schema: Schema, more: dict[str, Any] | None = None, **given: Any
) -> Algorithm:
    """One that asks, aggregates, and steps by the optimiser; its broadcast has `more` beside theta."""

    def one_round(problem: Any, state: Any, federation: Any, server: Any) -> Any:
        broadcast = make_broadcast(state.key, state.round + 1, 4, theta=state.theta)
        replies, agents = federation.ask(broadcast, state.agents)
        verdict, aggregator = server.aggregate(state.aggregator, replies, broadcast)
        theta, optimizer = server.ascend(state.theta, state.optimizer, verdict.gradient)
        state = state._replace(theta=theta, optimizer=optimizer, aggregator=aggregator, agents=agents)
        return state, Outcome(replies, verdict, 1, 1)

    return Algorithm(one_round, Agent(answer, **given), reply=schema)


def says(**message: Callable[[Any], Any]) -> Callable[..., Any]:
    """Agents who send these functions of their gradients."""

    def answer(cohort: Any, broadcast: Any, memory: Any) -> Any:
        gradient = cohort.sampled_gradient(broadcast.theta)
        return {name: make(gradient) for name, make in message.items()}, memory

    return answer


def itself(gradient: Any) -> Any:
    return gradient


MESSAGES = {
    "a short vector": (says(gradient=itself, x=lambda g: g[:, :5]), Schema(("gradient", "x")), r"'x' of shape .*, 5\)"),
    "a long one": (says(gradient=lambda g: jnp.pad(g, ((0, 0), (0, 1)))), Schema(("gradient",)), "'gradient' of shape"),
    "one for all": (says(gradient=lambda g: g[0]), Schema(("gradient",)), "a row each"),
    "a scalar of two": (says(gradient=itself, s=lambda g: g[:, :1]), Schema(("gradient",), ("s",)), "'s' of shape"),
    "no vector": (says(s=lambda g: g[:, 0]), Schema((), ("s",)), "no vector"),
    "another name": (says(gradient=itself, y=itself), Schema(("gradient",)), "declares"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_what_the_algorithm_declares(name: str):
    answer, schema, words = MESSAGES[name]
    with pytest.raises((ConfigError, IndexError), match=words if name != "one for all" else ""):
        train(**(ROUND | {"algorithm": algorithm(answer, schema), "byzantine": 0, "attack": None}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "words"),
    [({"x": jnp.zeros(3)}, "the algorithm declares"), ({"theta": jnp.zeros((2, 3))}, "has the shape")],
)
def test_a_broadcast_is_what_the_algorithm_declares(more: dict[str, Any], words: str):
    own = algorithm(says(gradient=itself), Schema(("gradient",)))

    def one_round(problem: Any, state: Any, federation: Any, server: Any) -> Any:
        federation.ask(make_broadcast(state.key, 1, 4, **({"theta": state.theta} | more)), state.agents)

    with pytest.raises(ConfigError, match=words):
        train(**(ROUND | {"algorithm": own._replace(round=one_round), "byzantine": 0, "attack": None}))


def forgetful(cohort: Any, broadcast: Any, memory: Any) -> Any:
    return {"gradient": cohort.sampled_gradient(broadcast.theta)}, memory + 0.5


@pytest.mark.slow
def test_a_memory_keeps_its_form():
    whole = algorithm(forgetful, Schema(("gradient",)), init=lambda agents, size: jnp.zeros(agents, jnp.int32))
    with pytest.raises(ConfigError, match="the agents' memory changed"):
        train(**(ROUND | {"algorithm": whole, "byzantine": 0, "attack": None}))
    attack = Attack(recall=lambda memory, scene: (scene.gradients, memory + 0.5), init=lambda k, d: jnp.int32(0))
    with pytest.raises(ConfigError, match="the attack's memory changed"):
        train(**(ROUND | {"attack": attack}))

    def one_round(problem: Any, state: Any, federation: Any, server: Any) -> Any:
        after, outcome = GPOMDP.round(problem, state, federation, server)
        return after._replace(algorithm=1.5), outcome

    changing = GPOMDP._replace(round=one_round, init=lambda problem, theta: jnp.int32(1))
    with pytest.raises(ConfigError, match="the algorithm's memory changed"):
        train(**(ROUND | {"algorithm": changing}))


GPOMDP = ALGORITHMS["gpomdp"]()


def test_what_cannot_be_remembered_is_refused_before_the_first_round():
    key = Aggregator(mean().update, init=lambda agents, size: jax.random.key(0))
    with pytest.raises(ConfigError, match="the aggregator's memory holds a key of JAX"):
        train(**(ROUND | {"aggregator": key}))
    rowless = GPOMDP._replace(agent=Agent(GRADIENT.answer, init=lambda agents, size: jnp.zeros(3)))
    with pytest.raises(ConfigError, match="the agents' memory must have a row for each of 4"):
        train(**(ROUND | {"algorithm": rowless}))


def test_functions_that_make_a_piece_are_as_good_as_the_piece():
    config = make_config(**(TINY | {"alpha": 0.25}))
    made = make_problem(config, aggregator=krum, optimizer=optax.sgd, algorithm=ALGORITHMS["gpomdp"], attack=flipping)
    assert isinstance(made.aggregator, Aggregator)
    assert isinstance(made.optimizer, optax.GradientTransformation)
    assert isinstance(made.algorithm, Algorithm)
    assert isinstance(made.attack, Attack)
    for kind in ("aggregator", "optimizer", "algorithm", "attack", "policy"):
        with pytest.raises(ConfigError, match=kind):
            make_problem(config, **{kind: 3})  # type: ignore[arg-type]


def flipping() -> Attack:
    return Attack(message=lambda scene: -scene.gradients)


FINE: dict[str, Any] = {
    "id": "Line",
    "reset": lambda key, parameters: jnp.float32(0),
    "step": lambda state, action, parameters: (state + 1.0, state, state > 5),
    "observe": lambda state: state[None],
    "observations": 1,
    "actions": spaces.Discrete(2),
    "limit": 10,
}
WRONG = {
    "observations": ({"observations": 3}, r"observe must return an array of shape \(3,\)"),
    "two values": ({"step": lambda state, action, parameters: (state, state)}, "step must return"),
    "a whole reward": ({"step": lambda s, a, p: (s + 1.0, jnp.int32(1), s > 5)}, "as reward one number"),
    "a long reward": ({"step": lambda s, a, p: (s + 1.0, s[None], s > 5)}, "as reward one number"),
    "no end": ({"step": lambda s, a, p: (s + 1.0, s, s)}, "as terminated True or False"),
    "another state": ({"step": lambda s, a, p: (jnp.int32(1), s, s > 5)}, "the same shapes and types"),
    "no time": ({"limit": 0}, "limit must be 1 or more"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_task_in_jax_whose_functions_do_not_fit_is_refused(name: str):
    change, words = WRONG[name]
    assert make_task(Environment(**FINE)).observations == 1
    with pytest.raises(ConfigError, match=words):
        make_task(Environment(**(FINE | change)))


@pytest.mark.slow
def test_rewards_that_are_not_finite_are_an_error():
    task = Environment(**(FINE | {"step": lambda s, a, p: (s + 1.0, s * jnp.nan, s > 5)}))
    settings = {name: value for name, value in ROUND.items() if name not in ("byzantine", "attack")}
    with pytest.raises(SimulationError, match="Line gave rewards that are not finite"):
        train(task, **settings)


def test_arguments_of_a_task_may_be_lists_and_arrays():
    given = {"action_offset": [[0.1], np.array([0.2]), (0.1,)]}
    varied = make_task("Pendulum-v1").vary(given)
    assert varied.varied["action_offset"] == [(0.1,), (0.2,), (0.1,)]


@pytest.mark.slow
def test_a_run_is_not_resumed_with_another_piece(tmp_path: Path):
    settings = ROUND | {"out": tmp_path / "run"}
    assert train(**(settings | {"aggregator": mean()})).config.aggregator == "custom:mean"
    with pytest.raises(StorageError, match=r"aggregator = 'custom:mean' there, 'custom:krum' now"):
        train(**(settings | {"aggregator": krum(f=1), "resume": True, "trajectories": 8}))
    assert train(**(settings | {"aggregator": mean(), "resume": True, "trajectories": 8})).finished


@pytest.mark.parametrize("part", ["gradient", "accepted"])
def test_a_verdict_of_another_shape_is_refused_where_it_is_made(part: str):
    sent = Sent(np.zeros((4, 3), np.float32), np.ones(4, bool), 1)
    right = {"gradient": np.zeros(3, np.float32), "accepted": sent.valid}
    with pytest.raises(ConfigError, match=rf"{part} must be an array of shape \({len(right[part])},\), not \(2,\)"):
        decide(sent, **(right | {part: right[part][:2]}))


@pytest.mark.parametrize(("needs", "message"), [("gradients", "did you mean gradient"), ("nothing", "The need")])
def test_what_no_server_can_contribute_is_refused(needs: str, message: str):
    rule = mean()._replace(needs=(needs,))
    with pytest.raises(ConfigError, match=message):
        make_problem(make_config("CartPole-v1"), aggregator=rule)


def test_a_rule_that_lacks_an_argument_is_refused_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "rules_of_mine.py").write_text("def plain(memory, sent, own):\n    return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"needs memory, sent, own: .*name what does"):
        make_aggregator("rules_of_mine:plain", alpha=0.3)
