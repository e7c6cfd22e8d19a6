"""The gap in Claim 1 of the paper, as numbers and as a picture: its rule R2 drops an honest agent. A few seconds.

python studies/claim1.py                      prints what each aggregator does, and draws docs/claim1.png
python studies/claim1.py --out claim1.png
"""

import argparse
import io
import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from fedpg.aggregators import AGGREGATORS, RULES, Own, Sent
from fedpg.storage import write_whole

HONEST, BYZANTINE, RADIUS = "#0072B2", "#D55E00", 2.0


def counterexample() -> np.ndarray:
    """Ten gradients, for a true one of 0 and sigma = 1: honest e_1 ... e_6, an honest -u, and three liars at 1.01 u."""
    u = np.full(6, 1 / math.sqrt(6))
    return np.stack([*np.eye(6), -u, *[1.01 * u] * 3]).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "claim1.png")
    options = parser.parse_args()
    points = counterexample()
    lengths = np.linalg.norm(points[:7], axis=1)
    apart = np.linalg.norm(points[:7, None] - points[None, :7], axis=2)
    print(f"honest agents: at most {lengths.max():.2f} sigma from the true gradient, {apart.max():.2f} from each other")
    # A batch so large that R1, whose radius shrinks with it, cannot keep enough: R2 decides.
    sent = Sent(jnp.asarray(points), jnp.full(10, True), 1000)
    for name in ("fedpg", "majority"):
        verdict, _ = AGGREGATORS[name](alpha=0.3, sigma=1.0).update((), sent, Own())
        kept = np.asarray(verdict.accepted)
        distance = float(verdict.distances[6])
        print(
            f"{name}: rule {RULES[int(verdict.rule)]} keeps {kept[:7].sum()} of 7 honest and "
            f"{kept[7:].sum()} of 3 Byzantine agents; the honest agent at -u is {distance:.2f} sigma from mu_mom"
        )
    draw(options.out, points)
    print(options.out)


def draw(path: Path, points: np.ndarray) -> None:
    """The plane of u and e_1: every other honest e_i is the mirror image of e_1 in u, in a dimension of its own."""
    u = np.full(6, 1 / math.sqrt(6))
    along = points @ u
    across = np.linalg.norm(points - along[:, None] * u, axis=1) * np.where(np.arange(10) % 2, -1, 1)
    figure = Figure(figsize=(7.2, 5.2), layout="constrained")
    axes = figure.subplots()
    axes.add_patch(Circle((0, 0), 1, fill=False, ls=":", color="#6b7280"))
    axes.text(0, -0.62, "sigma around the\ntrue gradient", color="#6b7280", ha="center", va="center", fontsize=9)
    axes.add_patch(Circle((1.01, 0), RADIUS, color=BYZANTINE, alpha=0.08, lw=0))
    axes.add_patch(Circle((1.01, 0), RADIUS, fill=False, color=BYZANTINE))
    axes.text(1.9, 0.9, "R2: 2 sigma\naround mu_mom", color=BYZANTINE, fontsize=9, ha="center")
    axes.plot(0, 0, "+", color="black", ms=10)
    axes.scatter(
        along[:6], across[:6], color=HONEST, zorder=3, label="honest: e_1 ... e_6 (each in a dimension of its own)"
    )
    axes.scatter(
        along[6:7], [0], color=HONEST, marker="X", s=90, zorder=3, label="honest: -u, dropped (2.01 sigma from mu_mom)"
    )
    axes.scatter(
        [1.01],
        [0],
        color=BYZANTINE,
        marker="s",
        s=50,
        zorder=3,
        label="three Byzantine agents at 1.01 u, one is mu_mom",
    )
    axes.annotate("", (1.01, -0.0), (-1, 0), arrowprops={"arrowstyle": "<->", "color": "#6b7280"})
    axes.text(0.02, -0.16, "2.01 sigma", color="#6b7280", fontsize=9)
    axes.set(aspect="equal", xlim=(-1.6, 3.3), ylim=(-2.1, 2.1), xlabel="along u", ylabel="away from u")
    axes.set_title("Claim 1 fails: R2 keeps three liars and drops an honest agent")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, -0.36), frameon=False, fontsize=9)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    write_whole(path, picture.getvalue())


if __name__ == "__main__":
    main()
