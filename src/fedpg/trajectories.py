"""What a rollout returns."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Trajectories(NamedTuple):
    """A batch of B episodes of at most T steps, features first and episodes last; [..., K, B] for those of K agents.

    Steps beyond an episode's length hold nothing of meaning; `mask` says which those are, and rewards there are 0.
    """

    observations: Array  # [F, T, B]
    actions: Array  # [T, B] or, for box actions, [A, T, B]
    rewards: Array  # [T, B]
    lengths: Array  # [B]

    @property
    def mask(self) -> Array:
        """True where an episode is alive.  [T, B]"""
        steps = jnp.arange(self.rewards.shape[0])
        return steps.reshape(-1, *(1,) * self.lengths.ndim) < self.lengths

    @property
    def returns(self) -> Array:
        """The undiscounted return of each episode.  [B]"""
        return jnp.sum(self.rewards, axis=0)
