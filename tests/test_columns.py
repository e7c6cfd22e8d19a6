"""The policy in NumPy: what JAX would do, and each column the same to the bit whoever stands beside it."""

import itertools
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from fedpg import columns
from fedpg.policies import categorical_mlp, make_mlp

pytestmark = pytest.mark.kernels

NETWORKS = {
    f"{kind} {observations}-{width}": make(observations, width)
    for (kind, make), (observations, width) in itertools.product(
        {
            "categorical": lambda n, w: categorical_mlp(n, (w, w), 4, "tanh"),
            "categorical relu": lambda n, w: categorical_mlp(n, (w, w), 4, "relu"),
            "paper": lambda n, w: make_mlp(n, spaces.Box(-1, 1, (6,)), (w, w), "tanh", "paper"),
            "released": lambda n, w: make_mlp(n, spaces.Box(-1, 1, (6,)), (w, w), "tanh", "released"),
        }.items(),
        [(8, 16), (17, 64)],
    )
}
COLUMNS = 640


def acting(policy, seed: int = 0):
    """Parameters, observations and noise of many columns, all of NumPy."""
    rng = np.random.default_rng(seed)
    params = {name: rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32) for name, shape in policy.shapes.items()}
    observations = policy.shapes["w0"][1]
    noise = np.asarray(policy.noise(jax.random.key(seed), COLUMNS))
    return params, rng.normal(size=(observations, COLUMNS)).astype(np.float32), noise


@pytest.mark.parametrize("name", NETWORKS)
def test_numpy_acts_as_jax_does(name):
    policy = NETWORKS[name]
    params, seen, noise = acting(policy)
    mine, modes = policy.sample(params, seen, noise, np), policy.mode(params, seen, np)
    theirs, their_modes = jax.jit(lambda s, n: (policy.sample(params, s, n), policy.mode(params, s)))(seen, noise)
    assert isinstance(mine, np.ndarray)
    assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
    assert (modes.dtype, modes.shape) == (their_modes.dtype, their_modes.shape)
    if not name.startswith("categorical"):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(modes, their_modes, rtol=1e-4, atol=1e-5)
        return
    odds = np.stack(jax.jit(lambda s: [policy.log_prob(params, s, jnp.full(COLUMNS, a)) for a in range(4)])(seen))
    at_the_border = np.abs(np.exp(odds).cumsum(axis=0) - noise).min(axis=0) < 1e-5
    assert ((mine == np.asarray(theirs)) | at_the_border).all()
    assert np.take_along_axis(odds, modes[None], axis=0)[0] == pytest.approx(odds.max(axis=0), abs=1e-5)
    assert np.mean(modes == np.asarray(their_modes)) > 0.99
    assert len(np.unique(mine)) == 4
    assert at_the_border.sum() < 3


@pytest.mark.parametrize("name", NETWORKS)
def test_a_column_is_the_same_to_the_bit_however_many_there_are_and_wherever_it_stands(name):
    policy = NETWORKS[name]
    params, seen, noise = acting(policy)
    whole, modes = policy.sample(params, seen, noise, np), policy.mode(params, seen, np)
    order = np.random.default_rng(1).permutation(COLUMNS)
    for count in (16, 32, 48, 64, 80, 144, 304, COLUMNS):
        some = order[:count]
        mine, mode = np.ascontiguousarray(seen[:, some]), policy.mode(params, np.ascontiguousarray(seen[:, some]), np)
        assert np.array_equal(policy.sample(params, mine, noise[:, some], np), whole[..., some]), count
        assert np.array_equal(mode, modes[..., some]), count


@given(
    st.tuples(st.integers(1, 130), st.integers(1, 130)),
    st.integers(1, 12),
    st.integers(0, 2**32 - 1),
)
def test_a_product_of_any_shape_gives_a_column_its_bits_wherever_it_stands(shape, tiles, seed):
    rng = np.random.default_rng(seed)
    w = rng.normal(size=shape).astype(np.float32)
    x = rng.normal(size=(shape[1], tiles * columns.TILE)).astype(np.float32)
    whole = columns.dense(w, x)
    np.testing.assert_allclose(whole, w.astype(np.float64) @ x, rtol=1e-4, atol=1e-4)
    order = rng.permutation(x.shape[1])
    some = order[: columns.TILE * rng.integers(1, tiles + 1)]
    assert np.array_equal(columns.dense(w, np.ascontiguousarray(x[:, some])), whole[:, some])
    assert np.array_equal(columns.dense(w, x[:, some]), whole[:, some]), "however it lies in memory"


def test_the_promise_is_checked_in_a_millisecond():
    shapes = list(NETWORKS["paper 17-64"].shapes.values())
    assert columns.columns_are_alone(shapes)
    took = []
    for _ in range(20):
        columns.tile_for.cache_clear()
        began = time.perf_counter()
        columns.columns_are_alone(shapes)
        took.append(time.perf_counter() - began)
    assert min(took) < 5e-3, "a millisecond, with room for a slow machine"


class OtherBlas:
    """`np.matmul` of a library whose last bits depend on the place of a column in its product, or on the tile."""

    def __init__(self, place: int | None = None, tile: int | None = None) -> None:
        self.place, self.tile = place, tile
        self.matmul = np.matmul

    def __call__(self, w, x, out=None):
        result = self.matmul(w, x, out=out)
        if self.place is not None and x.shape[-1] > 1:
            result[..., self.place] *= np.float32(1 + 1e-6)
        if self.tile is not None and x.ndim == 3:
            result[self.tile] *= np.float32(1 + 1e-6)
        return result


@pytest.fixture
def _forget_tiles():
    columns.tile_for.cache_clear()
    yield
    columns.tile_for.cache_clear()


@pytest.mark.usefixtures("_forget_tiles")
@pytest.mark.parametrize("place", range(columns.TILE))
def test_where_one_place_in_a_tile_is_different_columns_are_multiplied_one_by_one(place, monkeypatch):
    monkeypatch.setattr(np, "matmul", OtherBlas(place=place))
    name = "paper 17-64"
    assert columns.columns_are_alone(list(NETWORKS[name].shapes.values()))
    assert columns.tile_for((64, 64)) == 1
    test_a_column_is_the_same_to_the_bit_however_many_there_are_and_wherever_it_stands(name)


@pytest.mark.usefixtures("_forget_tiles")
def test_a_library_that_keeps_no_promise_is_noticed(monkeypatch):
    monkeypatch.setattr(np, "matmul", OtherBlas(tile=-1))
    assert not columns.columns_are_alone(list(NETWORKS["paper 17-64"].shapes.values()))


@pytest.mark.skipif(
    os.environ.get("OPENBLAS_CORETYPE") not in ("Haswell", "Zen"),
    reason="on AVX2's kernels only, by `make test-kernels`",
)
def test_the_check_sees_what_was_wrong_with_wider_tiles():
    assert columns.blas() != "scipy-openblas" or not columns.place_is_nothing((64, 64), 32)
