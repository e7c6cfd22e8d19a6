"""Harm, round by round: how far liars move the step, in standard errors of the honest mean. Trains three times."""

import sys

import matplotlib.pyplot as plt

import fedpg

figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
for aggregator, label in (("mean", "no defence"), ("fedpg", "the paper's filter"), ("compass", "compass")):
    run = fedpg.train(byzantine=3, attack="sign-flipping", aggregator=aggregator, trajectories=500, progress=False)
    axes.plot(run.records.trajectories[1:], run.records.column("harm"), label=label)
axes.axhline(1, color="black", lw=0.8, ls="--", label="what chance alone does")
axes.set_xlabel("trajectories, as the paper counts them")
axes.set_ylabel("harm, in standard errors")
axes.set_title("three of ten agents flip the sign of their gradients (CartPole, seed 0)", fontsize=10)
axes.legend(fontsize=8)
axes.grid(alpha=0.3)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "harm.png", dpi=120)
