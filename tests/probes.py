"""Small tasks whose values are known, and what the tests do with them."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array

from fedpg import Attack, Environment, Problem, Task, make_config, make_problem, make_task
from fedpg.agents import Answers, answer, first_memory
from fedpg.policies import Params, Policy, categorical_mlp, make_mlp
from fedpg.problem import Broadcast, make_broadcast
from fedpg.tasks import Episodes
from fedpg.tasks.task import SERVER, Act
from fedpg.training.rounds import first_state
from fedpg.trajectories import Trajectories

BUFFER = 50  # gradients walk over buffers in blocks of this many steps

# A task of 2 states and 2 actions over 3 steps. MOVES[s, a] are the probabilities of the next state 0, 1 and of the
# end, so that trajectories differ in length; START those of the first state.
HORIZON = 3
START = np.array([0.6, 0.4])
MOVES = np.array([[[0.5, 0.3, 0.2], [0.1, 0.9, 0.0]], [[0.25, 0.25, 0.5], [0.7, 0.2, 0.1]]])
REWARDS = np.array([[1.0, -0.5], [2.0, 0.3]])
GAMMA = 0.9


class Path(NamedTuple):
    """One trajectory of the task, with the part of its probability that is not the policy's."""

    states: tuple[int, ...]
    actions: tuple[int, ...]
    probability: float


def all_paths() -> list[Path]:
    """Every trajectory that can happen."""

    def extend(path: Path) -> list[Path]:
        state = path.states[-1]
        out = []
        for action in (0, 1):
            taken = path._replace(actions=(*path.actions, action))
            if len(taken.actions) == HORIZON:
                out.append(taken)
                continue
            *moves, end = MOVES[state, action]
            if end > 0:
                out.append(taken._replace(probability=taken.probability * end))
            for after, chance in enumerate(moves):
                out += extend(Path((*path.states, after), taken.actions, taken.probability * chance))
        return out

    return [path for s in (0, 1) for path in extend(Path((s,), (), float(START[s])))]


def tiny_policy() -> Policy:
    """A softmax policy with a hidden layer over the two states."""
    return categorical_mlp(2, (3,), 2, "tanh")


@functools.partial(jax.jit, static_argnums=0)
def two_parameters(policy: Policy) -> tuple[Array, Array]:
    """theta_0 and another theta_n, far enough apart for importance weights to matter."""
    theta_0 = 1.5 * policy.init(jax.random.key(3))
    return theta_0, theta_0 + 0.7 * jax.random.normal(jax.random.key(4), theta_0.shape)


def as_trajectories(paths: list[Path]) -> Trajectories:
    """The paths side by side, padded."""
    count = len(paths)
    observations = np.zeros((2, BUFFER, count), np.float32)
    actions = np.zeros((BUFFER, count), np.int32)
    rewards = np.zeros((BUFFER, count), np.float32)
    for i, path in enumerate(paths):
        for t, (s, a) in enumerate(zip(path.states, path.actions, strict=True)):
            observations[s, t, i] = 1.0
            actions[t, i] = a
            rewards[t, i] = REWARDS[s, a]
    lengths = np.array([len(path.actions) for path in paths], np.int32)
    return trajectories(observations, actions, rewards, lengths)


def trajectories(observations: Any, actions: Any, rewards: Any, lengths: Any, starts: Any = None) -> Trajectories:
    """Trajectories of which nobody asks how they ended: all by their task, in zeros."""
    features = observations.shape[0] if starts is None else observations.shape[1]
    end = np.ones(lengths.shape, bool), np.zeros((features, *lengths.shape), np.float32)
    return Trajectories(*map(single, (observations, actions, rewards, lengths, *end)), starts)


def single(values: Any) -> Any:
    """Values as JAX would have them, in single precision, but of NumPy."""
    values = np.asarray(values)
    return values.astype({"f": np.float32, "i": np.int32}.get(values.dtype.kind, values.dtype), copy=False)


