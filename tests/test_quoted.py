"""Numbers that README and docs quote as measured are those of the stored results."""

import functools
import re

import numpy as np
import pytest

from documents import ROOT
from fedpg.arena.games import Cast, Game, Ledger, Result, read
from fedpg.arena.heterogeneity import STUDIES, WORST, plans, seeds_of, worth
from fedpg.arena.matrix import Standing, matrix_of
from fedpg.arena.players import HONEST as PLAIN_MEAN
from fedpg.arena.players import NOBODY, SERVER
from fedpg.arena.section import in_short
from fedpg.arena.show import percent
from fedpg.experiments.catalogue import EXPERIMENTS
from fedpg.experiments.panels import config_of
from fedpg.experiments.paper import paper_curves
from fedpg.experiments.render import Table
from fedpg.experiments.statistics import returns_at
from fedpg.experiments.store import Stored, load, path_of
from quoted import RESULTS, needs_results, number, stored, table_after

pytestmark = needs_results
HONEST, FLIP, ALIE, REWARDS = "10 honest agents", "3 of 10 flip signs", "3 of 10: ALIE, z = 1.5", "3 of 10 flip rewards"
OURS = "natural steps, compass"
CURVES = {
    "CartPole": ("CartPole-v1", HONEST, OURS),
    "CartPole, honest": ("CartPole-v1", HONEST, OURS),
    "CartPole, 3 of 10 flip signs": ("CartPole-v1", FLIP, OURS),
    "3 of 10 flip signs": ("CartPole-v1", FLIP, OURS),
    "3 of 10: ALIE, z = 1.5": ("CartPole-v1", ALIE, OURS),
    "3 of 10 flip rewards": ("CartPole-v1", REWARDS, OURS),
    "ten honest agents, plain mean (the ceiling)": (
        *("CartPole-v1", HONEST),
        "natural steps, 10 honest agents, plain mean",
    ),
    "the server alone": ("CartPole-v1", HONEST, "natural steps, the server alone"),
    "one agent alone": ("CartPole-v1", HONEST, "natural steps, one agent alone"),
    "LunarLander": ("LunarLander-v3", HONEST, OURS),
    "LunarLander, 3 of 10 flip signs": ("LunarLander-v3", FLIP, OURS),
    "LunarLander, 7 honest agents alone": ("LunarLander-v3", FLIP, "natural steps, the 7 honest agents alone"),
    "HalfCheetah": ("HalfCheetah-v5", HONEST, OURS),
    **{
        f"{name}, {what}": (task, HONEST, f"natural steps, {curve}")
        for name, task in (("LunarLander", "LunarLander-v3"), ("HalfCheetah", "HalfCheetah-v5"))
        for what, curve in {
            "plain mean": "10 honest agents, plain mean",
            "the server alone": "the server alone",
            "one agent alone": "one agent alone",
        }.items()
    },
}
"""What the first cell of a row calls a curve -> its task, condition and method."""


@functools.cache
def runs_of(task: str, condition: str, method: str) -> tuple[Stored, ...]:
    """The stored runs of a curve of the comparison of algorithms."""
    panel = next(p for p in EXPERIMENTS["algorithms"].panels if p.title == f"{task}, {condition}")
    return stored(panel, next(curve for curve in panel.curves if curve.label == method))


def check(what: str, quoted: float, mark: float, seeds: int | None = None) -> None:
    """That the mean return of a curve at so many trajectories is what a document says."""
    runs = runs_of(*CURVES[what])
    assert seeds is None or len(runs) == seeds, f"{what}: {len(runs)} seeds are stored, and {seeds} are quoted"
    values = returns_at(runs, np.array([mark]))[:, 0]
    assert np.isfinite(values).all(), f"{what}: not every stored run is {mark:.0f} trajectories long"
    assert quoted == round(values.mean()), f"{what} at {mark:.0f}"


