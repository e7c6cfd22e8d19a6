"""Advantages by a value function: linear in a few features, and fitted anew to every batch."""

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.trajectories import Trajectories, reward_to_go

RIDGE = 1e-2
"""As a share of each feature's own sum of squares: what keeps a fit to a few short episodes from going astray."""


def advantages(trajectories: Trajectories, gamma: float, trace: float) -> Array:
    """A_t = sum_l (gamma lambda)^l d_{t+l}, d_t = r_t + gamma V(s_{t+1}) - V(s_t), with lambda = `trace`.  [T, B]

    V(s) = w . phi(s), phi the observation, its squares and 1, and w the least-squares fit to the discounted returns
    of all *other* episodes of the batch. So V knows nothing of the episode that it is subtracted from, and adds no bias
    with lambda = 1. After the last step of an episode that the task ended V is 0; one that was cut off would have gone
    on, and its returns go on with V of its last observation. Those depend on w themselves, linearly, so that the fit
    is one linear system:  sum_t phi_t (phi_t - c gamma^(n-t) phi_n)^T w = sum_t phi_t G_t, c = 1 if it was cut off.

    J. Schulman et al., "High-dimensional continuous control using generalized advantage estimation", ICLR 2016.
    """
    mask, lengths = trajectories.mask, trajectories.lengths  # [T, B], [B]
    phi = jnp.where(mask, _features(jnp.where(mask, trajectories.side_by_side, 0.0)), 0.0)  # [p, T, B]
    phi_last = _features(trajectories.last)  # [p, B]
    cut_off = (~trajectories.terminated) & (lengths > 0)
    tail = jnp.where(mask & cut_off, gamma ** (lengths - jnp.arange(mask.shape[0])[:, None]), 0.0)  # [T, B]
    returns = jnp.where(mask, reward_to_go(trajectories.rewards, gamma), 0.0)

    square = jnp.einsum("ptb,qtb->bpq", phi, phi)
    matrix = square - jnp.einsum("ptb,tb->bp", phi, tail)[:, :, None] * phi_last.T[:, None, :]  # [B, p, p]
    target = jnp.einsum("ptb,tb->bp", phi, returns)
    w = _fit(*(jnp.sum(x, axis=0) - x for x in (jnp.diagonal(square, axis1=1, axis2=2), matrix, target)))  # [B, p]

    value = jnp.einsum("ptb,bp->tb", phi, w)
    after = jnp.where(cut_off, jnp.einsum("pb,bp->b", phi_last, w), 0.0)
    ends = jnp.arange(mask.shape[0])[:, None] == lengths - 1
    following = jnp.where(ends, after, jnp.roll(value, -1, axis=0))
    surprise = jnp.where(mask, trajectories.rewards + gamma * following - value, 0.0)
    return jnp.where(mask, reward_to_go(surprise, gamma * trace), 0.0)


def _features(observations: Array) -> Array:
    """[F, ...] -> [2F + 1, ...]"""
    return jnp.concatenate([jnp.ones_like(observations[:1]), observations, observations**2])


def _fit(squares: Array, matrices: Array, targets: Array) -> Array:
    """w of (M + ridge) w = y, whatever the units of the features; 0 where there is nothing to fit to.  [B, p]"""
    size = jnp.sqrt(jnp.where(squares > 0, squares, 1.0))
    scaled = matrices / size[:, :, None] / size[:, None] + RIDGE * jnp.eye(size.shape[1])
    w = solve(scaled, targets / size) / size
    return jnp.where(jnp.all(jnp.isfinite(w), axis=1, keepdims=True), w, 0.0)


def solve(matrices: Array, targets: Array) -> Array:
    """x of M x = y for many small M whose symmetric part is positive, by Gauss and Jordan.  [B, p, p], [B, p] -> [B, p]

    (LAPACK's routines for batches may wait for each other for ever when two threads of a process call them.)
    """
    size = targets.shape[1]

    def eliminate(i: Array, rows: Array) -> Array:  # [B, p, p + 1]
        pivot = rows[:, i] / rows[:, i, i][:, None]
        rows = rows - rows[:, :, i][:, :, None] * pivot[:, None]
        return rows.at[:, i].set(pivot)

    rows = jnp.concatenate([matrices, targets[:, :, None]], axis=2)
    return jax.lax.fori_loop(0, size, eliminate, rows)[:, :, -1]
