"""The theorem's constants of a policy on a task, measured from a sample of its trajectories.

They are the largest values that were seen, so lower bounds of what the theorem means: its G, M, R, W and sigma hold for
every state, action and parameter.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces
from jax import Array

from fedpg.estimators import gradient, influences, log_probs
from fedpg.policies import Params
from fedpg.problem import Problem
from fedpg.server import ascend
from fedpg.tasks import RoundKeys, ServerEpisodes
from fedpg.trajectories import Trajectories

STATES = 256
"""How many visited states are looked at."""
ITERATIONS = 30
"""Of the power method."""


class Measured(NamedTuple):
    """What was seen."""

    G: float  # the largest ||grad log pi(a | s)||
    M: float  # the largest ||Hessian of log pi(a | s)||
    R: float  # the largest |reward|
    W: float  # Var omega after a round's mean number of steps along its gradient
    sigma: float  # the largest ||g(tau) - mean g||
    baseline: float  # |C_b| <= R with the leave-one-out baseline, 0 without
    start: float  # the mean discounted return of the policy itself
    trajectories: int


def measure(problem: Problem, theta: Array, trajectories: int = 64, seed: int = 0) -> Measured:
    """G, M, R, W and sigma of the policy theta [D] on its task."""
    params = problem.policy.unravel(theta)
    k_sample, k_weights = jax.random.split(jax.random.key(seed))
    sample = _roll(problem, theta, k_sample, trajectories)
    rows = jax.jit(lambda t: influences(problem.estimator, problem.policy, params, t))(sample)
    largest_score, largest_hessian = _derivatives(problem, params, *sample.some_steps(STATES))
    powers = problem.config.discount ** jnp.arange(sample.rewards.shape[0])[:, None]
    most = float(jnp.max(jnp.abs(sample.rewards)))
    return Measured(
        G=largest_score,
        M=largest_hessian,
        R=most,
        W=_weight_variance(problem, theta, sample, k_weights, trajectories),
        sigma=float(jnp.max(jnp.linalg.norm(rows, axis=1))),
        baseline=most if problem.config.baseline == "leave-one-out" else 0.0,
        start=float(jnp.mean(jnp.sum(powers * sample.rewards, axis=0))),
        trajectories=trajectories,
    )


def _roll(problem: Problem, theta: Array, key: Array, count: int) -> Trajectories:
    """That many trajectories as the server would sample them."""
    plan = ServerEpisodes(count, problem.steps)
    return problem.task.rollout(problem.policy, plan, theta, (RoundKeys(key, key, 0),))


def _derivatives(problem: Problem, params: Params, observations: Array, actions: Array) -> tuple[float, float]:
    """The largest norms of the first and second derivatives of log pi, at the given steps.

    Where actions are discrete, of every action; else of the ones taken. The spectral norm is by the power method.
    """
    policy, theta = problem.policy, problem.policy.ravel(params)
    space = problem.task.actions
    if isinstance(space, spaces.Discrete):
        count = int(space.n)
        observations = jnp.repeat(observations, count, axis=1)
        actions = jnp.tile(jnp.arange(count, dtype=actions.dtype), observations.shape[1] // count)

    def one(step: tuple[Array, Array]) -> tuple[Array, Array]:
        def log_pi(theta: Array) -> Array:
            return policy.log_prob(policy.unravel(theta), *step)

        def times(v: Array) -> Array:
            return jax.jvp(jax.grad(log_pi), (theta,), (v,))[1]

        def power(_: Array, v: Array) -> Array:
            w = times(v)
            return w / jnp.maximum(jnp.linalg.norm(w), 1e-30)

        start = jax.random.normal(jax.random.key(1), theta.shape)
        v = jax.lax.fori_loop(0, ITERATIONS, power, start / jnp.linalg.norm(start))
        return jnp.linalg.norm(jax.grad(log_pi)(theta)), jnp.linalg.norm(times(v))

    scores, hessians = jax.jit(lambda steps: jax.lax.map(one, steps, batch_size=64))((observations.T, actions.T))
    return float(jnp.max(scores)), float(jnp.max(hessians))


def _weight_variance(problem: Problem, theta: Array, sample: Trajectories, key: Array, count: int) -> float:
    """Var omega(tau | theta_n, theta_0), theta_n after B/b of the server's own steps along the sample's gradient."""
    config, policy = problem.config, problem.policy
    direction = jax.jit(lambda t: gradient(problem.estimator, policy, policy.unravel(theta), t))(sample)
    steps = max(1, round(sum(config.batch) / 2 / config.minibatch))
    moved, optimizer = theta, problem.optimizer.init(theta)
    for _ in range(steps):
        moved, optimizer = ascend(problem.optimizer, moved, optimizer, direction)
    after = _roll(problem, moved, key, count)

    def weights(t: Trajectories) -> Array:
        each = log_probs(policy, policy.unravel(theta), t) - log_probs(policy, policy.unravel(moved), t)
        return jnp.exp(jnp.sum(each, axis=0))

    return float(jnp.var(jax.jit(weights)(after), ddof=1))
