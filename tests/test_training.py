"""A run is a function of its settings and its seed: together or alone, in one go or killed and resumed."""

import dataclasses
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from jax import Array

import fedpg
import fedpg.training.run
from fedpg import Config, ConfigError, Run, StorageError, make_config, train_seeds
from fedpg.agents import Problem, make_problem
from fedpg.algorithms import ALGORITHMS, Log, State, first_state
from fedpg.attacks import ATTACKS
from fedpg.federation import local_federation
from fedpg.training.checkpoint import FILE
from fedpg.training.progress import Silent, Snapshot
from fedpg.training.rounds import FOREVER, Advance

pytestmark = pytest.mark.usefixtures("compiled")
SEED = 3
POLICIES = ("policy.safetensors", "policy-uniform.safetensors")
Content = Callable[[Path], dict[str, bytes]]
AsOptions = Callable[[Config], list[str]]
Start = Callable[[Path], "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def problem(tiny: Callable[..., Problem]) -> Problem:
    return tiny()


@pytest.fixture(scope="module")
def advance(problem: Problem, compiled: Callable[[Problem], Advance]) -> Advance:
    return compiled(problem)


@pytest.fixture(scope="module")
def undisturbed(problem: Problem, compiled: object, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_seeds(problem, [SEED], tmp_path_factory.mktemp("undisturbed") / "run")[0]


@pytest.fixture
def one_round_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedpg.training.run, "SECONDS_PER_CALL", 0.0)


def bits(tree: Any) -> list[bytes]:
    plain = jax.tree.map(
        lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, jax.tree.leaves(tree)
    )
    return [np.asarray(leaf).tobytes() for leaf in plain]


def log_bits(run: Run, rounds: int | None = None) -> dict[str, bytes]:
    return {name: v[:rounds].tobytes() for name, v in run.records.columns.items() if name != "seconds"}


def tensor_bits(path: Path) -> dict[str, bytes]:
    return {k: v.tobytes() for k, v in safetensors.numpy.load_file(path).items() if k != "log/seconds"}


def same_run(a: Run, b: Run) -> None:
    assert log_bits(a) == log_bits(b)
    assert a.records.test_returns.tobytes() == b.records.test_returns.tobytes()
    assert bits(a.policy.params) == bits(b.policy.params)
    assert bits(a.output.params) == bits(b.output.params)
    for name in (*POLICIES, FILE):
        assert tensor_bits(a.folder / name) == tensor_bits(b.folder / name)
    without_time = [[{**row, "seconds": None} for row in run.records.rows()] for run in (a, b)]
    assert without_time[0] == without_time[1]


class StopAt(Silent):
    """Stops a run after so many calls for rounds."""

    def __init__(self, rounds: int) -> None:
        self.stop = threading.Event()
        self.rounds = rounds
        self.calls = 0

    def update(self, seed: int, snapshot: Snapshot) -> None:
        self.calls += 1
        if self.calls >= self.rounds:
            self.stop.set()


# --- the seed alone decides


def test_the_same_seed_gives_the_same_run_bit_for_bit(problem: Problem, undisturbed: Run, tmp_path: Path):
    again = train_seeds(problem, [SEED], tmp_path / "run")[0]
    same_run(again, undisturbed)
    for name in POLICIES:
        assert (again.folder / name).read_bytes() == (undisturbed.folder / name).read_bytes()


def test_a_seed_trained_with_others_is_what_it_is_alone_and_unlike_them(
    problem: Problem, undisturbed: Run, tmp_path: Path
):
    together = train_seeds(problem, [1, SEED, 2**32 - 1], tmp_path / "runs")
    assert [run.seed for run in together] == [1, SEED, 2**32 - 1]
    assert [run.folder.name for run in together] == ["seed-1", "seed-3", "seed-4294967295"]
    same_run(together[1], undisturbed)
    for other in (together[0], together[2]):
        assert bits(other.policy.params) != bits(undisturbed.policy.params)
        assert other.records.columns["train_return"].tolist() != undisturbed.records.columns["train_return"].tolist()


@pytest.mark.parametrize("seeds", [[], [1, 1], [-1], [2**32]], ids=str)
def test_seeds_that_are_none_are_refused_before_anything_is_written(problem: Problem, tmp_path: Path, seeds: list[int]):
    with pytest.raises(ConfigError, match="seeds"):
        train_seeds(problem, seeds, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_the_first_policy_depends_on_the_seed_and_on_nothing_else():
    problems = [
        make_problem(make_config(**settings))
        for settings in (
            {},
            {"algorithm": "svrpg"},
            {"algorithm": "gpomdp", "agents": 1},
            {"preset": "released", "agents": 30, "byzantine": 5, "attack": "nan", "learning_rate": 0.1},
        )
    ]
    assert len({first_state(p, SEED).theta.tobytes() for p in problems}) == 1
    assert len({first_state(problems[0], seed).theta.tobytes() for seed in (0, 1, 2**31, 2**32 - 1)}) == 4


# --- rounds and calls


def test_rounds_one_by_one_are_the_rounds_of_one_call(problem: Problem, advance: Advance):
    done, at_once, logs = advance(first_state(problem, SEED), jnp.int32(9), jnp.int32(FOREVER))
    assert done == 9
    state = first_state(problem, SEED)
    for i in range(9):
        done, state, log = advance(state, jnp.int32(1), jnp.int32(FOREVER))
        assert done == 1
        assert bits(jax.tree.map(lambda x: x[0], log)) == bits(jax.tree.map(lambda x, i=i: x[i], logs))
    assert bits(state) == bits(at_once)
    assert bits(state) != bits(first_state(problem, SEED))


def test_rounds_stop_when_the_limit_is_reached(problem: Problem, advance: Advance):
    first = first_state(problem, SEED)
    counted = np.cumsum(advance(first, jnp.int32(9), jnp.int32(FOREVER))[2].counted[:9])
    for limit, rounds in [(1, 1), (counted[4], 5), (counted[4] + 1, 6), (counted[7] - 1, 8)]:
        done, state, _ = advance(first, jnp.int32(32), jnp.int32(limit))
        assert done == state.round == rounds
        assert state.counted == counted[rounds - 1]
        assert advance(state, jnp.int32(32), jnp.int32(limit))[0] == 0


def test_a_run_stops_at_its_number_of_trajectories(undisturbed: Run):
    counted = undisturbed.records.trajectories
    assert counted[-2] < undisturbed.config.trajectories <= counted[-1]
    assert undisturbed.finished


def test_nothing_is_compiled_after_the_first_call(tiny: Callable[..., Problem], tmp_path: Path):
    compilations: list[str] = []

    def listen(event: str, seconds: float, **about: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compilations.append(event)

    class Count(Silent):
        def __init__(self) -> None:
            self.counts: list[int] = []
            self.rounds: list[int] = []

        def update(self, seed: int, snapshot: Snapshot) -> None:
            self.counts.append(len(compilations))
            self.rounds.append(snapshot.round)

    count = Count()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jax.jit(lambda x: x * 3 + 1)(jnp.ones(7)).block_until_ready()
        assert compilations, "the listener hears no compilation: this test would see nothing"
        train_seeds(tiny(trajectories=400), [SEED], tmp_path / "run", reporter=count)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(set(np.diff(count.rounds))) > 2, "calls of different lengths are wanted here"
    assert len(set(count.counts)) == 1


# --- stopped, killed, resumed


@pytest.mark.parametrize("rounds", [0, 1, 8])
@pytest.mark.usefixtures("one_round_per_call")
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(
    problem: Problem, undisturbed: Run, tmp_path: Path, rounds: int
):
    reporter = StopAt(rounds)
    if rounds == 0:
        reporter.stop.set()
    half = train_seeds(problem, [SEED], tmp_path / "run", reporter=reporter, stop=reporter.stop)[0]
    assert not half.finished
    assert len(half.records) == rounds
    assert log_bits(half) == (log_bits(undisturbed, rounds) if rounds else {})
    rest = StopAt(1000)
    whole = train_seeds(problem, [SEED], tmp_path / "run", resume=True, reporter=rest)[0]
    assert whole.finished
    assert rest.calls == len(whole.records) - rounds, "no round is done twice"
    same_run(whole, undisturbed)


@pytest.mark.usefixtures("one_round_per_call")
def test_a_run_stopped_again_and_again_is_the_same_run(problem: Problem, undisturbed: Run, tmp_path: Path):
    runs = 0
    while True:
        reporter = StopAt(2)
        run = train_seeds(problem, [SEED], tmp_path / "run", True, reporter, reporter.stop)[0]
        runs += 1
        if run.finished:
            break
        assert runs < 50
    assert runs > 3
    same_run(run, undisturbed)


@pytest.mark.usefixtures("one_round_per_call")
def test_several_seeds_are_resumed_together(problem: Problem, undisturbed: Run, tmp_path: Path):
    reporter = StopAt(5)
    first = train_seeds(problem, [SEED, 8], tmp_path / "runs", reporter=reporter, stop=reporter.stop)
    assert not all(run.finished for run in first)
    again = train_seeds(problem, [SEED, 8], tmp_path / "runs", resume=True)
    same_run(again[0], undisturbed)
    assert again[1].finished


def test_resuming_a_finished_run_changes_nothing(problem: Problem, undisturbed: Run, tmp_path: Path):
    folder = Path(shutil.copytree(undisturbed.folder, tmp_path / "run"))
    same_run(train_seeds(problem, [SEED], folder, resume=True)[0], undisturbed)


def test_a_run_made_longer_is_the_longer_run(
    problem: Problem, tiny: Callable[..., Problem], undisturbed: Run, tmp_path: Path
):
    folder = Path(shutil.copytree(undisturbed.folder, tmp_path / "run"))
    longer = tiny(trajectories=100)
    extended = train_seeds(longer, [SEED], folder, resume=True)[0]
    assert len(extended.records) > len(undisturbed.records)
    same_run(extended, train_seeds(longer, [SEED], tmp_path / "from the start")[0])


def test_a_run_cannot_be_made_shorter(tiny: Callable[..., Problem], undisturbed: Run, tmp_path: Path, content: Content):
    folder = Path(shutil.copytree(undisturbed.folder, tmp_path / "run"))
    before = content(folder)
    with pytest.raises(StorageError, match=f"{folder}.*60 trajectories.*not shorter"):
        train_seeds(tiny(trajectories=59), [SEED], folder, resume=True)
    assert content(folder) == before


@pytest.mark.parametrize(
    ("settings", "seed", "resume", "words"),
    [
        ({}, SEED, False, "exists already.*--resume.*--out"),
        ({"learning_rate": 0.5}, SEED, False, "exists already"),
        ({"learning_rate": 0.5}, SEED, True, "other settings.*learning_rate = 0.001 there, 0.5 now.*--out"),
        ({"attack": "nan"}, SEED, True, "other settings.*attack"),
        ({}, SEED + 1, True, f"seed {SEED}, not {SEED + 1}"),
    ],
    ids=str,
)
def test_a_folder_of_another_run_is_refused_and_not_touched(
    tiny: Callable[..., Problem],
    undisturbed: Run,
    tmp_path: Path,
    content: Content,
    settings: dict[str, Any],
    seed: int,
    resume: bool,
    words: str,
):
    folder = Path(shutil.copytree(undisturbed.folder, tmp_path / "run"))
    before = content(folder)
    with pytest.raises(StorageError, match=f"{folder}.*{words}"):
        train_seeds(tiny(**settings), [seed], folder, resume)
    assert content(folder) == before


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_with_something_else_in_it_is_refused_and_not_touched(
    problem: Problem, tmp_path: Path, content: Content, resume: bool
):
    (tmp_path / "thesis.tex").write_text("years of work")
    for out in (tmp_path, tmp_path / "thesis.tex", tmp_path / "thesis.tex" / "run"):
        with pytest.raises(StorageError, match=str(out)):
            train_seeds(problem, [SEED], out, resume)
    assert content(tmp_path) == {"thesis.tex": b"years of work"}


def test_if_one_of_several_folders_is_taken_none_is_made(problem: Problem, tmp_path: Path, content: Content):
    (tmp_path / "seed-2").mkdir()
    (tmp_path / "seed-2" / "notes").write_text("mine")
    with pytest.raises(StorageError, match="seed-2"):
        train_seeds(problem, [1, 2], tmp_path)
    assert content(tmp_path) == {"seed-2/notes": b"mine"}
    assert not (tmp_path / "seed-1").exists()


# --- a process that is killed or interrupted

# Every round is saved, and writing is slow, so that a kill finds files half written.
DRIVER = """
import os, sys, time
import fedpg.training.run as run
from fedpg.cli import main

fsync = os.fsync
def slow(handle):
    time.sleep(0.01)
    fsync(handle)
    time.sleep(0.01)

os.fsync = slow
run.SECONDS_PER_CALL = 0.0
run.SECONDS_PER_CHECKPOINT = -1.0
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def long_run(tiny: Callable[..., Problem], compiled: object, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_seeds(tiny(trajectories=200), [SEED], tmp_path_factory.mktemp("long") / "run")[0]


@pytest.fixture(scope="module")
def start(long_run: Run, as_options: AsOptions, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Starts, or resumes, the long run in a process of its own."""
    options = [*as_options(long_run.config), "--seeds", str(SEED), "--resume"]
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("cache")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }

    def process(folder: Path) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, "train", *options, "--out", str(folder)],
            env=os.environ | cache,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return process


def wait_for(process: "subprocess.Popen[str]", event: Callable[[], bool]) -> None:
    """Until something has happened in a process that is still running."""
    deadline = time.monotonic() + 120
    while not event():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"the process ended too early, or nothing happened: {process.communicate()}")
        time.sleep(0.0005)


