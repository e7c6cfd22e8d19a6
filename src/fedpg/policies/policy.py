"""What a policy is: a record of pure functions, for one observation [F] or for many at once [F, ...]."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Params = dict[str, Array]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Policy:
    """pi_theta(a | s), with theta as one flat vector of `size` numbers or as named tensors."""

    shapes: Shapes
    """The tensors of the policy, in the order of the flat vector; weights are (out, in)."""
    init: Callable[[Array], Array]
    """key -> theta [D] before the first round."""
    noise: Callable[[Array, int], Array]
    """(key, steps) -> [n, steps]: all the randomness that one episode's actions need."""
    sample: Callable[..., Any]
    """(params, observations [F, ...], noise [n, ...], xp=jax.numpy) -> actions drawn from the policy."""
    mode: Callable[..., Any]
    """(params, observations [F, ...], xp=jax.numpy) -> the greedy actions."""
    log_prob: Callable[[Params, Array, Array], Array]
    """(params, observations [F, ...], actions) -> log pi(a | s)  [...]."""
    random: Callable[[Array], Array]
    """(noise [n, ...]) -> actions drawn uniformly, whatever the observation."""
    alone: bool = False
    """Whether an action in JAX is the same to the bit, however many act beside it."""
    kl: Callable[[Params, Params, Array], Array] | None = None
    """(params, others, observations [F, ...]) -> KL(pi(. | s), pi_others(. | s))  [...]; natural steps need it."""

    @property
    def size(self) -> int:
        """D, the number of parameters."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def tensors(self) -> tuple[slice, ...]:
        """Where each tensor lies in the flat vector."""
        ends = [0]
        for shape in self.shapes.values():
            ends.append(ends[-1] + math.prod(shape))
        return tuple(slice(a, b) for a, b in itertools.pairwise(ends))

    def unravel(self, theta: Array) -> Params:
        """The named tensors of a flat vector."""
        known = _is_known(theta)
        if known:  # NumPy has nothing to compile; JAX would compile a program for every tensor
            theta = np.asarray(theta)  # type: ignore[assignment]
        pairs = zip(self.shapes.items(), self.tensors, strict=True)
        parts = {name: theta[part].reshape(shape) for (name, shape), part in pairs}
        return jax.device_put(parts) if known else parts

    def ravel(self, params: Params) -> Array:
        """The flat vector of the named tensors."""
        if all(map(_is_known, params.values())):
            return jax.device_put(np.concatenate([np.asarray(params[name]).ravel() for name in self.shapes]))
        return jnp.concatenate([params[name].ravel() for name in self.shapes])


def _is_known(array: Any) -> bool:
    """An array with numbers in it, of JAX; not one that stands for numbers while a program is compiled."""
    return isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer)


def categorical(
    shapes: Shapes,
    init: Callable[[Array], Array],
    actions: int,
    act: Callable[[Params, Array, Any], Any],
    learn: Callable[[Params, Array], Array],
    alone: bool = False,
) -> Policy:
    """pi(a | s) = softmax(logits)_a, with logits [A, ...] by `act` for few observations and by `learn` for many."""

    def sample(params: Params, observations: Array, noise: Array, xp: Any = jnp) -> Array:
        # One uniform number against the cumulative probabilities: cheaper than one Gumbel per action.
        x = act(params, observations, xp)
        # Methods, where there is the choice: NumPy's functions of these names take twice as long for so few numbers.
        odds = xp.exp(x - x.max(axis=0))
        cumulative = (odds / odds.sum(axis=0)).cumsum(axis=0)
        return (noise[0] >= cumulative[:-1]).sum(axis=0, dtype=xp.int32)

    def mode(params: Params, observations: Array, xp: Any = jnp) -> Array:
        return xp.argmax(act(params, observations, xp), axis=0).astype(xp.int32)

    def log_prob(params: Params, observations: Array, chosen: Array) -> Array:
        log_p = jax.nn.log_softmax(learn(params, observations), axis=0)
        # A masked sum, not an index: its gradient is a product instead of a scatter.
        return jnp.sum(jnp.where(column(jnp.arange(actions), log_p) == chosen, log_p, 0.0), axis=0)

    def kl(params: Params, others: Params, observations: Array) -> Array:
        log_p, log_q = (jax.nn.log_softmax(learn(x, observations), axis=0) for x in (params, others))
        return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=0)

    return Policy(
        shapes=shapes,
        init=init,
        noise=lambda key, steps: jax.random.uniform(key, (1, steps)),
        sample=sample,
        mode=mode,
        log_prob=log_prob,
        random=lambda noise: jnp.minimum(noise[0] * actions, actions - 1).astype(jnp.int32),
        kl=kl,
        alone=alone,
    )


def gaussian(
    shapes: Shapes,
    init: Callable[[Array], Array],
    low: tuple[float, ...],
    high: tuple[float, ...],
    act: Callable[[Params, Array, Any], Any],
    learn: Callable[[Params, Array], tuple[Array, Array]],
    alone: bool = False,
) -> Policy:
    """pi(a | s) = N(mean, diag(std^2)), with (mean, std) [A, ...] by `act` for few observations, `learn` for many."""

    def sample(params: Params, observations: Array, noise: Array, xp: Any = jnp) -> Array:
        mean, std = act(params, observations, xp)
        return mean + std * noise

    def mode(params: Params, observations: Array, xp: Any = jnp) -> Array:
        return act(params, observations, xp)[0]

    def log_prob(params: Params, observations: Array, chosen: Array) -> Array:
        mean, std = learn(params, observations)
        each = -0.5 * ((chosen - mean) / std) ** 2 - jnp.log(std) - 0.5 * math.log(2 * math.pi)
        return jnp.sum(each, axis=0)

    def random(noise: Array) -> Array:
        # The noise is normal: its distribution function makes it uniform.
        ends = column(jnp.array(low, jnp.float32), noise), column(jnp.array(high, jnp.float32), noise)
        uniform = ends[0] + (ends[1] - ends[0]) * jax.scipy.stats.norm.cdf(noise)
        return jnp.where(jnp.isfinite(ends[0]) & jnp.isfinite(ends[1]), uniform, noise)

    def kl(params: Params, others: Params, observations: Array) -> Array:
        (mean, std), (mean_q, std_q) = learn(params, observations), learn(others, observations)
        each = jnp.log(std_q / std) + (std**2 + (mean - mean_q) ** 2) / (2 * std_q**2) - 0.5
        return jnp.sum(each, axis=0)

    return Policy(
        shapes=shapes,
        init=init,
        noise=lambda key, steps: jax.random.normal(key, (len(low), steps)),
        sample=sample,
        mode=mode,
        log_prob=log_prob,
        random=random,
        kl=kl,
        alone=alone,
    )


def column(vector: Array, like: Array) -> Array:
    """[n] as [n, 1, ...], to go with [n, ...]."""
    return vector.reshape(vector.shape[0], *(1,) * (like.ndim - 1))
