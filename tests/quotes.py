"""Tables and sentences of the documents whose numbers are of stored results, and how these follow from what is stored.

The tests compare. After runs were made again, `python tests/quotes.py` writes what the documents should say.
"""

import functools
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from documents import ROOT
from fedpg.arena.games import Cast, Game, Ledger, Result, read
from fedpg.arena.heterogeneity import STUDIES, WORST, plans, seeds_of, worth
from fedpg.arena.matrix import matrix_of
from fedpg.arena.players import HONEST as PLAIN_MEAN
from fedpg.arena.players import NOBODY, SERVER
from fedpg.arena.show import percent, standings_rows
from fedpg.experiments.catalogue import EXPERIMENTS
from fedpg.experiments.panels import Curve, Panel
from fedpg.experiments.statistics import returns_at
from fedpg.experiments.store import Stored
from quoted import RESULTS, cells_of, number, stored, table_in
from quotes_paper import figure_1, under_attack

Rows = list[list[str]]


class Quote(NamedTuple):
    """A table of a document: the first below a heading and some words."""

    path: str
    heading: str
    words: str
    fill: Callable[[list[str], Rows], Rows]
    """What its rows should be, from its head and the rows that are there, whose first cells say what is meant."""

    def __str__(self) -> str:
        return f"{self.path}, {self.heading}, {self.words}"


class Said(NamedTuple):
    """A sentence of a document; its numbers are the groups of a pattern, words of which may be apart by any space."""

    path: str
    pattern: str
    fill: Callable[[list[str]], list[str]]
    """What the groups should be, from those that are there."""

    def __str__(self) -> str:
        return f"{self.path}, {self.pattern[:40]}"


HONEST, FLIP, ALIE, REWARDS = "10 honest agents", "3 of 10 flip signs", "3 of 10: ALIE, z = 1.5", "3 of 10 flip rewards"
OURS = "natural steps, compass"
MEAN, SERVER_ALONE, ONE_ALONE = (
    *("natural steps, 10 honest agents, plain mean", "natural steps, the server alone"),
    "natural steps, one agent alone",
)
ONE_PLACE = "natural steps, all trajectories in one place"
CURVES = {
    "CartPole": ("CartPole-v1", HONEST, OURS),
    "CartPole, honest": ("CartPole-v1", HONEST, OURS),
    "CartPole, 3 of 10 flip signs": ("CartPole-v1", FLIP, OURS),
    "3 of 10 flip signs": ("CartPole-v1", FLIP, OURS),
    "3 of 10: ALIE, z = 1.5": ("CartPole-v1", ALIE, OURS),
    "3 of 10 flip rewards": ("CartPole-v1", REWARDS, OURS),
    "ten honest agents, plain mean": ("CartPole-v1", HONEST, MEAN),
    "all trajectories in one place (the ceiling)": ("CartPole-v1", HONEST, ONE_PLACE),
    "the server alone": ("CartPole-v1", HONEST, SERVER_ALONE),
    "one agent alone": ("CartPole-v1", HONEST, ONE_ALONE),
    **{
        name + what: (task, condition, curve)
        for name, task in (("LunarLander", "LunarLander-v3"), ("HalfCheetah", "HalfCheetah-v5"))
        for what, condition, curve in (
            ("", HONEST, OURS),
            (", 3 of 10 flip signs", FLIP, OURS),
            (", 3 of 10: ALIE", ALIE, OURS),
            (", 3 of 10 flip rewards", REWARDS, OURS),
            (", 7 honest agents alone", FLIP, "natural steps, the 7 honest agents alone"),
            (", plain mean", HONEST, MEAN),
            (", the server alone", HONEST, SERVER_ALONE),
            (", one agent alone", HONEST, ONE_ALONE),
            (", all in one place", HONEST, ONE_PLACE),
        )
    },
}
"""What the first cell of a row calls a curve -> its task, condition and method."""


def curve_of(panel: Panel, label: str) -> Curve:
    return next(curve for curve in panel.curves if curve.label == label)


