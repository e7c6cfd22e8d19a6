"""What the docs quote of speed is what `make speed` printed when it was last stored."""

import re

import pytest

from documents import ROOT
from quoted import RESULTS, needs_results, table_after

pytestmark = needs_results
SPEED = RESULTS / "speed"
METHODS = {"natural steps": "natural", "FedPG-BR": "fedpg-br"}
TASKS = {"CartPole": "CartPole-v1", "LunarLander": "LunarLander-v3", "HalfCheetah": "HalfCheetah-v5"}


def printed(name: str, start: str) -> list[str]:
    """The cells of the first printed row whose first cell begins so, without that cell."""
    for line in (SPEED / f"{name}.txt").read_text().splitlines():
        first, *cells = [cell.strip() for cell in line.strip("│").split("│")]
        if cells and first.startswith(start):
            return cells
    raise AssertionError(f"{name}: nothing was printed of {start}")


def test_the_table_of_cartpole_is_what_was_printed():
    _, *rows = table_after("docs/speed.md", "CartPole")
    for what, *cells in rows:
        method, _, part = what.partition(", ")
        if method in METHODS:
            expected = printed(f"CartPole-v1-{METHODS[method]}", f"training, {part.replace('ten', '10')}")
        else:
            expected = printed("CartPole-v1-natural", what)
        assert cells == expected, what
    assert len(rows) == 7


def test_the_table_of_other_tasks_is_what_was_printed():
    _, *rows = table_after("docs/speed.md", "The other tasks")
    for what, *cells in rows:
        task, method = what.split(", ")
        assert cells == printed(f"{TASKS[task]}-{METHODS[method]}", "training"), what
    assert len(rows) == 4


def test_what_a_step_takes_is_what_was_printed():
    _, *rows = table_after("docs/speed.md", "The natural step itself")
    for task, *cells in rows:
        text = (SPEED / f"{TASKS[task]}-natural.txt").read_text()
        found = re.search(r"the step itself: (.*), (.*) of a round of (.*)", text)
        assert found is not None
        assert cells == list(found.groups()), task
        assert float(cells[1].strip("%")) <= (30 if task == "CartPole" else 10), "more than it may take"
    assert len(rows) == 3


@pytest.mark.parametrize("words", ["A round", "An aggregator"])
def test_how_time_grows_with_the_number_of_agents_is_what_was_printed(words: str):
    _, *rows = table_after("docs/speed.md", "Many agents", words)
    for what, *cells in rows:
        assert cells == printed("CartPole-v1-natural", what.strip("`"))[: len(cells)], what
    assert len(rows) >= 4


def test_what_a_server_under_load_takes_is_what_was_printed():
    _, *rows = table_after("docs/federation.md", "Sizing", "under load")
    for sites, *cells in rows:
        assert cells == printed("load", sites), sites
    assert len(rows) == 3


def test_the_table_of_products_is_what_was_printed():
    head, *rows = table_after("docs/environments.md", "How it stays at the simulator's speed", "studies/columns.py")
    text = (SPEED / "columns.txt").read_text()
    for what, *cells in rows:
        for kernel, cell in zip(head[1:], cells, strict=True):
            found = re.search(
                rf"^{kernel} +{what.strip('*')}  +([\d.]+)% differ .*: +(\d+), +(\d+), +(\d+)$", text, re.M
            )
            assert found is not None, (kernel, what)
            share, *times = found.groups()
            assert cell.replace("*", "") == f"{float(share):.0f}%; {', '.join(times)}", (kernel, what)
    assert len(rows) == 6


def test_how_a_few_living_episodes_slow_a_team_is_what_was_printed():
    text = (ROOT / "docs" / "environments.md").read_text()
    quoted = re.findall(r"(\d[\d to]*|one) alive, (\d[\d,]*\d)( steps/s)?", text)
    assert len(quoted) == 3
    for alive, speed, _ in quoted:
        assert printed("LunarLander-v3-natural", alive.replace("one", "1"))[2] == speed, alive
