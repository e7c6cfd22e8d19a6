"""What crosses the network: named vectors and numbers each way, checked where they arrive.

A message is a flat dict of bytes, whole numbers, floats and short strings. Nothing in it is code, and nothing is
trusted: each side takes exactly the names, types and sizes listed here, and says what was wrong with anything else.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpg.agents import Answers
from fedpg.config import Config, to_json
from fedpg.problem import STATUSES, Broadcast, Schema

FORMAT = 3
"""Of the messages: both ends must speak the same. A change that the other end would misunderstand raises it."""
EXTRA = 8192
"""Bytes of a message beyond its vectors, at the most."""
KEY = 8
"""Bytes of a key: two words of threefry."""

BROADCAST: dict[str, type] = {
    "format": int,
    "settings": str,  # a digest of what both ends must agree on
    "agent": int,  # the number of the agent that this is for
    "round": int,
    "batch": int,  # B_t
    "key": bytes,  # of the round: each agent and episode derives its own from it
    "pool_key": bytes,  # that some rounds share, for simulators that are kept
}
"""And one entry of bytes for each vector that the algorithm declares: [D] float32, little-endian."""
REPLY: dict[str, type] = {
    "format": int,
    "round": int,
    "return": float,  # mean undiscounted return of the agent's trajectories
    "steps": int,  # environment steps
    "seconds": float,  # spent at the site
}
"""And one entry of bytes for each vector that the algorithm declares, one float for each scalar."""
END: dict[str, type] = {
    "format": int,
    "settings": str,
    "agent": int,
    "end": int,  # rounds that the run had
    "return": float,  # of its last policy, greedy, at the server
    "vector.theta": bytes,
}
"""The last message of a run. A site replies to it with the number of its agent."""


class MessageError(ValueError):
    """A message that cannot be used; the text says why, `status` is one of STATUSES."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = STATUSES.index(status)


class End(NamedTuple):
    """What a site is told when the run that it helped is over."""

    rounds: int
    test_return: float
    theta: np.ndarray


class Reply(NamedTuple):
    """What a site sends."""

    round: int
    vectors: dict[str, np.ndarray]
    scalars: dict[str, float]
    mean_return: float
    steps: int
    seconds: float


def vector(name: str) -> str:
    """What a vector is called in a message, where it cannot be taken for anything else."""
    return f"vector.{name}"


def scalar(name: str) -> str:
    """The same of a scalar."""
    return f"scalar.{name}"


def largest(size: int, vectors: int = 1) -> int:
    """Bytes of the largest message with so many vectors that a policy with `size` parameters needs."""
    return 4 * size * vectors + EXTRA


def settings_digest(config: Config) -> str:
    """Of the settings that the sites and the server must agree on: all but the task, which is each site's own, and
    those that concern the server alone. How many sites there are is among these, unless some of them are to lie."""
    alone = (
        *("task", "trajectories", "test_episodes", "test_horizon", "learning_rate", "optimizer", "none_accepted"),
        *("aggregator", "aggregator_options", "fail_closed", "alpha", "sigma", "delta", "vary", "vary_seed"),
        *(() if config.byzantine else ("agents",)),
    )
    shared = {name: value for name, value in to_json(config).items() if name not in alone}
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:16]


def encode_broadcast(broadcast: Broadcast, agent: int, settings: str, row: int | None = None) -> dict[str, Any]:
    """A broadcast for one agent, with its own row of what has one for each: that of its number, or another."""
    row = agent if row is None else row
    rows = {name: v[row] if v.ndim == 2 else v for name, v in broadcast.vectors.items()}
    return {
        "format": FORMAT,
        "settings": settings,
        "agent": agent,
        "round": broadcast.round,
        "batch": broadcast.batch,
        "key": _bytes(jax.random.key_data(broadcast.key), "<u4"),
        "pool_key": _bytes(jax.random.key_data(broadcast.pool_key), "<u4"),
    } | {vector(name): _bytes(v, "<f4") for name, v in rows.items()}


def decode_broadcast(
    values: Mapping[str, Any],
    config: Config,
    size: int,
    names: Sequence[str] = ("theta",),
    small_batches: bool = False,
) -> tuple[int, Broadcast]:
    """(the agent's number, the broadcast), or a MessageError: a site checks its server as the server checks it.

    With `small_batches`, it may be asked for as many trajectories as the minibatch has.
    """
    _check(values, BROADCAST | {vector(name): bytes for name in names})
    if values["settings"] != settings_digest(config):
        raise MessageError(
            "wrong type",
            "the server has other settings than this site (its folder is from another federation, or federation.toml "
            "was changed after it was handed out): get the site's folder again",
        )
    low, high = config.batch
    if not 0 <= values["agent"] < config.agents:
        raise MessageError("wrong type", f"agent {values['agent']} of {config.agents} does not exist")
    if not 1 <= values["round"] < 2**31:
        raise MessageError("wrong round", f"round {values['round']} cannot be")
    if not low <= values["batch"] <= high and not (small_batches and values["batch"] == config.minibatch):
        raise MessageError("wrong type", f"a batch of {values['batch']} is not from {low} to {high}")
    for name in ("key", "pool_key"):
        if len(values[name]) != KEY:
            raise MessageError("wrong length", f"{name} has {len(values[name])} bytes, not {KEY}")
    vectors = {name: _read(values[vector(name)], size) for name in names}
    for name, numbers in vectors.items():
        if not np.isfinite(numbers).all():
            raise MessageError("not finite", f"the server's {name} has numbers that are not finite")
    return values["agent"], Broadcast(
        round=values["round"],
        batch=values["batch"],
        key=_key(values["key"]),
        pool_key=_key(values["pool_key"]),
        vectors={name: jnp.asarray(numbers) for name, numbers in vectors.items()},
    )


