"""What the rounds of all algorithms share: the server's state, its own sampling, its inner loop, its log."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fedpg.agents import Answers, Broadcast, Problem, episode_keys, stream
from fedpg.aggregators import RULES, Verdict
from fedpg.config import Config
from fedpg.environments import Lanes, join, lanes, rollout
from fedpg.estimators import correction, influences
from fedpg.federation.local import Federation
from fedpg.sigma import SPREAD_0, Spread, auto_sigma, observe_spread
from fedpg.trajectories import Trajectories


class State(NamedTuple):
    """Everything that the next round depends on."""

    key: Array  # of the whole run: its seed
    round: Array  # rounds done
    theta: Array  # [D]
    optimizer: Any
    spread: Spread
    output: Array  # [D]: theta-tilde_a, uniform over the rounds so far
    counted: Array  # trajectories, as the paper counts them


class Log(NamedTuple):
    """What happened in a round."""

    round: Array
    test_returns: Array  # [E]: of the policy that the round began with
    train_return: Array  # mean over the honest agents
    batch: Array  # B_t
    inner_drawn: Array  # N_t
    inner_done: Array  # steps that were taken
    ratio: Array  # mean importance weight of the last inner step that was looked at
    status: Array  # [K]: index into STATUSES
    accepted: Array  # [K]
    rule: Array  # index into RULES
    sigma: Array
    threshold: Array
    centre: Array
    distances: Array  # [K]
    norms: Array  # [K]
    gradient_norm: Array  # of mu_t
    server_trajectories: Array  # all that the server sampled, or would have (the n = 0 step), for training
    counted: Array  # trajectories of this round, as the paper counts them
    agent_steps: Array  # environment steps simulated
    server_steps: Array
    test_steps: Array


Round = Callable[[Problem, Federation, State], tuple[State, Log]]


class Inner(NamedTuple):
    """What the inner loop did."""

    theta: Array
    optimizer: Any
    drawn: Array
    done: Array
    ratio: Array
    sampled: Array  # trajectories that were sampled, or would have been
    steps: Array  # environment steps simulated


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Adam or plain gradient steps. Optax descends; the caller hands it the negative gradient."""
    return {"adam": optax.adam, "sgd": optax.sgd}[config.optimizer](config.learning_rate)


def first_state(problem: Problem, seed: Array | int) -> State:
    """The state before round 1: theta_0 depends on the seed alone, not on the algorithm or K."""
    key = jax.random.key(seed, impl="threefry2x32")
    theta = problem.policy.init(jax.random.fold_in(key, 0))
    return State(
        key=key,
        round=jnp.int32(0),
        theta=theta,
        optimizer=make_optimizer(problem.config).init(theta),
        spread=SPREAD_0,
        output=theta,
        counted=jnp.int32(0),
    )


def draw_batch(problem: Problem, key: Array) -> Array:
    """B_t, uniform over its range."""
    low, high = problem.config.batch
    return jax.random.randint(stream(key, "batch"), (), low, high + 1)


def draw_inner_steps(problem: Problem, key: Array, batch: Array) -> Array:
    """N_t: fixed, or P(N = n) = G^n (1 - G) with G = B / (B + b), from 0 (the text) or moved to start from 1."""
    if problem.config.inner_law == "fixed":
        return jnp.int32(problem.config.inner_steps)
    log_g = jnp.log(batch / (batch + problem.config.minibatch))
    u = 1.0 - jax.random.uniform(stream(key, "inner steps"))  # in (0, 1]
    n = jnp.floor(jnp.log(u) / log_g).astype(jnp.int32)
    return n + (problem.config.inner_law == "geometric-from-1")


def server_lanes(problem: Problem, broadcast: Broadcast, n: Array | int, count: int) -> Lanes:
    """The server's own episodes of inner step n (line 10)."""
    keys, origins = (
        episode_keys(jax.random.fold_in(stream(key, "server"), n), count) for key in (broadcast.key, broadcast.season)
    )
    return lanes(keys, problem.steps, origins=origins, turn=broadcast.turn)


def evaluation_lanes(problem: Problem, broadcast: Broadcast) -> Lanes:
    """The greedy episodes that evaluate the broadcast policy."""
    keys, origins = (
        episode_keys(stream(key, "evaluation"), problem.config.test_episodes)
        for key in (broadcast.key, broadcast.season)
    )
    return lanes(keys, problem.test_steps, greedy=True, origins=origins, turn=broadcast.turn)


def own_lanes(problem: Problem, broadcast: Broadcast) -> Lanes:
    """The server's episodes with the broadcast policy: greedy ones to evaluate it, and those that sigma needs.

    The latter are the ones of inner step n = 0, which change nothing there (the correction is zero at theta_0).
    """
    test = evaluation_lanes(problem, broadcast)
    count = sigma_trajectories(problem.config)
    return join(test, server_lanes(problem, broadcast, 0, count)) if count else test


def sigma_trajectories(config: Config) -> int:
    """How many own trajectories the server needs for sigma: b, but 8 at least; none if there is nobody to filter."""
    filtered = config.sigma == "auto" and config.filter != "mean" and config.agents > 1
    return max(config.minibatch, 8) if filtered else 0


def estimate_sigma(problem: Problem, state: State, own: Trajectories) -> tuple[Array, Spread]:
    """sigma as given, or from the server's own trajectories of this round and the ones before."""
    if not sigma_trajectories(problem.config):
        given = problem.config.sigma
        return jnp.float32(jnp.inf if given == "auto" else given), state.spread
    mine = own.take(problem.config.test_episodes, sigma_trajectories(problem.config))
    params = problem.policy.unravel(state.theta)
    spread = observe_spread(state.spread, influences(problem.estimator, problem.policy, params, mine))
    return auto_sigma(spread, problem.config.agents, problem.config.delta), spread


