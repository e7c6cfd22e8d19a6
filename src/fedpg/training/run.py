"""A run: rounds, evaluation, records, checkpoints."""

import contextlib
import functools
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
from jax import Array

from fedpg.columns import blas, columns_are_alone
from fedpg.errors import ConfigError, Stopped
from fedpg.extras import has
from fedpg.federation import Local
from fedpg.machine import cores
from fedpg.problem import Federation, Problem, State, make_broadcast
from fedpg.programs import side_by_side
from fedpg.server import Server
from fedpg.storage import StorageError, remove_unfinished, write_config
from fedpg.training.checkpoint import FILE, RECORDS, check_progress, load_checkpoint, save_checkpoint, save_policy
from fedpg.training.each import check_tasks, keep_tasks, measure
from fedpg.training.events import Events
from fedpg.training.folders import alone_in, check_folder, made_before, make_folder
from fedpg.training.harm import HARM
from fedpg.training.progress import Reporter, Silent, Snapshot, stuck
from fedpg.training.records import Records
from fedpg.training.result import Run, trained
from fedpg.training.room import check_room, needed
from fedpg.training.rounds import advance, evaluated, first_state, warm_up
from fedpg.training.start import begun, keep_start, kept_start

SECONDS_PER_CHECKPOINT = 5.0
RECENT = 20


