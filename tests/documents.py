"""The documents as the tests read them: their code, inline and in blocks, and what is prose."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PATHS = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("examples/**/README.md")),
]


class Code(NamedTuple):
    """Code in a document."""

    document: Path
    line: int
    """That of its first line, from 1."""
    kind: str
    """"inline", "indented", or the language of a fenced block ("" if it names none)."""
    text: str
    before: str
    """The prose of its section, up to this code."""

    @property
    def where(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


class Document(NamedTuple):
    path: Path
    code: list[Code]
    prose: str
    """The rest, line by line where it was; its inline code too."""


def read(path: Path) -> Document:
    """A document in parts. Of Markdown, this knows as much as the documents here use."""
    text = path.read_text(encoding="utf-8")
    assert "~~~" not in text, f"{path.name}: fence a block with ```, which is what is looked for here"
    blocks: list[Code] = []
    prose: list[str] = []
    inside: list[str] = []  # of an indented block that may go on
    lines = iter(enumerate(text.splitlines(), start=1))

    def end_indented() -> None:
        if inside:
            start = len(prose) - len(inside)
            block = Code(path, start + 1, "indented", "\n".join(inside).rstrip(), _section(prose[:start]))
            assert "`" not in block.text, f"{block.where}: is this a list's? Indent that by less than four"
            blocks.append(block)
            inside.clear()

    for number, line in lines:
        fence = re.fullmatch(r" *```(.*)", line)
        after_empty = not "".join(prose[-1:]).strip()
        if fence:
            end_indented()
            body = list(_until_fence(path, lines))
            blocks.append(Code(path, number + 1, fence[1].strip(), textwrap.dedent("\n".join(body)), _section(prose)))
            prose += [""] * (len(body) + 2)
        elif (line.startswith("    ") and (inside or after_empty)) or (inside and not line.strip()):
            inside.append(line)
            prose.append("")
        else:
            end_indented()
            prose.append(line)
    end_indented()
    whole = "\n".join(prose)
    return Document(path, sorted([*blocks, *_inline(path, whole)], key=lambda code: code.line), whole)


def _until_fence(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[str]:
    for _, line in lines:
        if line.strip() == "```":
            return
        yield line
    raise AssertionError(f"{path.name}: a block without an end")


def _section(prose: list[str]) -> str:
    """What was said since the last heading."""
    headings = [i for i, line in enumerate(prose) if line.startswith("#")]
    return "\n".join(prose[headings[-1] if headings else 0 :])


def _inline(path: Path, prose: str) -> Iterator[Code]:
    for found in re.finditer(r"`([^`]+)`", prose):
        line = prose.count("\n", 0, found.start()) + 1
        assert "\n\n" not in found[1], f"{path.name}:{line}: a backtick without its other one"
        before = _section(prose[: found.start()].splitlines())
        yield Code(path, line, "inline", " ".join(found[1].split()), before)


DOCUMENTS = [read(path) for path in PATHS]
CODE = [code for document in DOCUMENTS for code in document.code]


class Command(NamedTuple):
    """A `fedpg ...` of a document."""

    where: str
    words: str
    """What follows `fedpg`."""
    named: bool
    """Inline, where a command may be spoken of without its arguments."""


def commands() -> list[Command]:
    """Every command line of `fedpg`, in blocks and inline; beside it there may be settings, and what it does."""
    found = []
    for code in CODE:
        for i, line in enumerate(code.text.replace("\\\n", " ").splitlines()):
            command = re.fullmatch(r"\s*(?:\w+=\S*\s+)*(?:\S*/)?fedpg\s+(.+)", line)
            if command is None:
                continue
            words, _, saying = re.sub(r"\s{2,}", "\0", command[1], count=1).partition("\0")
            where = f"{code.where.rpartition(':')[0]}:{code.line + i}"
            assert not saying.startswith("-"), f"{where}: two spaces end a command here; use one"
            found.append(Command(where, words, code.kind == "inline"))
    return found


def slug(heading: str) -> str:
    """The name by which a link can point at a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
