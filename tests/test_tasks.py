"""Tasks outside JAX: that they train, resume and are attacked as CartPole is, and what goes wrong in them."""

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedpg
import fedpg.training.run
import gym_probes
import probes
from fedpg import (
    Problem,
    Run,
    SimulationError,
    columns,
    make_config,
    make_problem,
    make_task,
    train_seeds,
)
from fedpg.problem import POOL_ROUNDS
from fedpg.tasks.pool import pool_of, with_pool
from fedpg.tasks.registry import gymnasium_task
from fedpg.training.progress import Silent, Snapshot
from fedpg.training.rounds import evaluated, first_state
from gym_probes import Trouble, Walk
from same import StopAt, bits, same_run

pytestmark = pytest.mark.simulators
SEED = 3
SMALL: dict[str, Any] = {
    "preset": "paper",
    "agents": 3,
    "batch": (4, 6),
    "minibatch": 2,
    "horizon": 60,
    "test_horizon": 60,
    "test_episodes": 2,
    "hidden": (4,),
    "trajectories": 60,
}
TINY = SMALL | {"batch": (2, 3), "horizon": 10, "test_horizon": 12, "sigma": 10.0, "trajectories": 30}


def in_time(function: Callable[[], Any], seconds: float = 100.0) -> Any:
    """What a function returns or raises, if it comes to an end."""
    out: dict[str, Any] = {}

    def work() -> None:
        try:
            out["result"] = function()
        except BaseException as error:
            out["error"] = error

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert out, "it hangs"
    if "error" in out:
        raise out["error"]
    return out["result"]


# Attacks


@functools.cache
def agents_of(kind: str, **settings: Any) -> Any:
    """What five agents of a walk answer, the last two Byzantine if there is an attack."""
    task = gymnasium_task(Walk if kind == "box" else gym_probes.discrete_walk, "walk")
    config = make_config("walk", **TINY | {"agents": 5, "alpha": 0.4, "batch": (3, 3)} | settings)
    problem = make_problem(config, task)
    answers = in_time(lambda: probes.answers(problem)(probes.broadcast(problem)))
    return jax.tree.map(np.asarray, answers)


STATUS = {"nan": 3, "infinity": 3, "wrong-length": 2, "silence": 1}
# What changes the message, or its length, does not ask what the task is. Those that try their lies on the aggregator
# are made in whole rounds (test_attacks_contract.py, test_arena.py).
ATTACKED = [("box", name) for name, make in fedpg.ATTACKS.items() if not make().adaptive]
ATTACKED += [("discrete", name) for name in ("random-action", "reward-flipping", "shuffled-rewards", "fedpg-attack")]


@pytest.mark.parametrize(("kind", "name"), ATTACKED)
def test_every_attack_runs_outside_jax_and_changes_the_attackers_answers_only(kind: str, name: str):
    honest, attacked = agents_of(kind), agents_of(kind, byzantine=2, attack=name)
    assert attacked.status.tolist() == [0, 0, 0] + [STATUS.get(name, 0)] * 2
    mine, theirs = (answers.sent["gradient"] for answers in (attacked, honest))
    np.testing.assert_allclose(mine[:3], theirs[:3], rtol=1e-4, atol=1e-5)
    assert np.abs(theirs).max(axis=1).min() > 1e-3
    same = np.isclose(mine[3:], theirs[3:], rtol=1e-3, atol=1e-3).all(axis=1)
    assert same.tolist() == [name in ("wrong-length", "silence")] * 2
    assert (attacked.steps > 0).all()
    if name != "random-action":
        assert attacked.steps.tolist() == honest.steps.tolist()


# Runs


class Count(StopAt):
    """Counts the compilations up to each round, and may stop the run."""

    compilations = 0

    def __init__(self, rounds: int = 1000) -> None:
        super().__init__(rounds)
        self.counts: list[int] = []

    def update(self, seed: int, snapshot: Snapshot) -> None:
        super().update(seed, snapshot)
        self.counts.append(Count.compilations)


