"""How fast may natural steps shrink? LunarLander takes a quarter of an hour for five seeds of one form on one core.

    python studies/step_control.py --byzantine 3
    python studies/step_control.py --task CartPole-v1 --byzantine 3 --seeds 10 --at 100 250 500 1000
    python studies/step_control.py --task HalfCheetah-v5 --seeds 2 --at 50 100 150 300

After every round the divergence of the next step is multiplied by a factor that says how much of the last step's
slope was left at its end, at most 1.4. What is left is measured by noisy gradients: if the factor may be as little as
1/4, as it could once, steps become up to four times shorter as often as they become 1.4 times longer. Here are forms
with other least factors, everything else as the preset `best` has it; with `--byzantine`, so many of ten agents flip
signs. Printed are the mean greedy return over seeds and its standard error, and the median of the divergences that
lengths were chosen by.
"""

import argparse
import importlib

import numpy as np

from fedpg import Records, make_config, make_problem
from fedpg.federation import Local
from fedpg.machine import cores
from fedpg.problem import Problem
from fedpg.server import Server
from fedpg.training.rounds import advance, evaluated, first_state

steps = importlib.import_module("fedpg.algorithms.natural")  # its package has a function of that name
SHORTER = steps.SHORTER
"""As the product has it."""


def run(problem: Problem, server: Server, agents: Local, seed: int, until: int) -> tuple[Records, list[float]]:
    """The records of a run, and the divergences that the lengths of its steps were chosen by."""
    state, records, chosen = first_state(problem, seed), Records(problem.config), []
    records.add_test(*evaluated(problem, state))
    while state.counted < until:
        state, log = advance(problem, state, agents, server)
        records.add_round(log, 0.0)
        records.add_test(*evaluated(problem, state))
        chosen.append(float(state.algorithm.kl))
    return records, chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="LunarLander-v3")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--at", type=int, nargs="+", default=(100, 250, 350, 500, 700, 1000), help="trajectories")
    parser.add_argument("--least", type=float, nargs="+", default=(0.25, SHORTER), help="factors")
    parser.add_argument("--byzantine", type=int, default=0, help="of ten agents, who flip signs")
    options = parser.parse_args()
    liars = {"byzantine": options.byzantine, "attack": "sign-flipping"} if options.byzantine else {}
    for least in options.least:
        steps.SHORTER = least  # read when the step is compiled, so a compiled one is forgotten
        steps.step.clear_cache()
        problem = make_problem(make_config(options.task, agents=10, **liars))
        agents, server = Local(problem, cores()), Server(problem)
        rows, divergences = [], []
        for seed in range(options.seeds):
            records, chosen = run(problem, server, agents, seed, options.at[-1])
            rows.append([records.return_at(at) for at in options.at])
            divergences += chosen
            print(f"  {least:.2f}, seed {seed}: {' '.join(f'{value:.0f}' for value in rows[-1])}", flush=True)
        mean, error = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) / len(rows) ** 0.5
        cells = [f"{at}: {m:.0f} +- {e:.0f}" for at, m, e in zip(options.at, mean, error, strict=True)]
        print(f"{least:.2f} {'  '.join(cells)}  divergence {np.median(divergences):.4f}", flush=True)


if __name__ == "__main__":
    main()