def train_seeds(
    problem: Problem,
    seeds: Sequence[int],
    out: str | Path | None = None,
    resume: bool = False,
    reporter: Reporter | None = None,
    stop: threading.Event | None = None,
    sites: Federation | None = None,
    start: Array | None = None,
) -> list[Run]:
    """Train one run per seed, several at a time if there are the cores; each is what it would be alone.

    One seed lives in the folder `out` itself, several in `seed-0`, `seed-1`, ... of it; without one, nothing is
    written. With `sites`, they are the agents. New runs begin from the policy `start` [D], or from a random one.
    """
    reporter, stop = reporter or Silent(), stop or threading.Event()
    good = all(isinstance(seed, int | np.integer) and 0 <= seed < 2**32 for seed in seeds)
    if not good or not len(seeds) or len(set(seeds)) != len(seeds):
        raise ConfigError(f"seeds must be different whole numbers from 0 to 2^32 - 1, not {list(seeds)}")
    seeds = [int(seed) for seed in seeds]
    if resume and out is None:
        raise ConfigError("resume goes on with the run in a folder: give it with out")
    base = None if out is None else Path(out)
    folders = {s: base if base is None or len(seeds) == 1 else base / f"seed-{s}" for s in seeds}
    fresh = resume and base is not None and not base.exists()
    if base is not None and len(seeds) > 1 and (base / "config.json").exists():
        raise StorageError(f"{base} holds the run of one seed, not of {len(seeds)}: give its seed, or another --out")
    for seed, folder in folders.items():
        if folder is not None:
            check_folder(folder, problem.config, seed, resume)
            check_tasks(folder, problem)
    if sites is None:
        check_room(needed(problem))
    workers = min(len(seeds), at_a_time(problem))
    if workers > 1:
        problem = problem._replace(task=problem.task.beside_others())
    cancel = threading.Event()  # ends the rollouts that are under way
    with reporter, contextlib.ExitStack() as held:
        for folder in folders.values():
            if folder is not None:
                held.enter_context(made_before(folder))
        if fresh:
            reporter.note(f"there is no run at {base} to resume: this is a new one")
        by = f", simulated by {problem.task.simulator}" if problem.task.simulator else ""
        where = "" if base is None else f" in {base}"
        reporter.note(f"{problem.config.name}{where}{by}: compiling, a few seconds")
        _say_if_columns_mix(problem, reporter)
        far = sites is not None
        federation = sites if sites is not None else Local(problem, max(1, cores() // workers), cancel)
        state = first_state(problem, seeds[0])
        measuring = functools.partial(warm_up, problem, state)
        side_by_side([*Server(problem).warm_up(state), *federation.warm_up(state.agents), measuring])
        reporter.note("compiled")
        if problem.config.byzantine and not far:
            reporter.note(HARM)
        for seed, folder in folders.items():
            if folder is not None:
                make_folder(folder, problem.config, seed, lambda at: keep_start(at, problem, start))
                held.enter_context(alone_in(folder))
        runs = [
            _Training(problem, seed, folders[seed], federation, reporter, stop, cancel, far, workers == 1, start)
            for seed in seeds
        ]
        if workers > 1:
            held.enter_context(_quick_switches())
        with ThreadPoolExecutor(max_workers=workers) as pool:
            jobs = [pool.submit(run.run) for run in runs]
            try:
                for job in wait(jobs, return_when=FIRST_EXCEPTION).done:
                    job.result()  # whichever failed, the others end now
                return [job.result() for job in jobs]
            except BaseException:
                stop.set()
                cancel.set()
                for job in jobs:
                    job.cancel()
                raise


@contextlib.contextmanager
def _quick_switches() -> Iterator[None]:
    """Threads of Python take turns more often: each holds the interpreter for a moment between two compiled calls, and
    would wait for its turn longer than that. Several runs side by side take a fifth less time so."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _say_if_columns_mix(problem: Problem, reporter: Reporter) -> None:
    """One line, where an episode's last digits depend on who else is simulated."""
    if not problem.task.simulator or columns_are_alone(problem.policy.shapes.values()):
        return
    text = (
        f"NumPy's products ({blas()}) round by who else is simulated here: with another number of cores or "
        "environments, the last digits of this run would differ"
    )
    _warn(reporter, text)


def _warn(reporter: Reporter, text: str) -> None:
    """Where progress is shown; else as Python's warnings are."""
    if type(reporter) is Silent:
        warnings.warn(text, stacklevel=3)
    else:
        reporter.note(text)


def at_a_time(problem: Problem) -> int:
    """Runs side by side that make use of this machine."""
    config = problem.config
    return problem.task.side_by_side(config.agents * config.batch[1] + config.test_episodes + 10 * config.minibatch)


class _Training:
    """One run, from its beginning or its checkpoint to its end."""

    def __init__(
        self,
        problem: Problem,
        seed: int,
        folder: Path | None,
        federation: Federation,
        reporter: Reporter,
        stop: threading.Event,
        cancel: threading.Event,
        far: bool,
        alone: bool,
        start: Array | None,
    ) -> None:
        self.problem, self.seed, self.folder, self.federation = problem, seed, folder, federation
        self.reporter, self.stop, self.cancel = reporter, stop, cancel
        self.far, self.alone = far, alone
        self.server = Server(problem, cancel)
        self.state, self.records = self._start(start)

    def _start(self, theta: Array | None) -> tuple[State, Records]:
        """What the run goes on from: its checkpoint, or the beginning."""
        if self.folder is not None:
            # Again: before the folder was locked, another process may have run.
            check_progress(self.folder, self.problem.config, self.seed)
            if (self.folder / FILE).exists():
                return load_checkpoint(self.folder, self.problem, self.seed, self.reporter.note)
            theta = kept_start(self.folder, self.problem)
        state = first_state(self.problem, self.seed)
        return state if theta is None else begun(self.problem, state, theta), Records(self.problem.config)

    def run(self) -> Run:
        """Rounds until all trajectories are sampled, or somebody asks to stop."""
        config = self.problem.config
        if self.folder is not None:
            remove_unfinished(self.folder)
            write_config(self.folder, config, self.seed)  # a resumed run may have been made longer
            keep_tasks(self.folder, self.problem)
        began = saved = time.monotonic()
        before, warned = self.records.steps, False
        with contextlib.ExitStack() as held:
            first = len(self.records) + 1
            self.events = None
            if self.folder is not None and has("tensorboardX"):
                self.events = held.enter_context(Events(self.folder, first))
            beside = held.enter_context(ThreadPoolExecutor(1))
            testing = self._test(beside)
            try:
                while not self.finished and not self.stop.is_set():
                    asked = time.monotonic()
                    try:
                        after, log = advance(self.problem, self.state, self.federation, self.server, not self.far)
                    except Stopped:
                        break
                    self._take(testing)
                    testing = None
                    # Only now: a round whose policy could not be tested before is not in the records either.
                    self.state = after
                    self.records.add_round(log, time.monotonic() - asked)
                    if not warned and (text := stuck(config, self.records.logs)):
                        _warn(self.reporter, f"seed {self.seed}: {text}")
                        warned = True
                    testing = self._test(beside)
                    if self.finished:  # nothing is left to do beside it, and the last report is of the last policy
                        self._take(testing)
                        testing = None
                    if self.events is not None:
                        self.events.write_round(self.records)
                    now = time.monotonic()
                    self.reporter.update(self.seed, self._snapshot((self.records.steps - before) / (now - began)))
                    # A round of agents elsewhere is dear: none of them is done twice.
                    if self.far or now - saved > SECONDS_PER_CHECKPOINT:
                        self._take(testing)
                        testing = None
                        self._save()
                        saved = now
                self._take(testing)
                testing = None
            except StorageError:  # what cannot be written now cannot be written again
                raise
            except BaseException:  # of the task, or of another seed's: what has been done so far is kept
                with contextlib.suppress(Exception):
                    self._take(testing)
                self._save()
                raise
            self._save()
        seconds = time.monotonic() - began
        return self._result(seconds)

    @property
    def finished(self) -> bool:
        return self.state.counted >= self.problem.config.trajectories

    def _test(self, beside: ThreadPoolExecutor) -> "Future[tuple[np.ndarray, int]] | None":
        """Begin to test the policy, unless it has been: beside the next round, which does not need the result."""
        if len(self.records.tests) > len(self.records):
            return None
        if self.alone:
            return beside.submit(evaluated, self.problem, self.state, self.cancel)
        now: Future[tuple[np.ndarray, int]] = Future()  # the other cores are busy with other runs
        now.set_result(evaluated(self.problem, self.state, self.cancel))
        return now

    def _take(self, testing: "Future[tuple[np.ndarray, int]] | None") -> None:
        if testing is None:
            return
        self.records.add_test(*testing.result())
        if self.events is not None:
            self.events.write_test(self.records)

    def _save(self) -> None:
        if self.folder is not None:
            save_checkpoint(self.folder, self.problem, self.seed, self.state, self.records)
            self.records.save(self.folder / RECORDS)

    def _snapshot(self, speed: float) -> Snapshot:
        records = self.records
        honest, byzantine = records.accepted(RECENT)
        return Snapshot(
            round=len(records),
            trajectories=self.state.counted,
            test_return=float(records.tests[-1].mean()),
            honest=float(honest.mean()),
            byzantine=float(byzantine.mean()),
            steps_per_second=speed,
            harm=records.mean_harm(last=RECENT),
            unused=records.unused,
        )

    def _result(self, seconds: float) -> Run:
        problem, state = self.problem, self.state
        if self.folder is not None:
            save_policy(self.folder / "policy.safetensors", problem.config, problem.policy, state.theta)
            save_policy(self.folder / "policy-uniform.safetensors", problem.config, problem.policy, state.output)
        last, output = (trained(problem, problem.policy.unravel(theta)) for theta in (state.theta, state.output))
        each = None
        if problem.task.varied and self.finished:
            each = measure(problem, state.theta, make_broadcast(state.key, state.round + 1, 0).keys)
            if self.folder is not None:
                each.save(self.folder)
        return Run(problem.config, self.seed, last, output, self.records, self.folder, seconds, self.finished, each)
