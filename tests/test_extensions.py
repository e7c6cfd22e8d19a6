"""The examples of extensions: short, with public names alone, true to their formulas, used like what is built in."""

import ast
import importlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import fedpg
from extension_examples import EXTENSIONS, SEED, SMALL, importable, load, problem_of
from fedpg.aggregators import AGGREGATORS, Own, Sent, make_aggregator, mean
from fedpg.federation import Local
from fedpg.federation.site import Site
from fedpg.problem import Broadcast, Problem, Replies, make_broadcast
from fedpg.server import Server
from fedpg.tasks import AgentEpisodes, ServerEpisodes, make_task
from fedpg.training.rounds import advance, first_state

__all__ = ["importable"]

FILES = sorted(EXTENSIONS.glob("*.py"))


def sent(*vectors: Any, batch: int = 4) -> Sent:
    """What agents sent; None for one that cannot be used."""
    size = len(next(v for v in vectors if v is not None))
    rows = [[np.nan] * size if v is None else v for v in vectors]
    return Sent(np.array(rows, np.float32), np.array([v is not None for v in vectors]), batch)  # type: ignore[arg-type]


class Rule(NamedTuple):
    """An aggregator as one compiled program, whose answers are of NumPy."""

    aggregator: fedpg.Aggregator
    compiled: Any

    def update(self, memory: Any, sent: Sent, own: Own) -> Any:
        return jax.tree.map(np.asarray, self.compiled(memory, sent, own))


def compiled(aggregator: fedpg.Aggregator) -> Rule:
    return Rule(aggregator, jax.jit(aggregator.update))


# What they are


def test_there_is_an_example_of_every_role():
    names = {"centred_clipping", "fltrust", "nnm", "mimic", "momentum", "equinox_policy", "pole_lengths"}
    assert {path.stem for path in FILES} == names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_is_short_and_uses_public_names_alone(path: Path):
    source = path.read_text()
    assert len(source.splitlines()) <= 40
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "fedpg":
            module = importlib.import_module(str(node.module))
            public = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
            assert {alias.name for alias in node.names} <= set(public)
            assert not any(part.startswith("_") for part in str(node.module).split("."))
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_") or node.attr == "_replace"  # of a NamedTuple, where it is public
            assert isinstance(node.ctx, ast.Load), "an example changes nothing of what it imports"


def test_the_pages_on_extending_show_every_example_as_it_is():
    pages = [page.read_text() for page in (EXTENSIONS.parents[1] / "docs" / "how-to").glob("*.md")]
    blocks = {path.stem: f"```python\n{path.read_text()}```\n" for path in FILES}
    assert [name for name, block in blocks.items() if not any(block in page for page in pages)] == []


# Centred clipping


def test_centred_clipping_moves_from_its_last_answer_by_clipped_differences():
    rule = compiled(load("centred_clipping:centred_clipping")(tau=1.0))
    first, v = rule.update(rule.aggregator.init(4, 2), sent((3, 4), (0.6, 0), (-0.3, 0.4), None), Own())
    np.testing.assert_allclose(first.gradient, [0.3, 0.4], rtol=1e-6)  # (3, 4) counts as (0.6, 0.8)
    assert first.accepted.tolist() == [True, True, True, False]
    np.testing.assert_allclose(first.distances, [5, 0.6, 0.5, np.inf], rtol=1e-6)
    second, _ = rule.update(v, sent((0.3, 0.4), (0.3, 1.4), (0.3, 5.4), (1e38, 0.4)), Own())
    np.testing.assert_allclose(second.gradient, [0.3, 0.4 + 2 / 4], rtol=1e-6)  # what overflows moves nothing


def test_nobody_moves_centred_clipping_by_more_than_tau_over_k():
    rule = compiled(load("centred_clipping:centred_clipping")(tau=0.5))
    honest = np.random.default_rng(0).normal(size=(9, 5))
    v = rule.aggregator.init(10, 5)
    quiet, _ = rule.update(v, sent(*honest, np.zeros(5)), Own())
    for size in (1, 100, 1e18):
        loud, _ = rule.update(v, sent(*honest, np.full(5, size)), Own())
        assert np.linalg.norm(loud.gradient - quiet.gradient) <= 0.5 / 10 + 1e-6


# FLTrust


