"""Do natural steps gain by variance reduction? CartPole takes some minutes.

    python studies/natural_variance.py
    python studies/natural_variance.py --task LunarLander-v3 --seeds 2 --at 350 700
    python studies/natural_variance.py --byzantine 3 --attack sign-flipping

Forms of one algorithm, honest agents by default, everything else as the preset `best` has it:

- `plain`: the product's natural steps, whose memory of rounds is an average;
- `inner N`: as in FedPG-BR, the server goes on after a round's step for N steps of its own. Each is along F^-1 v,
  v = g(tau | theta_n) - omega g(tau | theta_0) + mu for b trajectories of its own, as long a multiple of it as the
  round's own step was of F^-1 mu, and of no larger divergence;
- `recursive`: as in STORM (Cutkosky and Orabona, 2019), the average of older aggregates is moved along to the new
  policy. Agents send a second vector, omega g(tau | the policy before), and m + mu - mu(old) takes the place of m;
- `server`: the same, with mu - mu(old) from the server's own trajectories alone: nobody can lie about it.

Returns are means over seeds, with their standard errors, at so many trajectories as the paper counts them: the mean
over ten agents and the server, whose own are for F, for the check and for inner steps.
"""

import argparse
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpg import Agent, Algorithm, Records, Schema, make_config, make_problem
from fedpg.algorithms.natural import natural, step
from fedpg.federation import Local
from fedpg.machine import cores
from fedpg.metric import damped, divergence, fisher_at, share_of, signal_of, solve
from fedpg.problem import Outcome, make_broadcast
from fedpg.server import Server
from fedpg.training.rounds import advance, evaluated, first_state

KEEP = 0.35
"""As the product has it."""
PLAIN = natural(keep=KEEP)


@functools.partial(jax.jit, static_argnums=0)
def inner_move(policy: Any, theta: Array, theta_n: Array, v: Array, move: Array, mean: Array, states: Array) -> Array:
    """c F^-1 v, with the c of the round's move c F^-1 mean; shortened to that move's own divergence."""
    matrix = damped(fisher_at(policy, theta, states), mean)
    c = share_of(move @ matrix(move), mean @ move)
    mine = c * solve(matrix, v)
    most = divergence(policy, theta, theta + move, states)
    long = divergence(policy, theta_n, theta_n + mine, states)
    return mine * jnp.minimum(1.0, jnp.sqrt(share_of(most, long)))


def make_inner(count: int) -> Algorithm:
    """Natural steps, each with `count` steps of the server's own behind it."""

    def one_round(problem: Any, state: Any, federation: Any, server: Server) -> Any:
        before = state.theta
        state, outcome = PLAIN.round(problem, state, federation, server)
        if not outcome.verdict.somebody:
            return state, outcome
        t, stride, mu = state.round + 1, state.algorithm, outcome.verdict.gradient
        broadcast = make_broadcast(state.key, t, outcome.replies.batch, theta=before)
        theta = state.theta
        for n in range(1, count + 1):
            v, _, _ = server.semi_stochastic(theta, before, mu, broadcast, n)
            theta = theta + inner_move(problem.policy, before, theta, v, stride.move, stride.mean, server.own.states)
        whole = theta - before  # the next length is chosen by what is left at the end of all of it
        stride = stride._replace(move=whole, slope=stride.mean @ whole)
        own = outcome.own + count * problem.config.minibatch
        return state._replace(theta=theta, algorithm=stride), outcome._replace(own=own)

    return PLAIN._replace(round=one_round)


def answer_twice(cohort: Any, broadcast: Any, memory: Any) -> Any:
    plain, old = cohort.sampled_correction(broadcast.theta, broadcast.vectors["old"])
    return {"gradient": plain, "old": old}, memory


def make_recursive(by_server: bool) -> Algorithm:
    """Natural steps whose average of older aggregates moves along."""

    def one_round(problem: Any, state: Any, federation: Any, server: Server) -> tuple[Any, Outcome]:
        t, theta, (stride, old) = state.round + 1, state.theta, state.algorithm
        vectors = {"theta": theta} if by_server else {"theta": theta, "old": old}
        broadcast = make_broadcast(state.key, t, server.draw_batch(state.key, t), **vectors)
        replies, agents = federation.ask(broadcast, state.agents)
        verdict, aggregator = server.aggregate(state.aggregator, replies, broadcast)
        after = theta
        if verdict.somebody:
            own, mu, sent = server.contribution(broadcast), verdict.gradient, replies.sent("gradient").clean
            signal = signal_of(mu, sent, verdict.accepted, own.scores)
            if by_server:  # of the trajectories that it contributes from, if b is as many
                change = server.semi_stochastic(theta, old, jnp.zeros_like(theta), broadcast, 0).v
            else:
                weights = np.asarray(verdict.accepted) / max(1, np.sum(verdict.accepted))
                change = weights @ (np.asarray(sent) - np.asarray(replies.sent("old").clean))
            moved = stride._replace(mean=stride.mean + (change if t > 1 else 0.0))
            after, stride = step(problem.policy, KEEP, theta, mu, signal, own, moved)
        state = state._replace(theta=after, aggregator=aggregator, agents=agents, algorithm=(stride, theta))
        return state, Outcome(replies, verdict, 1, int(verdict.somebody), own=server.own_count)

    mine = PLAIN._replace(
        round=one_round,
        init=lambda problem, theta: (PLAIN.init(problem, theta), theta),
        warm_up=lambda problem, state, own: None,
    )
    if by_server:
        return mine
    twice = {"agent": Agent(answer_twice), "reply": Schema(vectors=("gradient", "old")), "broadcast": ("theta", "old")}
    return mine._replace(**twice)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="CartPole-v1")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--at", type=int, nargs="+", default=(50, 100, 150, 250, 500), help="trajectories")
    parser.add_argument("--minibatch", type=int, default=16, help="b, of an inner step")
    parser.add_argument("--forms", nargs="+", default=("plain", "recursive", "server", "inner 1", "inner 2"))
    parser.add_argument("--byzantine", type=int, default=0)
    parser.add_argument("--attack", default="sign-flipping")
    options = parser.parse_args()
    liars = {"byzantine": options.byzantine, "attack": options.attack} if options.byzantine else {}
    config = make_config(options.task, agents=10, minibatch=options.minibatch, **liars)
    forms = {"plain": PLAIN, "recursive": make_recursive(False), "server": make_recursive(True)}
    forms |= {f"inner {n}": make_inner(n) for n in (1, 2, 3)}
    for name in options.forms:
        algorithm = forms[name]
        problem = make_problem(config, algorithm=algorithm)
        agents, server = Local(problem, cores()), Server(problem)
        rows = []
        for seed in range(options.seeds):
            state, records = first_state(problem, seed), Records(config)
            records.add_test(*evaluated(problem, state))
            while state.counted < options.at[-1]:
                state, log = advance(problem, state, agents, server)
                records.add_round(log, 0.0)
                records.add_test(*evaluated(problem, state))
            rows.append([records.return_at(at) for at in options.at])
            print(f"  {name}, seed {seed}: {' '.join(f'{value:.0f}' for value in rows[-1])}", flush=True)
        mean, error = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) / len(rows) ** 0.5
        cells = [f"{at}: {m:.0f} +- {e:.0f}" for at, m, e in zip(options.at, mean, error, strict=True)]
        print(f"{name:10} {'  '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