def rounds_saved(folder: Path) -> int:
    return int(safetensors.numpy.load_file(folder / FILE)[".round"].item())


def changed(path: Path) -> Callable[[], bool]:
    """Whether a file has been replaced, or made, since now."""
    before = path.stat().st_ino if path.exists() else None
    return lambda: path.exists() and path.stat().st_ino != before


def test_a_run_killed_at_any_moment_resumes_to_the_same_bits(start: Start, long_run: Run, tmp_path: Path):
    folder = tmp_path / "run"
    saved = [0]
    for file, pause in [("config.json", 0.0), (FILE, 0.0), (FILE, 0.005), ("records.jsonl", 0.013), (FILE, 0.03)]:
        process = start(folder)
        wait_for(process, changed(folder / file))
        time.sleep(pause)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        if file != "config.json":
            saved.append(rounds_saved(folder))
    assert all(a < b for a, b in itertools.pairwise(saved)), "every process went on where the last one died"
    assert saved[-1] < len(long_run.records)
    process = start(folder)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert f"{long_run.records.trajectories[-1]}/200 trajectories" in output
    for name in (*POLICIES, FILE):
        assert tensor_bits(folder / name) == tensor_bits(long_run.folder / name)
    for name in POLICIES:
        assert (folder / name).read_bytes() == (long_run.folder / name).read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupted_command_saves_says_how_to_go_on_and_ends_with_130(
    start: Start,
    tiny: Callable[..., Problem],
    long_run: Run,
    tmp_path: Path,
    number: signal.Signals,
):
    folder = tmp_path / "run"
    process = start(folder)
    wait_for(process, changed(folder / FILE))
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert f"--out {folder} --resume" in errors
    assert 0 < rounds_saved(folder) < len(long_run.records)
    same_run(train_seeds(tiny(trajectories=200), [SEED], folder, resume=True)[0], long_run)


