"""How well it learns: every setting of the learning table, ten seeds each, against its bar. About twenty minutes.

make study                     # all rows, writes docs/learning.md
python studies/learning.py honest sign     # only the rows with these words in their name
"""

import itertools
import sys
import tempfile
from pathlib import Path

import numpy as np

from fedpg import make_config
from fedpg.agents import make_problem
from fedpg.training import Records, train_seeds

SEEDS = range(10)
AT = (500, 1000, 2000, 5000)
LAST = 20
ATTACKS = ("random-noise", "random-action", "sign-flipping", "fedpg-attack", "variance-attack")
MORE_ATTACKS = ("zero-gradient", "reward-flipping", "shuffled-rewards")
PRESETS = {
    "paper": {},
    "released": {"preset": "released"},
    "released, sigma auto": {"preset": "released", "sigma": "auto"},
}


def rows() -> dict[str, tuple[dict, dict[int, float]]]:
    """name -> (settings, {trajectories: the return to reach}); a negative bar is one to stay under."""
    table: dict[str, tuple[dict, dict[int, float]]] = {}
    for preset, settings in PRESETS.items():
        barred = preset in ("paper", "released")  # the third is there to compare sigmas
        table[f"{preset}: K=10 honest"] = (settings | {"agents": 10}, {1000: 420, 2000: 480} if barred else {})
        table[f"{preset}: K=3 honest"] = (settings | {"agents": 3}, {1000: 410} if barred else {})
        table[f"{preset}: K=1"] = (settings | {"agents": 1}, {5000: 450} if barred else {})
        for attack in (*ATTACKS, *MORE_ATTACKS):
            # The same attacks for all, those of the figures, so that the rows can be compared.
            lies = {"agents": 10, "byzantine": 3, "attack": attack, "attack_form": "figures"}
            bars = {1000: 350, 2000: 430} if attack == "fedpg-attack" else {1000: 400, 2000: 460}
            table[f"{preset}: K=10, 3 {attack}"] = (settings | lies, bars if barred and attack in ATTACKS else {})
    for preset, algorithm in itertools.product(("paper", "released"), ("gpomdp", "svrpg")):
        alone = {"preset": preset, "algorithm": algorithm, "agents": 1}
        lies = alone | {"agents": 10, "byzantine": 3, "attack": "sign-flipping"}
        table[f"{preset}: {algorithm} K=1"] = (alone, {})
        bars = dict.fromkeys(AT, -50) if algorithm == "gpomdp" else {}
        table[f"{preset}: {algorithm} K=10, 3 sign-flipping"] = (lies, bars)
    return table


def measure(settings: dict) -> list[Records]:
    """The records of all seeds."""
    with tempfile.TemporaryDirectory() as folder:
        runs = train_seeds(make_problem(make_config(**settings)), SEEDS, Path(folder) / "runs")
        return [run.records for run in runs]


def describe(name: str, records: list[Records], bars: dict[int, float]) -> tuple[str, bool]:
    """One line of the table, and whether all its bars are met."""
    cells, good = [], True
    for at in AT:
        mean, error = _mean_error([r.return_at(at) for r in records])
        bar = bars.get(at)
        met = bar is None or (mean >= bar if bar > 0 else mean < -bar)
        mark = "" if bar is None else f" ({'≥' if bar > 0 else '<'} {abs(bar):g}{'' if met else ', MISSED'})"
        cells.append(f"{mean:.0f} ± {error:.0f}{mark}")
        good = good and met
    mean, error = _mean_error([r.test_returns[-LAST:].mean() for r in records])
    config = records[0].config
    kept = np.concatenate([r.accepted()[0] for r in records]).mean() / (config.agents - config.byzantine)
    let_in = np.concatenate([r.accepted()[1] for r in records]).mean() / max(config.byzantine, 1)
    cells += [f"{mean:.0f} ± {error:.0f}", f"{kept:.1%}", f"{let_in:.0%}" if config.byzantine else ""]
    return f"| {name} | " + " | ".join(cells) + " |", good


def _mean_error(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1) / len(values) ** 0.5)


HEADER = (
    "| setting | " + " | ".join(map(str, AT)) + f" | last {LAST} evaluations | honest kept | Byzantine kept |\n"
    "|---|" + "---|" * (len(AT) + 3)
)
INTRODUCTION = """# How well it learns: CartPole

Written by `make study`. Mean greedy return (10 episodes) over seeds 0 to 9, ± one standard error, at 500 to 5000
trajectories as the paper counts them; in brackets the bar that the project set itself for that cell. All rows use the
attacks of the paper's figures. "Kept" is the share of replies that the filter accepted.

"""


def main(words: list[str]) -> int:
    chosen = {name: row for name, row in rows().items() if not words or any(word in name for word in words)}
    print(HEADER, flush=True)
    lines, all_good = [], True
    for name, (settings, bars) in chosen.items():
        line, good = describe(name, measure(settings), bars)
        lines.append(line)
        all_good = all_good and good
        print(line, flush=True)
    if not words:
        (Path(__file__).parents[1] / "docs/learning.md").write_text(
            INTRODUCTION + HEADER + "\n" + "\n".join(lines) + "\n"
        )
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
