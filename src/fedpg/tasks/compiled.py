"""Tasks in JAX: compiled together with the policy that acts in them."""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from gymnasium import spaces
from jax import Array

from fedpg.errors import ConfigError, unknown
from fedpg.machine import cores
from fedpg.policies import Params, Policy
from fedpg.tasks.task import Act, Episodes, Plan, Task, Then
from fedpg.trajectories import BLOCK, Trajectories

State = Any
Parameters = Mapping[str, Any]
ALIVE, TERMINATED, CUT_OFF = range(3)
MOST = 2048
"""Episodes side by side: beyond this their buffers fall out of the cache."""


@dataclass(frozen=True, eq=False)
class Environment:
    """A task as pure functions of one episode, and of the numbers that may differ from agent to agent."""

    id: str
    reset: Callable[[Array, Parameters], State]
    """(key, parameters) -> the first state."""
    step: Callable[[State, Array, Parameters], tuple[State, Array, Array]]
    """(state, action, parameters) -> (next state, reward, terminated)."""
    observe: Callable[[State], Array]
    """state -> observation [F]."""
    observations: int
    actions: spaces.Space[Any]
    limit: int
    """The task's own limit of steps."""
    parameters: tuple[tuple[str, float], ...] = ()
    """Names and nominal values of what may be varied: gravity, a length, ..."""


def compiled_task(environment: Environment) -> Task:
    """The task of these functions."""
    return _task(environment, {}, {})


def check_environment(environment: Environment) -> None:
    """Try the functions on shapes alone, and say which of them does not return what it should."""
    parameters, name = dict(environment.parameters), environment.id
    if environment.limit < 1:
        raise ConfigError(f"{name}: limit must be 1 or more, not {environment.limit}")
    key = jax.random.key(0, impl="threefry2x32")
    state = jax.eval_shape(lambda: environment.reset(key, parameters))
    seen = jax.eval_shape(environment.observe, state)
    wanted = (environment.observations,)
    if getattr(seen, "shape", None) != wanted:
        raise ConfigError(f"{name}: observe must return an array of shape {wanted}, as observations says, not {seen}")
    discrete = isinstance(environment.actions, spaces.Discrete)
    action = jax.ShapeDtypeStruct(environment.actions.shape or (), jnp.int32 if discrete else jnp.float32)
    made: Any = jax.eval_shape(lambda state, action: environment.step(state, action, parameters), state, action)
    if not isinstance(made, tuple) or len(made) != 3:
        raise ConfigError(f"{name}: step must return (next state, reward, terminated), not {made}")
    after, reward, ended = made
    if jax.tree.map(lambda x: (x.shape, x.dtype), after) != jax.tree.map(lambda x: (x.shape, x.dtype), state):
        raise ConfigError(
            f"{name}: the state must have the same shapes and types after step, {after}, as before, {state}"
        )
    for what, value, kind in (("reward", reward, jnp.floating), ("terminated", ended, jnp.bool_)):
        if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, kind):
            words = "one number, of a floating type" if what == "reward" else "True or False"
            raise ConfigError(f"{name}: step must return as {what} {words}, not {value}")


Given = Mapping[str, Sequence[Any]]
"""Parameters, each with one value per agent."""


def _task(environment: Environment, agents: Given, server: Parameters) -> Task:
    table = _table(environment, agents, server) if agents or server else None

    def rollout(
        policy: Policy,
        plan: Plan,
        theta: Array,
        inputs: tuple[Any, ...],
        act: Act | None = None,
        cancel: threading.Event | None = None,
        then: Then | None = None,
        given: tuple[Any, ...] = (),
    ) -> Any:
        return _rollout(environment, policy, plan, act, then, theta, inputs, given, table)

    task = Task(
        id=environment.id,
        observations=environment.observations,
        actions=environment.actions,
        limit=environment.limit,
        simulator="",
        rollout=rollout,
        to_task=lambda actions: actions,
        vary=lambda given, nominal=MappingProxyType({}): _task(environment, {**agents, **given}, {**server, **nominal}),
        nominal=dict(environment.parameters),
        widths=_widths,
        most=MOST,
        side_by_side=lambda episodes: cores(),
        threads=_threads,
        beside_others=lambda: task,
        seconds={},
        varied=agents,
    )
    return task


def _table(environment: Environment, given: Given, server: Parameters) -> Array:
    """The parameters of every agent, and at the end the server's: its number, -1, finds them.

    [parameters, agents + 1]
    """
    nominal = dict(environment.parameters)
    for name in (*given, *server):
        if name not in nominal:
            raise unknown(f"parameter of {environment.id}", name, nominal)
    if len({len(values) for values in given.values()}) != 1:
        raise ConfigError("every parameter of a task needs one value per agent")
    count = len(next(iter(given.values())))
    rows = [
        [*(given[name] if name in given else [value] * count), server.get(name, value)]
        for name, value in nominal.items()
    ]
    try:
        table = jnp.array(rows, jnp.float32)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the parameters of {environment.id} must be numbers: {error}") from error
    return table