# --- attacks and faults


FAULTS = {"nan": "not finite", "infinity": "not finite", "wrong-length": "wrong length", "silence": "no answer"}


@pytest.mark.parametrize(("fault", "status"), FAULTS.items())
@pytest.mark.usefixtures("compiled_fast")
def test_a_faulty_agent_is_named_and_ignored_and_the_run_goes_on(
    tiny: Callable[..., Problem], tmp_path: Path, fault: str, status: str
):
    problem = tiny(attack=fault, batch=(4, 4), trajectories=40)
    run = train_seeds(problem, [SEED], tmp_path / "run")[0]
    rows = list(run.records.rows())[1:]
    assert len(rows) > 3
    assert all(row["status"] == ["answered"] * 3 + [status] for row in rows)
    assert all(row["accepted_byzantine"] == 0 and row["recall"] == 1.0 for row in rows)
    assert any(row["accepted_honest"] == 3 for row in rows)
    first = problem.policy.unravel(first_state(problem, SEED).theta)
    for name, tensor in run.policy.params.items():
        assert np.isfinite(tensor).all()
        assert not np.array_equal(tensor, first[name])
    state = safetensors.numpy.load_file(run.folder / FILE)
    assert all(np.isfinite(v).all() for k, v in state.items() if not k.startswith("log/"))


