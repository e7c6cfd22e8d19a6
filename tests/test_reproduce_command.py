"""`fedpg reproduce` as a command: what it does with runs of other code, with run folders, and with bad words."""

import dataclasses
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import tyro

from fedpg import Config
from fedpg.cli import main
from fedpg.cli.reproduce import as_train_command
from fedpg.cli.train import Train, train_defaults
from fedpg.experiments import store
from fedpg.experiments.catalogue import EXPERIMENTS, configs_of
from fedpg.experiments.compare import ENOUGH, compare
from fedpg.experiments.fingerprint import fingerprint
from fedpg.experiments.store import load_all
from fedpg.experiments.work import Unit
from reproducing import reproduce, tiny_experiment, trained

pytestmark = pytest.mark.slow

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Config:
    return tiny_experiment(monkeypatch)


@pytest.fixture
def reference(config: Config, tmp_path: Path) -> Callable[[int], store.Stored]:
    """The run of a seed, trained in this process."""
    return lambda seed: trained(config, seed, tmp_path / f"reference-{seed}")


# Runs of other code, and of other folders


def test_runs_of_other_code_are_not_used_silently_but_can_be_verified(
    config: Config, reference: Callable[[int], store.Stored], tmp_path: Path, capsys: Capture
):
    results = tmp_path / "results"
    good, bad = (dataclasses.replace(reference(seed), code="before") for seed in (0, 1))
    bad.columns["test_return"][2] += 1.0
    for run in (good, bad):
        store.save(results, run)
    before = {path: path.read_bytes() for path in results.rglob("*.gz")}
    assert reproduce(tmp_path, "tiny", "--seeds", "0:2") == 2
    error = capsys.readouterr().err
    assert "2 of these runs" in error
    assert all(word in error for word in ("--old verify", "--old again", "--old keep"))
    assert {path: path.read_bytes() for path in results.rglob("*.gz")} == before
    assert reproduce(tmp_path, "tiny", "--seeds", "0:2", "--old", "verify") == 2  # one of them differs
    error = capsys.readouterr().err
    assert "seed 0: same bits" in error
    assert "seed 1: different after round 1: it stays" in error
    runs = load_all(results)
    assert runs[good.key].code == fingerprint(config)
    assert runs[good.key].about["verified"]["made_by"] == "before"
    assert compare(runs[good.key], good).bits
    assert runs[bad.key].code == "before"
    store.save(results, dataclasses.replace(runs[good.key], code="between"))
    assert reproduce(tmp_path, "tiny", "--seeds", "0", "--old", "verify", "--dry-run") == 0
    assert load_all(results)[good.key].code == fingerprint(config)
    assert load_all(results)[good.key].about["verified"]["made_by"] == "before"  # who made it, not who verified it
    capsys.readouterr()
    assert reproduce(tmp_path, "tiny", "--seeds", "0:2", "--old", "keep") == 0
    shown = capsys.readouterr()
    assert "1 runs of another version of the code are used as they are\n" in shown.err
    assert " 2 " in shown.out  # seeds
    assert reproduce(tmp_path, "tiny", "--seeds", "0") == 0  # what was verified is as good as new
    shown = capsys.readouterr()
    assert "1 stored runs of another version of the code are not shown" in shown.err
    assert " 2 " not in shown.out
    short = {name: values[:3] for name, values in bad.columns.items()}
    store.save(results, dataclasses.replace(bad, columns=short))
    assert reproduce(tmp_path, "tiny", "--seeds", "0:2", "--old", "keep") == 0
    assert "as they are, 1 of which are shorter than wanted" in capsys.readouterr().err
    assert reproduce(tmp_path, "tiny", "--seeds", "0:2", "--old", "again", "--dry-run") == 0
    assert capsys.readouterr().out.strip().endswith("--seeds 1")


