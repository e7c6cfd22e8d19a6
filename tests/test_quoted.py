"""Numbers that README and docs quote as measured are those of the stored results."""

import re

import numpy as np
import pytest

import quotes
from documents import ROOT
from fedpg.arena.section import found_in, in_short
from fedpg.experiments.catalogue import EXPERIMENTS
from fedpg.experiments.findings import findings
from fedpg.experiments.panels import config_of
from fedpg.experiments.paper import paper_curves
from fedpg.experiments.render import Table
from fedpg.experiments.statistics import returns_at
from fedpg.experiments.store import load, load_all, path_of
from quoted import RESULTS, needs_results, number, table_after
from quotes import SENTENCES, TABLES, Quote, Said

pytestmark = needs_results


@pytest.mark.parametrize("quote", TABLES, ids=str)
def test_a_table_is_of_what_is_stored(quote: Quote):
    head, *rows = table_after(quote.path, quote.heading, quote.words)
    assert quote.fill(head, rows) == rows, "`python tests/quotes.py` writes what is stored"


@pytest.mark.parametrize("said", SENTENCES, ids=str)
def test_a_sentence_is_of_what_is_stored(said: Said):
    quoted = list(quotes.found_in((ROOT / said.path).read_text(), said).groups())
    assert said.fill(quoted) == quoted, "`python tests/quotes.py` writes what is stored"


def test_what_the_readme_says_of_the_paper_is_the_papers():
    names = {"CartPole": "CartPole-v1", "LunarLander": "LunarLander-v2", "HalfCheetah": "HalfCheetah-v2"}
    for what, _, theirs in table_after("README.md", "What it reaches")[1:]:
        for value, mark in re.findall(r"(-?[\d,]+) at ([\d,]+)", theirs):
            curve = paper_curves()["Figure 1", names[what.split(",")[0]], "FedPG-BR (K=10)"]
            assert number(value) == round(curve.at(number(mark))[0]), what


def test_the_first_lines_of_the_report_are_of_stored_games():
    top, numbers, *_ = (RESULTS / "report.md").read_text().split("\n## ")
    found = [*findings(load_all(RESULTS)), *found_in(RESULTS)]
    assert len(found) == 10
    assert [row for row in found if f"| {' | '.join(row)} |" not in top] == []
    rows = [row for block in in_short(RESULTS) if isinstance(block, Table) for row in block.rows]
    assert [row for row in rows if f"| {' | '.join(row)} |" not in numbers] == []
    name = "CartPole-v1-natural-K10-3-1500-*.json"
    cast = max(quotes.games_of(name)[1], key=lambda cast: cast.size)
    worst, *_ = quotes.standings_of(name, cast)["compass"]
    assert any("1500 trajectories" in row[0] and row[2] == worst for row in rows)
    assert any(row[0].rstrip("*") == "HalfCheetah-v5" for row in rows)


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
