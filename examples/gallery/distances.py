"""What an aggregator sees: every gradient's distance from the centre, round by round, and where it drew the line."""

import sys

import matplotlib.pyplot as plt
import numpy as np

import fedpg

run = fedpg.train(preset="paper", byzantine=3, attack="random-noise", trajectories=500, progress=False)
distances = run.records.column("distances")  # [rounds, K]; the last three agents are Byzantine
accepted = run.records.column("accepted")
rounds = np.arange(1, len(distances) + 1)

figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
for agent in range(10):
    honest = agent < 7
    for marker, mask, word in (("o", accepted[:, agent], "accepted"), ("x", ~accepted[:, agent], "turned away")):
        label = f"{'honest' if honest else 'Byzantine'}, {word}" if agent in (0, 7) else None
        colour = "#2a6f97" if honest else "#c1121f"
        axes.scatter(rounds[mask], distances[mask, agent], s=14, marker=marker, color=colour, label=label)
axes.plot(rounds, run.records.column("threshold"), color="black", lw=1, label="threshold")
axes.set_yscale("log")
axes.set_xlabel("round")
axes.set_ylabel("distance from the centre")
axes.set_title("the paper's filter against random noise (CartPole, seed 0)", fontsize=10)
axes.legend(fontsize=8, ncols=2)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "distances.png", dpi=120)
