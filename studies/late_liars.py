"""Who is let in, and what that does, while a task is being learnt and after. Seconds; from the stored runs alone.

    python studies/late_liars.py
    python studies/late_liars.py --task HalfCheetah-v5 --until 100 300 600

Of the stored runs of natural steps with compass under each attack of `fedpg reproduce algorithms`: the share of honest
and of Byzantine replies that were accepted, and the harm, how far what was let in moved a step, in standard errors of
the mean of the honest (the median of the rounds), up to each mark and beyond the one before; and the greedy return
there, its mean over seeds and its standard error.
"""

import argparse
from pathlib import Path

import numpy as np

from fedpg.experiments.catalogue import EXPERIMENTS
from fedpg.experiments.figures import runs_of
from fedpg.experiments.store import Stored, load_all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="LunarLander-v3")
    parser.add_argument("--until", type=int, nargs="+", default=(350, 700, 1000, 2000), help="trajectories")
    parser.add_argument("--results", type=Path, default=Path("results"))
    options = parser.parse_args()
    stored = load_all(options.results)
    for panel in EXPERIMENTS["algorithms"].on([options.task]).panels:
        for curve, runs in runs_of(panel, stored):
            if curve.label == "natural steps, compass" and runs[0].config.byzantine:
                print(f"{panel.title}, {len(runs)} seeds")
                for begin, end in zip((0, *options.until), options.until, strict=False):
                    print_part([run for run in runs if run.reached >= end], begin, end)


def print_part(runs: list[Stored], begin: int, end: int) -> None:
    """The rounds between two marks, of the runs that got to the second."""
    if not runs:
        return
    honest, byzantine, harm, returns = [], [], [], []
    for run in runs:
        reached = run.trajectories[1:]  # the first is the untrained policy, before any round
        inside = (reached > begin) & (reached <= end)
        config = run.config
        honest.append(run.columns["accepted_honest"][-len(inside) :][inside] / (config.agents - config.byzantine))
        byzantine.append(run.columns["accepted_byzantine"][-len(inside) :][inside] / config.byzantine)
        harm.append(run.columns["harm_step"][-len(inside) :][inside])
        returns.append(run.returns[1:][inside].mean())
    kept, let_in, moved = np.concatenate(honest), np.concatenate(byzantine), np.concatenate(harm)
    shares = f"honest {kept.mean():.0%}  Byzantine {let_in.mean():.0%}  harm {np.nanmedian(moved):.2f}"
    error = f" +- {np.std(returns, ddof=1) / len(returns) ** 0.5:.0f}" if len(returns) > 1 else ""
    print(f"  {begin} to {end}, {len(runs)} seeds: {shares}  return {np.mean(returns):.0f}{error}")


if __name__ == "__main__":
    main()
