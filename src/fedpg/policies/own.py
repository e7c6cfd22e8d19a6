"""A policy from any network in JAX: a function of its parameters and of one observation."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array

from fedpg.columns import TILE
from fedpg.errors import ConfigError
from fedpg.policies.policy import Params, Policy, categorical, gaussian

WIDE = 8 * TILE
"""Columns of a compiled call from Python: one width, so that it is compiled once."""

Init = Callable[[Array], Any]
"""key -> the parameters of one network: any tree of float32 arrays."""
Apply = Callable[[Any, Array], Any]
"""(those parameters, one observation [F]) -> what the network makes of it."""


def from_logits(init: Init, apply: Apply, observations: int, actions: spaces.Space[Any]) -> Policy:
    """pi(a | s) = softmax(apply(params, s))_a for your own network, with logits [A] for one observation [F]."""
    if not isinstance(actions, spaces.Discrete):
        raise ConfigError(f"a policy from logits chooses one of n actions, not one of {actions}: use from_gaussian")
    count = int(actions.n)
    shapes, draw, network = _own_network(init, apply, observations, [(count,)])
    return categorical(shapes, draw, count, *network)


def from_gaussian(init: Init, apply: Apply, observations: int, actions: spaces.Space[Any]) -> Policy:
    """pi(a | s) = N(mean, diag(std^2)) for your own network, with (mean [A], std [A]) for one observation [F]."""
    if not isinstance(actions, spaces.Box) or len(actions.shape) != 1:
        raise ConfigError(f"a Gaussian policy acts in a Box with one axis, not in {actions}: use from_logits")
    low, high = (tuple(map(float, end)) for end in (actions.low, actions.high))
    shapes, draw, network = _own_network(init, apply, observations, [actions.shape] * 2)
    return gaussian(shapes, draw, low, high, *network)


def _own_network(init: Init, apply: Apply, observations: int, wanted: list[Any]) -> tuple[Any, Any, tuple[Any, Any]]:
    """(the shapes of its tensors, key -> theta, the network to act and the network to learn) for a user's network."""
    like = init(jax.random.key(0))
    leaves, tree = jax.tree_util.tree_flatten_with_path(like)
    for path, leaf in leaves:
        if getattr(leaf, "dtype", None) != jnp.float32:
            raise ConfigError(
                f"the parameters of a policy are float32 arrays, and {jax.tree_util.keystr(path)} is {leaf!r:.80}: let "
                "init leave it out (with Equinox: equinox.filter(model, equinox.is_inexact_array))"
            )
    shapes = {jax.tree_util.keystr(path) or "theta": leaf.shape for path, leaf in leaves}
    made = jax.eval_shape(apply, like, jax.ShapeDtypeStruct((observations,), jnp.float32))
    if (found := [y.shape for y in jax.tree.leaves(made)]) != wanted:
        raise ConfigError(f"of an observation of {observations} numbers, apply makes shapes {found}, not {wanted}")

    def learn(params: Params, x: Array) -> Any:
        one = functools.partial(apply, jax.tree.unflatten(tree, [params[name] for name in shapes]))
        if x.ndim == 1:
            return one(x)
        out = jax.vmap(one, in_axes=-1, out_axes=-1)(x.reshape(x.shape[0], -1))
        return jax.tree.map(lambda y: y.reshape(*y.shape[:-1], *x.shape[1:]), out)

    def act(params: Params, x: Array, xp: Any) -> Any:
        return learn(params, x) if xp is jnp else _from_python(learn, params, x)

    def draw(key: Array) -> Array:
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(init(key))])

    return shapes, draw, (act, learn)


def _from_python(network: Callable[[Params, Array], Any], params: Params, x: Any) -> Any:
    """A compiled network for columns [F, ...] of NumPy."""
    columns = x.reshape(len(x), -1)
    count = columns.shape[1]
    parts = []
    for first in range(0, count, WIDE):
        some = np.zeros((len(x), WIDE), np.float32)
        here = min(WIDE, count - first)
        some[:, :here] = columns[:, first : first + here]
        out = _tile_by_tile(network, params, some, -(-here // TILE))
        parts.append(jax.tree.map(lambda y, here=here: np.asarray(y)[..., :here], out))
    return jax.tree.map(lambda *ys: np.concatenate(ys, axis=-1).reshape(*ys[0].shape[:-1], *x.shape[1:]), *parts)


@functools.partial(jax.jit, static_argnums=0)
def _tile_by_tile(network: Callable[[Params, Array], Any], params: Params, x: Array, tiles: Array) -> Any:
    """Of columns [F, WIDE], as many tiles as are wanted: all in the same loop, so that a column's number is nothing."""

    def tile(i: Array) -> Any:
        return network(params, jax.lax.dynamic_slice_in_dim(x, i * TILE, TILE, axis=1))

    def body(i: Array, out: Any) -> Any:
        return jax.tree.map(
            lambda y, new: jax.lax.dynamic_update_slice_in_dim(y, new, i * TILE, axis=new.ndim - 1), out, tile(i)
        )

    empty = jax.tree.map(lambda y: jnp.zeros((*y.shape[:-1], WIDE), y.dtype), jax.eval_shape(tile, 0))
    return jax.lax.fori_loop(0, tiles, body, empty)
