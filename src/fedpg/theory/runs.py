"""The lab's rounds: Algorithm 1 with plain gradient steps on a tabular MDP, all repetitions in one compiled call.

The policy's estimators, the aggregators and the attacks are the package's own. Sizes (B, b, the step, the law of N) are
arguments of the compiled function, so that one compilation serves a whole sweep of them.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpg import estimators
from fedpg.aggregators import AGGREGATORS, Aggregator, Own, Sent, Verdict
from fedpg.attacks import Attack, Scene
from fedpg.config import Config
from fedpg.estimators import Estimator, gradient, make_estimator
from fedpg.pieces import look_up
from fedpg.presets import make_config
from fedpg.theory.mdp import Tabular, exact_gradient, simulate
from fedpg.trajectories import Trajectories

DELTA = 1e-5
"""The lab's delta: at most 1/(5KB), as the theorem asks, while K B <= 20,000."""
LANES = 4096
"""Episodes that are simulated side by side: their buffers fit the cache."""
SIDE_BY_SIDE = 32
"""Rounds at a fixed policy that are simulated side by side."""

Lie = Callable[[Array, Array, Array, Array, Scene], Array]
"""(key, the true gradient [D], sigma, B, scene) -> what Byzantine agents send [K, D]."""


class Lab(NamedTuple):
    """A federation on a tabular MDP."""

    mdp: Tabular
    config: Config
    estimator: Estimator
    attack: Attack
    lie: Lie | None  # an attack that knows the truth and the aggregator, instead of the attack's message

    @property
    def byzantine(self) -> Array:
        """The last agents.  [K]"""
        return jnp.arange(self.config.agents) >= self.config.agents - self.config.byzantine


def make_lab(mdp: Tabular, attack: Attack | None = None, lie: Lie | None = None, **settings: Any) -> Lab:
    """The text's estimators without a baseline, one importance weight per trajectory, plain SGD."""
    text: dict[str, Any] = {
        "estimator": "gpomdp",
        "baseline": "none",
        "importance": "trajectory",
        "optimizer": "sgd",
        "inner_law": "geometric-from-0",
        "batch": (1, 1),
        "minibatch": 1,
        "delta": DELTA,
        "agents": 1,
        "horizon": mdp.horizon,
        "discount": mdp.discount,
        "sigma": 1.0,  # the runs' own sigma is an argument
    }
    config = make_config(preset="paper", **text | settings)
    estimator = make_estimator(config.estimator, config.discount, config.baseline, config.importance)
    return Lab(mdp, config, estimator, attack or Attack(), lie)


class Sizes(NamedTuple):
    """What a rule chooses."""

    batch: Array | int  # B
    minibatch: Array | int  # b
    step: Array | float  # eta
    fixed: Array | int  # N, or 0 for the geometric law of mean B / b
    sigma: Array | float = jnp.inf


class Judged(NamedTuple):
    """What the aggregator did, in every repetition; arrays of JAX, or of NumPy once they are measured."""

    error: Any  # ||e_t||^2 = ||mu_t - grad J||^2
    honest: Any  # the share of honest agents that were accepted
    liars: Any  # the share of Byzantine ones; 0 if there is none
    rule: Any  # the index into RULES


class Outcome(NamedTuple):
    """What a round did."""

    gradient: Any  # ||grad J||^2 after it
    inner: Any  # N_t
    judged: Judged


def gradients_of(lab: Lab, theta: Array, trajectories: Trajectories, parts: int) -> Array:
    """The estimate of grad J(theta) from each of so many equal parts of the episodes.  [parts, D]"""
    split: Trajectories = jax.tree.map(lambda x: x.reshape(*x.shape[:-1], parts, -1), trajectories)
    weights = lab.estimator.weights(split)  # [T, parts, B]: of all at once

    def one(mine: Trajectories, weights: Array) -> Array:
        return gradient(lab.estimator, lab.mdp.policy, {"table": theta}, mine, weights)

    return jax.vmap(one, in_axes=-2)(split, weights)


