"""Numbers from stored runs: curves over seeds with bootstrap bands, final returns, and the paper's beside them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedpg.aggregators import RULES
from fedpg.experiments.paper import READABLE_FROM, READING_ERROR, PaperCurve
from fedpg.experiments.store import Stored

RESAMPLES = 4000
GRID = 201
LAST = 20
"""A run's final return is the mean of so many last evaluations, but of no more than a fifth of them."""
STARRED_FROM = 5
"""Seeds below which our own interval is too narrow to judge the paper's mean by (see the report's `READING`)."""


class Band(NamedTuple):
    """The mean over seeds and its bootstrap intervals, at each point; NaN where there is none."""

    runs: int
    at: np.ndarray  # [G] trajectories
    seeds: np.ndarray  # [G] how many seeds got there
    mean: np.ndarray  # [G]
    low90: np.ndarray
    high90: np.ndarray
    low95: np.ndarray
    high95: np.ndarray


def returns_at(runs: Sequence[Stored], at: np.ndarray, total: bool = False) -> np.ndarray:
    """Each run's return at each point; NaN beyond a run's end.  [runs, G]

    Counted as the paper does, that of its first policy with at least so many trajectories, as `Records.return_at`. Of
    the `total`, that of its last policy with at most so many: what was paid for a policy is not credited before.
    """
    name = "trajectories_total" if total else "trajectories"
    out = np.full((len(runs), len(at)), np.nan)
    for values, run in zip(out, runs, strict=True):
        count = run.columns[name]
        row = np.searchsorted(count, at, side="right") - 1 if total else np.searchsorted(count, at)
        there = (row >= 0) & (at <= count[-1])
        values[there] = run.returns[row[there]]
    return out


def resampled(seeds: int, resamples: int = RESAMPLES) -> np.ndarray:
    """How often each seed is drawn in each bootstrap sample; the same every time.  [R, seeds]"""
    return np.random.default_rng(0).multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples)


def band(runs: Sequence[Stored], at: np.ndarray, total: bool = False) -> Band:
    """Mean and percentile bootstrap over the seeds that got to each point; no interval for a single seed."""
    values = returns_at(runs, at, total)  # [n, G]
    there = ~np.isnan(values)
    out = np.full((5, len(at)), np.nan)
    for pattern in np.unique(there, axis=1).T:  # runs end where they end: points that the same ones got to, together
        count = int(pattern.sum())
        where = (there == pattern[:, None]).all(axis=0)
        if count:
            out[0, where] = values[pattern][:, where].mean(axis=0)
        if count > 1:
            means = resampled(count) @ values[pattern][:, where] / count  # [R, g]
            out[1:, where] = np.percentile(means, (5, 95, 2.5, 97.5), axis=0)
    return Band(len(runs), at, there.sum(axis=0), *out)


def grid_of(runs: Sequence[Stored], total: bool = False) -> np.ndarray:
    """Points from 0 to where the longest run ended; for the total, whose axis is logarithmic, at equal ratios."""
    name = "trajectories_total" if total else "trajectories"
    end = max(float(run.columns[name][-1]) for run in runs)
    return np.append(0.0, np.geomspace(min(50.0, end), end, GRID - 1)) if total and end else np.linspace(0, end, GRID)


def interquartile_mean(values: np.ndarray) -> float:
    """The mean of the middle half of the values, those at its edges by the share that lies inside."""
    ordered, n = np.sort(values), len(values)
    edges = np.arange(n + 1) / n
    weights = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0.0, None)
    return float(ordered @ weights / weights.sum())