def test_run_folders_are_adopted_as_far_as_they_are_and_the_longer_run_stays(
    config: Config, reference: Callable[[int], store.Stored], tmp_path: Path, capsys: Capture
):
    results, folder = tmp_path / "results", tmp_path / "reference-0"
    whole = reference(0)
    rows = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    (folder / "records.jsonl").write_text(rows[0])
    assert reproduce(tmp_path, "--adopt", str(folder)) == 0
    assert "no trained round yet" in capsys.readouterr().err
    assert load_all(results) == {}
    (folder / "records.jsonl").write_text("".join(rows[: ENOUGH + 1]))
    assert reproduce(tmp_path, "--adopt", str(folder)) == 0
    short = load_all(results)[whole.key]
    assert len(short.returns) == ENOUGH + 1
    assert short.code == ""
    assert short.about["hardware"]["processor"] == short.about["made"] == "unknown"
    store.save(results, dataclasses.replace(short, code="known"))
    (folder / "records.jsonl").write_text("".join(rows))
    assert reproduce(tmp_path, "--adopt", str(folder)) == 0
    longer = load_all(results)[whole.key]
    assert longer.code == "known"  # it begins like that one
    assert compare(longer, whole).bits
    assert longer.reached == whole.reached
    (folder / "records.jsonl").write_text("".join(rows[:3]))
    capsys.readouterr()
    assert reproduce(tmp_path, "--adopt", str(folder)) == 0
    assert "stored already" in capsys.readouterr().err
    (folder / "records.jsonl").write_text("".join(rows).replace('"inner_steps": ', '"inner_steps": 1'))
    assert reproduce(tmp_path, "--adopt", str(folder)) == 0
    assert "other numbers" in capsys.readouterr().err
    (folder / "config.json").write_text((folder / "config.json").read_text().replace('"delta": 0.6', '"delta": 0.5'))
    assert reproduce(tmp_path, "--adopt", str(folder)) == 0
    assert "no experiment has" in capsys.readouterr().err
    assert compare(load_all(results)[whole.key], whole).bits
    assert reproduce(tmp_path, "--adopt", str(tmp_path / "nothing")) == 2
    assert "not a run folder" in capsys.readouterr().err


# The command line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["figure9"], "unknown experiment 'figure9'"),
        (["figure1", "--task", "CartPol-v1"], "did you mean CartPole-v1"),
        (["figure1", "--seeds", "0,1,0"], "overlap"),
        (["figure1", "--seeds", "-1"], "seed must be from 0"),
        (["figure1", "--trajectories", "0"], "trajectories must be 1 or more"),
        (["figure1", "--address", "auto"], "add --engine ray"),
        (["--adopt", ".", "--dry-run"], "one of --adopt and --dry-run"),
    ],
)
def test_a_bad_word_is_one_line_and_nothing_is_written(words: list[str], message: str, tmp_path: Path, capsys: Capture):
    assert reproduce(tmp_path, *words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_results_folder_is_one_line_and_stays(tmp_path: Path, capsys: Capture):
    path = tmp_path / "results" / "runs" / "x" / "seed-0.json.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not gzip")
    for words in ([], ["figure1", "--seeds", "0"]):
        assert reproduce(tmp_path, *words) == 2
        assert "is damaged or no stored run" in capsys.readouterr().err
    assert main(["report", "--results", str(tmp_path / "results")]) == 2
    assert path.read_bytes() == b"not gzip"
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]


def test_a_file_is_no_results_folder(tmp_path: Path, capsys: Capture):
    (tmp_path / "results").write_text("mine")
    assert reproduce(tmp_path, "figure1", "--seeds", "0") == 2
    assert "is a file: give a folder" in capsys.readouterr().err
    assert (tmp_path / "results").read_text() == "mine"


def test_without_a_name_the_experiments_are_listed_with_their_runs_and_time(tmp_path: Path, capsys: Capture):
    assert reproduce(tmp_path, "--seeds", "0:3") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in (*EXPERIMENTS, "all"))
    assert f" {3 * 15} " in out  # figure 1: five curves, three tasks
    assert " min" in out
    assert list(tmp_path.iterdir()) == []


def test_every_missing_run_is_a_command_of_fedpg_train_with_the_same_settings():
    for config in configs_of(EXPERIMENTS.values()):
        words = shlex.split(as_train_command(Unit(config, (0, 2))))
        assert words[:2] == ["fedpg", "train"]
        options = tyro.cli(Train, args=words[2:], default=train_defaults(words[2:]))
        assert options.config == config
        assert options.seeds == "0,2"
