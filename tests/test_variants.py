"""Every attack, fault, algorithm, filter and preset, in a run."""

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
from fedpg import train_seeds
from fedpg.agents import Problem
from fedpg.algorithms import ALGORITHMS, Log, State, first_state
from fedpg.attacks import ATTACKS
from fedpg.federation import local_federation
from fedpg.training.checkpoint import FILE
from same import SEED, assert_counts, bits

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled")]


FAULTS = {"nan": "not finite", "infinity": "not finite", "wrong-length": "wrong length", "silence": "no answer"}


@pytest.mark.parametrize(("fault", "status"), FAULTS.items())
def test_a_faulty_agent_is_named_and_ignored_and_the_run_goes_on(
    tiny: Callable[..., Problem], tmp_path: Path, fault: str, status: str
):
    problem = tiny(attack=fault, batch=(4, 4), trajectories=40)
    run = train_seeds(problem, [SEED], tmp_path / "run")[0]
    rows = list(run.records.rows())[1:]
    assert len(rows) > 3
    assert all(row["status"] == ["answered"] * 3 + [status] for row in rows)
    outcome = "absent" if status == "no answer" else "unusable"
    assert all(row["outcome"][3] == outcome and set(row["outcome"][:3]) <= {"accepted", "turned away"} for row in rows)
    assert all(row["accepted_byzantine"] == 0 and row["recall"] is None for row in rows)  # the filter never saw it
    assert any(row["accepted_honest"] == 3 for row in rows)
    first = problem.policy.unravel(first_state(problem, SEED).theta)
    for name, tensor in run.policy.params.items():
        assert np.isfinite(tensor).all()
        assert not np.array_equal(tensor, first[name])
    state = safetensors.numpy.load_file(run.folder / FILE)
    assert all(np.isfinite(v).all() for k, v in state.items() if not k.startswith("log/"))


def sevens(key: Array, gradients: Array, byzantine: Array, tensors: tuple[slice, ...]) -> Array:
    return jnp.full_like(gradients, 7.0)


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
    # Who counts as honest, and with that their mean return, is another question than what they do.
    for name in set(run.records.columns) - {"train_return", "seconds"}:
        early, theirs = (each.records.columns[name][:4] for each in (run, peaceful))
        np.testing.assert_allclose(early, theirs, rtol=1e-4, atol=1e-5, err_msg=name)
    assert bits(run.policy.params) != bits(peaceful.policy.params)


def test_an_attack_that_returns_another_shape_is_an_error_that_says_so(tiny: Callable[..., Problem], tmp_path: Path):
    settings = {k: v for k, v in vars(tiny().config).items() if k != "attack"}
    with pytest.raises(ValueError, match=r"attack.*shape"):
        fedpg.train(**settings, attack=lambda keys, gradients, *_: gradients[0], out=tmp_path / "run")


def one_round(problem: Problem, seed: int) -> tuple[State, Log]:
    def compute(state: State) -> tuple[State, Log]:
        return ALGORITHMS[problem.config.algorithm](problem, local_federation(problem), state)

    return jax.jit(compute)(first_state(problem, seed))


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in FAULTS])
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