def test_fltrust_weighs_by_the_cosine_with_the_server_and_gives_all_its_length():
    rule = compiled(load("fltrust:fltrust")())
    assert rule.aggregator.needs == ("gradient",)
    own = Own(gradient=np.array([2.0, 0.0], np.float32))
    verdict, _ = rule.update((), sent((0, 5), (-1, 0), (3, 4), (10, 0), None, (0, 0)), own)
    # 0.6 (1.2, 1.6) + 1 (2, 0), over 1.6
    np.testing.assert_allclose(verdict.gradient, [1.7, 0.6], rtol=1e-6)
    assert verdict.accepted.tolist() == [False, False, True, True, False, False]
    nobody, _ = rule.update((), sent((-1, 0), (-1, 1), *[None] * 4), own)
    assert nobody.gradient.tolist() == [0, 0]
    huge, _ = rule.update((), sent((1, 0), (1e38, 1e38), *[None] * 4), own)
    assert np.isfinite(huge.gradient).all()


@pytest.mark.slow
@pytest.mark.parametrize("agents", [4, 1])
def test_fltrust_is_handed_the_gradient_of_the_servers_own_trajectories(agents: int):
    problem = problem_of(aggregator="fltrust:fltrust", agents=agents, byzantine=0, attack="random-noise")
    state = first_state(problem, SEED)
    server, seen = Server(problem), []

    def update(memory: Any, sent: Sent, own: Own) -> Any:
        jax.debug.callback(lambda g: seen.append(g), own.gradient)
        return problem.aggregator.update(memory, sent, own)

    server.problem = problem._replace(aggregator=problem.aggregator._replace(update=update))
    broadcast = make_broadcast(state.key, 1, 4, theta=state.theta)
    replies, _ = Local(problem).ask(broadcast, state.agents)
    verdict, _ = server.aggregate((), replies, broadcast)
    jax.effects_barrier()
    assert verdict.gradient.shape == state.theta.shape
    mine = server.sample(state.theta, broadcast, 0, 8)
    np.testing.assert_allclose(seen[0], server.gradient(state.theta, mine), rtol=1e-4, atol=1e-5)


# Nearest-neighbour mixing


def mixed(vectors: np.ndarray, valid: np.ndarray, count: int) -> np.ndarray:
    """The mean of the `count` nearest, by hand."""
    out = np.zeros_like(vectors)
    usable = np.flatnonzero(valid)
    for i in usable:
        near = sorted(usable, key=lambda j: np.linalg.norm(vectors[i] - vectors[j]))[:count]
        out[i] = vectors[near].mean(axis=0)
    return out


@pytest.mark.slow
def test_mixing_replaces_a_vector_by_the_mean_of_its_nearest():
    rule = compiled(load("nnm:nnm")(mean(), alpha=0.25))
    verdict, _ = rule.update((), sent([0], [1], [3], [10]), Own())
    np.testing.assert_allclose(verdict.gradient, [(3 * (0 + 1 + 3) / 3 + (1 + 3 + 10) / 3) / 4], rtol=1e-6)
    verdict, _ = rule.update((), sent([0], [1], [3], None), Own())
    np.testing.assert_allclose(verdict.gradient, [4 / 3], rtol=1e-6)


USUAL = ("mean", "krum", "trimmed-mean", "fltrust", "compass")


@pytest.mark.parametrize(
    "name", [name if name in USUAL else pytest.param(name, marks=pytest.mark.more) for name in AGGREGATORS]
)
def test_mixing_composes_with_every_aggregator(name: str):
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(10, 6)).astype(np.float32) + 1
    vectors[7:] += 20
    valid = np.arange(10) != 4
    behind = make_aggregator(name, sigma=3.0)
    own = Own(gradient=np.ones(6, np.float32) if "gradient" in behind.needs else None)
    by_hand = Sent(mixed(vectors, valid, 7), valid, 4)
    expected, _ = jax.jit(behind.update)(behind.init(10, 6), by_hand, own)
    rule = load("nnm:nnm")(behind, alpha=0.3)
    verdict, _ = jax.jit(rule.update)(rule.init(10, 6), Sent(vectors, valid, 4), own)
    # Mixed vectors hardly differ, so that compass takes rounding for their spread.
    rtol = 1e-2 if name == "compass" else 1e-4
    np.testing.assert_allclose(verdict.gradient, expected.gradient, rtol=rtol, atol=1e-5)
    # The mixed vectors of neighbours are equal but for rounding, which then decides whose weight caf makes 0.
    assert name in ("caf", "compass") or verdict.accepted.tolist() == expected.accepted.tolist()
    assert rule.needs == behind.needs


# Mimic


def scene(*gradients: Any, liars: int = 1) -> fedpg.Scene:
    g = np.array(gradients, np.float32)
    keys = jax.random.split(jax.random.key(0), len(g))
    return fedpg.Scene(keys, g, np.arange(len(g)) >= len(g) - liars, ())  # type: ignore[arg-type]


