"""`fedpg reproduce heterogeneity`."""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from fedpg.cli.arena import Stopped, play_missing
from fedpg.cli.arguments import on_signal
from fedpg.errors import ConfigError
from fedpg.presets import renamed
from fedpg.screen import make_console

if TYPE_CHECKING:
    from fedpg.arena.games import Ledger
    from fedpg.cli.reproduce import Reproduce


def reproduce_heterogeneity(command: "Reproduce", seeds: Sequence[int]) -> int:
    """Play what is missing, print the tables, and draw the pictures."""
    from fedpg.arena.heterogeneity import STUDIES, picture, plans, play, tables
    from fedpg.experiments.runner import say
    from fedpg.storage import write_whole

    if command.dry_run or command.adopt or command.only or command.engine != "local" or command.old == "keep":
        raise ConfigError(
            "heterogeneity takes --task, --seeds, --trajectories, --results, --runs and --old verify only: what other "
            "code has played is played again, or verified"
        )
    tasks = [renamed(task)[0] for task in command.task] or list(STUDIES)
    for task in tasks:
        plans(task, command.trajectories)  # an error now, not after an hour
    stop, console = threading.Event(), make_console()

    def play_pairs(ledger: "Ledger", pairs: Sequence[tuple[str, str]], seeds: Sequence[int]) -> None:
        play_missing(ledger, pairs, seeds, command.runs / "arena", stop, verify=command.old == "verify")

    for task in tasks:
        try:
            with on_signal(stop, "stopping; what has been played is kept"):
                play(task, command.results, seeds, command.trajectories, play_pairs)
        except Stopped as stopped:
            say(str(stopped))
            return 130
        for found in tables(task, command.results, seeds, command.trajectories):
            table = Table(title=found.title, box=box.SIMPLE_HEAD, pad_edge=False)
            for name in found.columns:
                table.add_column(name, justify="left" if name in ("attack", "defence", "its task") else "right")
            for row in found.rows:
                table.add_row(*row)
            console.print(table)
        path = command.results / "pictures" / f"heterogeneity-{task}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, picture(task, command.results, seeds, trajectories=command.trajectories))
        print(path)
    return 0
