"""What every attack of the registry promises: a new one is tested by being registered."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import probes
from fedpg import ATTACKS, Attack, ConfigError, Scene
from fedpg.agents import send
from fedpg.aggregators import Aggregator, Own, Sent, make_aggregator
from fedpg.attacks import make_attack
from fedpg.federation import Local
from fedpg.federation.site import Site
from fedpg.server import Server
from fedpg.training.rounds import advance, first_state

AGENTS, LIARS, SIZE = 10, 3, 20
TENSORS = (slice(0, 12), slice(12, 20))
BYZANTINE = np.arange(AGENTS) >= AGENTS - LIARS
GRADIENTS = (np.random.default_rng(0).normal(size=(AGENTS, SIZE)) + 0.5).astype(np.float32)
FAULTS = ("nan", "infinity")

MEMBERS: dict[str, tuple[str, ...]] = {name: () for name in ATTACKS} | {
    "min-max worst": ("direction=worst",),
    "min-sum worst": ("direction=worst",),
    "mda-fooling mean": ("direction=mean",),
    "alie of colluders": ("knowledge=colluders",),
    "ipm of colluders": ("knowledge=colluders",),
    "ipm of one": ("knowledge=own",),
    "min-max of colluders": ("knowledge=colluders",),
    "min-sum of colluders": ("direction=sign", "knowledge=colluders"),
    "trim of colluders": ("knowledge=colluders",),
    "avg-zero of colluders": ("knowledge=colluders",),
    "opt-alie of colluders": ("knowledge=colluders",),
    "opt-ipm of colluders": ("knowledge=colluders",),
    "normalized of colluders": ("knowledge=colluders",),
    "mda-fooling of colluders": ("knowledge=colluders",),
    "fedpg-attack by all": ("knowledge=all",),
    "variance-attack by all": ("knowledge=all",),
}
LYING = [name for name in MEMBERS if name not in ("random-action", "reward-flipping", "shuffled-rewards")]
LYING = [name for name in LYING if name not in ("wrong-length", "silence")]
COLLUDERS = [name for name in LYING if name.endswith("of colluders") or name in ("fedpg-attack", "variance-attack")]
ALONE = ("random-noise", "sign-flipping", "zero-gradient", "ipm of one", *FAULTS)
LONG = ("normalized", "mda-fooling", "opt-ipm", "min-max worst", "min-sum worst")
"""How the names of those begin that are compiled for long; of those that search, opt-alie is a quick test."""


def each(names: Iterable[str]) -> Callable[..., Any]:
    """A test of each of these attacks."""
    marked = [pytest.param(name, marks=pytest.mark.slow if name.startswith(LONG) else ()) for name in names]
    return pytest.mark.parametrize("member", marked)


def attack_of(member: str) -> Attack:
    return make_attack(member.split()[0], options=MEMBERS[member])


def judge(aggregator: Aggregator) -> Callable[[Array], Array]:
    def aggregate(vectors: Array) -> Array:
        sent = Sent(vectors, jnp.all(jnp.isfinite(vectors), axis=1), 16)
        return aggregator.update(aggregator.init(*vectors.shape), sent, Own())[0].gradient

    return aggregate


@functools.cache
def compiled(member: str) -> Callable[[Any, Any], tuple[Array, Any]]:
    attack, aggregate = attack_of(member), judge(make_aggregator("fedpg", sigma=6.0))

    def lies(gradients: Array, byzantine: Array) -> tuple[Array, Any]:
        keys = jax.random.split(jax.random.key(0), AGENTS)
        scene = Scene(keys, gradients, byzantine, TENSORS, aggregate)
        return attack.send(attack.init(AGENTS, SIZE), scene)

    return jax.jit(lies)


def sent(member: str, gradients: Any = GRADIENTS, byzantine: Any = BYZANTINE) -> np.ndarray:
    return np.asarray(compiled(member)(gradients, byzantine)[0])


@each(LYING)
def test_liars_send_finite_vectors_and_the_others_what_they_would(member: str):
    vectors = sent(member)
    assert vectors.shape == GRADIENTS.shape
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors[~BYZANTINE], GRADIENTS[~BYZANTINE])
    assert np.isfinite(vectors[BYZANTINE]).all() == (member not in FAULTS)
    assert not np.array_equal(vectors[BYZANTINE], GRADIENTS[BYZANTINE])


@each(LYING)
def test_nobody_lies_where_nobody_attacks(member: str):
    np.testing.assert_array_equal(sent(member, byzantine=np.zeros(AGENTS, bool)), GRADIENTS)


DEGENERATE: dict[str, tuple[Any, Any]] = {
    "one liar": (GRADIENTS, np.arange(AGENTS) == AGENTS - 1),
    "all gradients equal": (np.ones_like(GRADIENTS), BYZANTINE),
    "all gradients zero": (np.zeros_like(GRADIENTS), BYZANTINE),
    "gradients that cancel": (np.array([1, -1, 2, -2, 3, -3, 0, 1, 2, 4])[:, None] * GRADIENTS[0], BYZANTINE),
    "tiny gradients": (np.float32(1e-18) * GRADIENTS, BYZANTINE),
    "long gradients": (np.float32(1e12) * GRADIENTS, BYZANTINE),
    "the liars first": (GRADIENTS, BYZANTINE[::-1]),
}


@pytest.mark.parametrize("case", DEGENERATE)
@each([name for name in LYING if name not in FAULTS])
def test_lies_are_finite_however_poor_the_gradients(member: str, case: str):
    gradients, byzantine = DEGENERATE[case]
    vectors = sent(member, np.asarray(gradients, np.float32), byzantine)
    assert np.isfinite(vectors).all()
    np.testing.assert_array_equal(vectors[~byzantine], np.asarray(gradients, np.float32)[~byzantine])


@each(LYING)
def test_the_order_of_the_honest_agents_does_not_matter(member: str):
    order = np.array([3, 0, 6, 1, 5, 2, 4, 7, 8, 9])
    first, second = sent(member)[BYZANTINE], sent(member, GRADIENTS[order])[BYZANTINE]
    np.testing.assert_allclose(second, first, rtol=1e-3, atol=1e-4)


@each(COLLUDERS)
def test_colluders_know_nothing_of_the_honest(member: str):
    others = np.where(BYZANTINE[:, None], GRADIENTS, 1e3 * GRADIENTS[::-1])
    np.testing.assert_array_equal(sent(member, others)[BYZANTINE], sent(member)[BYZANTINE])


@each([name for name in LYING if name not in (*COLLUDERS, *ALONE)])
def test_who_knows_all_uses_it(member: str):
    others = np.where(BYZANTINE[:, None], GRADIENTS, 2 * GRADIENTS[::-1])
    assert not np.allclose(sent(member, others)[BYZANTINE], sent(member)[BYZANTINE])


@pytest.mark.parametrize("member", ALONE)
def test_who_is_alone_knows_nothing_of_anybody_else(member: str):
    others = np.where(np.arange(AGENTS)[:, None] == AGENTS - 1, GRADIENTS, 1e3 * GRADIENTS[::-1])
    np.testing.assert_array_equal(sent(member, others)[-1], sent(member)[-1])


@each(MEMBERS)
def test_an_attack_says_what_it_needs(member: str):
    attack = attack_of(member)
    assert attack.colludes == (member in LYING and member not in ALONE)
    if attack.adaptive:

        @jax.jit
        def alone(gradients: Array, byzantine: Array) -> tuple[Array, Any]:
            bare = Scene(jax.random.split(jax.random.key(0), AGENTS), gradients, byzantine, TENSORS)
            return attack.send(attack.init(AGENTS, SIZE), bare)

        with pytest.raises(ConfigError, match="tries its lies on the aggregator"):
            alone(GRADIENTS, BYZANTINE)


# In a round


def problem_of(member: str, **settings: Any) -> Any:
    return probes.tiny_problem(attack_of(member), **{"agents": 5, "byzantine": 2, "alpha": 0.4} | settings)


@pytest.mark.parametrize("member", ["min-max worst", "opt-alie", "normalized"])
def test_no_site_takes_part_in_an_attack_on_the_aggregator(member: str):
    with pytest.raises(ConfigError, match="try its lies on the server's aggregator, and sites do not see that"):
        Site(problem_of(member))


def test_a_site_can_make_an_attack_that_needs_its_own_gradient_alone():
    Site(problem_of("ipm of one"), number=4)


def asking(seen: list[np.ndarray]) -> Attack:
    """Sends what it says that the aggregate would be, if nobody lied."""

    def message(scene: Scene) -> Array:
        assert scene.aggregate is not None
        found = scene.aggregate(scene.gradients)
        jax.debug.callback(lambda x: seen.append(np.asarray(x)), found)
        return jnp.where(jnp.arange(scene.gradients.shape[0])[:, None] < 0, found, scene.gradients)

    return Attack(message=message, colludes=True, adaptive=True)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [10.0, "auto"])
def test_attackers_see_the_very_aggregate_of_the_round(sigma: Any):
    """With what the aggregator remembers and the server contributes, whose trajectories count once."""
    seen: list[np.ndarray] = []
    settings = {"agents": 5, "byzantine": 2, "alpha": 0.4, "sigma": sigma}
    problem, honest = probes.tiny_problem(asking(seen), **settings), probes.tiny_problem(**settings | {"byzantine": 0})
    found: dict[bool, Any] = {}
    for lying, each in ((True, problem), (False, honest)):
        state, federation, server = first_state(each, 0), Local(each), Server(each)
        found[lying] = []
        for _ in range(3):
            state, log = advance(each, state, federation, server)
            found[lying].append((log["gradient_norm"], log["server_trajectories"], log["server_steps"], log["sigma"]))
    jax.effects_barrier()
    assert len(seen) == 3
    np.testing.assert_allclose([np.linalg.norm(x) for x in seen], [row[0] for row in found[True]], rtol=1e-4)
    np.testing.assert_allclose(found[True], found[False], rtol=1e-4)
    assert Local(problem).watch is None


@pytest.mark.slow
@pytest.mark.parametrize(("member", "programs"), [("alie", 1), ("min-max", 1), ("opt-ipm", 2)])
def test_only_an_attack_on_the_aggregator_is_compiled_for_each(member: str, programs: int):
    compiled_before = send._cache_size()
    for sigma in (11.0, 12.0):  # two aggregators
        problem = problem_of(member, sigma=sigma)
        state, federation, server = first_state(problem, 0), Local(problem), Server(problem)
        for warm in federation.warm_up(state.agents):
            warm()
        for _ in range(2):
            state, _ = advance(problem, state, federation, server)
    assert send._cache_size() - compiled_before == programs
