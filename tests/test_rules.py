"""The rules against exact results: of other software, by hand, by brute force, and by what must not matter."""

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import Array

from fedpg.aggregators import (
    Aggregator,
    Own,
    Sent,
    Verdict,
    arc,
    bucketing,
    caf,
    centred_clipping,
    clipping,
    decide,
    dnc,
    fltrust,
    geometric_median,
    krum,
    mda,
    mean,
    mean_around_median,
    median,
    monna,
    multi_krum,
    nnm,
    server,
    smea,
    trimmed_mean,
    zeno,
)
from fedpg.aggregators.centres import weiszfeld

CASES = json.loads((Path(__file__).parent / "data" / "aggregators.json").read_text())["cases"]
f_of = functools.cache(lambda make, f: make(f=f))  # the same object, so that it is compiled once


@functools.partial(jax.jit, static_argnums=0)
def first_rounds(rules: tuple[Aggregator, ...], sent: Sent, own: Own) -> list[tuple[Verdict, Any]]:
    """What each of these rules says and remembers in the first round, all in one program."""
    return [rule.update(rule.init(*sent.vectors.shape), sent, own) for rule in rules]


def judged(rules: tuple[Aggregator, ...], vectors: Any, g_0: Any = None, valid: Any = None) -> list[Verdict]:
    """The verdicts in the first round, in arrays of NumPy."""
    vectors = np.asarray(vectors, np.float32)
    valid = np.ones(len(vectors), bool) if valid is None else np.asarray(valid)
    own = Own(gradient=None if g_0 is None else np.asarray(g_0, np.float32))
    return [jax.tree.map(np.asarray, verdict) for verdict, _ in first_rounds(rules, Sent(vectors, valid, 16), own)]


def judge(rule: Aggregator, vectors: Any, g_0: Any = None, valid: Any = None) -> Verdict:
    """The verdict in the first round."""
    return judged((rule,), vectors, g_0, valid)[0]


def look(memory: Any, sent: Sent, own: Own) -> tuple[Verdict, Any]:
    return decide(sent, sent.vectors[0], sent.valid), sent.vectors


LOOK = Aggregator(look, init=lambda agents, size: jnp.zeros((agents, size)))
"""Remembers what it is given."""


def looked_at(memory: Any) -> Array:
    """What LOOK is given behind a step, by what that step remembers."""
    return jax.tree.leaves(memory)[-1]


# Other software

RULES_OF_F: dict[str, Any] = {
    "mean": lambda f: mean(),
    "median": lambda f: median(),
    "trimmed_mean": trimmed_mean,
    "geometric_median nu=1e-6 T=200": lambda f: geometric_median(1e-6, 200),
    "mean_around_median": mean_around_median,
    "mda": mda,
    "centered_clipping start=0 steps=3 tau=2": lambda f: centred_clipping(2.0, 3),
    "monna reference=row 0": monna,
    "smea exact": smea,
    "krum n-f-2 (paper)": krum,
    "multi_krum n-f-2, n-f best (paper)": multi_krum,
}
STEPS_OF_F: dict[str, Any] = {
    "nnm": lambda f: nnm(LOOK, f),
    "arc": lambda f: arc(LOOK, f),
    "clipping c=2": lambda f: clipping(LOOK, 2.0),
}
START_AT_0 = "geometric_median nu=0.1 T=3"


def padded(rows: Any) -> tuple[np.ndarray, np.ndarray]:
    """(vectors of one shape for all cases, by rows that are not valid and coordinates that are 0; which are valid)."""
    rows = np.array(rows, np.float32)
    vectors = np.full((15, 22), np.nan, np.float32)
    vectors[: len(rows)] = 0
    vectors[: len(rows), : rows.shape[1]] = rows
    return vectors, np.arange(15) < len(rows)


def test_every_stored_result_is_compared():
    names = {*RULES_OF_F, *STEPS_OF_F, START_AT_0}
    assert all({*case["results"], *case["results_on_clipped"]} == names for case in CASES)
    assert len(CASES) == 9


@functools.partial(jax.jit, static_argnums=(0, 1))
def ours(f: int, on_clipped: tuple[str, ...], x: Array, clipped: Array, valid: Array) -> dict[str, Array]:
    """What all rules and steps make of x, or of the clipped x, in one program."""
    made = {name: make(f) for name, make in (RULES_OF_F | STEPS_OF_F).items()}
    found = {}
    for name, rule in made.items():
        rows = clipped if name in on_clipped else x
        verdict, memory = rule.update(rule.init(*rows.shape), Sent(rows, valid, 16), Own(rows[0]))
        found[name] = looked_at(memory) if name in STEPS_OF_F else verdict.gradient
    rows = jnp.where(valid[:, None], clipped if START_AT_0 in on_clipped else x, 0.0)
    return found | {START_AT_0: weiszfeld(rows, valid, jnp.zeros(rows.shape[1]), 0.1, 3)}


