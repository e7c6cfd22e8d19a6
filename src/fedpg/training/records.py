"""Records: what happened in each round, as columns in memory and as one JSON-lines file on disk."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedpg.aggregators import RULES
from fedpg.config import Config
from fedpg.problem import STATUSES, outcome_of
from fedpg.storage import write_whole
from fedpg.training.harm import Harm
from fedpg.training.rounds import Log


class Records:
    """All rounds of a run so far. Row t is about the policy after t rounds; row 0 is the untrained one."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.logs: list[Log] = []
        """Of rounds 1, 2, ..."""
        self.tests: list[np.ndarray] = []
        """The returns [E] of the policies of rows 0, 1, ...; the last one may not have been tested yet."""
        self.test_steps: list[int] = []
        """Environment steps of each test."""
        self.steps = 0
        """Environment steps simulated so far."""

    def __len__(self) -> int:
        return len(self.logs)

    @property
    def described(self) -> str:
        """How far it is, and what came of it, in a few words."""
        if not self.tests:
            return "nothing yet"
        returns = self.test_returns[: len(self.tests)]
        return (
            f"{len(self)} rounds, {int(self.trajectories[-1]):,} trajectories, return {returns[0]:.0f} at first, "
            f"{returns[-1]:.0f} at the end"
        )

    def __repr__(self) -> str:
        return f"<records of {self.described}>"

    def add_round(self, log: Log, seconds: float) -> None:
        """A round is over."""
        self.logs.append(log | {"seconds": seconds})
        self.steps += log["agent_steps"] + log["server_steps"]

    def add_test(self, returns: np.ndarray, steps: int) -> None:
        """The policy of the next row has been tested."""
        self.tests.append(returns)
        self.test_steps.append(steps)
        self.steps += steps

    def column(self, name: str) -> np.ndarray:
        """One value of every round, by its name in LOGGED."""
        return np.array([log[name] for log in self.logs])

    @property
    def test_returns(self) -> np.ndarray:
        """Mean evaluation return of rows 0, 1, ...; NaN where it is not known yet.  [rounds + 1]"""
        means = [test.mean() for test in self.tests]
        return np.array(means + [np.nan] * (len(self) + 1 - len(means)))

    @property
    def trajectories(self) -> np.ndarray:
        """Trajectories of rows 0, 1, ..., as the paper counts them.  [rounds + 1]"""
        return _running(self.column("counted"))

    def accepted(self, last: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """How many honest and how many Byzantine agents were accepted in each round, or in the last ones."""
        honest = self.config.agents - self.config.byzantine
        mask = np.array([log["accepted"] for log in self.logs[-last:]], bool).reshape(-1, self.config.agents)
        return mask[:, :honest].sum(axis=1), mask[:, honest:].sum(axis=1)

    def mean_harm(self, name: str = "harm", last: int = 0) -> float:
        """The mean harm (or `harm_step`) of the rounds, or of the last ones, in which it is known; else NaN."""
        values = np.array([log[name] for log in self.logs[-last:]], float)
        known = values[np.isfinite(values)]
        return float(known.mean()) if known.size else float("nan")

    @property
    def unused(self) -> int:
        """Rounds in which nobody was accepted."""
        return int((self.column("rule") == RULES.index("nobody")).sum())

    def return_at(self, trajectories: float) -> float:
        """The evaluation return of the first policy with at least that many trajectories."""
        row = min(int(np.searchsorted(self.trajectories, trajectories)), len(self.test_returns) - 1)
        return float(self.test_returns[row])

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain dict per row, ready for JSON; None where a value does not exist."""
        config = self.config
        yield {"round": 0, "trajectories": 0} | self._test(0)
        if not self.logs:
            return
        honest, byzantine = self.accepted()
        agent, server = _running(self.column("batch")), _running(self.column("server_trajectories"))
        tests = np.cumsum(self.test_steps + [0] * (len(self) + 1 - len(self.test_steps)))
        trained = _running(self.column("agent_steps") + self.column("server_steps"))
        sent = _running(self.column("bytes"))
        counted = self.trajectories
        for i, c in enumerate(self.logs):
            status = [STATUSES[s] for s in c["status"]]
            outcome = [outcome_of(s, bool(a)) for s, a in zip(status, c["accepted"], strict=True)]
            turned_away = outcome.count("turned away")
            liars = outcome[config.agents - config.byzantine :]
            caught = liars.count("turned away")
            judged = caught + liars.count("accepted")
            yield {
                "round": int(c["round"]),
                "trajectories": int(counted[i + 1]),
                "trajectories_agent": int(agent[i + 1]),
                "trajectories_server": int(server[i + 1]),
                "trajectories_total": int(config.agents * agent[i + 1] + server[i + 1]),
                **self._test(i + 1),
                "train_return": _number(c["train_return"]),
                "batch": int(c["batch"]),
                "inner_steps": int(c["inner_done"]),
                "inner_steps_drawn": int(c["inner_drawn"]),
                "ratio": _number(c["ratio"]),
                "rule": RULES[int(c["rule"])],
                "sigma": _number(c["sigma"]),
                "threshold": _number(c["threshold"]),
                "accepted_honest": int(honest[i]),
                "accepted_byzantine": int(byzantine[i]),
                "precision": caught / turned_away if turned_away else None,
                "recall": caught / judged if judged else None,
                **{name: _number(c[name]) for name in Harm._fields},
                "gradient_norm": _number(c["gradient_norm"]),
                "steps": int(trained[i + 1] + tests[i + 1]),
                "steps_training": int(trained[i + 1]),
                "bytes": int(sent[i + 1]),
                "seconds": _number(c["seconds"]),
                "centre": int(c["centre"]),
                "accepted": c["accepted"].tolist(),
                "status": status,
                "outcome": outcome,
                "distances": [_number(x) for x in c["distances"]],
                "norms": [_number(x) for x in c["norms"]],
            }

    def _test(self, row: int) -> dict[str, float | None]:
        """The evaluation of a row; None where it is not known yet."""
        if row >= len(self.tests):
            return {"test_return": None, "test_return_std": None}
        returns = self.tests[row].astype(np.float64)  # whose squares may be too large for float32
        with np.errstate(invalid="ignore"):  # infinity has no deviation
            return {"test_return": _number(returns.mean()), "test_return_std": _number(returns.std())}

    def save(self, path: Path) -> None:
        """records.jsonl: `pandas.read_json(path, lines=True)` or `polars.read_ndjson(path)`."""
        write_whole(path, "".join(json.dumps(row) + "\n" for row in self.rows()))


def _running(values: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(values, dtype=np.int64)])


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
