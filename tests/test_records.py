"""Records: one row per round that other programs can read, about the policy after that round."""

import dataclasses
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tensorboardX.proto.event_pb2 import Event

from fedpg import Config, Records, Run, make_config, train_seeds
from fedpg.aggregators import RULES
from fedpg.plots import plot_curve
from fedpg.problem import OUTCOMES, STATUSES, Problem, outcome_of
from fedpg.training.rounds import LOGGED, evaluated, first_state

SEED = 5
REQUIRED = [
    "round",
    "trajectories",
    "trajectories_agent",
    "trajectories_server",
    "trajectories_total",
    "steps_training",
    "bytes",
    "test_return",
    "train_return",
    "inner_steps",
    "ratio",
    "accepted_honest",
    "accepted_byzantine",
    "precision",
    "recall",
    "harm",
    "harm_step",
    "harm_cosine",
    "rule",
    "threshold",
    "distances",
    "norms",
    "seconds",
    "status",
    "outcome",
]


def made_up(accepted: list[list[int]], config: Config, **changes: Any) -> Records:
    """Records of as many rounds as there are rows in `accepted`, the last of them not tested yet."""
    rounds, agents = np.shape(accepted)
    columns: dict[str, Any] = {name: np.ones(rounds) for name in LOGGED}
    columns |= {name: np.ones((rounds, agents)) for name in ("distances", "norms")}
    columns |= {
        "round": np.arange(1, rounds + 1),
        "accepted": np.array(accepted, bool),
        "status": np.zeros((rounds, agents), int),
        "rule": np.ones(rounds, int),
    }
    columns |= {k: np.array(v) for k, v in changes.items()}
    records = Records(config)
    for i in range(rounds):
        records.add_test(np.array([2.0 * i, 2.0 * i + 1]), 10)
        records.add_round({name: values[i] for name, values in columns.items()}, 0.5)
    return records


def column(records: Records, name: str) -> list[Any]:
    return [row.get(name) for row in records.rows()][1:]


@pytest.fixture(scope="module")
def problem(tiny: Callable[..., Problem]) -> Problem:
    return tiny()


@pytest.fixture(scope="module")
def run(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_seeds(problem, [SEED], tmp_path_factory.mktemp("records") / "run")[0]


FIVE = make_config(agents=5, byzantine=2, alpha=0.4)


def test_an_agent_has_one_outcome_and_only_who_answered_is_judged():
    words = {status: [outcome_of(status, accepted) for accepted in (True, False, None)] for status in STATUSES}
    assert words.pop("answered") == ["accepted", "turned away", "not judged"]
    assert words.pop("no answer") == ["absent"] * 3
    assert words.pop("failed at the site") == ["failed"] * 3
    assert all(found == ["unusable"] * 3 for found in words.values())
    assert {*OUTCOMES} == {"accepted", "turned away", "not judged", "unusable", "failed", "absent"}


def test_each_row_says_what_became_of_each_agent():
    status = [[0, 0, 1, 2, 3], [4, 5, 6, 7, 0]]
    records = made_up([[1, 0, 0, 0, 0], [0, 0, 0, 0, 1]], FIVE, status=status)
    assert column(records, "outcome") == [
        ["accepted", "turned away", "absent", "unusable", "unusable"],
        ["failed", "unusable", "unusable", "unusable", "accepted"],
    ]


def test_precision_and_recall_are_of_the_replies_that_the_filter_judged():
    """Who is absent, or whose reply cannot be used, was not found out by the filter."""
    accepted = [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0]]
    status = [[0, 0, 1, 1, 0], [0, 0, 0, 0, 1], [0, 0, 0, 3, 1], [0, 0, 1, 0, 1]]
    records = made_up(accepted, FIVE, status=status)
    assert column(records, "precision") == [1.0, 0.5, None, None]
    assert column(records, "recall") == [1.0, 1.0, None, 0.0]


def test_precision_and_recall_are_those_of_the_agents_that_were_turned_away():
    records = made_up([[1, 1, 1, 0, 0], [1, 0, 1, 0, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1]], FIVE)
    assert column(records, "accepted_honest") == [3, 2, 3, 0, 2]
    assert column(records, "accepted_byzantine") == [0, 1, 2, 0, 2]
    assert column(records, "precision") == [1.0, 0.5, None, 0.4, 0.0]
    assert column(records, "recall") == [1.0, 0.5, 0.0, 1.0, 0.0]


