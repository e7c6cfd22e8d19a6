"""What the games say: a matrix of attacks and defences, each defence's worst case, and where floor and ceiling lie."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedpg.arena.games import Game, Result
from fedpg.arena.players import HONEST, NOBODY, ONE, REFERENCES, SERVER, pairs_of
from fedpg.experiments.statistics import resampled


class Score(NamedTuple):
    """A number with its 90% bootstrap interval over seeds; NaN where one seed has none."""

    value: float
    low: float
    high: float


class Standing(NamedTuple):
    """A defence, judged by its worst attack."""

    defence: str
    honest: Score
    """What it learns without liars, as a share of what the plain mean learns."""
    worst: Score
    """Its smallest share over all attacks."""
    by: str
    """The attack that did it."""
    scaled: Score
    """The worst case on the scale from the server alone (0) to the honest federation (1)."""
    average: float
    """Its mean share over all attacks."""


class Matrix(NamedTuple):
    """Attacks and defences, and what was learnt in their games."""

    attacks: tuple[str, ...]
    defences: tuple[str, ...]
    seeds: tuple[int, ...]
    gains: dict[tuple[str, str], np.ndarray]
    """The area under each curve above the untrained policy's return.  [seeds]"""

    def share(self, attack: str, defence: str) -> Score:
        """What was learnt, as a share of what as many honest agents and their plain mean learn."""
        return ratio(self.gains[attack, defence], self.gains[NOBODY, HONEST])

    def scaled(self, attack: str, defence: str) -> Score:
        """On the scale from the server alone (0) to the honest federation (1)."""
        floor = self.gains[NOBODY, SERVER]
        return ratio(self.gains[attack, defence] - floor, self.gains[NOBODY, HONEST] - floor)

    def standings(self) -> list[Standing]:
        """All defences, the best worst case first."""
        found = []
        for defence in self.defences:
            shares = {attack: self.share(attack, defence) for attack in self.attacks}
            by = min(shares, key=lambda attack: np.nan_to_num(shares[attack].value))
            average = float(np.mean([share.value for share in shares.values()]))
            honest, scaled = self.share(NOBODY, defence), self.scaled(by, defence)
            found.append(Standing(defence, honest, shares[by], by, scaled, average))
        return sorted(found, key=lambda standing: -standing.worst.value)

    def references(self) -> dict[str, Score]:
        """The floor and the ceiling, as shares of the honest federation."""
        names = ("as many honest agents, plain mean", "only the honest agents, plain mean", ONE, "the server alone")
        return {name: self.share(*pair) for name, pair in zip(names, REFERENCES, strict=True)}


def matrix_of(
    results: Mapping[Game, Result], attacks: Sequence[str], defences: Sequence[str], seeds: Sequence[int]
) -> Matrix:
    """The matrix of games that have all been played."""

    found = {pair: gains(results, *pair, seeds) for pair in pairs_of(attacks, defences)}
    return Matrix(tuple(attacks), tuple(defences), tuple(seeds), found)


def gains(results: Mapping[Game, Result], attack: str, defence: str, seeds: Sequence[int]) -> np.ndarray:
    """The area under each curve above the untrained policy's return.  [seeds]"""
    found = [results[Game(attack, defence, seed)] for seed in seeds]
    return np.array([result.area - result.curve[0] for result in found])


def ratio(above: np.ndarray, below: np.ndarray) -> Score:
    """The ratio of the means over seeds; where the honest federation is no better than the floor, it has no meaning."""
    if below.mean() <= 0:
        return Score(float("nan"), float("nan"), float("nan"))
    value = float(above.mean() / below.mean())
    if len(above) == 1:
        return Score(value, float("nan"), float("nan"))
    weights = resampled(len(above))
    bottoms = weights @ below
    if (bottoms <= 0).any():  # the seeds do not tell the two apart
        return Score(value, float("nan"), float("nan"))
    low, high = np.percentile((weights @ above) / bottoms, (5, 95))
    return Score(value, float(low), float(high))
