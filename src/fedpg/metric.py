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
    # XLA may multiply by 1 / largest, which must be neither inf nor so small that it is taken for 0.
    largest = jnp.clip(jnp.max(jnp.abs(vector)), 1e-37, 1e37)
    scaled = vector / largest
    length = jnp.linalg.norm(scaled)
    return scaled / jnp.where(length > 0, length, 1.0), largest * length


@jax.jit
def signal_of(mu: Array, vectors: Array, accepted: Array, scores: Array) -> Array:
    """The share of |mu|^2 that is no noise, mu an aggregate of the n accepted vectors g_i, in the metric of the step.

    median_i [<g_i, mu> - a_i / (n - 1)] / |mu|^2 with a_i = |g_i - mu|^2. Most agents go along with mu as far as it is
    signal; but each is also part of mu, and goes along with its own noise in it: that is a_i / (n - 1), or less if it
    is so long that rules cut it down to the median length. NaN if nobody can tell: of two vectors, one, or none, or if
    mu is 0.
    """
    unit, length = unit_of(mu)
    rows = jnp.where(accepted[:, None], vectors / jnp.maximum(length, 1e-30), 0.0)  # [K, D], in units of |mu|
    matrix = damped(fisher_of(scores), unit)
    image = solve(matrix, unit)

    def far(v: Array) -> Array:
        direction, size = unit_of(v)  # lies may be very long
        return jnp.sqrt(jnp.maximum(direction @ solve(matrix, direction), 0.0)) * jnp.minimum(size, 1e15)

    def median(x: Array) -> Array:
        return jnp.nanmedian(jnp.where(accepted, x, jnp.nan))

    count, away = jnp.sum(accepted), jax.vmap(far)(rows - unit)
    own = away * jnp.minimum(away, median(away)) / jnp.maximum(count - 1, 1)
    share = share_of(median(rows @ image - own), unit @ image)
    return jnp.where((count > 2) & (length > 0), jnp.clip(share, -1.0, 1.0), jnp.nan)


def share_of(part: Array, whole: Array) -> Array:
    """part / whole, 0 of nothing."""
    return jnp.where(whole > 0, part / jnp.where(whole > 0, whole, 1.0), 0.0)
