"""The command line: what it makes, what it says, and where and with which code it ends."""

import io
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tyro
from PIL import Image
from rich.console import Console

import fedpg
from fedpg import ConfigError, Problem, train_seeds
from fedpg.cli import COMMANDS, main
from fedpg.cli.arguments import parse_seeds, together
from fedpg.cli.train import Train, train_defaults
from fedpg.config import STRINGS
from fedpg.training.progress import Live

Capture = pytest.CaptureFixture[str]
Content = Callable[[Path], dict[str, bytes]]


@pytest.fixture(scope="module")
def options(tiny: Callable[..., Problem], as_options: Callable[..., list[str]]) -> list[str]:
    return as_options(tiny().config)


@pytest.fixture(scope="module")
def two_seeds(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "two"
    assert main(["train", *options, "--seeds", "0:2", "--out", str(folder), "--quiet"]) == 0
    return folder


def command(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "fedpg", *words], capture_output=True, text=True, timeout=120)


def one_line_of_error(capsys: Capture) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("fedpg: ")
    return line


# --- help


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_has_an_example(name: str, capsys: Capture):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert re.search(rf"Examples?:\s+fedpg {name} \S", captured.out)


def test_the_help_of_train_shows_every_setting_with_the_defaults_of_the_preset(capsys: Capture):
    with pytest.raises(SystemExit):
        main(["train", "--preset", "released", "--algorithm", "svrpg", "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name in vars(fedpg.make_config()):
        assert f"--{name.replace('_', '-')} " in text
    assert re.search(r"--alpha FLOAT [^-]*\(default: 0\.4\)", text)
    assert re.search(r"--batch INT INT [^-]*\(default: 16 16\)", text)


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]], ids=str)
def test_without_a_command_there_is_the_usage(words: list[str], capsys: Capture):
    assert main(words) == 0
    text = capsys.readouterr().out
    assert all(f"  fedpg {name} " in text for name in COMMANDS)
    assert "Examples:" in text


def test_the_version(capsys: Capture):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fedpg {fedpg.__version__}\n"


# --- errors


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["trian"], "unknown command 'trian': did you mean train?"),
        (["evaluat", "runs/x"], "did you mean evaluate"),
        (["train", "--task", "CartPol-v1"], "unknown task 'CartPol-v1': did you mean CartPole-v1 or "),
        (["train", "--attack", "sign-flip", "--byzantine", "1"], "sign-flipping"),
        (["train", "--aggregator", "majorty"], "did you mean majority?"),
        (["train", "--preset", "release"], "did you mean released?"),
        (["train", "--algorithm", "fedpg"], "fedpg-br"),
        (["train", "--alpha", "0.5"], "alpha must be in [0, 0.5)"),
        (["train", "--sigma", "-1"], "sigma must be a positive number or 'auto'"),
        (["train", "--sigma", "1"], "and the aggregator is compass: add --aggregator fedpg"),
        (["train", "--delta", "0.5"], "delta is a setting of the paper's filter"),
        (["federation", "create", "f", "--sigma", "1"], "and the aggregator is compass: add --aggregator fedpg"),
        (["train", "--byzantine", "5"], "fewer than half"),
        (["train", "--seeds", "4:4"], "seeds '4:4' is an empty range"),
        (["train", "--seeds", "1,1"], "seeds must be different"),
        (["train", "--resume"], "--out"),
        (["evaluate", "no/such/run"], "no/such/run"),
        (["play", "no/such/run"], "no/such/run"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_an_error_is_one_line_on_stderr_with_code_2_and_no_folder(
    words: list[str], answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], capsys: Capture
):
    monkeypatch.chdir(tmp_path)
    tiny = options if words == ["train", "--resume"] else []
    assert main([*words, *tiny]) == 2
    assert answer in one_line_of_error(capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words", [["--agents", "many"], ["--agents", "1.5"], ["--no-such-option"], ["--estimator", "ppo"]], ids=" ".join
)
def test_a_word_that_cannot_be_read_ends_with_2_and_is_named(
    words: list[str], capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["train", *words])
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words[0] in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_process_ends_with_the_code_and_without_a_traceback(tmp_path: Path):
    wrong = command("evaluate", str(tmp_path / "absent"))
    assert (wrong.returncode, wrong.stdout) == (2, "")
    (line,) = wrong.stderr.splitlines()
    assert line.startswith("fedpg: ")
    assert "absent" in line
    assert command("--help").returncode == 0


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("3", [3]), ("0,1,5", [0, 1, 5]), ("0:3", [0, 1, 2]), ("7:9", [7, 8]), (":2", [0, 1]), ("5,5", [5, 5])],
)
def test_seeds_are_one_several_or_a_range(text: str, seeds: list[int]):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("run --vary a --vary b=1 --seeds 3", "run --seeds 3 --vary a b=1"),
        ("--vary=a folder --agents 3 --vary b c", "folder --agents 3 --vary a b c"),
        ("--attack_options z=1 --byzantine 3 --attack-options n=-2", "--byzantine 3 --attack-options z=1 n=-2"),
        ("--vary a b --attack-options z=1 --seeds 1 --seeds 2", "--vary a b --attack-options z=1 --seeds 1 --seeds 2"),
        ("--vary=a folder", "--vary=a folder"),
    ],
)
def test_several_texts_may_be_given_at_once_or_one_by_one(words: str, wanted: str):
    assert together(words.split(), STRINGS) == wanted.split()


