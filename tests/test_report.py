"""The figures, and the page made of stored runs."""

import dataclasses
import functools
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fedpg import StorageError
from fedpg.experiments import store
from fedpg.experiments.answer import SHOWN, answer, panels_of
from fedpg.experiments.catalogue import EXPERIMENTS, configs_of
from fedpg.experiments.figures import THEIRS, legend_of, needs_totals, panel_image, runs_of, seeds_of, theirs_of
from fedpg.experiments.panels import Curve, Panel, config_of
from fedpg.experiments.paper import paper_curves
from fedpg.experiments.render import (
    MOST_ROWS,
    Contents,
    Details,
    Heading,
    Pictures,
    Table,
    Text,
    folded,
    to_csv,
    to_html,
    to_markdown,
)
from fedpg.experiments.report import section, sections_of, write_report
from fedpg.experiments.store import Stored
from fedpg.experiments.tables import MARKS, comparison, filters, learning, overview, per_seed, prices, times
from stored import stored_run


def stock(seeds: int = 2) -> dict[store.Key, Stored]:
    """Made-up runs of all curves of figure 1 on CartPole."""
    return {run.key: run for run in made_up(seeds)}


@functools.cache
def made_up(seeds: int) -> list[Stored]:
    """None of them is to be changed."""
    chosen = [EXPERIMENTS["figure1"].on(["CartPole-v1"])]
    return [
        stored_run(c, s, returns=np.linspace(9, 300 + 50 * s, 6), length=5000.0)
        for c in configs_of(chosen)
        for s in range(seeds)
    ]


def test_a_panel_draws_the_runs_of_its_settings_and_no_others():
    panel = EXPERIMENTS["figure1"].panels[0]
    found = runs_of(panel, stock())
    assert [(curve.label, [run.seed for run in runs]) for curve, runs in found] == [
        (c.label, [0, 1]) for c in panel.curves
    ]
    assert runs_of(EXPERIMENTS["figure1"].panels[1], stock()) == []
    assert needs_totals(panel)
    assert not needs_totals(EXPERIMENTS["ablation-alpha"].panels[0])


def test_the_same_runs_give_the_same_picture_to_the_byte():
    panel = EXPERIMENTS["figure1"].panels[0]
    first = panel_image(panel, stock())
    assert first == panel_image(panel, stock())
    assert first != panel_image(panel, stock(3))


def test_the_tables_have_the_numbers_of_the_runs():
    panel = EXPERIMENTS["figure1"].panels[0]
    table = comparison(panel, stock(5))
    assert table is not None
    row = next(row for row in table.rows if row[:2] == ["FedPG-BR (K=10)", "5,000"])
    paper = paper_curves()["Figure 1", "CartPole-v1", "FedPG-BR (K=10)"].at(5000)[0]
    assert row[2].startswith("below*")
    assert row[3:5] == ["5", "400"]
    assert row[7] == f"{paper:.0f}"
    assert row[9] == f"{400 - paper:+.0f}"
    seen = overview([panel], stock(5))
    assert f"400 [{paper:.0f}]" in [cell for row in seen.rows for cell in row]
    assert len(learning([panel], stock(5)).rows) == len(panel.curves)


def test_the_filters_table_has_harm_only_if_some_run_measured_it():
    stored = stock()
    panels = [panel for experiment in EXPERIMENTS.values() for panel in experiment.panels]
    before = filters(panels, stored)
    assert before is not None
    assert before.columns[-1] == "nobody"
    key = next(key for key, run in stored.items() if run.config.agents > 1 and run.config.aggregator != "mean")
    columns = dict(stored[key].columns) | {"harm": np.full(len(stored[key].returns), 0.756, np.float32)}
    stored[key] = dataclasses.replace(stored[key], columns=columns)
    after = filters(panels, stored)
    assert after is not None
    assert list(after.columns[-2:]) == ["harm", "harm to the step"]
    assert {tuple(row[-2:]) for row in after.rows} == {("0.76", ""), ("", "")}


