"""What a rollout returns: one kind of record, whoever simulated it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

BLOCK = 50
"""Dense buffers hold a multiple of this many steps, so that gradients can walk over them in blocks."""
PACKED_BLOCK = 2048
"""Packed steps that are looked at together; packed buffers are this much longer than all their steps."""


class Trajectories(NamedTuple):
    """A batch of B episodes of at most T steps, time first and episodes last; [..., K, B] for those of K agents.

    How steps are laid out is nobody's business but `sum_over_steps`' and `map_steps`': side by side, with whatever was
    in the buffer beyond an episode's end; or packed, all steps of the first episode, then all of the second, S in
    all, where episodes differ much in length and nothing should be spent on what was not simulated.
    """

    observations: Array  # [F, T, B], or packed [S, F]
    actions: Array  # [T, B] or, for box actions, [A, T, B]; packed [S] or [S, A]
    rewards: Array  # [T, B]; 0 beyond an episode's end
    lengths: Array  # [B]; 0 for an episode that was not wanted
    terminated: Array  # [B]: the task ended it; else it was cut off, and would have gone on from `last`
    last: Array  # [F, B]: the observation after the last step
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

    @property
    def side_by_side(self) -> Array:
        """The observations, however they are laid out; beyond an episode's end stands anything.  [F, T, B]"""
        if self.starts is None:
            return self.observations
        place = self.starts + jnp.arange(self.rewards.shape[0])[:, None]  # [T, B]
        return jnp.moveaxis(self.observations[jnp.minimum(place, self.observations.shape[0] - 1)], -1, 0)

    def take(self, first: Array | int, count: int) -> "Trajectories":
        """`count` of the episodes, from the given one on."""

        def cut(x: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(x, first, count, axis=x.ndim - 1)

        if self.starts is None:
            return jax.tree.map(cut, self)
        fixed = {"observations": self.observations, "actions": self.actions}
        cuts = {name: cut(value) for name, value in self._asdict().items() if name not in fixed}
        return Trajectories(**fixed, **cuts)

    def sum_over_steps(self, one: Callable[[Array, Array, Array], Any], weights: Array, zero: Any) -> Any:
        """The sum of `one(observations [F, n], actions, weights [n])` over blocks of all steps, for weights [T, B].

        Only as many blocks as were simulated; a step that was not has weight 0, and an observation and an action of 0:
        what lies in the buffer there may be NaN, and so may be its gradient.
        """
        steps, episodes = weights.shape
        packed = self.starts is not None
        size = _packed_size(episodes) if packed else _dense_size(steps, episodes)
        blocks = _packed_blocks(self, size) if packed else -(-jnp.max(self.lengths) // size)

        def block(i: Array, total: Any) -> Any:
            if packed:
                observations, actions, first = _packed_block(self, i, size)
                w = _packed_weights(self, weights, first, size)
            else:
                dense = (self.observations, self.actions, weights)
                cut = [jax.lax.dynamic_slice_in_dim(x, i * size, size, axis=x.ndim - 2) for x in dense]
                observations, actions, w = (x.reshape(*x.shape[:-2], -1) for x in cut)  # [..., size * B]
            seen, chosen = (jnp.where(w == 0.0, 0, x) for x in (observations, actions))
            return jax.tree.map(jnp.add, total, one(seen, chosen, w))

        return jax.lax.fori_loop(0, blocks, block, zero)

    def map_steps(self, one: Callable[[Array, Array], Array]) -> Array:
        """`one(observations [F, n], actions)` -> [n] of every step; 0 beyond an episode's end.  [T, B]"""
        if self.starts is None:
            flat = [x.reshape(*x.shape[:-2], -1) for x in (self.observations, self.actions)]
            return jnp.where(self.mask, one(*flat).reshape(self.rewards.shape), 0.0)

        def block(i: Array, out: Array) -> Array:
            observations, actions, first = _packed_block(self, i, PACKED_BLOCK)
            return jax.lax.dynamic_update_slice_in_dim(out, one(observations, actions), first, 0)

        out = jnp.zeros(self.observations.shape[:1])
        out = jax.lax.fori_loop(0, _packed_blocks(self, PACKED_BLOCK), block, out)  # [S]
        place = self.starts + jnp.arange(self.rewards.shape[0])[:, None]  # [T, B]
        return jnp.where(self.mask, out[jnp.minimum(place, out.shape[0] - 1)], 0.0)

    def some_steps(self, count: int) -> tuple[Array, Array]:
        """(observations [F, n], actions) of n = `count` steps, evenly spread over all; again and again if too few."""
        total = jnp.sum(self.lengths)
        wanted = jnp.minimum(jnp.floor(jnp.arange(count) / count * total).astype(jnp.int32), total - 1)
        ends = jnp.cumsum(self.lengths)
        episode = jnp.searchsorted(ends, wanted, side="right")
        t = wanted - (ends - self.lengths)[episode]
        if self.starts is None:
            return self.observations[:, t, episode], self.actions[..., t, episode]
        place = self.starts[episode] + t
        return self.observations[place].T, self.actions[place].T


def join(parts: Sequence[Trajectories]) -> Trajectories:
    """All episodes of the parts, in their order; each part as a rollout returned it."""
    if parts[0].starts is None:
        return jax.tree.map(lambda *x: jnp.concatenate(x, axis=-1), *parts)
    used = [int(np.sum(part.lengths)) for part in parts]

    def pack(arrays: Sequence[Any]) -> np.ndarray:  # without gaps between them, and all room at the end
        out = np.zeros((sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
        out[: sum(used)] = np.concatenate([array[:n] for array, n in zip(arrays, used, strict=True)])
        return out

    offsets = np.cumsum([0, *used[:-1]])
    moved = [part._replace(starts=part.starts + offset) for part, offset in zip(parts, offsets, strict=True)]
    whole = {name: pack([getattr(p, name) for p in parts]) for name in ("observations", "actions")}
    others = [name for name in Trajectories._fields if name not in whole]
    whole |= {name: np.concatenate([getattr(p, name) for p in moved], axis=-1) for name in others}
    return Trajectories(**whole)  # type: ignore[arg-type]


def _dense_size(steps: int, episodes: int) -> int:
    """The steps that are looked at together: about 2000 over all episodes, which fit the cache."""
    blocks, rest = divmod(steps, BLOCK)
    if rest:  # not from a rollout, which pads to whole blocks
        return steps
    fitting = [n for n in range(1, blocks + 1) if blocks % n == 0 and n * BLOCK * episodes <= 2048]
    return BLOCK * max(fitting, default=1)


def _packed_size(episodes: int) -> int:
    return PACKED_BLOCK if episodes > 1 else PACKED_BLOCK // 8


def _packed_blocks(trajectories: Trajectories, size: int) -> Array:
    return -(-jnp.sum(trajectories.lengths) // size)


def _packed_block(trajectories: Trajectories, i: Array, size: int) -> tuple[Array, Array, Array]:
    """(observations [F, size], actions, the place of the first) of the i-th block of packed steps."""
    assert trajectories.starts is not None
    first = trajectories.starts[0] + i * size
    cut = [jax.lax.dynamic_slice_in_dim(x, first, size) for x in (trajectories.observations, trajectories.actions)]
    return cut[0].T, cut[1].T, first  # features first


def _packed_weights(trajectories: Trajectories, weights: Array, first: Array, size: int) -> Array:
    """The weights [size] of a block of packed steps.

    Which step it is follows from where the episodes start; steps beyond the last episode have no weight.
    """
    assert trajectories.starts is not None
    place = first + jnp.arange(size)
    episode = jnp.sum(place[:, None] >= trajectories.starts, axis=1) - 1
    t = place - trajectories.starts[episode]
    inside = t < trajectories.lengths[episode]
    return jnp.where(inside, weights[jnp.minimum(t, weights.shape[0] - 1), episode], 0.0)


def reward_to_go(rewards: Array, gamma: float) -> Array:
    """sum_{h >= t} gamma^(h - t) r_h, block by block: a small matrix within, a scan over the blocks.  [T, B]"""
    steps, rest = rewards.shape[0], rewards.shape[1:]
    padded = jnp.concatenate([rewards, jnp.zeros((-steps % BLOCK, *rest))])
    blocks = padded.reshape(-1, BLOCK, *rest)  # [T / BLOCK, BLOCK, B]
    i = jnp.arange(BLOCK)
    ahead = i[None, :] - i[:, None]
    powers = jnp.where(ahead >= 0, gamma ** jnp.maximum(ahead, 0), 0.0)  # [BLOCK, BLOCK]
    within = jnp.einsum("th,nh...->nt...", powers, blocks)

    def back(later: Array, first: Array) -> tuple[Array, Array]:
        return first + gamma**BLOCK * later, later

    later = jax.lax.scan(back, jnp.zeros(rest), within[:, 0], reverse=True)[1]  # to go at the next block's start
    reach = (gamma ** (BLOCK - i)).reshape(BLOCK, *(1,) * len(rest))
    return (within + reach * later[:, None]).reshape(padded.shape)[:steps]