@functools.cache
def of_case(number: int) -> dict[str, np.ndarray]:
    """The results of one case, by the names of the rules."""
    case = CASES[number]
    (x, valid), (clipped, _) = padded(case["vectors"]), padded(case["results"]["clipping c=2"])
    return jax.tree.map(np.asarray, ours(case["f"], tuple(sorted(case["results_on_clipped"])), x, clipped, valid))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*RULES_OF_F, *STEPS_OF_F, START_AT_0])
def test_rules_agree_with_other_software(name: str):
    for number, case in enumerate(CASES):
        on_clipped = name in case["results_on_clipped"]
        expected = np.array(case["results_on_clipped" if on_clipped else "results"][name])
        got = of_case(number)[name]
        got = got[: len(expected)] if name in STEPS_OF_F else got
        np.testing.assert_allclose(got[..., : expected.shape[-1]], expected, rtol=1e-5, atol=1e-5)


# By hand

LINE = [[0.0], [1.0], [2.0], [4.0], [100.0]]


BY_HAND: dict[str, tuple[Aggregator, float, Any]] = {
    "krum": (krum(f=1), 1.0, [1]),  # two nearest: 1 + 4, 1 + 1, 1 + 4, 4 + 9, ...
    "multi-krum": (multi_krum(f=1), 7 / 4, [0, 1, 2, 3]),
    "median": (median(), 2.0, range(5)),
    "trimmed mean": (trimmed_mean(f=1), 7 / 3, range(5)),
    "mean around median": (mean_around_median(f=2), 1.0, range(5)),  # 0 and 4 are as far from 2: the first of equals
    "mda f=1": (mda(f=1), 7 / 4, [0, 1, 2, 3]),
    "mda f=2": (mda(f=2), 1.0, [0, 1, 2]),
    "smea": (smea(f=2), 1.0, [0, 1, 2]),
    "geometric median": (geometric_median(), 2.0, range(5)),
}


@functools.cache
def on_the_line() -> dict[str, Verdict]:
    return dict(zip(BY_HAND, judged(tuple(rule for rule, _, _ in BY_HAND.values()), LINE), strict=True))


@pytest.mark.parametrize("name", BY_HAND)
def test_on_a_line_the_rules_choose_as_by_hand(name: str):
    verdict, (_, expected, accepted) = on_the_line()[name], BY_HAND[name]
    assert verdict.gradient[0] == pytest.approx(expected, abs=1e-4)
    assert np.flatnonzero(verdict.accepted).tolist() == list(accepted)


def test_caf_shrinks_weights_as_by_hand():
    # mu = 3: t = (9, 4, 4, 49) / 49, so c = (40, 45, 45, 0) / 49, whose sum is above n - 2f = 2: its mean is looked at.
    verdict = judge(caf(f=1), [[0.0], [1.0], [1.0], [10.0]])
    t = (np.array([0, 1, 1, 10]) - 3.0) ** 2
    c = 1 - t / t.max()
    assert verdict.gradient[0] == pytest.approx(c @ [0, 1, 1, 10] / c.sum(), rel=1e-5)
    assert verdict.accepted.tolist() == [True, True, True, False]


def test_dnc_drops_whom_the_top_direction_points_at():
    x = np.random.default_rng(0).normal(size=(10, 40))
    x[8:] += 10
    verdict = judge(dnc(f=2, share=1.0, repeats=1), x)
    assert verdict.accepted.tolist() == [True] * 8 + [False] * 2


def test_server_anchored_rules_follow_their_formulas():
    x, g_0 = np.array([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0], [4.0, 4.0]]), np.array([1.0, 0.0])
    half = np.sqrt(0.5)
    rules = (fltrust(), zeno(rho=0.5), zeno(rho=0.5, eps=0.6), monna(f=1), server())
    verdict, by_score, by_lower_score, nearest, alone = judged(rules, x, g_0)
    np.testing.assert_allclose(verdict.gradient, (np.array([1, 0]) + half * np.array([half, half])) / (1 + half), 1e-5)
    assert verdict.accepted.tolist() == [True, False, False, True]
    np.testing.assert_allclose(by_score.gradient, [(1 + half) / 2, half / 2], rtol=1e-5)
    assert by_lower_score.accepted.tolist() == [True, True, False, True]
    assert nearest.accepted.tolist() == [True, True, True, False]
    np.testing.assert_array_equal(alone.gradient, g_0)
    assert alone.somebody
    assert not alone.accepted.any()


def test_a_server_that_is_alone_uses_both_halves_of_its_trajectories():
    sent = Sent(np.zeros((2, 1), np.float32), np.ones(2, bool), 1)
    own = Own(gradient=np.array([4.0], np.float32), check=np.array([1.0], np.float32))
    verdict, _ = jax.jit(server().update)(server().init(2, 1), sent, own)
    assert np.asarray(verdict.gradient)[0] == pytest.approx(2.5)


