"""W x in NumPy for many columns x, each the same to the bit whoever stands beside it.

BLAS picks its kernels by the processor and by the shape of a product, and with the kernel the order in which a column's
products are summed. On AVX2, OpenBLAS gives a column other last bits in a product of 32 columns than in one of 48, and
in the first 24 columns than in the rest. So every product here has one shape, TILE columns: how many columns there are,
and in which tile one stands, cannot matter. Within a tile the columns are whole vectors of every kernel, so that its
place cannot matter either; that is measured (`studies/columns.py`, docs/environments.md), and checked again on the
machine at hand. Where it does not hold, columns are multiplied one by one.
"""

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

TILE = 16
"""Columns of a product. 32 are too many for AVX2's kernels, which divide them into 24 and 8; 8 take longer."""


def padded(columns: int) -> int:
    """So many columns in whole tiles."""
    return -(-columns // TILE) * TILE


def dense(w: Any, x: Any) -> Any:
    """W x for columns [n, N], N in whole tiles; or for one vector [n], which may have other last bits than a column.

    A tile also keeps BLAS to one thread. Its other threads, once woken, spin for a while on the cores that a simulator
    needs, which halves its speed.
    """
    tile = tile_for(w.shape)
    x = np.ascontiguousarray(x)  # in another order it would be for another kernel
    if x.ndim == 1 or x.shape[1] == tile:
        return np.matmul(w, x)
    out = np.empty((w.shape[0], x.shape[1]), x.dtype)
    np.matmul(w, _tiles(x, tile), out=_tiles(out, tile))
    return out


def _tiles(x: Any, tile: int) -> Any:
    """A view of [n, N] as [N / tile, n, tile]."""
    return x.reshape(x.shape[0], -1, tile).transpose(1, 0, 2)


@functools.cache
def tile_for(shape: tuple[int, int]) -> int:
    """How many columns a product with W of this shape has on this machine: TILE, or 1 where their place matters."""
    return TILE if place_is_nothing(shape, TILE) else 1


def place_is_nothing(shape: tuple[int, int], tile: int) -> bool:
    """Whether one column comes out the same in every place of a tile, among other columns. Takes about 0.1 ms."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=shape).astype(np.float32)
    column = rng.normal(size=shape[1]).astype(np.float32)
    tiles = _tiles(rng.normal(size=(shape[1], tile * max(tile, TILE))).astype(np.float32), tile)
    places = np.resize(np.eye(tile, dtype=bool), (len(tiles), tile))  # in each tile one place, every one in turn
    tiles.transpose(0, 2, 1)[places] = column
    out = np.matmul(w, tiles).transpose(0, 2, 1)[places]  # [tiles, n]
    alone = np.matmul(w, np.ascontiguousarray(tiles[0]))[:, places[0]]  # as a product of one tile is made
    return bool((out == out[0]).all() and (alone[:, 0] == out[0]).all())


def columns_are_alone(shapes: Iterable[tuple[int, ...]]) -> bool:
    """Whether `dense` keeps its promise on this machine for all weights among the tensors of these shapes."""
    weights = [(shape[0], shape[1]) for shape in shapes if len(shape) == 2]
    return all(place_is_nothing(shape, tile_for(shape)) for shape in weights)


def blas() -> str:
    """The library behind NumPy's products, for people."""
    config: Any = np.show_config(mode="dicts")
    return str((config or {}).get("Build Dependencies", {}).get("blas", {}).get("name", "unknown"))
