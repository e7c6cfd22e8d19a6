"""Steps that are packed, episode after episode, give what the same steps give side by side."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import example, given, settings
from hypothesis import strategies as st

import probes
from fedpg import make_config
from fedpg.estimators import (
    correction,
    gradient,
    influences,
    log_probs,
    make_estimator,
    scores,
    weighted_score,
)
from fedpg.policies import categorical_mlp, make_mlp
from fedpg.trajectories import PACKED_BLOCK, Trajectories, join

pytestmark = pytest.mark.slow

STEPS, LANES, FEATURES = 900, 5, 3
BOX = spaces.Box(-1.0, 1.0, (2,))
KINDS = {"discrete": ("paper", spaces.Discrete(3)), "box": ("paper", BOX), "box of the figures": ("released", BOX)}
# Beyond one block of a single episode (an eighth of the others') and of several.
LENGTHS = st.lists(
    st.one_of(st.just(0), st.integers(1, STEPS), st.sampled_from([1, PACKED_BLOCK // 8, PACKED_BLOCK // 8 + 1, STEPS])),
    min_size=LANES,
    max_size=LANES,
)


def both_layouts(lengths: list[int], discrete: bool, seed: int = 0) -> tuple[Trajectories, Trajectories]:
    """The same steps, side by side with padding and one episode after another; what is beyond them is no number."""
    rng = np.random.default_rng(seed)
    lengths = np.asarray(lengths, np.int32)
    alive = np.arange(STEPS)[:, None] < lengths
    rewards = np.where(alive, rng.normal(size=alive.shape), 0.0)
    seen = np.where(alive, rng.normal(size=(FEATURES, *alive.shape)), np.nan).astype(np.float32)
    done = rng.integers(0, 3, alive.shape).astype(np.int32)
    if not discrete:
        done = np.where(alive, rng.normal(size=(2, *alive.shape)), np.nan).astype(np.float32)

    def pack(dense: np.ndarray) -> np.ndarray:  # [..., T, B] -> [S, ...]
        steps = [np.moveaxis(dense[..., :n, i], -1, 0) for i, n in enumerate(lengths)]
        size = (STEPS * len(lengths) + PACKED_BLOCK, *dense.shape[:-2])
        out = np.full(size, np.nan if dense.dtype.kind == "f" else 1, dense.dtype)
        out[: lengths.sum()] = np.concatenate(steps)
        return out

    starts = (np.cumsum(lengths) - lengths).astype(np.int32)
    packed = probes.trajectories(pack(seen), pack(done), rewards, lengths, starts)
    return probes.trajectories(seen, done, rewards, lengths), packed


@functools.cache
def two_policies(policy):
    """Not too far from each other: importance weights of 900 steps are large numbers."""
    theta = np.asarray(policy.init(jax.random.key(0)))
    other = theta + 0.01 * np.random.default_rng(1).normal(size=theta.shape).astype(np.float32)
    return jax.device_put((policy.unravel(theta), policy.unravel(other)))


@functools.cache
def everything(kind: str):
    """All that is computed from trajectories, of all lanes and of some; both layouts."""
    preset, actions = KINDS[kind]
    c = make_config("LunarLander-v3", preset)
    policy = make_mlp(FEATURES, actions, (4,), c.activation, c.gaussian)
    estimator = make_estimator(c.estimator, c.discount, c.baseline, c.importance)
    params, other = two_policies(policy)

    def compute(t: Trajectories, first: jax.Array):
        two, one = t.take(first, 2), t.take(first, 1)
        return {
            "log pi": log_probs(policy, params, t),
            "gradient": gradient(estimator, policy, params, t),
            "correction": correction(estimator, policy, params, other, t),
            "influences": influences(estimator, policy, params, t),
            "of two": (log_probs(policy, params, two), gradient(estimator, policy, params, two)),
            "of one": (log_probs(policy, params, one), gradient(estimator, policy, params, one)),
        }

    return jax.jit(compute)


def assert_same(packed, dense, scale: float = 1e-3):
    """To the rounding of sums in another order."""
    for (path, mine), theirs in zip(jax.tree_util.tree_leaves_with_path(packed), jax.tree.leaves(dense), strict=True):
        where = jax.tree_util.keystr(path)
        theirs = np.asarray(theirs)
        assert np.isfinite(theirs).all(), where
        np.testing.assert_allclose(
            mine, theirs, rtol=1e-3, atol=1e-4 * np.abs(theirs).max(initial=scale), err_msg=where
        )


@pytest.mark.parametrize("kind", KINDS)
@given(lengths=LENGTHS, first=st.integers(0, LANES - 2))
@example(lengths=[0, 0, 700, 0, 0], first=0)
@example(lengths=[0, 900, 0, 900, 900], first=2)
@example(lengths=[900] * LANES, first=3)
@example(lengths=[0] * LANES, first=1)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_packed_steps_give_what_the_same_steps_give_side_by_side(kind, lengths, first):
    compute = everything(kind)
    dense, packed = both_layouts(lengths, kind == "discrete", sum(lengths))
    mine, theirs = compute(packed, first), compute(dense, first)
    # The deviation of one episode from the mean of one is what rounding leaves of a gradient.
    assert_same(mine.pop("influences"), theirs.pop("influences"), np.abs(theirs["gradient"]).max(initial=1e-3))
    assert_same(mine, theirs)


def test_packed_steps_are_not_merely_ignored():
    _, packed = both_layouts([0, 300, 0, 900, 41], True)
    computed = everything("discrete")(packed, 3)
    del computed["of one"]  # nothing to compare it with
    assert all(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(computed))
    assert (np.asarray(computed["log pi"]) != 0).sum(axis=0).tolist() == [0, 300, 0, 900, 41]
    assert (np.asarray(computed["of two"][0]) != 0).sum(axis=0).tolist() == [900, 41]


def test_the_score_is_taken_at_steps_spread_over_all_episodes():
    policy = categorical_mlp(FEATURES, (4,), 3, "tanh")
    params, _ = two_policies(policy)
    lengths, count = [0, 257, 900, 0, 643], 12  # 1800 steps: every 150th
    dense, packed = both_layouts(lengths, True)
    taken = jax.jit(lambda t, count: scores(policy, params, t, count), static_argnums=1)
    mine, theirs = (taken(t, count) for t in (packed, dense))
    assert_same(mine, theirs)
    one = jax.jit(lambda s, a: policy.ravel(jax.grad(policy.log_prob)(params, s, a)))
    for n, row in enumerate(np.asarray(mine)):
        np.testing.assert_allclose(
            row, one(packed.observations[150 * n], packed.actions[150 * n]), rtol=1e-4, atol=1e-5
        )
    # Of fewer steps than were wanted, some are taken again.
    few, _ = both_layouts([0, 2, 1, 0, 0], True)
    some = np.asarray(taken(few, 9))
    assert len(np.unique(some.round(5), axis=0)) == 3
    np.testing.assert_array_equal(some[0], some[2])


def test_joined_batches_are_the_batches_of_all_their_episodes():
    policy = categorical_mlp(FEATURES, (4,), 3, "tanh")
    params, _ = two_policies(policy)
    whole = both_layouts([0, 300, 257, 900, 1], True)
    first, second = both_layouts([0, 300, 41], True, seed=1), both_layouts([257, 900], True, seed=2)
    weights = np.random.default_rng(0).normal(size=(STEPS, 5)).astype(np.float32)
    score = jax.jit(lambda t, w: weighted_score(policy, params, t, jnp.where(t.mask, w, 0.0)))
    taken = jax.jit(lambda t, first, count: t.take(first, count), static_argnums=2)
    returns = jax.jit(lambda t: t.returns)
    for layout in (0, 1):
        parts = [first[layout], second[layout]]
        both = join(parts) if layout else jax.jit(join)(parts)
        assert both.lengths.tolist() == [0, 300, 41, 257, 900]
        assert jax.tree.structure(both) == jax.tree.structure(whole[layout])
        apart = [(taken(both, 0, 3), weights[:, :3], parts[0]), (taken(both, 3, 2), weights[:, 3:], parts[1])]
        for mine, w, part in apart:
            assert_same(score(mine, w), score(part, w))
            np.testing.assert_array_equal(returns(mine), returns(part))
        total = sum(np.asarray(score(part, w)) for _, w, part in apart)
        assert_same(score(both, weights), total)


ESTIMATORS = [
    (e, b, i)
    for e, b, i in itertools.product(
        ("standardised", "gpomdp", "reinforce"), ("none", "leave-one-out"), ("step", "decision", "trajectory")
    )
    if (i != "decision" or e == "gpomdp") and (b == "none" or e != "standardised")
]


def test_every_estimator_corrects_packed_steps_alike():
    policy = categorical_mlp(FEATURES, (4,), 3, "tanh")
    params, other = two_policies(policy)
    estimators = [make_estimator(form, 0.99, baseline, importance) for form, baseline, importance in ESTIMATORS]

    @jax.jit
    def ratios(t):
        return log_probs(policy, other, t) - log_probs(policy, params, t)

    @jax.jit
    def all_weights(t, log_ratio):
        return [(each.weights(t), each.corrected(t, log_ratio)) for each in estimators]

    score = jax.jit(lambda t, weights: weighted_score(policy, params, t, weights))
    dense, packed = both_layouts([0, 257, 900, 0, 640], True)
    log_ratio = ratios(dense)
    assert_same(ratios(packed), log_ratio)
    assert np.ptp(log_ratio) > 0.01
    mine, theirs = (jax.tree.leaves(all_weights(t, log_ratio)) for t in (packed, dense))
    assert len(mine) == 2 * len(ESTIMATORS)
    for a, b in zip(mine, theirs, strict=True):
        assert np.array_equal(a, b)
        assert_same(score(packed, a), score(dense, b))
