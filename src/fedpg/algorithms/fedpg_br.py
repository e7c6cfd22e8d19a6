"""Algorithm 1, FedPG-BR: filtered federation, then variance-reduced steps of the server."""

import jax

from fedpg.agents import Problem, make_broadcast
from fedpg.aggregators import make_filter
from fedpg.algorithms.server import (
    Log,
    State,
    draw_batch,
    draw_inner_steps,
    estimate_sigma,
    finish,
    inner_loop,
    own_lanes,
)
from fedpg.federation.local import Federation


def fedpg_br(problem: Problem, federation: Federation, state: State) -> tuple[State, Log]:
    """One round t of FedPG-BR; the line numbers are those of Algorithm 1."""
    t = state.round + 1
    batch = draw_batch(problem, jax.random.fold_in(state.key, t))  # B_t
    broadcast = make_broadcast(state.theta, state.key, t, batch)  # line 3
    answers, own = federation(broadcast, own_lanes(problem, broadcast))  # lines 4-6
    sigma, spread = estimate_sigma(problem, state, own)
    verdict = make_filter(problem.config)(answers.replies, sigma, batch, problem.config)  # line 7
    n = draw_inner_steps(problem, broadcast.key, batch)  # line 8
    inner = inner_loop(problem, state, broadcast, verdict, n)  # lines 9-12
    return finish(problem, state._replace(spread=spread), broadcast, answers, own, sigma, verdict, inner)  # line 13
