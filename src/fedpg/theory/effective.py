"""What the theorem's constants are in truth on a tabular MDP, along the way of a perfect learner."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpg.aggregators.sigma import Spread, auto_sigma
from fedpg.theory.mdp import ascent, best_return, curvature, exact_gradient, exact_return, simulate
from fedpg.theory.runs import Lab, correction, gradients_of

SAMPLE = 4096
POINTS = (0, 3, 10, 30, 100)
"""The steps of the ascent at which it is measured."""
AHEAD = 0.1
"""How far apart the two policies are between which the correction's size is measured."""


class Effective(NamedTuple):
    """The largest of each along exact gradient ascent from the uniform policy."""

    smoothness: float  # ||Hessian of J||; the theorem's L
    correction: float  # E||g(tau|theta_n) - omega g(tau|theta_0)||^2 / (2 ||theta_n - theta_0||^2); its Phi
    variance: float  # E||g - grad J||^2 of one trajectory
    largest: float  # max ||g - grad J|| over the sample; its sigma
    gap: float  # J* - J_0
    steepest: float  # ||grad J||^2

    @property
    def psi(self) -> float:
        """(L Phi)^(1/3)."""
        return (self.smoothness * self.correction) ** (1 / 3)


def effective(lab: Lab, step: float = 2.0, points: tuple[int, ...] = POINTS) -> Effective:
    """Measured at some points of the ascent; the expectations from a sample, the rest exactly."""
    mdp = lab.mdp
    path = ascent(mdp, step, max(points) + 1)[jnp.array(points)]  # [n, S, A]

    @jax.jit
    def at(theta: Array, key: Array) -> tuple[Array, ...]:
        k_sample, k_direction, k_pairs = jax.random.split(key, 3)
        spread = jnp.sum(deviations(lab, theta, k_sample, SAMPLE) ** 2, axis=1)
        directions = jnp.concatenate(
            [exact_gradient(mdp, theta)[None], jax.random.normal(k_direction, (3, *theta.shape))]
        )
        units = directions / jnp.linalg.norm(directions, axis=(1, 2), keepdims=True)

        def size(unit: Array) -> Array:
            keys = jax.random.split(k_pairs, SAMPLE)
            each = jax.vmap(lambda key: correction(lab, theta + AHEAD * unit, theta, key, 1, 1))(keys)
            return jnp.mean(jnp.sum(each**2, axis=(1, 2))) / (2 * AHEAD**2)

        steep = jnp.sum(exact_gradient(mdp, theta) ** 2)
        return curvature(mdp, theta), jnp.max(jax.lax.map(size, units)), jnp.mean(spread), jnp.max(spread), steep

    seen = np.array([at(theta, jax.random.key(i)) for i, theta in enumerate(path)])
    smoothness, corrected, variance, largest, steepest = seen.max(axis=0).tolist()
    gap = float(best_return(mdp) - exact_return(mdp, path[0]))
    return Effective(smoothness, corrected, variance, largest**0.5, gap, steepest)


def deviations(lab: Lab, theta: Array, key: Array, count: int) -> Array:
    """g(tau) - grad J of single trajectories.  [count, D]"""
    mine = simulate(lab.mdp, theta, key, count)
    return gradients_of(lab, theta, mine, count) - exact_gradient(lab.mdp, theta).ravel()


def calibrated_sigma(lab: Lab, theta: Array, key: Array) -> float:
    """What `sigma = auto` would settle at: R1's radius is the 0.95 quantile of the distance of two honest replies."""
    rows = deviations(lab, theta, key, SAMPLE)
    covariance = rows.T @ rows / SAMPLE
    spread = Spread(jnp.trace(covariance), jnp.sum(covariance**2), jnp.float32(1.0))
    return float(auto_sigma(spread, lab.config.agents, lab.config.delta))