def test_the_first_table_of_the_readme_is_of_stored_runs():
    rows = table_after("README.md", "What it reaches")[1:]
    for what, ours, *_ in rows:
        name, seeds = what.rsplit(", ", 1)
        quoted = re.findall(r"(-?[\d,]+) at ([\d,]+)", ours)
        assert quoted
        for value, mark in quoted:
            check(name, number(value), number(mark), int(seeds.split()[0]))
    assert len(rows) >= 4


def test_what_the_readme_says_of_the_paper_is_the_papers():
    names = {"CartPole": "CartPole-v1", "LunarLander": "LunarLander-v2", "HalfCheetah": "HalfCheetah-v2"}
    for what, _, theirs in table_after("README.md", "What it reaches")[1:]:
        for value, mark in re.findall(r"(-?[\d,]+) at ([\d,]+)", theirs):
            curve = paper_curves()["Figure 1", names[what.split(",")[0]], "FedPG-BR (K=10)"]
            assert number(value) == round(curve.at(number(mark))[0]), what


def test_the_table_of_natural_steps_is_of_stored_runs():
    head, *rows = table_after("docs/natural.md", "What it reaches")
    marks = [number(cell) for cell in head[1:-1]]
    for what, *cells in rows:
        found = re.fullmatch(r"(.*?)(?:, (\d+) seeds)?", what)
        assert found
        for cell, mark in zip(cells, marks, strict=False):
            if cell:
                check(found[1], number(cell), mark, int(found[2]) if found[2] else None)
    assert len(rows) >= 9


def test_what_overview_and_text_say_of_natural_steps_is_of_stored_runs():
    text = " ".join((ROOT / "docs/overview.md").read_text().split())
    found = re.search(
        r"is (\d+), (\d+) and (\d+) at 100, 250 and 500 trajectories.*?signs (\d+), (\d+) and (\d+)", text
    )
    assert found
    for name, quoted in (("CartPole", found.groups()[:3]), (FLIP, found.groups()[3:])):
        for value, mark in zip(quoted, (100, 250, 500), strict=True):
            check(name, number(value), mark, 20)
    text = " ".join((ROOT / "docs/natural.md").read_text().split())
    numbers = r"(\d+), (\d+), (\d+) and (\d+)"
    found = re.search(
        rf"alone they have {numbers} at 100, 250, 500 and 1000 \(the first ten (.*?)\), and with three "
        rf"who flip signs {numbers} \((.*?)\)", text
    )  # fmt: skip
    assert found
    groups = found.groups()
    for name, last, first in (("CartPole", groups[:4], groups[4]), (FLIP, groups[5:9], groups[9])):
        for quoted, seeds in ((last, range(10, 20)), (first.split(", "), range(10))):
            runs = [run for run in runs_of(*CURVES[name]) if run.seed in seeds]
            means = returns_at(runs, np.array([100.0, 250.0, 500.0, 1000.0])).mean(axis=0)
            assert [number(x) for x in quoted] == [round(x) for x in means], (name, seeds)


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
def standings_of(name: str, cast: Cast) -> dict[str, Standing]:
    return {standing.defence: standing for standing in matrix_of(games_of(name)[0], *cast).standings()}


ARENAS = {
    "What it found with natural steps": ("CartPole-v1-natural-K10-3-500-*.json", "On CartPole"),
    "What it found after the task is learnt": ("CartPole-v1-natural-K10-3-1500-*.json", ""),
    "What it found with FedPG-BR": ("CartPole-v1-fedpg-br-K10-3-1500-*.json", ""),
}


@pytest.mark.parametrize("heading", ARENAS)
def test_the_standings_of_the_arena_are_of_stored_games(heading: str):
    name, words = ARENAS[heading]
    for defence, worst, by, _, _, honest, seeds in table_after("docs/arena.md", heading, words)[1:]:
        rule = defence.split()[0]
        standing = standings_of(name, cast_of(name, rule, int(seeds)))[rule]
        assert (worst, by, honest) == (percent(standing.worst), standing.by, percent(standing.honest)), defence


