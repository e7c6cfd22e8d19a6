"""Agents that differ: one policy, learnt together, in every agent's own task. Trains twice."""

import sys

import matplotlib.pyplot as plt
import numpy as np

import fedpg

lengths = np.linspace(0.1, 1.5, 10).round(2)  # half of each agent's pole, in metres; usually 0.5
figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
for trajectories, colour in ((100, "#8ecae6"), (500, "#2a6f97")):
    run = fedpg.train(parameters={"half_length": lengths.tolist()}, trajectories=trajectories, progress=False)
    axes.plot(lengths, run.each.own, "o-", color=colour, label=f"after {trajectories} trajectories")
axes.axvline(0.5, color="black", lw=0.8, ls="--", label="the server's own pole")
axes.set_xlabel("half of an agent's pole, in metres")
axes.set_ylabel("greedy return in its own task")
axes.set_ylim(0, 520)
axes.set_title("ten agents with ten different poles learn one policy (CartPole, seed 0)", fontsize=10)
axes.legend(fontsize=8)
axes.grid(alpha=0.3)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "poles.png", dpi=120)
