"""The arenas as sections of the report."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fedpg.arena.games import Cast, Game, Ledger, Result, read
from fedpg.arena.heterogeneity import MAIN, STUDIES, WORST, picture, plans, seeds_of, tables, worth
from fedpg.arena.matrix import Matrix, matrix_of, ratio
from fedpg.arena.players import HONEST, NOBODY, SERVER, pairs_of, settings_of, title_of
from fedpg.arena.show import READING, STANDINGS, heat_map, percent, standings_rows
from fedpg.config import Config
from fedpg.experiments.findings import ENOUGH, NAMES, Finding, judged
from fedpg.experiments.fingerprint import fingerprint
from fedpg.experiments.render import Block, Details, Heading, Pictures, Table, Text
from fedpg.storage import write_whole

OURS, PAPERS = MAIN
SERVER_ALONE, STAR = "the server alone", "*"
STARRED = " Starred: games of another version of the code; further down it says how many."
SHOWN_WIDTH = 0.25
"""How far the agents of the lines at the top differ."""


class Arena(NamedTuple):
    """The largest matrix of an arena."""

    path: Path
    base: Config
    games: dict[Game, Result]
    cast: Cast
    matrix: Matrix

    @property
    def played(self) -> list[Game]:
        return [
            Game(*pair, seed) for pair in pairs_of(self.cast.attacks, self.cast.defences) for seed in self.cast.seeds
        ]

    @property
    def old(self) -> int:
        """How many of the games another version of the code has played."""
        codes = {pair: fingerprint(settings_of(self.base, *pair)) for pair in {game[:2] for game in self.played}}
        return sum(self.games[game].code != codes[game[:2]] for game in self.played)


def arenas(results: Path) -> Iterator[Arena]:
    """Every arena of the results folder in which more than a search has been played."""
    for path in sorted((results / "arena").glob("*.json")):
        base, found, casts = read(path)
        games = {result.game: result for result in found}
        if casts:
            cast = max(casts, key=lambda cast: cast.size)
            yield Arena(path, base, games, cast, matrix_of(games, *cast))


def found_in(results: Path) -> Iterator[Finding]:
    """What holds of the default in the arenas, a line each."""
    good, said = [], []
    for arena in arenas(results):
        if OURS in arena.cast.defences and not arena.base.vary:
            gains, base = arena.matrix.gains, arena.base
            left = {attack: ratio(gains[attack, OURS], gains[NOBODY, OURS]) for attack in arena.matrix.attacks}
            worst = min(left, key=lambda attack: left[attack].value)
            good.append(left[worst].value >= ENOUGH)
            game = (
                f"{NAMES.get(base.task, base.task)}{STAR * (arena.old > 0)}, {base.algorithm} to {base.trajectories:,}"
            )
            played = f"{len(left)} attacks, {len(arena.matrix.seeds)} seeds"
            said.append(f"{game} {percent(left[worst])} ({worst}; {played})")
    if good:
        words = f"what the worst attack leaves of the area that ten honest agents learn with {OURS}: {'; '.join(said)}"
        yield Finding(f"No attack that we know costs {OURS} more than a tenth", judged(good), words)
    good, said = [], []
    for task, name in NAMES.items():
        seeds = seeds_of(task, results)
        for plan in plans(task) if seeds else ():
            lied = worth(Ledger(results, plan.base).results, (WORST[0], OURS), seeds)
            if lied is not None and plan.width == SHOWN_WIDTH:
                good.append(lied.kept >= ENOUGH)
                old = STAR * (_old_of(task, results, seeds)[0] > 0)
                said.append(f"{name}{old} {lied.kept:.0%} ({len(seeds)} seeds)")
    if good:
        words = f"honest replies kept while three of ten lie ({WORST[0]}): {', '.join(said)}"
        yield Finding(f"Honest agents that differ by ±{SHOWN_WIDTH:.0%} are not taken for liars", judged(good), words)


def in_short(results: Path) -> Iterator[Block]:
    """What the arenas say of the default: a row for each."""
    arena_rows = [row for found in arenas(results) if (row := _in_a_row(found))]
    if arena_rows:
        yield Text(
            "**What liars can do**: what the worst attack of each arena leaves of what as many honest agents learn by "
            "the plain mean, with our default and with others." + STARRED * any(STAR in row[0] for row in arena_rows)
        )
        columns = ("", "attacks", f"{OURS}, worst case", "by", "best other rule", "the paper's filter", SERVER_ALONE)
        yield Table(columns, arena_rows)
    differ = [row for task in STUDIES if (row := _differing_in_a_row(task, results))]
    if differ:
        yield Text(
            f"**Agents that differ** by ±{SHOWN_WIDTH:.0%}, three of ten lie ({WORST[0]}): how many honest replies "
            f"{OURS} keeps, and what the common policy is worth to the agent that it suits worst."
            + STARRED
            * any(STAR in row[0] for row in differ)
        )
        yield Table(("", "seeds", "kept", "with liars", "ten honest agents, plain mean", SERVER_ALONE), differ)


def _in_a_row(arena: Arena) -> list[str]:
    """Our default beside the best other rule, the paper's and the floor; nothing where it has not played."""
    matrix = arena.matrix
    standings = {standing.defence: standing for standing in matrix.standings()}  # the best worst case first
    if arena.base.vary or OURS not in standings:
        return []
    ours, papers = standings[OURS], standings.get(PAPERS)
    others = [standing for name, standing in standings.items() if name != OURS]
    return [
        title_of(arena.base, len(matrix.seeds)) + STAR * (arena.old > 0),
        str(len(matrix.attacks)),
        percent(ours.worst),
        ours.by,
        f"{percent(others[0].worst)} ({others[0].defence} of {len(others)})" if others else "",
        percent(papers.worst) if papers else "",
        percent(matrix.share(NOBODY, SERVER)),
    ]


