"""`fedpg bench`: what it counts, and the tables that it prints."""

import re
import subprocess
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpg import make_config, make_problem
from fedpg.bench import compiled
from fedpg.bench import pool as bench
from fedpg.tasks.simulators import Step
from tiny import TINY

pytestmark = pytest.mark.slow


class Counting:
    """A simulator that only counts."""

    width = 300

    def __init__(self) -> None:
        self.stepped: list[int] = []
        self.ended: list[int] = []

    def start(self, lanes: np.ndarray) -> np.ndarray:
        return np.zeros((len(lanes), 2))

    def send(self, lanes: np.ndarray, actions: np.ndarray) -> None:
        self.stepped.append(len(lanes))
        self.actions = actions

    def receive(self) -> Step:
        nobody = np.zeros(len(self.actions), bool)
        return np.zeros((len(self.actions), 2)), self.actions, nobody, nobody

    def end(self, lanes: np.ndarray) -> None:
        self.ended.extend(lanes)

    def close(self) -> None:
        pass


def test_steps_are_counted_by_how_many_episodes_are_alive() -> None:
    counting = Counting()
    by_width: bench.Widths = defaultdict(lambda: (0, 0, 0.0))
    timed = bench.Timed(counting, by_width, threading.Lock())
    for alive in (300, 257, 256, 9, 8, 3, 1, 1):
        timed.send(np.arange(alive), np.full(alive, 7.0))
        observations, rewards, _, over = timed.receive()
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
    bench.bench_pool(problem)
    printed = capsys.readouterr().out
    assert "the step itself: " in printed
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


def test_a_run_is_held_against_the_bare_rollout_on_one_core_and_on_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = {1: 2e6, compiled.SEEDS: 4e6}  # by how many seeds' episodes are in one call
    problem = make_problem(make_config(**TINY | {"trajectories": 20}))
    batch = problem.config.agents * sum(problem.config.batch) // 2
    monkeypatch.setattr(compiled, "bare_speed", lambda _, __, n, threads: 8e6 if threads > 1 else alone[n // batch])
    monkeypatch.setattr(compiled, "gymnasium_speed", lambda problem, params: 1000.0)
    monkeypatch.setattr(compiled, "cores", lambda: 2)
    monkeypatch.setenv("COLUMNS", "200")
    compiled.speed(compiled.make_console(), problem)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    table = {row[0]: row[1:] for row in rows if row}
    for name, bare in (("training, one run to 20 trajectories", 2e6), ("training, 10 seeds together", 4e6)):
        speed, of_one, of_all, times, _ = table[name]
        assert _number(of_one) == pytest.approx(100 * _number(speed) / bare, abs=0.51)
        assert _number(of_all) == pytest.approx(100 * _number(speed) / 8e6, abs=0.51)
        assert _number(times) == pytest.approx(_number(speed) / 1000, abs=0.51)


@pytest.mark.more
def test_a_new_process_finds_what_was_compiled_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = []

    def counted(command: list[str], env: dict[str, str], **how: Any) -> Any:
        done = run(command, env=env, **how)
        programs.append({path.name for path in Path(env["JAX_COMPILATION_CACHE_DIR"]).glob("*-cache")})
        return done

    run = subprocess.run
    monkeypatch.setattr(compiled.subprocess, "run", counted)
    compiled.start(compiled.make_console())
    printed = capsys.readouterr().out.replace("\n", " ")
    found = re.findall(r"with (an empty|a warm) compilation\s+cache:\s+([\d.]+) s", printed)
    assert [name for name, _ in found] == ["an empty", "a warm"]
    assert all(float(seconds) > 0 for _, seconds in found)  # which is less is for a machine that does nothing else
    assert programs[0]
    assert programs[1] == programs[0]