def ascend(config: Config, theta: Array, optimizer: Any, direction: Array) -> tuple[Array, Any]:
    """theta + eta v, by the optimiser."""
    updates, optimizer = make_optimizer(config).update(-direction, optimizer, theta)
    return optax.apply_updates(theta, updates), optimizer


def inner_loop(problem: Problem, state: State, broadcast: Broadcast, verdict: Verdict, n: Array) -> Inner:
    """N_t variance-reduced steps from mu_t (lines 9 to 12).

    At n = 0 the correction is exactly zero: v = mu_t, and the b trajectories are counted but not simulated. If the
    filter accepted nobody there is no mu_t: the round is skipped, or the server steps on its own plain gradient.
    """
    config = problem.config
    policy, b = problem.policy, config.minibatch
    somebody = verdict.rule != RULES.index("nobody")
    drawn = n
    if config.nobody == "skip":
        n = jnp.where(somebody, n, 0)
    params_0 = policy.unravel(state.theta)

    def running(carry: Any) -> Array:
        done, *_, inside = carry
        return inside & (done < n)

    def body(carry: Any) -> Any:
        done, theta, optimizer, _, sampled, steps, _ = carry
        params = policy.unravel(theta)
        own = server_lanes(problem, broadcast, done, b)
        mine = rollout(problem.environment, policy, params, own, problem.steps)  # line 10
        change = correction(problem.estimator, policy, params, params_0, mine)
        v = jnp.where(somebody, change.plain - change.corrected + verdict.gradient, change.plain)  # line 11
        inside = jnp.abs(change.ratio - 1.0) <= config.ratio_bound
        stepped = ascend(config, theta, optimizer, v)  # line 12
        theta, optimizer = jax.tree.map(lambda a, b: jnp.where(inside, a, b), stepped, (theta, optimizer))
        return (
            done + inside,
            theta,
            optimizer,
            change.ratio,
            sampled + b,
            steps + jnp.sum(mine.lengths),
            inside,
        )

    first = somebody & (n > 0)
    stepped = ascend(config, state.theta, state.optimizer, verdict.gradient)
    theta, optimizer = jax.tree.map(lambda a, b: jnp.where(first, a, b), stepped, (state.theta, state.optimizer))
    done = first.astype(jnp.int32)
    sampled = done * own_trajectories(config, 1)
    start = (done, theta, optimizer, jnp.float32(1.0), sampled, jnp.int32(0), jnp.bool_(True))
    done, theta, optimizer, ratio, sampled, steps, _ = jax.lax.while_loop(running, body, start)
    return Inner(theta, optimizer, drawn, done, ratio, sampled, steps)


def own_trajectories(config: Config, inner_steps: Any) -> Any:
    """The server's trajectories of so many inner steps: b each, and none for GPOMDP, which has no inner loop."""
    return 0 if config.algorithm == "gpomdp" else config.minibatch * inner_steps


def paper_count(config: Config, batch: Array, inner_steps: Array) -> Array:
    """Trajectories of a round as the paper's figures count them: of the agent, or averaged over K agents and server."""
    own = own_trajectories(config, inner_steps)
    if config.agents == 1:
        return jnp.int32(batch + own)
    return jnp.round((batch * config.agents + own) / (config.agents + 1)).astype(jnp.int32)


def finish(
    problem: Problem,
    state: State,
    broadcast: Broadcast,
    answers: Answers,
    own: Trajectories,
    sigma: Array,
    verdict: Verdict,
    inner: Inner,
) -> tuple[State, Log]:
    """The state after the round, and its log."""
    config = problem.config
    # theta-tilde_a: keeping the newest with probability 1 / t leaves each round's policy equally likely.
    keep = jax.random.uniform(stream(broadcast.key, "output")) * broadcast.round < 1.0
    counted = paper_count(config, broadcast.batch, inner.done)
    honest = jnp.arange(config.agents) < config.agents - config.byzantine
    tests = config.test_episodes
    replies = answers.replies
    # Own trajectories for sigma are those of n = 0, which `inner.sampled` holds already if that step was taken.
    for_sigma = sigma_trajectories(config)
    extra = jnp.where(inner.sampled > 0, max(for_sigma - config.minibatch, 0), for_sigma)
    log = Log(
        round=broadcast.round,
        test_returns=own.returns[:tests],
        train_return=jnp.sum(jnp.where(honest, answers.returns, 0.0)) / jnp.sum(honest),
        batch=broadcast.batch,
        inner_drawn=inner.drawn,
        inner_done=inner.done,
        ratio=inner.ratio,
        status=replies.status,
        accepted=verdict.accepted,
        rule=verdict.rule,
        sigma=sigma,
        threshold=verdict.threshold,
        centre=verdict.centre,
        distances=verdict.distances,
        norms=jnp.linalg.norm(replies.gradients, axis=1),
        gradient_norm=jnp.linalg.norm(verdict.gradient),
        server_trajectories=inner.sampled + extra,
        counted=counted,
        agent_steps=jnp.sum(answers.steps),
        server_steps=inner.steps + jnp.sum(own.lengths[tests:]),
        test_steps=jnp.sum(own.lengths[:tests]),
    )
    state = state._replace(
        round=broadcast.round,
        theta=inner.theta,
        optimizer=inner.optimizer,
        output=jnp.where(keep, inner.theta, state.output),
        counted=state.counted + counted,
    )
    return state, log
