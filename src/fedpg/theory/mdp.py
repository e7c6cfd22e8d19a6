"""Small tabular MDPs with softmax policies: J, its gradient and its curvature exactly, by dynamic programming.

theta is a table [S, A], pi(a | s) = softmax(theta[s])_a. Every state-action pair has a few successors, so that a step
of a simulated episode costs two small lookups. Policy and trajectories are the package's own records, with the state's
number as the observation, so that its estimators take them.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpg.policies import Params, Policy, draw_uniform
from fedpg.trajectories import Trajectories


class Tabular(NamedTuple):
    """A finite MDP of a fixed horizon; rewards lie in [0, 1]."""

    successors: Array  # [S, A, J]: the states that may follow
    chances: Array  # [S, A, J]: their probabilities
    rewards: Array  # [S, A]
    start: Array  # [S]: rho
    horizon: int
    discount: float

    @property
    def states(self) -> int:
        """S."""
        return self.rewards.shape[0]

    @property
    def actions(self) -> int:
        """A."""
        return self.rewards.shape[1]

    @property
    def size(self) -> int:
        """D, the number of parameters."""
        return self.states * self.actions

    @property
    def policy(self) -> Policy:
        """The softmax policy over its states and actions."""
        return table_policy(self.states, self.actions)


# The same table is the same object, so that nothing is compiled twice for it.
@functools.cache
def table_policy(states: int, actions: int) -> Policy:
    """pi(a | s) = softmax(table[s])_a; an observation [1, ...] is the number of the state."""

    def sample(params: Params, observations: Array, noise: Array, xp: Any = jnp) -> Array:
        odds = xp.exp(params["table"] - params["table"].max(axis=1, keepdims=True))
        cumulative = (odds / odds.sum(axis=1, keepdims=True)).cumsum(axis=1)[:, :-1].T  # [A - 1, S]
        return (noise[0] >= cumulative[:, observations[0]]).sum(axis=0, dtype=xp.int32)

    def mode(params: Params, observations: Array, xp: Any = jnp) -> Array:
        return xp.argmax(params["table"], axis=1).astype(xp.int32)[observations[0]]

    def log_prob(params: Params, observations: Array, chosen: Array) -> Array:
        # One lookup in a flat table: its derivative is a count of the visits to each pair, and no product.
        log_p = jax.nn.log_softmax(params["table"], axis=1).ravel()
        return log_p.at[observations[0] * actions + chosen].get(mode="promise_in_bounds")

    def kl(params: Params, others: Params, observations: Array) -> Array:
        log_p, log_q = (jax.nn.log_softmax(x["table"], axis=1) for x in (params, others))
        return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=1)[observations[0]]

    shapes: dict[str, tuple[int, ...]] = {"table": (states, actions)}
    return Policy(
        shapes=shapes,
        init=functools.partial(draw_uniform, shapes),
        noise=lambda key, steps: jax.random.uniform(key, (1, steps)),
        sample=sample,
        mode=mode,
        log_prob=log_prob,
        random=lambda noise: jnp.minimum(noise[0] * actions, actions - 1).astype(jnp.int32),
        kl=kl,
    )


def values(mdp: Tabular, theta: Array) -> tuple[Array, Array]:
    """V_h(s) and Q_h(s, a) by backward induction: Q_h = r + gamma P V_{h+1}, V_h = sum_a pi Q_h.  [H, S], [H, S, A]"""
    policy = jax.nn.softmax(theta)

    def back(later: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        q = mdp.rewards + mdp.discount * jnp.sum(mdp.chances * later[mdp.successors], axis=-1)
        v = jnp.sum(policy * q, axis=1)
        return v, (v, q)

    _, (v, q) = jax.lax.scan(back, jnp.zeros(mdp.states), None, length=mdp.horizon, reverse=True)
    return v, q


def occupancy(mdp: Tabular, theta: Array) -> Array:
    """d_h(s): the probability of state s at time h.  [H, S]"""
    policy = jax.nn.softmax(theta)

    def forward(now: Array, _: None) -> tuple[Array, Array]:
        flow = (now[:, None] * policy)[:, :, None] * mdp.chances  # [S, A, J]
        return jnp.zeros(mdp.states).at[mdp.successors].add(flow), now

    return jax.lax.scan(forward, mdp.start, None, length=mdp.horizon)[1]


def exact_return(mdp: Tabular, theta: Array) -> Array:
    """J(theta) = sum_s rho(s) V_0(s)."""
    return mdp.start @ values(mdp, theta)[0][0]


def exact_gradient(mdp: Tabular, theta: Array) -> Array:
    """grad J(theta)[s, a] = sum_h gamma^h d_h(s) pi(a | s) (Q_h(s, a) - V_h(s)).  [S, A]"""
    v, q = values(mdp, theta)
    weight = mdp.discount ** jnp.arange(mdp.horizon)[:, None] * occupancy(mdp, theta)  # [H, S]
    return jax.nn.softmax(theta) * jnp.einsum("hs,hsa->sa", weight, q - v[:, :, None])


def best_return(mdp: Tabular) -> Array:
    """The largest J of any policy, by backward induction; a stationary softmax policy can at most come close."""

    def back(later: Array, _: None) -> tuple[Array, None]:
        q = mdp.rewards + mdp.discount * jnp.sum(mdp.chances * later[mdp.successors], axis=-1)
        return jnp.max(q, axis=1), None

    return mdp.start @ jax.lax.scan(back, jnp.zeros(mdp.states), None, length=mdp.horizon)[0]


def curvature(mdp: Tabular, theta: Array) -> Array:
    """||Hessian of J||, the local constant of smoothness, by its eigenvalues."""
    hessian = jax.hessian(lambda flat: exact_return(mdp, flat.reshape(theta.shape)))(theta.ravel())
    return jnp.max(jnp.abs(jnp.linalg.eigvalsh(hessian)))


Act = Callable[[Array, Array], Array]


def simulate(
    mdp: Tabular,
    theta: Array,
    key: Array,
    episodes: int,
    act: Act | None = None,
    byzantine: Array | bool = False,
    wanted: Array | bool = True,
) -> Trajectories:
    """That many episodes of the policy theta [S, A], of length H if they are `wanted` [B], and else of length 0.

    In episodes that are `byzantine` [B] the action is `act(action, a uniformly random action)`.
    """
    policy, params = mdp.policy, {"table": theta}
    k_start, k_steps = jax.random.split(key)
    moves = jnp.cumsum(mdp.chances, axis=-1)[..., :-1].reshape(mdp.size, -1).T  # [J - 1, S A]
    successors, rewards = mdp.successors.reshape(mdp.size, -1), mdp.rewards.ravel()
    draws = jax.random.uniform(k_steps, (mdp.horizon, 2, episodes))
    first = jax.random.uniform(k_start, (episodes,))
    state = jnp.searchsorted(jnp.cumsum(mdp.start)[:-1], first, side="right").astype(jnp.int32)

    def step(state: Array, draw: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        action = policy.sample(params, state[None], draw[:1])
        if act is not None:
            action = jnp.where(byzantine, act(action, policy.random(draw[:1])), action)
        pair = state * mdp.actions + action
        which = jnp.sum(draw[1] >= moves[:, pair], axis=0, dtype=jnp.int32)
        return successors[pair, which], (state, action, rewards[pair])

    last, (states, actions, got) = jax.lax.scan(step, state, draws)
    there = jnp.broadcast_to(wanted, (episodes,))
    return Trajectories(
        observations=states[None],
        actions=actions,
        rewards=jnp.where(there, got, 0.0),
        lengths=jnp.where(there, mdp.horizon, 0).astype(jnp.int32),
        terminated=jnp.zeros(episodes, bool),  # cut off by the horizon
        last=last[None],
    )


def ascent(mdp: Tabular, step: float, steps: int) -> Array:
    """theta along exact gradient ascent from the uniform policy: where a perfect learner would go.  [steps, S, A]"""

    def climb(theta: Array, _: None) -> tuple[Array, Array]:
        return theta + step * exact_gradient(mdp, theta), theta

    return jax.lax.scan(climb, jnp.zeros((mdp.states, mdp.actions)), None, length=steps)[1]


def chain(states: int = 10, horizon: int = 10, discount: float = 0.9, slip: float = 0.1) -> Tabular:
    """A corridor: left or right, the wrong way with probability `slip`; its right end pays 1, its left end 0.2."""
    here = np.arange(states)
    left, right = np.maximum(here - 1, 0), np.minimum(here + 1, states - 1)
    successors = np.stack([np.stack([left, right], -1), np.stack([right, left], -1)], 1)
    chances = np.broadcast_to([1 - slip, slip], successors.shape)
    rewards = np.zeros((states, 2))
    rewards[-1], rewards[0] = 1.0, 0.2
    return _tabular(successors, chances, rewards, np.full(states, 1 / states), horizon, discount)


def grid(side: int = 4, horizon: int = 20, discount: float = 0.8, slip: float = 0.2) -> Tabular:
    """A square: four directions, to either side of the chosen one with probability `slip` in all.

    The last corner pays 1, and sends back to the first one.
    """
    x, y = np.divmod(np.arange(side * side), side)
    moves = [(1, 0), (0, 1), (-1, 0), (0, -1)]
    to = np.stack([np.clip(x + i, 0, side - 1) * side + np.clip(y + j, 0, side - 1) for i, j in moves], 1)
    to[-1] = 0
    successors = np.stack([to[:, [a, (a + 1) % 4, (a - 1) % 4]] for a in range(4)], 1)
    chances = np.broadcast_to([1 - slip, slip / 2, slip / 2], successors.shape)
    rewards = np.zeros((side * side, 4))
    rewards[-1] = 1.0
    return _tabular(successors, chances, rewards, np.full(side * side, 1 / side**2), horizon, discount)


def garnet(states: int = 30, actions: int = 3, horizon: int = 10, discount: float = 0.5, seed: int = 0) -> Tabular:
    """A random MDP: three random successors of each pair, and a reward in [0, 1] for one pair in five."""
    random = np.random.default_rng(seed)
    successors = random.integers(states, size=(states, actions, 3))
    chances = random.dirichlet(np.ones(3), size=(states, actions))
    rewards = random.uniform(size=(states, actions)) * (random.uniform(size=(states, actions)) < 0.2)
    return _tabular(successors, chances, rewards, np.full(states, 1 / states), horizon, discount)


def _tabular(
    successors: np.ndarray, chances: np.ndarray, rewards: np.ndarray, start: np.ndarray, horizon: int, discount: float
) -> Tabular:
    f32 = jnp.float32
    return Tabular(
        jnp.asarray(successors, jnp.int32),
        jnp.asarray(chances, f32),
        jnp.asarray(rewards, f32),
        jnp.asarray(start, f32),
        horizon,
        discount,
    )


MDPS: dict[str, Callable[[], Tabular]] = {"chain": chain, "grid": grid, "garnet": garnet}
