"""The attacks of the paper and of its released code, and faults."""

import math
from typing import get_args

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.attacks.attack import Attack, Group, Scene, mean_of, require_one_of, squared_distances
from fedpg.errors import require
from fedpg.trajectories import Trajectories


def random_noise(form: str = "paper", scale: float = 3.0) -> Attack:
    """RN: a random vector (paper), or the gradient with random noise added (released).

    Paper: scale rms(mu) N(0, 1); the paper leaves its size open, so it is tied to the agent's own gradient.
    Released: mu + scale (max mu - min mu) U(-1, 1), tensor by tensor.
    """
    require(0 <= scale < math.inf, f"scale must be a finite number, 0 or more, not {scale}")

    def message(scene: Scene) -> Array:
        keys, gradients, tensors = scene.keys, scene.gradients, scene.tensors
        if form == "paper":
            rms = jnp.sqrt(jnp.mean(gradients**2, axis=1, keepdims=True))
            return scale * rms * jax.vmap(lambda key: jax.random.normal(key, gradients.shape[1:]))(keys)
        noise = jax.vmap(lambda key: jax.random.uniform(key, gradients.shape[1:], minval=-1.0, maxval=1.0))(keys)
        spans = [jnp.broadcast_to(jnp.ptp(gradients[:, t], axis=1, keepdims=True), noise[:, t].shape) for t in tensors]
        return gradients + scale * jnp.concatenate(spans, axis=1) * noise

    return Attack(message=message)


def random_action(form: str = "paper") -> Attack:
    """RA. Paper: acts at random. Released: always plays action 0, or the zero vector."""
    return Attack(act=lambda action, random: random if form == "paper" else 0 * action)


def sign_flipping(scale: float = 2.5) -> Attack:
    """SF: -scale times its gradient."""
    require(0 < scale < math.inf, f"scale must be a positive number, not {scale}")
    return Attack(message=lambda scene: -scale * scene.gradients)


def fedpg_attack(form: str = "paper", scale: float = 3.0, knowledge: Group = "colluders") -> Attack:
    """The attackers send the mean of the gradients that they know, moved by scale * sigma-bar in a random direction.

    sigma-bar is half the largest distance between two of them. Paper: over the whole vector. Released: per tensor.
    """
    require(0 <= scale < math.inf, f"scale must be a finite number, 0 or more, not {scale}")
    require_one_of("knowledge", knowledge, get_args(Group))

    def message(scene: Scene) -> Array:
        gradients, known = scene.gradients, scene.known(knowledge)
        direction = jax.random.normal(scene.keys[0], gradients.shape[1:])
        parts = (slice(0, gradients.shape[1]),) if form == "paper" else scene.tensors
        shifted = []
        for part in parts:
            theirs = gradients[:, part]
            sigma = jnp.sqrt(jnp.max(squared_distances(theirs, known))) / 2
            unit = direction[part] / jnp.maximum(jnp.linalg.norm(direction[part]), 1e-12)
            shifted.append(mean_of(theirs, known) + scale * sigma * unit)
        return scene.by_all(jnp.concatenate(shifted))

    return Attack(message=message, colludes=True)


def variance_attack(z: float = 0.18, knowledge: Group = "colluders") -> Attack:
    """VA: the attackers send the mean of the gradients that they know less z of their standard deviations (with n).

    G. Baruch, M. Baruch, Y. Goldberg, "A little is enough", NeurIPS 2019.
    """
    require(0 < z < math.inf, f"z must be a positive number, not {z}")
    require_one_of("knowledge", knowledge, get_args(Group))

    def message(scene: Scene) -> Array:
        centre = scene.mean(knowledge)
        std = jnp.sqrt(mean_of((scene.gradients - centre) ** 2, scene.known(knowledge)))
        return scene.by_all(centre - z * std)

    return Attack(message=message, colludes=True)


def zero_gradient() -> Attack:
    """Sends zeros."""
    return Attack(message=lambda scene: jnp.zeros_like(scene.gradients))


def reward_flipping() -> Attack:
    """Learns from the negative of its rewards."""
    return Attack(rewards=lambda key, trajectories: -trajectories.rewards)


def shuffled_rewards() -> Attack:
    """Learns from its rewards in random order, within each episode (on CartPole, where all are 1, that is honest)."""

    def rewards(key: Array, trajectories: Trajectories) -> Array:
        steps, episodes = trajectories.rewards.shape
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(episodes))
        draws = jax.vmap(lambda k: jax.random.uniform(k, (steps,)), out_axes=-1)(keys)  # [T, B]
        order = jnp.argsort(jnp.where(trajectories.mask, draws, 2.0), axis=0)  # the living steps first
        return jnp.take_along_axis(trajectories.rewards, order, axis=0)

    return Attack(rewards=rewards)


def not_a_number() -> Attack:
    """Fault: a vector of NaN."""
    return Attack(message=lambda scene: jnp.full_like(scene.gradients, jnp.nan))


def infinity() -> Attack:
    """Fault: one infinite entry."""
    return Attack(message=lambda scene: scene.gradients.at[:, 0].set(jnp.inf))


def wrong_length() -> Attack:
    """Fault: a vector one entry short."""
    return Attack(length=lambda size: size - 1)


def silence() -> Attack:
    """Fault: no answer."""
    return Attack(length=lambda size: 0)
