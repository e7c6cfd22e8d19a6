"""`fedpg reproduce`: trains what is missing, once, and nothing of other code silently; by processes or by Ray."""

import dataclasses
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
import tyro

from fedpg import Config, ConfigError, Problem, SimulationError, StorageError
from fedpg.child import child_command
from fedpg.cli import main
from fedpg.cli.reproduce import as_train_command
from fedpg.cli.train import Train, train_defaults
from fedpg.config import to_json
from fedpg.experiments import catalogue, cores, store
from fedpg.experiments.catalogue import EXPERIMENTS, Curve, Experiment, Panel, config_of, configs_of
from fedpg.experiments.compare import ENOUGH, compare
from fedpg.experiments.fingerprint import fingerprint
from fedpg.experiments.ray_engine import ray_engine
from fedpg.experiments.runner import Board, run_units
from fedpg.experiments.store import from_folder, load_all
from fedpg.experiments.work import Event, Unit, work
from fedpg.training import train_seeds
from fedpg.training.folders import alone_in
from stored import stored_run
from tiny import TINY

pytestmark = pytest.mark.slow

Capture = pytest.CaptureFixture[str]
LENGTH = 60


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Config:
    """The settings of the one curve of an experiment `tiny`, beside the real ones."""
    curve = Curve("tiny", "#000000", {"preset": "paper"} | TINY)
    panel = Panel("tiny", "tiny", "CartPole-v1", (curve,))
    monkeypatch.setitem(catalogue.EXPERIMENTS, "tiny", Experiment("tiny", "Tiny", "For tests.", (panel,)))
    return config_of(panel, curve)


@pytest.fixture
def reference(config: Config, tiny: Callable[..., Problem], tmp_path: Path) -> Callable[[int], store.Stored]:
    """The run of a seed, trained in this process."""

    def train(seed: int) -> store.Stored:
        problem, folder = tiny(), tmp_path / f"reference-{seed}"
        assert problem.config == config
        train_seeds(problem, [seed], folder)
        return from_folder(folder, fingerprint(config))

    return train


def reproduce(tmp_path: Path, *words: str) -> int:
    folders = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    return main(["reproduce", *words, *folders])


# Processes


def test_an_interrupted_command_goes_on_and_ends_with_the_bits_of_an_uninterrupted_run(
    config: Config, reference: Callable[[int], store.Stored], tmp_path: Path, capsys: Capture
):
    events = work(to_json(config), (0, 1), str(tmp_path / "runs"), fingerprint(config), 1)
    assert next(event for event in events if event.done is not None).done == 0  # nothing is resumed
    first = next(event for event in events if event.done)
    assert 0 < first.done <= 1
    events.close()
    assert list(tmp_path.rglob("checkpoint.safetensors"))
    children = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in children
    assert reproduce(tmp_path, "tiny", "--seeds", "0:2") == 0
    assert "tiny.png" in capsys.readouterr().out
    stored = load_all(tmp_path / "results")
    for seed in (0, 1):
        run, expected = stored[store.key_of(config, seed)], reference(seed)
        assert run.reached >= LENGTH
        assert len(run.returns) == len(expected.returns)
        assert compare(run, expected).bits
        assert run.code == fingerprint(config)
        assert run.about["hardware"] == store.machine()
    assert reproduce(tmp_path, "tiny", "--seeds", "0:2", "--engine", "local") == 0
    assert "all 2 runs are in" in capsys.readouterr().err


KILLED = """
import json, sys
from fedpg.experiments.work import work
settings, runs, code = json.loads(sys.argv[1]), *sys.argv[2:]
for event in work(settings, (0,), runs, code, 1):
    if event.done:
        print("training", flush=True)
"""