def test_a_smoothed_server_gradient_is_a_corrected_average():
    rule, memory = server(smooth=0.5), server(smooth=0.5).init(2, 1)
    update = jax.jit(rule.update)
    for g, expected in ((4.0, 4.0), (1.0, 2.0)):  # (0.25 * 4 + 0.5 * 1) / 0.75
        sent = Sent(np.zeros((2, 1), np.float32), np.ones(2, bool), 1)
        verdict, memory = update(memory, sent, Own(gradient=np.array([g], np.float32)))
        assert np.asarray(verdict.gradient)[0] == pytest.approx(expected)


def test_buckets_hold_s_agents_and_share_their_verdict():
    x = np.arange(7.0)[:, None] ** 2
    rules = (bucketing(LOOK, s=2, f=0), bucketing(krum(f=0), s=2, f=0))
    (_, memory), (verdict, _) = first_rounds(rules, Sent(x.astype(np.float32), np.ones(7, bool), 16), Own())
    means = np.asarray(looked_at(memory))
    assert means.shape == (4, 1)
    pairs = [np.mean(pair) for pair in itertools.combinations(x[:, 0], 2)]
    assert sum(np.isclose(m, pairs).any() for m in means[:, 0]) >= 3
    assert np.asarray(verdict.accepted).sum() in (1, 2)


# Brute force


def least(vectors: np.ndarray, f: int, score: Any) -> float:
    return min(score(vectors[list(s)]) for s in itertools.combinations(range(len(vectors)), len(vectors) - f))


def diameter(x: np.ndarray) -> float:
    return np.linalg.norm(x[:, None] - x[None], axis=2).max()


def top_eigenvalue(x: np.ndarray) -> float:
    return np.linalg.eigvalsh(np.cov(x.T, bias=True))[-1]


@pytest.mark.parametrize("missing", [0, 2])
@pytest.mark.parametrize(("make", "score"), [(mda, diameter), (smea, top_eigenvalue)])
def test_the_best_subset_is_that_of_brute_force(make: Any, score: Any, missing: int):
    rng = np.random.default_rng(1)
    for _ in range(8):
        x = rng.normal(size=(9, 4)).astype(np.float32)
        valid = np.arange(9) >= missing
        x[~valid] = np.nan
        verdict = judge(f_of(make, 3), x, valid=valid)
        chosen = x[verdict.accepted].astype(float)
        assert len(chosen) == valid.sum() - 3
        # Several subsets may have the same diameter: that of one pair.
        assert score(chosen) == pytest.approx(least(x[valid].astype(float), 3, score), rel=1e-4)
        np.testing.assert_allclose(verdict.gradient, chosen.mean(axis=0), rtol=1e-4, atol=1e-5)


def test_krum_is_that_of_brute_force():
    rng = np.random.default_rng(2)
    for _ in range(8):
        x = rng.normal(size=(9, 4)).astype(np.float32)
        squares = np.linalg.norm(x[:, None].astype(float) - x[None], axis=2) ** 2
        best = np.argmin([np.sort(row)[1 : 9 - 3 - 2 + 1].sum() for row in squares])
        assert judge(f_of(krum, 3), x).centre == best


# What must not matter

ROBUST = (krum, multi_krum, trimmed_mean, mean_around_median, mda, smea, caf)
VECTORS = hnp.arrays(np.float32, (9, 4), elements=st.floats(-10, 10, width=32), unique=True)


@pytest.mark.parametrize("make", ROBUST)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(x=VECTORS, far=st.sampled_from([1e4, -1e6, 1e30]))
def test_f_copies_far_away_leave_the_aggregate_among_the_others(make: Any, x: np.ndarray, far: float):
    x[6:] = far
    gradient = judge(f_of(make, 3), x).gradient
    assert (gradient >= x[:6].min(axis=0) - 1e-3).all()
    assert (gradient <= x[:6].max(axis=0) + 1e-3).all()


@pytest.mark.parametrize("make", [trimmed_mean, mean_around_median])
@settings(max_examples=10, deadline=None, derandomize=True)
@given(x=VECTORS, order=st.permutations(range(9)))
def test_coordinate_rules_do_not_look_at_the_order(make: Any, x: np.ndarray, order: list[int]):
    rule = f_of(make, 3)
    got, expected = judge(rule, x[order]).gradient, judge(rule, x).gradient
    if make is trimmed_mean:
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    else:  # of two numbers as far from the median either may be taken
        away = np.sort(np.abs(x - np.median(x, axis=0)), axis=0)
        clear = away[6] - away[5] > 1e-3
        np.testing.assert_allclose(got[clear], expected[clear], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", ROBUST)
def test_too_few_that_came_are_nobody(make: Any):
    few = 5 if make in (krum, multi_krum) else 6  # one more would do
    verdict = judge(f_of(make, 3), np.ones((9, 4)), valid=np.arange(9) < few)
    assert not verdict.somebody
