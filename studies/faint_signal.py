"""How much of ten agents' gradient is signal, and how the episodes of a policy end. Half a minute.

    fedpg train --task LunarLander-v3 --trajectories 400 --out runs/lander
    python studies/faint_signal.py runs/lander
    python studies/faint_signal.py runs/lander --traces 0.9 0.97 --discounts 0.99 0.999

Forty agents sample 16 trajectories each with the policy of a run. The share of signal is that of |m|^2, m the mean of
ten such agents, in the metric of a natural step: by the products of different agents' gradients, which have no noise in
common. It is printed for advantages with other traces (lambda) and other discounts.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedpg.estimators import gradient, make_estimator
from fedpg.metric import damped, fisher_at, solve
from fedpg.problem import make_broadcast
from fedpg.server import STATES, Server
from fedpg.training.load import read_policy

AGENTS, TEN = 40, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--traces", type=float, nargs="+", default=(0.9, 0.95, 0.97, 0.99))
    parser.add_argument("--discounts", type=float, nargs="+", default=None, help="by default the task's")
    options = parser.parse_args()
    problem, params = read_policy(options.run)
    policy, theta = problem.policy, problem.policy.ravel(params)
    server = Server(problem)
    broadcast = make_broadcast(jax.random.key(0, impl="threefry2x32"), 1, 16, theta=theta)
    batches = [server.sample(theta, broadcast, n, 16) for n in range(AGENTS)]

    returns, lengths, ended = (
        np.concatenate([np.asarray(getattr(b, name)) for b in batches]) for name in ("returns", "lengths", "terminated")
    )
    for what, those in (("ended by the task", ended), ("cut off", ~ended)):
        if those.any():
            mean = f"mean return {returns[those].mean():.0f}, {lengths[those].mean():.0f} steps"
            print(f"{those.sum()} of {len(returns)} episodes {what}: {mean}")

    states = batches[0].some_steps(STATES)[0]

    @jax.jit
    def products(gradients: jax.Array) -> jax.Array:
        matrix = damped(fisher_at(policy, theta, states), jnp.mean(gradients, axis=0))
        return gradients @ jax.vmap(lambda g: solve(matrix, g))(gradients).T  # [K, K]

    for discount in options.discounts or (problem.config.discount,):
        for trace in options.traces:
            estimator = make_estimator("advantage", discount, trace=trace)
            one = jax.jit(lambda batch, estimator=estimator: gradient(estimator, policy, params, batch))
            gram = np.asarray(products(jnp.stack([one(batch) for batch in batches])), float)
            squares = np.trace(gram) / AGENTS
            signal = (gram.sum() - np.trace(gram)) / (AGENTS * (AGENTS - 1))
            share = signal / (signal + (squares - signal) / TEN)
            print(f"discount {discount}, lambda {trace}: {share:.0%} of ten agents' |m|^2 is signal")


if __name__ == "__main__":
    main()
