"""The arenas as sections of the report."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fedpg.arena.games import Cast, Game, Ledger, Result, read
from fedpg.arena.heterogeneity import MAIN, STUDIES, WORST, picture, plans, seeds_of, tables, worth
from fedpg.arena.matrix import Matrix, matrix_of
from fedpg.arena.players import HONEST, NOBODY, SERVER, pairs_of, settings_of, title_of
from fedpg.arena.show import READING, STANDINGS, heat_map, percent, standings_rows
from fedpg.config import Config
from fedpg.experiments.fingerprint import fingerprint
from fedpg.experiments.render import Block, Details, Heading, Pictures, Table, Text
from fedpg.storage import write_whole

OURS, PAPERS = MAIN
SHOWN_WIDTH = 0.25
"""How far the agents of the lines at the top differ."""


class Arena(NamedTuple):
    """The largest matrix of an arena."""

    path: Path
    base: Config
    games: dict[Game, Result]
    cast: Cast
    matrix: Matrix


def arenas(results: Path) -> Iterator[Arena]:
    """Every arena of the results folder in which more than a search has been played."""
    for path in sorted((results / "arena").glob("*.json")):
        base, found, casts = read(path)
        games = {result.game: result for result in found}
        if casts:
            cast = max(casts, key=lambda cast: cast.size)
            yield Arena(path, base, games, cast, matrix_of(games, *cast))


def in_short(results: Path) -> Iterator[Block]:
    """What the arenas say of the default, a line each."""
    for _, base, _, _, matrix in arenas(results):
        standings = {standing.defence: standing for standing in matrix.standings()}  # the best worst case first
        if base.vary or OURS not in standings:
            continue
        ours = standings[OURS]
        line = (
            f"**{title_of(base, len(matrix.seeds))}**: the worst of {len(matrix.attacks)} attacks ({ours.by}) leaves "
            f"{OURS} {percent(ours.worst)} of what as many honest agents learn"
        )
        others = [standing for name, standing in standings.items() if name != OURS]
        if others:
            line += f"; the best of {len(others)} other rules, {others[0].defence}, keeps {percent(others[0].worst)}"
        if PAPERS in standings:
            line += f", the paper's filter {percent(standings[PAPERS].worst)}"
        yield Text(f"{line}. The server alone has {percent(matrix.share(NOBODY, SERVER))}.")
    for task in STUDIES:
        seeds = seeds_of(task, results)
        for plan in plans(task) if seeds else ():
            played = Ledger(results, plan.base).results
            lied, honest = worth(played, (WORST[0], OURS), seeds), worth(played, (NOBODY, HONEST), seeds)
            if plan.width == SHOWN_WIDTH and lied and honest:
                yield Text(
                    f"**{task}, agents that differ by ±{plan.width:.0%}, three of ten lie** ({WORST[0]}): {OURS} keeps "
                    f"{lied.kept:.0%} of the honest, and the common policy is worth {lied.worst:,.0f} to the one it "
                    f"suits worst; by the plain mean of ten honest agents {honest.worst:,.0f}."
                )


def sections(results: Path, out: Path) -> Iterator[Block]:
    """The largest matrix of every arena in the results folder; its pictures are written to `out`."""
    found = list(arenas(results))
    if found:
        yield Heading("The arena: attacks against defences")
        yield Text(READING)
        yield Text("`fedpg arena --help` says how to play one, also with attacks and defences of your own.")
    for path, base, games, cast, matrix in found:
        title = title_of(base, len(matrix.seeds))
        picture = out / "pictures" / f"arena-{path.stem}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        write_whole(picture, heat_map(matrix, title))
        yield Heading(title, 3)
        played = [Game(*pair, seed) for pair in pairs_of(cast.attacks, cast.defences) for seed in cast.seeds]
        old = sum(games[game].code != fingerprint(settings_of(base, *game[:2])) for game in played)
        if old:
            yield Text(f"**{old} of these {len(played)} games were played by another version of the code.**", "warning")
        yield Pictures(title, f"pictures/{picture.name}", [heat_map(matrix, title, "svg")])
        ends = [[name, percent(score)] for name, score in matrix.references().items()]
        yield Table(("floor and ceiling", "share"), ends)
        yield Table(STANDINGS, standings_rows(matrix))
    yield from differing(results, out)


def differing(results: Path, out: Path) -> Iterator[Block]:
    """Agents that differ, on every task on which that has been played."""
    found = {task: seeds for task in STUDIES if (seeds := seeds_of(task, results))}
    if found:
        yield Heading("Agents that differ")
        yield Text("The return of the common policy in the honest agents' own tasks; `fedpg reproduce heterogeneity`.")
    for task, seeds in found.items():
        path = out / "pictures" / f"heterogeneity-{task}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, picture(task, results, seeds))
        title = f"{task}, agents that differ, {len(seeds)} seed{'s' * (len(seeds) > 1)}"
        yield Pictures(title, f"pictures/{path.name}", [picture(task, results, seeds, "svg")])
        worth, joining = tables(task, results, seeds)
        yield Heading(worth.title, 3)
        defence = worth.columns.index("defence")
        shown = [row for row in worth.rows if row[defence] in (*MAIN, SERVER, HONEST)]
        yield Table(worth.columns, shown)
        if len(shown) < len(worth.rows):
            yield Details(f"{task}: every defence", [Table(worth.columns, worth.rows)])
        yield Heading(joining.title, 3)
        yield Table(joining.columns, joining.rows)
