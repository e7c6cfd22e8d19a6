"""What README, CONTRIBUTING and the pages in docs say to type runs, and what they point at exists."""

import dataclasses
import importlib
import inspect
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpg
import fedpg.training.rounds
import probes
from documents import CODE, DOCUMENTS, PATHS, ROOT, Code, Command, Document, commands, read, slug
from fedpg import Config, Environment, Run, make_config
from fedpg.agents import Problem, Replies, make_problem
from fedpg.aggregators import FILTERS, RULES, make_filter
from fedpg.algorithms import ALGORITHMS, Log, first_state
from fedpg.attacks import ATTACKS, make_attack
from fedpg.cli import COMMANDS, main
from fedpg.cli.arguments import parse_seeds
from fedpg.cli.federation import Create
from fedpg.cli.reproduce import Reproduce
from fedpg.cli.train import Train
from fedpg.config import OTHER_TASKS, TASKS, refuse_idle_attack, validate
from fedpg.environments import ENVIRONMENTS
from fedpg.experiments.catalogue import find
from fedpg.federation import local_federation
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


@pytest.mark.slow
@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.where)
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
    for run in new.values():
        if isinstance(run, Run):
            assert run.finished
            assert {"records.jsonl", "policy.safetensors"} <= {path.name for path in (tmp_path / run.folder).iterdir()}


def federation(**settings: Any) -> Problem:
    """Five agents with a task of three steps."""
    small = {"agents": 5, "hidden": (3,), "batch": (3, 3), "minibatch": 2, "test_episodes": 1, "sigma": 10.0}
    return make_problem(make_config(**small | settings), environment=probes.tiny_environment())


def one_round(problem: Problem) -> Log:
    def compute(state: Any) -> Any:
        return ALGORITHMS[problem.config.algorithm](problem, local_federation(problem), state)

    return jax.jit(compute)(first_state(problem, 0))[1]


def use_attack(new: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of five agents make the attack of CONTRIBUTING, with its parameter from the command line."""
    (function,) = new.values()
    monkeypatch.setitem(ATTACKS, "documented", function)
    (scale,) = [name for name in inspect.signature(function).parameters if name != "form"]
    attacked = federation(byzantine=2, alpha=0.4, attack="documented", attack_options=(f"{scale}=2",))
    sent, true = (
        np.asarray(probes.answers(problem)(probes.broadcast(problem)).replies.gradients)
        for problem in (attacked, federation())
    )
    np.testing.assert_allclose(sent[:3], true[:3], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(sent[3:], -2 * np.tile(true[3:].mean(axis=0), (2, 1)), rtol=1e-4, atol=1e-6)
    log = one_round(attacked)
    assert not log.status.any()
    np.testing.assert_allclose(log.norms, np.linalg.norm(sent, axis=1), rtol=1e-4)


def use_filter(new: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of five agents are enough for the filter of CONTRIBUTING, which keeps the shortest gradients."""
    (function,) = new.values()
    monkeypatch.setitem(FILTERS, "documented", function)
    problem = federation(byzantine=1, attack="sign-flipping", filter="documented")
    assert problem.config.required == 4
    log = one_round(problem)
    assert log.accepted.tolist() == (log.norms < log.norms.max()).tolist()
    assert RULES[int(log.rule)] == "other"
    assert 0 < log.gradient_norm < log.norms.max()

    gradients = jnp.array([[3.0, 4.0], [1.0, 0.0], [jnp.nan, 0.0], [0.0, 2.0], [6.0, 8.0]])
    for lost in (0, 5):  # without a valid reply there is nobody to keep
        lengths = jnp.where(jnp.arange(5) < lost, 0, 2)
        verdict = function(Replies(gradients, lengths), jnp.float32(1.0), jnp.int32(3), problem.config)
        kept = [] if lost else [0, 1, 3, 4]
        assert np.flatnonzero(verdict.accepted).tolist() == kept
        assert verdict.gradient.tolist() == ([0.0, 0.0] if lost else gradients[jnp.array(kept)].mean(axis=0).tolist())
        assert RULES[int(verdict.rule)] == ("nobody" if lost else "other")


def use_task(new: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The task of CONTRIBUTING, by its name, trained for some rounds."""
    (task,) = [value for value in new.values() if isinstance(value, Environment)]
    monkeypatch.setitem(ENVIRONMENTS, task.id, task)
    run = fedpg.train(task.id, **TINY | {"trajectories": 15})
    assert run.finished
    assert run.config.preset == "released"
    assert len(set(run.records.test_returns.tolist())) == len(run.records) + 1 > 2, "it learns something every time"
    assert (run.records.test_returns <= 0).all()
    action = run.policy(np.zeros(task.observations))
    assert task.actions.contains(action)


USES: dict[str, Callable[[dict[str, Any], pytest.MonkeyPatch], None]] = {
    "fedpg.attacks": use_attack,
    "fedpg.aggregators": use_filter,
    "fedpg.environments": use_task,
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
        make_filter(config)
        if ":" not in config.attack:  # the reader's own is not here
            make_attack(config)
    if isinstance(options, Train | Reproduce):
        parse_seeds(options.seeds)
    if isinstance(options, Reproduce):
        find(options.names or ("all",), options.task)
    return 0


def accepts(words: list[str]) -> bool:
    try:
        return main(words) == 0
    except SystemExit as ended:  # of the parser: 0 for --help
        return ended.code == 0


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


def test_the_map_of_the_code_has_every_module_and_nothing_else():
    (block,) = [code.text for code in CODE if code.text.startswith("    src/fedpg/\n")]
    names = [
        name.rstrip("/")
        for line in block.splitlines()[1:]
        if re.match(r" {6}\S", line)
        for name in re.split(r"\s{2,}", line.strip())[0].split(", ")
    ]
    there = {path.name for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert sorted(names) == sorted(there - {"__init__.py"})