@functools.cache
def runs_of(task: str, condition: str, method: str) -> tuple[Stored, ...]:
    """The stored runs of a curve of the comparison of algorithms."""
    panel = next(p for p in EXPERIMENTS["algorithms"].panels if p.title == f"{task}, {condition}")
    return stored(panel, curve_of(panel, method))


def mean_at(runs: tuple[Stored, ...], mark: float) -> int:
    assert runs, "nothing is stored"
    values = returns_at(runs, np.array([mark]))[:, 0]
    assert np.isfinite(values).all(), f"{runs[0].config.task}: not every stored run is {mark:.0f} trajectories long"
    return round(float(values.mean()))


def with_seeds(what: str) -> tuple[str, tuple[Stored, ...]]:
    """The first cell of a row, with the number of seeds that are stored, and these."""
    name = re.sub(r", \d+ seeds?$", "", what)
    runs = runs_of(*CURVES[name])
    return f"{name}, {len(runs)} seeds", runs


def first_table(head: list[str], rows: Rows) -> Rows:
    """The README's: "499 at 250, 494 at 500"."""
    filled = []
    for what, ours, theirs in rows:
        name, runs = with_seeds(what)
        said = re.sub(
            r"-?[\d,]+ at ([\d,]+)", lambda found, runs=runs: f"{mean_at(runs, number(found[1]))} at {found[1]}", ours
        )
        filled.append([name, said, theirs])
    assert len(rows) >= 4
    return filled


def natural_steps(head: list[str], rows: Rows) -> Rows:
    """Marks in the columns; as far as every run of a row is, or as far as somebody has chosen to quote."""
    filled = []
    for what, *cells, theirs in rows:
        name, runs = with_seeds(what)
        marks = zip(cells, head[1:-1], strict=True)
        filled.append([name, *(cell and f"{mean_at(runs, number(mark)):,}" for cell, mark in marks), theirs])
    assert len(rows) >= 9
    return filled


def twenty_seeds(name: str) -> tuple[Stored, ...]:
    runs = runs_of(*CURVES[name])
    assert len(runs) == 20
    return runs


def overview(said: list[str]) -> list[str]:
    return [str(mean_at(twenty_seeds(name), mark)) for name in ("CartPole", FLIP) for mark in (100, 250, 500)]


def halves_of_seeds(said: list[str]) -> list[str]:
    """Four marks, seeds 10 to 19 and the first ten, honest and with liars."""
    return [
        str(mean_at(twenty_seeds(name)[half], mark))
        for name in ("CartPole", FLIP)
        for half in (slice(10, 20), slice(10))
        for mark in (100, 250, 500, 1000)
    ]


def untuned(head: list[str], rows: Rows) -> Rows:
    labels = {
        "ten honest agents": OURS,
        "3 of 10 flip signs": "the same, 3 of 10 flip signs",
        "ten honest agents, plain mean": MEAN,
        "the server alone": SERVER_ALONE,
        "one agent alone": ONE_ALONE,
        "all trajectories in one place": ONE_PLACE,
    }
    filled, panel = [], None
    for what, *_ in rows:
        task, _, rest = what.partition(", ")
        if task.endswith(("-v1", "-v5")):
            panel = next(p for p in EXPERIMENTS["untuned"].panels if p.task == task)
        else:
            rest = what
        assert panel is not None
        runs = stored(panel, curve_of(panel, labels[rest]))
        assert len(runs) == 3
        filled.append([what, *(str(mean_at(runs, number(mark))) for mark in head[1:])])
    assert len(rows) >= 15
    return filled


CONDITIONS = (HONEST, FLIP, ALIE, REWARDS)
UNDISTURBED = (SERVER_ALONE, ONE_ALONE, MEAN, ONE_PLACE)
"""Floors and ceiling, which nobody lies to."""


def _joined(runs: tuple[Stored, ...], marks: list[float]) -> str:
    return "; ".join(str(mean_at(runs, mark)) for mark in marks)


