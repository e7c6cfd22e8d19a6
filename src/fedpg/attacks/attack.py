"""What an attack is: where it changes what a Byzantine agent does, and what the attackers see.

K agents, f of them Byzantine. m and s are the mean and the standard deviation, per coordinate, of the gradients that
the attackers take for honest ones; whose those are is their `knowledge`.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.errors import ConfigError, require
from fedpg.trajectories import Trajectories

Knowledge = Literal["own", "colluders", "all"]
"""Whose gradients an attacker knows: its own only, those of all Byzantine agents, or everybody's."""
Group = Literal["colluders", "all"]
"""The same, for an attack that cannot be made of one gradient."""


class Scene(NamedTuple):
    """What attackers see when they decide what to send."""

    keys: Array  # [K]: one per agent, so that a lie does not depend on who else is simulated; colluders share the first
    gradients: Array  # [K, D]: what each agent would honestly send
    byzantine: Array  # [K]: who attacks
    tensors: tuple[slice, ...]  # where each tensor of the policy lies among the D parameters
    aggregate: Callable[[Array], Array] | None = None
    """What all agents send [K, D] -> the aggregate [D] that it would give in this very round, by the aggregator in use
    with its memory and what the server contributes; only for attacks that say that they are `adaptive`."""

    @property
    def honest(self) -> Array:
        """Who does not attack.  [K]"""
        return jnp.logical_not(self.byzantine)

    def known(self, knowledge: Group) -> Array:
        """Whose gradients the attackers take for honest ones: those of all honest agents, or their own.  [K]"""
        return jnp.asarray(self.byzantine) if knowledge == "colluders" else self.honest

    def mean(self, knowledge: Knowledge) -> Array:
        """m [D]; if each knows its own gradient only, that is it [K, D]."""
        return self.gradients if knowledge == "own" else mean_of(self.gradients, self.known(knowledge))

    def deviation(self, knowledge: Group) -> Array:
        """s, with n - 1; 0 where only one is known.  [D]"""
        known = self.known(knowledge)
        squares = mean_of((self.gradients - self.mean(knowledge)) ** 2, known)
        count = jnp.sum(known)
        return jnp.sqrt(squares * count / jnp.maximum(count - 1, 1))

    def imagined(self, knowledge: Group) -> Array:
        """What all would honestly send, as far as is known: colluders let theirs stand for the others'.  [K, D]"""
        if knowledge == "all":
            return self.gradients
        liars = jnp.argsort(self.honest)  # they come first
        turn = jnp.arange(liars.shape[0]) % jnp.maximum(jnp.sum(self.byzantine), 1)
        return jnp.where(self.byzantine[:, None], self.gradients, self.gradients[liars[turn]])

    def outcome(self, knowledge: Group, lie: Array | None = None) -> Array:
        """The aggregate, as far as is known, if all Byzantine agents send `lie` [D]; without one, if none lies.  [D]"""
        if self.aggregate is None:
            raise ConfigError(
                "this attack tries its lies on the aggregator: an attack of your own must say so, as "
                "Attack(message=..., adaptive=True), and only a simulation of whole rounds (fedpg train) can show it"
            )
        everybody = self.imagined(knowledge)
        if lie is None:
            return self.aggregate(everybody)
        return self.aggregate(jnp.where(self.byzantine[:, None], lie, everybody))

    def harm(self, knowledge: Group, lie: Array) -> Array:
        """How far the aggregate lies from m if all Byzantine agents send `lie` [D]."""
        return jnp.linalg.norm(self.outcome(knowledge, lie) - self.mean(knowledge))

    def worst(self, knowledge: Group, lies: Array) -> Array:
        """Of some lies [n, D], the one that does the most harm.  [D]"""
        harm = jax.lax.map(lambda lie: self.harm(knowledge, lie), lies)
        return lies[jnp.argmax(jnp.where(jnp.isnan(harm), -jnp.inf, harm))]

    def by_all(self, lie: Array) -> Array:
        """The same lie [D] from every attacker.  [K, D]"""
        return jnp.broadcast_to(lie, self.gradients.shape)


Memory = Any


class Attack(NamedTuple):
    """Where an attack changes what an agent does; what it leaves None stays honest."""

    act: Callable[[Any, Any], Any] | None = None
    """(the policy's action, a uniformly random action) -> the action taken."""
    rewards: Callable[[Array, Trajectories], Array] | None = None
    """(key, trajectories) -> the rewards the agent believes in.  [T, B]"""
    message: Callable[[Scene], Array] | None = None
    """scene -> what the agents send [K, D]; only rows of Byzantine agents are used."""
    recall: Callable[[Memory, Scene], tuple[Array, Memory]] | None = None
    """As `message`, with a memory from round to round: (memory, scene) -> (what the agents send, memory)."""
    init: Callable[[int, int], Memory] = lambda agents, size: ()
    """(K, D) -> that memory before the first round."""
    length: Callable[[int], int] | None = None
    """D -> the length of the vector that arrives; 0 is no answer at all."""
    colludes: bool = False
    """Needs the gradients of other agents: it can be simulated, but no site can make it alone."""
    adaptive: bool = False
    """Calls `scene.aggregate`: it can be simulated, but no site sees the server's aggregator."""

    def send(self, memory: Memory, scene: Scene) -> tuple[Array, Memory]:
        """What all agents send, honest ones included.  [K, D]"""
        if self.recall is not None:
            lies, memory = self.recall(memory, scene)
        elif self.message is not None:
            lies = self.message(scene)
        else:
            return scene.gradients, memory
        if getattr(lies, "shape", None) != scene.gradients.shape:
            got = getattr(lies, "shape", type(lies).__name__)
            raise ConfigError(
                f"the attack returned {got}; it must return what all agents send, an array of shape "
                f"{scene.gradients.shape}"
            )
        return jnp.where(scene.byzantine[:, None], lies, scene.gradients), memory


def mean_of(rows: Array, chosen: Array) -> Array:
    """The mean of the chosen ones of [K, D]; 0 if there is none."""
    return jnp.sum(jnp.where(chosen[:, None], rows, 0.0), axis=0) / jnp.maximum(jnp.sum(chosen), 1)


def squared_distances(rows: Array, chosen: Array) -> Array:
    """||x_i - x_j||^2 between the chosen ones, 0 for the others.  [K, K]"""

    def from_one(row: Array) -> Array:  # one row at a time: [K, D] of memory, not [K, K, D]
        return jnp.sum((rows - row) ** 2, axis=1)

    return jnp.where(chosen[:, None] & chosen[None, :], jax.lax.map(from_one, rows), 0.0)


def unit(vector: Array) -> Array:
    """The vector at length 1; 0 stays 0.  [D]"""
    length = jnp.linalg.norm(vector)
    return jnp.where(length > 0, vector / jnp.where(length > 0, length, 1.0), 0.0)


def require_one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    """A ConfigError, if a word is not one of those that a parameter may be."""
    require(value in choices, f"{name} must be {' or '.join(choices)}, not {value!r}")
