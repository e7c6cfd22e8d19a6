"""Does a column of a matrix product depend on the columns beside it? Counted and timed for the kernels of several CPUs.

    python studies/columns.py                                           # half a minute
    python studies/columns.py --numbers 1e9 --forms "tiles of 16"       # a quarter of an hour

A policy of HalfCheetah's size (17-64-64-6, tanh) acts on 640 observations at once, and on random parts of them in
random order. Counted are the actions that come out with other bits, timed is one evaluation for 8, 96 and 240
observations.
"""

import argparse
import itertools
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from fedpg import columns

SIZES = (17, 64, 64, 6)
WIDEST = 640
KERNELS = ("Nehalem", "Sandybridge", "Haswell", "Zen", "SkylakeX")

rng = np.random.default_rng(0)
WEIGHTS = [rng.normal(0, n**-0.5, (m, n)).astype(np.float32) for n, m in itertools.pairwise(SIZES)]
BIASES = [rng.normal(0, 0.1, (m, 1)).astype(np.float32) for m in SIZES[1:]]

Product = Callable[[np.ndarray, np.ndarray], np.ndarray]


def one_by_one(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.matmul(w, x.T[:, :, None])[:, :, 0].T


def in_tiles(tile: int) -> Product:
    def product(w: np.ndarray, x: np.ndarray) -> np.ndarray:
        out = np.empty((w.shape[0], x.shape[1]), x.dtype)
        np.matmul(w, columns._tiles(x, tile), out=columns._tiles(out, tile))
        return out

    return product


FORMS: dict[str, tuple[Product, type]] = {
    "one product": (np.matmul, np.float32),
    "one product, float64": (np.matmul, np.float64),
    "one by one": (one_by_one, np.float32),
    "tiles of 32": (in_tiles(32), np.float32),
    "tiles of 16": (columns.dense, np.float32),
    "tiles of 8": (in_tiles(8), np.float32),
}


def act(form: str, x: np.ndarray) -> np.ndarray:
    product, kind = FORMS[form]
    x = np.ascontiguousarray(x, kind)
    for w, b in zip(WEIGHTS, BIASES, strict=True):
        x = np.tanh(product(w.astype(kind, copy=False), x) + b)
    return x.astype(np.float32)


def differing(form: str, numbers: float) -> float:
    """The share of actions that come out differently in another company, of so many."""
    bad = total = 0
    while total < numbers:
        x = rng.normal(size=(SIZES[0], WIDEST)).astype(np.float32)
        whole = act(form, x)
        for count in (32, 64, 96, 160, 320, 640):
            some = rng.permutation(WIDEST)[:count]
            bad += int((act(form, x[:, some]) != whole[:, some]).sum())
            total += count * SIZES[-1]
    return bad / total


def microseconds(form: str, count: int) -> float:
    """The best of several, for an evaluation of so many observations, padded as they are."""
    x = rng.normal(size=(SIZES[0], -(-count // 32) * 32 if form == "tiles of 32" else columns.padded(count)))
    x = x.astype(np.float32)
    best = float("inf")
    for _ in range(10):
        began = time.perf_counter()
        for _ in range(100):
            act(form, x)
        best = min(best, (time.perf_counter() - began) / 100)
    return best * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numbers", type=float, default=1e6, help="actions to compare, for each form and kernel")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), help="ways to multiply")
    parser.add_argument("--here", action="store_true", help="with the kernels of this process only")
    chosen = parser.parse_args()
    if not chosen.here:
        print(f"{platform.processor() or platform.machine()}, NumPy {np.__version__}, {columns.blas()}", flush=True)
        for kernel in KERNELS:
            command = [sys.executable, __file__, "--here", "--numbers", str(chosen.numbers), "--forms", *chosen.forms]
            subprocess.run(command, env=os.environ | {"OPENBLAS_CORETYPE": kernel}, check=True)
        return
    for form in chosen.forms:
        times = ", ".join(f"{microseconds(form, n):4.0f}" for n in (8, 96, 240))
        share = differing(form, chosen.numbers)
        kernel = os.environ.get("OPENBLAS_CORETYPE", "as found")
        print(f"{kernel:12} {form:22} {share:8.2%} differ   us for 8, 96, 240: {times}", flush=True)


if __name__ == "__main__":
    main()
