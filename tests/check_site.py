"""The built documentation: whatever a page loads or links to is in the site itself.

    python tests/check_site.py site

Links that a reader may click can lead elsewhere; what a browser loads by itself may not: no script, style, font,
picture or frame. MkDocs checks links between pages; this checks what it built, the theme's part too.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

LOADED = {"src", "srcset", "data", "poster", "background", "action", "formaction"}
"""Attributes whose address a browser fetches, or sends to, by itself."""
SPOKEN = {"canonical", "next", "prev", "alternate", "license", "author"}
"""Kinds of <link> that a browser does not fetch."""
IN_CSS = re.compile(r"""@import\s+(?:url\()?["']?([^"')\s;]+)|url\(\s*["']?([^"')\s]+)""")


class Found(NamedTuple):
    """What a page has."""

    loads: tuple[str, ...]
    links: tuple[str, ...]
    anchors: frozenset[str]


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: list[str] = []
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.inside = tag
        self.anchors += [values[name] for name in ("id", "name") if name in values]
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and not set(values.get("rel", "").lower().split()) & SPOKEN:
            self.loads.append(values.get("href", ""))
        if "srcset" in values:
            self.loads += [part.split()[0] for part in values.pop("srcset").split(",") if part.strip()]
        self.loads += [values[name] for name in LOADED & set(values)]
        self.loads += in_css(values.get("style", ""))
        if "mermaid" in values.get("class", "").split():
            self.loads.append("https://unpkg.com/mermaid")  # which the theme would fetch to draw this

    def handle_data(self, data: str) -> None:
        if self.inside == "style":
            self.loads += in_css(data)

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""


def in_css(text: str) -> list[str]:
    return [found[1] or found[2] for found in IN_CSS.finditer(re.sub(r"(?s)/\*.*?\*/", "", text))]


@cache
def read(page: Path) -> Found:
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    return Found(tuple(reader.loads), tuple(reader.links), frozenset(reader.anchors))


def outside(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme not in ("", "data") or bool(parts.netloc)


def problems(site: Path) -> Iterator[str]:
    """What is wrong, a line each."""
    site = site.resolve()
    for page in sorted(site.rglob("*.html")):
        name, found = page.relative_to(site), read(page)
        for address in found.loads:
            if outside(address):
                yield f"{name} loads {address} from elsewhere"
            elif not address.startswith("data:"):
                yield from missing(site, page, address)
        for address in found.links:
            if not outside(address) and not address.startswith("data:"):
                yield from missing(site, page, address)
    for sheet in sorted(site.rglob("*.css")):
        for address in in_css(sheet.read_text(encoding="utf-8")):
            if outside(address):
                yield f"{sheet.relative_to(site)} loads {address} from elsewhere"


def missing(site: Path, page: Path, address: str) -> Iterator[str]:
    """If what an address within the site leads to is not there."""
    parts = urlsplit(address)
    path = unquote(parts.path)
    target = page if not path else (site / path.lstrip("/") if path.startswith("/") else page.parent / path).resolve()
    target = target / "index.html" if target.is_dir() else target
    name, anchor = page.relative_to(site), unquote(parts.fragment)
    if not target.is_relative_to(site) or not target.is_file():
        yield f"{name} leads to {address}, which is not there"
    elif anchor and target.suffix == ".html" and anchor not in read(target).anchors:
        yield f"{name} leads to {address}, where no such anchor is"


def main() -> int:
    site = Path(sys.argv[1])
    pages = len(list(site.rglob("*.html")))
    wrong = list(problems(site))
    print("\n".join([*wrong, f"{site}: {pages} pages, {len(wrong)} problems"]))
    return 1 if wrong or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
