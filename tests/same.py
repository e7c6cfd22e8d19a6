"""When two runs are the same run, and when a run has counted its trajectories."""

import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from fedpg import Run
from fedpg.aggregators import make_aggregator
from fedpg.training.checkpoint import FILE
from fedpg.training.progress import Silent, Snapshot
from fedpg.training.rounds import LOGGED

SEED = 3
POLICIES = ("policy.safetensors", "policy-uniform.safetensors")


def bits(tree: Any) -> list[bytes]:
    def plain(x: Any) -> Any:
        return jax.random.key_data(x) if jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key) else x

    return [np.asarray(plain(leaf)).tobytes() for leaf in jax.tree.leaves(tree)]


def log_bits(run: Run, rounds: int | None = None) -> dict[str, bytes]:
    return {name: run.records.column(name)[:rounds].tobytes() for name in LOGGED}


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


def assert_counts(run: Run) -> None:
    """By hand: B per agent and round; b per inner step that was looked at, and what the aggregator needs on top."""
    c, columns = run.config, {name: run.records.column(name) for name in LOGGED}
    k, b = c.agents, c.minibatch
    batch, steps = columns["batch"].astype(int), columns["inner_done"].astype(int)
    assert ((c.batch[0] <= batch) & (batch <= c.batch[1])).all()
    assert (steps <= columns["inner_drawn"]).all()

    looked_at = steps + (np.abs(columns["ratio"] - 1) > c.ratio_bound)
    rule = make_aggregator(c.aggregator, c.aggregator_options, alpha=c.alpha, sigma=c.sigma, delta=c.delta)
    needs = set(rule.needs) - ({"influences"} if k == 1 else set())
    for_rule = np.where(looked_at > 0, 8 - b, 8) if needs else 0
    server = b * looked_at * (c.algorithm != "gpomdp") + for_rule

    own = 0 if c.algorithm == "gpomdp" else b * steps
    counted = batch + own if k == 1 else np.rint((batch * k + own) / (k + 1)).astype(int)

    rows = list(run.records.rows())[1:]
    assert [row["trajectories_agent"] for row in rows] == np.cumsum(batch).tolist()
    assert [row["trajectories_server"] for row in rows] == np.cumsum(server).tolist()
    assert [row["trajectories_total"] for row in rows] == np.cumsum(k * batch + server).tolist()
    assert [row["trajectories"] for row in rows] == np.cumsum(counted).tolist()


class StopAt(Silent):
    """Stops a run after so many rounds."""

    def __init__(self, rounds: int) -> None:
        self.stop = threading.Event()
        self.rounds = rounds
        self.calls = 0

    def update(self, seed: int, snapshot: Snapshot) -> None:
        self.calls += 1
        if self.calls >= self.rounds:
            self.stop.set()
