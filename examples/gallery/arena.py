"""The arena: 24 attacks against five defences, from the games that are stored in results/arena."""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

RESULTS = Path(__file__).parents[2] / "results" / "arena"
stored = json.loads((RESULTS / "CartPole-v1-natural-K10-3-500-b7b85d1f.json").read_text())
attacks, defences, seeds = stored["casts"][0]


def learnt(attack: str, defence: str) -> float:
    """The mean area under the curve, above that of the untrained policy."""
    found = (game for game in stored["games"] if (game["attack"], game["defence"]) == (attack, defence))
    games = [game for game in found if game["seed"] in seeds]
    return float(np.mean([game["area"] - game["curve"][0] for game in games]))


honest = learnt("no attack", "mean")
shares = np.array([[100 * learnt(attack, defence) / honest for defence in defences] for attack in attacks])
order = np.argsort(-shares.min(axis=0))  # the best worst case first
shares, defences = shares[:, order], [defences[i] for i in order]

figure, axes = plt.subplots(figsize=(6.6, 6.6), layout="constrained")
axes.imshow(shares, cmap="RdYlGn", vmin=0, vmax=110, aspect="auto")
for (row, column), share in np.ndenumerate(shares):
    colour = "white" if share < 20 or share > 95 else "black"
    axes.text(column, row, f"{share:.0f}", ha="center", va="center", fontsize=7, color=colour)
axes.set_xticks(range(len(defences)), defences, rotation=35, ha="right")
axes.set_yticks(range(len(attacks)), attacks, fontsize=8)
axes.set_title("learnt under attack, in % of ten honest agents (CartPole, three liars of ten)", fontsize=9)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "arena.png", dpi=120)
