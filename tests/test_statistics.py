"""The statistics of stored runs, and the verdict against the paper."""

import dataclasses
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpg import make_config
from fedpg.experiments import statistics
from fedpg.experiments.paper import READING_ERROR, PaperCurve
from fedpg.experiments.report import READING
from stored import stored_run

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)


def test_the_mean_and_its_intervals_at_each_point_are_those_of_the_seeds_that_got_there():
    runs = [stored_run(seed=s, returns=[0, v / 2, v]) for s, v in enumerate([10, 20, 60])]
    runs.append(stored_run(seed=3, returns=[0, 500, 1000], length=40))
    at = np.array([0.0, 20, 50, 100, 101])
    found = statistics.band(runs, at)
    assert found.seeds.tolist() == [4, 4, 3, 3, 0]
    assert found.mean[:4].tolist() == pytest.approx([0, (5 + 10 + 30 + 500) / 4, 15, 30])
    assert math.isnan(found.mean[4])
    # All resamples of three seeds can be counted: the 90% interval of their mean.
    means = sorted(np.mean(x) for x in np.stack(np.meshgrid(*[[10, 20, 60]] * 3), -1).reshape(-1, 3))
    assert means[0] <= found.low95[3] <= found.low90[3] <= 30 <= found.high90[3] <= found.high95[3] <= means[-1]
    assert found.low90[3] == pytest.approx(np.percentile(means, 5), abs=4)
    single = statistics.band(runs[:1], at)
    assert np.isnan(single.low90).all()
    assert single.mean[3] == 10


@SETTINGS
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12))
def test_the_interquartile_mean_is_that_of_the_middle_half(values: list[float]):
    repeated = np.sort(np.repeat(values, 4))  # four times the values: the middle half is whole numbers of them
    middle = repeated[len(values) : 3 * len(values)]
    assert statistics.interquartile_mean(np.array(values)) == pytest.approx(middle.mean(), abs=1e-9)


def test_the_area_is_the_average_return_over_the_length():
    runs = [stored_run(returns=[0, 10, 10]), stored_run(returns=[5, 5])]
    assert statistics.areas(runs, 100) == pytest.approx([7.5, 5])
    assert statistics.areas(runs, 50) == pytest.approx([5, 5])
    assert statistics.finals(runs, 100) == pytest.approx([10, 5])
    later = [stored_run(returns=[0, 10, 40]), stored_run(returns=[0, 10], length=50)]
    assert statistics.finals(later, 50) == pytest.approx([10, 10])  # as far as both got


def test_a_run_is_there_once_three_evaluations_are_on_average():
    runs = [stored_run(returns=r) for r in ([0, 500, 0, 400, 480, 470], [500, 500, 500], [0, 1], [0, 10, 20, 30])]
    assert statistics.arrivals(runs, 450) == [5, 2, None, None]
    assert statistics.arrivals(runs, 20) == [2, 2, None, 3]


def test_counted_in_all_trajectories_no_policy_is_credited_before_it_was_paid_for():
    run = stored_run(returns=[1, 2, 3])  # at 0, 50 and 100, in all at 0, 550 and 1100
    at = np.array([0, 1, 549, 550, 1099, 1100, 1101.0])
    (values,) = statistics.returns_at([run], at, total=True)
    assert values[:-1].tolist() == [1, 1, 1, 2, 2, 3]
    assert math.isnan(values[-1])
    assert statistics.returns_at([run], np.array([0, 1, 50, 51.0]))[0].tolist() == [1, 2, 2, 3]


def test_precision_and_recall_of_the_filter():
    config = make_config(preset="released", agents=10, byzantine=3)
    run = stored_run(config)
    run.columns["accepted_honest"][1:] = [7, 5]
    run.columns["accepted_byzantine"][1:] = [3, 1]
    did = statistics.filtering([run])
    assert did.honest_kept == pytest.approx(12 / 14)
    assert did.byzantine_kept == pytest.approx(4 / 6)
    assert did.precision == pytest.approx(2 / 4)
    assert did.recall == pytest.approx(2 / 6)
    assert did.rules == {"R1": 1.0}
    assert math.isnan(statistics.filtering([stored_run()]).recall)


