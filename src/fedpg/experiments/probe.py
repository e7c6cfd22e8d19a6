"""Proof that the code still gives the numbers of a stored run: its first rounds again, compared."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax
import jax.numpy as jnp

from fedpg.agents import make_problem
from fedpg.algorithms import first_state
from fedpg.config import Config
from fedpg.environments import Pool
from fedpg.environments.simulators import cores
from fedpg.experiments.compare import Likeness, compare
from fedpg.experiments.store import Stored, from_rows
from fedpg.training.records import Records
from fedpg.training.rounds import CHUNK, FOREVER, compile_rounds

SLOW_ROUNDS = 3
"""Rounds that are made again where they are simulated outside JAX; where they are compiled, CHUNK of them."""


def verify(runs: Sequence[Stored], code: str, each: Callable[[Stored, Likeness], None]) -> None:
    """Make the first rounds of each run again; `each` is told of every run how far they agree.

    A run that they are the same for, to the bit or to rounding, is handed over under this code's fingerprint, with a
    note of how it came to it.
    """
    groups: dict[Config, list[Stored]] = {}
    for run in runs:
        groups.setdefault(run.key[0], []).append(run)

    def one(group: list[Stored]) -> None:
        problem = make_problem(group[0].config)
        advance = compile_rounds(problem)
        rounds = SLOW_ROUNDS if isinstance(problem.environment, Pool) else CHUNK
        for run in group:
            done, _, log = advance(first_state(problem, run.seed), jnp.int32(rounds), jnp.int32(FOREVER))
            records = Records(problem.config)
            records.extend(jax.block_until_ready(log), int(done), 0.0)
            likeness = compare(run, from_rows(run.config, run.seed, records.rows(), code))
            # Who made it at first, not who verified it the last time.
            made_by = run.about.get("verified", {}).get("made_by") or run.code or "unknown"
            note = {"verified": {"verdict": str(likeness), "rounds": likeness.compared, "made_by": made_by}}
            each(replace(run, code=code, about=dict(run.about) | note) if likeness.same else run, likeness)

    with ThreadPoolExecutor(max_workers=min(cores(), max(1, len(groups)))) as pool:
        for job in [pool.submit(one, group) for group in groups.values()]:
            job.result()
