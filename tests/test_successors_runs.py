"""The successors in runs: nothing recompiles, checkpoints, sites, small batches, and settings that cannot work."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import probes
from fedpg import ConfigError, Problem, make_config, train_seeds
from fedpg.agents import answer, first_memory, widths
from fedpg.algorithms import make_algorithm
from fedpg.config import SUCCESSORS
from fedpg.federation import Local
from fedpg.federation.messages import MessageError, decode_broadcast, encode_broadcast, settings_digest
from fedpg.federation.site import Site
from fedpg.machine import cores
from fedpg.problem import Broadcast, Outcome, make_broadcast
from fedpg.programs import side_by_side
from fedpg.server import Server, _draw_chance
from fedpg.sites.gathering import Gathering
from fedpg.training.rounds import advance, first_state
from same import SEED, same_run
from test_successors import small


def attacked(algorithm: str, **settings: Any) -> Problem:
    """With the default aggregator, and a liar; what the first of the tests below compiles, the others use."""
    given: dict[str, Any] = {"agents": 4, "byzantine": 1, "batch": (3, 3), "aggregator": "compass", "sigma": "auto"}
    given |= {"discount": 0.7}  # nothing of this has been compiled by other tests
    return probes.tiny_problem("sign-flipping", algorithm=algorithm, **given | settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", SUCCESSORS)
def test_nothing_is_compiled_after_the_first_round(name: str, compiled: list[str]):
    problem = attacked(name)
    _draw_chance.clear_cache()  # which no setting changes: another test may have compiled it
    federation, server, state = Local(problem, cores()), Server(problem), first_state(problem, 0)
    side_by_side([*server.warm_up(state), *federation.warm_up(state.agents)])
    jax.jit(lambda x: x + 1)(state.theta)
    assert compiled  # this is how compiling would show
    asked = set()
    for t in range(14):
        if t == 1:
            compiled.clear()
        state, log = advance(problem, state, federation, server)
        asked.add(min(width for width in widths(problem) if width * problem.algorithm.batches >= log["batch"]))
    assert asked == set(widths(problem))
    assert compiled == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SUCCESSORS)
def test_it_goes_on_from_a_checkpoint_to_the_same_bits(name: str, tmp_path: Path):
    problem = attacked(name, trajectories=40)
    short = problem._replace(config=dataclasses.replace(problem.config, trajectories=15))
    whole = train_seeds(problem, [SEED], tmp_path / "whole")[0]
    parts = train_seeds(short, [SEED], tmp_path / "parts")[0]
    resumed = train_seeds(problem, [SEED], tmp_path / "parts", resume=True)[0]
    assert 1 < len(parts.records) < len(resumed.records) == len(whole.records)
    assert np.isfinite(whole.records.column("gradient_norm")).all()
    same_run(resumed, whole)


class Messages:
    """A federation of sites whose messages are carried by hand."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.site = problem, Site(problem)

    def ask(self, broadcast: Broadcast, memory: Any) -> Any:
        config, algorithm = self.problem.config, self.problem.algorithm
        batches = algorithm.batches
        got = Gathering(broadcast.round, config, self.problem.policy.size, algorithm.reply, broadcast.batch, batches)
        for k in range(config.agents):
            got.take(k, self.site(encode_broadcast(broadcast, k, settings_digest(config))))
        return got.replies(), memory

    def tell(self, round_: int, outcome: Outcome) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("name", SUCCESSORS)
def test_sites_that_exchange_messages_learn_what_agents_in_one_process_do(name: str):
    problem = attacked(name)
    apart, together, server = Messages(problem), Local(problem, cores()), Server(problem)
    far = near = first_state(problem, 1)
    for _ in range(4):
        far, theirs = advance(problem, far, apart, server)  # type: ignore[arg-type]
        near, ours = advance(problem, near, together, server)
        assert theirs["status"].tolist() == [0] * 4
        np.testing.assert_allclose(theirs["norms"], ours["norms"], rtol=1e-3)
        np.testing.assert_allclose(far.theta, near.theta, rtol=1e-3, atol=1e-5)
        assert theirs["agent_steps"] == ours["agent_steps"]


@pytest.mark.parametrize("name", SUCCESSORS)
def test_a_site_answers_to_a_small_batch_only_if_the_algorithm_has_them(name: str):
    problem = small(name, batch=(3, 5))
    vectors = {vector: np.zeros(problem.policy.size, np.float32) for vector in problem.algorithm.broadcast}
    for batch, good in ((3, True), (5, True), (2, name == "byzpg"), (1, False), (6, False)):
        message = make_broadcast(jax.random.key(0, impl="threefry2x32"), 1, batch, **vectors)
        values = encode_broadcast(message, 0, settings_digest(problem.config))
        check = (values, problem.config, problem.policy.size, problem.algorithm.broadcast)
        if good:
            assert decode_broadcast(*check, problem.algorithm.small_batches)[1].batch == batch
        else:
            with pytest.raises(MessageError, match=f"a batch of {batch}"):
                decode_broadcast(*check, problem.algorithm.small_batches)


@pytest.mark.slow
def test_a_small_batch_has_a_width_of_its_own():
    problem = small("byzpg", "p=0.3")
    assert widths(problem) == (2, 3)
    assert widths(small("byzpg", batch=(3, 5))) == (2, 4, 5)
    assert widths(small("byzpg", batch=(2, 2))) == (2,)
    assert widths(small("gpomdp", batch=(4, 8))) == (6, 8)
    said = probes.broadcast(problem, batch=2)
    zero = np.zeros(problem.policy.size, np.float32)
    said = said._replace(vectors=said.vectors | {"old": said.theta, "v": zero})
    got, _ = answer(problem, said, first_memory(problem, 3), np.arange(3))
    wide, _ = answer(problem, said, first_memory(problem, 3), np.arange(3), width=3)
    np.testing.assert_allclose(got.sent["gradient"], wide.sent["gradient"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", SUCCESSORS)
@pytest.mark.parametrize("preset", [None, "best", "paper", "released"])
@pytest.mark.parametrize("task", ["CartPole-v1", "HalfCheetah-v5"])
def test_every_preset_has_settings_for_it(name: str, preset: Any, task: str):
    config = make_config(task, preset, name)
    assert (config.inner_law, config.inner_steps, config.none_accepted) == ("fixed", 1, "skip")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        *(({"algorithm": name, "momentum": 0.9}, "momentum must be 0") for name in SUCCESSORS),
        *(({"algorithm": name, "inner_steps": 3}, "inner_steps must be 1") for name in SUCCESSORS),
        ({"algorithm": "byzpg", "minibatch": 17}, "minibatch = 17 is more than the smallest batch, 16"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        make_config(**settings)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        *(("byzpg", f"p={p}") for p in (0, 1.5)),
        ("res-nharpg", "step=0"),
        ("n-pg-igt", "step=-1"),
        ("n-pg-igt", "least=0"),
        ("fedsvrpg-m", "rate=0"),
        ("fedsvrpg-m", "beta=2"),
        ("fedsvrpg-m", "longest=0"),
        ("fedsvrpg-m", "steps=0"),
        ("fedsvrpg-m", "steps=1.5"),
    ],
)
def test_parameters_that_cannot_work_are_refused(name: str, option: str):
    with pytest.raises(ConfigError, match=rf"\b{option.split('=')[0]}\b.* must be"):
        make_algorithm(name, (option,))
