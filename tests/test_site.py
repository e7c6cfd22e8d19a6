"""The documentation as a site: its navigation, its reference, its gallery, and the check of what was built."""

import re
import runpy
from pathlib import Path

import pytest

import fedpg
from check_site import problems
from documents import ROOT

DOCS = ROOT / "docs"
GALLERY = sorted((ROOT / "examples" / "gallery").glob("*.py"))


def test_the_reference_has_every_public_name_and_no_other():
    named = re.findall(r"(?m)^::: fedpg\.(\w+)$", (DOCS / "reference.md").read_text(encoding="utf-8"))
    assert sorted(named) == sorted(fedpg.__all__)


def test_every_public_name_says_what_it_is():
    assert [
        name for name in fedpg.__all__ if not isinstance(getattr(fedpg, name), dict) if not getattr(fedpg, name).__doc__
    ] == []


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert pages <= set(re.findall(r"(\S+\.md)$", nav, re.MULTILINE))


# The gallery


def test_every_picture_of_the_gallery_has_its_script_and_every_script_its_picture():
    page = (DOCS / "gallery.md").read_text(encoding="utf-8")
    sections = page.split("\n## ")[1:]
    shown = [re.findall(r"\]\(pictures/(\w+)\.png\)", section) for section in sections]
    scripts = [re.findall(r"\[(\w+)\.py\]\(\.\./examples/gallery/\1\.py\)", section) for section in sections]
    assert shown == scripts, "a section has a picture, and the script that makes it"
    assert sorted(name for names in shown for name in names) == [path.stem for path in GALLERY]
    assert sorted(path.stem for path in (DOCS / "pictures").iterdir()) == [path.stem for path in GALLERY]
    assert max(path.stat().st_size for path in (DOCS / "pictures").iterdir()) < 60_000


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_a_script_of_the_gallery_is_short_and_compiles(path: Path):
    source = path.read_text(encoding="utf-8")
    compile(source, path, "exec")
    assert len(source.splitlines()) <= 40


@pytest.mark.parametrize("name", ["arena", "under_attack", "more_agents"])
def test_pictures_of_stored_results_can_be_drawn_again(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("matplotlib")
    if not (ROOT / "results" / "arena").exists():
        pytest.skip("the source distribution has no stored results")
    picture = tmp_path / "picture.png"
    monkeypatch.setattr("sys.argv", [name, str(picture)])
    monkeypatch.setenv("MPLBACKEND", "agg")
    runpy.run_path(str(ROOT / "examples" / "gallery" / f"{name}.py"), run_name="__main__")
    assert picture.read_bytes().startswith(b"\x89PNG")


# The check


def site(folder: Path, **pages: str) -> Path:
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return folder


def test_a_site_that_is_whole_has_no_problems(tmp_path: Path):
    (tmp_path / "a.css").write_text("/* @import 'https://far' */ p { background: url(data:image/png;base64,x) }")
    index = '<link rel=stylesheet href=a.css><a href="b.html#here">b</a><a href="https://far">far</a><img src="data:x">'
    assert list(problems(site(tmp_path, index=index, b='<p id="here"><a href="#here">up</a>'))) == []


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://far/x.js"></script>',
        '<script src="//far/x.js"></script>',
        '<link rel="preconnect" href="https://fonts.far">',
        '<img srcset="here.png 1x, https://far/x.png 2x">',
        "<style>@import 'https://far/x.css';</style>",
        '<p style="background: url(https://far/x.png)">',
        '<pre class="mermaid">',
        '<img src="gone.png">',
        '<a href="gone.html">gone</a>',
        '<a href="#gone">gone</a>',
        '<a href="../index.html">out of the site</a>',
    ],
)
def test_what_is_loaded_from_elsewhere_or_is_not_there_is_found(text: str, tmp_path: Path):
    (tmp_path / "here.png").touch()
    assert len(list(problems(site(tmp_path, index=text)))) == 1


def test_a_style_sheet_that_loads_a_font_from_elsewhere_is_found(tmp_path: Path):
    (tmp_path / "a.css").write_text('@font-face { src: url("https://far/x.woff2") }')
    assert list(problems(tmp_path)) == ["a.css loads https://far/x.woff2 from elsewhere"]
