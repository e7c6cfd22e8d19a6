"""What README, CONTRIBUTING and the pages in docs say to type runs, and what they point at exists."""

import dataclasses
import importlib
import inspect
import itertools
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import fedpg
import probes
from documents import CODE, DOCUMENTS, PATHS, ROOT, Code, Command, Document, commands, read, slug
from fedpg import AGGREGATORS, ATTACKS, Config, Environment, Problem, Run
from fedpg.aggregators import RULES, Own, Sent, make_aggregator, required
from fedpg.algorithms import make_algorithm
from fedpg.attacks import make_attack
from fedpg.cli import COMMANDS, main
from fedpg.cli.arguments import parse_seeds
from fedpg.cli.federation import Create
from fedpg.cli.reproduce import HETEROGENEITY, Reproduce
from fedpg.cli.train import Train
from fedpg.config import refuse_idle_attack, validate
from fedpg.experiments.catalogue import find
from fedpg.federation import Local
from fedpg.presets import OTHER_TASKS, TASKS, refuse_idle
from fedpg.server import Server
from fedpg.tasks import registry
from fedpg.tasks.compiled import compiled_task
from fedpg.training.rounds import Log, advance, first_state
from test_architecture import ORDER
from tiny import TINY

SOURCE = ROOT / "src" / "fedpg"
each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.path.relative_to(ROOT)))


def test_every_kind_of_code_in_a_document_is_found(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "# One\n\nSay `a\nb`:\n\n    indented\n\n    still\n\n"
        "## Two\n\n```python\nx = 1\n```\n- text\n    not code `c`\n"
    )
    found = read(page)
    assert [(code.line, code.kind, code.text) for code in found.code] == [
        (3, "inline", "a b"),
        (6, "indented", "    indented\n\n    still"),
        (13, "python", "x = 1"),
        (16, "inline", "c"),
    ]
    assert found.code[2].before.strip() == "## Two"
    assert found.prose.splitlines()[9] == "## Two"


# Blocks of Python


PYTHON = [code for code in CODE if code.kind == "python"]
FIRST_READ = ("README.md", "CONTRIBUTING.md", "quickstart.md", "extending.md")


def test_no_block_is_passed_over_because_of_its_language():
    known = ("inline", "indented", "python", "")
    assert [code.where for code in CODE if code.kind not in known] == [], "Python is ```python, commands have none"
    python = re.compile(r"(?m)^\s*(>>>|import \w|from \S+ import|def \w+\()")
    assert [code.where for code in CODE if code.kind != "python" and python.search(code.text)] == []
    assert {code.document.name for code in PYTHON} >= {"README.md", "CONTRIBUTING.md"}


def module_of(block: Code) -> tuple[str, dict[str, Any]]:
    """Where a block belongs, and the names that it finds there.

    CONTRIBUTING shows what one would write in a module of the package, and names that module first. A folder stands for
    a new module, and every other block for a program: these have to import what they use.
    """
    named = re.search(r"`src/(fedpg/[\w/]+?)(/|\.py)`", block.before)
    if block.document.name != "CONTRIBUTING.md" or named is None:
        return "", {"__name__": "__main__"}
    name = named[1].replace("/", ".")
    return name, dict(vars(importlib.import_module(name))) if named[2] == ".py" else {"__name__": f"{name}.new"}


def _marked(block: Code) -> Any:
    """The first pages that people read with the other tests, all others with what follows these."""
    return pytest.param(block, id=block.where, marks=[] if block.document.name in FIRST_READ else [pytest.mark.more])


@pytest.mark.slow
@pytest.mark.parametrize("block", [_marked(block) for block in PYTHON])
def test_every_block_of_python_runs_and_what_it_defines_works(
    block: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    # One thing is not as a reader has it: runs are short, so that the returns which README's block prints are a
    # beginner's. That CartPole is learnt in a run of this kind is for test_learning.py to show.
    for values in (*TASKS.values(), OTHER_TASKS):
        monkeypatch.setitem(values, "trajectories", 40)
    module, names = module_of(block)
    before = set(names) | {"__builtins__"}
    # With the empty lines, an error is shown at its line of the document.
    exec(compile("\n" * (block.line - 1) + block.text, block.document, "exec"), names)
    new = {name: value for name, value in names.items() if name not in before}
    assert new, "it defines nothing"
    if module:
        assert module in USES, "say there what to do with it"
        USES[module](new, monkeypatch)
    runs = [run for run in new.values() if isinstance(run, Run)]
    assert all(run.finished for run in runs)
    folders = [tmp_path / run.folder for run in runs if run.folder is not None]
    for folder in folders:
        assert {"records.jsonl", "policy.safetensors"} <= {path.name for path in folder.iterdir()}
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in written if path.parent not in folders] == [], "a run without `out` writes nothing"


def federation(**settings: Any) -> Problem:
    """Five agents with a task of three steps."""
    return probes.tiny_problem(**{"agents": 5} | settings)


def one_round(problem: Problem) -> Log:
    return advance(problem, first_state(problem, 0), Local(problem), Server(problem))[1]