def sevens(key: Array, gradients: Array, byzantine: Array, tensors: tuple[slice, ...]) -> Array:
    return jnp.full_like(gradients, 7.0)


@pytest.mark.usefixtures("compiled_fast")
def test_an_attack_of_the_users_own_begins_when_told_and_the_rounds_before_are_honest(
    tiny: Callable[..., Problem], tmp_path: Path
):
    honest = tiny(byzantine=0, attack="random-noise", batch=(4, 4))
    settings = {k: v for k, v in vars(honest.config).items() if k not in ("attack", "byzantine", "attack_start")}
    run = fedpg.train(**settings, byzantine=1, attack=sevens, attack_start=5, seed=SEED, out=tmp_path / "run")
    assert run.config.attack == "custom:sevens"
    sent = run.records.columns["norms"][:, 3]
    size = len(first_state(honest, SEED).theta)
    assert np.isclose(sent, 7 * size**0.5).tolist() == [False] * 4 + [True] * (len(sent) - 4)

    peaceful = train_seeds(honest, [SEED], tmp_path / "honest")[0]
    early = log_bits(run, 4)
    # Who counts as honest, and with that their mean return, is another question than what they do.
    for name in set(early) - {"train_return"}:
        assert early[name] == log_bits(peaceful, 4)[name], name
    assert bits(run.policy.params) != bits(peaceful.policy.params)


