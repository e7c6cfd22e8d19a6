"""Natural steps as an algorithm: rounds, checkpoints and settings."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fedpg import ConfigError, Problem, make_config, make_problem
from fedpg.algorithms.natural import natural
from fedpg.federation import Local
from fedpg.machine import cores
from fedpg.metric import fisher_at
from fedpg.problem import make_broadcast
from fedpg.server import Server
from fedpg.storage import StorageError, load_tensors, save_tensors
from fedpg.training import train_seeds
from fedpg.training.rounds import advance, first_state
from small_policies import OBSERVATIONS, POLICIES
from tiny import TINY

NATURAL: dict[str, Any] = {k: v for k, v in TINY.items() if k not in ("algorithm", "minibatch")}


def tiny_natural(**settings: Any) -> Problem:
    return make_problem(make_config(**(NATURAL | settings)))


@pytest.mark.slow
def test_what_checks_a_step_has_not_been_seen_by_the_aggregator():
    """The server's own trajectories are two halves: the gradient of one for the aggregator, of the other for us."""
    problem = tiny_natural()
    server, state = Server(problem), first_state(problem, 0)
    broadcast = make_broadcast(state.key, 1, problem.config.batch[1], theta=state.theta)
    own = server.contribution(broadcast)
    mine, half = server.sample(state.theta, broadcast, 0, server.own_count), server.own_count // 2
    half_from = jax.jit(lambda first: mine.take(first, half))
    for found, part in ((own.gradient, half_from(0)), (own.check, half_from(half))):
        np.testing.assert_allclose(found, server.gradient(state.theta, part), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_it_is_the_default_and_goes_on_from_a_checkpoint_to_the_same_bits(tmp_path: Path):
    problem = tiny_natural()
    usual = problem.config
    assert (usual.preset, usual.algorithm, usual.aggregator) == ("best", "natural", "compass")
    whole = train_seeds(problem, [3])[0]
    half = tiny_natural(trajectories=30)
    train_seeds(half, [3], tmp_path / "run")
    resumed = train_seeds(problem, [3], tmp_path / "run", resume=True)[0]
    for name, tensor in whole.policy.params.items():
        np.testing.assert_array_equal(resumed.policy.params[name], tensor)
    assert resumed.records.test_returns.tolist() == whole.records.test_returns.tolist()


@pytest.mark.slow
def test_the_server_samples_as_many_trajectories_as_an_agent_and_they_are_counted():
    (run,) = train_seeds(tiny_natural(trajectories=20), [0])
    rows = list(run.records.rows())[1:]
    most = run.config.batch[1]
    assert [row["trajectories_server"] for row in rows] == [most * (t + 1) for t in range(len(rows))]
    assert all(row["inner_steps"] == 1 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["CartPole-v1", "LunarLander-v3", "HalfCheetah-v5", "Hopper-v5"])
def test_every_task_has_the_same_batch(task: str):
    assert make_config(task).batch == (16, 16)


def test_rounds_know_how_much_of_the_aggregate_is_signal():
    """Of four agents that all send noise, less than all; so it is handed on from the round to the step."""
    problem = tiny_natural(byzantine=1, attack="random-noise", agents=4, aggregator="mean", trajectories=40)
    state, federation, server = first_state(problem, 0), Local(problem, cores()), Server(problem)
    for _ in range(4):
        state, _ = advance(problem, state, federation, server)
    assert float(state.algorithm.signal) < 0.9


def test_a_checkpoint_of_another_version_of_the_algorithm_is_refused_with_what_to_do(tmp_path: Path):
    (run,) = train_seeds(tiny_natural(trajectories=10), [0], tmp_path / "run")
    assert run.finished
    path = tmp_path / "run" / "checkpoint.safetensors"
    tensors, about = load_tensors(path, "checkpoint")
    older = {name: value for name, value in tensors.items() if name != ".algorithm.signal"}
    save_tensors(path, "checkpoint", older, {"settings": about["settings"], "seed": 0})
    with pytest.raises(StorageError, match=r"another version of fedpg.*--start-from"):
        train_seeds(tiny_natural(trajectories=20), [0], tmp_path / "run", resume=True)


def test_nobody_accepted_is_no_step():
    (run,) = train_seeds(tiny_natural(byzantine=0, attack="random-noise", aggregator="fedpg", sigma=1e-12), [0])
    assert run.records.unused == len(run.records)
    problem = tiny_natural()
    first = problem.policy.unravel(problem.policy.init(jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), 0)))
    assert first.keys() == run.policy.params.keys()
    for name, tensor in first.items():
        np.testing.assert_array_equal(run.policy.params[name], tensor)


@pytest.mark.parametrize(
    ("options", "words"),
    [(("kl=0",), "kl must be from"), (("keep=1",), "keep must be between"), (("step=1",), "no parameter 'step'")],
)
def test_options_that_cannot_work_are_refused(options: tuple[str, ...], words: str):
    with pytest.raises(ConfigError, match=words):
        tiny_natural(algorithm_options=options)


def test_agents_that_send_averages_are_refused():
    """An average of slopes says nothing about the end of the last step."""
    with pytest.raises(ConfigError, match="momentum must be 0"):
        tiny_natural(momentum=0.9)


def test_a_policy_without_a_divergence_is_refused_with_what_to_do():
    policy = dataclasses.replace(POLICIES["categorical"], kl=None)
    with pytest.raises(ConfigError, match="this policy has none"):
        fisher_at(policy, np.zeros(policy.size, np.float32), OBSERVATIONS)


@pytest.mark.slow
def test_its_settings_are_options_of_the_algorithm():
    assert natural(kl=0.05).needs == ("check", "states", "scores")
    (run,) = train_seeds(tiny_natural(algorithm_options=("kl=0.001", "keep=0.5"), trajectories=10), [0])
    assert run.finished