def use_attack(new: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of five agents make the attack of CONTRIBUTING, with its parameter from the command line."""
    (function,) = [value for value in new.values() if inspect.isfunction(value)]
    monkeypatch.setitem(ATTACKS, "documented", function)
    (scale,) = [name for name in inspect.signature(function).parameters if name != "form"]
    attacked = federation(byzantine=2, alpha=0.4, attack="documented", attack_options=(f"{scale}=2",))
    sent, true = (
        np.asarray(probes.answers(problem)(probes.broadcast(problem)).sent["gradient"])
        for problem in (attacked, federation())
    )
    np.testing.assert_allclose(sent[:3], true[:3], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(sent[3:], -2 * np.tile(true[3:].mean(axis=0), (2, 1)), rtol=1e-4, atol=1e-6)
    log = one_round(attacked)
    assert not log["status"].any()
    np.testing.assert_allclose(log["norms"], np.linalg.norm(sent, axis=1), rtol=1e-4)


def use_aggregator(new: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of five agents are enough for the aggregator of CONTRIBUTING, which keeps the shortest gradients."""
    (function,) = [value for value in new.values() if getattr(value, "__module__", "") == "fedpg.aggregators.new"]
    monkeypatch.setitem(AGGREGATORS, "documented", function)
    problem = federation(byzantine=1, attack="sign-flipping", aggregator="documented")
    assert required(5, problem.config.alpha) == 4
    log = one_round(problem)
    assert log["accepted"].tolist() == (log["norms"] < log["norms"].max()).tolist()
    assert RULES[log["rule"]] == "other"
    assert 0 < log["gradient_norm"] < log["norms"].max()

    gradients = jnp.array([[3.0, 4.0], [1.0, 0.0], [jnp.nan, 0.0], [0.0, 2.0], [6.0, 8.0]])
    for lost in (0, 5):  # without a valid reply there is nobody to keep
        valid = (jnp.arange(5) >= lost) & (jnp.arange(5) != 2)
        verdict, _ = problem.aggregator.update((), Sent(gradients, valid, 3), Own())
        kept = [] if lost else [0, 1, 3, 4]
        assert np.flatnonzero(verdict.accepted).tolist() == kept
        assert verdict.gradient.tolist() == ([0.0, 0.0] if lost else gradients[jnp.array(kept)].mean(axis=0).tolist())
        assert RULES[int(verdict.rule)] == ("nobody" if lost else "other")


def use_task(new: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The task of CONTRIBUTING, by its name, trained for some rounds; with another parameter it is another task."""
    (task,) = [value for value in new.values() if isinstance(value, Environment)]
    monkeypatch.setitem(registry.TASKS, task.id, compiled_task(task))
    small = TINY | {"trajectories": 15, "batch": (4, 4)}
    run = fedpg.train(task.id, **small)
    assert run.finished
    assert run.config.preset == "released"
    assert len(set(run.records.test_returns.tolist())) == len(run.records) + 1 > 2, "it learns something every time"
    assert (run.records.test_returns <= 0).all()
    action = run.policy(np.zeros(task.observations))
    assert task.actions.contains(action)
    ((name, nominal),) = task.parameters
    same, other = (
        fedpg.train(task.id, **small, parameters={name: [factor * nominal] * small["agents"]}) for factor in (1, 3)
    )
    np.testing.assert_allclose(same.records.test_returns[1], run.records.test_returns[1], rtol=1e-4)
    assert other.records.test_returns[1] != pytest.approx(run.records.test_returns[1], rel=1e-4)


USES: dict[str, Callable[[dict[str, Any], pytest.MonkeyPatch], None]] = {
    "fedpg.attacks": use_attack,
    "fedpg.aggregators": use_aggregator,
    "fedpg.tasks": use_task,
}


def test_contributing_shows_one_of_each():
    blocks = [module_of(code)[0] for code in PYTHON if code.document.name == "CONTRIBUTING.md"]
    assert blocks == list(USES)


# Commands


def check(options: Any) -> int:
    """In place of running a command: that it is not refused before anything is done."""
    if isinstance(options, Train | Create):
        sites = options.sites if isinstance(options, Create) else None
        config = validate(dataclasses.replace(options.config, agents=sites or options.config.agents))
        refuse_idle_attack(config)
        refuse_idle(config)
        # What is the reader's own, as package.module:object, is not here.
        if ":" not in config.algorithm:
            make_algorithm(config.algorithm)
        if ":" not in config.aggregator:
            numbers = {name: getattr(config, name) for name in ("alpha", "sigma", "delta")}
            make_aggregator(config.aggregator, config.aggregator_options, **numbers)
        if ":" not in config.attack:
            make_attack(config.attack, config.attack_form, config.attack_options)
    if isinstance(options, Train | Reproduce):
        parse_seeds(options.seeds)
    if isinstance(options, Reproduce) and options.names != (HETEROGENEITY,):
        find(options.names or ("all",), options.task, options.only)
    return 0


def accepts(words: list[str]) -> bool:
    try:
        return main(words) == 0
    except SystemExit as ended:  # of the parser: 0 for --help
        return ended.code == 0


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 800


@pytest.mark.parametrize("command", commands(), ids=lambda command: f"{command.where} {command.words}")
def test_every_command_is_accepted(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    for name, each in COMMANDS.items():
        monkeypatch.setitem(COMMANDS, name, each._replace(run=check))
    words = shlex.split(command.words, comments=True)
    if command.named and " ".join(words) in COMMANDS:
        return
    # Three dots stand for one word, a folder or a value, or for some that are not of interest.
    assert accepts(words) or ("..." in words and accepts([word for word in words if word != "..."])), (
        f"{command.where}: fedpg {command.words}\n{capsys.readouterr().err}"
    )


def test_commands_are_found_in_blocks_inline_and_in_tables():
    words = [command.words for command in commands()]
    assert {"theory lab --quick", "reproduce", "serve plants", "evaluate PATH", "train --task LunarLander-v3"} <= {
        *words
    }
    assert [name for name in COMMANDS if not any(f"{each} ".startswith(f"{name} ") for each in words)] == []


@pytest.mark.parametrize(
    "words",
    [["trian"], ["train", "--agent", "3"], ["train", "--attack", "sing"], ["reproduce", "figure9"], ["join"]],
    ids=" ".join,
)
def test_a_wrong_command_would_be_noticed(words: list[str], monkeypatch: pytest.MonkeyPatch):
    for name, each in COMMANDS.items():
        monkeypatch.setitem(COMMANDS, name, each._replace(run=check))
    assert not accepts(words)


OTHERS = {
    "the paper's code": {"--FT_FedPG", "--SVRPG", "--num_Byzantine", "--attack_type", "--eval_only", "--render"}
    | {"--load_path", "--log_dir"},
    "Flower": {"--node-config"},
}
"""Options that the documents name and that are not ours."""


def test_every_option_that_is_named_exists():
    records = [command.options for command in COMMANDS.values()] + [Config]
    ours = {f"--{field.name.replace('_', '-')}" for record in records for field in dataclasses.fields(record)}
    spoken = [code for code in CODE if code.kind == "inline" and re.match(r"(\.\.\. )?--", code.text)]
    named = {word.partition("=")[0]: code.where for code in spoken for word in code.text.split() if word[:2] == "--"}
    assert len(named) > 20
    assert {where: word for word, where in named.items() if word not in ours.union(*OTHERS.values())} == {}


def test_every_target_of_make_exists():
    targets = set(re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text()))
    named = {
        (code.where, target)
        for code in CODE
        if code.kind != "python"
        for target in re.findall(r"(?m)^\s*make ([\w-]+)", code.text)
    }
    assert {target for _, target in named} >= {"demo", "test", "lint"}
    assert {where: target for where, target in named if target not in targets} == {}


def test_every_row_of_a_table_has_as_many_cells_as_its_header():
    odd = []
    for document in PATHS:
        wanted = 0
        for number, line in enumerate(document.read_text().splitlines(), 1):
            cells = len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", line))) if line.startswith("|") else 0
            odd += [f"{document.name}:{number}"] if cells and wanted and cells != wanted else []
            wanted = cells
    assert odd == []


# What they point at


@each_document
def test_every_link_inside_the_repository_leads_somewhere(document: Document):
    for target in re.findall(r"\]\(([^)\s]+)\)", document.prose):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        path = document.path.parent / name if name else document.path
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"(?m)^#+ (.*)", path.read_text(encoding="utf-8"))
            assert anchor in map(slug, headings), target


@each_document
def test_every_file_of_the_repository_that_is_named_exists(document: Document):
    for code in document.code:
        for name in re.findall(r"\b(?:src|tests|studies|docs|examples)/[\w./-]*\w", code.text):
            assert (ROOT / name).exists() or (document.path.parent / name).exists(), f"{code.where}: {name}"


def rows_of_the_map() -> list[tuple[str, str]]:
    """(the modules, what is said of them) of every row."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    found = re.search(r"(?m)^\| `src/fedpg/` \|.*\n\|---\|---\|\n((?:\|.*\n)+)", text)
    assert found is not None
    return [(row.split("|")[1], row.split("|")[2]) for row in found[1].splitlines()]


def test_the_map_of_the_code_has_every_module_and_nothing_else():
    """And its rows are in the order that test_architecture.py holds the modules to."""
    rows = [re.findall(r"`(\w+)/?`", modules) for modules, _ in rows_of_the_map()]
    there = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert sorted(name for row in rows for name in row) == sorted(there - {"__init__"})
    places = [sorted(ORDER.index(name) for name in row) for row in rows]
    assert all(above[-1] < below[0] for above, below in itertools.pairwise(places))


def test_a_folder_in_the_map_of_the_code_has_the_modules_that_are_said_to_be_in_it():
    checked = 0
    for modules, about in rows_of_the_map():
        inside = {path.stem for room in re.findall(r"`(\w+)/`", modules) for path in (SOURCE / room).glob("*.py")}
        for name in re.findall(r"`([a-z_]+)`", about):
            assert name in inside, f"{modules.strip()}: {name}"
            checked += 1
    assert checked > 10
