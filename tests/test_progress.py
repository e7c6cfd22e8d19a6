"""Lines of progress, for where there is no terminal."""

import pytest

from fedpg import make_config
from fedpg.training import progress
from fedpg.training.progress import Lines, Snapshot

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