def test_no_difference_is_lost_where_they_are_given_one_by_one(capsys: Capture):
    assert main(["train", "--vary", "no-such-setting", "--vary", "gravity=0.1"]) == 2
    assert "no-such-setting" in one_line_of_error(capsys)


@pytest.mark.parametrize("text", ["", "a", "1.5", "0,,1", "1,", "0:", "1:2:3", "0-3", "3:3", "3:1", ":"])
def test_other_seeds_are_refused(text: str):
    with pytest.raises(ConfigError, match="seeds"):
        parse_seeds(text)


# --- train


@pytest.mark.parametrize(
    "words",
    ["--preset paper --estimator advantage", "--algorithm fedpg-br --estimator=standardised", "--estimator gpomdp"],
)
def test_what_an_estimator_decides_is_the_same_on_the_command_line_and_in_python(words: str):
    given = dict(pair.split() for pair in words.replace("=", " ").split("--")[1:])
    parsed = tyro.cli(Train, args=words.split(), default=train_defaults(words.split()))
    assert parsed.config == fedpg.make_config(**given)


def test_a_run_leaves_its_files_and_plain_lines(options: list[str], tmp_path: Path, capsys: Capture):
    folder = tmp_path / "run"
    assert main(["train", *options, "--seeds", "3", "--out", str(folder)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "\x1b" not in captured.out
    assert "\r" not in captured.out
    lines = captured.out.splitlines()
    assert str(folder) in lines[0]
    assert any(re.match(r"seed 3 \d+/60 trajectories round \d+ return \d+ honest", line) for line in lines)
    assert str(folder) in lines[-1]
    names = {"config.json", "records.jsonl", "checkpoint.safetensors", "curve.png"}
    names |= {"policy.safetensors", "policy-uniform.safetensors"}
    there = {path.name for path in folder.iterdir()}
    assert names <= there
    assert [name.startswith("events.out.tfevents") for name in there - names] == [True]
    assert Image.open(folder / "curve.png").size[0] > 100


def test_quiet_is_only_the_summary(options: list[str], tmp_path: Path, capsys: Capture):
    assert main(["train", *options, "--seeds", "3", "--out", str(tmp_path / "run"), "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "seed 3 " not in out
    assert "CartPole-v1: fedpg-br, 4 agents, 1 Byzantine (sign-flipping)" in out


@pytest.mark.slow
def test_a_terminal_gets_a_live_line_per_seed(tiny: Callable[..., Problem], tmp_path: Path):
    terminal = io.StringIO()
    live = Live(tiny().config, Console(file=terminal, force_terminal=True, width=80))
    train_seeds(tiny(), [0, 1], tmp_path / "run", reporter=live)
    text = terminal.getvalue()
    assert all(f"seed {seed} " in text for seed in (0, 1))
    assert "60/60 round" in text


def test_several_seeds_get_a_folder_each_and_one_curve(two_seeds: Path):
    assert {path.name for path in two_seeds.iterdir()} == {"seed-0", "seed-1", "curve.png"}
    assert (two_seeds / "seed-0" / "policy.safetensors").exists()
    assert (two_seeds / "seed-1" / "records.jsonl").exists()
    with Image.open(two_seeds / "curve.png") as picture:
        picture.load()
        assert picture.format == "PNG"


def test_without_out_the_folder_is_a_new_one_under_runs(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert main(["train", *options, "--quiet"]) == 0
    name = "CartPole-v1-fedpg-br-K4-1-sign-flipping"
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {name, f"{name}-2"}


def test_an_existing_run_is_not_overwritten_and_the_answer_says_how_to_go_on(
    options: list[str], two_seeds: Path, capsys: Capture, content: Content
):
    before = content(two_seeds)
    assert main(["train", *options, "--seeds", "0:2", "--out", str(two_seeds)]) == 2
    line = one_line_of_error(capsys)
    assert str(two_seeds / "seed-0") in line
    assert "--resume" in line
    assert content(two_seeds) == before


def test_a_finished_run_is_made_longer_with_resume(options: list[str], two_seeds: Path, tmp_path: Path):
    folder = Path(shutil.copytree(two_seeds / "seed-1", tmp_path / "run"))
    longer = ["--seeds", "1", "--trajectories", "90", "--resume"]
    assert main(["train", *options, *longer, "--out", str(folder), "--quiet"]) == 0
    rows = (folder / "records.jsonl").read_text().splitlines()
    old = (two_seeds / "seed-1" / "records.jsonl").read_text().splitlines()
    assert len(rows) > len(old)
    assert rows[: len(old) - 1] == old[:-1]


# --- evaluate and play


def test_evaluate_prints_the_return_and_repeats_it(two_seeds: Path, capsys: Capture):
    outputs = []
    for words in ([], [], ["--seed", "1"]):
        assert main(["evaluate", str(two_seeds / "seed-0"), "--episodes", "20", *words]) == 0
        outputs.append(capsys.readouterr().out)
    assert "mean return" in outputs[0]
    assert outputs[0] == outputs[1] != outputs[2]
    (mean,) = re.findall(r"(\d+\.\d) ± \d+\.\d", outputs[0])
    assert 5 < float(mean) <= 40, "episodes of the tiny task end after 40 steps"


def test_evaluate_takes_a_policy_file_too(two_seeds: Path, capsys: Capture):
    assert main(["evaluate", str(two_seeds / "seed-0" / "policy-uniform.safetensors"), "--episodes", "2"]) == 0
    assert "mean return" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["evaluate", "play"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "checkpoint", "no file"])
def test_a_damaged_or_missing_policy_is_one_line_of_error(
    two_seeds: Path, tmp_path: Path, capsys: Capture, name: str, damage: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    run = Path(shutil.copytree(two_seeds / "seed-0", tmp_path / "run"))
    policy = run / "policy.safetensors"
    if damage == "missing":
        shutil.rmtree(run)
    elif damage == "no file":
        policy.unlink()
    elif damage == "truncated":
        policy.write_bytes(policy.read_bytes()[:-7])
    else:
        shutil.copy(run / "checkpoint.safetensors", policy)
    assert main([name, str(run)]) == 2
    assert str(run) in one_line_of_error(capsys)
    assert not (tmp_path / "play.gif").exists()


def test_play_writes_an_animation(two_seeds: Path, tmp_path: Path, capsys: Capture):
    out = tmp_path / "play.gif"
    assert main(["play", str(two_seeds / "seed-0"), "--out", str(out), "--episodes", "2"]) == 0
    assert re.search(r"play\.gif: 2 episode\(s\), return \d+, \d+", capsys.readouterr().out)
    with Image.open(out) as picture:
        assert picture.format == "GIF"
        assert picture.n_frames > 1
        picture.seek(picture.n_frames - 1)
        picture.load()


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["play", "--out", "play.mp4"], ".gif"),
        (["play", "--episodes", "0"], "episodes must be 1 or more"),
        (["play", "--seed", "-1"], "seed"),
        (["play", "--out", "absent/play.gif"], "absent/play.gif"),
        (["evaluate", "--episodes", "-3"], "episodes must be 1 or more"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_what_cannot_be_evaluated_or_played_is_one_line_of_error(
    two_seeds: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, words: list[str], answer: str
):
    monkeypatch.chdir(tmp_path)
    assert main([words[0], str(two_seeds / "seed-0"), *words[1:]]) == 2
    assert answer in one_line_of_error(capsys)
    assert list(tmp_path.iterdir()) == []
