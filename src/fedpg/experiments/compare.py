"""Whether two runs are the same run: to the bit, to rounding for some rounds, or not.

Processors round differently, and so do XLA and BLAS on them. A difference in the last digits stays small until an
action falls on the other side of a threshold; from then on two runs go different ways, with the same code. So the same
code on another machine shows in the first rounds, and other code shows there too.
"""

from typing import NamedTuple

import numpy as np

from fedpg.experiments.store import COLUMNS, Stored

ROUNDING = 1e-4
"""Relative. Returns of HalfCheetah's first rounds differ by up to 3e-6 between kernels (docs/environments.md)."""
ENOUGH = 5
"""Rounds that must agree, unless fewer were made. On CartPole the oldest and the newest kernels agree for nine."""


class Likeness(NamedTuple):
    """How far two runs agree."""

    bits: bool
    """All numbers of all rounds are the same to the bit, as far as both runs go."""
    agreed: int
    """Rounds, from the first on, whose numbers are the same to rounding; -1 if the untrained policies differ."""
    compared: int

    @property
    def same(self) -> bool:
        """Whether the same code can have made both."""
        return self.bits or self.agreed >= min(ENOUGH, self.compared)

    def __str__(self) -> str:
        if self.bits:
            return "same bits"
        if not self.same:
            return "different" if self.agreed < 0 else f"different after round {self.agreed}"
        return f"same to rounding until round {self.agreed}"


def compare(mine: Stored, theirs: Stored) -> Likeness:
    """How far two runs agree; row 0 of a run is its untrained policy, row t what round t made of it."""
    rows = min(len(mine.returns), len(theirs.returns))
    a, b = ({name: run.columns[name][:rows] for name in COLUMNS} for run in (mine, theirs))
    bits = all(np.array_equal(a[name], b[name]) for name in COLUMNS)
    close = np.isclose(a["test_return"], b["test_return"], rtol=ROUNDING, atol=ROUNDING)
    close &= np.logical_and.reduce([a[name] == b[name] for name in COLUMNS if name != "test_return"])
    agreed = int(np.argmin(close)) if not close.all() else rows
    return Likeness(bits, agreed - 1, rows - 1)
