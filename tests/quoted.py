"""Numbers in documents, and the stored runs that they should be of."""

import re

import pytest

from documents import ROOT
from fedpg.experiments.panels import Curve, Panel, config_of
from fedpg.experiments.store import Stored, load, path_of

RESULTS = ROOT / "results"
needs_results = pytest.mark.skipif(
    not (RESULTS / "runs").exists(), reason="what is stored is in the repository, not in what is published"
)


def stored(panel: Panel, curve: Curve) -> tuple[Stored, ...]:
    folder = path_of(RESULTS, config_of(panel, curve), 0).parent
    return tuple(load(path) for path in sorted(folder.glob("seed-*.json.gz")))


def number(text: str) -> float:
    return float(text.replace(",", ""))


def table_after(path: str, heading: str, words: str = "") -> list[list[str]]:
    """The cells of the first table below a heading and some words, without its line of dashes."""
    text = (ROOT / path).read_text().split(f"\n## {heading}\n")[1]
    text = text[text.index(words) :]
    rows = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert rows is not None
    cells = [[cell.strip() for cell in row.strip()[1:-1].split("|")] for row in rows[0].splitlines()]
    return [row for row in cells if not set("".join(row)) <= set("-: ")]