def test_harm_is_the_mean_over_the_rounds_that_measured_it():
    new, old = stored_run(), stored_run(seed=1)
    new = dataclasses.replace(new, columns={**new.columns, "harm": np.array([np.nan, 0.5, 1.5], np.float32)})
    did = statistics.filtering([new, old])
    assert did.harm == pytest.approx(1.0)
    assert math.isnan(did.harm_step)
    assert math.isnan(statistics.filtering([old]).harm)


@pytest.mark.parametrize(
    ("ours", "half", "word"),
    [
        ([100, 100], 10.0, "inside"),
        ([109, 109], 10.0, "inside"),
        ([114, 114], 10.0, "above"),
        ([86, 86], 10.0, "below"),
        ([90, 130, 95, 120, 100], math.nan, "inside*"),
        ([120, 130, 125, 125, 120], math.nan, "above*"),
        ([60, 70, 60, 70, 65], math.nan, "below*"),
        ([60, 70, 60, 70], math.nan, ""),  # too few for an interval of our own
        ([100], math.nan, ""),
    ],
)
def test_the_verdict_against_the_papers_band(ours: list[float], half: float, word: str):
    paper = PaperCurve(np.array([0.0, 100.0]), np.array([0.0, 100.0]), np.array([half, half]))
    runs = [stored_run(seed=i, returns=[v, v]) for i, v in enumerate(ours)]
    assert READING_ERROR["CartPole-v1"] == 3
    assert statistics.verdict("CartPole-v1", statistics.band(runs, np.array([100.0])), 0, paper) == word


def test_no_verdict_where_only_some_seeds_got():
    paper = PaperCurve(np.array([100.0, 200.0]), np.zeros(2), np.ones(2))
    runs = [stored_run(seed=i, returns=[500, 500], length=length) for i, length in enumerate((100, 200))]
    found = statistics.band(runs, np.array([100.0, 200.0]))
    assert [statistics.verdict("CartPole-v1", found, i, paper) for i in (0, 1)] == ["above", ""]


def test_a_final_return_is_of_the_end_however_short_the_run():
    assert statistics.finals([stored_run(returns=[0, *range(1, 11)])], 100) == pytest.approx([9.5])  # two of ten
    assert statistics.finals([stored_run(returns=[0, *range(1, 201)])], 100) == pytest.approx([190.5])  # twenty


def test_no_verdict_where_the_papers_curve_cannot_be_read_off_well():
    paper = PaperCurve(np.array([2000.0, 3000.0]), np.zeros(2), np.ones(2))
    runs = [stored_run(seed=i, returns=[500, 500], length=3000) for i in range(2)]
    found = statistics.band(runs, np.array([2000.0, 3000.0]))
    assert [statistics.verdict("LunarLander-v3", found, i, paper) for i in (0, 1)] == ["", "above"]


def test_an_exact_replication_is_inside_as_often_as_simulation_says():
    draw = np.random.default_rng(0).normal(size=(2, 200_000))
    for seeds in (10, 3, 1):
        inside = np.abs(draw[0] / np.sqrt(seeds) - draw[1] / np.sqrt(10)) < 1.645 / np.sqrt(10)
        assert statistics.inside_by_luck(seeds) == pytest.approx(inside.mean(), abs=0.005)


@pytest.mark.parametrize(("seeds", "words"), [(10, "84% (90%)"), (3, "61% (75%)"), (2, "50% (50%)")])
def test_the_page_says_how_often_our_intervals_hold_the_true_mean(seeds: int, words: str):
    means = statistics.resampled(seeds) @ np.random.default_rng(1).normal(size=(seeds, 3000)) / seeds
    low90, high90, low95, high95 = np.percentile(means, (5, 95, 2.5, 97.5), axis=0)
    held = [((low < 0) & (high > 0)).mean() for low, high in ((low90, high90), (low95, high95))]
    assert words in READING
    assert held == pytest.approx([int(x) / 100 for x in re.findall(r"\d+", words)], abs=0.03)
