"""Tasks in JAX: compiled together with the policy that acts in them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces
from jax import Array

from fedpg.policies import Params, Policy
from fedpg.trajectories import Trajectories

State = Any
BLOCK = 50
"""Buffers hold a multiple of this many steps, so that gradients can walk over them in blocks."""


class Environment(NamedTuple):
    """A task as pure functions of one episode, compiled together with the policy that acts in it."""

    id: str
    reset: Callable[[Array], State]
    """key -> the first state."""
    step: Callable[[State, Array], tuple[State, Array, Array]]
    """(state, action) -> (next state, reward, terminated)."""
    observe: Callable[[State], Array]
    """state -> observation [F]."""
    observations: int
    actions: spaces.Space[Any]
    limit: int
    """The task's own limit of steps."""


class Lanes(NamedTuple):
    """N episodes to roll out side by side."""

    keys: Array  # [N]: all the randomness of an episode comes from its key
    horizon: Array  # [N]: steps after which it is cut off; 0 for a lane that stays empty
    greedy: Array  # [N]: act by the policy's mode (evaluation)
    byzantine: Array  # [N]: act as the attack says, where it has a say in actions
    origins: Array  # [N]: keys of whole series of episodes; a simulator that cannot be reseeded cheaply begins with
    turns: Array  # [N]: the so-many-th first state of that series (from 0), instead of drawing it by `keys`


def lanes(
    keys: Array,
    horizon: Array | int,
    greedy: bool = False,
    byzantine: Array | bool = False,
    origins: Array | None = None,
    turn: Array | int = 0,
) -> Lanes:
    """Lanes of episodes that differ in little but their keys."""

    def each(value: Array | int | bool) -> Array:
        return jnp.broadcast_to(jnp.asarray(value), keys.shape)

    return Lanes(keys, each(horizon), each(greedy), each(byzantine), keys if origins is None else origins, each(turn))


def join(first: Lanes, second: Lanes) -> Lanes:
    """Both, side by side."""
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, second)


def compiled_rollout(
    environment: Environment,
    policy: Policy,
    params: Params,
    lanes: Lanes,
    steps: int,
    act: Callable[[Array, Array], Array] | None = None,
) -> Trajectories:
    """`rollout` as one compiled loop over time, all lanes side by side (for CartPole the same to the bit)."""
    size = -(-steps // BLOCK) * BLOCK
    keys = jax.vmap(lambda k: jax.random.split(k, 2))(lanes.keys)  # [N, 2]
    state = jax.vmap(environment.reset, out_axes=-1)(keys[:, 0])
    noise = jax.vmap(lambda k: policy.noise(k, size), out_axes=-1)(keys[:, 1])  # [n, T, N]
    horizon = jnp.minimum(lanes.horizon, steps)

    observe = jax.vmap(environment.observe, in_axes=-1, out_axes=-1)
    step = jax.vmap(environment.step, in_axes=-1, out_axes=-1)

    def every_lane(state: State, noise: Array) -> Any:
        observation = observe(state)
        action = policy.sample(params, observation, noise)
        action = jnp.where(lanes.greedy, policy.mode(params, observation), action)
        if act is not None:
            action = jnp.where(lanes.byzantine, act(action, policy.random(noise)), action)
        return observation, action, *step(state, action)

    shapes = jax.eval_shape(every_lane, state, noise[:, 0])

    def buffer(shape: Any) -> Array:  # [..., N] -> [..., T, N]
        return jnp.zeros((*shape.shape[:-1], size, shape.shape[-1]), shape.dtype)

    def write(buffer: Array, t: Array, value: Array) -> Array:
        return jax.lax.dynamic_update_index_in_dim(buffer, value, t, axis=buffer.ndim - 2)

    def body(carry: Any) -> Any:
        t, state, alive, lengths, observations, actions, rewards = carry
        now = jax.lax.dynamic_index_in_dim(noise, t, axis=1, keepdims=False)
        observation, action, after, reward, ended = every_lane(state, now)
        observations = write(observations, t, observation)
        actions = write(actions, t, action)
        rewards = write(rewards, t, jnp.where(alive, reward, 0.0))
        # A finished episode keeps its last state: running on could overflow.
        state = jax.tree.map(lambda new, old: jnp.where(alive, new, old), after, state)
        lengths = lengths + alive
        alive = alive & ~ended & (lengths < horizon)
        return t + 1, state, alive, lengths, observations, actions, rewards

    alive = horizon > 0
    start = (
        jnp.int32(0),
        state,
        alive,
        jnp.zeros_like(horizon),
        *(buffer(s) for s in shapes[:2]),
        buffer(shapes[3]),
    )
    end = jax.lax.while_loop(lambda carry: jnp.any(carry[2]), body, start)
    _, _, _, lengths, observations, actions, rewards = end
    return Trajectories(observations, actions, rewards, lengths)
