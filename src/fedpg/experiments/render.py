"""A page as a list of blocks, written as self-contained HTML and as Markdown."""

import base64
import csv
import html
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph; `code` and **bold** as in Markdown."""

    text: str
    kind: str = ""
    """A class of the style sheet, for HTML."""


@dataclass(frozen=True)
class Table:
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    marks: dict[str, str] = field(default_factory=dict)
    """Cells with this text -> their class of the style sheet, for HTML."""
    words: int = 1
    """The first columns that hold words: set to the left."""
    name: str = ""
    """What a link calls it where the page is short: a table with a name and many rows has a file of its own."""
    grouped: bool = False
    """Whether a page shows the first cell only where it is another than in the row before."""
    prose: bool = False
    """Whether cells hold sentences, which may be broken into lines."""

    @property
    def shown(self) -> list[list[str]]:
        """The rows as a page has them."""
        rows = [list(row) for row in self.rows]
        before = [None, *(row[0] for row in rows)]
        same = [self.grouped and row[0] == last for row, last in zip(rows, before, strict=False)]
        return [["", *row[1:]] if again else row for row, again in zip(rows, same, strict=True)]


@dataclass(frozen=True)
class Pictures:
    """Panels: one image each in HTML, where they flow with the width of the page, and one picture in Markdown."""

    alt: str
    path: str
    """The picture, relative to the page."""
    images: Sequence[bytes]
    """SVG."""
    legend: Sequence[tuple[str, str, bool]] = ()
    theirs: Sequence[tuple[str, str]] = ()
    """(how a line of the paper's looks, what it is) for each kind that is in it."""


@dataclass(frozen=True)
class Details:
    """What is folded away until somebody asks for it."""

    summary: str
    blocks: Sequence["Block"]


@dataclass(frozen=True)
class Section:
    """A heading and what is below it; in HTML it folds, so that the page can be looked over."""

    heading: Heading
    blocks: Sequence["Block"]
    unfolded: bool = False


@dataclass(frozen=True)
class Contents:
    """Links to all second-level headings."""


MOST_ROWS = 8
"""Of a table with a name on the short page."""
Block = Heading | Text | Table | Pictures | Details | Section | Contents
Ids = dict[int, str]
"""The object of a heading -> its name in the page; of a table -> its file."""


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """One page without anything from outside: style and images are in it."""
    style = (files("fedpg.experiments") / "report.css").read_text()
    headings = list(_headings(blocks))
    ids = _ids(headings)
    links = "".join(f'<a href="#{ids[id(h)]}">{_inline(h.text)}</a>' for h in headings if h.level == 2)
    body = "\n".join(_html(block, ids, links) for block in blocks)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{html.escape(title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def to_markdown(title: str, blocks: Sequence[Block]) -> str:
    """The same page for a repository, short: long tables, and what the other folds away, have files (`folded`)."""
    headings = [heading for heading in _headings(blocks) if heading.level == 2]
    paths = {id(table): path for path, table in folded(blocks).items()}
    return f"# {title}\n\n" + "\n\n".join(_markdown(blocks, headings, paths, set())) + "\n"


def folded(blocks: Iterable[Block], name: str = "", summary: str = "") -> dict[str, Table]:
    """The tables that the short page has no room for, by a path for each, relative to the page."""
    found: dict[str, Table] = {}
    place = name
    for block in blocks:
        more: dict[str, Table] = {}
        match block:
            case Section(heading, inner):
                more = folded(inner, anchor(heading.text))
            case Heading(text, 3):
                place = f"{name}-{anchor(text)}"
            case Details(inside, inner):
                more = folded(inner, place, inside)
            case Table() if summary or (block.name and len(block.rows) > MOST_ROWS):
                more = {f"tables/{'-'.join(filter(None, (place, anchor(summary or block.name))))}.csv": block}
        for path, table in more.items():
            names = (path, *(path.replace(".csv", f"-{i}.csv") for i in range(2, len(found) + 3)))
            found[next(name for name in names if name not in found)] = table
    return found


def to_csv(table: Table) -> str:
    """A table as a file that spreadsheets and pandas read."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([table.columns, *table.rows])
    return text.getvalue()


def anchor(text: str) -> str:
    """As repositories make them of headings."""
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")


def _headings(blocks: Iterable[Block]) -> Iterator[Heading]:
    for block in blocks:
        if isinstance(block, Heading):
            yield block
        elif isinstance(block, Section):
            yield block.heading
            yield from _headings(block.blocks)
        elif isinstance(block, Details):
            yield from _headings(block.blocks)


def _ids(headings: Iterable[Heading]) -> Ids:
    """A name for each, of its own: those that come again are numbered, as repositories do it."""
    found: Ids = {}
    seen: dict[str, int] = {}
    for heading in headings:
        name = anchor(heading.text)
        count = seen[name] = seen.get(name, -1) + 1
        found[id(heading)] = f"{name}-{count}" if count else name
    return found


def _html(block: Block, ids: Ids, links: str = "") -> str:
    match block:
        case Heading(text, level):
            return f'<h{level} id="{ids[id(block)]}">{_inline(text)}</h{level}>'
        case Section(heading, blocks, unfolded):
            inner = "\n".join(_html(b, ids) for b in blocks)
            opened = '<details class="section" open>' if unfolded else '<details class="section">'
            return f"{opened}<summary>{_html(heading, ids)}</summary>\n{inner}\n</details>"
        case Text(text, kind):
            return f'<p class="{kind}">{_inline(text)}</p>' if kind else f"<p>{_inline(text)}</p>"
        case Table():
            return _html_table(block)
        case Pictures():
            return _html_pictures(block)
        case Details(summary, blocks):
            inner = "\n".join(_html(b, ids) for b in blocks)
            return f"<details><summary>{_inline(summary)}</summary>\n{inner}\n</details>"
        case Contents():
            return f"<nav>{links}</nav>"


def _html_table(table: Table) -> str:
    def cells(row: Sequence[str], tag: str) -> str:
        kinds = [f"{'words' * (i < table.words)} {table.marks.get(text, '')}".strip() for i, text in enumerate(row)]
        opened = (f'<{tag} class="{kind}">' if kind else f"<{tag}>" for kind in kinds)
        # What a cell says may come from a file: no markup in it.
        return "".join(f"{o}{html.escape(text)}</{tag}>" for o, text in zip(opened, row, strict=True))

    caption = f"<caption>{_inline(table.caption)}</caption>" if table.caption else ""
    head = f"<thead><tr>{cells(table.columns, 'th')}</tr></thead>"
    body = "\n".join(f"<tr>{cells(row, 'td')}</tr>" for row in table.shown)
    # A box of its own: a wide table scrolls in it, and the page does not.
    opened = '<table class="prose">' if table.prose else "<table>"
    return f'<div class="wide" tabindex="0">{opened}{caption}{head}<tbody>\n{body}\n</tbody></table></div>'


def _html_pictures(block: Pictures) -> str:
    def source(image: bytes) -> str:
        return "data:image/svg+xml;base64," + base64.b64encode(image).decode()

    images = "".join(f'<img src="{source(image)}" alt="{html.escape(block.alt)}">' for image in block.images)
    keys = "".join(
        f'<span><i style="border-top:3px {"dotted" if dotted else "solid"} {colour}"></i>{html.escape(label)}</span>'
        for label, colour, dotted in block.legend
    )
    keys += "".join(f'<span><b class="line">{line}</b>{html.escape(label)}</span>' for line, label in block.theirs)
    return f'<figure><div class="panels">{images}</div><figcaption>{keys}</figcaption></figure>'


def _inline(text: str) -> str:
    """`code`, **bold** and [links](...) of Markdown, everything else escaped."""
    safe = html.escape(text)
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    safe = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", safe)
    return re.sub(r"\[([^\]]+)\]\(((?:https?://|#|\.)[^)\s]*)\)", r'<a href="\2">\1</a>', safe)


def _markdown(blocks: Iterable[Block], headings: Sequence[Heading], paths: Ids, explained: set[str]) -> Iterator[str]:
    """The paragraphs; links to tables that have files, and follow each other, share one.

    `explained` are the captions of linked tables so far: each is there once.
    """
    links: list[str] = []
    for block, summary in _opened(blocks):
        if isinstance(block, Table) and id(block) in paths:
            if not summary and block.caption and block.caption not in explained:
                explained.add(block.caption)
                yield f"{block.name}: {block.caption[0].lower()}{block.caption[1:]}"
            links.append(f"[{summary or block.name}]({paths[id(block)]})")
            continue
        if links:
            yield " · ".join(links)
            links = []
        match block:
            case Heading(text, level):
                yield "#" * level + " " + text
            case Text(text, _):
                yield text
            case Table(columns, _, caption):
                lines = [_row(columns), "|" + "---|" * len(columns), *map(_row, block.shown)]
                yield (f"{caption}\n\n" if caption else "") + "\n".join(lines)
            case Pictures(alt, path):
                yield f"![{alt}]({path})"
            case Section(heading, inner):
                yield from _markdown((heading, *inner), headings, paths, explained)
            case Contents():
                yield "\n".join(f"- [{h.text}](#{anchor(h.text)})" for h in headings)
    if links:
        yield " · ".join(links)


def _opened(blocks: Iterable[Block], summary: str = "") -> Iterator[tuple[Block, str]]:
    """What is folded away, unfolded, each block with the summary that it is folded away below."""
    for block in blocks:
        if isinstance(block, Details):
            yield from _opened(block.blocks, block.summary)
        else:
            yield block, summary


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(_plain(cell) for cell in cells) + " |"


def _plain(cell: str) -> str:
    """A cell without markup: it may come from a file. Brackets that make no link stay as they are."""
    return re.sub(r"([\\`<|]|(?<=\])\()", r"\\\1", " ".join(cell.splitlines()))