def test_a_command_that_is_killed_leaves_no_process_and_a_shorter_one_ends_where_it_is_asked_to(
    config: Config, tmp_path: Path
):
    def children() -> bool:
        listed = subprocess.run(["ps", "-eo", "args", "-ww"], capture_output=True, text=True, check=True).stdout
        return f"--out {tmp_path}" in listed

    longer = json.dumps(to_json(dataclasses.replace(config, trajectories=10**8)))
    parent = subprocess.Popen(
        [sys.executable, "-c", KILLED, longer, str(tmp_path), fingerprint(config)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "training\n"
    assert children()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until = time.monotonic() + 60
    while children() and time.monotonic() < until:
        time.sleep(0.1)
    assert not children()
    runs = [e.run for e in work(to_json(config), (0,), str(tmp_path), fingerprint(config), 1) if e.run is not None]
    (run,) = (store.unpack(data, tmp_path) for data in runs)
    assert LENGTH <= run.reached < 10**8
    assert not children()


def test_a_process_whose_starter_is_gone_before_it_has_begun_ends(
    config: Config, as_options: Callable[[Config], list[str]], tmp_path: Path
):
    endless = as_options(dataclasses.replace(config, trajectories=10**8))
    command = child_command("train", *endless, "--out", str(tmp_path / "run"))
    command = [word.replace("time.sleep(15)", "time.sleep(2)") for word in command]  # until it interrupts again
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert child.wait(120) != 0
    finally:
        child.kill()
        child.wait()


def test_two_never_train_in_one_folder(tiny: Callable[..., Problem], tmp_path: Path):
    with alone_in(tmp_path), pytest.raises(StorageError, match="is being trained by another process"):
        train_seeds(tiny(), [0], tmp_path)
    train_seeds(tiny(), [0], tmp_path, resume=True)  # it is free again


def test_a_training_process_that_fails_is_an_error_with_its_last_lines(config: Config, tmp_path: Path):
    folder = tmp_path / fingerprint(config) / store.name_of(config) / "seed-0"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{")
    with pytest.raises(Exception, match=r"config\.json is damaged"):
        list(work(to_json(config), (0,), str(tmp_path), fingerprint(config), 1))
    with pytest.raises(SimulationError, match="another version of fedpg"):
        next(work(to_json(config), (0,), str(tmp_path), "elsewhere", 1))


def test_a_process_is_read_by_its_json_lines_and_its_other_words_are_kept_for_an_error(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    update = {"seed": 0, "round": 2, "trajectories": LENGTH // 2, "total": LENGTH, "text": "round 2 return 20"}
    lines = ["seed 0 60/60 trajectories", '{"note": "compiled"}', "[]", json.dumps(update), "Error: too late"]
    script = f"import sys; print({os.linesep.join(lines)!r}); sys.exit(3)"
    monkeypatch.setattr("fedpg.experiments.work.child_command", lambda *words: [sys.executable, "-c", script])
    events = work(to_json(config), (0,), str(tmp_path), fingerprint(config), 1)
    assert next(events).done == 0
    assert next(events) == Event(0.5, f"seed 0 {LENGTH // 2}/{LENGTH} round 2 return 20")
    with pytest.raises(SimulationError, match=r"ended with code 3:\n(?s:.*)compiled\n(?s:.*)Error: too late$"):
        next(events)


def test_finished_runs_are_stored_at_once_and_a_failure_stops_the_others(config: Config, tmp_path: Path):
    units = [Unit(dataclasses.replace(config, agents=k), (0, 1)) for k in (4, 5, 6)]
    stop, seen = threading.Event(), []

    def engine(unit: Unit, share: int) -> Iterator[Event]:
        assert share == 1
        seen.append(unit)
        yield Event(0.5, "half")
        yield Event(None, "one", store.pack(stored_run(unit.config, 0)))
        assert store.path_of(tmp_path, unit.config, 0).exists()
        raise SimulationError("broken")

    with pytest.raises(SimulationError, match="broken"):
        run_units(units, engine, 1, tmp_path, {}, stop)
    assert stop.is_set()
    assert seen == units[:1]  # one at a time on one core, and none after the failure
    assert len(load_all(tmp_path)) == 1


def test_a_stored_run_is_never_replaced_by_a_shorter_one(config: Config, tmp_path: Path):
    config = dataclasses.replace(config, trajectories=200)
    for length, expected in ((100, 100), (60, 100), (150, 150)):
        events = [Event(1.0, "", store.pack(stored_run(config, 0, length=length)))]
        run_units([Unit(config, (0,))], lambda *_, e=events: iter(e), 1, tmp_path, {}, threading.Event())
        (run,) = load_all(tmp_path).values()
        assert run.reached == expected


def test_the_time_left_shrinks_as_units_report(config: Config):
    units = [Unit(config, (seed,)) for seed in range(4)]
    board = Board(dict.fromkeys(units, 100.0), 2, every=1e9)
    assert board.headline() == "0%, 3 min left"
    board.update(units[0], Event(0.5, "half"))
    assert board.headline().startswith("12%")
    for unit in units:
        board.finish(unit)
    assert board.headline() == "100%, 0 s left"


def test_the_pace_is_that_of_what_was_done_now(config: Config, monkeypatch: pytest.MonkeyPatch):
    units = [Unit(config, (seed,)) for seed in range(2)]
    board = Board(dict.fromkeys(units, 3600.0), 2, every=1e9)
    board.began -= 100  # seconds ago
    for unit in units:
        board.update(unit, Event(0.9, "waiting for a free core"))  # interrupted once, at nine tenths
    assert board.headline() == "90%, 6 min left"  # a tenth of an hour
    board.began -= 600
    for unit in units:
        board.update(unit, Event(0.95, ""))  # half of what was left, in 700 s
    assert board.headline() == "95%, 7 min left"  # half as the estimate has it (180 s), half as it went (700 s)


def test_leased_cores_are_nobody_elses_until_they_are_given_back(tmp_path: Path):
    never, stop = threading.Event(), threading.Event()
    allowed = os.sched_getaffinity(0)
    with cores.lease(tmp_path, 1, never) as first, cores.lease(tmp_path, len(allowed) - 1, never) as rest:
        assert first | rest == allowed
        assert not first & rest
        threading.Timer(0.3, stop.set).start()
        with cores.lease(tmp_path, 1, stop) as none:
            assert none == set()
        with cores.bound_to(first):
            code = "import os; print(sorted(os.sched_getaffinity(0)))"
            out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert out.strip() == str(sorted(first))
        assert os.sched_getaffinity(0) == allowed
    with cores.lease(tmp_path, 10_000, never) as everything:
        assert everything == allowed


# Ray


def test_a_cluster_of_two_workers_gives_the_same_runs(
    config: Config, reference: Callable[[int], store.Stored], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        stop = threading.Event()
        engine, total = ray_engine(None, tmp_path / "runs", stop)
        assert total == 2
        units = [Unit(config, (seed,)) for seed in (0, 1)]
        assert run_units(units, engine, total, tmp_path / "results", {}, stop) == 2
        monkeypatch.setattr("fedpg.experiments.ray_engine.fingerprint", lambda config: "other code")
        # More cores than any machine has: it gets those of one, and does not wait for ever.
        with pytest.raises(SimulationError, match="another version of fedpg"):
            list(engine(units[0], 64))
    finally:
        ray.shutdown()
    for seed in (0, 1):
        run, expected = load_all(tmp_path / "results")[store.key_of(config, seed)], reference(seed)
        assert len(run.returns) == len(expected.returns)
        assert compare(run, expected).bits


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


def test_a_damaged_run_folder_is_named_with_what_to_do(config: Config, tmp_path: Path):
    folder = tmp_path / fingerprint(config) / store.name_of(config) / "seed-0"
    folder.mkdir(parents=True)
    for damage in ('{"trajectories": 7,', '{"trajectories": 7}', "[]", '"x"'):
        (folder / "records.jsonl").write_text(damage)
        with pytest.raises(StorageError, match=r"records.jsonl is damaged.*Move .*seed-0 away"):
            list(work(to_json(config), (0,), str(tmp_path), fingerprint(config), 1))
        assert (folder / "records.jsonl").read_text() == damage


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


def test_ray_that_is_not_installed_is_an_error_that_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedpg\[ray\]'"):
        ray_engine(None, tmp_path, threading.Event())
