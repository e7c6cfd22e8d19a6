"""Small policies of every kind, and observations for them."""

import numpy as np

from fedpg.policies.mlp import categorical_mlp, gaussian_mlp

POLICIES = {
    "categorical": categorical_mlp(3, (4,), 3, "tanh", "plain"),
    "categorical, paper": categorical_mlp(3, (4,), 3, "tanh"),
    "gaussian, paper": gaussian_mlp(3, (4,), (-1.0, -1.0), (1.0, 1.0), "tanh", "paper"),
    "gaussian, released": gaussian_mlp(3, (4,), (-1.0, -1.0), (1.0, 1.0), "tanh", "released"),
}
OBSERVATIONS = np.random.default_rng(5).normal(size=(3, 40)).astype(np.float32)
