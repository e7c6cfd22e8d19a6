"""A cohort of agents answers a broadcast: parameters in, [K, D] gradients out. K = 1 at a site, the same code."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpg.attacks import Attack, make_attack
from fedpg.config import Config, ConfigError
from fedpg.environments import Environment, Lanes, Pool, join, lanes, make_environment, rollout
from fedpg.estimators import Estimator, gradient, make_estimator
from fedpg.policies import Policy, make_policy
from fedpg.trajectories import Trajectories

MAX_LANES = 2048
"""Compiled episodes rolled out side by side: beyond this their buffers fall out of the cache."""
MAX_POOLED = 600
"""The same for a simulator outside JAX, where a MuJoCo environment takes a megabyte; ten agents fit in one."""


class Problem(NamedTuple):
    """What an agent and the server agree on before the first round."""

    config: Config
    environment: Environment | Pool
    policy: Policy
    estimator: Estimator
    attack: Attack

    @property
    def steps(self) -> int:
        """The longest trajectory in training."""
        return min(self.config.horizon, self.environment.limit)

    def to_task(self, actions: np.ndarray) -> np.ndarray:
        """The policy's actions [n] or [n, A], or one of them, as the task takes them."""
        return self.environment.to_task(actions) if isinstance(self.environment, Pool) else actions

    @property
    def test_steps(self) -> int:
        """The longest trajectory in evaluation."""
        return min(self.config.test_horizon, self.environment.limit)


def make_problem(
    config: Config, environment: Environment | Pool | None = None, attack: Attack | None = None
) -> Problem:
    """The settings, with everything they name looked up."""
    environment = environment or make_environment(config.task)
    policy = make_policy(config, environment.observations, environment.actions)
    return Problem(config, environment, policy, make_estimator(config), attack or make_attack(config))


class Broadcast(NamedTuple):
    """What the server sends (line 3)."""

    theta: Array  # [D]
    round: Array  # from 1
    batch: Array  # B_t
    key: Array  # of the round; each agent and episode derives its own from it
    season: Array  # a key that SEASON rounds share

    @property
    def turn(self) -> Array:
        """Which round of its season this is, from 0."""
        return (self.round - 1) % SEASON


SEASON = 16
"""A simulator whose environments are slow to make keeps them so many rounds (see `fedpg.environments.pool`)."""


def make_broadcast(theta: Array, run_key: Array, round_: Array, batch: Array) -> Broadcast:
    """What the server sends in a round of the run with that key."""
    season = jax.random.fold_in(stream(run_key, "season"), (round_ - 1) // SEASON)
    return Broadcast(theta, round_, batch, jax.random.fold_in(run_key, round_), season)


STATUSES = (
    *("answered", "no answer", "wrong length", "not finite"),
    # These can only happen between machines.
    *("failed at the site", "wrong type", "wrong round", "too large"),
)
"""What the border check said of a reply. Only those that answered reach a filter."""
OUTCOMES = ("accepted", "turned away", "not judged", "unusable", "failed", "absent")
"""What became of an agent in a round: the words of all records and tables."""


def outcome_of(status: str, accepted: bool | None) -> str:
    """One of OUTCOMES, by one of STATUSES and the aggregator's verdict; None if no aggregator ran."""
    if status == "no answer":
        return "absent"
    if status == "failed at the site":
        return "failed"
    if status != "answered":
        return "unusable"
    if accepted is None:
        return "not judged"
    return "accepted" if accepted else "turned away"


class Replies(NamedTuple):
    """What the K expected agents sent, as it arrived."""

    gradients: Array  # [K, D]
    lengths: Array  # [K]: how many numbers arrived, 0 for no answer
    faults: Array | None = None  # [K]: index into STATUSES of what kept a message from being read, 0 for nothing

    @property
    def status(self) -> Array:
        """The index into STATUSES of each reply.  [K]"""
        finite = jnp.all(jnp.isfinite(self.gradients), axis=1)
        wrong = self.lengths != self.gradients.shape[1]
        status = jnp.where(self.lengths == 0, 1, jnp.where(wrong, 2, jnp.where(finite, 0, 3)))
        return status if self.faults is None else jnp.where(self.faults > 0, self.faults, status)


class Answers(NamedTuple):
    """What comes back from a cohort, and what a simulation may know beyond that."""

    replies: Replies
    returns: Array  # [K]: mean training return of each agent
    steps: Array  # [K]: environment steps of each agent


# One stream of randomness for each use, so that none depends on how much another draws.
STREAMS = ("agent", "attack", "batch", "inner steps", "server", "evaluation", "output", "rewards", "season")


def stream(key: Array, name: str) -> Array:
    """The key of one use of randomness within a round."""
    return jax.random.fold_in(key, STREAMS.index(name))


def agent_keys(key: Array, agents: Array) -> Array:
    """One key per agent, by its number."""
    return jax.vmap(lambda agent: jax.random.fold_in(key, agent))(agents)


def episode_keys(key: Array, episodes: int) -> Array:
    """One key per episode; the i-th does not depend on how many there are."""
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(episodes))