def _threads(policy: Policy) -> int:
    """As many as there are cores, if an episode is the same to the bit whoever is beside it."""
    return cores() if policy.alone else 1


def _widths(low: int, high: int) -> tuple[int, ...]:
    """Two of them: a small B_t need not pay for the largest; a third would gain nothing."""
    return tuple(sorted({(low + high) // 2, high}))


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _rollout(
    environment: Environment,
    policy: Policy,
    plan: Plan,
    act: Act | None,
    then: Then | None,
    theta: Array,
    inputs: tuple[Any, ...],
    given: tuple[Any, ...],
    table: Array | None,
) -> Any:
    """One compiled loop over time, all episodes side by side (for CartPole the same to the bit, however many)."""
    params = policy.unravel(theta)
    episodes = plan(*inputs)
    mine = roll(environment, policy, params, episodes, plan.steps, plan.greedy, plan.noise_steps, act, table)
    return mine if then is None else then(mine, *given)


def roll(
    environment: Environment,
    policy: Policy,
    params: Params,
    episodes: Episodes,
    steps: int,
    greedy: bool = False,
    noise_steps: int | None = None,
    act: Act | None = None,
    table: Array | None = None,
) -> Trajectories:
    """The episodes, at most `steps` long; pure, so that it can be compiled into something larger."""
    size = padded_steps(steps)
    keys = jax.vmap(lambda k: jax.random.split(k, 2))(episodes.keys)  # [N, 2]
    parameters: Any = dict(environment.parameters)  # plain numbers, so that the compiler sees constants
    if table is not None:
        parameters = {name: table[i, episodes.agents] for i, name in enumerate(parameters)}  # [N] each
    apart = None if table is None else 0
    reset = jax.vmap(environment.reset, in_axes=(0, apart), out_axes=-1)(keys[:, 0], parameters)
    noise = jax.vmap(lambda k: policy.noise(k, padded_steps(noise_steps or steps)), out_axes=-1)(keys[:, 1])
    noise = noise[:, :size]  # [n, T, N]
    horizon = jnp.minimum(episodes.horizon, steps)

    observe = jax.vmap(environment.observe, in_axes=-1, out_axes=-1)
    step = jax.vmap(environment.step, in_axes=(-1, -1, apart), out_axes=-1)

    def everyone(state: State, noise: Array) -> Any:
        observation = observe(state)
        action = policy.mode(params, observation) if greedy else policy.sample(params, observation, noise)
        if act is not None:
            action = jnp.where(episodes.byzantine, act(action, policy.random(noise)), action)
        return observation, action, *step(state, action, parameters)

    shapes = jax.eval_shape(everyone, reset, noise[:, 0])

    def buffer(shape: Any) -> Array:  # [..., N] -> [..., T, N]
        return jnp.zeros((*shape.shape[:-1], size, shape.shape[-1]), shape.dtype)

    def write(buffer: Array, t: Array, value: Array) -> Array:
        return jax.lax.dynamic_update_index_in_dim(buffer, value, t, axis=buffer.ndim - 2)

    def body(carry: Any) -> Any:
        t, state, status, lengths, observations, actions, rewards = carry
        now = jax.lax.dynamic_index_in_dim(noise, t, axis=1, keepdims=False)
        observation, action, after, reward, ended = everyone(state, now)
        alive = status == ALIVE
        observations = write(observations, t, observation)
        actions = write(actions, t, action)
        rewards = write(rewards, t, jnp.where(alive, reward, 0.0))
        # A finished episode keeps its last state: running on could overflow.
        state = jax.tree.map(lambda new, old: jnp.where(alive, new, old), after, state)
        lengths = lengths + alive
        over = jnp.where(ended, TERMINATED, jnp.where(lengths < horizon, ALIVE, CUT_OFF))
        return t + 1, state, jnp.where(alive, over, status).astype(jnp.int8), lengths, observations, actions, rewards

    status = jnp.where(horizon > 0, ALIVE, CUT_OFF).astype(jnp.int8)
    empty = (*(buffer(s) for s in shapes[:2]), buffer(shapes[3]))
    start = (jnp.int32(0), reset, status, jnp.zeros_like(horizon), *empty)
    end = jax.lax.while_loop(lambda carry: jnp.any(carry[2] == ALIVE), body, start)
    _, state, status, lengths, observations, actions, rewards = end
    return Trajectories(observations, actions, rewards, lengths, status == TERMINATED, observe(state))


def padded_steps(steps: int) -> int:
    """A whole number of blocks."""
    return -(-steps // BLOCK) * BLOCK
