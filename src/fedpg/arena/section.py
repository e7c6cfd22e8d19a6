"""The arenas as sections of the report."""

from collections.abc import Iterator
from pathlib import Path

from fedpg.arena.games import Game, read
from fedpg.arena.heterogeneity import MAIN, STUDIES, picture, seeds_of, tables
from fedpg.arena.matrix import matrix_of
from fedpg.arena.players import HONEST, SERVER, pairs_of, settings_of, title_of
from fedpg.arena.show import READING, STANDINGS, heat_map, percent, standings_rows
from fedpg.experiments.fingerprint import fingerprint
from fedpg.experiments.render import Block, Details, Heading, Pictures, Table, Text
from fedpg.storage import write_whole


def sections(results: Path, out: Path) -> Iterator[Block]:
    """The largest matrix of every arena in the results folder; its pictures are written to `out`."""
    paths = sorted((results / "arena").glob("*.json"))
    if paths:
        yield Heading("The arena: attacks against defences")
        yield Text(READING)
        yield Text("`fedpg arena --help` says how to play one, also with attacks and defences of your own.")
    for path in paths:
        base, found, casts = read(path)
        games = {result.game: result for result in found}
        cast = max(casts, key=lambda cast: cast.size, default=None)
        if cast is None:  # only searches so far
            continue
        matrix = matrix_of(games, *cast)
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