@pytest.fixture(scope="module")
def listening() -> Iterator[None]:
    def listen(event: str, seconds: float, **about: Any) -> None:
        Count.compilations += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield
    jax.monitoring.unregister_event_duration_listener(listen)


class Undisturbed:
    """A problem whose simulator can be made anew, as in another process, and its run in one go."""

    def __init__(self, folder: Path, task: str, **settings: Any) -> None:
        self.task = make_task(task)
        lent = with_pool(self.task, open=lambda *which: pool_of(self.task).open(*which))
        self.problem = make_problem(make_config(task, **settings), lent)
        self.count = Count()
        self.made: list[int] = []
        """The sizes of the pools that EnvPool made for the run."""

        def make(*arguments: Any, num_envs: int, **options: Any) -> Any:
            self.made.append(num_envs)
            return original(*arguments, num_envs=num_envs, **options)

        import envpool  # not everywhere, and only here

        original = envpool.make_gymnasium
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(envpool, "make_gymnasium", make)
            self.run: Run = train_seeds(self.problem, [SEED], folder / "run", reporter=self.count)[0]

    def lose_the_simulator(self) -> None:
        self.task = make_task(self.task.id)


@pytest.fixture(scope="module")
def lander(listening: None, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(tmp_path_factory.mktemp("lander"), "LunarLander-v3", **SMALL)


@pytest.fixture(scope="module")
def cheetah(listening: None, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    # Neither a filter nor a bound on the ratio, so that every round has the same rollouts.
    settings = TINY | {"inner_law": "fixed", "inner_steps": 2, "ratio_bound": 9.0, "aggregator": "mean"}
    settings |= {"preset": "released", "horizon": 8, "test_horizon": 8, "trajectories": 60}
    return Undisturbed(tmp_path_factory.mktemp("cheetah"), "HalfCheetah-v5", **settings)


def test_a_run_outside_jax_learns_something_and_ends_when_it_should(lander: Undisturbed, cheetah: Undisturbed):
    for each in (lander, cheetah):
        assert each.run.finished
        records = each.run.records
        assert (records.column("agent_steps") > 0).all()
        assert (records.column("gradient_norm") > 0).any()
        assert len(set(records.column("train_return").tolist())) == len(records)
    assert len(cheetah.run.records) > POOL_ROUNDS + 2, "pools must be made anew within it"
    assert lander.run.records.column("server_steps").sum() > 0


def test_nothing_is_compiled_after_the_first_round_outside_jax(lander: Undisturbed, cheetah: Undisturbed):
    assert Count.compilations > 0, "nothing was heard"
    for each in (lander, cheetah):
        assert len(each.count.counts) > 2
        assert len(set(each.count.counts)) == 1


def test_slow_environments_are_made_once_in_some_rounds(cheetah: Undisturbed):
    config, rounds = cheetah.run.config, len(cheetah.run.records)
    assert POOL_ROUNDS < rounds < 2 * POOL_ROUNDS
    # The agents and the evaluation, and one inner step after the first.
    round_ = config.agents * config.batch[1] + config.test_episodes + config.minibatch
    assert sum(cheetah.made) == 2 * round_


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("name", "rounds"), [("lander", 1), ("lander", 4), ("cheetah", 5), ("cheetah", POOL_ROUNDS + 1)]
)
def test_a_run_outside_jax_goes_on_as_if_nothing_had_happened(
    name: str, rounds: int, request: pytest.FixtureRequest, tmp_path: Path
):
    undisturbed: Undisturbed = request.getfixturevalue(name)
    reporter = StopAt(rounds)
    half = train_seeds(undisturbed.problem, [SEED], tmp_path / "run", reporter=reporter, stop=reporter.stop)[0]
    assert not half.finished
    assert len(half.records) == rounds
    tests, whole = half.records.tests, undisturbed.run.records.tests
    assert [test.tobytes() for test in tests] == [test.tobytes() for test in whole[: rounds + 1]]
    undisturbed.lose_the_simulator()
    same_run(train_seeds(undisturbed.problem, [SEED], tmp_path / "run", resume=True)[0], undisturbed.run)


@pytest.mark.kernels
def test_seeds_that_share_a_simulator_are_what_they_are_alone(cheetah: Undisturbed, tmp_path: Path):
    task = dataclasses.replace(cheetah.problem.task, side_by_side=lambda episodes: 2)
    both = in_time(lambda: train_seeds(cheetah.problem._replace(task=task), [8, SEED], tmp_path / "runs"))
    same_run(both[1], cheetah.run)
    assert bits(both[0].policy.params) != bits(both[1].policy.params)


@pytest.mark.parametrize("alone", [True, False])
def test_a_library_whose_products_depend_on_the_company_is_named_and_the_run_goes_on(
    alone: bool, troubled: tuple[Problem, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Notes(Silent):
        def __init__(self) -> None:
            self.said: list[str] = []

        def note(self, text: str) -> None:
            self.said.append(text)

    if not alone:
        monkeypatch.setattr(columns, "place_is_nothing", lambda shape, tile: False)
    notes = Notes()
    run = train_seeds(troubled[0], [SEED], tmp_path / "run", reporter=notes)[0]
    assert run.finished
    assert sum("NumPy's products" in text for text in notes.said) == (not alone)


def test_the_papers_name_of_a_task_is_todays(lander: Undisturbed, tmp_path: Path):
    with pytest.warns(UserWarning, match="LunarLander-v2 is LunarLander-v3 here: Gymnasium retired v2"):
        run = fedpg.train("LunarLander-v2", **SMALL, seed=SEED, out=tmp_path / "run")
    same_run(run, lander.run)
    assert make_config("HalfCheetah-v2") == make_config("HalfCheetah-v5")


# What goes wrong


ATTACKED_BY_ONE = TINY | {"byzantine": 1, "attack": "random-action", "alpha": 0.4}


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Problem, Run]:
    """The problem, and its run without trouble."""
    problem = make_problem(make_config("Trouble", **ATTACKED_BY_ONE), gymnasium_task(Trouble, "Trouble"))
    return problem, train_seeds(problem, [SEED], tmp_path_factory.mktemp("trouble") / "run")[0]


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Makes trouble of a kind after some good rounds, or ends it."""

    def make(kind: str) -> None:
        monkeypatch.setattr(Trouble, "kind", kind)
        monkeypatch.setattr(Trouble, "count", 0)
        monkeypatch.setattr(Trouble, "after", 400)

    monkeypatch.setattr(fedpg.training.run, "SECONDS_PER_CHECKPOINT", -1.0)
    return make


TROUBLE = {
    "step": (ZeroDivisionError, "trouble in step"),
    "reset": (ZeroDivisionError, "trouble in reset"),
    "observation": (SimulationError, "Trouble gave an observation that is not finite, after .* steps"),
    "reward": (SimulationError, "Trouble gave a reward that is not finite, after .* steps"),
    "first observation": (SimulationError, "Trouble gave an observation that is not finite, after 0 steps"),
}


@pytest.mark.parametrize("kind", TROUBLE)
def test_an_error_in_the_task_ends_the_run_which_can_be_resumed(
    kind: str, trouble: Callable[[str], None], troubled: tuple[Problem, Run], tmp_path: Path
):
    problem, undisturbed = troubled
    error, words = TROUBLE[kind]
    trouble(kind)
    reporter = StopAt(1000)
    with pytest.raises(error, match=words):
        in_time(lambda: train_seeds(problem, [SEED], tmp_path / "run", reporter=reporter))
    assert 1 <= reporter.calls < len(undisturbed.records)
    trouble("")
    rest = StopAt(1000)
    whole = in_time(lambda: train_seeds(problem, [SEED], tmp_path / "run", resume=True, reporter=rest))[0]
    assert rest.calls == len(whole.records) - reporter.calls, "no good round is done twice"
    same_run(whole, undisturbed)


def test_an_error_with_one_seed_ends_the_others(
    trouble: Callable[[str], None], troubled: tuple[Problem, Run], tmp_path: Path
):
    problem, undisturbed = troubled
    trouble("step")
    with pytest.raises(ZeroDivisionError, match="trouble in step"):
        in_time(lambda: train_seeds(problem, [0, SEED, 7], tmp_path / "runs"))
    trouble("")
    runs = in_time(lambda: train_seeds(problem, [0, SEED, 7], tmp_path / "runs", resume=True))
    same_run(runs[1], undisturbed)


def test_the_error_of_a_later_seed_ends_the_first_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings = TINY | {"trajectories": 10**9}
    problem = make_problem(make_config("Walk", **settings), gymnasium_task(Walk, "Walk"))
    task = dataclasses.replace(problem.task, side_by_side=lambda episodes: 2)
    broken = bits(first_state(problem, 7).key)
    original = fedpg.training.run.advance

    def advance(problem: Problem, state: Any, *rest: Any) -> Any:
        if state.round == 2 and bits(state.key) == broken:
            raise ZeroDivisionError("trouble with seed 7")
        return original(problem, state, *rest)

    monkeypatch.setattr(fedpg.training.run, "advance", advance)
    with pytest.raises(ZeroDivisionError, match="trouble with seed 7"):
        in_time(lambda: train_seeds(problem._replace(task=task), [0, 7], tmp_path / "runs"))
    for seed in (0, 7):
        assert (tmp_path / "runs" / f"seed-{seed}" / "records.jsonl").exists(), "what was done is kept"


def test_a_run_whose_evaluation_failed_goes_on_as_if_nothing_had_happened(
    troubled: tuple[Problem, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    problem, undisturbed = troubled

    def failing(problem: Problem, state: Any, *rest: Any) -> Any:
        if state.round == 3:  # beside which round 4 goes on
            raise ZeroDivisionError("trouble in a test")
        return evaluated(problem, state, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(fedpg.training.run, "evaluated", failing)
        with pytest.raises(ZeroDivisionError, match="trouble in a test"):
            in_time(lambda: train_seeds(problem, [SEED], tmp_path / "run"))
    same_run(in_time(lambda: train_seeds(problem, [SEED], tmp_path / "run", resume=True))[0], undisturbed)


def test_what_ended_a_run_does_not_end_the_next_one(trouble: Callable[[str], None], tmp_path: Path):
    problem = make_problem(make_config("Trouble", **TINY | {"trajectories": 6}), gymnasium_task(Trouble, "Trouble"))
    trouble("step")
    Trouble.after = 10
    with pytest.raises(ZeroDivisionError, match="trouble in step"):
        in_time(lambda: train_seeds(problem, [SEED], tmp_path / "failed"))
    trouble("")
    assert in_time(lambda: train_seeds(problem, [SEED], tmp_path / "run"))[0].finished


def test_train_takes_a_factory_and_raises_what_its_task_does(
    trouble: Callable[[str], None], troubled: tuple[Problem, Run], tmp_path: Path
):
    trouble("reward")
    with pytest.raises(SimulationError, match="not finite"):
        in_time(lambda: fedpg.train(Trouble, **ATTACKED_BY_ONE, seed=SEED, out=tmp_path / "run"))
    trouble("")
    same_run(train_seeds(troubled[0], [SEED], tmp_path / "run", resume=True)[0], troubled[1])


def test_a_factory_by_its_path_is_the_factory(troubled: tuple[Problem, Run], tmp_path: Path):
    run = fedpg.train("gym_probes:Trouble", **ATTACKED_BY_ONE, seed=SEED, out=tmp_path / "run")
    assert run.config.task == "gym_probes:Trouble"
    assert run.finished
    assert bits(run.policy.params) == bits(troubled[1].policy.params)
    assert run.records.test_returns.tobytes() == troubled[1].records.test_returns.tobytes()


def test_an_evaluation_raises_what_the_task_does(trouble: Callable[[str], None]):
    problem = make_problem(make_config("Trouble", **TINY), gymnasium_task(Trouble, "Trouble"))
    state = first_state(problem, 1)
    returns, steps = evaluated(problem, state)
    assert len(returns) == TINY["test_episodes"] <= steps
    trouble("step")
    Trouble.after = 1
    with pytest.raises(ZeroDivisionError, match="trouble in step"):
        evaluated(problem, state)