def _seeds_below(count: int, runs: tuple[Stored, ...], where: str) -> tuple[Stored, ...]:
    found = tuple(run for run in runs if run.seed < count)
    assert len(found) == count, f"{where}: {len(found)} seeds are stored, and {count} are quoted"
    return found


def rivals(task: str) -> Callable[[list[str], Rows], Rows]:
    """Every method of a task; the marks and the number of seeds are in the first cell of the head."""

    def fill(head: list[str], rows: Rows) -> Rows:
        found = re.fullmatch(r"at ([\d, ]+) trajectories, (\d+) seeds?", head[0])
        assert found is not None
        assert tuple(head[1:]) == CONDITIONS
        marks, seeds = [float(mark) for mark in found[1].split(", ")], int(found[2])
        panels = {panel.title: panel for panel in EXPERIMENTS["algorithms"].panels}
        filled = []
        for curve in panels[f"{task}, {HONEST}"].curves:
            conditions = (HONEST,) if curve.label in UNDISTURBED else CONDITIONS
            runs = [
                _seeds_below(seeds, runs_of(task, name, curve.label), f"{curve.label}, {name}") for name in conditions
            ]
            cells = [_joined(found, marks) for found in runs]
            filled.append([curve.label, *cells, *[""] * (len(CONDITIONS) - len(cells))])
        return filled

    return fill


def estimators(head: list[str], rows: Rows) -> Rows:
    panels = {panel.task: panel for panel in EXPERIMENTS["estimators"].panels}
    filled = [[curve.label] for curve in panels["CartPole-v1"].curves]
    for column in head[1:]:
        found = re.fullmatch(r"(\S+), (\d+) seeds?, at ([\d, ]+)", column)
        assert found is not None
        panel, seeds, marks = panels[found[1]], int(found[2]), [float(mark) for mark in found[3].split(", ")]
        for row, curve in zip(filled, panel.curves, strict=True):
            row.append(_joined(_seeds_below(seeds, stored(panel, curve), f"{row[0]}, {column}"), marks))
    assert len(head) == 4
    return filled


NEAREST = (OURS, "N-PG-IGT")


def nearest_rival(head: list[str], rows: Rows) -> Rows:
    """HalfCheetah's, five seeds."""
    filled = []
    for method in NEAREST:
        runs = runs_of("HalfCheetah-v5", HONEST, method)
        assert len(runs) == 5
        found = returns_at(runs, np.array([float(mark) for mark in head[1:]]))
        errors = found.std(axis=0, ddof=1) / len(found) ** 0.5
        filled.append([method, *(f"{m:.0f} ± {e:.0f}" for m, e in zip(found.mean(axis=0), errors, strict=True))])
    return filled


def nearest_rival_later(said: list[str]) -> list[str]:
    pairs = [run for name in NEAREST for run in runs_of("HalfCheetah-v5", HONEST, name) if run.seed < 2]
    return [f"{value:.0f}" for value in returns_at(pairs, np.array([600.0]))[:, 0]]


def sizes_of_steps(said: list[str]) -> list[str]:
    study = (RESULTS / "studies" / "step-sizes-HalfCheetah-v5.txt").read_text()
    return re.findall(r"divergence of a round ([\d.]+)", study)


@functools.cache
def games_of(name: str) -> tuple[dict[Game, Result], list[Cast]]:
    """The stored games of an arena, and who met whom."""
    (path,) = (RESULTS / "arena").glob(name)
    _, found, casts = read(path)
    return {result.game: result for result in found}, casts


def cast_of(name: str, defence: str, seeds: int) -> Cast:
    """The largest in which a defence has so many seeds."""
    casts = [c for c in games_of(name)[1] if defence in c.defences and len(c.seeds) == seeds]
    return max(casts, key=lambda cast: cast.size)


@functools.cache
def standings_of(name: str, cast: Cast) -> dict[str, list[str]]:
    """The rows of an arena's standings, by defence, the best first."""
    return {row[0]: row[1:] for row in standings_rows(matrix_of(games_of(name)[0], *cast))}


