"""Natural steps: one vector from every agent, and one step along F^-1 m, as long as the steps before have earned.

m is the aggregate of the agents' gradients, averaged over rounds where it is noisy, F the Fisher matrix of the policy,
at steps of the server's own trajectories. Nothing is tuned to a task: docs/natural.md derives the length of a step.
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
from fedpg.metric import damped, divergence, fisher_at, share_of, signal_of, solve, unit_of
from fedpg.policies import Policy
from fedpg.problem import Algorithm, Federation, Memory, Outcome, Problem, State, make_broadcast
from fedpg.server import Server

SHORTEST, LONGEST = 1e-3, 0.1
"""Of the KL divergences that steps aim at, before the rate, noise and doubt shorten them."""
GAIN, LONGER = 1.0, 1.4
SHORTER = 1 / LONGER
"""How fast the divergences that steps aim at follow the slopes, and by which factors they change from step to step at
the most: as fast down as up, or noise would make steps shorter and shorter."""
FASTER, SLOWER = 1.5, 4.0
"""The rate, how many times F^-1 m a move is, grows and falls by these factors from step to step at the most; and an
aggregate is no more than `SLOWER` times as long as the average of those before."""
TOO_FAR = 1.5
"""A step whose divergence is so many times the one that it aims at is halved until it is not."""
NEW = 0.1
"""The weight of a new round in the averages of the signal and of what the server finds; and in that of the
aggregates, at the least."""
FAINTEST = 0.02
"""The share of signal, at the least: some tasks reward few agents at first, and most of these go along with nobody."""

MOST = 1e18
"""What the server finds is squared, and a float ends at 3e38."""


class Stride(NamedTuple):
    """What is remembered of the steps so far."""

    move: Array  # [D]: the last one
    slope: Array  # mean . move at its beginning
    kl: Array  # the divergence that its length was chosen by
    rate: Array  # how many times F^-1 mean it was, had all of it been signal; 0 before the first
    mean: Array  # [D]: the aggregates, averaged over the more rounds the less signal they have
    noise: Array  # how much of an aggregate's noise is left in that average
    signal: Array  # the share of |mu|^2 that is no noise, on average
    found: Array  # the slope along the steps that the server found in trajectories of its own
    promised: Array  # the slope that it should have found
    squares: Array  # of what it found


def natural(kl: float = 0.02, keep: float = 0.35) -> Algorithm:
    """Natural steps, the first of divergence `kl`, the others so long that `keep` of what was real of the slope at the
    beginning is left at the end."""
    require(SHORTEST <= kl <= LONGEST, f"natural: kl must be from {SHORTEST:g} to {LONGEST:g}, not {kl:g}")
    require(0 < keep < 1, f"natural: keep must be between 0 and 1, not {keep:g}")

    def one_round(problem: Problem, state: State, federation: Federation, server: Server) -> tuple[State, Outcome]:
        t, theta, stride = state.round + 1, state.theta, state.algorithm
        broadcast = make_broadcast(state.key, t, server.draw_batch(state.key, t), theta=theta)
        replies, agents = federation.ask(broadcast, state.agents)  # each agent samples B trajectories, and sends g_k
        verdict, aggregator = server.aggregate(state.aggregator, replies, broadcast)  # mu
        if verdict.somebody:
            own = server.contribution(broadcast)  # F and a check, from as many trajectories as an agent's
            mu = verdict.gradient
            signal = signal_of(mu, replies.sent("gradient").clean, verdict.accepted, own.scores)
            theta, stride = step(problem.policy, keep, theta, mu, signal, own, stride)
        outcome = Outcome(replies, verdict, 1, int(verdict.somebody), own=server.own_count)
        return state._replace(theta=theta, aggregator=aggregator, agents=agents, algorithm=stride), outcome

    def first(problem: Problem, theta: Array) -> Memory:
        start, zero, one = jnp.zeros_like(theta), jnp.zeros(()), jnp.ones(())
        return Stride(start, zero, jnp.asarray(kl, jnp.float32), zero, start, zero, one, zero, zero, zero)

    def warm_up(problem: Problem, state: State, own: Own) -> None:
        agents = problem.config.agents
        nothing, nobody = jnp.zeros((agents, problem.policy.size)), jnp.zeros(agents, bool)
        signal = signal_of(state.theta, nothing, nobody, own.scores)
        step(problem.policy, keep, state.theta, state.theta, signal, own, state.algorithm)

    needs = ("check", "states", "scores")  # the last for aggregators too: they may judge in the metric of the step
    return Algorithm(one_round, GRADIENT, init=first, needs=needs, warm_up=warm_up, optimised=False)


@functools.partial(jax.jit, static_argnums=(0, 1))
def step(
    policy: Policy, keep: float, theta: Array, mu: Array, signal: Array, own: Own, last: Stride
) -> tuple[Array, Stride]:
    """(theta after the step, what to remember of it); `signal` is the share of |mu|^2 that is no noise."""
    states, check = own.states, own.check
    assert states is not None
    assert check is not None
    before = unit_of(last.mean)[1]
    direction, length = unit_of(mu)
    mu = direction * jnp.where(before > 0, jnp.minimum(length, SLOWER * before), length)
    heard = jnp.where(jnp.isfinite(signal), _averaged(last.signal, signal), last.signal)
    signal = jnp.clip(heard, FAINTEST, 1.0)
    weight = jnp.maximum(signal, NEW)
    mean = weight * mu + (1 - weight) * last.mean
    noise = weight**2 + (1 - weight) ** 2 * last.noise
    real = _real(signal, noise)

    matrix = damped(fisher_at(policy, theta, states), mean)
    unit, length = unit_of(mean)
    d = solve(matrix, unit)  # F^-1 mean / |mean|
    bend = d @ matrix(d)  # with the damping: it also holds moves that the policy does not feel, so near to theta
    kl = next_kl(last, mu, keep)
    far = jnp.sqrt(share_of(2 * kl, bend))  # the divergence of a move r d is r^2 d . F d / 2, nearly
    far = jnp.where(last.rate > 0, jnp.minimum(far, FASTER * last.rate * length), far)

    def too_far(far: Array) -> Array:
        return (divergence(policy, theta, theta + far * d, states) > TOO_FAR * kl) & (far > 0)

    far = jax.lax.while_loop(too_far, lambda far: far / 2, far)
    rate = jnp.where(far > 0, jnp.maximum(share_of(far, length), last.rate / SLOWER), last.rate)

    slope = jnp.sqrt(jnp.maximum(unit @ d, 0.0))  # of the mean along d, and of the check, in units of |d|
    promise = real * length * slope
    seen = jnp.clip(share_of(check @ d, slope), -MOST, MOST)
    known = last.promised > 0  # before the first round, the server had found what was promised
    found = _averaged(jnp.where(known, last.found, promise), seen)
    promised = _averaged(jnp.where(known, last.promised, promise), promise)
    squares = _averaged(last.squares, seen**2)
    error = jnp.sqrt(jnp.maximum(squares - found**2, 0.0) * NEW / (2 - NEW))  # of the average
    trust = jnp.where(promised > 0, jnp.clip(share_of(found + error, promised), 0.0, 1.0), 1.0)

    move = jnp.sqrt(real * trust) * far * d
    after = theta + move, Stride(move, mean @ move, kl, rate, mean, noise, signal, found, promised, squares)
    # A fault of one round must not be remembered.
    sound = functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(after)])
    return jax.tree.map(lambda new, old: jnp.where(sound, new, old), after, (theta, last))


def next_kl(last: Stride, mu: Array, keep: float) -> Array:
    """The divergence of the next step: larger if more of the last one's slope was left at its end than should be.

    With x the last move, r times F^-1 mean, mu_t . x / mean . x is what is left. On a parabola of curvature h that is
    real - h r: the rest of the first slope was noise of its own. A step of r = real / h gains most, and leaves nothing.
    """
    aim = keep * _real(last.signal, last.noise)
    left = jnp.where(last.slope > 0, share_of(mu @ last.move, last.slope), aim)
    return jnp.clip(last.kl * jnp.clip(jnp.exp(GAIN * (left - aim)), SHORTER, LONGER), SHORTEST, LONGEST)


def _real(signal: Array, noise: Array) -> Array:
    """The share of |mean|^2 that is no noise."""
    return share_of(signal, signal + (1 - signal) * noise)


def _averaged(before: Array, new: Array) -> Array:
    return (1 - NEW) * before + NEW * new
