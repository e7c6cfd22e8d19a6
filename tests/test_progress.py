"""Lines of progress, for where there is no terminal, and for programs; times in words."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from fedpg import Config, Problem, make_config
from fedpg.cli import main
from fedpg.screen import clock as in_words
from fedpg.screen import seconds_left
from fedpg.sites.ledger import Ledger
from fedpg.sites.table import TableLines
from fedpg.summary import each_table, print_summary
from fedpg.training import progress, train_seeds
from fedpg.training.each import Each
from fedpg.training.progress import Json, Lines, Snapshot, describe

CONFIG = make_config(trajectories=100)


def at(round_: int, trajectories: int) -> Snapshot:
    return Snapshot(round_, trajectories, 20.0, 7.0, 3.0, 1e6)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [50.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_the_time_left_is_at_the_pace_so_far(clock: list[float], capsys: pytest.CaptureFixture[str]):
    lines = Lines(CONFIG)
    lines.update(0, at(1, 20))
    assert "left" not in capsys.readouterr().out  # there is no pace yet
    clock[0] += 10
    lines.update(0, at(3, 60))  # 40 in 10 seconds
    assert capsys.readouterr().out.endswith(" 10 s left\n")
    clock[0] += 1
    lines.update(0, at(4, 70))
    assert capsys.readouterr().out == ""  # not too often
    lines.update(0, at(5, 101))
    assert "101/100 trajectories" in (last := capsys.readouterr().out)  # but always at the end
    assert "left" not in last


def test_a_run_of_few_rounds_ends_with_them(clock: list[float], capsys: pytest.CaptureFixture[str]):
    lines = Lines(CONFIG, rounds=3)
    lines.update(0, at(1, 20))
    clock[0] += 10
    lines.update(0, at(2, 25))  # by its trajectories it would take 150 seconds
    assert capsys.readouterr().out.endswith(" 10 s left\n")
    lines.update(0, at(3, 30))
    assert "round 3" in capsys.readouterr().out


def test_for_programs_every_line_is_an_object_and_the_last_update_is_always_there(
    clock: list[float], capsys: pytest.CaptureFixture[str]
):
    lines = Json(CONFIG)
    lines.note('compiling "it"')
    for round_, trajectories in ((1, 20), (2, 40), (3, 101)):  # the second one comes too soon
        clock[0] += 0.1
        lines.update(7, at(round_, trajectories))
    lines.update(8, at(1, 20)._replace(test_return=math.nan))
    note, *updates = map(json.loads, capsys.readouterr().out.splitlines())
    assert note == {"note": 'compiling "it"'}
    assert [(u["seed"], u["round"], u["trajectories"]) for u in updates] == [(7, 1, 20), (7, 3, 101), (8, 1, 20)]
    assert {u["total"] for u in updates} == {100}
    assert [u["test_return"] for u in updates] == [20.0, 20.0, None]
    assert all(f"round {u['round']} " in u["text"] for u in updates)
    assert {(u["harm"], u["unused"]) for u in updates} == {(None, 0)}
    lines.update(9, at(1, 20)._replace(harm=0.75, unused=2))
    last = json.loads(capsys.readouterr().out)
    assert (last["harm"], last["unused"]) == (0.75, 2)


def test_a_line_says_what_harm_liars_do_and_only_where_it_is_known():
    lying = make_config(trajectories=5000, byzantine=3)
    known, unknown = at(300, 4711)._replace(harm=0.84), at(300, 4711)
    assert " honest 7.0/7 harm 0.8 " in describe(lying, known)
    assert " honest 7.0/7 Byz. 3.0/3 " in describe(lying, unknown)
    assert "harm" not in describe(CONFIG, known)
    assert " 3 unused " in describe(CONFIG, known._replace(unused=3))
    assert "unused" not in describe(CONFIG, known)
    assert len(f"seed 0 4711/5000 {describe(lying, known)} 00:10") <= 80  # as on a terminal


def test_a_line_about_sites_says_how_many_were_accepted_since_nobody_knows_who_lies(
    capsys: pytest.CaptureFixture[str],
):
    names = [f"site-{agent}" for agent in range(10)]
    TableLines(CONFIG, Ledger(names)).update(0, at(3, 100))
    assert " accepted 7.0/10 " in (said := capsys.readouterr().out)
    assert "honest" not in said
    # In a trial some are told to lie, and a simulation has no sites.
    TableLines(make_config(trajectories=100, byzantine=3), Ledger(names)).update(0, at(3, 100))
    assert " honest 7.0/7 Byz. 3.0/3 " in capsys.readouterr().out
    Lines(CONFIG).update(0, at(3, 100))
    assert " honest 7.0/10 " in capsys.readouterr().out


@pytest.mark.slow
def test_a_summary_of_sites_says_how_many_were_accepted_since_nobody_knows_who_lies(
    tiny: Callable[..., Problem], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (run,) = train_seeds(tiny(byzantine=0), [3], tmp_path / "run")
    capsys.readouterr()
    roles = ("honest", "Byz.", "harm")
    print_summary([run], tmp_path)
    said = capsys.readouterr().out
    assert [word for word in roles if word in said] == list(roles)
    share = f"{run.records.accepted()[0].mean() / 4:.0%}"
    for name in ("sites.json", "federation.jsonl"):  # a server that was stopped early may have the first one only
        (tmp_path / "run" / name).touch()
        print_summary([run], tmp_path)
        said = capsys.readouterr().out
        assert "accepted" in said
        assert share in said
        assert [word for word in roles if word in said] == []
        (tmp_path / "run" / name).unlink()
    trial = run._replace(config=make_config(byzantine=1, agents=4))
    (tmp_path / "run" / "sites.json").touch()
    print_summary([trial], tmp_path)
    said = capsys.readouterr().out
    assert [word for word in roles if word in said] == list(roles)


@pytest.mark.slow
def test_a_summary_says_if_the_attack_was_to_start_later(
    tiny: Callable[..., Problem], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for start, said in ((1, False), (18, True)):  # of 20 rounds at the most
        (run,) = train_seeds(tiny(attack_start=start), [3])
        assert len(run.records) < 18
        print_summary([run], tmp_path)
        assert ("Nobody attacked: seed 3 was over after" in capsys.readouterr().out) == said


@pytest.mark.slow
def test_a_command_for_programs_prints_nothing_else(
    tiny: Callable[..., Problem],
    as_options: Callable[[Config], list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    options = as_options(tiny().config)
    assert main(["train", *options, "--seeds", "3,4", "--out", str(tmp_path / "run"), "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    said = [json.loads(line) for line in captured.out.splitlines()]
    assert {update["seed"] for update in said if "seed" in update and update["trajectories"] >= 60} == {3, 4}
    assert all(set(note) == {"note"} for note in said if "seed" not in note)


@pytest.mark.parametrize(
    ("done", "missing", "left"), [(4, 6, 15.0), (0, 6, None), (0, 0, 0.0), (4, 0, 0.0), (4, -1, 0.0)]
)
def test_the_time_left_is_in_proportion_to_what_is_missing(done: float, missing: float, left: float | None):
    assert seconds_left(done, missing, 10.0) == left


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (89, "89 s"),
        (90, "2 min"),
        (5399, "90 min"),
        (5400, "1.5 h"),
        (172_799, "48.0 h"),
        (172_800, "2.0 days"),
    ],
)
def test_a_time_is_in_the_unit_that_people_would_use(seconds: float, words: str):
    assert in_words(seconds) == words


def test_what_agents_differ_in_is_told_in_three_digits():
    each = Each({"length": [0.123456, 2.0], "offset": [(0.5740445940133305, -0.04496), (1.0,)]}, [1.0, 2.0], 3.0, [])
    assert "own task" in str(each_table(each).title)
    assert "handed out" in str(each_table(each, sites=True).title)  # each may have joined with another
    cells = [list(column.cells) for column in each_table(each).columns[1:3]]
    assert cells == [["0.123", "2"], ["0.574, -0.045", "1"]]
