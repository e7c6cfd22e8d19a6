"""What is built and what is said of it agree; without extras `fedpg train` works, and the rest says what it needs."""

import fnmatch
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedpg
from documents import ROOT
from fedpg import ConfigError
from fedpg.cli import main
from fedpg.extras import EXTRAS, hint, need
from test_architecture import FILES, imports

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRA = PROJECT["optional-dependencies"]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=;! ]", each)[0].lower() for each in requirements}


def test_the_version_is_the_same_everywhere():
    cited = re.search(r"(?m)^version: (\S+)", (ROOT / "CITATION.cff").read_text())
    changed = re.search(r"(?m)^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text())
    assert cited is not None
    assert changed is not None
    assert {PROJECT["version"], fedpg.__version__, cited[1], changed[1]} == {PROJECT["version"]}


def test_the_metadata_are_those_of_a_package_on_an_index():
    assert {"description", "keywords", "classifiers", "urls", "license", "license-files", "authors"} <= set(PROJECT)
    assert all((ROOT / name).exists() for name in PROJECT["license-files"])
    for minor in (11, 12, 13, 14):
        assert f"Programming Language :: Python :: 3.{minor}" in PROJECT["classifiers"]


def test_the_long_description_shows_where_there_is_no_repository():
    text = (ROOT / PROJECT["readme"]["file"]).read_text()
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert [target for target in targets if not target.startswith("https://")] == []
    assert set(re.findall(r"(?m)^\| `([\w-]+)` \|", text)) == set(EXTRA) - {"dev", "docs"}


def test_the_source_distribution_holds_what_is_under_version_control():
    """As `make test-package` checks on the file itself: the helpers of the tests too."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    always = ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "src/fedpg/*.py", "src/fedpg/py.typed")
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["fedpg"]
    patterns = [*always, *(f"src/fedpg/{name}" for name in data)]
    for line in (ROOT / "MANIFEST.in").read_text().splitlines():
        kind, *words = line.split()
        if kind == "include":
            patterns += words
        elif kind == "recursive-include":
            patterns += [f"{words[0]}/{word}" for word in words[1:]]
    left_out = ("results/runs/", "results/arena/", "results/theory/", ".gitignore")
    missing = [
        name
        for name in listed.splitlines()
        if not name.startswith(left_out) and not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    ]
    assert missing == []


def test_every_package_that_is_imported_is_required_or_an_extra():
    within = {"Box2D": "gymnasium", "mujoco": "gymnasium", "pygame": "gymnasium", "cryptography": "flwr"}
    distributions = within | {"PIL": "pillow"}
    through = {"starlette", "uvicorn", "fastapi", "httpx", "google"}  # of Flower, in its adapter
    required = names(PROJECT["dependencies"])
    for extra in EXTRA.values():
        required |= names(extra)
    for path in FILES:
        for module in imports(path.read_text()):
            top = module.partition(".")[0]
            if top != "fedpg" and top not in sys.stdlib_module_names and top not in through:
                assert distributions.get(top, top).lower() in required, f"{path.name}: {top}"
    for module, (_, extra) in EXTRAS.items():
        assert distributions.get(module, module).lower() in names(EXTRA[extra]), module


LIGHT = """
import sys
for name in {hidden!r}:
    sys.modules[name] = None
from fedpg.cli import main
sys.exit(main(sys.argv[1:]))
"""


def without_extras(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process in which no package of an extra can be imported."""
    code = LIGHT.format(hidden=[*EXTRAS, "onnxruntime", "cryptography"])
    return subprocess.run([sys.executable, "-c", code, *words], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_training_needs_no_extra_and_says_in_one_line_what_was_left_out(tmp_path: Path):
    tiny = "--agents 2 --batch 2 2 --horizon 5 --test-horizon 5 --test-episodes 1 --hidden 4 --trajectories 2"
    done = without_extras("train", *tiny.split(), "--algorithm", "gpomdp", "--out", "run", "--quiet", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        *("config.json", "records.jsonl", "checkpoint.safetensors", "policy.safetensors", "policy-uniform.safetensors"),
    }
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("fedpg:")]
    assert "curve.png and TensorBoard's log" in line
    assert "fedpg[figures,tensorboard]" in line


@pytest.mark.parametrize(
    ("words", "module", "extra"),
    [
        (["report"], "matplotlib", "figures"),
        (["arena"], "matplotlib", "figures"),
        (["reproduce", "figure1", "--task", "CartPole-v1"], "matplotlib", "figures"),
        (["theory", "lab"], "matplotlib", "figures"),
        (["play", "run"], "PIL", "figures"),
        (["federation", "demo"], "flwr", "flower"),
        (["export", "run", "--to", "onnx"], "onnx", "onnx"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else None,
)
def test_a_command_says_at_once_which_extra_it_needs(
    words: list[str],
    module: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    assert main(words) == 2
    assert f"pip install 'fedpg[{extra}]' (from a checkout: pip install -e '.[{extra}]')" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_simulator_that_gymnasium_misses_is_named_with_our_extra(monkeypatch: pytest.MonkeyPatch):
    class DependencyNotInstalled(Exception):
        """As Gymnasium calls it."""

    monkeypatch.setitem(sys.modules, "Box2D", None)
    error = ConfigError("Gymnasium cannot make the task")
    error.__cause__ = DependencyNotInstalled('Box2D is not installed, run `pip install "gymnasium[box2d]"`')
    assert "fedpg[simulators]" in hint(error)
    assert hint(ConfigError("something else")) == ""


def test_several_missing_packages_are_one_message(monkeypatch: pytest.MonkeyPatch):
    for module in ("matplotlib", "PIL", "ray"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"matplotlib and Pillow and Ray: pip install 'fedpg\[figures,ray\]'"):
        need("matplotlib", "PIL", "ray")
