"""What the defects behind the paper's figures do to its curves: put them back, one by one or together.

Trains with the preset `released` (honest agents), as it should be and with what the released code does instead:

- `leak`: each seed starts from the Adam state that the seed before it ended with;
- `noise`: all agents share one stream of noise, so that their gradients are nearly alike.

    python studies/defects.py                                                    a minute: CartPole, the leak
    python studies/defects.py --agents 3
    python studies/defects.py --task LunarLander-v3 --seeds 3 --at 500 1000 1500 2000     an hour
    python studies/defects.py --task HalfCheetah-v5 --agents 1 --seeds 3 --at 5000 10000     half an hour
    python studies/defects.py --task HalfCheetah-v5 --with noise --seeds 3 --at 250 500 1000     ten minutes
    python studies/defects.py --task HalfCheetah-v5 --with noise leak --until 1000 --seeds 3 --at 250 500 1000
"""

import argparse
from typing import Any

import numpy as np

from fedpg import Records, make_config, make_problem
from fedpg.federation import Local
from fedpg.machine import cores
from fedpg.server import Server
from fedpg.tasks import AgentEpisodes, pool
from fedpg.training.rounds import advance, evaluated, first_state


def share_noise() -> None:
    """From now on, all agents of tasks outside JAX act by the noise of agent 0; their first states are their own."""
    ordered = pool._order

    def alike(policy: Any, plan: Any, reseeds: bool, dishonest: bool, theta: Any, inputs: tuple[Any, ...]) -> Any:
        mine = ordered(policy, plan, reseeds, dishonest, theta, inputs)
        if not isinstance(plan, AgentEpisodes):  # the server's
            return mine
        keys, batch, agents, *rest = inputs
        first = ordered(policy, plan, reseeds, dishonest, theta, (keys, batch, np.zeros_like(agents), *rest))
        return mine._replace(noise=first.noise, random=first.random)

    pool._order = alike


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="CartPole-v1")
    parser.add_argument("--agents", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--with", dest="defects", nargs="+", choices=("leak", "noise"), default=("leak",))
    parser.add_argument("--defects-only", action="store_true", help="the clean runs are known already")
    parser.add_argument("--at", type=int, nargs="+", default=(250, 500, 750, 1000), help="trajectories")
    parser.add_argument(
        "--until", type=int, help="trajectories after which a seed hands on Adam's state; all by default"
    )
    options = parser.parse_args()
    problem = make_problem(make_config(options.task, preset="released", agents=options.agents))
    if "noise" in options.defects and not problem.task.simulator:
        parser.error("noise is shared in tasks outside JAX only: LunarLander-v3, HalfCheetah-v5")
    for defects in ((),) * (not options.defects_only) + (tuple(options.defects),):
        if "noise" in defects:
            share_noise()
        agents, server = Local(problem, cores()), Server(problem)
        leak, optimizer, rows, apart = "leak" in defects, None, [], []
        for seed in range(options.seeds):
            state, records = first_state(problem, seed), Records(problem.config)
            if leak and optimizer is not None:
                state = state._replace(optimizer=optimizer)
            # With the leak, a seed hands on what it has after a whole run; without, later rounds do not matter here.
            whole = options.until or problem.config.trajectories
            limit = max(whole, options.at[-1]) if leak else options.at[-1]
            records.add_test(*evaluated(problem, state))
            while state.counted < limit:
                state, log = advance(problem, state, agents, server)
                records.add_round(log, 0.0)
                records.add_test(*evaluated(problem, state))
                apart.append(np.median(log["distances"][np.isfinite(log["distances"])]) / np.median(log["norms"]))
            optimizer = state.optimizer
            rows.append([records.return_at(at) for at in options.at])
            print(f"  seed {seed}: {' '.join(f'{value:.0f}' for value in rows[-1])}", flush=True)
        mean, error = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) / len(rows) ** 0.5
        cells = "  ".join(f"{at}: {m:.0f} ± {e:.0f}" for at, m, e in zip(options.at, mean, error, strict=True))
        # How far a gradient is from the one in the middle, in lengths of a gradient.
        print(f"{' and '.join(defects) or 'clean'}:  {cells}  (gradients {np.median(apart):.2f} apart)", flush=True)


if __name__ == "__main__":
    main()
