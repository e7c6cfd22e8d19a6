"""A run: rounds, evaluation, records, checkpoints and their folder."""

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpg.agents import Problem, make_problem
from fedpg.aggregators import make_filter
from fedpg.algorithms import State, first_state
from fedpg.attacks import as_attack
from fedpg.columns import blas, columns_are_alone
from fedpg.config import Config, ConfigError, make_config, refuse_idle_attack, renamed
from fedpg.environments import Environment, Factory, Pool, make_environment
from fedpg.environments.simulators import KEPT, cores
from fedpg.policies import Params, Policy
from fedpg.storage import UNFINISHED, StorageError, read_config, remove_unfinished, write_config
from fedpg.training.checkpoint import FILE, RECORDS, check_progress, load_checkpoint, save_checkpoint, save_policy
from fedpg.training.events import Events
from fedpg.training.progress import Reporter, Silent, Snapshot
from fedpg.training.records import Records
from fedpg.training.rounds import AT_A_TIME, CHUNK, Advance, Sites, compile_apart, compile_rounds, last_test

SECONDS_PER_CALL = 0.3
SECONDS_PER_CHECKPOINT = 5.0
RECENT = 20


class Trained(NamedTuple):
    """A trained policy: call it with an observation and it answers with its greedy action."""

    policy: Policy
    params: Params
    to_task: Callable[[np.ndarray], np.ndarray]
    """The policy's action -> the task's."""

    def __call__(self, observation: Any) -> np.ndarray:
        return self.to_task(np.asarray(self.policy.mode(self.params, jnp.asarray(observation, jnp.float32))))


class Run(NamedTuple):
    """What a training run leaves behind."""

    config: Config
    seed: int
    policy: Trained
    """The policy after the last round."""
    output: Trained
    """The output of the pseudocode: the policy after a round drawn uniformly from all."""
    records: Records
    folder: Path
    seconds: float
    """The time this call took, compiling not included."""
    finished: bool
    """False if the run was interrupted: it goes on with resume."""


def train(
    task: str | Factory | None = None,
    *,
    preset: Any = None,
    algorithm: Any = "fedpg-br",
    attack: Any = "random-noise",
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    environment: Environment | Pool | None = None,
    **settings: Any,
) -> Run:
    """Train one policy by a federation in this process.

    `task` is a Gymnasium id, `package.module:factory`, or a function that makes a Gymnasium environment. `settings` are
    those of `fedpg.Config`; what is not given comes from the preset. `attack` is a name, an `Attack`, or your own
    function `(keys [K], gradients [K, D], byzantine [K], tensors) -> [K, D]`. The run folder is `out`, or a new one
    under `runs/`.
    """
    if environment is not None and task not in (None, environment.id):
        raise ConfigError(f"task {task!r} is not that of the environment, {environment.id!r}: give one of them")
    if task is not None and not isinstance(task, str):
        environment = make_environment(task)
    name, note = renamed(environment.id if environment is not None else str(task or Config.task))
    if note:
        warnings.warn(note, stacklevel=2)
    named = attack if isinstance(attack, str) else f"custom:{getattr(attack, '__name__', type(attack).__name__)}"
    config = make_config(name, preset, algorithm, attack=named, **settings)
    refuse_idle_attack(config)
    custom = None if isinstance(attack, str) else as_attack(attack)
    problem = make_problem(config, environment, custom)
    return train_seeds(problem, [seed], out, resume)[0]


