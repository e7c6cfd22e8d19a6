"""Advantages by a value function: linear in a few features, and fitted anew to every batch."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpg.trajectories import Trajectories, reward_to_go

RIDGE = 1e-2
"""As a share of each feature's own sum of squares: what keeps a fit to a few short episodes from going astray."""
MOST_PRODUCTS = 100
"""Of the numbers of an observation: each episode has a fit of its own, whose time grows with their third power."""


def advantages(trajectories: Trajectories, gamma: float, trace: float) -> Array:
    """A_t = sum_l (gamma lambda)^l d_{t+l}, d_t = r_t + gamma V(s_{t+1}) - V(s_t), with lambda = `trace`.  [T, B]

    V(s) = w . phi(s), phi the observation, products of its numbers and 1, and w the least-squares fit to the discounted
    returns of all *other* episodes of the batch. So V knows nothing of the episode that it is subtracted from, and adds
    no bias with lambda = 1. After the last step of an episode that the task ended V is 0; one that was cut off would
    have gone on, and its returns go on with V of its last observation. Those depend on w themselves, linearly, so that
    the fit is one linear system:  sum_t phi_t (phi_t - c gamma^(n-t) phi_n)^T w = sum_t phi_t G_t, c = 1 if it was cut
    off.

    J. Schulman et al., "High-dimensional continuous control using generalized advantage estimation", ICLR 2016.
    """
    mask, lengths = trajectories.mask, trajectories.lengths  # [T, B], [B]
    phi = jnp.where(mask, _features(jnp.where(mask, trajectories.side_by_side, 0.0)), 0.0)  # [p, T, B]
    cut_off = (~trajectories.terminated) & (lengths > 0)
    phi_last = jnp.where(cut_off, _features(jnp.where(cut_off, trajectories.last, 0.0)), 0.0)  # [p, B]
    tail = jnp.where(mask & cut_off, gamma ** (lengths - jnp.arange(mask.shape[0])[:, None]), 0.0)  # [T, B]
    returns = jnp.where(mask, reward_to_go(trajectories.rewards, gamma), 0.0)

    square = jnp.einsum("ptb,qtb->bpq", phi, phi)
    matrix = square - jnp.einsum("ptb,tb->bp", phi, tail)[:, :, None] * phi_last.T[:, None, :]  # [B, p, p]
    target = jnp.einsum("ptb,tb->bp", phi, returns)
    w = _fit(*(jnp.sum(x, axis=0) - x for x in (jnp.diagonal(square, axis1=1, axis2=2), matrix, target)))  # [B, p]
    most = _most(trajectories.rewards, gamma)  # [B]

    value = jnp.clip(jnp.einsum("ptb,bp->tb", phi, w), -most, most)
    after = jnp.clip(jnp.einsum("pb,bp->b", phi_last, w), -most, most)
    ends = jnp.arange(mask.shape[0])[:, None] == lengths - 1
    following = jnp.where(ends, after, jnp.roll(value, -1, axis=0))
    surprise = jnp.where(mask, trajectories.rewards + gamma * following - value, 0.0)
    return jnp.where(mask, reward_to_go(surprise, gamma * trace), 0.0)


def _features(observations: Array) -> Array:
    """1, the observation, and the products of its numbers: all of them, or the squares alone where that is too many.

    [F, ...] -> [1 + F + F (F + 1) / 2, ...], or [1 + 2F, ...]
    """
    count = observations.shape[0]
    i, j = np.triu_indices(count)
    if len(i) > MOST_PRODUCTS:
        i = j = np.arange(count)
    return jnp.concatenate([jnp.ones_like(observations[:1]), observations, observations[i] * observations[j]])


def _fit(squares: Array, matrices: Array, targets: Array) -> Array:
    """w of (M + ridge) w = y, whatever the units of the features; 0 where there is nothing to fit to.  [B, p]

    With few steps the ridge on all features but the constant is larger, and V goes to the mean return of the others.
    """
    features, steps = squares.shape[1], squares[:, :1]  # the squares of the constant are the steps
    size = jnp.sqrt(jnp.where(squares > 0, squares, 1.0))
    ridge = RIDGE + jnp.where(jnp.arange(features) > 0, features / jnp.maximum(steps, 1.0), 0.0)  # [B, p]
    scaled = matrices / size[:, :, None] / size[:, None] + ridge[:, :, None] * jnp.eye(features)
    w = solve(scaled, targets / size) / size
    return jnp.where(jnp.all(jnp.isfinite(w), axis=1, keepdims=True), w, 0.0)


def _most(rewards: Array, gamma: float) -> Array:
    """What no return can exceed, by the largest reward of all other episodes: fits to few short ones may.  [B]"""
    largest = jnp.max(jnp.abs(rewards), axis=0)
    others = jnp.where(jnp.arange(len(largest)) == jnp.argmax(largest), jnp.sort(largest)[-2:][0], jnp.max(largest))
    return others * (1 / (1 - gamma) if gamma < 1 else rewards.shape[0])


def solve(matrices: Array, targets: Array) -> Array:
    """x of M x = y for many small M, by Gauss and Jordan without a choice of pivots.  [B, p, p], [B, p] -> [B, p]

    That is exact where the symmetric part of M is positive, as it is but for a few short episodes that were cut off;
    there values are cut down to what is possible. (LAPACK's routines for batches may wait for each other for ever when
    two threads of a process call them.)
    """
    size = targets.shape[1]

    def eliminate(i: Array, rows: Array) -> Array:  # [B, p, p + 1]
        pivot = rows[:, i] / rows[:, i, i][:, None]
        rows = rows - rows[:, :, i][:, :, None] * pivot[:, None]
        return rows.at[:, i].set(pivot)

    rows = jnp.concatenate([matrices, targets[:, :, None]], axis=2)
    return jax.lax.fori_loop(0, size, eliminate, rows)[:, :, -1]
