"""The networks of the paper's table: a few dense layers, in JAX and in NumPy."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from gymnasium import spaces
from jax import Array

from fedpg.columns import dense as dense_in_tiles
from fedpg.errors import ConfigError
from fedpg.policies.policy import Params, Policy, Shapes, categorical, column, gaussian

NARROW = 16
"""In JAX, sums of so few products come out the same in a loop over one episode and over many."""


def make_mlp(
    observations: int,
    actions: spaces.Space[Any],
    hidden: tuple[int, ...],
    activation: str,
    gaussian: str,
    categorical: str = "paper",
) -> Policy:
    """The policy of the paper's table for a task: categorical or Gaussian, by the kind of its actions."""
    if isinstance(actions, spaces.Discrete):
        return categorical_mlp(observations, hidden, int(actions.n), activation, categorical)
    if isinstance(actions, spaces.Box) and len(actions.shape) == 1:
        low, high = (tuple(map(float, end)) for end in (actions.low, actions.high))
        return gaussian_mlp(observations, hidden, low, high, activation, gaussian)
    raise TypeError(f"no policy for the action space {actions}: it must be Discrete or a Box with one axis")


# The same network is the same object, so that nothing is compiled twice for it.
@functools.cache
def categorical_mlp(inputs: int, hidden: tuple[int, ...], actions: int, activation: str, form: str = "paper") -> Policy:
    """pi(a | s) = softmax(tanh(MLP(s)))_a, or without the tanh if it is `plain`; an action is a whole number."""
    shapes = _mlp_shapes([inputs, *hidden, actions])
    act = _ACTIVATIONS[activation]

    def logits(params: Params, x: Array, xp: Any, dense: Dense) -> Array:
        for i in range(len(hidden)):
            x = act(dense(params[f"w{i}"], x) + column(params[f"b{i}"], x), xp)
        last = len(hidden)
        out = dense(params[f"w{last}"], x) + column(params[f"b{last}"], x)
        return xp.tanh(out) if form == "paper" else out

    return categorical(shapes, _drawn(shapes), actions, *_both(logits), _narrow(shapes))


@functools.cache
def gaussian_mlp(
    inputs: int, hidden: tuple[int, ...], low: tuple[float, ...], high: tuple[float, ...], activation: str, form: str
) -> Policy:
    """pi(a | s) = N(mean(s), diag(std(s)^2)), as `paper` or as `released` has it; an action is a vector [A].

    `paper`: mean = tanh(MLP(s)), std = exp(log_std), one trained number per action.
    `released`: two heads without bias on the last hidden layer, which has no activation itself;
    mean = tanh(head), std = tanh(exp(clip(head, -20, -2))), so std is at most 0.135.
    """
    size = len(low)
    act = _ACTIVATIONS[activation]
    if form == "released" and not hidden:
        raise ConfigError("gaussian 'released' puts its heads on a hidden layer: give hidden at least one")
    if form == "released":
        shapes = _mlp_shapes([inputs, *hidden]) | {"mean": (size, hidden[-1]), "std": (size, hidden[-1])}
    else:
        shapes = _mlp_shapes([inputs, *hidden, size]) | {"log_std": (size,)}

    def mean_std(params: Params, x: Array, xp: Any, dense: Dense) -> tuple[Array, Array]:
        for i in range(len(hidden)):
            x = dense(params[f"w{i}"], x) + column(params[f"b{i}"], x)
            x = act(x, xp) if form == "paper" or i < len(hidden) - 1 else x
        if form == "released":
            std = xp.tanh(xp.exp(xp.clip(dense(params["std"], x), -20.0, -2.0)))
            return xp.tanh(dense(params["mean"], x)), std
        last = len(hidden)
        mean = xp.tanh(dense(params[f"w{last}"], x) + column(params[f"b{last}"], x))
        return mean, xp.exp(column(params["log_std"], x))

    return gaussian(shapes, _drawn(shapes), low, high, *_both(mean_std), _narrow(shapes))


def draw_uniform(shapes: Shapes, key: Array) -> Array:
    """theta [D] with entries uniform in (-1/sqrt(n), 1/sqrt(n)), n the last axis of their tensor; log-stds are -2.

    The paper does not say how wide a Gaussian policy begins. exp(-2) is the width of the one of the released code;
    with 1, most actions of HalfCheetah are cut off at the ends of its box, and little is learnt.
    """
    keys = jax.random.split(key, len(shapes))
    parts = []
    for k, (name, shape) in zip(keys, shapes.items(), strict=True):
        bound = 1 / math.sqrt(shape[-1])
        drawn = jax.random.uniform(k, (math.prod(shape),), minval=-bound, maxval=bound)
        parts.append(jnp.full_like(drawn, -2.0) if name == "log_std" else drawn)
    return jnp.concatenate(parts)


def _drawn(shapes: Shapes) -> Callable[[Array], Array]:
    """`draw_uniform` as one program."""
    return jax.jit(functools.partial(draw_uniform, shapes))


def _both(network: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A network (params, x, xp, dense) as what acts (params, x, xp) and what learns (params, x)."""
    return (
        lambda params, x, xp: network(params, x, xp, _dense_narrow if xp is jnp else dense_in_tiles),
        lambda params, x: network(params, x, jnp, _dense_wide),
    )


def _narrow(shapes: Shapes) -> bool:
    return max(max(shape) for shape in shapes.values()) <= NARROW


def _mlp_shapes(sizes: Sequence[int]) -> Shapes:
    shapes: Shapes = {}
    for i, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        shapes |= {f"w{i}": (n_out, n_in), f"b{i}": (n_out,)}
    return shapes


def _dense_wide(w: Array, x: Array) -> Array:
    """W x as a matrix product: fastest over thousands of steps (gradients)."""
    return jnp.tensordot(w, x, axes=1)


def _dense_narrow(w: Array, x: Array) -> Array:
    """W x as a fused sum: fastest over a handful of episodes.

    For the layers of CartPole it also gives the same bits whatever their number; wider ones agree to rounding.
    """
    return jnp.sum(w.reshape(*w.shape, *(1,) * (x.ndim - 1)) * x, axis=1)


def _relu(x: Array, xp: Any) -> Array:
    return jax.nn.relu(x) if xp is jnp else xp.maximum(x, 0)  # their derivatives at 0 differ


Dense = Callable[..., Any]
_ACTIVATIONS: dict[str, Callable[[Array, Any], Array]] = {"relu": _relu, "tanh": lambda x, xp: xp.tanh(x)}
