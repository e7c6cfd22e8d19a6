"""From repeated curves to hitting times and exponents, with bootstrap intervals over the repetitions."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv  # type: ignore[import-untyped]

BOOTSTRAP = 400


class Estimate(NamedTuple):
    """A number with its 90% interval, by bootstrap unless it is a share."""

    value: float
    low: float
    high: float


def estimate(value: float, draws: np.ndarray) -> Estimate:
    """The value, with the 5% and 95% quantiles of its bootstrap draws."""
    low, high = np.nanquantile(draws, [0.05, 0.95])
    return Estimate(float(value), float(low), float(high))


def binomial(count: int, rounds: int) -> Estimate:
    """A share of independent rounds, with its exact 90% interval (Clopper and Pearson).

    The bootstrap of something that was never seen is [0, 0]; this one is [0, 1 - 0.05^(1/n)], about 3/n.
    """
    low = betaincinv(count, rounds - count + 1, 0.05) if count else 0.0
    high = betaincinv(count + 1, rounds - count, 0.95) if count < rounds else 1.0
    return Estimate(count / rounds, float(low), float(high))


def resamples(repetitions: int, seed: int = 0) -> np.ndarray:
    """How often each repetition is drawn in each bootstrap sample, as weights that sum to 1.  [BOOTSTRAP + 1, R]

    The first row is the sample itself, each repetition once.
    """
    random = np.random.default_rng(seed)
    drawn = random.multinomial(repetitions, np.full(repetitions, 1 / repetitions), size=BOOTSTRAP)
    return np.concatenate([np.ones((1, repetitions)), drawn]) / repetitions


def means(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """The mean over the last axis, and its bootstrap draws.  [BOOTSTRAP + 1, ...]"""
    return np.einsum("br,...r->b...", resamples(values.shape[-1], seed), values)


def hitting(curves: np.ndarray, costs: np.ndarray, epsilon: float, seed: int = 0, average: bool = True) -> np.ndarray:
    """The cost at which E||grad J||^2 <= epsilon, and its bootstrap draws.  [BOOTSTRAP + 1]

    `curves` [T, R] is ||grad J||^2 after each round, `costs` [T, R] the trajectories so far. With `average`, of the
    policy that is uniform over the rounds so far (the theorem's output), else of the last one. Between two rounds it
    is interpolated; NaN where epsilon is not reached.
    """
    if average:
        curves = np.cumsum(curves, axis=0) / np.arange(1, len(curves) + 1)[:, None]
    below, spent = means(curves, seed), means(costs, seed)
    return np.array([_first(curve, cost, epsilon) for curve, cost in zip(below, spent, strict=True)])


def _first(curve: np.ndarray, cost: np.ndarray, epsilon: float) -> float:
    under = curve <= epsilon
    if not under.any():
        return float("nan")
    i = int(np.argmax(under))
    if i == 0:
        return float(cost[0])
    share = (curve[i - 1] - epsilon) / (curve[i - 1] - curve[i])
    return float(cost[i - 1] + share * (cost[i] - cost[i - 1]))


def slope(x: Sequence[float], y: np.ndarray) -> np.ndarray:
    """The exponent p of y = c x^p by least squares in logarithms, for every row of y [..., n]."""
    logs = np.log(np.asarray(x, float))
    centred = logs - logs.mean()
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.log(y) @ centred / (centred @ centred)


def exponent(x: Sequence[float], draws: Sequence[np.ndarray]) -> Estimate:
    """The exponent through the points (x_i, draws_i[0]), with the interval of the same fit to each bootstrap draw."""
    fits = slope(x, np.stack(draws, axis=-1))
    return estimate(fits[0], fits[1:])


def excess_exponent(x: Sequence[float], draws: Sequence[np.ndarray], base: np.ndarray) -> Estimate:
    """The exponent of y - base: the shape of what is added. Draws in which nothing is added have no say."""
    return exponent(x, [np.where(d > base, d - base, np.nan) for d in draws])


def quantity(draws: np.ndarray) -> Estimate:
    """A number and its bootstrap draws, as an estimate."""
    return estimate(draws[0], draws[1:])
