"""Aggregators: Algorithm 1.1 by hand and by brute force, and who counts."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedpg import ConfigError
from fedpg.aggregators import concentration, make_aggregator, required
from verdicts import judge, on_a_line

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)
INF = float("inf")
NAMES = ["fedpg", "r2", "majority", "mean"]


# By hand


def test_r1_keeps_the_ball_around_the_member_nearest_to_the_mean():
    # Radius 2 sigma sqrt(V / B) = 1 exactly. The five on the left have 5 > 7/2 within it, 8 and 9 only two.
    sigma = 0.5 / math.sqrt(concentration(7, 0.6) / 20)
    points = [0.0, 0.1, 0.5, 0.9, 0.99, 8.0, 9.0]
    verdict = judge("fedpg", on_a_line(*points), sigma=sigma, batch=20, alpha=0.3)
    assert verdict.rule == "R1"
    assert verdict.accepted.tolist() == [True] * 5 + [False] * 2
    assert verdict.centre == 2  # the mean is 0.498
    np.testing.assert_allclose(verdict.distances, np.abs(np.array(points) - 0.5), rtol=1e-5)
    np.testing.assert_allclose(verdict.gradient, 0.498 * np.array([0.6, 0.8]), rtol=1e-5)
    assert verdict.threshold == pytest.approx(1.0, rel=1e-6)


def test_a_member_of_the_ball_need_not_be_one_of_the_majority():
    # 1.45 has only 3 of 7 within radius 1, but lies within 1 of the centre 0.5.
    sigma = 0.5 / math.sqrt(concentration(7, 0.6) / 20)
    points = on_a_line(0.0, 0.4, 0.5, 0.6, 1.45, 7.0, -7.0)
    assert judge("fedpg", points, sigma=sigma, batch=20).accepted.tolist() == [True] * 5 + [False] * 2
    kept = judge("majority", points, sigma=sigma, batch=20, alpha=0.49)
    assert kept.accepted.tolist() == [True] * 4 + [False] * 3
    assert kept.rule == "R1"


def test_r2_decides_if_r1_keeps_too_few():
    points = on_a_line(0.0, 0.8, 1.0, 1.6, 2.0, 7.0, -9.0)
    verdict = judge("fedpg", points, sigma=1.0, batch=1000)  # R1: 2 sigma sqrt(6.3 / 1000) = 0.16
    assert verdict.rule == "R2"
    assert verdict.threshold == 2.0
    assert verdict.accepted.tolist() == [True] * 5 + [False] * 2
    assert verdict.centre == 2
    np.testing.assert_allclose(verdict.gradient, 1.08 * np.array([0.6, 0.8]), rtol=1e-5)


@pytest.mark.parametrize(("near", "rule"), [(7, "R1"), (6, "R2")])
def test_r1_stands_from_1_minus_alpha_of_the_agents_on(near, rule):
    # Not 8: in floating point (1 - 0.3) * 10 is 7.000000000000001 in some orders of evaluation.
    points = on_a_line(*[0.0] * near, *[50.0 + 9 * i for i in range(10 - near)])
    verdict = judge("fedpg", points, alpha=0.3)
    assert verdict.rule == rule
    assert verdict.accepted.sum() == near


@pytest.mark.parametrize(
    ("alpha", "agents", "enough"), [(0.3, 10, 7), (0.4, 10, 6), (0.1, 10, 9), (0.0, 3, 3), (0.3, 3, 3), (0.49, 1, 1)]
)
def test_how_many_r1_must_accept(alpha, agents, enough):
    assert required(agents, alpha) == enough


@pytest.mark.parametrize(("agents", "delta", "batch"), [(10, 0.6, 16), (3, 0.1, 48), (1, 0.9, 1)])
def test_the_threshold_of_r1(agents, delta, batch):
    verdict = judge("fedpg", np.zeros((agents, 2)), sigma=0.7, batch=batch, delta=delta)
    assert verdict.threshold == pytest.approx(2 * 0.7 * math.sqrt(2 * math.log(2 * agents / delta) / batch), rel=1e-5)


@pytest.mark.parametrize("name", ["fedpg", "majority"])
def test_nobody_is_accepted_where_no_majority_is_close(name):
    verdict = judge(name, on_a_line(0.0, 1.0, 10.0, 11.0))  # two pairs of four: 2 > 4/2 does not hold
    assert verdict.rule == "nobody"
    assert not verdict.accepted.any()
    assert not verdict.gradient.any()
    assert verdict.centre == -1
    assert np.all(verdict.distances == INF)


@pytest.mark.parametrize("name", ["fedpg", "majority"])
@pytest.mark.parametrize(
    ("points", "accepted", "rule"),
    [
        ([5.0], [True], "R1"),
        ([0.0, 0.0], [True, True], "R1"),
        ([0.0, 1.9], [True, True], "R2"),
        ([0.0, 2.1], [False, False], "nobody"),
        ([0.0, 1.9, 1.0], [True, True, True], "R2"),
        ([0.0, 1.9, 50.0], [True, True, False], "R2"),
        ([0.0, 2.1, 50.0], [False, False, False], "nobody"),
    ],
)
def test_one_two_and_three_agents(name, points, accepted, rule):
    verdict = judge(name, on_a_line(*points))
    assert verdict.accepted.tolist() == accepted
    assert verdict.rule == rule


# Who counts


def broken_replies(kinds):
    gradients, lengths = np.zeros((10, 3), np.float32), np.full(10, 3)
    for row, kind in enumerate(kinds, start=10 - len(kinds)):
        if kind in ("nan", "infinity"):
            gradients[row, 1] = np.nan if kind == "nan" else -np.inf
        else:
            lengths[row] = {"silence": 0, "short": 2, "long": 4}[kind]
    return gradients, lengths


@pytest.mark.parametrize("name", NAMES)
def test_invalid_replies_are_never_accepted_and_harm_nobody(name):
    gradients, lengths = broken_replies(["nan", "infinity", "silence", "short"])
    gradients[:6] = 1.0
    verdict = judge(name, gradients, lengths=lengths)
    assert verdict.accepted.tolist() == [True] * 6 + [False] * 4
    np.testing.assert_allclose(verdict.gradient, 1.0)
    assert verdict.distances[6:].tolist() == [INF] * 4
    np.testing.assert_allclose(verdict.distances[:6], 0.0, atol=1e-6)


@pytest.mark.parametrize("name", ["fedpg", "majority"])
@pytest.mark.parametrize("kind", ["nan", "infinity", "silence", "short", "long"])
def test_the_majority_is_one_of_the_expected_agents_not_of_those_that_answer(name, kind):
    verdict = judge(name, *broken_replies([kind] * 4)[:1], lengths=broken_replies([kind] * 4)[1])
    assert verdict.accepted.tolist() == [True] * 6 + [False] * 4
    verdict = judge(name, *broken_replies([kind] * 5)[:1], lengths=broken_replies([kind] * 5)[1])
    assert verdict.rule == "nobody"  # 5 of 10 are no majority, though all that answered agree


def test_r1_needs_its_share_of_the_expected_agents():
    gradients, lengths = broken_replies(["silence"] * 3)
    assert judge("fedpg", gradients, lengths=lengths, alpha=0.3).rule == "R1"
    gradients, lengths = broken_replies(["silence"] * 4)
    assert judge("fedpg", gradients, lengths=lengths, alpha=0.3).rule == "R2"


def test_the_mean_accepts_every_valid_reply():
    gradients = np.array([[1.0, 2.0], [3.0, -4.0], [1e6, 0.0], [np.nan, 1.0]])
    verdict = judge("mean", gradients)
    assert verdict.rule == "mean"
    assert verdict.accepted.tolist() == [True, True, True, False]
    expected = gradients[:3].mean(axis=0)
    np.testing.assert_allclose(verdict.gradient, expected, rtol=1e-6)
    np.testing.assert_allclose(verdict.distances[:3], np.linalg.norm(gradients[:3] - expected, axis=1), rtol=1e-5)


def test_an_unknown_aggregator_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean majority"):
        make_aggregator("majorty")


def test_r2_alone_is_what_algorithm_1_1_falls_back_to():
    rng = np.random.default_rng(0)
    for spread in (0.3, 0.8, 1.2):
        gradients = rng.normal(size=(10, 5)) * spread
        alone = judge("r2", gradients, batch=4.0)  # a batch with which R1 would decide
        fallback = judge("fedpg", gradients)  # R1's radius is next to nothing
        assert alone.rule == fallback.rule
        assert alone.accepted.tolist() == fallback.accepted.tolist()
        assert np.array_equal(alone.gradient, fallback.gradient)
    wide = np.vstack([np.zeros((9, 2)), [[2.5, 0.0]]])
    assert judge("fedpg", wide, batch=2.0).accepted.all()  # R1's radius is 3.7 here
    assert judge("r2", wide, batch=2.0).accepted.tolist() == [True] * 9 + [False]


# Against brute force


def reference(gradients, valid, sigma, batch, config, ball=True):
    """Algorithm 1.1 as it stands in the paper, in float64; also how close any decision was."""
    count = len(gradients)
    closest = INF

    def region(radius):
        nonlocal closest
        distance = lambda i, j: np.linalg.norm(gradients[i] - gradients[j])  # noqa: E731
        members = []
        for k in np.flatnonzero(valid):
            near = [distance(k, other) for other in np.flatnonzero(valid)]
            closest = min(closest, *(abs(d / radius - 1) for d in near))
            if sum(d <= radius for d in near) > count / 2:
                members.append(k)
        if not members:
            return [], -1
        centre = np.mean([gradients[k] for k in members], axis=0)
        to_mean = [np.linalg.norm(gradients[k] - centre) for k in members]
        best, *others = sorted(to_mean)
        closest = min(closest, *((other - best) / radius for other in others), INF)
        mom = members[int(np.argmin(to_mean))]
        return [k for k in np.flatnonzero(valid) if distance(k, mom) <= radius] if ball else members, mom

    good, mom = region(2 * sigma * math.sqrt(2 * math.log(2 * count / config["delta"]) / batch))
    rule = "R1"
    if len(good) < (1 - config["alpha"]) * count - 1e-9:
        good, mom = region(2 * sigma)
        rule = "R2" if good else "nobody"
    mu = np.mean([gradients[k] for k in good], axis=0) if good else np.zeros(gradients.shape[1])
    return good, mom, rule, mu, closest


def scattered(seed, agents, size=4):
    """Replies in and around one cluster, at distances near the radii."""
    rng = np.random.default_rng(seed)
    scale = rng.choice([0.2, 0.5, 1.0, 2.0], (agents, 1), p=[0.4, 0.3, 0.2, 0.1])
    return (10 * rng.normal(size=size) + scale * rng.normal(size=(agents, size))).astype(np.float32), rng


SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("name", ["fedpg", "majority"])
def test_aggregators_equal_the_pseudocode(name):
    rules = set()

    @settings(SETTINGS, max_examples=150)
    @given(
        SEEDS, st.sampled_from([(1, 0.3), (2, 0.0), (3, 0.3), (7, 0.49), (10, 0.3)]), st.sampled_from([4.0, 12.0, 40.0])
    )
    def check(seed, federation, batch):
        agents, alpha = federation
        gradients, rng = scattered(seed, agents)
        valid = rng.uniform(size=agents) > 0.1
        gradients[~valid] = np.nan
        options = {"alpha": alpha, "delta": 0.6}
        ball = name == "fedpg"
        good, mom, rule, mu, closest = reference(gradients.astype(np.float64), valid, 0.8, batch, options, ball)
        # Float32 may decide a tie the other way; two members are always equally far from their mean.
        assume(closest > 1e-4)
        verdict = judge(name, gradients, sigma=0.8, batch=batch, **options)
        assert np.flatnonzero(verdict.accepted).tolist() == list(good)
        assert verdict.rule == rule
        assert verdict.centre == mom
        np.testing.assert_allclose(verdict.gradient, mu, rtol=1e-4, atol=1e-4)
        rules.add(rule)

    check()
    assert rules == {"R1", "R2", "nobody"}


@SETTINGS
@given(SEEDS, st.sampled_from([3, 10]), st.sampled_from(NAMES))
def test_aggregators_do_not_depend_on_the_order_of_the_agents(seed, agents, name):
    gradients, rng = scattered(seed, agents)
    if agents == 10:
        gradients[rng.integers(0, agents)] = np.nan
    valid = np.isfinite(gradients).all(axis=1)
    *_, closest = reference(
        gradients.astype(np.float64), valid, 0.8, 12.0, {"alpha": 0.3, "delta": 0.6}, name == "fedpg"
    )
    assume(closest > 1e-4)
    order = rng.permutation(agents)
    before, after = (judge(name, g, sigma=0.8, batch=12.0) for g in (gradients, gradients[order]))
    assert after.accepted.tolist() == before.accepted[order].tolist()
    assert after.rule == before.rule
    np.testing.assert_allclose(after.distances, before.distances[order], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(after.gradient, before.gradient, rtol=1e-4, atol=1e-4)
    if name != "mean" and before.centre >= 0:
        assert order[after.centre] == before.centre


# Far away, and fewer


@pytest.mark.parametrize("lie", [1e8, 1e30])
@pytest.mark.parametrize("name", ["fedpg", "majority"])
def test_huge_liars_cannot_hide_others_or_stop_a_large_federation(name, lie):
    gradients = np.random.default_rng(0).uniform(-0.1, 0.1, (40, 5))
    gradients[::3] = lie  # 14 of 40
    gradients[1:3] = 100.0
    verdict = judge(name, gradients, batch=1e6, alpha=0.4)
    assert verdict.accepted.tolist() == [i % 3 != 0 and i > 2 for i in range(40)]


def test_with_an_estimated_sigma_the_fallback_is_never_stricter_than_the_rule_it_falls_back_from():
    # V = 2 log(2K / delta) = 7.2 > B = 2, so R1's radius is 3.7: the seven honest pairs are within it, six of them not
    # within 2 sigma. Three replies did not come, so R1 falls short of (1 - alpha) K.
    gradients, lengths = on_a_line(0, 0, 0, 0, 2.5, 2.5, 0, 0, 0, 0), [2] * 6 + [0] * 4
    influences = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    influences = influences / judge("majority", gradients, sigma="auto", influences=influences).sigma  # so that it is 1
    settings = {"batch": 2.0, "lengths": lengths}
    fixed = judge("majority", gradients, **settings)
    estimated = judge("majority", gradients, sigma="auto", influences=influences, **settings)
    assert float(estimated.sigma) == pytest.approx(1.0, rel=1e-5)
    assert (fixed.rule, estimated.rule) == ("nobody", "R2")
    assert estimated.accepted.sum() == 6
    assert float(estimated.threshold) == pytest.approx(2 * math.sqrt(2 * math.log(20 / 0.6) / 2), rel=1e-5)
