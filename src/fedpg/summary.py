"""What a run came to, in words and tables, from records only."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table

from fedpg.screen import make_console
from fedpg.training import Run
from fedpg.training.each import Each
from fedpg.training.harm import HARM
from fedpg.training.progress import nobody_knows, why_unused

MARKS = (250, 500, 1000, 2000, 3000, 5000, 10_000)
"""Trajectories at which several seeds are averaged."""
COLUMNS = (
    *("seed", "return", "traj.", "rounds", "honest kept", "Byz. kept", "harm"),
    *("R1/R2/none", "sec.", "ksteps/s"),
)
"""Short, so that the table fits 80 columns."""
KNOWN = ("Byz. kept", "harm")
"""Columns for where it is known who is honest."""
OF_SITES = ("federation.jsonl", "sites.json")
"""Files that only the run folder of a federation has; the first appears with the first event."""


def print_summary(runs: Sequence[Run], folder: Path) -> None:
    """A row per seed, and for several seeds their mean along the way."""
    config = runs[0].config
    table = Table(title=config.title, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    unknown = nobody_knows(config, is_of_sites(runs[0].folder))
    shown = [name for name in COLUMNS if not (unknown and name in KNOWN)]
    for name in shown:
        title = "accepted" if unknown and name == "honest kept" else name
        table.add_column(title, justify="right", no_wrap="/" in name)
    for run in runs:
        row = dict(zip(COLUMNS, _summary_row(run), strict=True))
        table.add_row(*(row[name] for name in shown))
    console = make_console()
    console.print(table)
    if any(np.isfinite(_harm(run)) for run in runs):
        print(f"{HARM} (mean over rounds)")
    if unused := sum(run.records.unused for run in runs):
        rounds = sum(len(run.records) for run in runs)
        print(f"{unused} of {rounds} rounds were not used: {why_unused(config)}")
    for run in runs:
        if config.byzantine and run.finished and len(run.records) < config.attack_start:
            what = f"seed {run.seed} was over after {len(run.records)} rounds"
            print(f"Nobody attacked: {what}, and the attack starts in round {config.attack_start}")
    for run in runs if len(runs) == 1 else ():
        if run.each is not None:
            console.print(each_table(run.each, config.byzantine, is_of_sites(run.folder)))
    print(f"return: greedy, mean of {config.test_episodes} episodes, after the last round. Everything is in {folder}")
    if len(runs) > 1 and min(run.records.trajectories[-1] for run in runs) >= MARKS[0]:
        console.print(_means(runs))


def is_of_sites(folder: Path | None) -> bool:
    """Whether the agents of the run in a folder were sites of a federation."""
    return folder is not None and any((folder / name).exists() for name in OF_SITES)


def each_table(each: Each, byzantine: int = 0, sites: bool = False) -> Table:
    """What a policy is worth to every agent, and to others; of sites nobody knows whether they have their task."""
    title = "return in every agent's own task"
    if sites:
        title = "return in the tasks that were handed out\n(of a site that joined with --task, not in its own)"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("agent", *each.parameters, "return"):
        table.add_column(name.replace("_", " "), justify="right")
    honest = len(each.own) - byzantine
    for agent, value in enumerate(each.own):
        numbers = [_short(column[agent]) for column in each.parameters.values()]
        table.add_row(f"{agent}{' (Byzantine)' if agent >= honest else ''}", *numbers, f"{value:.0f}")
    if len(each.own) == 1:
        table.caption = f"alone: the server's task is this one too, and has {each.nominal:.0f} in other episodes"
        return table
    kept = np.array(each.own[:honest])
    worst, best = int(kept.argmin()), int(kept.argmax())
    words = f"mean {kept.mean():.0f}, worst {kept[worst]:.0f} (agent {worst}), best {kept[best]:.0f} (agent {best})"
    words += f"; the server's task {each.nominal:.0f}"
    if each.unseen:
        words += f"; unseen tasks {np.mean(each.unseen):.0f}, the worst of them {min(each.unseen):.0f}"
    table.caption = words
    return table


def _short(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_short, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _means(runs: Sequence[Run]) -> Table:
    """The mean return over the seeds, with its standard error, along the way."""
    table = Table(title=f"Mean of {len(runs)} seeds ± standard error, at so many trajectories")
    cells = []
    for at in MARKS:
        if at <= min(run.records.trajectories[-1] for run in runs):
            returns = np.array([run.records.return_at(at) for run in runs])
            table.add_column(str(at), justify="right")
            cells.append(f"{returns.mean():.0f} ± {returns.std(ddof=1) / len(runs) ** 0.5:.0f}")
    table.add_row(*cells)
    return table


def _harm(run: Run) -> float:
    """NaN if nobody is there to do any."""
    return run.records.mean_harm() if run.config.byzantine else float("nan")


def _summary_row(run: Run) -> list[str]:
    records, config = run.records, run.config
    honest = config.agents - config.byzantine
    if not len(records):
        return [
            str(run.seed),
            f"{records.test_returns[-1]:.0f}",
            "0",
            "0",
            *[""] * 4,
            f"{run.seconds:.1f}",
            "",
        ]
    kept, let_in = records.accepted()
    rules = [int((records.column("rule") == rule).sum()) for rule in (1, 2, 0)]
    return [
        str(run.seed),
        f"{records.test_returns[-1]:.0f}",
        str(records.trajectories[-1]),
        str(len(records)),
        f"{kept.mean() / honest:.0%}",
        f"{let_in.mean() / config.byzantine:.0%}" if config.byzantine else "",
        f"{_harm(run):.1f}" if np.isfinite(_harm(run)) else "",
        "/".join(map(str, rules)) if config.aggregator != "mean" else "no defence",
        f"{run.seconds:.1f}",
        f"{records.steps / float(records.column('seconds').sum()) / 1e3:,.0f}",
    ]
