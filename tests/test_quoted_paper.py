"""Numbers that docs quote of the paper's experiments and of its two readings are those of the stored results."""

import re

import numpy as np
import pytest

from fedpg.experiments.catalogue import EXPERIMENTS
from fedpg.experiments.statistics import areas, filtering, returns_at
from fedpg.experiments.store import Stored
from quoted import RESULTS, needs_results, number, stored, table_after

pytestmark = needs_results


def test_the_table_of_halfcheetahs_physics_is_what_the_study_printed():
    heading = "HalfCheetah's gap"
    printed = (RESULTS / "studies" / "cheetah-physics.txt").read_text()
    rows = {line[:38].strip(): re.findall(r"-?\d+ ± +\d+", line[38:]) for line in printed.splitlines()}
    _, *quoted = table_after("docs/reproduction.md", heading, "The physics")
    assert {name: cells for name, *cells in quoted} == {
        name: [re.sub(r" +", " ", cell) for cell in cells] for name, cells in rows.items()
    }


@pytest.mark.parametrize("task", ["HalfCheetah", "LunarLander"])
def test_what_the_papers_defects_do_is_what_the_study_printed(task: str):
    head, *quoted = table_after("docs/reproduction.md", f"{task}'s gap", "Shared noise")
    marks = [number(cell) for cell in head[1:]]
    panel = next(p for p in EXPERIMENTS["figure1"].panels if p.task.startswith(task))
    runs = stored(panel, next(c for c in panel.curves if c.label == "FedPG-BR (K=10)"))[:3]
    means = [[f"{x:.0f}" for x in returns_at(runs, np.array(marks)).mean(axis=0)]]
    for name in ("noise", "noise-leak"):
        last = (RESULTS / "studies" / f"defects-{panel.task}-{name}.txt").read_text().splitlines()[-1]
        means.append(re.findall(r"\d+: (-?\d+) ±", last))
    assert [cells for _, *cells in quoted] == means


TITLES = {
    "honest": "10 honest agents",
    "ten honest": "10 honest agents",
    "sign flipping": "3 of 10 flip signs",
    "three flip signs": "3 of 10 flip signs",
    "three make the FedPG attack": "3 of 10 make the FedPG attack",
}


def on_cartpole(experiment: str, title: str, label: str) -> tuple[Stored, ...]:
    """The ten seeds of a curve."""
    panels = (p for p in EXPERIMENTS[experiment].panels if p.task == "CartPole-v1" and p.title == title)
    panel = next(panels)
    runs = stored(panel, next(curve for curve in panel.curves if curve.label == label))
    assert [run.seed for run in runs] == list(range(10)), (title, label)
    return runs


def area_of(runs: tuple[Stored, ...]) -> str:
    """`441 ± 5`."""
    found = areas(runs, 5000)
    return f"{found.mean():.0f} ± {found.std(ddof=1) / len(found) ** 0.5:.0f}"


def test_departures_one_at_a_time_are_of_stored_runs():
    _, *rows = table_after("docs/departures.md", "Measured, one at a time")
    known = {
        "–": "released",
        "sigma `auto`": "sigma auto",
        "nobody accepted: the round is skipped": "nobody accepted: skip",
    }
    for what, *cells in rows:
        label = known.get(what, what.replace(", with sigma `auto`", ", sigma auto"))
        for title, (mark, area) in zip(("honest", "sign flipping"), (cells[:2], cells[2:]), strict=True):
            runs = on_cartpole("departures", TITLES[title], label)
            assert number(mark) == round(returns_at(runs, np.array([1000.0])).mean()), (what, title)
            assert area == area_of(runs), (what, title)
    assert len(rows) == 9


def test_what_the_paper_argues_for_in_words_is_of_stored_runs():
    head, *rows = table_after("docs/departures.md", "What the paper argues for in words")
    known = {"`majority`": "majority", "`mean` (no defence)": "no filter"}
    for what, *cells in rows:
        for title, cell in zip(head[1:], cells, strict=True):
            runs = on_cartpole("ablation-filter", TITLES[title], known.get(what, what))
            assert cell == area_of(runs), (what, title)
    text = " ".join((RESULTS.parent / "docs/departures.md").read_text().split())
    let_in = re.search(r"lets in (\d+)% of the sign flippers where R2 alone lets in (\d+)%", text)
    kept = re.search(r"honest agents: ([\d.]+)% are kept, ([\d.]+)% by R2 alone", text)
    plain = re.search(r"areas are (\d+ ± \d+), (\d+ ± \d+) and (\d+ ± \d+)", text)
    assert let_in
    assert kept
    assert plain
    for i, label in enumerate(("R1, then R2 (Algorithm 1.1)", "R2 alone")):
        honest, lied = (filtering(on_cartpole("ablation-filter", title, label)) for title in list(TITLES.values())[1:3])
        assert f"{100 * honest.honest_kept:.1f}" == kept[1 + i]
        assert f"{100 * lied.byzantine_kept:.0f}" == let_in[1 + i]
    for title, said in zip(
        ("ten honest", "three flip signs", "three make the FedPG attack"), plain.groups(), strict=True
    ):
        assert said == area_of(on_cartpole("ablation-inner", TITLES[title], "plain steps"))


@pytest.mark.parametrize(
    ("words", "title"), [("random noise gives", "Random Noise"), ("sign flipping", "Sign Flipping")]
)
def test_what_the_share_of_byzantine_agents_costs_is_of_stored_runs(words: str, title: str):
    text = " ".join((RESULTS.parent / "docs/departures.md").read_text().split())
    text = text[text.index("**The share of Byzantine agents**") :]
    quoted = re.search(rf"{words} (\d+), (\d+), (\d+), (\d+)", text)
    assert quoted
    runs = [on_cartpole("ablation-alpha", title, f"{n} of 10") for n in (1, 2, 3, 4)]
    assert [int(value) for value in quoted.groups()] == [round(areas(each, 5000).mean()) for each in runs]


def test_the_two_readings_are_of_stored_runs():
    _, *rows = table_after("docs/overview.md", "Presets, and which is the default")
    titles = {
        "K = 10, all honest": "10 honest agents",
        "K = 3, all honest": "3 agents",
        "K = 1": "1 agent",
        "K = 10, 3 random noise": "Random Noise",
        "K = 10, 3 random action": "Random Action",
        "K = 10, 3 sign flipping": "3 of 10 flip signs",
        "K = 10, 3 FedPG attack": "3 of 10 make the FedPG attack",
        "K = 10, 3 variance attack": "Variance attack",
    }
    for what, *cells in rows[:-1]:
        for preset, cell in zip(("paper (the text)", "released (the figures)"), cells, strict=True):
            means = returns_at(on_cartpole("presets", titles[what], preset), np.array([1000.0, 2000.0])).mean(axis=0)
            assert cell == " / ".join(f"{value:.0f}" for value in means), (what, preset)
    assert len(rows) == 1 + len(titles)
