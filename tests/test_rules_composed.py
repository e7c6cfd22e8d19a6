"""Rules by name, composed, with options; what is refused; and what guards a round from its aggregator."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from fedpg.aggregators import (
    Aggregator,
    Own,
    Sent,
    Verdict,
    arc,
    bucketing,
    closed,
    decide,
    guarded,
    krum,
    make_aggregator,
    mean,
    mean_of,
    nnm,
    trimmed_mean,
)
from fedpg.errors import ConfigError

X = np.random.default_rng(0).normal(size=(10, 5)).astype(np.float32)
SENT = Sent(X, np.ones(10, bool), 16)


def aggregates(*rules: Aggregator, sent: Sent = SENT) -> list[np.ndarray]:
    """What each of these rules makes of what was sent, all in one program."""

    @jax.jit
    def found(sent: Sent) -> list[Array]:
        return [rule.update(rule.init(*sent.vectors.shape), sent, Own())[0].gradient for rule in rules]

    return [np.asarray(gradient) for gradient in found(sent)]


def assert_same(first: Aggregator, second: Aggregator, sent: Sent = SENT) -> None:
    """They are the same rule, if not the same object."""
    np.testing.assert_array_equal(*aggregates(first, second, sent=sent))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "same"),
    [
        ("krum", ("f=2",), krum(f=2)),
        ("krum", ("krum.f=2",), krum(f=2)),
        ("krum", (), krum(f=3)),  # floor(alpha K)
        ("nnm+krum", ("f=2",), nnm(krum(f=2), f=2)),
        ("nnm+krum", ("nnm.f=1", "krum.f=2"), nnm(krum(f=2), f=1)),
        ("arc+nnm+trimmed-mean", (), arc(nnm(trimmed_mean(f=3), f=3), f=3)),
        ("bucketing+mean", ("s=3", "f=1"), bucketing(mean(), s=3, f=1)),
    ],
)
def test_a_name_with_plus_is_the_composition_of_its_parts(name: str, options: tuple[str, ...], same: Aggregator):
    assert_same(make_aggregator(name, options, alpha=0.3), same)


def test_equal_names_and_options_are_the_same_object():
    assert make_aggregator("nnm+krum", ("f=2",), alpha=0.3) is make_aggregator("nnm+krum", ("f=2",), alpha=0.3)


def test_behind_buckets_of_s_a_rule_expects_up_to_s_times_the_share_of_liars():
    by_name = make_aggregator("bucketing+trimmed-mean", alpha=0.2)  # 2 of 10 agents, so 2 of 5 buckets
    assert_same(by_name, bucketing(trimmed_mean(f=2), f=2))
    with pytest.raises(ConfigError, match=r"bucketing needs at least 13 vectors for f = 3, and gets K = 10.*at most 2"):
        make_aggregator("bucketing+trimmed-mean", alpha=0.3).init(10, 5)


@pytest.mark.slow
@pytest.mark.parametrize(("agents", "alpha", "f"), [(9, 0.3, 2), (9, 0.25, 2), (10, 0.1, 1), (7, 0.2, 1), (5, 0.19, 0)])
def test_behind_buckets_as_many_are_expected_to_be_spoilt_as_agents_may_lie(agents: int, alpha: float, f: int):
    """f = floor(alpha K), also where K is no multiple of s: all that s f < K / 2 allows."""
    by_name = make_aggregator("bucketing+trimmed-mean", alpha=alpha)
    sent = Sent(SENT.vectors[:agents], SENT.valid[:agents], 16)
    assert_same(by_name, bucketing(trimmed_mean(f=f), f=f), sent)


def test_buckets_of_buckets_are_spoilt_by_as_many():
    """Two of twenty lie: up to 2 of 10 buckets, and up to 2 of 5 buckets of buckets."""
    sent = Sent(np.concatenate([X, 2 * X]), np.ones(20, bool), 16)
    by_name = make_aggregator("bucketing+bucketing+trimmed-mean", alpha=0.1)
    assert_same(by_name, bucketing(bucketing(trimmed_mean(f=2), f=2), f=2), sent)


def test_parts_may_be_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "parts_of_mine.py").write_text(
        "from fedpg.aggregators import before, mean\n"
        "def doubled(rule, factor: float = 2.0):\n    return before(lambda x, valid: factor * x, rule)\n"
        "average = mean()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rule = make_aggregator("parts_of_mine:doubled+parts_of_mine:average", ("factor=3",), alpha=0.3)
    np.testing.assert_allclose(*aggregates(rule), 3 * X.mean(axis=0), rtol=1e-5, atol=1e-6)
    with pytest.raises(ConfigError, match="parameter `rule`"):
        make_aggregator("parts_of_mine:average+krum")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("nmn+krum", (), "did you mean nnm"),
        ("nnm+krun", (), "did you mean krum"),
        ("nnm", (), r"comes before another aggregator: write nnm\+krum"),
        ("krum+nnm", (), "'krum' must come last"),
        ("krum+median", (), "'krum' must come last"),
        ("nnm+krum", ("g=2",), "has no parameter 'g': the parameters are nnm: f; krum: f"),
        ("nnm+krum", ("arc.f=2",), "no parameter 'arc.f'"),
        ("krum", ("nnm.f=2",), "no parameter 'nnm.f'"),
        ("krum", ("f=-1",), "f must be 0 or more"),
        ("krum", ("f=x",), "f must be a whole number"),
        ("clipping+mean", ("c=0",), "c must be more than 0"),
        ("bucketing+mean", ("s=0",), "s must be 1 or more"),
        ("bucketing+compass", (), "remembers what each agent did"),
        ("centred-clipping", ("tau=0",), "tau must be more than 0"),
        ("fltrust", ("smooth=1",), "less than 1"),
        ("dnc", ("share=0",), "share must be more than 0"),
        ("zeno", ("rho=inf",), "rho and eps must be finite numbers, 0 or more, not inf"),
        ("zeno", ("eps=nan",), "rho and eps must be finite numbers, 0 or more, not 0.001 and nan"),
        ("geometric-median", ("nu=inf",), "nu must be a positive number, not inf"),
    ],
)
def test_what_cannot_be_made_is_refused_with_a_reason(name: str, options: tuple[str, ...], words: str):
    with pytest.raises(ConfigError, match=words):
        make_aggregator(name, options, alpha=0.3)


@pytest.mark.parametrize(
    ("name", "agents", "options", "words"),
    [
        ("krum", 5, ("f=3",), "krum needs at least 7 vectors for f = 3, and gets K = 5.*at most 2"),
        ("krum", 10, ("f=6",), "krum needs at least 13 vectors.*at most 4"),
        ("multi-krum", 10, ("f=7",), "multi-krum needs at least 15 vectors"),
        ("bucketing+median", 10, (), "bucketing needs at least 13 vectors for f = 3"),
        ("trimmed-mean", 6, ("f=3",), "trimmed-mean needs at least 7"),
        ("nnm+median", 6, ("f=3",), "nnm needs at least 7"),
        ("mda", 40, (), "mda would try .* subsets for K = 40 and f = 12.*use caf"),
        ("smea", 40, (), "smea would try"),
    ],
)
def test_too_large_an_f_is_refused_before_the_first_round(name: str, agents: int, options: Any, words: str):
    rule = make_aggregator(name, options, alpha=0.3)
    with pytest.raises(ConfigError, match=words):
        rule.init(agents, 5)


def test_a_rule_that_needs_the_servers_gradient_says_so():
    with pytest.raises(ConfigError, match="fltrust needs a gradient of the server's own"):
        aggregates(make_aggregator("fltrust"))


# Guards


def keeping(count: int) -> Aggregator:
    """The mean of the first ones."""

    def update(memory: Any, sent: Sent, own: Own) -> tuple[Verdict, Any]:
        accepted = sent.valid & (jnp.arange(len(sent.valid)) < count)
        return decide(sent, mean_of(sent.vectors, accepted), accepted), memory

    return Aggregator(update)


def test_a_closed_rule_accepts_nobody_if_more_are_turned_away_or_absent_than_alpha_allows():
    for kept, absent, stands in ((7, 0, True), (6, 0, False), (10, 3, True), (10, 4, False)):
        sent = SENT._replace(valid=np.arange(10) >= absent)
        verdict, _ = jax.jit(closed(keeping(kept), alpha=0.3).update)((), sent, Own())
        assert verdict.somebody == stands
        assert np.asarray(verdict.accepted).any() == stands
        assert np.asarray(verdict.gradient).any() == stands


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_aggregate_that_is_not_finite_is_nobodys_and_leaves_no_memory(value: float):
    def update(memory: Any, sent: Sent, own: Own) -> tuple[Verdict, Any]:
        broken = jnp.full(5, value)
        return decide(sent, broken, sent.valid), broken

    verdict, memory = jax.tree.map(np.asarray, jax.jit(guarded(update))(np.ones(5, np.float32), SENT, Own()))
    assert not verdict.somebody
    assert not verdict.accepted.any()
    assert not verdict.gradient.any()
    assert not np.isnan(verdict.distances).any()
    assert memory.tolist() == [1.0] * 5


def test_a_guard_changes_nothing_about_a_good_verdict():
    rule = krum(f=3)

    @jax.jit
    def verdicts(sent: Sent) -> list[Verdict]:
        return [update((), sent, Own())[0] for update in (guarded(rule.update), rule.update)]

    for mine, theirs in zip(*verdicts(SENT), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"gradient": np.zeros(4, np.float32)},
            r"gradient must be an array of shape \(5,\).*not an array of shape \(4,\)",
        ),
        ({"accepted": np.ones(10, np.float32)}, "accepted must be .* True or False"),
        ({"accepted": np.ones(9, bool)}, r"accepted must be an array of shape \(10,\)"),
        ({"gradient": "north"}, "gradient must be .*not a str"),
        ({"rule": np.float32(1)}, "rule must be a whole number"),
    ],
)
def test_a_verdict_of_the_wrong_form_is_refused_by_the_name_of_its_field(change: dict[str, Any], words: str):
    def update(memory: Any, sent: Sent, own: Own) -> tuple[Verdict, Any]:
        return decide(sent, jnp.zeros(5), sent.valid)._replace(**change), memory

    with pytest.raises(ConfigError, match=words):
        jax.jit(guarded(update))((), SENT, Own())


def test_an_update_must_return_a_verdict_and_a_memory_of_the_same_form():
    with pytest.raises(ConfigError, match=r"must return \(verdict, memory\), not a"):
        jax.jit(guarded(lambda memory, sent, own: jnp.zeros(5)))((), SENT, Own())  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigError, match="must return a Verdict"):
        jax.jit(guarded(lambda memory, sent, own: (jnp.zeros(5), memory)))((), SENT, Own())  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigError, match="memory changed"):
        jax.jit(guarded(lambda memory, sent, own: (mean().update((), sent, own)[0], 1.0)))((), SENT, Own())