def test_without_byzantine_agents_there_is_no_recall():
    records = made_up([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]], dataclasses.replace(FIVE, byzantine=0))
    assert column(records, "recall") == [None, None]
    assert column(records, "precision") == [None, 0.0]


def test_trajectories_add_up_over_rounds_agents_and_server():
    records = made_up([[1] * 5] * 3, FIVE, counted=[6, 7, 8], batch=[12, 20, 15], server_trajectories=[4, 0, 8])
    assert column(records, "trajectories") == [6, 13, 21]
    assert column(records, "trajectories_agent") == [12, 32, 47]
    assert column(records, "trajectories_server") == [4, 4, 12]
    assert column(records, "trajectories_total") == [5 * 12 + 4, 5 * 32 + 4, 5 * 47 + 12]


def test_steps_and_bytes_add_up_without_those_of_evaluations():
    records = made_up([[1] * 5] * 2, FIVE, agent_steps=[100, 50], server_steps=[7, 0], bytes=[40, 40])
    assert column(records, "steps_training") == [107, 157]
    assert column(records, "bytes") == [40, 80]


@pytest.mark.slow
def test_the_bytes_of_a_round_are_those_of_its_vectors_both_ways(tiny: Callable[..., Problem]):
    problem = tiny(agents=5, byzantine=0, attack="random-noise", batch=(4, 4))
    (run,) = train_seeds(problem, [0])
    row = list(run.records.rows())[1]
    assert row["bytes"] == 2 * 5 * 4 * problem.policy.size


def test_a_row_has_the_evaluation_of_the_policy_after_its_round():
    records = made_up([[1] * 5] * 3, FIVE)
    returns = [row["test_return"] for row in records.rows()]
    assert returns == [0.5, 2.5, 4.5, None]
    assert np.isnan(records.test_returns[-1])
    records.add_test(np.array([7.0, 9.0]), 10)
    assert [row["test_return"] for row in records.rows()] == [0.5, 2.5, 4.5, 8.0]
    assert list(records.test_returns) == [0.5, 2.5, 4.5, 8.0]


def test_return_at_is_that_of_the_first_policy_with_so_many_trajectories():
    records = made_up([[1] * 5] * 3, FIVE, counted=[10, 10, 10])
    records.add_test(np.array([8.0]), 10)
    assert [records.return_at(n) for n in (0, 1, 10, 11, 30, 99)] == [0.5, 2.5, 2.5, 4.5, 8.0, 8.0]


def test_codes_are_written_as_words():
    status = [[0, 1, 2, 3, 0], [0] * 5]
    records = made_up([[1] * 5] * 2, FIVE, status=status, rule=[0, 2])
    assert column(records, "status") == [[STATUSES[s] for s in row] for row in status]
    assert column(records, "rule") == [RULES[0], RULES[2]] == ["nobody", "R2"]


def test_what_is_not_finite_is_null_in_the_file(tmp_path: Path):
    distances = [[0.0, np.inf, np.nan, -np.inf, 1.0]]
    records = made_up([[1] * 5], FIVE, distances=distances, norms=distances, threshold=[np.inf], ratio=[np.nan])
    records.save(tmp_path / "records.jsonl")
    row = json.loads((tmp_path / "records.jsonl").read_text().splitlines()[1], parse_constant=pytest.fail)
    assert row["distances"] == row["norms"] == [0.0, None, None, None, 1.0]
    assert row["threshold"] is row["ratio"] is None


def test_the_mean_harm_is_over_the_rounds_in_which_it_is_known():
    records = made_up([[1] * 5] * 4, FIVE, harm=[8.0, np.nan, 1.0, np.inf], rule=[1, 0, 2, 0])
    assert records.mean_harm() == 4.5
    assert records.mean_harm(last=2) == 1.0
    assert np.isnan(records.mean_harm(last=1))
    assert column(records, "harm") == [8.0, None, 1.0, None]
    assert records.unused == 2
    assert np.isnan(Records(FIVE).mean_harm())
    assert Records(FIVE).unused == 0


