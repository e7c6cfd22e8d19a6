"""The replies to one broadcast, as they come in from sites."""

import math
import time
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedpg.config import Config
from fedpg.errors import ConfigError
from fedpg.federation.messages import MessageError, check_sums, decode_reply
from fedpg.problem import STATUSES, Replies, Schema, status_of


class Gathering:
    """The replies to one broadcast, as they come in."""

    def __init__(self, number: int, config: Config, size: int, schema: Schema, batch: int, batches: int = 1) -> None:
        self.number, self.config, self.size, self.schema, self.batch = number, config, size, schema, batch
        self.batches = batches
        self.heard: set[int] = set()
        self.reasons: dict[int, str] = {}
        self.seconds: dict[int, float] = {}
        self.returns: dict[int, float] = {}
        self.began = time.monotonic()
        agents = config.agents
        self._vectors = {name: np.zeros((agents, size), np.float32) for name in schema.vectors}
        self._scalars = {name: np.zeros(agents, np.float32) for name in schema.scalars}
        self._lengths, self._faults, self._steps = np.zeros((3, agents), np.int32)
        self._returns = np.zeros(agents, np.float32)

    def take(self, agent: int, values: Mapping[str, Any]) -> None:
        """The reply of an agent, usable or not."""
        try:
            reply = decode_reply(values, self.number, self.size, self.schema)
            check_sums(reply, self.config, self.batches)
        except MessageError as error:
            self.refuse(agent, STATUSES[error.status], str(error))
            return
        for name, vector in reply.vectors.items():
            self._vectors[name][agent] = vector
        with np.errstate(over="ignore"):  # too large for a float32: infinite, which the status says
            for name, number in reply.scalars.items():
                self._scalars[name][agent] = number
        self._lengths[agent] = self.size
        self._returns[agent], self._steps[agent] = reply.mean_return, reply.steps
        self.heard.add(agent)
        self.seconds[agent], self.returns[agent] = reply.seconds, reply.mean_return
        if STATUSES[self.status[agent]] == "not finite":
            self.reasons[agent] = "numbers that are not finite"

    def refuse(self, agent: int, status: str, reason: str) -> None:
        """What an agent sent cannot be used."""
        self._faults[agent] = STATUSES.index(status)
        self.heard.add(agent)
        self.reasons[agent] = "".join(c if c.isprintable() else "?" for c in reason[:200])  # it goes to a terminal

    @property
    def status(self) -> np.ndarray:
        """The index into STATUSES of all K agents.  [K]"""
        status = np.asarray(status_of(self._vectors, self._scalars, self._lengths))
        return np.where(self._faults > 0, self._faults, status)

    @property
    def statuses(self) -> list[str]:
        """Of all K agents."""
        return [STATUSES[s] for s in self.status]

    @property
    def usable(self) -> int:
        """How many replies can go to the aggregator."""
        return self.statuses.count("answered")

    def replies(self) -> Replies:
        """For the round. Who did not answer counts in the mean training return as the mean of those who did."""
        status = self.status
        answered = status == STATUSES.index("answered")
        known = answered & (np.arange(len(answered)) < self.config.agents - self.config.byzantine)
        filled = np.where(answered, self._returns, self._returns[known].mean() if known.any() else 0.0)
        return Replies(
            vectors={name: jnp.asarray(v) for name, v in self._vectors.items()},
            scalars={name: jnp.asarray(v) for name, v in self._scalars.items()},
            status=status,
            returns=filled.astype(np.float32),
            steps=self._steps,
            batch=self.batch,
        )


def tolerated(config: Config) -> int:
    """f = floor(alpha K): the faulty sites that the aggregator is told to stand, absent ones among them."""
    return math.floor(config.alpha * config.agents + 1e-9)


def check_quorum(quorum: int, config: Config) -> int:
    """The replies that a round needs: as given, or (0) more than half of K and more than 2 f.

    So the liars among them, f at the most, are fewer than the honest. With f replies all might be lies: refused.
    """
    agents, liars = config.agents, tolerated(config)
    if not 0 <= quorum <= agents:
        raise ConfigError(
            f"quorum = {quorum} cannot be: there are {agents} sites; 0 stands for a safe majority of them"
        )
    if 0 < quorum <= liars:
        raise ConfigError(
            f"quorum = {quorum}: with alpha = {config.alpha:g}, {liars} of {agents} sites may lie, and such a round "
            f"could be lies alone: give at least {2 * liars + 1}, or 0 for a safe majority"
        )
    return quorum or max(agents // 2 + 1, 2 * liars + 1)


def about_quorum(quorum: int, config: Config) -> str:
    """A warning about a quorum that may be given, but is no safe majority; nothing for one that is."""
    needed, safe = check_quorum(quorum, config), check_quorum(0, config)
    if needed >= safe:
        return ""
    return (
        f"a quorum of {needed} of {config.agents} sites is no safe majority: with alpha = {config.alpha:g}, "
        f"{tolerated(config)} of them may lie, and rules that need a majority of all sites accept nobody in so small a "
        f"round; {safe} is safe"
    )