def answer(
    problem: Problem, broadcast: Broadcast, agents: Array, byzantine: Array, own: Lanes | None = None
) -> tuple[Answers, Trajectories | None]:
    """Lines 4 to 6 for the agents with the given numbers [K], `byzantine` [K] of them.

    `own` are episodes of the server itself, rolled out in the same batch because that costs next to nothing.
    """
    attacking = byzantine & (broadcast.round >= problem.config.attack_start)
    widths = lane_widths(*problem.config.batch)
    if isinstance(problem.environment, Pool):  # only the lanes that are used cost anything
        widths = widths[-1:]
    branches = [functools.partial(_cohort, problem, broadcast, agents, attacking, own, width) for width in widths]
    which = jnp.searchsorted(jnp.array(widths), broadcast.batch)
    gradients, returns, steps, own_trajectories = jax.lax.switch(which, branches)
    sent = _messages(problem, broadcast, agents, gradients, attacking)
    return Answers(sent, returns, steps), own_trajectories


def lane_widths(low: int, high: int) -> tuple[int, ...]:
    """The numbers of lanes per agent that are compiled: a small B_t need not pay for the largest.

    Two of them: a sixth less time per round for 2 s more of compiling; a third would gain nothing.
    """
    return tuple(sorted({(low + high) // 2, high}))


def _cohort(
    problem: Problem, broadcast: Broadcast, agents: Array, attacking: Array, own: Lanes | None, width: int
) -> tuple[Array, Array, Array, Trajectories | None]:
    """The work of all agents, as many at a time as MAX_LANES allows."""
    count = agents.shape[0]
    most = MAX_POOLED if isinstance(problem.environment, Pool) else MAX_LANES
    size = min(count, max(1, most // width))
    chunks = -(-count // size)
    if chunks == 1:
        return _work(problem, broadcast, agents, attacking, own, width)
    padding = chunks * size - count  # beyond the last agent: number -1, empty lanes
    numbers = jnp.concatenate([agents, jnp.full((padding,), -1, agents.dtype)]).reshape(chunks, size)
    flags = jnp.concatenate([attacking, jnp.zeros((padding,), bool)]).reshape(chunks, size)
    chunk = jax.lax.map(lambda x: _work(problem, broadcast, x[0], x[1], None, width)[:3], (numbers, flags))
    gradients, returns, steps = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:count], chunk)
    params = problem.policy.unravel(broadcast.theta)
    return gradients, returns, steps, None if own is None else _roll(problem, params, own)


def _work(
    problem: Problem, broadcast: Broadcast, agents: Array, attacking: Array, own: Lanes | None, width: int
) -> tuple[Array, Array, Array, Trajectories | None]:
    """Trajectories and gradients, with dishonest actions and rewards where the attack has those."""
    count = agents.shape[0]
    params = problem.policy.unravel(broadcast.theta)
    cohort = agent_lanes(problem, broadcast, agents, attacking, width)
    everyone = _roll(problem, params, cohort if own is None else join(cohort, own))
    own_trajectories = None if own is None else everyone.take(count * width, own.keys.shape[0])

    def by_agent(x: Array) -> Array:  # [..., N] -> [..., K, B]
        return x[..., : count * width].reshape(*x.shape[:-1], count, width)

    trajectories = everyone._replace(rewards=by_agent(everyone.rewards), lengths=by_agent(everyone.lengths))
    learnt_from = trajectories
    if problem.attack.rewards is not None:
        keys = agent_keys(stream(broadcast.key, "rewards"), agents)
        believe = problem.attack.rewards
        believed = jax.lax.map(lambda x: believe(x[0], everyone.take(x[1] * width, width)), (keys, jnp.arange(count)))
        believed = jnp.moveaxis(believed, 0, 1)  # [T, K, B]
        learnt_from = trajectories._replace(rewards=jnp.where(attacking[:, None], believed, trajectories.rewards))
    # The weights of all agents at once (a scan over time), the gradients agent by agent (each fits the cache).
    weights = problem.estimator.weights(learnt_from)  # [T, K, B]

    def one(k: Array) -> Array:
        w = jax.lax.dynamic_index_in_dim(weights, k, 1, keepdims=False)
        return gradient(problem.estimator, problem.policy, params, everyone.take(k * width, width), w)

    gradients = jax.lax.map(one, jnp.arange(count))  # [K, D]
    episodes = jnp.maximum(jnp.sum(trajectories.lengths > 0, axis=-1), 1)
    returns = jnp.sum(trajectories.returns, axis=-1) / episodes
    return gradients, returns, jnp.sum(trajectories.lengths, axis=-1), own_trajectories


def agent_lanes(problem: Problem, broadcast: Broadcast, agents: Array, attacking: Array, width: int) -> Lanes:
    """`width` lanes per agent, the first B_t of them used; key by (seed, round, agent, episode)."""

    def keys(key: Array) -> Array:
        each = agent_keys(stream(key, "agent"), agents)
        return jax.vmap(lambda key: episode_keys(key, width))(each).reshape(-1)  # [K * width]

    wanted = (jnp.arange(width) < broadcast.batch) & (agents >= 0)[:, None]
    return lanes(
        keys(broadcast.key),
        horizon=jnp.where(wanted, problem.steps, 0).reshape(-1),
        byzantine=jnp.repeat(attacking, width),
        origins=keys(broadcast.season),
        turn=broadcast.turn,
    )


def _roll(problem: Problem, params: dict[str, Array], everyone: Lanes) -> Trajectories:
    steps = max(problem.steps, problem.test_steps)
    return rollout(problem.environment, problem.policy, params, everyone, steps, problem.attack.act)


def _messages(problem: Problem, broadcast: Broadcast, agents: Array, gradients: Array, attacking: Array) -> Replies:
    count, size = gradients.shape
    sent, lengths = gradients, jnp.full((count,), size)
    if problem.attack.message is not None:
        keys = agent_keys(stream(broadcast.key, "attack"), agents)
        try:
            lies = problem.attack.message(keys, gradients, attacking, problem.policy.tensors)
        except TypeError as error:
            raise ConfigError(f"the attack failed as attack(keys, gradients, byzantine, tensors): {error}") from error
        if getattr(lies, "shape", None) != gradients.shape:
            got = getattr(lies, "shape", type(lies).__name__)
            raise ConfigError(
                f"the attack returned {got}; it must return what all agents send, an array of shape {gradients.shape}"
            )
        sent = jnp.where(attacking[:, None], lies, gradients)
    if problem.attack.length is not None:
        lengths = jnp.where(attacking, problem.attack.length(size), size)
    return Replies(sent, lengths)
