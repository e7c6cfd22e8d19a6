"""The settings of a tiny federation."""

from typing import Any

TINY: dict[str, Any] = {
    "algorithm": "fedpg-br",
    "agents": 4,
    "byzantine": 1,
    "attack": "sign-flipping",
    "batch": (4, 4),  # two sizes are two programs more; those who ask about that say so
    "minibatch": 2,
    "horizon": 40,
    "test_horizon": 40,
    "test_episodes": 3,
    "hidden": (8,),
    "trajectories": 60,
}
