"""Policies as records of pure functions, for one observation [F] or for many at once [F, ...].

Everything batched is laid out features first. On a CPU that is what makes the tiny layers of these networks
vectorise: gradients are 5 times as fast as with [..., F], and twice as fast as when `jax.vmap` does the batching
(it moves the batch to the front whenever it meets a bias).

What acts (`sample` and `mode`) is written for JAX and for NumPy alike: the module `xp` says which. A simulator outside
JAX is stepped from Python, where a compiled call per step would cost more than these few small products.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces
from jax import Array

from fedpg.columns import dense as dense_in_tiles
from fedpg.config import Config, ConfigError

Params = dict[str, Array]


class Policy(NamedTuple):
    """pi_theta(a | s), with theta as one flat vector of `size` numbers or as named tensors."""

    shapes: dict[str, tuple[int, ...]]
    """The tensors of the policy, in the order of the flat vector; weights are (out, in)."""
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

    def init(self, key: Array) -> Array:
        """theta [D] with entries uniform in (-1/sqrt(n), 1/sqrt(n)), n the last axis of their tensor; log-stds are -2.

        The text does not say how wide a Gaussian policy begins. exp(-2) is the width of the one behind the figures;
        with 1, most actions of HalfCheetah are cut off at the ends of its box, and little is learnt.
        """
        keys = jax.random.split(key, len(self.shapes))
        parts = []
        for k, (name, shape) in zip(keys, self.shapes.items(), strict=True):
            bound = 1 / math.sqrt(shape[-1])
            drawn = jax.random.uniform(k, (math.prod(shape),), minval=-bound, maxval=bound)
            parts.append(jnp.full_like(drawn, -2.0) if name == "log_std" else drawn)
        return jnp.concatenate(parts)

    def unravel(self, theta: Array) -> Params:
        """The named tensors of a flat vector."""
        pairs = zip(self.shapes.items(), self.tensors, strict=True)
        return {name: theta[part].reshape(shape) for (name, shape), part in pairs}

    def ravel(self, params: Params) -> Array:
        """The flat vector of the named tensors."""
        return jnp.concatenate([params[name].ravel() for name in self.shapes])


def make_policy(config: Config, observations: int, actions: spaces.Space[Any]) -> Policy:
    """The policy of the paper's table for a task: categorical or Gaussian, by the kind of its actions."""
    if isinstance(actions, spaces.Discrete):
        return categorical_mlp(observations, config.hidden, int(actions.n), config.activation)
    if isinstance(actions, spaces.Box) and len(actions.shape) == 1:
        return gaussian_mlp(observations, config.hidden, actions, config.activation, config.gaussian)
    raise TypeError(f"no policy for the action space {actions}: it must be Discrete or a Box with one axis")


def categorical_mlp(inputs: int, hidden: Sequence[int], actions: int, activation: str) -> Policy:
    """pi(a | s) = softmax(tanh(MLP(s)))_a; an action is a whole number."""
    shapes = _mlp_shapes([inputs, *hidden, actions])
    act = _ACTIVATIONS[activation]

    def logits(dense: Dense, params: Params, x: Array, xp: Any) -> Array:
        for i in range(len(hidden)):
            x = act(dense(params[f"w{i}"], x) + _column(params[f"b{i}"], x), xp)
        last = len(hidden)
        return xp.tanh(dense(params[f"w{last}"], x) + _column(params[f"b{last}"], x))  # [actions, ...]

    def sample(params: Params, observations: Array, noise: Array, xp: Any = jnp) -> Array:
        # One uniform number against the cumulative probabilities: cheaper than one Gumbel per action.
        x = logits(_acting(xp), params, observations, xp)
        # Methods, where there is the choice: NumPy's functions of these names take twice as long for so few numbers.
        odds = xp.exp(x - x.max(axis=0))
        cumulative = (odds / odds.sum(axis=0)).cumsum(axis=0)
        return (noise[0] >= cumulative[:-1]).sum(axis=0, dtype=xp.int32)

    def mode(params: Params, observations: Array, xp: Any = jnp) -> Array:
        return xp.argmax(logits(_acting(xp), params, observations, xp), axis=0).astype(xp.int32)

    def log_prob(params: Params, observations: Array, chosen: Array) -> Array:
        log_p = jax.nn.log_softmax(logits(_dense_wide, params, observations, jnp), axis=0)
        # A masked sum, not an index: its gradient is a product instead of a scatter.
        return jnp.sum(jnp.where(_column(jnp.arange(actions), log_p) == chosen, log_p, 0.0), axis=0)

    return Policy(
        shapes=shapes,
        noise=lambda key, steps: jax.random.uniform(key, (1, steps)),
        sample=sample,
        mode=mode,
        log_prob=log_prob,
        random=lambda noise: jnp.minimum(noise[0] * actions, actions - 1).astype(jnp.int32),
    )