def _differing_in_a_row(task: str, results: Path) -> list[str]:
    seeds = seeds_of(task, results)
    for plan in plans(task) if seeds else ():
        played = Ledger(results, plan.base).results
        pairs = ((WORST[0], OURS), (NOBODY, HONEST), (NOBODY, SERVER))
        lied, honest, floor = (worth(played, pair, seeds) for pair in pairs)
        if plan.width == SHOWN_WIDTH and lied and honest and floor:
            returns = [f"{found.worst:,.0f}" for found in (lied, honest, floor)]
            return [task + STAR * (_old_of(task, results, seeds)[0] > 0), str(len(seeds)), f"{lied.kept:.0%}", *returns]
    return []


def sections(results: Path, out: Path) -> Iterator[Block]:
    """The largest matrix of every arena in the results folder; its pictures are written to `out`."""
    found = list(arenas(results))
    if found:
        yield Heading("The arena: attacks against defences")
        yield Text(READING)
        yield Text("`fedpg arena --help` says how to play one, also with attacks and defences of your own.")
    for arena in found:
        matrix = arena.matrix
        title = title_of(arena.base, len(matrix.seeds))
        picture = out / "pictures" / f"arena-{arena.path.stem}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        write_whole(picture, heat_map(matrix, title))
        yield Heading(title, 3)
        if old := arena.old:
            yield _warning(old, len(arena.played))
        yield Pictures(title, f"pictures/{picture.name}", [heat_map(matrix, title, "svg")])
        ends = [[name, percent(score)] for name, score in matrix.references().items()]
        yield Table(("floor and ceiling", "share"), ends)
        yield Table(STANDINGS, standings_rows(matrix), name="Every defence")
    yield from differing(results, out)


def _old_of(task: str, results: Path, seeds: Sequence[int]) -> tuple[int, int]:
    """(games of agents that differ that another version of the code has played, all games)."""
    found = []
    for plan in plans(task):
        ledger = Ledger(results, plan.base)
        pairs = [pair for pair in plan.pairs if any(Game(*pair, seed) in ledger.results for seed in seeds)]
        for pair in pairs:
            code = fingerprint(settings_of(plan.base, *pair))
            games = (Game(*pair, seed) for seed in seeds)
            found += [ledger.results[game].code != code for game in games if game in ledger.results]
    return sum(found), len(found)


def _warning(old: int, games: int) -> Text:
    return Text(f"**{old} of these {games} games were played by another version of the code.**", "warning")


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
        old, games = _old_of(task, results, seeds)
        if old:
            yield _warning(old, games)
        title = f"{task}, agents that differ, {len(seeds)} seed{'s' * (len(seeds) > 1)}"
        yield Pictures(title, f"pictures/{path.name}", [picture(task, results, seeds, "svg")])
        worth, joining = tables(task, results, seeds)
        yield Heading(worth.title, 3)
        defence = worth.columns.index("defence")
        shown = [row for row in worth.rows if row[defence] in (*MAIN, SERVER, HONEST)]
        yield Table(worth.columns, shown, words=3, name="The main defences")
        if len(shown) < len(worth.rows):
            yield Details("Every defence", [Table(worth.columns, worth.rows, words=3)])
        yield Heading(joining.title, 3)
        yield Table(joining.columns, joining.rows, name="Every agent")
