"""What a rollout returns."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class Trajectories(NamedTuple):
    """A batch of B episodes of at most T steps, time first and episodes last; [..., K, B] for those of K agents.

    Steps beyond an episode's length hold nothing of meaning; `mask` says which those are, and rewards there are 0.
    Where episodes differ much in length, observations and actions are packed: all steps of the first episode, then
    all of the second, and so on, S in all; so nothing is spent on what was not simulated.
    """

    observations: Array  # [F, T, B], or packed [S, F]
    actions: Array  # [T, B] or, for box actions, [A, T, B]; packed [S] or [S, A]
    rewards: Array  # [T, B]
    lengths: Array  # [B]
    starts: Array | None = None  # [B]: where each episode begins in S, if they are packed

    @property
    def mask(self) -> Array:
        """True where an episode is alive.  [T, B]"""
        steps = jnp.arange(self.rewards.shape[0])
        return steps.reshape(-1, *(1,) * self.lengths.ndim) < self.lengths

    @property
    def returns(self) -> Array:
        """The undiscounted return of each episode.  [B]"""
        return jnp.sum(self.rewards, axis=0)

    def take(self, first: Array | int, count: int) -> "Trajectories":
        """`count` of the episodes, from the given one on."""

        def cut(x: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(x, first, count, axis=x.ndim - 1)

        if self.starts is None:
            return jax.tree.map(cut, self)
        return self._replace(rewards=cut(self.rewards), lengths=cut(self.lengths), starts=cut(self.starts))
