"""How far do natural steps go in a round, and how far N-PG-IGT's steps of one length? HalfCheetah takes two minutes.

    python studies/step_sizes.py
    python studies/step_sizes.py --task LunarLander-v3 --trajectories 200

Honest agents, everything else as the preset `best` has it. Printed for each round: the return before it, and the
divergence of the policy after it from the one before, in the mean over states of 16 trajectories.
"""

import argparse

import numpy as np

from fedpg import make_config, make_problem
from fedpg.federation import Local
from fedpg.machine import cores
from fedpg.metric import divergence
from fedpg.problem import make_broadcast
from fedpg.server import Server
from fedpg.training.rounds import advance, evaluated, first_state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="HalfCheetah-v5")
    parser.add_argument("--trajectories", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # Whoever trains, the states are found as natural steps find them.
    looking = make_problem(make_config(options.task))
    look = Server(looking)
    for algorithm in ("natural", "n-pg-igt"):
        problem = make_problem(make_config(options.task, algorithm=algorithm))
        agents, server, state = Local(problem, cores()), Server(problem), first_state(problem, options.seed)
        steps = []
        while state.counted < options.trajectories:
            before, value = state.theta, float(np.mean(evaluated(problem, state)[0]))
            state, _ = advance(problem, state, agents, server)
            seen = look.contribution(make_broadcast(state.key, state.round + 1, 16, theta=before), wanted=False)
            steps.append(float(divergence(problem.policy, before, state.theta, seen.states)))
            print(f"  {algorithm}, at {state.counted}: return {value:.0f}, divergence {steps[-1]:.3f}", flush=True)
        print(f"{algorithm}: divergence of a round {np.median(steps):.3f} (median of {len(steps)})", flush=True)


if __name__ == "__main__":
    main()