def test_the_first_lines_of_the_report_are_of_stored_games():
    report = (RESULTS / "report.md").read_text().split("\n## ")[0]
    rows = [row for block in in_short(RESULTS) if isinstance(block, Table) for row in block.rows]
    assert [row for row in rows if f"| {' | '.join(row)} |" not in report] == []
    name = "CartPole-v1-natural-K10-3-1500-*.json"
    cast = max(games_of(name)[1], key=lambda cast: cast.size)
    worst = standings_of(name, cast)["compass"].worst
    assert any("1500 trajectories" in row[0] and row[2] == percent(worst) for row in rows)
    assert any(row[0].rstrip("*") == "HalfCheetah-v5" for row in rows)


def test_the_attacks_on_dear_tasks_are_of_stored_games():
    heading, words = "What it found with natural steps", "On LunarLander and HalfCheetah"
    head, *rows = table_after("docs/arena.md", heading, words)
    names = [f"{task}*-K10-3-*.json" for task in head[1:]]  # not of agents that differ
    matrices = [matrix_of(games_of(name)[0], *cast_of(name, "compass", 2)) for name in names]
    assert len(rows) == 1 + 7 + 3
    for name, *cells in rows:
        attack = NOBODY if name == "no liars" else name
        ends = [m.references().get(name) or m.share(attack, "compass") for m in matrices]
        assert cells == [percent(score) for score in ends], name


def test_the_table_of_untuned_tasks_is_of_stored_runs():
    labels = {
        "ten honest agents": OURS,
        "3 of 10 flip signs": "the same, 3 of 10 flip signs",
        "ten honest agents, plain mean": "natural steps, 10 honest agents, plain mean",
        "the server alone": "natural steps, the server alone",
        "one agent alone": "natural steps, one agent alone",
    }
    head, *rows = table_after("docs/natural.md", "What it reaches", "`fedpg reproduce untuned`")
    marks, panel = np.array([number(cell) for cell in head[1:]]), None
    for name, *cells in rows:
        task, _, rest = name.partition(", ")
        if task.endswith(("-v1", "-v5")):
            panel, name = next(p for p in EXPERIMENTS["untuned"].panels if p.task == task), rest
        assert panel is not None
        curve = next(curve for curve in panel.curves if curve.label == labels[name])
        folder = path_of(RESULTS, config_of(panel, curve), 0).parent
        runs = [load(path) for path in sorted(folder.glob("seed-*.json.gz"))]
        assert len(runs) == 3
        assert [number(cell) for cell in cells] == [round(x) for x in returns_at(runs, marks).mean(axis=0)], name
    assert len(rows) == 15


NORMALIZED = {
    "CartPole-v1": ("Fang, Wang and Gong", (1000, 2000, 3000), ("preset paper", "preset released")),
    "LunarLander-v3": ("On LunarLander they", (250, 500, 750, 1000), ("preset released",)),
}
"""Of each task: words before the table, the marks in a cell, and the panel of each column."""


@pytest.mark.parametrize("task", NORMALIZED)
def test_the_tables_of_the_broken_defence_are_of_stored_runs(task: str):
    words, marks, panels = NORMALIZED[task]
    _, *rows = table_after("docs/arena.md", "The broken defence", words)
    assert len(rows) == 7
    for what, *cells in rows:
        label = re.sub(r" \(.*?\)", "", what.replace("`", ""))
        for title, cell in zip(panels, cells[: len(panels)], strict=True):
            panel = next(p for p in EXPERIMENTS["normalized"].panels if (p.task, p.title) == (task, title))
            curve = next(c for c in panel.curves if c.label == label)
            folder = path_of(RESULTS, config_of(panel, curve), 0).parent
            runs = [load(path) for path in sorted(folder.glob("seed-*.json.gz"))]
            found = returns_at(runs, np.array(marks, float)).mean(axis=0)
            assert [number(x.strip("* ")) for x in cell.split(",")] == [round(x) for x in found], (what, title)
            if cells[len(panels) :] not in ([], [""]):
                kept = np.mean([run.columns["accepted_byzantine"][1:].mean() / run.config.byzantine for run in runs])
                assert cells[len(panels) :] == [f"{kept:.0%}"], what


