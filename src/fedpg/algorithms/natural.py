"""Natural steps: one vector from every agent, and one step along F^-1 mu, as long as the steps before have earned.

mu is the aggregate of the agents' gradients, F the Fisher matrix of the policy, at steps of the server's own
trajectories. Nothing is tuned to a task: docs/natural.md derives the length of a step.
S. Kakade, "A natural policy gradient", NeurIPS 2001; J. Schulman et al., "Trust region policy optimization", ICML 2015.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.agents import GRADIENT
from fedpg.aggregators import Own
from fedpg.errors import require
from fedpg.metric import damped, divergence, fisher_at, solve, unit_of
from fedpg.policies import Policy
from fedpg.problem import Algorithm, Federation, Memory, Outcome, Problem, State, make_broadcast
from fedpg.server import Server

SHORTEST, LONGEST = 1e-3, 0.1
"""Of all steps, as KL divergences, before trust shortens them."""
GAIN, SHORTER, LONGER = 1.5, 0.25, 2.0
"""How fast divergences follow the slopes, and by which factors they change from step to step at the most."""
FASTER, SLOWER = 1.5, 4.0
"""The rate, the length of a move over that of mu, grows and falls by these factors from step to step at the most."""
TOO_FAR = 1.5
"""A step whose divergence is so many times that of the quadratic model is halved until it is not."""
DOUBT = 0.2
"""The weight of a new round in the average of what the server confirms."""


class Stride(NamedTuple):
    """What is remembered of the steps so far."""

    move: Array  # [D]: the last one
    slope: Array  # mu . move at its beginning
    kl: Array  # the divergence that its length was chosen by
    rate: Array  # its length over |mu|, had it been trusted; 0 before the first
    trust: Array  # how much of the promised slopes the server has found in trajectories of its own; 1 is all


def natural(kl: float = 0.02, keep: float = 0.35) -> Algorithm:
    """Natural steps, the first of divergence `kl`, the others so long that `keep` of the slope is left at the end."""
    require(SHORTEST <= kl <= LONGEST, f"natural: kl must be from {SHORTEST:g} to {LONGEST:g}, not {kl:g}")
    require(0 < keep < 1, f"natural: keep must be between 0 and 1, not {keep:g}")

    def one_round(problem: Problem, state: State, federation: Federation, server: Server) -> tuple[State, Outcome]:
        t, theta, stride = state.round + 1, state.theta, state.algorithm
        broadcast = make_broadcast(state.key, t, server.draw_batch(state.key, t), theta=theta)
        replies, agents = federation.ask(broadcast, state.agents)  # each agent samples B trajectories, and sends g_k
        verdict, aggregator = server.aggregate(state.aggregator, replies, broadcast)  # mu
        if verdict.somebody:
            own = server.contribution(broadcast)  # F and a check, from as many trajectories as an agent's
            theta, stride = step(problem.policy, keep, theta, verdict.gradient, own, stride)
        outcome = Outcome(replies, verdict, 1, int(verdict.somebody), own=server.own_count)
        return state._replace(theta=theta, aggregator=aggregator, agents=agents, algorithm=stride), outcome

    def first(problem: Problem, theta: Array) -> Memory:
        return Stride(jnp.zeros_like(theta), jnp.zeros(()), jnp.asarray(kl, jnp.float32), jnp.zeros(()), jnp.ones(()))

    def warm_up(problem: Problem, state: State, own: Own) -> None:
        step(problem.policy, keep, state.theta, state.theta, own, state.algorithm)

    needs = ("check", "states", "scores")  # the scores are for aggregators: they may judge in the metric of the step
    return Algorithm(one_round, GRADIENT, init=first, needs=needs, warm_up=warm_up, optimised=False)


@functools.partial(jax.jit, static_argnums=(0, 1))
def step(policy: Policy, keep: float, theta: Array, mu: Array, own: Own, last: Stride) -> tuple[Array, Stride]:
    """(theta after the step, what to remember of it)."""
    states, check = own.states, own.check
    assert states is not None
    assert check is not None
    matrix = damped(fisher_at(policy, theta, states), mu)
    unit, length = unit_of(mu)
    d = solve(matrix, unit)  # F^-1 mu / |mu|
    bend = d @ matrix(d)  # with the damping: it also holds moves that the policy does not feel, so near to theta
    kl = next_kl(last, mu, keep)
    far = jnp.sqrt(_share(2 * kl, bend))  # the divergence of a move r d is r^2 d . F d / 2, nearly
    far = jnp.where(last.rate > 0, jnp.minimum(far, FASTER * last.rate * length), far)

    def too_far(far: Array) -> Array:
        return (divergence(policy, theta, theta + far * d, states) > TOO_FAR * kl) & (far > 0)

    far = jax.lax.while_loop(too_far, lambda far: far / 2, far)
    rate = jnp.where(far > 0, jnp.maximum(_share(far, length), last.rate / SLOWER), last.rate)
    promised = mu @ d
    confirmed = jnp.where(promised > 0, jnp.clip(_share(check @ d, promised), -1.0, 2.0), last.trust)
    trust = (1 - DOUBT) * last.trust + DOUBT * confirmed
    move = jnp.clip(trust, 0.0, 1.0) * far * d
    after = theta + move, Stride(move, mu @ move, kl, rate, trust)
    sound = jnp.all(jnp.isfinite(after[0])) & jnp.isfinite(trust)  # a fault of one round must not be remembered
    return jax.tree.map(lambda new, old: jnp.where(sound, new, old), after, (theta, last))


def next_kl(last: Stride, mu: Array, keep: float) -> Array:
    """The divergence of the next step: larger if more than `keep` of the last one's slope was left at its end.

    With x the last move, mu_t . x / mu_{t-1} . x is what is left. On a parabola that is 1 - |x| / (the best length);
    where mu is noise, the slope at the beginning was an illusion, and about nothing is left.
    """
    left = jnp.where(last.slope > 0, _share(mu @ last.move, last.slope), keep)
    return jnp.clip(last.kl * jnp.clip(jnp.exp(GAIN * (left - keep)), SHORTER, LONGER), SHORTEST, LONGEST)


def _share(part: Array, whole: Array) -> Array:
    """part / whole, 0 of nothing."""
    return jnp.where(whole > 0, part / jnp.where(whole > 0, whole, 1.0), 0.0)
