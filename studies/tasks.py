"""LunarLander and HalfCheetah with the paper's settings: trains what is missing, and keeps the records in results/.

    python studies/tasks.py                          everything: hours on two cores
    python studies/tasks.py lunarlander-k10 --seeds 0:1
    python studies/tasks.py --none                   only writes docs/tasks.md again, from results/

A run that was interrupted goes on where it was; one that is in results/ in full already is not trained again.
"""

import argparse
import csv
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedpg.agents import make_problem
from fedpg.cli.arguments import parse_seeds
from fedpg.config import Config, make_config, to_json
from fedpg.storage import write_whole
from fedpg.training import train_seeds
from fedpg.training.progress import make_reporter

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "tasks"
PAGE = ROOT / "docs" / "tasks.md"

CHEETAH: dict[str, Any] = {"task": "HalfCheetah-v5", "preset": "released"}
LANDER: dict[str, Any] = {"task": "LunarLander-v3", "preset": "released"}
FLIPPED: dict[str, Any] = {"byzantine": 3, "attack": "sign-flipping"}
SETTINGS: dict[str, dict[str, Any]] = {
    "lunarlander-k10": LANDER,
    "lunarlander-k1": LANDER | {"agents": 1},
    "lunarlander-k10-text": {"task": "LunarLander-v3", "preset": "paper", "trajectories": 3000},
    "halfcheetah-k10": CHEETAH | {"trajectories": 5000},
    "halfcheetah-k10-text": CHEETAH | {"preset": "paper", "trajectories": 700},
    "halfcheetah-k1": CHEETAH | {"agents": 1},
    "halfcheetah-k10-sign-flipping": CHEETAH | FLIPPED | {"trajectories": 5000},
    "halfcheetah-k10-gpomdp-sign-flipping": CHEETAH | FLIPPED | {"algorithm": "gpomdp", "trajectories": 5000},
    "halfcheetah-k10-table-sigma": CHEETAH | {"sigma": 0.9, "trajectories": 2000},
}
PAPER: dict[str, dict[int, int]] = {  # greedy return by trajectories, read off the paper's figures 1 and 2
    "lunarlander-k10": {1000: 25, 2000: 153, 5000: 165, 10_000: 203},
    "lunarlander-k1": {1000: -882, 2000: -324, 5000: -39, 10_000: 159},
    "halfcheetah-k10": {500: 775, 1000: 1220, 2000: 1656, 5000: 2041},
    "halfcheetah-k1": {500: 214, 1000: 538, 2000: 1019, 5000: 1576, 10_000: 1859},
    "halfcheetah-k10-sign-flipping": {500: 778, 1000: 1190, 2000: 1520, 5000: 2061},
    "halfcheetah-k10-gpomdp-sign-flipping": {500: 78, 1000: 222, 2000: 434, 5000: 917},
}
MARKS = (500, 1000, 2000, 3000, 5000, 10_000)
COLUMNS = (
    *("round", "trajectories", "trajectories_total", "test_return", "test_return_std", "train_return"),
    *("inner_steps", "rule", "sigma", "accepted_honest", "accepted_byzantine", "steps", "seconds"),
)


def main() -> None:
    """Train what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*SETTINGS, []], help="settings; all if none is given")
    parser.add_argument("--seeds", default="0:3")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "tasks", help="where the run folders are")
    parser.add_argument("--none", action="store_true", help="train nothing")
    options = parser.parse_args()
    for name in [] if options.none else options.names or SETTINGS:
        config = make_config(**SETTINGS[name])
        for seed in parse_seeds(options.seeds):
            rows = read(name).get(seed, [])
            if not rows or int(rows[-1]["trajectories"]) < config.trajectories:
                run = train_seeds(
                    make_problem(config),
                    [seed],
                    options.runs / f"{name}-seed{seed}",
                    resume=True,
                    reporter=make_reporter(config),
                )[0]
                keep(name, seed, config, run.records.rows())
                write_page()
    write_page()


def keep(name: str, seed: int, config: Config, rows: Iterable[dict[str, Any]]) -> None:
    """The records in compact form, and beside them the settings."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    lines = [",".join(COLUMNS)]
    for row in rows:
        lines.append(",".join(_cell(row.get(column)) for column in COLUMNS))
    write_whole(RESULTS / f"{name}-seed{seed}.csv", "\n".join(lines) + "\n")
    write_whole(RESULTS / f"{name}.json", json.dumps(to_json(config), indent=1) + "\n")


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def read(name: str) -> dict[int, list[dict[str, str]]]:
    """The kept rows of a setting, by seed."""
    files = sorted(RESULTS.glob(f"{name}-seed*.csv"))
    return {int(f.stem.rsplit("seed", 1)[1]): list(csv.DictReader(f.open())) for f in files}


def return_at(rows: list[dict[str, str]], trajectories: int) -> float | None:
    """The return of the first policy with so many trajectories; None if the run did not get there."""
    for row in rows:
        if int(row["trajectories"]) >= trajectories and row["test_return"]:
            return float(row["test_return"])
    return None


def write_page() -> None:
    """docs/tasks.md, from results/ alone."""
    head = "| setting | seeds | " + " | ".join(f"{mark:,}" for mark in MARKS) + " | honest kept | Byzantine kept |\n"
    table = head + "|---" * (head.count("|") - 1) + "|\n"
    for name, settings in SETTINGS.items():
        runs = read(name)
        if not runs:
            continue
        cells = []
        for mark in MARKS:
            values = [value for rows in runs.values() if (value := return_at(rows, mark)) is not None]
            spread = f" ({', '.join(f'{v:.0f}' for v in values)})" if len(values) > 1 else ""
            paper = PAPER.get(name, {}).get(mark)
            mean = f"**{np.mean(values):.0f}**{spread}" if values else ""
            cells.append(mean + (f" [{paper}]" if paper is not None and values else ""))
        agents, liars = settings.get("agents", 10), settings.get("byzantine", 0)
        kept = [_kept(rows, "accepted_honest", agents - liars) for rows in runs.values()]
        let_in = [_kept(rows, "accepted_byzantine", liars) for rows in runs.values()] if liars else []
        shares = [f"{np.mean(part):.1%}" if part else "" for part in (kept, let_in)]
        seeds = ", ".join(map(str, runs))
        table += f"| {name} | {seeds} | " + " | ".join([*cells, *shares]) + " |\n"
    page = f"""# LunarLander and HalfCheetah

Greedy return (mean of 10 episodes) at so many trajectories, as the paper counts them: the mean over the seeds, in
brackets each seed, in square brackets the paper's mean over ten seeds where it can be read off its figures. The
settings are the defaults, unless the name says otherwise: the paper's table, preset `released`, sigma `auto` on
HalfCheetah. Written by `python studies/tasks.py` from the records in `results/tasks/`.

{table}"""
    write_whole(PAGE, page)


def _kept(rows: list[dict[str, str]], column: str, of: int) -> float:
    return float(np.mean([int(row[column]) for row in rows if row[column]])) / of


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
