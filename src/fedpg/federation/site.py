"""What a site computes: the answer of one agent to a broadcast that came as a message."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from fedpg.agents import answer, first_memory, warm_up
from fedpg.errors import ConfigError
from fedpg.federation.messages import MessageError, decode_broadcast, encode_reply
from fedpg.problem import Memory, Problem
from fedpg.programs import side_by_side

Responder = Callable[[Mapping[str, Any]], dict[str, Any]]
"""The message of the server -> the reply of the site; a MessageError if the former cannot be used."""


class Remembered(NamedTuple):
    """What an agent remembers: a round may be asked for again, and must not count twice."""

    round: int
    before: Memory
    after: Memory


class Site:
    """One agent and what it remembers, for all rounds. By the settings, the last agents are Byzantine.

    It answers as the agent that the server says it is; with a `number` of its own, as that one only.
    """

    def __init__(self, problem: Problem, number: int | None = None) -> None:
        refuse_collusion(problem)
        self.problem, self.number = problem, number
        self.memories: dict[int, Remembered] = {}
        """By the number of the agent; several, where one process stands for several sites."""
        side_by_side(warm_up(problem, first_memory(problem, 1), np.array([number or 0])))

    def __call__(self, values: Mapping[str, Any]) -> dict[str, Any]:
        began = time.monotonic()
        problem, algorithm = self.problem, self.problem.algorithm
        agent, broadcast = decode_broadcast(
            values, problem.config, problem.policy.size, algorithm.broadcast, algorithm.small_batches
        )
        if self.number is not None and agent != self.number:
            raise MessageError("wrong type", f"a message for agent {agent}, and this site is agent {self.number}")
        nothing = first_memory(problem, 1)
        last = self.memories.get(agent, Remembered(0, nothing, nothing))
        if broadcast.round < last.round:  # of another run, which nothing of the last one concerns
            last = Remembered(0, nothing, nothing)
        before = last.before if broadcast.round == last.round else last.after
        answers, after = answer(problem, broadcast, before, np.array([agent]))
        self.memories[agent] = Remembered(broadcast.round, before, after)
        return encode_reply(answers, algorithm.reply, broadcast.round, time.monotonic() - began)


def pack_memory(remembered: Remembered) -> bytes:
    """What an agent remembers, for who keeps it elsewhere between two messages."""
    leaves = jax.tree.leaves((remembered.before, remembered.after))
    named = {f"{i:04}": np.asarray(leaf) for i, leaf in enumerate(leaves)} | {"round": np.array(remembered.round)}
    return safetensors.numpy.save(named)


def unpack_memory(raw: bytes, problem: Problem) -> Remembered:
    """What `pack_memory` packed, for an agent of this problem."""
    like = (first_memory(problem, 1),) * 2
    try:
        named = safetensors.numpy.load(raw)
        round_ = int(named.pop("round"))
        leaves = [jnp.asarray(named[name]) for name in sorted(named)]
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise ConfigError(f"what this agent remembers is damaged: {error}") from error
    shapes = [(np.shape(x), np.asarray(x).dtype) for x in jax.tree.leaves(like)]
    if shapes != [(x.shape, x.dtype) for x in leaves]:
        raise ConfigError("what this agent remembers is of another algorithm or policy")
    return Remembered(round_, *jax.tree.unflatten(jax.tree.structure(like), leaves))


def refuse_collusion(problem: Problem) -> None:
    """Colluders know each other's gradients, and some try their lies on the aggregator; sites can do neither."""
    attack, alone = problem.attack, "sign-flipping, random-noise, random-action, zero-gradient, reward-flipping, ..."
    if problem.config.byzantine and (attack.colludes or attack.adaptive):
        needs = "the gradients of other agents, and sites do not see each other's"
        if attack.adaptive:
            needs = "to try its lies on the server's aggregator, and sites do not see that"
        raise ConfigError(
            f"attack {problem.config.attack!r} needs {needs}: simulate it with fedpg train, or choose an attack that "
            f"an agent can make alone ({alone})"
        )
