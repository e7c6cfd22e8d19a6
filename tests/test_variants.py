"""Every attack, fault, algorithm, aggregator and preset, in a run."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from jax import Array

import fedpg
from fedpg import AGGREGATORS, ATTACKS, Problem, Scene, train_seeds
from fedpg.federation import Local
from fedpg.machine import cores
from fedpg.server import Server
from fedpg.training.checkpoint import FILE
from fedpg.training.rounds import LOGGED, advance, first_state
from same import SEED, assert_counts, bits

pytestmark = pytest.mark.slow


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
    assert all(row["accepted_byzantine"] == 0 and row["recall"] is None for row in rows)  # the aggregator never saw it
    assert any(row["accepted_honest"] == 3 for row in rows)
    first = problem.policy.unravel(first_state(problem, SEED).theta)
    for name, tensor in run.policy.params.items():
        assert np.isfinite(tensor).all()
        assert not np.array_equal(tensor, first[name])
    state = safetensors.numpy.load_file(run.folder / FILE)
    assert all(np.isfinite(v).all() for k, v in state.items() if not k.startswith("log/"))


def sevens(scene: Scene) -> Array:
    return jnp.full_like(scene.gradients, 7.0)


def test_an_attack_of_the_users_own_begins_when_told_and_the_rounds_before_are_honest(tiny: Callable[..., Problem]):
    honest = tiny(byzantine=0, attack="random-noise", batch=(4, 4))
    settings = {k: v for k, v in vars(honest.config).items() if k not in ("attack", "byzantine", "attack_start")}
    run = fedpg.train(**settings, byzantine=1, attack=sevens, attack_start=5, seed=SEED)
    assert run.config.attack == "custom:sevens"
    sent = run.records.column("norms")[:, 3]
    size = len(first_state(honest, SEED).theta)
    assert np.isclose(sent, 7 * size**0.5).tolist() == [False] * 4 + [True] * (len(sent) - 4)

    peaceful = train_seeds(honest, [SEED])[0]
    # Who counts as honest, and with that their mean return, is another question than what they do.
    for name in set(LOGGED) - {"train_return"}:
        early, theirs = (each.records.column(name)[:4] for each in (run, peaceful))
        np.testing.assert_allclose(early, theirs, rtol=1e-4, atol=1e-5, err_msg=name)
    assert bits(run.policy.params) != bits(peaceful.policy.params)


def test_an_attack_that_returns_another_shape_is_an_error_that_says_so(tiny: Callable[..., Problem]):
    settings = {k: v for k, v in vars(tiny().config).items() if k != "attack"}
    with pytest.raises(ValueError, match=r"attack.*shape"):
        fedpg.train(**settings, attack=lambda scene: scene.gradients[0])


def usual(names: Iterable[str], few: tuple[str, ...]) -> list[Any]:
    """All names, of which a few are tested with everything else: what a member does has tests of its own."""
    return [name if name in few else pytest.param(name, marks=pytest.mark.more) for name in names]


@pytest.mark.parametrize(
    "name",
    usual([name for name in ATTACKS if name not in FAULTS], ("sign-flipping", "random-action", "opt-alie", "mimic")),
)
def test_every_attack_runs(tiny: Callable[..., Problem], name: str):
    # One width, so that the agents' work is compiled once.
    problem = tiny(attack=name, batch=(4, 4))
    state, log = advance(problem, first_state(problem, SEED), Local(problem, cores()), Server(problem))
    assert state.round == 1
    assert np.isfinite(state.theta).all()
    assert (log["status"] == 0).all()
    assert (log["norms"][:3] > 0).all()
    assert log["norms"][3] == 0 if name == "zero-gradient" else log["norms"][3] > 0


COUNTED: dict[str, dict[str, Any]] = {
    "released": {"preset": "released", "alpha": 0.3},
    "one agent": {"agents": 1, "byzantine": 0},
    "svrpg": {"algorithm": "svrpg"},
    "gpomdp": {"algorithm": "gpomdp"},
} | {name: {"aggregator": name} for name in AGGREGATORS}
OF_FEDPG = {"R1", "R2", "nobody"}
RULES_OF = {"fedpg": OF_FEDPG, "r2": OF_FEDPG - {"R1"}, "majority": OF_FEDPG, "mean": {"mean"}}


@pytest.mark.parametrize(
    "name", usual(COUNTED, ("released", "one agent", "svrpg", "gpomdp", "compass", "fedpg", "mean", "trimmed-mean"))
)
def test_every_algorithm_aggregator_and_preset_runs_and_counts_its_trajectories(
    tiny: Callable[..., Problem], name: str
):
    problem = tiny(**({"batch": (4, 4), "trajectories": 40} | COUNTED[name]))
    run = train_seeds(problem, [SEED])[0]
    assert_counts(run)
    rules = {row["rule"] for row in run.records.rows() if row["round"]}
    assert rules <= RULES_OF.get(run.config.aggregator, {"nobody", "other"})
    if run.config.inner_law == "fixed":
        assert {row["inner_steps"] for row in run.records.rows() if row["round"]} == {run.config.inner_steps}
