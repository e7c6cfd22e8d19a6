"""More agents learn faster: FedPG-BR with 1, 3 and 10 agents, from the runs that are stored in results/runs."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import fedpg
from fedpg.experiments.store import load, path_of

RESULTS = Path(__file__).parents[2] / "results"
grid = np.linspace(0, 3000, 121)

figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
for agents in (1, 3, 10):
    config = fedpg.make_config("CartPole-v1", "paper", agents=agents)
    runs = [load(path_of(RESULTS, config, seed)) for seed in range(10)]
    curves = np.array([np.interp(grid, run.trajectories, run.returns) for run in runs])
    mean, error = curves.mean(axis=0), curves.std(axis=0, ddof=1) / np.sqrt(len(runs))
    axes.plot(grid, mean, label=f"K = {agents}")
    axes.fill_between(grid, mean - 1.645 * error, mean + 1.645 * error, alpha=0.2)
axes.set_xlabel("trajectories, as the paper counts them")
axes.set_ylabel("greedy return, ten seeds, 90%")
axes.set_title("FedPG-BR on CartPole, all agents honest", fontsize=10)
axes.legend(loc="lower right")
axes.grid(alpha=0.3)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "more_agents.png", dpi=120)
