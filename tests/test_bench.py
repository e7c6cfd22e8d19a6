"""`fedpg bench` for a task outside JAX: what it counts, and the tables that it prints."""

import re
import threading
from collections import defaultdict

import numpy as np
import pytest

from fedpg.agents import make_problem
from fedpg.bench import pool as bench
from fedpg.config import make_config

pytestmark = pytest.mark.slow


class Counting:
    """A simulator that only counts."""

    width = 300

    def __init__(self) -> None:
        self.stepped: list[int] = []
        self.ended: list[int] = []

    def start(self, lanes: np.ndarray) -> np.ndarray:
        return np.zeros((len(lanes), 2))

    def step(self, lanes: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self.stepped.append(len(lanes))
        return np.zeros((len(lanes), 2)), actions, np.zeros(len(lanes), bool)

    def end(self, lanes: np.ndarray) -> None:
        self.ended.extend(lanes)

    def close(self) -> None:
        pass


def test_steps_are_counted_by_how_many_episodes_are_alive() -> None:
    counting = Counting()
    by_width: bench.Widths = defaultdict(lambda: (0, 0, 0.0))
    timed = bench.Timed(counting, by_width, threading.Lock())
    for alive in (300, 257, 256, 9, 8, 3, 1, 1):
        observations, rewards, over = timed.step(np.arange(alive), np.full(alive, 7.0))
        assert observations.shape == (alive, 2)
        assert (rewards == 7).all()
        assert not over.any()
    timed.end(np.array([5]))
    assert timed.width == 300
    assert counting.ended == [5]
    assert counting.stepped == [300, 257, 256, 9, 8, 3, 1, 1]
    assert {width: counted[:2] for width, counted in by_width.items()} == {
        0: (2, 557),
        256: (1, 256),
        16: (1, 9),
        8: (1, 8),
        4: (1, 3),
        1: (2, 2),
    }
    rows = bench.width_rows({0: (2, 600, 0.5), 4: (10, 30, 0.25), 1: (5, 5, 0.05), 2: (5, 10, 0.2)})
    assert rows == [
        ("1", "5", "10,000", "100", "0.8%", "5.0%"),
        ("2", "5", "40,000", "50", "1.6%", "20.0%"),
        ("3 to 4", "10", "25,000", "120", "4.7%", "25.0%"),
        ("over 256", "2", "250,000", "1,200", "93.0%", "50.0%"),
    ]


def test_the_tables_add_up(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench, "SECONDS_BARE", 0.1)
    monkeypatch.setattr(bench, "gymnasium_speed", lambda problem, params: 1000.0)
    monkeypatch.setenv("COLUMNS", "160")
    problem = make_problem(make_config("LunarLander-v3", agents=2, trajectories=60, horizon=60, test_horizon=60))
    bench.bench_pool(problem, problem.environment)  # type: ignore[arg-type]
    printed = capsys.readouterr().out
    total = re.search(r"rounds, ([\d,]+) steps", printed)
    assert total
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if line.startswith("│")]
    tables = {row[0]: row[1:] for row in rows}
    training = tables["training, everything included"]
    assert _number(training[2]) == pytest.approx(_number(training[0]) / 1000, abs=0.06)
    shares = [_number(tables[text][0]) for text in bench.PHASES.values()]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert min(shares) >= 0
    widths = [row for row in rows if len(row) == 6]
    steps = sum(_number(calls) * _number(us) * 1e-6 * _number(speed) for _, calls, us, speed, _, _ in widths)
    assert steps == pytest.approx(_number(total[1]), rel=0.05)  # of rounded cells
    assert sum(_number(row[4]) for row in widths) == pytest.approx(100, abs=0.6)
    assert sum(_number(row[5]) for row in widths) == pytest.approx(100, abs=0.6)


def _number(cell: str) -> float:
    return float(cell.replace(",", "").rstrip("%"))
