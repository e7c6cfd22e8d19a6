"""Policy-gradient estimators: from trajectories to gradients.

Every estimator here has the form  sum_t w_t grad log pi(a_t | s_t)  and differs in its weights w [T, B] alone, the
importance-weighted ones included. So there is one function of weights per estimator, and one gradient for all.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.policies import Params, Policy
from fedpg.trajectories import Trajectories, reward_to_go
from fedpg.values import advantages


class Estimator(NamedTuple):
    """g(tau | theta), averaged over a batch."""

    weights: Callable[[Trajectories], Array]
    """trajectories -> w [T, B]; of the batches of K agents at once, w [T, K, B]."""
    corrected: Callable[[Trajectories, Array], Array]
    """(trajectories of another policy, log pi_theta(a | s) - log pi_other(a | s) [T, B]) -> w [T, B]."""
    per_step: bool
    """Average over all time steps of the batch (`released`) instead of over its episodes (`paper`)."""
    step_ratios: bool
    """Importance weights are of time steps instead of whole trajectories."""
    looks: bool
    """The weights depend on observations too: they must be asked for batch by batch."""


# The same estimator is the same object, so that nothing is compiled twice for it.
@functools.cache
def make_estimator(
    form: str, gamma: float, baseline: str = "none", importance: str = "trajectory", trace: float = 1.0
) -> Estimator:
    """GPOMDP, REINFORCE, standardised GPOMDP or advantages (`form`), with a baseline and importance weights."""

    def weights(trajectories: Trajectories) -> Array:
        if form == "advantage":
            return advantages(trajectories, gamma, trace)
        if form == "standardised":
            return standardised_weights(trajectories, gamma)
        if form == "gpomdp":
            return jnp.where(trajectories.mask, reward_to_go(rewards(trajectories), 1.0), 0.0)
        return jnp.where(trajectories.mask, jnp.sum(rewards(trajectories), axis=0), 0.0)

    def rewards(trajectories: Trajectories) -> Array:
        """gamma^h r_h - C_{b_h} for every h < H, also after an episode's end, where r_h = 0.  [T, B]"""
        powers = gamma ** jnp.arange(trajectories.rewards.shape[0]).reshape(-1, *(1,) * trajectories.lengths.ndim)
        discounted = powers * trajectories.rewards
        if baseline == "none":
            return discounted
        # Leave-one-out: the mean over the others knows nothing of this trajectory, so it adds no bias.
        sampled = (trajectories.lengths > 0).astype(jnp.float32)  # [B]: not the empty lanes
        # Less what the first episode got, which cancels: where all got the same, the result is 0 and not rounding.
        less = sampled * (discounted - discounted[..., :1])
        others = jnp.sum(less, axis=-1, keepdims=True) - less
        count = jnp.sum(sampled, axis=-1, keepdims=True) - sampled
        # A trajectory that is alone has no others, and so no baseline.
        return jnp.where(count > 0, less - sampled * others / jnp.maximum(count, 1.0), discounted)

    def corrected(trajectories: Trajectories, log_ratio: Array) -> Array:
        log_ratio = jnp.where(trajectories.mask, log_ratio, 0.0)
        if importance == "step":
            return jnp.exp(log_ratio) * weights(trajectories)
        if importance == "trajectory":
            return jnp.exp(jnp.sum(log_ratio, axis=0)) * weights(trajectories)
        # Per decision: the reward at h depends on the actions up to h only, so it is weighed by their ratio only.
        weighed = jnp.exp(jnp.cumsum(log_ratio, axis=0)) * rewards(trajectories)
        return jnp.where(trajectories.mask, reward_to_go(weighed, 1.0), 0.0)

    return Estimator(
        weights,
        corrected,
        per_step=form in ("standardised", "advantage"),
        step_ratios=importance == "step",
        looks=form == "advantage",
    )


def standardised_weights(trajectories: Trajectories, gamma: float) -> Array:
    """w_t = (G_t - mean G) / std G, G_t = sum_{h >= t} gamma^(h-t) r_h, mean and std (n - 1) within the episode."""
    mask, n = trajectories.mask, trajectories.lengths
    to_go = jnp.where(mask, reward_to_go(trajectories.rewards, gamma), 0.0)  # [T, B]
    mean = jnp.sum(to_go, axis=0) / jnp.maximum(n, 1)
    deviation = jnp.where(mask, to_go - mean, 0.0)
    std = jnp.sqrt(jnp.sum(deviation**2, axis=0) / jnp.maximum(n - 1, 1))
    # Returns that are all the same differ by rounding only: no spread, no weight.
    spread = std > 1e-5 * jnp.max(jnp.abs(to_go), axis=0)
    return jnp.where(spread, deviation / (std + 1e-8), 0.0)


def log_probs(policy: Policy, params: Params, trajectories: Trajectories) -> Array:
    """log pi(a_t | s_t) of every step, 0 beyond the episode's end.  [T, B]"""
    return trajectories.map_steps(lambda observations, actions: policy.log_prob(params, observations, actions))


def weighted_score(policy: Policy, params: Params, trajectories: Trajectories, weights: Array) -> Array:
    """sum over steps and episodes of w_t grad log pi(a_t | s_t), for weights w [T, B].  [D]"""

    def objective(params: Params, observations: Array, actions: Array, weights: Array) -> Array:
        return jnp.sum(weights * policy.log_prob(params, observations, actions))

    zero = jax.tree.map(jnp.zeros_like, params)
    total = trajectories.sum_over_steps(lambda *block: jax.grad(objective)(params, *block), weights, zero)
    return policy.ravel(total)


