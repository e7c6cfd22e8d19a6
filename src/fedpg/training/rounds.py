"""Rounds, compiled: many in one call, compiled once, whatever their number and the seed."""

import functools
import threading
from collections.abc import Callable
from typing import NoReturn, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpg.agents import Answers, Broadcast, Problem, Replies, episode_keys, make_broadcast, stream
from fedpg.algorithms import ALGORITHMS, Log, State, first_state
from fedpg.algorithms.server import evaluation_lanes
from fedpg.environments import Lanes, Pool, lanes, rollout
from fedpg.environments.simulators import cores
from fedpg.federation import local_federation
from fedpg.policies import Params
from fedpg.trajectories import Trajectories

CHUNK = 32
"""Rounds per call, at the most."""

FOREVER = 2**31 - 1

AT_A_TIME = max(1, cores() - 1)
"""Compiled calls under way that call out to a simulator. XLA has a thread per core. A call-out takes one, and waits
there until its arguments have been copied, which takes another: if all were taken by call-outs, they would wait for
ever."""
_slots = threading.BoundedSemaphore(AT_A_TIME)

Advance = Callable[[State, Array, Array], tuple[Array, State, Log]]


def compile_rounds(problem: Problem) -> Advance:
    """A compiled (state, n, limit) -> (rounds done, state, their logs [CHUNK, ...]).

    It does n <= CHUNK rounds, fewer if the count of trajectories reaches the limit before. Compiled ahead, so that
    no later call compiles.
    """
    federation = local_federation(problem)
    one_round = functools.partial(ALGORITHMS[problem.config.algorithm], problem, federation)

    def advance(state: State, rounds: Array, limit: Array) -> tuple[Array, State, Log]:
        shapes = jax.eval_shape(one_round, state)[1]
        logs = jax.tree.map(lambda x: jnp.zeros((CHUNK, *x.shape), x.dtype), shapes)

        def body(carry: tuple[Array, State, Log]) -> tuple[Array, State, Log]:
            i, state, logs = carry
            state, log = one_round(state)
            return i + 1, state, jax.tree.map(lambda all_, one: all_.at[i].set(one), logs, log)

        def more(carry: tuple[Array, State, Log]) -> Array:
            return (carry[0] < rounds) & (carry[1].counted < limit)

        return jax.lax.while_loop(more, body, (jnp.int32(0), state, logs))

    compiled: Advance = jax.jit(advance).lower(first_state(problem, 0), jnp.int32(1), jnp.int32(1)).compile()
    pool = problem.environment if isinstance(problem.environment, Pool) else None
    if pool is None:
        return compiled

    def checked(state: State, rounds: Array, limit: Array) -> tuple[Array, State, Log]:
        with _slots:
            result = jax.block_until_ready(compiled(state, rounds, limit))
        pool.check()
        return result

    return checked


class Sites(Protocol):
    """Agents outside this process."""

    def ask(self, broadcast: Broadcast) -> Answers | None:
        """What the K agents answer; None if it was asked to stop before enough of them did."""
        ...

    def tell(self, log: Log) -> None:
        """What came of their answers."""
        ...


class _Asked(Exception):
    """Carries what a round asks of its federation out of that round."""

    def __init__(self, broadcast: Broadcast, own: Lanes) -> None:
        self.broadcast, self.own = broadcast, own


def compile_apart(problem: Problem, sites: Sites) -> Advance:
    """As `compile_rounds`, for agents elsewhere: one round per call, compiled in pieces around the wait for them.

    The pieces come from the one function of the round: what it asks of its federation, and what it does with answers.
    """
    config, policy, environment = problem.config, problem.policy, problem.environment
    one_round = ALGORITHMS[config.algorithm]

    def begin(state: State) -> tuple[Broadcast, Lanes]:
        def federation(broadcast: Broadcast, own: Lanes) -> NoReturn:
            raise _Asked(broadcast, own)

        try:
            one_round(problem, federation, state)
        except _Asked as asked:
            return asked.broadcast, asked.own
        raise AssertionError("the round did not ask its federation")

    def sample(theta: Array, own: Lanes) -> Trajectories:
        steps = max(problem.steps, problem.test_steps)
        return rollout(environment, policy, policy.unravel(theta), own, steps)

    def complete(state: State, answers: Answers, own: Trajectories) -> tuple[State, Log]:
        return one_round(problem, lambda broadcast, lanes: (answers, own), state)

    state = first_state(problem, 0)
    broadcast, own = jax.eval_shape(begin, state)
    trajectories = jax.eval_shape(sample, broadcast.theta, own)
    each = jnp.zeros(config.agents, jnp.int32)
    answers = Answers(Replies(jnp.zeros((config.agents, policy.size)), each, each), each.astype(jnp.float32), each)
    log = jax.eval_shape(complete, state, answers, trajectories)[1]
    compiled_begin = jax.jit(begin).lower(state).compile()
    compiled_sample = jax.jit(sample).lower(broadcast.theta, own).compile()
    compiled_complete = jax.jit(complete).lower(state, answers, trajectories).compile()

    def advance(state: State, rounds: Array, limit: Array) -> tuple[Array, State, Log]:
        broadcast, own = compiled_begin(state)
        trajectories = compiled_sample(broadcast.theta, own)  # goes on while the sites work
        answers = sites.ask(broadcast)
        if answers is None:
            return jnp.int32(0), state, jax.tree.map(lambda x: np.zeros((0, *x.shape), x.dtype), log)
        after, happened = jax.block_until_ready(compiled_complete(state, answers, trajectories))
        if isinstance(environment, Pool):
            environment.check()
        sites.tell(happened)
        return jnp.int32(1), after, jax.tree.map(lambda x: x[None], happened)

    return advance


def last_test(problem: Problem, advance: Advance | None, state: State) -> np.ndarray:
    """The evaluation of a state's policy, as the next round would begin with it.

    Where rounds are fast, that round is done and forgotten, for nothing has to be compiled then; where they are slow,
    or cannot be done (`advance` is None), only its evaluation is. Both give what a longer run would have had, to the
    bit.
    """
    environment, policy = problem.environment, problem.policy
    if advance is None or isinstance(environment, Pool):

        @jax.jit
        def test(state: State) -> Array:
            next_round = make_broadcast(state.theta, state.key, state.round + 1, jnp.int32(0))
            lanes = evaluation_lanes(problem, next_round)
            return rollout(environment, policy, policy.unravel(state.theta), lanes, problem.test_steps).returns

        returns = np.asarray(test(state))
        if isinstance(environment, Pool):
            environment.check()
        return returns
    _, _, logs = advance(state, jnp.int32(1), jnp.int32(FOREVER))
    return np.asarray(logs.test_returns[0])


def make_evaluator(problem: Problem, episodes: int) -> Callable[[Params, Array], Trajectories]:
    """A compiled (params, key) -> greedy trajectories."""

    @jax.jit
    def evaluate(params: Params, key: Array) -> Trajectories:
        keys = episode_keys(stream(key, "evaluation"), episodes)
        greedy = lanes(keys, problem.test_steps, greedy=True)
        return rollout(problem.environment, problem.policy, params, greedy, problem.test_steps)

    def checked(params: Params, key: Array) -> Trajectories:
        trajectories = jax.block_until_ready(evaluate(params, key))
        if isinstance(problem.environment, Pool):
            problem.environment.check()
        return trajectories

    return checked