def train_seeds(
    problem: Problem,
    seeds: Sequence[int],
    out: str | Path | None = None,
    resume: bool = False,
    reporter: Reporter | None = None,
    stop: threading.Event | None = None,
    sites: Sites | None = None,
) -> list[Run]:
    """Train one run per seed, several at a time if there are the cores; each is what it would be alone.

    One seed lives in the folder itself, several in `seed-0`, `seed-1`, ... of it. With `sites`, they are the agents.
    """
    reporter, stop = reporter or Silent(), stop or threading.Event()
    make_filter(problem.config)  # an unknown name is an error before there is a folder
    good = all(isinstance(seed, int) and 0 <= seed < 2**32 for seed in seeds)
    if not good or not seeds or len(set(seeds)) != len(seeds):
        raise ConfigError(f"seeds must be different whole numbers from 0 to 2^32 - 1, not {list(seeds)}")
    folder = new_folder(problem.config) if out is None else Path(out)
    folders = {seed: folder / f"seed-{seed}" if len(seeds) > 1 else folder for seed in seeds}
    fresh = resume and not folder.exists()
    for seed in seeds:
        check_folder(folders[seed], problem.config, seed, resume)
    workers = min(len(seeds), at_a_time(problem))
    if isinstance(problem.environment, Pool):
        # Runs side by side keep the cores busy by themselves. And what ended another run must not end these.
        teams = problem.environment.teams if workers == 1 else 1
        problem = problem._replace(environment=problem.environment._replace(teams=teams, failures=[]))
    with reporter:
        if fresh:
            reporter.note(f"there is no run at {folder} to resume: this is a new one")
        by = f", simulated by {problem.environment.simulator}" if isinstance(problem.environment, Pool) else ""
        reporter.note(f"{problem.config.name} in {folder}{by}: compiling, a few seconds")
        if isinstance(problem.environment, Pool) and not columns_are_alone(problem.policy.shapes.values()):
            text = (
                f"NumPy's products ({blas()}) round by who else is simulated here: with another number of cores or "
                "environments, the last digits of this run would differ"
            )
            if type(reporter) is Silent:
                warnings.warn(text, stacklevel=2)
            else:
                reporter.note(text)
        advance = compile_rounds(problem) if sites is None else compile_apart(problem, sites)
        reporter.note("compiled")
        for seed in seeds:
            make_folder(folders[seed], problem.config, seed)
        with contextlib.ExitStack() as held, ThreadPoolExecutor(max_workers=workers) as pool:
            for seed in seeds:
                held.enter_context(alone_in(folders[seed]))
            far = sites is not None
            starts = {seed: start_of(problem, seed, folders[seed]) for seed in seeds}
            jobs = [
                pool.submit(_train_one, problem, advance, s, folders[s], starts[s], reporter, stop, far) for s in seeds
            ]
            try:
                return [job.result() for job in jobs]
            except BaseException as error:
                stop.set()
                if isinstance(problem.environment, Pool):
                    problem.environment.failures.append(error)  # ends the rollouts that are under way
                for job in jobs:
                    job.cancel()
                raise