class Page(HTMLParser):
    """Collects what a page refers to, and whether its tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.links += [str(values[name]) for name in ("src", "href") if name in values]
        self.ids += [str(values["id"])] if "id" in values else []
        if tag not in ("meta", "img", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.slow
def test_the_report_is_one_page_without_anything_from_outside_and_the_same_as_markdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    few = {name: EXPERIMENTS[name].on(["CartPole-v1"]) for name in ("figure1", "figure3")}
    monkeypatch.setattr("fedpg.experiments.report.EXPERIMENTS", few)
    stored = stock()
    old = next(iter(stored))
    stored[old] = dataclasses.replace(stored[old], code="before")
    written = write_report(tmp_path, tmp_path, stored, lambda text: None)
    page = Page()
    text = (tmp_path / "report.html").read_text()
    page.feed(text)
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    assert re.search(r"its 90% bands, <strong>\d+ inside, \d+ above, \d+ below</strong>", text)
    order = ("FedPG-BR: more agents learn faster", "runs of", "<nav>", "The paper&#x27;s figures")
    assert sorted(order, key=text.index) == list(order)  # the verdict comes first
    assert page.tags.count("details") > page.tags.count("figure")
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert all(link.startswith(("data:image/svg+xml;base64,", "#")) for link in page.links)
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert "@import" not in text
    assert "url(" not in text
    assert text.count('<div class="wide"') == page.tags.count("table")  # each scrolls in a box of its own
    markdown = (tmp_path / "report.md").read_text()
    pictures = [line.split("](")[1].rstrip(")") for line in markdown.splitlines() if line.startswith("![")]
    assert pictures
    assert all((tmp_path / path).exists() for path in pictures)
    assert {tmp_path / path for path in pictures} == {path for path in written if path.suffix == ".png"}
    assert "**1 of these runs were made by another version of the code**" in markdown
    assert "| this version | 9 |" in markdown
    assert "| other code (before), kept as it is | 1 |" in markdown


def test_an_empty_results_folder_is_an_error_that_says_what_to_do(tmp_path: Path):
    with pytest.raises(StorageError, match=r"no stored runs .*fedpg reproduce figure1"):
        write_report(tmp_path, tmp_path, {}, lambda text: None)
    assert list(tmp_path.iterdir()) == []


def test_what_a_block_says_is_escaped_in_html_and_kept_in_markdown():
    blocks = [
        Heading("A <b> & c"),
        Text("`x < y` and **bold** [x](javascript:y)", "lead"),
        Table(["one", "two"], [["<script>", "a|b"], ["[x](javascript:y)", "1 [2]"]]),
        Details("more", [Text("inside")]),
        Pictures("alt", "p.png", [b"<svg/>"], [("label", "#fff", True)], [("- -", "the paper's")]),
    ]
    page, markdown = to_html("T", blocks), to_markdown("T", blocks)
    assert "<script>" not in page
    assert "<code>x &lt; y</code>" in page
    assert "<strong>bold</strong>" in page
    assert "| \\<script> | a\\|b |" in markdown
    assert "<a " not in page
    assert "| [x]\\(javascript:y) | 1 [2] |" in markdown
    assert "![alt](p.png)" in markdown
    assert 'id="a-b--c"' in page


def test_sections_fold_and_headings_that_come_again_have_names_of_their_own():
    blocks = [Contents(), *sections_of([Heading("A"), Heading("B", 3), Heading("C"), Heading("B", 3), Text("end")])]
    page = Page()
    page.feed(to_html("T", blocks))
    assert page.ids == ["a", "b", "c", "b-1"]
    assert page.links == ["#a", "#c"]
    assert page.tags.count("details") == 2
    assert to_markdown("T", blocks).split("\n\n")[2:] == ["## A", "### B", "## C", "### B", "end\n"]


@pytest.mark.parametrize("name", ["figure1", "algorithms", "untuned"])
def test_every_task_of_an_experiment_has_its_section(name: str):
    for panel in EXPERIMENTS[name].panels:
        run = stored_run(config_of(panel, panel.curves[0]), 0, returns=np.linspace(9, 300, 6), length=300.0)
        blocks = list(section(EXPERIMENTS[name].on([panel.task]), {run.key: run}))
        assert [block.path for block in blocks if isinstance(block, Pictures)] == [f"pictures/{panel.picture}.png"]
        assert any(isinstance(block, Table) for block in blocks)


def test_the_report_begins_with_what_a_return_costs():
    panel = next(p for p in EXPERIMENTS["algorithms"].panels if p.title == "CartPole-v1, 10 honest agents")
    ours, paper = (next(c for c in panel.curves if c.label == label) for label in SHOWN[:2])
    learnt = np.array([9.0, 100.0, 500.0, 500.0, 500.0, 500.0])
    runs = [
        stored_run(config_of(panel, ours), 0, returns=learnt, length=500.0),
        stored_run(config_of(panel, ours), 1, returns=learnt[::-1], length=500.0),
        stored_run(config_of(panel, paper), 0, returns=np.full(6, 20.0), length=1000.0),
    ]
    made = {run.key: run for run in runs}
    panels = panels_of([EXPERIMENTS["algorithms"]], made)
    assert [p.task for p in panels] == ["CartPole-v1"]
    _, table = answer(panels, made)
    assert isinstance(table, Table)
    # The mean of three evaluations counts: the second run has it from the start, the first at its fifth row.
    assert table.rows == [["CartPole-v1", "475", "300 (2 of 2)", "never (1 seeds)", "not played", "1,000"]]


def test_what_is_folded_away_or_long_stands_in_files_beside_the_short_page():
    first, second, third, fourth = (Table(["one", "two"], [["a, b", str(i)]]) for i in range(4))
    long = Table(["three"], [["c"]] * (MOST_ROWS + 1), name="All of it")
    few = Table(["four"], [["d"]] * MOST_ROWS, name="Some of it")
    more = [Details("Each seed", [Text("inside"), first]), Details("Each seed", [second]), few]
    blocks = sections_of([Heading("A figure"), third, *more, Heading("B"), long, Details("Each seed", [fourth])])
    blocks += sections_of([Heading("C"), Heading("A task", 3), Details("Each seed", [first]), Heading("D", 3), long])
    files = folded(blocks)
    assert files == {
        "tables/a-figure-each-seed.csv": first,
        "tables/a-figure-each-seed-2.csv": second,
        "tables/b-all-of-it.csv": long,
        "tables/b-each-seed.csv": fourth,
        "tables/c-a-task-each-seed.csv": first,
        "tables/c-d-all-of-it.csv": long,
    }
    assert to_csv(first) == 'one,two\n"a, b",0\n'


def test_the_short_page_links_to_the_files_and_the_long_one_has_what_is_in_them():
    first, second = (Table(["one", "two"], [["a", str(i)]]) for i in range(2))
    long = Table(["three"], [["c"]] * (MOST_ROWS + 1), name="All of it")
    few = Table(["four"], [["d"]] * MOST_ROWS, name="Some of it")
    folds = [Details("Each seed", [first]), Details("More", [Text("inside"), second])]
    blocks = sections_of([Heading("A"), few, long, *folds, Text("end")])
    paragraphs = to_markdown("T", blocks).strip().split("\n\n")
    assert paragraphs[3:] == [
        "[All of it](tables/a-all-of-it.csv) · [Each seed](tables/a-each-seed.csv)",
        "inside",
        "[More](tables/a-more.csv)",
        "end",
    ]
    assert paragraphs[2].startswith("| four |")
    page = to_html("T", blocks)
    assert page.count("<td") == sum(len(table.rows) * len(table.columns) for table in (first, second, long, few))
    assert ".csv" not in page


def test_a_page_shows_a_first_cell_once_and_a_file_has_it_in_every_row():
    rows = [["a", "1"], ["a", "2"], ["b", "2"], ["a", "3"]]
    table = Table(["panel", "n"], rows, grouped=True)
    assert [row[0] for row in table.shown] == ["a", "", "b", "a"]
    assert "| a | 1 |\n|  | 2 |\n| b | 2 |\n| a | 3 |" in to_markdown("T", [table])
    assert to_csv(table) == "panel,n\na,1\na,2\nb,2\na,3\n"
    assert table.rows == rows


def test_what_a_caption_says_of_tables_in_files_is_said_once():
    long = [Table(["n"], [[str(i)]] * (MOST_ROWS + 1), "Means of it.", name="Numbers") for i in range(3)]
    blocks = sections_of([Heading("A"), long[0], Heading("B"), long[1], long[2]])
    page = to_markdown("T", blocks)
    assert page.count("Numbers: means of it.") == 1
    assert page.index("means of it") < page.index("(tables/a-numbers.csv)")
    assert "[Numbers](tables/b-numbers.csv) · [Numbers](tables/b-numbers-2.csv)" in page
    assert to_html("T", blocks).count("<caption>Means of it.</caption>") == 3


def test_every_picture_says_how_many_seeds_are_behind_each_curve():
    panel = EXPERIMENTS["figure3"].panels[0]
    attacked, honest = panel.curves[:2]
    runs = [stored_run(config_of(panel, attacked), 0), *(stored_run(config_of(panel, honest), s) for s in range(3))]
    stored = {run.key: run for run in runs}
    assert [label for label, _, _ in legend_of([panel], stored)] == [
        f"{attacked.label}, 1 seed",
        f"{honest.label}, 3 seeds",
    ]
    panels = EXPERIMENTS["figure3"].panels[:2]
    runs += [stored_run(config_of(panels[1], attacked), s) for s in range(2)]
    both = legend_of(panels, {run.key: run for run in runs})
    assert [label for label, _, _ in both] == [f"{attacked.label}, 1, 2 seeds", f"{honest.label}, 3, 0 seeds"]
    assert f"{panel.title} (1 to 3 seeds)".encode() in panel_image(panel, stored)
    assert (seeds_of([]), seeds_of([10, 10])) == ("", "10 seeds")


def test_two_of_the_papers_curves_in_one_colour_are_told_apart():
    several = 0
    for panel in (panel for experiment in EXPERIMENTS.values() for panel in experiment.panels):
        theirs = [(curve.colour, THEIRS[curve.reference].style) for curve in panel.curves if curve.paper]
        assert len(set(theirs)) == len(theirs)
        several += len(theirs) == 6
        assert len(theirs_of([panel])) == len({style for _, style in theirs})
    assert several


def test_the_page_has_a_dark_side():
    style = to_html("T", [])
    light, dark = re.findall(r":root \{(.*?)\}", style)[:2]
    named = [set(re.findall(r"(--\w+):", part)) for part in (light, dark)]
    assert named[0] == named[1]
    assert "prefers-color-scheme: dark" in style


def test_a_curve_without_runs_is_left_out_of_a_figure():
    panel = Panel("p", "t", "CartPole-v1", (Curve("nothing", "#000", {"agents": 7}),))
    assert runs_of(panel, stock()) == []
    assert overview([panel], stock()).rows == []
    assert comparison(panel, stock()) is None


def test_the_price_of_a_return_is_counted_in_every_way():
    panel = EXPERIMENTS["algorithms"].panels[0]
    ours, paper = panel.curves[:2]
    runs = [stored_run(config_of(panel, ours), s, [9, 480, 490, 500], length=300.0) for s in range(2)]
    runs = [
        dataclasses.replace(
            run,
            columns={
                **run.columns,
                "trajectories_agent": run.trajectories + 3.0,
                "steps_training": run.trajectories * 1000.0,
                "bytes": run.trajectories * 1e6,
            },
        )
        for run in runs
    ]
    runs.append(stored_run(config_of(panel, paper), 0, [9, 20, 30, 40], length=300.0))
    table = prices([panel], {run.key: run for run in runs})
    first, second = table.rows
    assert first[1:] == [ours.label, "475", "2 of 2", "300", "300 to 300", "303", "3,300", "300,000", "300", "3"]
    assert second[1:] == [paper.label, "475", "0 of 1", *[""] * 7]
    assert len(table.columns) == len(first)


def test_the_server_alone_does_not_pay_for_agents_to_whom_it_does_not_listen():
    panel = EXPERIMENTS["algorithms"].panels[0]
    alone = next(curve for curve in panel.curves if curve.label == "natural steps, the server alone")
    run = stored_run(config_of(panel, alone), 0, [9, 480, 490, 500], length=300.0)  # as many of its own as an agent
    more = {"trajectories_agent": run.trajectories, "steps_training": run.trajectories, "bytes": run.trajectories}
    run = dataclasses.replace(run, columns=run.columns | more)
    (row,) = prices([panel], {run.key: run}).rows
    assert row[1:] == [alone.label, "475", "1 of 1", "300", "", "", "300", "", "", "3"]
    ((_, (shown,)),) = runs_of(panel, {run.key: run})
    assert shown.columns["trajectories_total"].tolist() == run.trajectories.tolist()


def test_curves_that_the_paper_does_not_have_are_in_the_tables_too():
    whole = EXPERIMENTS["figure3"]
    panel = whole.panels[0]
    attacked = next(curve for curve in panel.curves if config_of(panel, curve).byzantine)
    assert attacked.paper is None
    runs = [stored_run(config_of(panel, attacked), s, returns=[9, 100 + 10 * s], length=5000.0) for s in range(2)]
    stored = {run.key: run for run in runs}
    (row,) = overview([panel], stored).rows
    assert row[1:4] == [attacked.label, "", "2"]
    assert row[4:] == ["105"] * 5
    table = comparison(panel, stored)
    assert table is not None
    assert [row[4] for row in table.rows] == ["105"] * 5
    assert {(row[2], *row[7:]) for row in table.rows} == {("", "", "", "")}
    # Where no curve of a panel is the paper's, there are no columns for it.
    mine = Panel("p", "t", "CartPole-v1", (attacked,))
    table = comparison(mine, stored)
    assert table is not None
    assert len(table.columns) == len(table.rows[0]) == 6
    assert "paper" not in " ".join(overview([mine], stored).columns)


def test_where_some_seeds_got_further_the_tables_say_so_and_give_no_verdict():
    panel = EXPERIMENTS["figure1"].panels[0]
    curve = next(c for c in panel.curves if c.label == "FedPG-BR (K=10)")
    config = config_of(panel, curve)
    lengths = [2000.0, 2000.0, 5000.0]
    runs = [stored_run(config, s, returns=[300.0, 300.0], length=x) for s, x in enumerate(lengths)]
    stored = {run.key: run for run in runs}
    (row,) = overview([panel], stored).rows
    paper = paper_curves()["Figure 1", "CartPole-v1", curve.label]
    assert row[4:9] == [f"300{few} [{paper.at(m)[0]:.0f}]" for m, few in zip(MARKS["CartPole-v1"], FEW, strict=True)]
    table = comparison(panel, stored)
    assert table is not None
    assert [row[2] for row in table.rows[-2:]] == ["", ""]
    assert any(row[2] for row in table.rows[:3])
    # Times are of the length of the row.
    (row,) = learning([panel], stored).rows
    assert row[3] == "2,000"
    assert row[-2] == "300 ± 0"
    assert row[-1] == "2 s"  # of 2, 2 and, for the long one, 0.8
    assert [cell for row in per_seed([panel], stored).rows for cell in row[2:4]] == ["final", "2,000", "area", "2,000"]


FEW = ("", "", "", " (1)", " (1)")


def test_the_published_time_is_compared_with_that_of_the_papers_runs_alone():
    panel = EXPERIMENTS["figure2"].panels[0]
    curve = next(c for c in panel.curves if (k := config_of(panel, c)).algorithm == "fedpg-br" and k.byzantine == 3)
    config = config_of(panel, curve)
    nothing = stored_run(config, 1, returns=[9.0], length=0.0)
    other = stored_run(dataclasses.replace(config, aggregator="mean"), 0, length=5000.0)
    stored = {run.key: run for run in (stored_run(config, 0, length=2500.0), nothing, other)}
    assert times(EXPERIMENTS.values(), stored).rows == [["CartPole-v1", "2.5 h", "4 s", "2,250", "1", "2,500"]]
