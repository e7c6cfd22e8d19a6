"""Does HalfCheetah-v2, on which the paper's curves were made, reward a policy as HalfCheetah-v5 does? Two minutes.

The model is the same file in all versions (total mass 14). What changed is MuJoCo: the solver of contacts and how often
it iterates, the damping of joints within a step, and which MuJoCo it is. This trains a policy with natural steps in
HalfCheetah-v5 (or takes one that there is), and plays it in Gymnasium's v4 and v5, and in v5 with what MuJoCo did then.

    python studies/cheetah_physics.py
    python studies/cheetah_physics.py runs/my-cheetah --episodes 40
"""

import argparse
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import fedpg
from fedpg.tasks.models import model_of

TASK = "HalfCheetah-v5"
OLD: dict[str, dict[str, Any]] = {
    "solver PGS": {"option": {"solver": "PGS", "iterations": "100"}},
    "solver CG": {"option": {"solver": "CG", "iterations": "100"}},
    "joints damped explicitly": {"flag": {"eulerdamp": "disable"}},
    "PGS, joints damped explicitly": {"option": {"solver": "PGS"}, "flag": {"eulerdamp": "disable"}},
    "elliptic cones of friction": {"option": {"cone": "elliptic"}},
}
"""What older versions of MuJoCo did, or could do, in words of today's."""


def changed(folder: Path, name: str, changes: dict[str, Any]) -> str:
    """A file with the model, changed."""
    tree = ElementTree.parse(str(model_of(TASK)))
    option = tree.getroot().find("option")
    assert option is not None
    for key, value in changes.get("option", {}).items():
        option.set(key, value)
    if "flag" in changes:
        ElementTree.SubElement(option, "flag", changes["flag"])
    path = folder / f"{name.replace(' ', '-').replace(',', '')}.xml"
    tree.write(path)
    return str(path)


def returns(environment: Any, policy: Any, episodes: int, horizon: int) -> np.ndarray:
    """The greedy returns of the policy."""
    found = []
    for seed in range(episodes):
        observation, _ = environment.reset(seed=seed)
        total = 0.0
        for _ in range(horizon):
            observation, reward, terminated, truncated, _ = environment.step(policy(observation))
            total += float(reward)
            if terminated or truncated:
                break
        found.append(total)
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="*", type=Path, help="run folders; without, some are trained")
    parser.add_argument("--seeds", type=int, default=3, help="policies to train")
    parser.add_argument("--trajectories", type=int, default=150)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--horizon", type=int, default=1000)
    options = parser.parse_args()
    policies = [fedpg.load(path).policy for path in options.policies] or [
        fedpg.train(TASK, agents=10, seed=seed, trajectories=options.trajectories).policy
        for seed in range(options.seeds)
    ]
    with tempfile.TemporaryDirectory() as folder:
        worlds = {name: gymnasium.make(name) for name in ("HalfCheetah-v5", "HalfCheetah-v4")}
        worlds |= {
            f"v5, {name}": gymnasium.make(TASK, xml_file=changed(Path(folder), name, changes))
            for name, changes in OLD.items()
        }
        for name, world in worlds.items():
            each = [returns(world, policy, options.episodes, options.horizon) for policy in policies]
            cells = "  ".join(f"{mine.mean():6.0f} ± {mine.std(ddof=1) / len(mine) ** 0.5:3.0f}" for mine in each)
            print(f"{name:38s} {cells}", flush=True)


if __name__ == "__main__":
    main()