@pytest.mark.slow
def test_the_curve_has_a_panel_of_harm_where_somebody_may_do_any(tmp_path: Path):
    def height(**changes: Any) -> int:
        config = dataclasses.replace(FIVE, byzantine=changes.pop("byzantine", 2))
        plot_curve(tmp_path / "curve.png", [made_up([[1] * 5] * 3, config, **changes)], "title")
        return Image.open(tmp_path / "curve.png").size[1]

    nothing = [np.nan] * 3
    assert height() == height(harm=[1.0, np.nan, np.inf], harm_step=nothing)
    assert height() > height(harm=nothing, harm_step=nothing) == height(byzantine=0)


def test_before_the_first_round_there_is_one_row(tmp_path: Path):
    records = Records(FIVE)
    records.save(tmp_path / "records.jsonl")
    assert len(records) == records.steps == 0
    (row,) = map(json.loads, (tmp_path / "records.jsonl").read_text().splitlines())
    assert (row["round"], row["trajectories"], row["test_return"]) == (0, 0, None)


def test_every_line_is_strict_json_with_the_required_columns(run: Run):
    lines = (run.folder / "records.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [row["round"] for row in rows] == list(range(len(run.records) + 1))
    assert all(set(REQUIRED) <= set(row) for row in rows[1:])
    each = ("status", "outcome", "distances", "norms", "accepted")
    assert all(len(row[name]) == 4 for row in rows[1:] for name in each)
    assert rows == list(run.records.rows())


def test_pandas_reads_the_records(run: Run):
    import pandas as pd  # only here: it is large, and every worker imports this file

    table = pd.read_json(run.folder / "records.jsonl", lines=True)
    assert set(REQUIRED) <= set(table.columns)
    assert len(table) == len(run.records) + 1
    assert table["trajectories"].is_monotonic_increasing
    assert table["trajectories"].iloc[-1] >= run.config.trajectories
    np.testing.assert_allclose(table["test_return"], run.records.test_returns)
    assert table["seconds"].iloc[1:].gt(0).all()


def test_the_first_row_is_the_untrained_policy_and_the_last_the_trained_one(problem: Problem, run: Run):
    first, rounds = first_state(problem, SEED), len(run.records)
    last = first._replace(round=rounds, theta=problem.policy.ravel(run.policy.params))
    assert run.records.test_returns[0] == evaluated(problem, first)[0].mean()
    assert run.records.test_returns[-1] == evaluated(problem, last)[0].mean()
    assert run.records.test_returns[0] != run.records.test_returns[-1]


def events(folder: Path) -> Iterator[Event]:
    """The events of a folder: length (8 bytes), its checksum (4), the event, its checksum (4), and so on."""
    for path in sorted(folder.glob("events.out.tfevents.*")):
        raw, at = path.read_bytes(), 0
        while at < len(raw):
            (length,) = struct.unpack_from("<Q", raw, at)
            yield Event.FromString(raw[at + 12 : at + 12 + length])
            at += 16 + length


def scalars(folder: Path, tag: str) -> dict[int, float]:
    return {e.step: v.simple_value for e in events(folder) for v in e.summary.value if v.tag == tag}


def test_tensorboard_gets_the_returns_and_the_filter_round_by_round(run: Run):
    rounds = len(run.records)
    test = scalars(run.folder, "return/test")
    assert sorted(test) == list(range(rounds + 1))
    np.testing.assert_allclose([test[i] for i in range(rounds + 1)], run.records.test_returns, rtol=1e-6)
    honest = scalars(run.folder, "aggregator/accepted_honest")
    assert [honest[i + 1] for i in range(rounds)] == list(run.records.accepted()[0])
    train = scalars(run.folder, "return/train")
    np.testing.assert_allclose([train[i + 1] for i in range(rounds)], run.records.column("train_return"))
    harm = scalars(run.folder, "aggregator/harm")
    measured = dict(enumerate(run.records.column("harm"), start=1))
    assert harm
    assert harm == pytest.approx({i: value for i, value in measured.items() if np.isfinite(value)}, rel=1e-6)