def finals(runs: Sequence[Stored], until: float) -> np.ndarray:
    """The mean of each run's last evaluations up to `until` trajectories, the untrained policy's only if alone."""
    there = [run.returns[1:][run.trajectories[1:] <= until] for run in runs]
    last = [x[-max(1, min(LAST, len(x) // 5)) :] for x in there]
    return np.array([x.mean() if len(x) else run.returns[0] for x, run in zip(last, runs, strict=True)], float)


def areas(runs: Sequence[Stored], until: float) -> np.ndarray:
    """The area under each run's curve over its length, up to `until` trajectories: its average return."""
    out = []
    for run in runs:
        end = min(until, float(run.reached))
        inside = run.trajectories < end
        x = np.append(run.trajectories[inside], end)
        y = np.append(run.returns[inside], np.interp(end, run.trajectories, run.returns))
        out.append(np.trapezoid(y, x) / end if end > 0 else float(run.returns[0]))
    return np.array(out, float)


def arrivals(runs: Sequence[Stored], target: float) -> list[int | None]:
    """The row of each run at which the mean of its last three evaluations first is `target`; None if it never is."""
    found: list[int | None] = []
    for run in runs:
        means = np.convolve(run.returns, np.full(3, 1 / 3), mode="valid")  # of rows i, i + 1, i + 2
        there = np.flatnonzero(means >= target)
        found.append(int(there[0]) + 2 if len(there) else None)
    return found


class Filtering(NamedTuple):
    """What the aggregator did, over all rounds of some runs."""

    honest_kept: float
    """The share of honest replies that were accepted."""
    byzantine_kept: float
    precision: float
    """Of the rejected replies, the share that was Byzantine."""
    recall: float
    """Of the Byzantine replies, the share that was rejected."""
    rules: dict[str, float]
    """The share of rounds by the rule that decided."""
    harm: float
    """How far the aggregate lay from the mean of the honest, in its standard errors: the mean over rounds."""
    harm_step: float
    """The same of the optimiser's step."""


def filtering(runs: Sequence[Stored]) -> Filtering:
    """Its record; NaN where there is nothing to divide by."""
    byzantine = runs[0].config.byzantine
    honest = runs[0].config.agents - byzantine
    rounds = sum(len(run.returns) - 1 for run in runs)
    kept = sum(int(run.columns["accepted_honest"][1:].sum()) for run in runs)
    let_in = sum(int(run.columns["accepted_byzantine"][1:].sum()) for run in runs)
    caught, lost = rounds * byzantine - let_in, rounds * honest - kept
    rule = np.concatenate([run.columns["rule"][1:] for run in runs])
    return Filtering(
        honest_kept=_share(kept, rounds * honest),
        byzantine_kept=_share(let_in, rounds * byzantine),
        precision=_share(caught, caught + lost),
        recall=_share(caught, rounds * byzantine),
        rules={name: _share(int((rule == i).sum()), rounds) for i, name in enumerate(RULES) if (rule == i).any()},
        harm=_mean_known(runs, "harm"),
        harm_step=_mean_known(runs, "harm_step"),
    )


def _mean_known(runs: Sequence[Stored], name: str) -> float:
    """The mean over the rounds in which it was measured; runs of older versions have none."""
    values = np.concatenate([run.columns.get(name, np.zeros(0)) for run in runs])
    known = values[np.isfinite(values)].astype(float)
    return float(known.mean()) if known.size else float("nan")


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def inside_by_luck(seeds: int, theirs: int = 10) -> float:
    """P(|Z| < 1.645 / sqrt(1 + theirs / seeds)): the mean of an exact replication is inside a 90% band of `theirs`."""
    return math.erf(1.645 / math.sqrt(1 + theirs / seeds) / math.sqrt(2))


def verdict(task: str, ours: Band, point: int, paper: PaperCurve) -> str:
    """Where our mean lies: inside the paper's 90% band, widened by the error of reading it off, above it or below.

    Where that band cannot be read off, a star says that the paper's mean is compared with our 95% interval instead. No
    verdict where only some of our seeds got: how those differ from the others is not what the paper is asked about.
    """
    mean, half = paper.at(float(ours.at[point]))
    difference = float(ours.mean[point]) - mean
    some = ours.seeds[point] < ours.runs
    if np.isnan(difference) or some or ours.at[point] < READABLE_FROM.get(task, 0):
        return ""
    side = "above" if difference > 0 else "below"
    if not np.isnan(half):
        return "inside" if abs(difference) <= half + READING_ERROR[task] else side
    if ours.seeds[point] < STARRED_FROM:
        return ""
    low, high = ours.low95[point] - READING_ERROR[task], ours.high95[point] + READING_ERROR[task]
    return "inside*" if low <= mean <= high else f"{side}*"
