"""What MkDocs needs to know of this repository: the pages and files beside docs/, and where links to them lead.

The documents link to each other as files of the repository. Whatever they link to outside docs/ becomes part of the
site: a document, a picture or a table as it is, anything else as a page that shows it.
"""

import posixpath
import re
import textwrap
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "results/report.md": "results/report.md",
}
"""Documents outside docs/ that have a place in the navigation."""
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what is outside docs/: the pages above, and whatever the documents link to."""
    for source, uri in PAGES.items():
        if (ROOT / source).exists():
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / source)))
    waiting = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    while waiting:
        document = waiting.pop()
        for target in linked(document):
            uri = uri_of(target)
            if target.is_relative_to(ROOT / "docs") or files.get_file_from_path(uri):
                continue
            if uri.endswith(".md") and target.suffix != ".md":
                files.append(File.generated(config, uri, content=shown(target)))
                waiting += [target / "README.md"] if (target / "README.md").exists() else []
            else:
                files.append(File.generated(config, uri, abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links between files of the repository into links between pages of the site."""
    source = Path(page.file.abs_src_path) if page.file.abs_src_path else None
    if source is not None:
        markdown = LINK.sub(lambda link: relinked(link, source.parent, page.file.src_uri), markdown)
    if page.file.src_uri == "gallery.md":
        markdown = re.sub(r"(?m)^.*\]\(\S*examples/gallery/(\w+)\.py\.md\)$", with_script, markdown)
    # A table in a numbered list: Python-Markdown wants four spaces where others are content with three.
    return re.sub(r"(?m)^ {3}(?=\|)", "    ", markdown)


def with_script(line: re.Match[str]) -> str:
    """A line that ends with a link to a script of the gallery, and the script below it, folded."""
    script = block(ROOT / "examples" / "gallery" / f"{line[1]}.py")
    return f'{line[0]}\n\n??? example "{line[1]}.py"\n\n{textwrap.indent(script, "    ")}'


def linked(document: Path) -> list[Path]:
    """The files and folders of the repository that a document links to."""
    text = document.read_text(encoding="utf-8")
    targets = [(document.parent / link[1]).resolve() for link in LINK.finditer(text)]
    return [target for target in targets if target.exists() and target.is_relative_to(ROOT)]


def uri_of(target: Path) -> str:
    """Where a file of the repository is in the site."""
    name = target.relative_to(ROOT).as_posix()
    if name in PAGES:
        return PAGES[name]
    if target.is_relative_to(ROOT / "docs"):
        return target.relative_to(ROOT / "docs").as_posix()
    return name if target.suffix in (".md", ".png", ".csv") else f"files/{name}.md"


def relinked(link: re.Match[str], folder: Path, page: str) -> str:
    """A link of a document in `folder`, as the page `page` must have it."""
    target = (folder / link[1]).resolve()
    if not target.exists() or not target.is_relative_to(ROOT):
        return link[0]  # MkDocs says so, and with `strict` the build fails
    return f"]({posixpath.relpath(uri_of(target), posixpath.dirname(page) or '.')}{link[2] or ''})"


def shown(target: Path) -> str:
    """A page for a file or a folder: what its README says, and what is in it."""
    name = target.relative_to(ROOT).as_posix()
    if target.is_file():
        return f"# {name}\n\n{block(target)}"
    readme = target / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.exists() else f"# {name}\n"
    text = LINK.sub(lambda link: relinked(link, target, f"files/{name}.md"), text)
    left_behind = {"__pycache__", ".ruff_cache", ".mypy_cache", ".pytest_cache"}  # by tools
    files = [path for path in sorted(target.rglob("*")) if path.is_file() and left_behind.isdisjoint(path.parts)]
    parts = [f"## {path.relative_to(target)}\n\n{block(path)}" for path in files if path.suffix in (".py", ".toml")]
    rest = [f"- `{path.relative_to(target)}`" for path in files if path.suffix not in (".py", ".toml", ".md")]
    return "\n\n".join([text, *parts, *(["## Other files", "\n".join(rest)] if rest else [])]) + "\n"


def block(path: Path) -> str:
    return f"````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text(encoding='utf-8').rstrip()}\n````\n"
