"""What a site computes: the answer of one agent to a broadcast that came as a message."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.agents import Answers, Broadcast, Problem, answer, make_broadcast
from fedpg.attacks import COLLUSIVE
from fedpg.config import ConfigError
from fedpg.environments import Pool
from fedpg.federation.messages import MessageError, decode_broadcast, encode_reply

Responder = Callable[[Mapping[str, Any]], dict[str, Any]]
"""The message of the server -> the reply of the site; a MessageError if the former cannot be used."""


def make_responder(problem: Problem, number: int | None = None) -> Responder:
    """The compiled answer of one agent, kept for all rounds. By the settings, the last agents are Byzantine.

    It answers as the agent that the server says it is; with a `number` of its own, as that one only.
    """
    config = problem.config
    refuse_collusion(problem)
    honest = config.agents - config.byzantine

    def compute(broadcast: Broadcast, agent: Array) -> Answers:
        agents = agent[None]
        return answer(problem, broadcast, agents, agents >= honest)[0]

    key = jax.random.key(0, impl="threefry2x32")
    example = make_broadcast(jnp.zeros(problem.policy.size), key, jnp.int32(1), jnp.int32(config.batch[0]))
    compiled = jax.jit(compute).lower(example, jnp.int32(0)).compile()

    def respond(values: Mapping[str, Any]) -> dict[str, Any]:
        began = time.monotonic()
        agent, broadcast = decode_broadcast(values, config, problem.policy.size)
        if number is not None and agent != number:
            raise MessageError("wrong type", f"a message for agent {agent}, and this site is agent {number}")
        answers = jax.block_until_ready(compiled(broadcast, jnp.int32(agent)))
        if isinstance(problem.environment, Pool):
            failures = list(problem.environment.failures)
            problem.environment.failures.clear()  # this round failed; the next one may not
            if failures:
                raise failures[0]
        return encode_reply(answers, values["round"], time.monotonic() - began)

    return respond


def refuse_collusion(problem: Problem) -> None:
    """Colluders know each other's gradients; sites do not."""
    if problem.config.byzantine and problem.config.attack in COLLUSIVE:
        raise ConfigError(
            f"attack {problem.config.attack!r} needs the gradients of all Byzantine agents, and sites do not see each "
            "other's: simulate it with fedpg train, or choose an attack that an agent can make alone (sign-flipping, "
            "random-noise, random-action, zero-gradient, reward-flipping, ...)"
        )
