"""What every aggregator promises, by being registered; those that promise less say why."""

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpg import AGGREGATORS, Aggregator
from fedpg.aggregators import PRE, RULES, Own, Sent, Verdict, make_aggregator

AGENTS, LIARS, SIZE, BATCH = 10, 3, 6, 16
ALPHA = 0.35  # more than the share of liars
SPREAD = 0.1
"""The deviation of an honest vector in each coordinate."""
SIGMA = SPREAD * (BATCH * SIZE) ** 0.5
"""Of one trajectory's gradient."""
SEEDS = (0, 1, 2)

EXCEPTIONS = {
    ("mean", "bounded"): "no defence: one vector moves the mean anywhere",
    ("mean", "opposite"): "no defence: one vector moves the mean anywhere",
    **dict.fromkeys(
        (("server", promise) for promise in ("honest", "bounded", "invalid", "nobody", "alone", "derivative")),
        "the agents are not listened to: none is accepted",
    ),
    **dict.fromkeys(
        ((name, "alone") for name in ("fltrust", "zeno", "nnm+fltrust")), "a vector gets the length of the server's"
    ),
    **dict.fromkeys(
        ((name, "translation") for name in ("compass", "fltrust", "zeno", "nnm+fltrust")),
        "angles are those seen from 0",
    ),
    **dict.fromkeys(
        ((name, "translation") for name in ("arc+nnm+trimmed-mean", "arc+caf", "clipping+mda")),
        "lengths are those from 0",
    ),
    ("centred-clipping", "translation"): "it starts from 0, and has not arrived after its steps",
    ("nnm+krum", "order"): "agents with the same neighbours have the same mean of them, and Krum takes the first",
    ("bucketing+median", "bounded"): "it is for two liars of ten, and three may spoil three of five buckets",
    ("bucketing+median", "opposite"): "it is for two liars of ten, and three may spoil three of five buckets",
    ("bucketing+median", "order"): "the buckets are drawn by the agents' numbers",
}
"""(aggregator, promise) -> why it does not make that promise; that it does not is checked as well."""


WITH_SIGMA = [name for name, make in AGGREGATORS.items() if "sigma" in inspect.signature(make).parameters]
"""Those that are told the spread; the others are the same object in any units, and compiled once."""


class Member(NamedTuple):
    """A registered aggregator with settings, of which sigma may be in other units."""

    name: str
    auto: bool

    def made(self, scale: float = 1.0) -> Aggregator:
        options = (f"c={4 * scale}",) if self.name.startswith("clipping") else ()  # about as long as an honest one
        sigma = "auto" if self.auto else scale * SIGMA if self.name in WITH_SIGMA else SIGMA
        alpha = 0.2 if self.name.startswith("bucketing") else ALPHA
        return make_aggregator(self.name, options, alpha=alpha, sigma=sigma, delta=0.6)


DAILY = ("compass", "fedpg", "krum", "median", "nnm+krum")
"""Every promise of these is a quick test: the default, the paper's, one by distance, one by coordinate, a mixture."""
SHARES = ("compass",)
"""Their distances are shares, and not lengths."""
COMPOSED = ("nnm+krum", "nnm+fltrust", "arc+nnm+trimmed-mean", "arc+caf", "bucketing+median", "clipping+mda")


def _members() -> dict[str, Member]:
    found = {}
    for name in AGGREGATORS:
        found[name] = Member(name, auto=False)
        if name in WITH_SIGMA:
            found[f"{name} with sigma = auto"] = Member(name, auto=True)
    return found | {name: Member(name, auto=False) for name in COMPOSED}


MEMBERS = _members()


def everyone(promise: str) -> Callable[..., Any]:
    """A test of every member; one that does not make this promise must fail it."""

    def marks(name: str, member: Member) -> list[pytest.MarkDecorator]:
        reason = EXCEPTIONS.get((member.name, promise))
        broken = [pytest.mark.xfail(strict=True, reason=reason, raises=AssertionError)] if reason else []
        later = [pytest.mark.more] if name in COMPOSED and name not in DAILY else []
        return broken if name in DAILY else [*broken, *later, pytest.mark.slow]

    return pytest.mark.parametrize(
        "member", [pytest.param(member, id=name, marks=marks(name, member)) for name, member in MEMBERS.items()]
    )


@functools.partial(jax.jit, static_argnums=0)
def update(aggregator: Aggregator, memory: Any, sent: Sent, own: Own) -> tuple[Verdict, Any]:
    return aggregator.update(memory, sent, own)


@functools.cache
def first(aggregator: Aggregator, agents: int = AGENTS, size: int = SIZE) -> Any:
    """What it remembers before the first round."""
    return jax.tree.map(np.asarray, aggregator.init(agents, size))


def judge(aggregator: Aggregator, sent: Sent, own: Own) -> Verdict:
    """The verdict in the first round, which must be a consistent one."""
    verdict = consistent(update(aggregator, first(aggregator, *sent.vectors.shape), sent, own)[0], sent)
    alone = aggregator.update.__qualname__.startswith("server.")  # an aggregate, though nobody is accepted
    assert verdict.accepted.any() or RULES[verdict.rule] == "nobody" or alone
    return verdict


