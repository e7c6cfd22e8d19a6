"""What does a site gain by going on alone from the common policy? CartPole takes some minutes.

    python studies/adapting.py
    python studies/adapting.py --byzantine 3
    python studies/adapting.py --task HalfCheetah-v5 --width 0.5 --seeds 2

Ten agents that differ, as in `fedpg reproduce heterogeneity`, train one policy; then each honest agent goes on from it
in its own task, as `fedpg adapt` does. Beside it: the same agent alone, with as many trajectories in all and a random
policy to begin with. Greedy returns of 50 episodes in the agent's own task.
"""

import argparse

import jax
import numpy as np

from fedpg import make_config, make_problem
from fedpg.arena.heterogeneity import AGENTS, LIARS, STUDIES
from fedpg.arena.players import own_words
from fedpg.cli.adapt import going_on
from fedpg.server import evaluate
from fedpg.tasks import RoundKeys
from fedpg.training import train_seeds

EPISODES = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="CartPole-v1", choices=STUDIES)
    parser.add_argument("--width", type=float, help="how much agents differ; the most of the study by default")
    parser.add_argument("--byzantine", type=int, default=0, help="so many of ten lie (ALIE, z = 1.5)")
    parser.add_argument("--more", type=int, default=100, help="trajectories of an agent's own")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    study = STUDIES[options.task]
    words = study.words(study.widths[-1] if options.width is None else options.width)
    lies = {"byzantine": options.byzantine, "attack": "alie", "attack_options": ("z=1.5",)} if options.byzantine else {}
    config = make_config(options.task, agents=AGENTS, trajectories=study.trajectories, vary=words, **lies)
    common = make_problem(config)
    seeds, honest = range(options.seeds), AGENTS - LIARS  # the same agents, whoever lies
    starts = [common.policy.ravel(run.policy.params) for run in train_seeds(common, seeds)]
    print(f"{options.task}, {', '.join(words)}, {options.byzantine} of {AGENTS} lie; {options.seeds} seeds", flush=True)
    found = np.zeros((3, options.seeds, honest))
    for agent in range(honest):
        mine = own_words(config, agent)
        own = make_problem(going_on(config, options.task, mine, options.more))
        alone = make_problem(going_on(config, options.task, mine, study.trajectories + options.more))
        for seed, start in zip(seeds, starts, strict=True):
            key = jax.random.key(seed)
            adapted = train_seeds(own, [seed], start=start)[0].policy.params
            by_itself = train_seeds(alone, [seed])[0].policy.params
            thetas = (start, own.policy.ravel(adapted), own.policy.ravel(by_itself))
            found[:, seed, agent] = [
                evaluate(own, theta, RoundKeys(key, key, 0), EPISODES)[0].mean() for theta in thetas
            ]
        cells = ", ".join(f"{x:.0f}" for x in found[:, :, agent].mean(axis=1))
        numbers = ", ".join(f"{name} {float(value.rstrip(',')):.3g}" for name, value in (w.split("=") for w in mine))
        print(f"  agent {agent} ({numbers}): {cells}", flush=True)
    for name, of in {
        "the mean agent": found.mean(axis=2),
        "the agent that the common policy suits worst": np.take_along_axis(
            found, np.broadcast_to(found[0].argmin(axis=1)[None, :, None], (3, options.seeds, 1)), axis=2
        )[:, :, 0],
    }.items():
        mean, error = of.mean(axis=1), of.std(axis=1, ddof=1) / options.seeds**0.5
        cells = "  ".join(
            f"{what}: {m:.0f} +- {e:.0f}"
            for what, m, e in zip(("common", "adapted", "alone"), mean, error, strict=True)
        )
        print(f"{name}  {cells}", flush=True)
    gains = found[1] - found[0]
    more, less = (gains > 0).mean(), (gains < 0).mean()
    print(f"by {options.more} trajectories of their own {more:.0%} of the agents gain, {less:.0%} lose")


if __name__ == "__main__":
    main()