def gaussian_mlp(inputs: int, hidden: Sequence[int], actions: spaces.Box, activation: str, form: str) -> Policy:
    """pi(a | s) = N(mean(s), diag(std(s)^2)), as the text or as the figures have it; an action is a vector [A].

    `paper`: mean = tanh(MLP(s)), std = exp(log_std), one trained number per action.
    `released`: two heads without bias on the last hidden layer, which has no activation itself;
    mean = tanh(head), std = tanh(exp(clip(head, -20, -2))), so std is at most 0.135.
    """
    size = int(actions.shape[0])
    act = _ACTIVATIONS[activation]
    if form == "released" and not hidden:
        raise ConfigError("gaussian 'released' puts its heads on a hidden layer: give hidden at least one")
    if form == "released":
        shapes = _mlp_shapes([inputs, *hidden]) | {"mean": (size, hidden[-1]), "std": (size, hidden[-1])}
    else:
        shapes = _mlp_shapes([inputs, *hidden, size]) | {"log_std": (size,)}

    def mean_std(dense: Dense, params: Params, x: Array, xp: Any) -> tuple[Array, Array]:
        for i in range(len(hidden)):
            x = dense(params[f"w{i}"], x) + _column(params[f"b{i}"], x)
            x = act(x, xp) if form == "paper" or i < len(hidden) - 1 else x
        if form == "released":
            std = xp.tanh(xp.exp(xp.clip(dense(params["std"], x), -20.0, -2.0)))
            return xp.tanh(dense(params["mean"], x)), std
        last = len(hidden)
        mean = xp.tanh(dense(params[f"w{last}"], x) + _column(params[f"b{last}"], x))
        return mean, xp.exp(_column(params["log_std"], x))

    def sample(params: Params, observations: Array, noise: Array, xp: Any = jnp) -> Array:
        mean, std = mean_std(_acting(xp), params, observations, xp)
        return mean + std * noise

    def mode(params: Params, observations: Array, xp: Any = jnp) -> Array:
        return mean_std(_acting(xp), params, observations, xp)[0]

    def log_prob(params: Params, observations: Array, chosen: Array) -> Array:
        mean, std = mean_std(_dense_wide, params, observations, jnp)
        each = -0.5 * ((chosen - mean) / std) ** 2 - jnp.log(std) - 0.5 * math.log(2 * math.pi)
        return jnp.sum(each, axis=0)

    def random(noise: Array) -> Array:
        # The noise is normal: its distribution function makes it uniform.
        low, high = _column(jnp.asarray(actions.low), noise), _column(jnp.asarray(actions.high), noise)
        uniform = low + (high - low) * jax.scipy.stats.norm.cdf(noise)
        return jnp.where(jnp.isfinite(low) & jnp.isfinite(high), uniform, noise)

    return Policy(
        shapes=shapes,
        noise=lambda key, steps: jax.random.normal(key, (size, steps)),
        sample=sample,
        mode=mode,
        log_prob=log_prob,
        random=random,
    )


def _mlp_shapes(sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for i, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        shapes |= {f"w{i}": (n_out, n_in), f"b{i}": (n_out,)}
    return shapes


def _column(vector: Array, like: Array) -> Array:
    """[n] as [n, 1, ...], to go with [n, ...]."""
    return vector.reshape(vector.shape[0], *(1,) * (like.ndim - 1))


def _dense_wide(w: Array, x: Array) -> Array:
    """W x as a matrix product: fastest over thousands of steps (gradients)."""
    return jnp.tensordot(w, x, axes=1)


def _dense_narrow(w: Array, x: Array) -> Array:
    """W x as a fused sum: fastest over a handful of episodes.

    For the layers of CartPole it also gives the same bits whatever their number; wider ones agree to rounding.
    """
    return jnp.sum(w.reshape(*w.shape, *(1,) * (x.ndim - 1)) * x, axis=1)


def _acting(xp: Any) -> Callable[..., Any]:
    """W x for the few observations of one time step."""
    return _dense_narrow if xp is jnp else dense_in_tiles


def _relu(x: Array, xp: Any) -> Array:
    return jax.nn.relu(x) if xp is jnp else xp.maximum(x, 0)  # their derivatives at 0 differ


Dense = Callable[..., Any]
_ACTIVATIONS: dict[str, Callable[[Array, Any], Array]] = {"relu": _relu, "tanh": lambda x, xp: xp.tanh(x)}