@pytest.mark.usefixtures("compiled_fast")
def test_an_attack_that_returns_another_shape_is_an_error_that_says_so(tiny: Callable[..., Problem], tmp_path: Path):
    settings = {k: v for k, v in vars(tiny().config).items() if k != "attack"}
    with pytest.raises(ValueError, match=r"attack.*shape"):
        fedpg.train(**settings, attack=lambda keys, gradients, *_: gradients[0], out=tmp_path / "run")


def one_round(problem: Problem, seed: int) -> tuple[State, Log]:
    def compute(state: State) -> tuple[State, Log]:
        return ALGORITHMS[problem.config.algorithm](problem, local_federation(problem), state)

    return jax.jit(compute)(first_state(problem, seed))


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in FAULTS])
@pytest.mark.usefixtures("compiled_fast")
def test_every_attack_runs(tiny: Callable[..., Problem], name: str):
    # One lane width, so that there is one variant of the agents' work to compile.
    state, log = one_round(tiny(attack=name, batch=(4, 4)), SEED)
    assert state.round == 1
    assert np.isfinite(state.theta).all()
    assert (log.status == 0).all()
    assert (log.norms[:3] > 0).all()
    assert log.norms[3] == 0 if name == "zero-gradient" else log.norms[3] > 0


COUNTED: dict[str, dict[str, Any]] = {
    "released": {"preset": "released", "alpha": 0.3},
    "majority": {"filter": "majority"},
    "mean": {"filter": "mean"},
    "one agent": {"agents": 1, "byzantine": 0},
    "svrpg": {"algorithm": "svrpg"},
    "gpomdp": {"algorithm": "gpomdp"},
}


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.usefixtures("compiled_fast")
def test_every_algorithm_filter_and_preset_runs_and_counts_its_trajectories(
    tiny: Callable[..., Problem], tmp_path: Path, name: str
):
    problem = tiny(**({"batch": (4, 4), "trajectories": 40} | COUNTED[name]))
    run = train_seeds(problem, [SEED], tmp_path / "run")[0]
    assert_counts(run)
    rules = {row["rule"] for row in run.records.rows() if row["round"]}
    assert rules <= ({"mean"} if run.config.filter == "mean" else {"R1", "R2", "nobody"})
    if run.config.inner_law == "fixed":
        assert {row["inner_steps"] for row in run.records.rows() if row["round"]} == {run.config.inner_steps}


