"""Proof that the code still gives the numbers of a stored run: its first rounds again, compared."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from fedpg.assembly import make_problem
from fedpg.config import Config
from fedpg.experiments.compare import Likeness, compare
from fedpg.experiments.fingerprint import fingerprint
from fedpg.experiments.store import Stored, from_rows
from fedpg.federation import Local
from fedpg.machine import cores
from fedpg.problem import Problem
from fedpg.server import Server
from fedpg.training.records import Records
from fedpg.training.rounds import advance, evaluated, first_state

ROUNDS, SLOW_ROUNDS = 32, 3
"""Rounds that are made again where they are compiled, and where they are simulated outside JAX."""


def verify(runs: Sequence[Stored], each: Callable[[Stored, Likeness], None]) -> None:
    """Make the first rounds of each run again; `each` is told of every run how far they agree.

    A run that they are the same for, to the bit or to rounding, is handed over under this code's fingerprint, with a
    note of how it came to it.
    """
    groups: dict[Config, list[Stored]] = {}
    for run in runs:
        groups.setdefault(run.key[0], []).append(run)
    workers = min(cores(), max(1, len(groups)))

    def one(group: list[Stored]) -> None:
        problem = make_problem(group[0].config)
        if workers > 1:
            problem = problem._replace(task=problem.task.beside_others())
        for run in group:
            likeness = compare(run, again(problem, run))
            # Who made it at first, not who verified it the last time.
            made_by = run.about.get("verified", {}).get("made_by") or run.code or "unknown"
            note = {"verified": {"verdict": str(likeness), "rounds": likeness.compared, "made_by": made_by}}
            code = fingerprint(run.config)
            each(replace(run, code=code, about=dict(run.about) | note) if likeness.same else run, likeness)

    with ThreadPoolExecutor(max_workers=workers) as pool:
        for job in [pool.submit(one, group) for group in groups.values()]:
            job.result()


def again(problem: Problem, run: Stored) -> Stored:
    """The first rounds of a run, made now."""
    federation, server = Local(problem), Server(problem)
    state, records = first_state(problem, run.seed), Records(problem.config)
    records.add_test(*evaluated(problem, state))
    for _ in range(min(SLOW_ROUNDS if problem.task.simulator else ROUNDS, len(run.returns) - 1)):
        state, log = advance(problem, state, federation, server)
        records.add_round(log, 0.0)
        records.add_test(*evaluated(problem, state))
    return from_rows(run.config, run.seed, records.rows(), "")