def encode_end(end: End, agent: int, settings: str) -> dict[str, Any]:
    """The last message of a run, for one agent."""
    about: dict[str, Any] = {"format": FORMAT, "settings": settings, "agent": agent, "end": end.rounds}
    return about | {"return": float(end.test_return), vector("theta"): _bytes(end.theta, "<f4")}


def decode_end(values: Mapping[str, Any], config: Config, size: int) -> End:
    """What a server says at the end of a run, or a MessageError."""
    _check(values, END)
    if values["settings"] != settings_digest(config):
        raise MessageError("wrong type", "the end of a run with other settings than this site's")
    theta = _read(values[vector("theta")], size)
    if not np.isfinite(theta).all():
        raise MessageError("not finite", "the server's policy has numbers that are not finite")
    return End(values["end"], values["return"], theta)


def encode_reply(answers: Answers, schema: Schema, round_: int, seconds: float) -> dict[str, Any]:
    """The answer of one agent; one that attacks by its length sends that many numbers."""
    length = int(answers.lengths[0])

    def numbers(name: str) -> bytes:
        row = np.asarray(answers.sent[name][0])
        return _bytes(np.resize(row, length) if length else row[:0], "<f4")

    return {
        "format": FORMAT,
        "round": round_,
        "return": float(answers.returns[0]),
        "steps": int(answers.steps[0]),
        "seconds": seconds,
        **{vector(name): numbers(name) for name in schema.vectors},
        **{scalar(name): float(answers.sent[name][0]) for name in schema.scalars},
    }


def decode_reply(values: Mapping[str, Any], round_: int, size: int, schema: Schema) -> Reply:
    """What a site sent for this round, or a MessageError. Whether its vectors are finite is for the round to say."""
    wanted: dict[str, type] = {vector(name): bytes for name in schema.vectors}
    wanted |= {scalar(name): float for name in schema.scalars}
    _check(values, REPLY | wanted)
    if values["round"] != round_:
        raise MessageError("wrong round", f"a reply to round {values['round']} in round {round_}")
    numbers = (values["return"], values["seconds"])
    if not all(map(math.isfinite, numbers)) or values["seconds"] < 0 or not 0 <= values["steps"] < 2**31:
        raise MessageError("not finite", "a return, number of steps or time that cannot be")
    return Reply(
        round=round_,
        vectors={name: _read(values[vector(name)], size) for name in schema.vectors},
        scalars={name: values[scalar(name)] for name in schema.scalars},
        mean_return=values["return"],
        steps=values["steps"],
        seconds=values["seconds"],
    )


def check_sums(reply: Reply, config: Config, batches: int = 1) -> None:
    """A MessageError for numbers that are beyond what an agent can have, or whose sum over all agents overflows."""
    most = min(batches * config.batch[1] * config.horizon, (2**31 - 1) // config.agents)
    if reply.steps > most:
        raise MessageError("not finite", f"{reply.steps} steps, where an agent has at most {most}")
    if abs(reply.mean_return) > float(np.finfo(np.float32).max) / config.agents:
        raise MessageError("not finite", f"a return of {reply.mean_return:g}, which cannot be averaged")


def _check(values: Mapping[str, Any], wanted: Mapping[str, type]) -> None:
    """Of this format, exactly these names, each of exactly its type."""
    theirs = values.get("format")
    if type(theirs) is int and theirs != FORMAT:
        where = "here" if theirs > FORMAT else "at the other end"
        raise MessageError("wrong type", f"messages of format {theirs}, not {FORMAT}: update fedpg {where}")
    if set(values) != set(wanted):
        odd = sorted(map(str, set(values) ^ set(wanted)))[:5]
        raise MessageError("wrong type", f"a message with other entries than those agreed on: {', '.join(odd)[:200]}")
    for name, kind in wanted.items():
        if type(values[name]) is not kind:
            raise MessageError("wrong type", f"{name} is of type {type(values[name]).__name__}, not {kind.__name__}")
        if kind is str and len(values[name]) > 100:
            raise MessageError("too large", f"{name} has {len(values[name])} characters")


def _bytes(values: Any, kind: str) -> bytes:
    return np.asarray(values).astype(kind).tobytes()


def _read(raw: bytes, size: int) -> np.ndarray:
    if len(raw) != 4 * size:
        raise MessageError("wrong length", f"a vector of {len(raw) / 4:g} numbers, not {size}")
    return np.frombuffer(raw, "<f4").astype(np.float32)


def _key(raw: bytes) -> jax.Array:
    return jax.random.wrap_key_data(jnp.asarray(np.frombuffer(raw, "<u4").astype(np.uint32)), impl="threefry2x32")