def agent_gradients(lab: Lab, theta: Array, key: Array, batch: Array | int, width: int) -> Array:
    """mu^(k) of all agents, honest in all but their actions (lines 4 to 6).  [K, D]

    `width` episodes of each agent at a time; those beyond B are not wanted.
    """
    agents = lab.config.agents
    byzantine = jnp.repeat(lab.byzantine, width)

    def chunk(i: Array, total: Array) -> Array:
        wanted = i * width + jnp.arange(width) < batch
        k_chunk = jax.random.fold_in(key, i)
        mine = simulate(lab.mdp, theta, k_chunk, agents * width, lab.attack.act, byzantine, jnp.tile(wanted, agents))
        return total + jnp.sum(wanted) / batch * gradients_of(lab, theta, mine, agents)

    return jax.lax.fori_loop(0, -(-batch // width), chunk, jnp.zeros((agents, lab.mdp.size)))


def sent_of(lab: Lab, gradients: Array, truth: Array, key: Array, sigma: Array, batch: Array | int) -> Array:
    """What arrives at the server, with the Byzantine agents' lies.  [K, D]"""
    agents, attack = lab.config.agents, lab.attack
    if lab.lie is not None:
        attack = Attack(message=functools.partial(lab.lie, key, truth, sigma, jnp.asarray(batch)))
    scene = Scene(jax.random.split(key, agents), gradients, lab.byzantine, lab.mdp.policy.tensors)
    return attack.send((), scene)[0]


def verdict_on(config: Config, vectors: Array, sigma: Array, batch: Array) -> Verdict:
    """What the aggregator of the settings makes of vectors [K, D] (line 7), with a sigma that may be traced."""
    settings = {"alpha": config.alpha, "delta": config.delta, "sigma": sigma}
    options = config.aggregator_options
    aggregator: Aggregator = look_up("aggregator", config.aggregator, AGGREGATORS, options, **settings)
    sent = Sent(vectors, jnp.all(jnp.isfinite(vectors), axis=1), batch)
    return aggregator.update(aggregator.init(*vectors.shape), sent, Own())[0]


def correction(lab: Lab, theta: Array, theta_0: Array, key: Array, count: Array | int, width: int) -> Array:
    """mean[g(tau | theta_n) - omega g(tau | theta_0)] over `count` own trajectories of theta_n (line 11).  [S, A]"""
    now, then = {"table": theta}, {"table": theta_0}

    def chunk(i: Array, total: Array) -> Array:
        wanted = i * width + jnp.arange(width) < count
        mine = simulate(lab.mdp, theta, jax.random.fold_in(key, i), width, wanted=wanted)
        change = estimators.correction(lab.estimator, lab.mdp.policy, now, then, mine)
        return total + jnp.sum(wanted) / count * (change.plain - change.corrected)

    total = jax.lax.fori_loop(0, -(-count // width), chunk, jnp.zeros(lab.mdp.size))
    return total.reshape(theta.shape)


def aggregate(lab: Lab, theta: Array, key: Array, sizes: Sizes, width: int) -> tuple[Verdict, Array]:
    """What the aggregator makes of a round's replies (lines 3 to 7), and the true gradient [D]."""
    k_agents, k_attack = jax.random.split(key)
    truth = exact_gradient(lab.mdp, theta).ravel()
    gradients = agent_gradients(lab, theta, k_agents, sizes.batch, width)  # lines 3-6
    sigma = jnp.float32(sizes.sigma)
    vectors = sent_of(lab, gradients, truth, k_attack, sigma, sizes.batch)
    return verdict_on(lab.config, vectors, sigma, jnp.float32(sizes.batch)), truth  # line 7


def judged(lab: Lab, verdict: Verdict, truth: Array) -> Judged:
    """How far off the aggregate is, and who is in it."""
    liars = lab.config.byzantine
    return Judged(
        error=jnp.sum((verdict.gradient - truth) ** 2),
        honest=jnp.mean(verdict.accepted[: lab.config.agents - liars]),
        liars=jnp.mean(verdict.accepted[lab.config.agents - liars :]) if liars else jnp.float32(0.0),
        rule=verdict.rule,
    )


def one_round(lab: Lab, theta: Array, key: Array, sizes: Sizes, width: int, inner_width: int) -> tuple[Array, Outcome]:
    """Algorithm 1's round for one repetition, its lines tagged."""
    k_aggregate, k_inner, k_law = jax.random.split(key, 3)
    verdict, truth = aggregate(lab, theta, k_aggregate, sizes, width)  # lines 3-7
    mu = verdict.gradient.reshape(theta.shape)
    # Line 8: P(N = n) = G^n (1 - G), G = B / (B + b).
    log_g = jnp.log(sizes.batch / (sizes.batch + sizes.minibatch))
    geometric = jnp.floor(jnp.log(1.0 - jax.random.uniform(k_law)) / log_g).astype(jnp.int32)
    n = jnp.where(sizes.fixed > 0, sizes.fixed, geometric)

    def step(carry: tuple[Array, Array]) -> tuple[Array, Array]:  # lines 9-12
        done, at = carry
        v = correction(lab, at, theta, jax.random.fold_in(k_inner, done), sizes.minibatch, inner_width) + mu
        return done + 1, at + sizes.step * v

    # At n = 0 the correction is exactly zero.
    first = (jnp.minimum(n, 1), jnp.where(n > 0, theta + sizes.step * mu, theta))
    _, after = jax.lax.while_loop(lambda carry: carry[0] < n, step, first)
    return after, Outcome(jnp.sum(exact_gradient(lab.mdp, after) ** 2), n, judged(lab, verdict, truth))


Advance = Callable[[Array, Array, Sizes], tuple[Array, Outcome]]
"""(theta [R, S, A], keys [R, rounds], sizes) -> (theta after the rounds, outcomes [rounds, R])."""


def compile_lab(lab: Lab, repetitions: int, batch: int, minibatch: int = 1) -> Advance:
    """Rounds of all repetitions as one compiled call, with lanes that suit about that batch and minibatch."""
    width = max(1, min(batch, LANES // (repetitions * lab.config.agents)))
    inner_width = max(1, min(minibatch, LANES // repetitions))
    single = functools.partial(one_round, lab, width=width, inner_width=inner_width)

    @jax.jit
    def advance(theta: Array, keys: Array, sizes: Sizes) -> tuple[Array, Outcome]:
        def rounds(theta: Array, keys: Array) -> tuple[Array, Outcome]:
            return jax.vmap(lambda t, k: single(t, k, sizes))(theta, keys)

        return jax.lax.scan(rounds, theta, keys.T)

    return advance


def compile_aggregate(lab: Lab, batch: int) -> Callable[[Array, Array, Sizes], Judged]:
    """(theta [S, A], keys [n], sizes) -> what the aggregator made of n rounds at that policy, compiled.  [n]"""
    width = max(1, min(batch, LANES // (SIDE_BY_SIDE * lab.config.agents)))

    @jax.jit
    def draws(theta: Array, keys: Array, sizes: Sizes) -> Judged:
        def one(key: Array) -> Judged:
            return judged(lab, *aggregate(lab, theta, key, sizes, width))

        return jax.lax.map(one, keys, batch_size=SIDE_BY_SIDE)

    return draws
