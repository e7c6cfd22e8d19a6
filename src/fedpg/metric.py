"""The metric in which natural steps are taken: (F + lambda I)^-1, F the Fisher matrix of a policy.

v . (F + lambda I)^-1 v is twice what v, as a slope, gains on the best move of unit divergence: how far a gradient moves
a natural step. Nothing here makes a matrix of F: it is only ever multiplied with vectors.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.errors import ConfigError
from fedpg.policies import Policy

DAMPING = 0.01
"""lambda, as a share of the curvature along the vector that the metric is made for."""
ITERATIONS = 10
"""Of conjugate gradients: they go for the directions that matter first, and stopping early damps the rest."""

Fisher = Callable[[Array], Array]
"""v -> F v."""


def divergence(policy: Policy, theta: Array, other: Array, observations: Array) -> Array:
    """KL(pi_theta, pi_other), the mean over observations [F, n]."""
    if policy.kl is None:
        raise ConfigError(
            "natural steps need the divergence of two policies, Policy.kl, and this policy has none: add it, make the "
            "policy by from_logits or from_gaussian, or choose another algorithm (fedpg-br)"
        )
    return jnp.mean(policy.kl(policy.unravel(theta), policy.unravel(other), observations))


def fisher_at(policy: Policy, theta: Array, observations: Array) -> Fisher:
    """F = the Hessian of the divergence from pi_theta, at theta."""
    return jax.linearize(jax.grad(lambda other: divergence(policy, theta, other, observations)), theta)[1]


def fisher_of(scores: Array) -> Fisher:
    """F = J^T J / n for the scores J [n, D] at n steps: rougher, for who has no policy at hand."""
    return lambda v: (scores @ v) @ scores / scores.shape[0]


def damped(fisher: Fisher, along: Array, damping: float = DAMPING) -> Fisher:
    """F + lambda I, lambda = damping times the curvature along a vector."""
    unit, _ = unit_of(along)
    added = damping * (unit @ fisher(unit))
    return lambda v: fisher(v) + added * v


def solve(matrix: Fisher, target: Array, iterations: int = ITERATIONS) -> Array:
    """x with M x = target, approximately, by conjugate gradients from 0.  [D]"""
    unit, length = unit_of(target)

    def iterate(_: int, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, rest, along = carry
        image = matrix(along)
        before, bend = rest @ rest, along @ image
        a = jnp.where(bend > 0, before / jnp.where(bend > 0, bend, 1.0), 0.0)
        x, rest = x + a * along, rest - a * image
        return x, rest, rest + rest @ rest / jnp.where(before > 0, before, 1.0) * along

    start = (jnp.zeros_like(unit), unit, unit)
    return length * jax.lax.fori_loop(0, iterations, iterate, start)[0]


def unit_of(vector: Array) -> tuple[Array, Array]:
    """(its direction, its length), also where squares are too small or too large for a float; 0 has the direction 0."""
    largest = jnp.max(jnp.abs(vector))
    scaled = vector / jnp.where(largest > 0, largest, 1.0)
    length = jnp.linalg.norm(scaled)
    return scaled / jnp.where(length > 0, length, 1.0), largest * length