def _as_arrays(paths: list[Path]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(states [HORIZON, n], actions [HORIZON, n], the part of each probability that is not the policy's [n])."""
    # Index 2 stands for "already ended", where the policy has no say.
    states, actions = (np.full((HORIZON, len(paths)), 2) for _ in range(2))
    for i, path in enumerate(paths):
        states[: len(path.states), i], actions[: len(path.actions), i] = path.states, path.actions
    return states, actions, np.array([path.probability for path in paths], np.float32)


def _chances(policy: Policy, params: Params, states: Any, actions: Any, outside: Any) -> Array:
    table = jnp.stack([jnp.exp(policy.log_prob(params, jnp.eye(2), jnp.full(2, a))) for a in (0, 1)], axis=1)
    padded = jnp.ones((3, 3)).at[:2, :2].set(table)
    return outside * jnp.prod(padded[states, actions], axis=0)


def _expected(policy: Policy, theta: Array, states: Any, actions: Any, outside: Any, returns: Any) -> Array:
    return _chances(policy, policy.unravel(theta), states, actions, outside) @ returns


_compiled_chances = jax.jit(_chances, static_argnums=0)
_compiled_expected = jax.jit(_expected, static_argnums=0)
_compiled_slope = jax.jit(jax.grad(_expected, argnums=1), static_argnums=0)


def probabilities(policy: Policy, params: Params, paths: list[Path]) -> Array:
    """p(tau | theta) of every path, multiplied out without the package's own sums.  [n]"""
    return _compiled_chances(policy, params, *_as_arrays(paths))


def _returns(paths: list[Path], gamma: float) -> np.ndarray:
    """The return of every path.  [n]"""
    steps = (enumerate(zip(path.states, path.actions, strict=True)) for path in paths)
    return np.array([sum(gamma**t * REWARDS[s, a] for t, (s, a) in each) for each in steps], np.float32)


def exact_return(policy: Policy, theta: Array, paths: list[Path], gamma: float = GAMMA) -> Array:
    """J(theta), by enumeration."""
    return _compiled_expected(policy, theta, *_as_arrays(paths), _returns(paths, gamma))


def exact_gradient(policy: Policy, theta: Array, paths: list[Path], gamma: float = GAMMA) -> Array:
    """grad J(theta), by differentiating the enumerated J."""
    return _compiled_slope(policy, theta, *_as_arrays(paths), _returns(paths, gamma))


def batches(trajectories: Trajectories, size: int) -> tuple[Trajectories, np.ndarray]:
    """Every batch of `size` of the given trajectories, batches first, and which ones are in it [n, size]."""
    members = np.array(list(itertools.product(range(trajectories.lengths.shape[0]), repeat=size)))
    return chosen(trajectories, members), members


def chosen(trajectories: Trajectories, members: np.ndarray) -> Trajectories:
    """The batches [n, ..., B] with the given members [n, B]."""
    return jax.tree.map(lambda x: np.moveaxis(np.asarray(x)[..., members], -2, 0), trajectories)


@functools.cache
def tiny_environment() -> Environment:
    """The same task to roll out; its chances are drawn at the start, so that a step is a pure function."""

    def reset(key: Array, parameters: Any) -> Any:
        draws = jax.random.uniform(key, (HORIZON + 1,))
        return {"state": (draws[0] >= START[0]).astype(jnp.int32), "step": jnp.int32(0), "draws": draws[1:]}

    def step(state: Any, action: Array, parameters: Any) -> Any:
        moves = jnp.asarray(MOVES, jnp.float32)[state["state"], action]
        after = jnp.sum(state["draws"][state["step"] % HORIZON] >= jnp.cumsum(moves)[:-1])
        reward = jnp.asarray(REWARDS, jnp.float32)[state["state"], action]
        moved = state | {"state": jnp.minimum(after, 1).astype(jnp.int32), "step": state["step"] + 1}
        return moved, reward, after == 2

    return Environment(
        id="tiny",
        reset=reset,
        step=step,
        observe=lambda state: jax.nn.one_hot(state["state"], 2),
        observations=2,
        actions=spaces.Discrete(2),
        limit=HORIZON,
    )


TARGET = np.array([0.6, -0.4], np.float32)


@functools.cache
def reaching_environment(steps: int = 3) -> Environment:
    """Choose a point: each step costs its squared distance to TARGET, so the best return is 0."""

    def step(state: Array, action: Array, parameters: Any) -> Any:
        return state + 1, -jnp.sum((action - TARGET) ** 2), state + 1 >= steps

    return Environment(
        id="reaching",
        reset=lambda key, parameters: jnp.int32(0),
        step=step,
        observe=lambda state: jnp.stack([jnp.float32(1.0), state / steps]),
        observations=2,
        actions=spaces.Box(-1.0, 1.0, (2,), np.float32),
        limit=steps,
    )


def tiny_problem(attack: str | Attack = "random-noise", **settings: Any) -> Problem:
    """The tiny task as a federation, small enough to be compiled quickly."""
    small = {"preset": "paper", "hidden": (3,), "batch": (3, 3), "minibatch": 2, "discount": GAMMA, "test_episodes": 1}
    small |= {"sigma": 10.0}
    named, own = ({"attack": attack}, None) if isinstance(attack, str) else ({}, attack)
    return make_problem(make_config(**small | settings | named), make_task(tiny_environment()), attack=own)


def broadcast(problem: Problem, round_: int = 1, batch: int | None = None, seed: int = 0) -> Broadcast:
    """What the server would send first in that round."""
    state = first_state(problem, seed)
    return make_broadcast(state.key, round_, problem.config.batch[1] if batch is None else batch, theta=state.theta)


def answers(problem: Problem) -> Callable[[Broadcast], Answers]:
    """A round of the problem's own agents, the last ones Byzantine, who remember nothing."""
    agents = np.arange(problem.config.agents)
    return lambda message: answer(problem, message, first_memory(problem, len(agents)), agents)[0]


class Given(NamedTuple):
    """A plan of exactly the episodes that are handed over."""

    steps: int
    noise_steps: int
    greedy: bool = False

    def __call__(self, these: Episodes) -> Episodes:
        return these._replace(keys=as_keys(these.keys), pool_keys=as_keys(these.pool_keys))


@functools.partial(jax.jit, static_argnums=1)
def _numbers(seed: int, count: int) -> Array:
    return jax.random.key_data(jax.random.split(jax.random.key(seed), count))


def keys_of(seed: int, count: int) -> np.ndarray:
    """So many keys as plain numbers, which NumPy can choose from.  [count, 2]"""
    return np.asarray(_numbers(seed, count))


def as_keys(given: Any) -> Array:
    """Keys, if they are not yet."""
    if jnp.issubdtype(given.dtype, jax.dtypes.prng_key):
        return given
    return jax.random.wrap_key_data(given)


def episodes(
    keys: Any,
    horizon: Any,
    byzantine: Any = False,
    agents: Any = SERVER,
    pool_keys: Any = None,
    resets: int = 0,
) -> Episodes:
    """Episodes that differ in little but their keys, which may be plain numbers."""

    def each(value: Any) -> Any:
        return np.broadcast_to(np.asarray(value), keys.shape[:1])

    return Episodes(
        keys=keys,
        horizon=each(horizon),
        agents=each(agents),
        byzantine=each(byzantine),
        pool_keys=keys if pool_keys is None else pool_keys,
        resets=np.asarray(resets),  # type: ignore[arg-type]
    )


def side_by_side(first: Episodes, second: Episodes) -> Episodes:
    """Both, their keys plain numbers; the first say how often their simulators have been reset."""
    each = {name: np.concatenate([getattr(x, name) for x in (first, second)]) for name in Episodes._fields[:-1]}
    return Episodes(**each, resets=first.resets)


def policy_for(task: Task, hidden: tuple[int, ...] = (16, 16), seed: int = 1) -> tuple[Policy, Params]:
    """A policy for a task, and its parameters, of NumPy."""
    policy = make_mlp(task.observations, task.actions, hidden, "tanh", "paper")
    return policy, policy.unravel(np.asarray(policy.init(jax.random.key(seed))))  # type: ignore[arg-type]


def play(
    task: Task,
    policy: Policy,
    params: Params,
    these: Episodes,
    steps: int,
    act: Act | None = None,
    greedy: bool = False,
) -> Trajectories:
    """These episodes, at most `steps` long, as arrays of NumPy."""
    played = task.rollout(policy, Given(steps, steps, greedy), flat(policy, params), (these,), act)
    return jax.tree.map(np.asarray, played)


def flat(policy: Policy, params: Params) -> Any:
    """Parameters as one vector.  [D]"""
    return np.concatenate([np.ravel(params[name]) for name in policy.shapes])