def standings(name: str) -> Callable[[list[str], Rows], Rows]:
    """Those of the defences that are quoted, with as many seeds as are said: the best first of those with most."""

    def fill(head: list[str], rows: Rows) -> Rows:
        filled = []
        for what, *_, seeds in rows:
            rule = what.split()[0]
            found = standings_of(name, cast_of(name, rule, int(seeds)))
            filled.append(((-int(seeds), list(found).index(rule)), [what, *found[rule], seeds]))
        return [row for _, row in sorted(filled)]

    return fill


def dear_tasks(head: list[str], rows: Rows) -> Rows:
    """The attacks that did most harm to compass on CartPole."""
    names = [f"{task}*-K10-3-*.json" for task in head[1:]]  # not of agents that differ
    matrices = [matrix_of(games_of(name)[0], *cast_of(name, "compass", 2)) for name in names]
    filled = []
    for name, *_ in rows:
        attack = NOBODY if name == "no liars" else name
        filled.append([name, *(percent(m.references().get(name) or m.share(attack, "compass")) for m in matrices)])
    assert len(rows) == 1 + 7 + 3
    return filled


DIFFER = {"CartPole": 10, "HalfCheetah": 2, "LunarLander": 2}
"""Seeds of the tables of agents that differ."""


def agents_that_differ(task: str) -> Callable[[list[str], Rows], Rows]:
    def fill(head: list[str], rows: Rows) -> Rows:
        long = next(name for name in STUDIES if name.startswith(task))
        seeds = seeds_of(long, RESULTS)
        assert len(seeds) == DIFFER[task]
        filled = []
        for plan in plans(long):
            played = Ledger(RESULTS, plan.base).results
            pairs = [(attack, defence) for defence in ("compass", "fedpg") for attack in (NOBODY, WORST[0])]
            main = [worth(played, pair, seeds) for pair in pairs]
            ends = [worth(played, (NOBODY, defence), seeds) for defence in (SERVER, PLAIN_MEAN)]
            cells = [f"{w.worst:,.0f}, {w.kept:.0%}" for w in main if w] + [f"{w.worst:,.0f}" for w in ends if w]
            filled.append([f"±{plan.width:.0%}", *cells])
        return filled

    return fill


def _printed(name: str) -> list[str]:
    return (RESULTS / "studies" / name).read_text().splitlines()


FORMS = ("step", "decision", "trajectory", "advantages")
"""Of corrections."""


def of_study(name: str, first: list[str]) -> Callable[[list[str], Rows], Rows]:
    """Lines such as "plain  50: 184 +- 20  100: ...", which begin with `first`, and rows in their order."""

    def fill(head: list[str], rows: Rows) -> Rows:
        printed = [line for line in _printed(name) if not line.startswith(" ")]
        assert [re.split(r"\s+\d+: ", line)[0] for line in printed] == first
        filled = []
        for (what, *_), line in zip(rows, printed, strict=True):
            found = dict(re.findall(r"(\d+): (-?\d+ \+- \d+)", line))
            filled.append([what, *(found[mark].replace("+-", "±") for mark in head[1:])])
        return filled

    return fill


def late_liars(head: list[str], rows: Rows) -> Rows:
    """The parts of the runs under sign flipping, as they are and as they were with a memory of ten rounds."""

    def parts(name: str) -> dict[str, tuple[str, ...]]:
        text = (RESULTS / "studies" / f"late-liars-LunarLander-v3{name}.txt").read_text()
        part = text.partition("3 of 10 flip signs, 10 seeds\n")[2].partition("\nLunarLander")[0]
        lines = re.findall(r"  (\d+ to \d+), 10 seeds: honest (\d+%)  Byzantine (\d+%)  harm ([\d.]+)", part)
        return {when: tuple(cells) for when, *cells in lines}

    now, before = parts(""), parts("-ten-rounds")
    return [[when, *now[when], *before[when][1:]] for when, *_ in rows]