def batch_size(estimator: Estimator, trajectories: Trajectories) -> Array:
    """What a batch's sum is divided by: its time steps, or its episodes (empty lanes do not count)."""
    count = jnp.sum(trajectories.lengths if estimator.per_step else trajectories.lengths > 0)
    return jnp.maximum(count, 1).astype(jnp.float32)


def gradient(
    estimator: Estimator, policy: Policy, params: Params, trajectories: Trajectories, weights: Array | None = None
) -> Array:
    """The estimate of grad J(theta) from trajectories of theta itself (line 6).  [D]"""
    weights = estimator.weights(trajectories) if weights is None else weights
    return weighted_score(policy, params, trajectories, weights) / batch_size(estimator, trajectories)


class Correction(NamedTuple):
    """g(tau | theta_n) - omega g(tau | theta_0), with its parts."""

    plain: Array  # [D]: the mean of g(tau | theta_n)
    corrected: Array  # [D]: the mean of omega g(tau | theta_0)
    ratio: Array  # the mean importance weight: of the time steps, or of the trajectories


def correction(
    estimator: Estimator, policy: Policy, params_n: Params, params_0: Params, trajectories: Trajectories
) -> Correction:
    """Both parts of the semi-stochastic gradient from trajectories of theta_n (line 11).

    v = mean[g(tau | theta_n) - omega(tau | theta_n, theta_0) g(tau | theta_0)] + mu, in log space:
    log omega = sum_t log pi_0(a_t | s_t) - log pi_n(a_t | s_t).
    """
    log_ratio = log_probs(policy, params_0, trajectories) - log_probs(policy, params_n, trajectories)
    plain = estimator.weights(trajectories)
    corrected = estimator.corrected(trajectories, log_ratio)
    size = batch_size(estimator, trajectories)
    alive = trajectories.mask if estimator.step_ratios else trajectories.lengths > 0
    ratios = jnp.exp(log_ratio if estimator.step_ratios else jnp.sum(log_ratio, axis=0))
    return Correction(
        plain=weighted_score(policy, params_n, trajectories, plain) / size,
        corrected=weighted_score(policy, params_0, trajectories, corrected) / size,
        ratio=jnp.sum(jnp.where(alive, ratios, 0.0)) / jnp.maximum(jnp.sum(alive), 1),
    )


def hessian_product(
    estimator: Estimator, policy: Policy, theta: Array, along: Array, trajectories: Trajectories
) -> Array:
    """The estimate of H(theta) u, H the Hessian of J and u = `along`, from trajectories of theta itself.  [D]

    The importance-weighted gradient mean[sum_t w_t(theta') grad log pi_t(theta')] has the mean grad J(theta') at every
    theta', so its derivative along u has that of H u:
        mean[sum_t w_t (grad^2 log pi_t) u + (grad w_t . u) grad log pi_t].
    With weights of whole trajectories grad w_t . u = w_t sum_h grad log pi_h . u; with those of decisions, each reward
    has the actions before it only. Those of time steps drop what an action does to the weights of others.
    """
    old = log_probs(policy, policy.unravel(theta), trajectories)

    def weights(theta: Array) -> Array:
        return estimator.corrected(trajectories, log_probs(policy, policy.unravel(theta), trajectories) - old)

    def score(theta: Array, weights: Array) -> Array:
        return weighted_score(policy, policy.unravel(theta), trajectories, weights)

    w, change = jax.jvp(weights, (theta,), (along,))  # [T, B] each
    bend = jax.jvp(lambda theta: score(theta, w), (theta,), (along,))[1]
    return (bend + score(theta, change)) / batch_size(estimator, trajectories)


def influences(estimator: Estimator, policy: Policy, params: Params, trajectories: Trajectories) -> Array:
    """How far each trajectory pulls its batch's gradient: row i is about B (mu - mu without i).  [B, D]

    For a mean over episodes that is g_i - mu. For a mean over time steps, sum_i S_i / sum_i n_i, it is the
    linearisation (S_i - n_i mu) / mean(n). The gradient of B such trajectories has covariance Cov(row) / B.
    """
    weights = estimator.weights(trajectories)

    def one(i: Array) -> Array:
        lane = jax.lax.dynamic_slice_in_dim(weights, i, 1, axis=1)
        return weighted_score(policy, params, trajectories.take(i, 1), lane)

    scores = jax.lax.map(one, jnp.arange(trajectories.lengths.shape[0]))  # [B, D]
    counts = (trajectories.lengths if estimator.per_step else trajectories.lengths > 0).astype(jnp.float32)
    mean = jnp.sum(scores, axis=0) / jnp.maximum(jnp.sum(counts), 1.0)
    return (scores - counts[:, None] * mean) / jnp.maximum(jnp.mean(counts), 1e-9)


def scores(policy: Policy, params: Params, trajectories: Trajectories, count: int) -> Array:
    """grad log pi(a_t | s_t) at `count` steps, evenly spread over all: J with J^T J / n the Fisher matrix.  [n, D]"""
    observations, actions = trajectories.some_steps(count)
    each = jax.vmap(jax.grad(policy.log_prob), in_axes=(None, -1, -1))(params, observations, actions)
    return jax.vmap(policy.ravel)(each)
