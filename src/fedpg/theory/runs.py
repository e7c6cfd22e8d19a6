"""The lab's rounds: Algorithm 1 with plain gradient steps on a tabular MDP, all repetitions in one compiled call.

The estimators' weights, the filters and the attacks are the package's own. Sizes (B, b, the step, the law of N) are
arguments of the compiled function, so that one compilation serves a whole sweep of them.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.agents import Replies
from fedpg.aggregators import Verdict, make_filter
from fedpg.attacks import Attack
from fedpg.config import Config, make_config
from fedpg.estimators import Estimator, make_estimator
from fedpg.theory.mdp import Tabular, exact_gradient, log_policy_at, simulate, weighted_scores

DELTA = 1e-5
"""The lab's delta: at most 1/(5KB), as the theorem asks, while K B <= 20,000."""
LANES = 4096
"""Episodes that are simulated side by side: their buffers fit the cache."""
SIDE_BY_SIDE = 32
"""Rounds at a fixed policy that are simulated side by side."""

Lie = Callable[[Array, Array, Array, Array, Array], Array]
"""(key, gradients [K, D], the true gradient [D], sigma, B) -> what Byzantine agents send [K, D]."""


class Lab(NamedTuple):
    """A federation on a tabular MDP."""

    mdp: Tabular
    config: Config
    estimator: Estimator
    attack: Attack
    lie: Lie | None  # an attack that knows the truth and the filter, instead of the attack's message

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
    return Lab(mdp, config, make_estimator(config), attack or Attack(), lie)


class Sizes(NamedTuple):
    """What a rule chooses."""

    batch: Array | int  # B
    minibatch: Array | int  # b
    step: Array | float  # eta
    fixed: Array | int  # N, or 0 for the geometric law of mean B / b
    sigma: Array | float = jnp.inf


class Judged(NamedTuple):
    """What the filter did, in every repetition; arrays of JAX, or of NumPy once they are measured."""

    error: Any  # ||e_t||^2 = ||mu_t - grad J||^2
    honest: Any  # the share of honest agents that were accepted
    liars: Any  # the share of Byzantine ones; 0 if there is none
    rule: Any  # the index into RULES


class Outcome(NamedTuple):
    """What a round did."""

    gradient: Any  # ||grad J||^2 after it
    inner: Any  # N_t
    judged: Judged


def agent_gradients(lab: Lab, theta: Array, key: Array, batch: Array | int, width: int) -> Array:
    """mu^(k) of all agents, honest in all but their actions (lines 4 to 6).  [K, D]

    `width` episodes of each agent at a time, and the ones beyond B weigh nothing.
    """
    agents = lab.config.agents
    lanes = jnp.repeat(lab.byzantine, width)

    def chunk(i: Array, total: Array) -> Array:
        mine = simulate(lab.mdp, theta, jax.random.fold_in(key, i), agents * width, lab.attack.act, lanes)
        wanted = jnp.tile(i * width + jnp.arange(width) < batch, agents)
        weights = jnp.where(wanted, lab.estimator.weights(mine), 0.0)
        return total + weighted_scores(lab.mdp, theta, mine, weights, agents)

    start = jnp.zeros((agents, lab.mdp.states, lab.mdp.actions))
    total = jax.lax.fori_loop(0, -(-batch // width), chunk, start)
    return total.reshape(agents, -1) / batch


def replies_of(lab: Lab, gradients: Array, truth: Array, key: Array, sigma: Array, batch: Array | int) -> Replies:
    """What arrives at the server, with the Byzantine agents' lies.  [K, D]"""
    agents, size = gradients.shape
    sent = gradients
    if lab.lie is not None:
        lies = lab.lie(key, gradients, truth, sigma, jnp.asarray(batch))
        sent = jnp.where(lab.byzantine[:, None], lies, gradients)
    elif lab.attack.message is not None:
        lies = lab.attack.message(jax.random.split(key, agents), gradients, lab.byzantine, (slice(0, size),))
        sent = jnp.where(lab.byzantine[:, None], lies, gradients)
    return Replies(sent, jnp.full(agents, size))


def correction(lab: Lab, theta: Array, theta_0: Array, key: Array, count: Array | int, width: int) -> Array:
    """mean[g(tau | theta_n) - omega g(tau | theta_0)] over `count` own trajectories of theta_n (line 11).  [S, A]"""

    def chunk(i: Array, total: Array) -> Array:
        mine = simulate(lab.mdp, theta, jax.random.fold_in(key, i), width)
        wanted = i * width + jnp.arange(width) < count
        log_ratio = log_policy_at(theta_0, mine) - log_policy_at(theta, mine)
        plain = jnp.where(wanted, lab.estimator.weights(mine), 0.0)
        corrected = jnp.where(wanted, lab.estimator.corrected(mine, log_ratio), 0.0)
        both = (weighted_scores(lab.mdp, at, mine, w)[0] for at, w in ((theta, plain), (theta_0, corrected)))
        return total + next(both) - next(both)

    return jax.lax.fori_loop(0, -(-count // width), chunk, jnp.zeros_like(theta)) / count


def aggregate(lab: Lab, theta: Array, key: Array, sizes: Sizes, width: int) -> tuple[Verdict, Array]:
    """What the filter makes of a round's replies (lines 3 to 7), and the true gradient [D]."""
    k_agents, k_attack = jax.random.split(key)
    truth = exact_gradient(lab.mdp, theta).ravel()
    gradients = agent_gradients(lab, theta, k_agents, sizes.batch, width)  # lines 3-6
    sigma = jnp.float32(sizes.sigma)
    replies = replies_of(lab, gradients, truth, k_attack, sigma, sizes.batch)
    return make_filter(lab.config)(replies, sigma, jnp.float32(sizes.batch), lab.config), truth  # line 7


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
    """(theta [S, A], keys [n], sizes) -> what the filter made of n rounds' replies at that policy, compiled.  [n]"""
    width = max(1, min(batch, LANES // (SIDE_BY_SIDE * lab.config.agents)))

    @jax.jit
    def draws(theta: Array, keys: Array, sizes: Sizes) -> Judged:
        def one(key: Array) -> Judged:
            return judged(lab, *aggregate(lab, theta, key, sizes, width))

        return jax.lax.map(one, keys, batch_size=SIDE_BY_SIDE)

    return draws