def at_a_time(problem: Problem) -> int:
    """Runs side by side: one per core; outside JAX, as many as may call out, and whose environments can be kept."""
    config = problem.config
    if not isinstance(problem.environment, Pool):
        return cores()
    each = config.agents * config.batch[1] + config.test_episodes + 10 * config.minibatch
    return AT_A_TIME if problem.environment.reseeds else max(1, min(AT_A_TIME, KEPT // each))


def new_folder(config: Config) -> Path:
    """A folder under `runs/` that does not exist yet."""
    base = Path("runs") / config.name
    candidates = [base, *(base.with_name(f"{base.name}-{i}") for i in range(2, 10_000))]
    return next(path for path in candidates if not path.exists())


def check_folder(folder: Path, config: Config, seed: int, resume: bool) -> None:
    """Refuse a folder that holds something else, or more than a resumed run would go on from."""
    try:
        exists = folder.exists()
    except OSError as error:
        raise StorageError(f"{folder} cannot be a run folder: {error.strerror or error}") from error
    if resume and (folder / "config.json").exists():
        theirs, their_seed = read_config(folder)
        changed = [name for name, value in vars(config).items() if getattr(theirs, name) != value]
        if their_seed != seed:
            raise StorageError(f"{folder} belongs to seed {their_seed}, not {seed}")
        if set(changed) - {"trajectories"}:
            differences = ", ".join(f"{n} = {getattr(theirs, n)!r} there, {getattr(config, n)!r} now" for n in changed)
            raise StorageError(f"{folder} belongs to other settings ({differences}): give those, or another --out")
        if config.trajectories < theirs.trajectories:
            raise StorageError(
                f"{folder} runs to {theirs.trajectories} trajectories; a resumed run can be made longer, not shorter"
            )
        check_progress(folder, config, seed)
        return
    if exists and (not folder.is_dir() or any(not p.name.endswith(UNFINISHED) for p in folder.iterdir())):
        hint = "give another --out"
        if (folder / "config.json").exists():
            hint = "give --resume to go on with it, or another --out"
        elif any(folder.glob("seed-*/config.json")):
            hint = "it holds the runs of several seeds; give those seeds and --resume, or another --out"
        raise StorageError(f"{folder} exists already: {hint}")


def make_folder(folder: Path, config: Config, seed: int) -> None:
    """A folder with the settings in it; those of a run to be resumed stay until its checkpoint has been read."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the run folder {folder}: {error.strerror or error}") from error
    if not (folder / "config.json").exists():
        write_config(folder, config, seed)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Refuse a folder that another process trains in; the system forgets the lock when a process ends, however."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageError(f"{folder} is being trained by another process: wait for it, or stop it") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(handle)


def start_of(problem: Problem, seed: int, folder: Path) -> tuple[State, Records]:
    """What a run goes on from: its checkpoint, or the beginning."""
    check_progress(folder, problem.config, seed)  # again: before the folder was locked, another process may have run
    if (folder / FILE).exists():
        return load_checkpoint(folder, problem, seed)
    return first_state(problem, seed), Records(problem.config)


def _train_one(
    problem: Problem,
    advance: Advance,
    seed: int,
    folder: Path,
    start: tuple[State, Records],
    reporter: Reporter,
    stop: threading.Event,
    far: bool,
) -> Run:
    config = problem.config
    state, records = start
    remove_unfinished(folder)
    write_config(folder, config, seed)  # a resumed run may have been made longer
    began = saved = time.monotonic()
    before = records.steps
    rounds, limit = 1, jnp.int32(config.trajectories)
    with Events(folder, first=len(records) + 1) as events:
        while not _finished(config, state) and not stop.is_set():
            asked = time.monotonic()
            try:
                done, state, log = jax.block_until_ready(advance(state, jnp.int32(rounds), limit))
            except BaseException:  # of the task, or of another seed's: what has been done so far is kept
                save_checkpoint(folder, config, seed, state, records)
                records.save(folder / RECORDS)
                raise
            spent = time.monotonic() - asked
            if not int(done):  # it was asked to stop
                continue
            records.extend(log, int(done), spent)
            events.write(records, int(done))
            reporter.update(seed, _snapshot(records, (records.steps - before) / (time.monotonic() - began)))
            # Calls of about SECONDS_PER_CALL: few enough to cost nothing, often enough to show progress and to stop.
            rounds = max(1, min(CHUNK, 2 * rounds, int(rounds * SECONDS_PER_CALL / max(spent, 1e-9))))
            # A round of agents elsewhere is dear: none of them is done twice.
            if far or time.monotonic() - saved > SECONDS_PER_CHECKPOINT:
                save_checkpoint(folder, config, seed, state, records)
                records.save(folder / RECORDS)
                saved = time.monotonic()
        save_checkpoint(folder, config, seed, state, records)
        records.last_test = last_test(problem, None if far else advance, state)
        events.write_last(records)
    seconds = time.monotonic() - began
    records.save(folder / RECORDS)
    save_policy(folder / "policy.safetensors", config, problem.policy, state.theta)
    save_policy(folder / "policy-uniform.safetensors", config, problem.policy, state.output)
    return Run(
        config=config,
        seed=seed,
        policy=Trained(problem.policy, problem.policy.unravel(state.theta), problem.to_task),
        output=Trained(problem.policy, problem.policy.unravel(state.output), problem.to_task),
        records=records,
        folder=folder,
        seconds=seconds,
        finished=_finished(config, state),
    )


def _finished(config: Config, state: State) -> bool:
    return int(state.counted) >= config.trajectories


def _snapshot(records: Records, speed: float) -> Snapshot:
    honest, byzantine = records.accepted()
    return Snapshot(
        round=len(records),
        trajectories=int(records.trajectories[-1]),
        test_return=float(records.columns["test_returns"][-1].mean()),
        honest=float(honest[-RECENT:].mean()),
        byzantine=float(byzantine[-RECENT:].mean()),
        steps_per_second=speed,
    )
