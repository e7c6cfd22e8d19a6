"""Numbers in documents, and the stored runs that they should be of."""

import re

import pytest

from documents import ROOT
from fedpg.experiments.panels import Curve, Panel, config_of, counted
from fedpg.experiments.store import Stored, load, path_of

RESULTS = ROOT / "results"
needs_results = pytest.mark.skipif(
    not (RESULTS / "runs").exists(), reason="what is stored is in the repository, not in what is published"
)


def stored(panel: Panel, curve: Curve) -> tuple[Stored, ...]:
    folder = path_of(RESULTS, config_of(panel, curve), 0).parent
    return tuple(counted(curve, load(path)) for path in sorted(folder.glob("seed-*.json.gz")))


def number(text: str) -> float:
    return float(text.replace(",", ""))


def table_in(text: str, heading: str, words: str = "") -> tuple[int, int]:
    """Where the first table below a heading and some words begins and ends."""
    start = text.index(words, text.index(f"\n## {heading}\n"))
    rows = re.search(r"(?:^\|.*\n)+", text[start:], re.MULTILINE)
    assert rows is not None
    assert "\n## " not in text[start : start + rows.start()].removeprefix("\n## "), f"{heading} has no such table"
    return start + rows.start(), start + rows.end()


def cells_of(table: str) -> list[list[str]]:
    """Those of a table, without its line of dashes."""
    cells = [[cell.strip() for cell in row.strip()[1:-1].split("|")] for row in table.splitlines()]
    return [row for row in cells if not set("".join(row)) <= set("-: ")]


def table_after(path: str, heading: str, words: str = "") -> list[list[str]]:
    """The cells of the first table below a heading and some words."""
    text = (ROOT / path).read_text()
    start, end = table_in(text, heading, words)
    return cells_of(text[start:end])