def late_returns(head: list[str], rows: Rows) -> Rows:
    """The mean return from 700 to 1000 trajectories: of stored runs, and of those that were stored before."""

    def late(runs: tuple[Stored, ...]) -> str:
        found = []
        for run in _seeds_below(10, runs, "late returns"):
            inside = (run.trajectories > 700) & (run.trajectories <= 1000)
            found.append(float(run.returns[inside].mean()))
        return f"{np.mean(found):.0f} ± {np.std(found, ddof=1) / len(found) ** 0.5:.0f}"

    printed = "\n".join(_printed("late-liars-LunarLander-v3-ten-rounds.txt"))
    before = re.search(r"700 to 1000, 10 seeds: .*return (\d+) \+- (\d+)", printed)
    assert before is not None
    names = (*(CURVES[f"LunarLander{what}"] for what in ("", ", 7 honest agents alone", ", 3 of 10 flip signs")),)
    cells = [*(late(runs_of(*name)) for name in names), " ± ".join(before.groups())]
    return [[what, cell] for (what, *_), cell in zip(rows, cells, strict=True)]


def adapting(head: list[str], rows: Rows) -> Rows:
    files = {"CartPole": "CartPole-v1", "LunarLander": "LunarLander-v3", "HalfCheetah": "HalfCheetah-v5"}
    filled = []
    for what, *_ in rows:
        conditions, who = what.split(": ")
        name = files[conditions.split(",")[0]] + ("-lies" if "lie" in conditions else "")
        line = next(line for line in _printed(f"adapting-{name}.txt") if line.startswith(f"{who}  "))
        filled.append([what, *(f"{mean} ± {error}" for mean, error in re.findall(r": (-?\d+) \+- (\d+)", line))])
    assert len(rows) == 8
    return filled


def other_liars(said: list[str]) -> list[str]:
    """What is left from 700 to 1000 trajectories under ALIE and under flipped rewards."""
    text = "\n".join(_printed("late-liars-LunarLander-v3.txt"))
    found = [
        re.search(rf"{attack}, 3 seeds\n(?:.*\n)*?  700 to .*return (\d+) \+- (\d+)", text)
        for attack in ("ALIE, z = 1.5", "flip rewards")
    ]
    return [number for match in found if match is not None for number in match.groups()]


def trim_again(said: list[str]) -> list[str]:
    """With other seeds: the worst case, and what the server has alone."""
    text = (RESULTS / "studies" / "arena-trim-CartPole-v1.txt").read_text()
    worst = re.search(r"compass +(\d+)% \[(\d+), (\d+)\] +trim", text)
    alone = re.search(r"the server alone +(\d+)%", text)
    assert worst is not None
    assert alone is not None
    return [*worst.groups(), *alone.groups()]


