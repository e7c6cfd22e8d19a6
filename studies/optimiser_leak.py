"""Why the paper's curve is higher at 500 trajectories: its optimiser's state leaks from seed to seed. A minute.

Trains seeds 0 to 9 with the preset `released` (K = 10, honest), once as it should be, and once with each seed starting
from the Adam state that the seed before it ended with, as in the code behind the paper's figures.

    python studies/optimiser_leak.py
    python studies/optimiser_leak.py --task LunarLander-v3 --seeds 3 --at 500 1000 1500 2000     an hour
    python studies/optimiser_leak.py --task HalfCheetah-v5 --agents 1 --seeds 3 --at 5000 10000     half an hour
"""

import argparse

import numpy as np

from fedpg import Records, make_config, make_problem
from fedpg.federation import Local
from fedpg.machine import cores
from fedpg.server import Server
from fedpg.training.rounds import advance, evaluated, first_state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="CartPole-v1")
    parser.add_argument("--agents", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--leaking-only", action="store_true", help="the clean runs are known already")
    parser.add_argument("--at", type=int, nargs="+", default=(250, 500, 750, 1000), help="trajectories")
    options = parser.parse_args()
    problem = make_problem(make_config(options.task, preset="released", agents=options.agents))
    agents, server = Local(problem, cores()), Server(problem)
    for leak in (True,) if options.leaking_only else (False, True):
        optimizer, rows = None, []
        for seed in range(options.seeds):
            state, records = first_state(problem, seed), Records(problem.config)
            if leak and optimizer is not None:
                state = state._replace(optimizer=optimizer)
            # With the leak, a seed hands on what it has after a whole run; without, later rounds do not matter here.
            limit = max(problem.config.trajectories, options.at[-1]) if leak else options.at[-1]
            records.add_test(*evaluated(problem, state))
            while state.counted < limit:
                state, log = advance(problem, state, agents, server)
                records.add_round(log, 0.0)
                records.add_test(*evaluated(problem, state))
            optimizer = state.optimizer
            rows.append([records.return_at(at) for at in options.at])
            print(f"  seed {seed}: {' '.join(f'{value:.0f}' for value in rows[-1])}", flush=True)
        mean, error = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) / len(rows) ** 0.5
        cells = "  ".join(f"{at}: {m:.0f} ± {e:.0f}" for at, m, e in zip(options.at, mean, error, strict=True))
        print(f"{'leaking' if leak else 'clean  '}  {cells}", flush=True)


if __name__ == "__main__":
    main()
