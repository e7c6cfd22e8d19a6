"""What each of K agents makes of its trajectories: gradients, corrections, products with the Hessian.

Each is compiled as one call for all agents, together with the rollout before it where that is compiled too.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.estimators import Estimator, correction, gradient, hessian_product
from fedpg.policies import Policy
from fedpg.tasks.task import agent_keys, stream
from fedpg.trajectories import Trajectories

Made = tuple[Any, Array, Array]
"""(vectors [K, D], mean returns [K], steps [K])."""


@dataclass(frozen=True)
class PerAgent:
    """What is the same for all that K agents can make of their trajectories, `width` each."""

    policy: Policy
    estimator: Estimator
    believe: Callable[[Array, Trajectories], Array] | None
    """The rewards that attackers believe in, if not the true ones."""
    width: int

    def __call__(self, everyone: Trajectories, *given: Array) -> Made:
        """Of the trajectories of all, [.., K * width]; `given` ends with the round's key, the agents' numbers, and who
        of them attacks."""
        raise NotImplementedError

    def by_agent(self, x: Array) -> Array:
        """[..., K * width] -> [..., K, width]"""
        return x.reshape(*x.shape[:-1], -1, self.width)

    def believed(self, everyone: Trajectories, key: Array, agents: Array, attacking: Array) -> Trajectories:
        """The trajectories, with the rewards that their agents learn from."""
        if (believe := self.believe) is None:
            return everyone
        each = (agent_keys(stream(key, "rewards"), agents), jnp.arange(agents.shape[0]))
        theirs = jax.lax.map(lambda x: believe(x[0], everyone.take(x[1] * self.width, self.width)), each)
        theirs = jnp.moveaxis(theirs, 0, 1)  # [T, K, B]
        rewards = jnp.where(attacking[:, None], theirs, self.by_agent(everyone.rewards))
        return everyone._replace(rewards=rewards.reshape(everyone.rewards.shape))

    def made(self, everyone: Trajectories, agents: Array, one: Callable[[Array], Any]) -> Made:
        """What `one` makes of each k < K, agent by agent (each fits the cache), and the agents' returns and steps."""
        lengths, returns = self.by_agent(everyone.lengths), self.by_agent(everyone.returns)  # [K, B]
        episodes = jnp.maximum(jnp.sum(lengths > 0, axis=-1), 1)
        vectors = jax.lax.map(one, jnp.arange(agents.shape[0]))
        return vectors, jnp.sum(returns, axis=-1) / episodes, jnp.sum(lengths, axis=-1)


class Gradients(PerAgent):
    """g(tau | theta), for theta [D], or [K, D] with a row for each agent."""

    def __call__(self, everyone: Trajectories, *given: Array) -> Made:
        theta, key, agents, attacking = given
        weights = self._weights(self.believed(everyone, key, agents, attacking), agents.shape[0])  # [T, K, B]

        def one(k: Array) -> Array:
            w = jax.lax.dynamic_index_in_dim(weights, k, 1, keepdims=False)
            params, mine = self.policy.unravel(_row(theta, k)), everyone.take(k * self.width, self.width)
            return gradient(self.estimator, self.policy, params, mine, w)

        return self.made(everyone, agents, one)

    def _weights(self, believed: Trajectories, count: int) -> Array:
        """Of every agent's batch, of all at once (a scan over time) if they look at rewards alone.  [T, K, B]"""
        if not self.estimator.looks:
            rewards, lengths = self.by_agent(believed.rewards), self.by_agent(believed.lengths)
            return self.estimator.weights(believed._replace(rewards=rewards, lengths=lengths))
        each = jax.lax.map(
            lambda k: self.estimator.weights(believed.take(k * self.width, self.width)), jnp.arange(count)
        )
        return jnp.moveaxis(each, 0, 1)


class Corrections(PerAgent):
    """(g(tau | theta), omega g(tau | old)): both parts of a variance-reduced step."""

    def __call__(self, everyone: Trajectories, *given: Array) -> Made:
        theta, old, key, agents, attacking = given
        believed = self.believed(everyone, key, agents, attacking)

        def one(k: Array) -> tuple[Array, Array]:
            params, before = (self.policy.unravel(_row(x, k)) for x in (theta, old))
            found = correction(self.estimator, self.policy, params, before, believed.take(k * self.width, self.width))
            return found.plain, found.corrected

        return self.made(everyone, agents, one)


class HessianProducts(PerAgent):
    """H(theta) u, for u = `along`."""

    def __call__(self, everyone: Trajectories, *given: Array) -> Made:
        theta, along, key, agents, attacking = given
        believed = self.believed(everyone, key, agents, attacking)

        def one(k: Array) -> Array:
            mine = believed.take(k * self.width, self.width)
            return hessian_product(self.estimator, self.policy, _row(theta, k), _row(along, k), mine)

        return self.made(everyone, agents, one)


@functools.partial(jax.jit, static_argnums=0)
def made_of(make: PerAgent, everyone: Trajectories, *given: Any) -> Made:
    """`make` of trajectories that were rolled out before."""
    return make(everyone, *given)


def _row(x: Array, k: Array) -> Array:
    return x if x.ndim == 1 else x[k]