def consistent(verdict: Verdict, sent: Sent) -> Verdict:
    """The same, as NumPy, if nothing in it contradicts itself."""
    valid = np.asarray(sent.valid)
    v = Verdict(*map(np.asarray, verdict))
    agents, size = sent.vectors.shape
    assert (v.gradient.shape, v.accepted.shape, v.distances.shape) == ((size,), (agents,), (agents,))
    assert v.accepted.dtype == bool
    assert np.isfinite(v.gradient).all()
    assert not (v.accepted & ~valid).any()
    assert (v.distances >= 0).all(), "and none is NaN"
    assert (v.distances[~valid] == np.inf).all()
    assert v.threshold >= 0
    assert v.sigma >= 0
    assert 0 <= v.rule < len(RULES)
    assert -1 <= v.centre < agents
    assert v.centre < 0 or valid[v.centre]
    if RULES[v.rule] == "nobody":
        assert not v.accepted.any()
        assert not v.gradient.any()
    return v


def honest(seed: int, agents: int = AGENTS) -> tuple[Sent, np.ndarray]:
    """(what honest agents send, the gradient that they estimate)."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=SIZE)
    vectors = truth + SPREAD * rng.normal(size=(agents, SIZE))
    return Sent(vectors.astype(np.float32), np.ones(agents, bool), BATCH), truth


def own_of(aggregator: Aggregator, seed: int, truth: np.ndarray, scale: float = 1.0) -> Own:
    """What this aggregator needs of the server, in other units."""
    rng = np.random.default_rng(seed + 1000)
    everything = {
        "gradient": truth + SPREAD * rng.normal(size=SIZE),
        "influences": SPREAD * BATCH**0.5 * rng.normal(size=(8, SIZE)),
        "scores": rng.normal(size=(64, SIZE)) / scale,
    }
    return Own(**{name: (scale * everything[name]).astype(np.float32) for name in aggregator.needs})


def lying(sent: Sent, lie: Any, valid: bool = True) -> Sent:
    """The last ones send something else."""
    liars = np.arange(AGENTS) >= AGENTS - LIARS
    vectors = np.where(liars[:, None], np.asarray(lie, np.float32), sent.vectors)
    return sent._replace(vectors=vectors, valid=sent.valid & (valid | ~liars))


def assert_near_the_honest(verdict: Verdict, sent: Sent, count: int) -> None:
    """No further from their mean than twice the furthest of them."""
    theirs = sent.vectors[:count]
    reach = np.linalg.norm(theirs - theirs.mean(axis=0), axis=1).max()
    assert verdict.accepted[:count].any()
    assert np.linalg.norm(verdict.gradient - theirs.mean(axis=0)) <= 2 * reach


@pytest.mark.parametrize("seed", SEEDS)
@everyone("honest")
def test_of_honest_agents_the_aggregate_lies_among_them(member: Member, seed: int):
    sent, truth = honest(seed)
    aggregator = member.made()
    assert_near_the_honest(judge(aggregator, sent, own_of(aggregator, seed, truth)), sent, AGENTS)


@pytest.mark.parametrize("lie", [1e3, -1e30, 1e30, np.finfo(np.float32).max])
@everyone("bounded")
def test_a_minority_that_lies_far_away_moves_nothing(member: Member, lie: float):
    sent, truth = honest(0)
    aggregator = member.made()
    verdict = judge(aggregator, lying(sent, np.float32(lie)), own_of(aggregator, 0, truth))
    assert_near_the_honest(verdict, sent, AGENTS - LIARS)


@everyone("opposite")
def test_a_minority_that_lies_opposite_to_the_others_does_not_turn_the_aggregate(member: Member):
    sent, truth = honest(0)
    aggregator = member.made()
    verdict = judge(aggregator, lying(sent, -20 * sent.vectors), own_of(aggregator, 0, truth))
    assert verdict.gradient @ truth > 0.5 * truth @ truth


@everyone("invalid")
def test_what_is_not_valid_may_hold_anything(member: Member):
    sent, truth = honest(0)
    aggregator = member.made()
    own = own_of(aggregator, 0, truth)
    garbage = (0.0, np.nan, np.inf, -np.inf, 1e30)
    verdicts = [judge(aggregator, lying(sent, np.float32(lie), valid=False), own) for lie in garbage]
    assert_near_the_honest(verdicts[0], sent, AGENTS - LIARS)
    for other in verdicts[1:]:
        for mine, theirs in zip(other, verdicts[0], strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("garbage", [0.0, np.nan, np.inf])
@everyone("nobody")
def test_if_nobody_is_valid_nobody_is_accepted(member: Member, garbage: float):
    sent, truth = honest(0)
    nothing = sent._replace(vectors=np.full_like(sent.vectors, garbage), valid=np.zeros(AGENTS, bool))
    aggregator = member.made()
    verdict = judge(aggregator, nothing, own_of(aggregator, 0, truth))
    assert RULES[verdict.rule] == "nobody"
    assert (verdict.distances == np.inf).all()


@everyone("alone")
def test_a_single_agent_is_believed(member: Member):
    sent, truth = honest(0, agents=1)
    aggregator = member.made()
    # Of influences the server contributes none, for there is nobody to compare with.
    own = own_of(aggregator, 0, truth)._replace(influences=None)
    verdict = judge(aggregator, sent, own)
    assert verdict.accepted.all()
    np.testing.assert_allclose(verdict.gradient, sent.vectors[0], rtol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@everyone("order")
def test_the_order_of_the_agents_does_not_matter(member: Member, seed: int):
    sent, truth = honest(seed)
    sent = lying(sent, 5 * sent.vectors)
    aggregator = member.made()
    own, order = own_of(aggregator, seed, truth), np.random.default_rng(seed).permutation(AGENTS)
    before = judge(aggregator, sent, own)
    after = judge(aggregator, sent._replace(vectors=sent.vectors[order], valid=sent.valid[order]), own)
    assert after.accepted.tolist() == before.accepted[order].tolist()
    assert after.rule == before.rule
    assert before.centre < 0 or order[after.centre] == before.centre
    np.testing.assert_allclose(after.distances, before.distances[order], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(after.gradient, before.gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
@everyone("translation")
def test_the_aggregate_moves_with_the_vectors(member: Member, seed: int):
    sent, truth = honest(seed)
    sent = lying(sent, 5 * sent.vectors)
    aggregator, shift = member.made(), 10 * np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)
    before = judge(aggregator, sent, own_of(aggregator, seed, truth))
    moved = own_of(aggregator, seed, truth + shift)
    after = judge(aggregator, sent._replace(vectors=sent.vectors + shift), moved)
    assert after.accepted.tolist() == before.accepted.tolist()
    np.testing.assert_allclose(after.gradient, before.gradient + shift, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
@everyone("scaling")
def test_the_aggregate_grows_with_the_vectors(member: Member, scale: float):
    sent, truth = honest(0)
    sent = lying(sent, 5 * sent.vectors)
    ours, theirs = member.made(), member.made(scale)
    before = judge(ours, sent, own_of(ours, 0, truth))
    after = judge(theirs, sent._replace(vectors=np.float32(scale) * sent.vectors), own_of(theirs, 0, truth, scale))
    assert after.accepted.tolist() == before.accepted.tolist()
    np.testing.assert_allclose(after.gradient, scale * before.gradient, rtol=1e-4, atol=1e-4 * scale)
    unit = 1.0 if member.name in SHARES else scale
    np.testing.assert_allclose(after.distances, unit * before.distances, rtol=1e-3, atol=1e-3 * unit)


def stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *x: np.stack([np.asarray(each) for each in x]), *trees)


def assert_same(a: Any, b: Any) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


@everyone("pure")
def test_update_is_a_pure_function_that_can_be_compiled_and_mapped(member: Member):
    aggregator = member.made()
    memory = first(aggregator)
    several = []
    for seed in SEEDS:
        sent, truth = honest(seed)
        several.append((memory, lying(sent, 5 * sent.vectors), own_of(aggregator, seed, truth)))
    one_by_one = [update(aggregator, *each) for each in several]
    programs = {re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(aggregator.update)(*several[0]))) for _ in range(2)}
    assert len(programs) == 1, "traced again, it is another program"
    assert_same(update(aggregator, *several[0]), one_by_one[0])  # again
    assert_same(jax.jit(jax.vmap(aggregator.update))(*stacked(several)), stacked(one_by_one))


@everyone("derivative")
def test_the_aggregate_has_a_derivative_for_attacks_to_follow(member: Member):
    sent, truth = honest(0)
    aggregator = member.made()
    memory, own = first(aggregator), own_of(aggregator, 0, truth)

    def along(vectors: jax.Array, memory: Any, sent: Sent, own: Own) -> jax.Array:
        return aggregator.update(memory, sent._replace(vectors=vectors), own)[0].gradient @ jnp.ones(SIZE)

    slope = np.asarray(jax.jit(jax.grad(along))(sent.vectors, memory, sent, own))
    assert np.isfinite(slope).all()
    assert slope.any()


@everyone("memory")
def test_the_memory_keeps_its_structure_from_round_to_round(member: Member):
    aggregator = member.made()
    memory = before = first(aggregator)

    def kind(tree: Any) -> Any:
        return jax.tree.structure(tree), [(jnp.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(tree)]

    for seed in range(6):
        sent, truth = honest(seed)
        sent = lying(sent, np.nan, valid=False) if seed % 2 else lying(sent, 1e30)
        if seed == 3:
            sent = sent._replace(valid=np.zeros(AGENTS, bool))
        verdict, memory = update(aggregator, memory, sent, own_of(aggregator, seed, truth))
        consistent(verdict, sent)
        assert kind(memory) == kind(before)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(memory))


def test_every_exception_is_about_a_registered_aggregator():
    assert {name for name, _ in EXCEPTIONS} <= {*AGGREGATORS, *COMPOSED}


def test_every_step_before_a_rule_is_among_the_composed_ones():
    assert {step for name in COMPOSED for step in name.split("+")[:-1]} == set(PRE)
