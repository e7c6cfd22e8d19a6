"""What crosses the network: one vector and a few named numbers each way, checked where they arrive.

A message is a flat dict of bytes, whole numbers, floats and short strings. Nothing in it is code, and nothing is
trusted: each side takes exactly the names, types and sizes listed here, and says what was wrong with anything else.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpg.agents import STATUSES, Answers, Broadcast
from fedpg.config import Config, to_json

FORMAT = 1
"""Of the messages: both ends must speak the same."""
EXTRA = 8192
"""Bytes of a message beyond its vector, at the most."""
KEY = 8
"""Bytes of a key: two words of threefry."""

BROADCAST: dict[str, type] = {
    "format": int,
    "settings": str,  # a digest of what both ends must agree on
    "agent": int,  # the number of the agent that this is for
    "round": int,
    "batch": int,  # B_t
    "key": bytes,  # of the round: each agent and episode derives its own from it
    "season": bytes,
    "theta": bytes,  # [D] float32, little-endian
}
REPLY: dict[str, type] = {
    "format": int,
    "round": int,
    "gradient": bytes,  # [D] float32, little-endian
    "return": float,  # mean undiscounted return of the agent's trajectories
    "steps": int,  # environment steps
    "seconds": float,  # spent at the site
}


class MessageError(ValueError):
    """A message that cannot be used; the text says why, `status` is one of STATUSES."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = STATUSES.index(status)


class Reply(NamedTuple):
    """What a site sends."""

    round: int
    gradient: np.ndarray
    mean_return: float
    steps: int
    seconds: float


def largest(size: int) -> int:
    """Bytes of the largest message that a policy with `size` parameters needs."""
    return 4 * size + EXTRA


def settings_digest(config: Config) -> str:
    """Of the settings that the sites and the server must agree on: all but the task, which is each site's own, and
    those that concern the server alone."""
    alone = ("task", "trajectories", "test_episodes", "test_horizon", "learning_rate", "optimizer", "nobody", "filter")
    shared = {name: value for name, value in to_json(config).items() if name not in alone}
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:16]


def encode_broadcast(broadcast: Broadcast, agent: int, settings: str) -> dict[str, Any]:
    """A broadcast for one agent."""
    return {
        "format": FORMAT,
        "settings": settings,
        "agent": agent,
        "round": int(broadcast.round),
        "batch": int(broadcast.batch),
        "key": _vector(jax.random.key_data(broadcast.key), "<u4"),
        "season": _vector(jax.random.key_data(broadcast.season), "<u4"),
        "theta": _vector(broadcast.theta, "<f4"),
    }


def decode_broadcast(values: Mapping[str, Any], config: Config, size: int) -> tuple[int, Broadcast]:
    """(the agent's number, the broadcast), or a MessageError: a site checks its server as the server checks it."""
    _check(values, BROADCAST)
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
    if not low <= values["batch"] <= high:
        raise MessageError("wrong type", f"a batch of {values['batch']} is not from {low} to {high}")
    for name in ("key", "season"):
        if len(values[name]) != KEY:
            raise MessageError("wrong length", f"{name} has {len(values[name])} bytes, not {KEY}")
    theta = _read(values["theta"], size)
    if not np.isfinite(theta).all():
        raise MessageError("not finite", "the policy has parameters that are not finite")
    return values["agent"], Broadcast(
        theta=jnp.asarray(theta),
        round=jnp.int32(values["round"]),
        batch=jnp.int32(values["batch"]),
        key=_key(values["key"]),
        season=_key(values["season"]),
    )


def encode_reply(answers: Answers, round_: int, seconds: float) -> dict[str, Any]:
    """The answer of a cohort of one; one that attacks by its length sends that many numbers."""
    length = int(answers.replies.lengths[0])
    gradient = np.asarray(answers.replies.gradients[0])
    return {
        "format": FORMAT,
        "round": round_,
        "gradient": _vector(np.resize(gradient, length) if length else gradient[:0], "<f4"),
        "return": float(answers.returns[0]),
        "steps": int(answers.steps[0]),
        "seconds": seconds,
    }


def decode_reply(values: Mapping[str, Any], round_: int, size: int) -> Reply:
    """What a site sent for this round, or a MessageError. Whether its gradient is finite is for the round to say."""
    _check(values, REPLY)
    if values["round"] != round_:
        raise MessageError("wrong round", f"a reply to round {values['round']} in round {round_}")
    numbers = (values["return"], values["seconds"])
    if not all(map(math.isfinite, numbers)) or values["seconds"] < 0 or not 0 <= values["steps"] < 2**31:
        raise MessageError("not finite", "a return, number of steps or time that cannot be")
    gradient = _read(values["gradient"], size)
    return Reply(round_, gradient, values["return"], values["steps"], values["seconds"])


def check_sums(reply: Reply, config: Config) -> None:
    """A MessageError for numbers that are beyond what an agent can have, or whose sum over all agents overflows."""
    most = min(config.batch[1] * config.horizon, (2**31 - 1) // config.agents)
    if reply.steps > most:
        raise MessageError("not finite", f"{reply.steps} steps, where an agent has at most {most}")
    if abs(reply.mean_return) > float(np.finfo(np.float32).max) / config.agents:
        raise MessageError("not finite", f"a return of {reply.mean_return:g}, which cannot be averaged")


def _check(values: Mapping[str, Any], wanted: Mapping[str, type]) -> None:
    """Exactly these names, each of exactly its type."""
    if set(values) != set(wanted):
        odd = sorted(map(str, set(values) ^ set(wanted)))[:5]
        raise MessageError("wrong type", f"a message with other entries than those agreed on: {', '.join(odd)[:200]}")
    for name, kind in wanted.items():
        if type(values[name]) is not kind:
            raise MessageError("wrong type", f"{name} is of type {type(values[name]).__name__}, not {kind.__name__}")
        if kind is str and len(values[name]) > 100:
            raise MessageError("too large", f"{name} has {len(values[name])} characters")
    if values["format"] != FORMAT:
        raise MessageError("wrong type", f"messages of format {values['format']}, not {FORMAT}: update fedpg")


def _vector(values: Any, kind: str) -> bytes:
    return np.asarray(values).astype(kind).tobytes()


def _read(raw: bytes, size: int) -> np.ndarray:
    if len(raw) != 4 * size:
        raise MessageError("wrong length", f"a vector of {len(raw) / 4:g} numbers, not {size}")
    return np.frombuffer(raw, "<f4").astype(np.float32)


def _key(raw: bytes) -> jax.Array:
    return jax.random.wrap_key_data(jnp.asarray(np.frombuffer(raw, "<u4").astype(np.uint32)), impl="threefry2x32")