REPRODUCTION = "docs/reproduction.md"
NATURAL, ARENA, DIFFERENT, SUCCESSORS = (
    "docs/natural.md",
    "docs/arena.md",
    "docs/heterogeneity.md",
    "docs/successors.md",
)
TABLES = [
    Quote("README.md", "What it reaches", "", first_table),
    Quote(NATURAL, "What it reaches", "", natural_steps),
    Quote(NATURAL, "What it reaches", "`fedpg reproduce untuned`", untuned),
    Quote(NATURAL, "Advantages", "buys", estimators),
    Quote(
        *(NATURAL, "Variance reduction", ""),
        of_study("natural-variance-CartPole-v1.txt", ["plain", "recursive", "server", "inner 1", "inner 2"]),
    ),
    Quote(
        *(NATURAL, "What limits it", "Liars on LunarLander"),
        of_study("step-control-LunarLander-v3-lies.txt", ["0.25", "0.71"]),
    ),
    Quote(
        *(SUCCESSORS, "Corrections with and without bias", ""),
        of_study(
            "unbiased-CartPole-v1.txt",
            [f"{a}, {form}" for a in ("byzpg", "res-nharpg", "fedsvrpg-m") for form in FORMS],
        ),
    ),
    Quote(NATURAL, "What limits it", "studies/late_liars.py", late_liars),
    Quote(NATURAL, "What limits it", "the worse of the two counts", late_returns),
    *(
        Quote(SUCCESSORS, "Side by side", f"**{t}**", rivals(t))
        for t in ("CartPole-v1", "LunarLander-v3", "HalfCheetah-v5")
    ),
    Quote(SUCCESSORS, "Side by side", "five seeds of both", nearest_rival),
    Quote(
        ARENA,
        "What it found with natural steps",
        "CartPole, 500 trajectories",
        standings("CartPole-v1-natural-K10-3-500-*.json"),
    ),
    Quote(ARENA, "What it found with natural steps", "On LunarLander and HalfCheetah", dear_tasks),
    Quote(ARENA, "What it found after the task is learnt", "", standings("CartPole-v1-natural-K10-3-1500-*.json")),
    Quote(ARENA, "What it found with FedPG-BR", "", standings("CartPole-v1-fedpg-br-K10-3-1500-*.json")),
    *(Quote(DIFFERENT, f"What it found on {task}", "", agents_that_differ(task)) for task in DIFFER),
    Quote(DIFFERENT, "A policy of one's own", "studies/adapting.py", adapting),
    Quote(REPRODUCTION, "Figure 1 in numbers", "", figure_1),
    Quote(REPRODUCTION, "Figures 2 and 3, and the variance attack", "", under_attack),
]
FOUR = r"(\d+), (\d+), (\d+) and (\d+)"
SENTENCES = [
    Said(
        "docs/overview.md",
        r"is (\d+), (\d+) and (\d+) at 100, 250 and 500 trajectories.*?signs (\d+), (\d+) and (\d+)",
        overview,
    ),
    Said(
        NATURAL,
        rf"alone they have {FOUR} at 100, 250, 500 and 1000 \(the first ten (\d+), (\d+), (\d+), (\d+)\), "
        rf"and with three who flip signs {FOUR} \((\d+), (\d+), (\d+), (\d+)\)",
        halves_of_seeds,
    ),
    Said(ARENA, r"it leaves (\d+)% \[(\d+), (\d+)\] with these, where the server alone has (\d+)%", trim_again),
    Said(NATURAL, r"ALIE \(three seeds\) leaves (\d+) ± (\d+) there, flipped rewards (\d+) ± (\d+)", other_liars),
    Said(SUCCESSORS, r"by a divergence of ([\d.]+) a round \(median\), N-PG-IGT's by ([\d.]+)", sizes_of_steps),
    Said(SUCCESSORS, r"with seeds 0 and 1 they have (\d+) and (\d+), N-PG-IGT (\d+) and (\d+)", nearest_rival_later),
]


def found_in(text: str, said: Said) -> re.Match[str]:
    found = re.search(said.pattern.replace(" ", r"\s+"), text, re.DOTALL)
    assert found is not None, f"{said.path} does not say {said.pattern}"
    return found


def requote() -> None:
    """Write what the documents should say; what cannot be told is left, and printed."""
    for quote in [*TABLES, *SENTENCES]:
        path = ROOT / quote.path
        text = path.read_text(encoding="utf-8")
        try:
            if isinstance(quote, Quote):
                start, end = table_in(text, quote.heading, quote.words)
                head, *rows = cells_of(text[start:end])
                lines = text[start:end].splitlines(keepends=True)[:2]
                new = "".join([*lines, *(f"| {' | '.join(row)} |\n" for row in quote.fill(head, rows))])
                text = text[:start] + new + text[end:]
            else:
                found = found_in(text, quote)
                for at, value in reversed(list(enumerate(quote.fill(list(found.groups())), start=1))):
                    text = text[: found.start(at)] + value + text[found.end(at) :]
        except (AssertionError, KeyError, ValueError, StopIteration, OSError) as error:
            print(f"{quote}: {error!r}")
            continue
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    requote()