def test_the_trajectories_of_a_run_are_counted(undisturbed: Run):
    assert_counts(undisturbed)
    assert set(undisturbed.records.columns["batch"]) == {4, 5}


def assert_counts(run: Run) -> None:
    """By hand: B per agent and round; b per inner step that was looked at, and what sigma = auto needs on top."""
    c, columns = run.config, run.records.columns
    k, b = c.agents, c.minibatch
    batch, steps = columns["batch"].astype(int), columns["inner_done"].astype(int)
    assert ((c.batch[0] <= batch) & (batch <= c.batch[1])).all()
    assert (steps <= columns["inner_drawn"]).all()

    looked_at = steps + (np.abs(columns["ratio"] - 1) > c.ratio_bound)
    auto = c.sigma == "auto" and c.filter != "mean" and k > 1
    for_sigma = np.where(looked_at > 0, 8 - b, 8) if auto else 0
    server = b * looked_at * (c.algorithm != "gpomdp") + for_sigma

    own = 0 if c.algorithm == "gpomdp" else b * steps
    counted = batch + own if k == 1 else np.rint((batch * k + own) / (k + 1)).astype(int)

    rows = list(run.records.rows())[1:]
    assert [row["trajectories_agent"] for row in rows] == np.cumsum(batch).tolist()
    assert [row["trajectories_server"] for row in rows] == np.cumsum(server).tolist()
    assert [row["trajectories_total"] for row in rows] == np.cumsum(k * batch + server).tolist()
    assert [row["trajectories"] for row in rows] == np.cumsum(counted).tolist()


def test_a_trained_policy_is_a_function_of_observations(undisturbed: Run):
    actions = {int(undisturbed.policy([0.0, 0.0, angle, velocity])) for angle in (-0.2, 0.2) for velocity in (-3, 3)}
    assert actions <= {0, 1}


def test_the_folder_of_a_run_has_a_name_and_none_is_used_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    config = make_config(byzantine=3, attack="sign-flipping")
    names = []
    for _ in range(3):
        names.append(fedpg.training.run.new_folder(config))
        names[-1].mkdir(parents=True)
    assert len(set(names)) == 3
    assert all(str(name).startswith("runs/CartPole-v1-fedpg-br-K10-3-sign-flipping") for name in names)
    assert fedpg.training.run.new_folder(dataclasses.replace(config, agents=7)) == Path(
        "runs/CartPole-v1-fedpg-br-K7-3-sign-flipping"
    )