def test_mimic_copies_whom_its_direction_points_at_and_stays_with_him():
    attack = load("mimic:mimic")(warmup=1)
    memory, send = attack.init(4, 2) | {"z": np.array([1.0, 1.0], np.float32)}, jax.jit(attack.send)
    lies, memory = send(memory, scene((3, 0), (-3, 0.1), (0, -0.1), (9, 9)))
    step = np.array([3 * 3 + 2.9 * 3, -2.9 * 0.1 + 0.1 * 0.1])
    np.testing.assert_allclose(memory["z"], step / np.linalg.norm(step), rtol=1e-5)
    np.testing.assert_array_equal(lies, np.array([(3, 0), (-3, 0.1), (0, -0.1), (3, 0)], np.float32))
    lies, _ = send(memory, scene((-3, 0), (3, 0.1), (0, -0.1), (9, 9)))  # the second is the better one now
    assert np.asarray(lies)[3].tolist() == [-3, 0]


def test_the_direction_of_mimic_is_the_top_eigenvector_of_how_honest_agents_scatter():
    gradients = np.random.default_rng(2).normal(size=(8, 5)) * [3, 1, 1, 1, 0.5]
    attack = load("mimic:mimic")(warmup=100)
    memory, send, seen = attack.init(8, 5), jax.jit(attack.send), scene(*gradients, liars=2)
    for _ in range(40):
        lies, memory = send(memory, seen)
    apart = gradients[:6] - gradients[:6].mean(axis=0)
    top = np.linalg.eigh(apart.T @ apart)[1][:, -1]
    assert abs(np.dot(memory["z"], top)) > 0.9999
    best = np.argmax(gradients[:6] @ np.asarray(memory["z"]))
    np.testing.assert_allclose(np.asarray(lies)[6:], gradients[[best, best]], rtol=1e-6)


def test_no_site_can_mimic():
    with pytest.raises(fedpg.ConfigError, match="sites do not see each other's"):
        Site(problem_of(attack="mimic:mimic"))


# Momentum


class Heard(Local):
    """The agents of this process; what they said is kept."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.replies: list[Replies] = []

    def ask(self, broadcast: Broadcast, memory: Any) -> tuple[Replies, Any]:
        replies, memory = super().ask(broadcast, memory)
        self.replies.append(replies)
        return replies, memory


@pytest.mark.slow
def test_agents_send_their_momentum_and_the_server_steps_on_its_aggregate():
    settings = {"aggregator": "mean", "optimizer": "sgd", "learning_rate": 0.5, "byzantine": 0}
    problem = problem_of(algorithm="momentum:MOMENTUM", attack="random-noise", **settings)
    federation, server = Heard(problem), Server(problem)
    states = [first_state(problem, SEED)]
    for _ in range(3):
        states.append(advance(problem, states[-1], federation, server)[0])
    expected = np.zeros((4, problem.policy.size))
    for before, after, replies in zip(states[:-1], states[1:], federation.replies, strict=True):
        expected = 0.9 * expected + 0.1 * np.asarray(replies.vectors["gradient"])
        np.testing.assert_allclose(replies.vectors["momentum"], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            np.asarray(after.theta) - before.theta, 0.5 * expected.mean(axis=0), rtol=1e-3, atol=1e-5
        )
    assert np.abs(expected).max() > 0.01


# Pole lengths


@pytest.mark.slow
def test_every_agent_has_the_pole_of_its_own_length_and_the_server_the_usual_one():
    module = importlib.import_module("pole_lengths")
    usual = make_task("CartPole-v1")
    problem = problem_of(agents=10, byzantine=0, attack="random-noise")
    keys = make_broadcast(jax.random.key(SEED), 1, 2, theta=np.zeros(problem.policy.size)).keys
    theta = first_state(problem, SEED).theta
    agents = np.arange(10)

    def observed(task: fedpg.Task) -> np.ndarray:
        inputs = (keys, 2, agents, np.zeros(10, bool))
        rolled = task.rollout(problem.policy, AgentEpisodes(2, 40, 40), theta, inputs)
        return np.asarray(rolled.observations).reshape(4, -1, 10, 2)[:, :5]  # [F, T, K, B], before any can have ended

    theirs = observed(module.POLES)
    for k in (0, 4, 9):
        alike = usual.vary({"half_length": [module.LENGTHS[k]] * 10})
        np.testing.assert_array_equal(theirs[:, :, k], observed(alike)[:, :, k])
    assert not np.allclose(theirs, observed(usual), atol=1e-3)
    plan, inputs = ServerEpisodes(2, 40), (keys, 0)
    own, nominal = (t.rollout(problem.policy, plan, theta, inputs) for t in (module.POLES, usual))
    own, nominal = (np.asarray(rolled.observations)[:, :5] for rolled in (own, nominal))
    np.testing.assert_allclose(own, nominal, rtol=1e-5, atol=1e-6)
    with pytest.raises(fedpg.ConfigError, match="10 agents, not for 4"):
        fedpg.train(module.POLES, **SMALL)
