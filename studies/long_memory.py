"""What does it buy compass to remember agents for long? LunarLander takes three minutes a seed on one core.

    python studies/long_memory.py
    python studies/long_memory.py --recall 0.9 0.98 0.99 --seeds 5 6 7
    python studies/long_memory.py --task CartPole-v1 --seeds 0 1 2 --at 100 250 1000

Three of ten agents flip signs. compass judges by sums over rounds, of which a round counts 0.9 times what the next does
in a short memory, and 0.98 times in a long one; here with other factors for the long one (with 0.9 there is none),
everything else as it is. Printed are greedy returns, their mean from 700
trajectories on, and the shares of honest and of Byzantine replies that were accepted, of these in three parts of a run:
up to 350 trajectories, up to 700, and later.
"""

import argparse
import importlib

import numpy as np

from fedpg import Records, make_config, make_problem
from fedpg.federation import Local
from fedpg.machine import cores
from fedpg.server import Server
from fedpg.training.rounds import advance, evaluated, first_state

compass = importlib.import_module("fedpg.aggregators.compass")  # its package has a function of that name
LATE, PARTS = 700, (350, 700)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="LunarLander-v3")
    parser.add_argument("--recall", type=float, nargs="+", default=(0.9,), help="factors of the long memory")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2, 3, 4))
    parser.add_argument("--at", type=int, nargs="+", default=(250, 350, 500, 700, 1000), help="trajectories")
    options = parser.parse_args()
    for recall in options.recall:
        compass.RECALL = (compass.RECALL[0], recall)  # read when the rule is compiled, and this one is new
        config = make_config(options.task, agents=10, byzantine=3, attack="sign-flipping")
        problem = make_problem(config, aggregator=compass.compass())
        agents, server = Local(problem, cores()), Server(problem)
        lates = []
        for seed in options.seeds:
            state, records, let_in, kept = first_state(problem, seed), Records(problem.config), [], []
            records.add_test(*evaluated(problem, state))
            while state.counted < options.at[-1]:
                state, log = advance(problem, state, agents, server)
                records.add_round(log, 0.0)
                records.add_test(*evaluated(problem, state))
                accepted = np.asarray(log["accepted"])
                let_in.append(accepted[-problem.config.byzantine :].mean())
                kept.append(accepted[: -problem.config.byzantine].mean())
            reached = records.trajectories[1:]
            parts = np.split(np.array(let_in), np.searchsorted(reached, PARTS, side="right"))
            lates.append(float(records.test_returns[records.trajectories >= LATE].mean()))
            values = " ".join(f"{records.return_at(at):.0f}" for at in options.at)
            shares = " ".join(f"{part.mean():.0%}" for part in parts if len(part))
            found = f"late: {lates[-1]:.0f}  honest {np.mean(kept):.0%}  Byzantine {shares}"
            print(f"  {recall}, seed {seed}: {values}  {found}", flush=True)
        mean, error = np.mean(lates), np.std(lates, ddof=1) / len(lates) ** 0.5
        print(f"{recall}  late: {mean:.0f} +- {error:.0f}", flush=True)


if __name__ == "__main__":
    main()
