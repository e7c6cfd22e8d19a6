"""Momentum at the agents: what they send is an average over rounds, here and at a site, through a checkpoint too."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probes
from fedpg import Agent, ConfigError, Problem, make_config, make_problem, train_seeds
from fedpg.agents import GRADIENT, answer, first_memory, with_momentum
from fedpg.attacks import make_attack
from fedpg.federation import Local
from fedpg.federation.messages import decode_reply, encode_broadcast, settings_digest
from fedpg.federation.site import Site
from fedpg.machine import cores
from fedpg.server import Server
from fedpg.training.checkpoint import load_checkpoint
from fedpg.training.rounds import advance, first_state

ROUNDS = (1, 2, 3)


def answers(problem: Problem) -> list[np.ndarray]:
    """What all agents send in three rounds with the same policy.  [K, D] each"""
    memory, agents, found = first_memory(problem, problem.config.agents), np.arange(problem.config.agents), []
    for t in ROUNDS:
        got, memory = answer(problem, probes.broadcast(problem, t), memory, agents)
        found.append(np.asarray(got.sent["gradient"]))
    return found


def averages(gradients: list[np.ndarray], beta: float) -> list[np.ndarray]:
    found = [np.zeros_like(gradients[0])]
    for g in gradients:
        found.append(beta * found[-1] + (1 - beta) * g)
    return found[1:]


@pytest.mark.slow
def test_agents_send_the_average_of_their_gradients_over_rounds():
    plain, averaging = (answers(probes.tiny_problem(agents=3, momentum=beta)) for beta in (0.0, 0.75))
    for mine, expected in zip(averaging, averages(plain, 0.75), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-6)
    assert np.abs(averaging[2] - plain[2]).max() > 1e-3


def test_byzantine_agents_lie_about_the_average_and_remember_the_truth():
    settings: dict[str, Any] = {"agents": 3, "byzantine": 1, "alpha": 0.4}
    plain = answers(probes.tiny_problem(agents=3))
    lying = answers(probes.tiny_problem(make_attack("sign-flipping"), momentum=0.5, **settings))
    for mine, expected in zip(lying, averages(plain, 0.5), strict=True):
        np.testing.assert_allclose(mine, expected * np.array([[1], [1], [-2.5]]), rtol=1e-4, atol=1e-6)


def test_momentum_composes_with_what_the_agent_itself_remembers():
    """An agent that sends 1, 2, 3, ... and a vector that is not averaged."""

    def count(cohort: Any, broadcast: Any, memory: Any) -> Any:
        return {"number": memory + 1, "other": memory}, memory + 1

    agent = with_momentum(Agent(count, lambda agents, size: np.zeros((agents, size), np.float32)), 0.5, ("number",))
    memory, numbers, others = agent.init(2, 1), [], []
    for _ in ROUNDS:
        message, memory = agent.answer(None, None, memory)  # type: ignore[arg-type]
        numbers.append(float(np.asarray(message["number"])[0, 0]))
        others.append(float(np.asarray(message["other"])[0, 0]))
    assert numbers == [0.5, 0.25 + 1, 0.125 + 0.5 + 1.5]
    assert others == [0.0, 1.0, 2.0]


def test_a_site_averages_as_the_agent_of_a_simulation_does():
    problem = probes.tiny_problem(agents=3, momentum=0.75)
    site, together = Site(problem, number=1), answers(problem)
    for t, expected in zip(ROUNDS, together, strict=True):
        for _ in range(2):  # a round that is asked for again counts once
            values = encode_broadcast(probes.broadcast(problem, t), 1, settings_digest(problem.config))
            reply = decode_reply(site(values), t, problem.policy.size, problem.algorithm.reply)
            np.testing.assert_allclose(reply.vectors["gradient"], expected[1], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "at"),
    [({"momentum": 0.9}, ("agents", "averages", "gradient")), ({"attack": "mimic"}, ("attack", "gradient", "z"))],
    ids=["momentum", "mimic"],
)
def test_memories_survive_a_checkpoint(settings: dict[str, Any], at: tuple[str, ...], tmp_path: Path):
    common = {"agents": 5, "byzantine": 2, "alpha": 0.4, "attack": "sign-flipping", "trajectories": 12}
    attack = str((common | settings)["attack"])
    rest = {name: value for name, value in (common | settings).items() if name != "attack"}
    problem = probes.tiny_problem(attack, **rest)
    run = train_seeds(problem, [0], tmp_path / "run")[0]
    state, federation, server = first_state(problem, 0), Local(problem, cores()), Server(problem)
    for _ in range(len(run.records)):
        state, _ = advance(problem, state, federation, server)
    kept: Any = load_checkpoint(tmp_path / "run", problem, 0)[0].agents
    mine: Any = state.agents
    for name in at:
        kept, mine = kept[name], mine[name]
    assert np.abs(np.asarray(kept)).max() > 0
    np.testing.assert_allclose(kept, mine, rtol=1e-4, atol=1e-6)


def test_equal_settings_are_the_very_same_agent():
    first, second = (make_problem(make_config(algorithm="fedpg-br", momentum=0.9)) for _ in range(2))
    assert first.algorithm is second.algorithm
    assert make_problem(make_config()).algorithm.agent is GRADIENT


@pytest.mark.parametrize("beta", [1.0, -0.1, float("inf")])
def test_a_weight_that_is_none_is_refused(beta: float):
    with pytest.raises(ConfigError, match=r"momentum must be in \[0, 1\)"):
        make_config(algorithm="fedpg-br", momentum=beta)
    with pytest.raises(ConfigError, match=r"momentum must be in \[0, 1\)"):
        with_momentum(GRADIENT, beta)
