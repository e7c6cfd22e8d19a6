"""One round after another: the algorithm's round, and what is kept of it whatever the algorithm."""

import functools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fedpg.agents import first_memory
from fedpg.aggregators import RULES, check_first_memory, check_memory
from fedpg.federation import Local
from fedpg.metric import damped, fisher_of, solve
from fedpg.problem import Federation, Memory, Problem, State, make_broadcast
from fedpg.server import SCORES, Server, evaluate
from fedpg.tasks.task import stream
from fedpg.training.harm import Harm, harm_of

NOBODY = RULES.index("nobody")
Log = dict[str, Any]
"""What is recorded of a round: a number or an array by name (`LOGGED`)."""
LOGGED = (
    "round",
    "train_return",  # mean over the honest agents
    "batch",  # trajectories of every agent: B_t, as often as the algorithm samples a batch
    "inner_drawn",  # N_t
    "inner_done",  # steps that were taken
    "ratio",  # mean importance weight of the last inner step that was looked at
    "status",  # [K]: index into STATUSES
    "accepted",  # [K]
    "rule",  # index into RULES
    "sigma",
    "threshold",
    "centre",
    "distances",  # [K]
    "norms",  # [K]
    "gradient_norm",  # of the aggregate
    "server_trajectories",  # all that the server sampled, or would have (the n = 0 step), for training
    "counted",  # trajectories of this round, as the paper counts them
    "agent_steps",  # environment steps simulated
    "server_steps",
    "bytes",  # of all vectors and numbers between the server and the agents, both ways
    *Harm._fields,  # in a simulation, where it is known who is honest; else NaN
)


def first_state(problem: Problem, seed: int) -> State:
    """The state before round 1: theta_0 depends on the seed alone, not on the algorithm or K."""
    key = jax.random.key(seed, impl="threefry2x32")
    theta = problem.policy.init(jax.random.fold_in(key, 0))
    aggregator = problem.aggregator.init(problem.config.agents, problem.policy.size)
    algorithm = problem.algorithm.init(problem, theta)
    check_first_memory("the aggregator's", aggregator)
    check_first_memory("the algorithm's", algorithm)
    return State(
        key=key,
        round=0,
        theta=theta,
        optimizer=problem.optimizer.init(theta),
        aggregator=aggregator,
        agents=first_memory(problem, problem.config.agents),
        algorithm=algorithm,
        output=theta,
        counted=0,
    )


def advance(
    problem: Problem, state: State, federation: Federation, server: Server, simulated: bool = True
) -> tuple[State, Log]:
    """One round, and what happened in it; between real sites, which are not `simulated`, nobody knows who lies."""
    if problem.attack.adaptive and isinstance(federation, Local):  # sites refuse such an attack
        federation = federation.watching(server, state.aggregator)
    after, outcome = problem.algorithm.round(problem, state, federation, server)
    check_memory("the algorithm's", state.algorithm, after.algorithm)
    federation.tell(state.round + 1, outcome)
    trajectories, steps = server.take_counts()
    verdict, replies = outcome.verdict, outcome.replies
    vectors = next(iter(replies.vectors.values()))
    t, honest = state.round + 1, ~problem.byzantine
    known = simulated & (replies.status == 0) & (honest | (t < problem.config.attack_start))
    scores = server.own.scores if problem.algorithm.needs else None
    steps_by = (state.theta, state.optimizer if problem.algorithm.optimised else None, scores)
    norms, length, keep, harm = _measure(
        problem.optimizer, vectors, verdict.gradient, state.key, t, steps_by, known, verdict.rule
    )
    batch = replies.batch * problem.algorithm.batches
    counted = paper_count(problem.config.agents, batch, outcome.own)
    log: Log = {
        "round": t,
        "train_return": float(np.mean(replies.returns[honest])),
        "batch": batch,
        "inner_drawn": outcome.inner_drawn,
        "inner_done": outcome.inner_done,
        "ratio": float(outcome.ratio),
        "status": replies.status,
        "accepted": np.asarray(verdict.accepted),
        "rule": int(verdict.rule),
        "sigma": float(verdict.sigma),
        "threshold": float(verdict.threshold),
        "centre": int(verdict.centre),
        "distances": np.asarray(verdict.distances),
        "norms": np.asarray(norms),
        "gradient_norm": float(length),
        "server_trajectories": trajectories,
        "counted": counted,
        "agent_steps": int(np.sum(replies.steps, dtype=np.int64)),
        "server_steps": steps,
        "bytes": message_bytes(problem),
        **{name: float(value) for name, value in harm._asdict().items()},
    }
    # theta-tilde_a: keeping the newest with probability 1 / t leaves each round's policy equally likely.
    output = after.theta if bool(keep) else state.output
    return after._replace(round=t, output=output, counted=state.counted + counted), log


@functools.partial(jax.jit, static_argnums=0)
def _measure(
    transformation: optax.GradientTransformation,
    vectors: Array,
    gradient: Array,
    run_key: Array,
    round_: Array,
    steps_by: tuple[Array, Memory | None, Array | None],
    honest: Array,
    rule: Array,
) -> tuple[Array, Array, Array, Harm]:
    """`steps_by` is what a step depends on: theta, the optimiser's memory where it has one, the scores if it is a
    natural one."""
    theta, optimizer, scores = steps_by

    def move(direction: Array) -> Array:
        if scores is not None:
            return solve(damped(fisher_of(scores), gradient), direction)
        if optimizer is None:
            return direction
        return transformation.update(-direction, optimizer, theta)[0]  # type: ignore[return-value]

    draw = jax.random.uniform(stream(jax.random.fold_in(run_key, round_), "output"))
    harm = harm_of(vectors, honest, gradient, rule != NOBODY, move)
    return jnp.linalg.norm(vectors, axis=1), jnp.linalg.norm(gradient), draw * round_ < 1.0, harm


def message_bytes(problem: Problem) -> int:
    """Of a round: what every agent is sent and sends, without what names and wraps it."""
    sent = len(problem.algorithm.broadcast) + len(problem.algorithm.reply.vectors)
    return 4 * problem.config.agents * (sent * problem.policy.size + len(problem.algorithm.reply.scalars))


def warm_up(problem: Problem, state: State) -> None:
    """Compile what is measured in every round."""
    agents, theta = problem.config.agents, state.theta
    vectors, known = jnp.zeros((agents, problem.policy.size)), np.zeros(agents, bool)
    rule = jnp.asarray(NOBODY, jnp.int32)
    scores = jnp.zeros((SCORES, problem.policy.size)) if "scores" in problem.algorithm.needs else None
    steps_by = (theta, state.optimizer if problem.algorithm.optimised else None, scores)
    _measure(problem.optimizer, vectors, theta, state.key, 1, steps_by, known, rule)


def paper_count(agents: int, batch: int, own: int) -> int:
    """Trajectories of a round as the paper's figures count them: of the agent, or averaged over K agents and server."""
    return batch + own if agents == 1 else round((batch * agents + own) / (agents + 1))


def evaluated(problem: Problem, state: State, cancel: threading.Event | None = None) -> tuple[np.ndarray, int]:
    """(the returns of a state's policy in greedy episodes [E], their environment steps)."""
    keys = make_broadcast(state.key, state.round + 1, 0).keys  # as the next round would have them
    return evaluate(problem, state.theta, keys, problem.config.test_episodes, cancel)
