"""Units of `fedpg reproduce`: trained by processes or by Ray, on leased cores, each once, and shown on a board."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedpg import Config, ConfigError, Problem, SimulationError, StorageError
from fedpg.child import child_command
from fedpg.config import to_json
from fedpg.experiments import cores, store
from fedpg.experiments.compare import compare
from fedpg.experiments.fingerprint import fingerprint
from fedpg.experiments.ray_engine import ray_engine
from fedpg.experiments.runner import Board, run_units
from fedpg.experiments.store import load_all
from fedpg.experiments.work import Event, Unit, work
from fedpg.training import train_seeds
from fedpg.training.folders import alone_in
from reproducing import reproduce, tiny_experiment, trained
from stored import stored_run

pytestmark = pytest.mark.slow

Capture = pytest.CaptureFixture[str]
LENGTH = 60


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Config:
    return tiny_experiment(monkeypatch)


@pytest.fixture
def reference(config: Config, tmp_path: Path) -> Callable[[int], store.Stored]:
    """The run of a seed, trained in this process."""
    return lambda seed: trained(config, seed, tmp_path / f"reference-{seed}")


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


def test_a_damaged_run_folder_is_named_with_what_to_do(config: Config, tmp_path: Path):
    folder = tmp_path / fingerprint(config) / store.name_of(config) / "seed-0"
    folder.mkdir(parents=True)
    for damage in ('{"trajectories": 7,', '{"trajectories": 7}', "[]", '"x"'):
        (folder / "records.jsonl").write_text(damage)
        with pytest.raises(StorageError, match=r"records.jsonl is damaged.*Move .*seed-0 away"):
            list(work(to_json(config), (0,), str(tmp_path), fingerprint(config), 1))
        assert (folder / "records.jsonl").read_text() == damage


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
    import ray  # only here: it is large, and every worker imports this file

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


def test_ray_that_is_not_installed_is_an_error_that_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedpg\[ray\]'"):
        ray_engine(None, tmp_path, threading.Event())
