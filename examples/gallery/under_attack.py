"""Learning curves under attack, from the games that are stored in results/arena."""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

RESULTS = Path(__file__).parents[2] / "results" / "arena"
stored = json.loads((RESULTS / "CartPole-v1-natural-K10-3-500-b7b85d1f.json").read_text())
DEFENCES = {
    "compass": "compass",
    "fltrust": "fltrust",
    "geometric-median": "geometric median",
    "fedpg": "the paper's",
    "mean": "no defence",
}
ATTACKS = ("no attack", "sign-flipping", "normalized")
SEEDS = range(3)

figure, panels = plt.subplots(1, len(ATTACKS), figsize=(8.5, 3), sharey=True, layout="constrained")
for axes, attack in zip(panels, ATTACKS, strict=True):
    for defence, label in DEFENCES.items():
        games = (g for g in stored["games"] if (g["attack"], g["defence"]) == (attack, defence))
        curves = [game["curve"] for game in games if game["seed"] in SEEDS]
        axes.plot(np.linspace(0, 500, len(curves[0])), np.mean(curves, axis=0), label=label)
    axes.set_title(attack)
    axes.set_xlabel("trajectories")
    axes.grid(alpha=0.3)
panels[0].set_ylabel(f"greedy return, mean of {len(SEEDS)} seeds")
panels[0].legend(fontsize=8, loc="lower right")
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "under_attack.png", dpi=120)