DIFFER = {"CartPole": 10, "HalfCheetah": 2, "LunarLander": 2}
"""Seeds of the tables of agents that differ."""


@pytest.mark.parametrize("task", DIFFER)
def test_the_tables_of_agents_that_differ_are_of_stored_games(task: str):
    long = next(name for name in STUDIES if name.startswith(task))
    _, *rows = table_after("docs/heterogeneity.md", f"What it found on {task}")
    seeds = seeds_of(long, RESULTS)
    assert len(seeds) == DIFFER[task]
    found = plans(long)
    assert [row[0] for row in rows] == [f"±{plan.width:.0%}" for plan in found]
    for (width, *cells), plan in zip(rows, found, strict=True):
        played = Ledger(RESULTS, plan.base).results
        pairs = [(attack, defence) for defence in ("compass", "fedpg") for attack in (NOBODY, WORST[0])]
        main = [worth(played, pair, seeds) for pair in pairs]
        ends = [worth(played, (NOBODY, defence), seeds) for defence in (SERVER, PLAIN_MEAN)]
        expected = [f"{w.worst:,.0f}, {w.kept:.0%}" for w in main if w] + [f"{w.worst:,.0f}" for w in ends if w]
        assert cells == expected, width


def test_what_variance_reduction_buys_is_what_the_study_printed():
    head, *rows = table_after("docs/natural.md", "Variance reduction")
    text = (RESULTS / "studies" / "natural-variance-CartPole-v1.txt").read_text()
    printed = [line for line in text.splitlines() if not line.startswith(" ")]
    assert [line.split("  ")[0].strip() for line in printed] == ["plain", "recursive", "server", "inner 1", "inner 2"]
    assert len(rows) == len(printed)
    for (_, *cells), line in zip(rows, printed, strict=True):
        found = dict(re.findall(r"(\d+): (\d+ \+- \d+)", line))
        assert cells == [found[mark].replace("+-", "±") for mark in head[1:]], line


def test_what_going_on_alone_gains_is_what_the_study_printed():
    _, *rows = table_after("docs/heterogeneity.md", "A policy of one's own", "studies/adapting.py")
    files = {"CartPole": "CartPole-v1", "LunarLander": "LunarLander-v3", "HalfCheetah": "HalfCheetah-v5"}
    for what, *cells in rows:
        conditions, who = what.split(": ")
        name = files[conditions.split(",")[0]] + ("-lies" if "lie" in conditions else "")
        text = (RESULTS / "studies" / f"adapting-{name}.txt").read_text()
        line = next(line for line in text.splitlines() if line.startswith(f"{who}  "))
        assert cells == [f"{mean} ± {error}" for mean, error in re.findall(r": (-?\d+) \+- (\d+)", line)], what
    assert len(rows) == 8


def test_what_liars_cost_on_lunarlander_is_what_the_study_printed():
    head, *rows = table_after("docs/natural.md", "What limits it", "Liars on LunarLander")
    text = (RESULTS / "studies" / "step-control-LunarLander-v3-lies.txt").read_text()
    printed = [line for line in text.splitlines() if not line.startswith(" ")]
    assert [line.split()[0] for line in printed] == ["0.25", "0.71"]
    assert len(rows) == len(printed)
    for (_, *cells), line in zip(rows, printed, strict=True):
        found = dict(re.findall(r"(\d+): (-?\d+ \+- \d+)", line))
        assert cells == [found[mark].replace("+-", "±") for mark in head[1:]], line
