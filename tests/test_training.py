"""A run is a function of its settings and its seed: together or alone, in one go or killed and resumed."""

import dataclasses
import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fedpg import Config, ConfigError, Problem, Run, StorageError, make_config, make_problem, train_seeds
from fedpg.training.folders import new_folder
from fedpg.training.progress import Silent, Snapshot
from fedpg.training.rounds import first_state
from same import POLICIES, SEED, StopAt, assert_counts, bits, log_bits, same_run

pytestmark = [pytest.mark.kernels]
Content = Callable[[Path], dict[str, bytes]]
AsOptions = Callable[[Config], list[str]]


@pytest.fixture(scope="module")
def tiny(tiny: Callable[..., Problem]) -> Callable[..., Problem]:
    """The tiny problem, with batches of two sizes."""
    return functools.partial(tiny, batch=(4, 5))


@pytest.fixture(scope="module")
def problem(tiny: Callable[..., Problem]) -> Problem:
    return tiny()


@pytest.fixture(scope="module")
def undisturbed(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_seeds(problem, [SEED], tmp_path_factory.mktemp("undisturbed") / "run")[0]


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
        assert other.records.column("train_return").tolist() != undisturbed.records.column("train_return").tolist()


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


# --- rounds


def test_a_run_stops_at_its_number_of_trajectories(undisturbed: Run):
    counted = undisturbed.records.trajectories
    assert counted[-2] < undisturbed.config.trajectories <= counted[-1]
    assert undisturbed.finished


def test_nothing_is_compiled_after_the_first_round(tiny: Callable[..., Problem], tmp_path: Path):
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
    assert count.rounds[-1] > 50, "both sizes of a batch and several numbers of inner steps are wanted here"
    assert len(set(count.counts)) == 1


# --- stopped, killed, resumed


@pytest.mark.parametrize("rounds", [0, 1, 8])
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(
    problem: Problem, undisturbed: Run, tmp_path: Path, rounds: int
):
    reporter = StopAt(rounds)
    if rounds == 0:
        reporter.stop.set()
    half = train_seeds(problem, [SEED], tmp_path / "run", reporter=reporter, stop=reporter.stop)[0]
    assert not half.finished
    assert len(half.records) == rounds
    assert log_bits(half) == log_bits(undisturbed, rounds)
    rest = StopAt(1000)
    whole = train_seeds(problem, [SEED], tmp_path / "run", resume=True, reporter=rest)[0]
    assert whole.finished
    assert rest.calls == len(whole.records) - rounds, "no round is done twice"
    same_run(whole, undisturbed)


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


def test_the_trajectories_of_a_run_are_counted(undisturbed: Run):
    assert_counts(undisturbed)
    assert set(undisturbed.records.column("batch")) == {4, 5}


def test_a_trained_policy_is_a_function_of_observations(undisturbed: Run):
    actions = {int(undisturbed.policy([0.0, 0.0, angle, velocity])) for angle in (-0.2, 0.2) for velocity in (-3, 3)}
    assert actions <= {0, 1}


def test_the_folder_of_a_run_has_a_name_and_none_is_used_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    config = make_config(byzantine=3, attack="sign-flipping")
    names = []
    for _ in range(3):
        names.append(new_folder(config))
        names[-1].mkdir(parents=True)
    assert len(set(names)) == 3
    assert all(str(name).startswith("runs/CartPole-v1-natural-K10-3-sign-flipping") for name in names)
    assert new_folder(dataclasses.replace(config, agents=7)) == Path("runs/CartPole-v1-natural-K7-3-sign-flipping")
