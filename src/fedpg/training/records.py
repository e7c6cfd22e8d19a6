"""Records: what happened in each round, as columns in memory and as one JSON-lines file on disk."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedpg.agents import STATUSES, outcome_of
from fedpg.aggregators import RULES
from fedpg.algorithms import Log
from fedpg.config import Config
from fedpg.storage import write_whole


class Records:
    """All rounds of a run so far. Row t is about the policy after t rounds; row 0 is the untrained one.

    A round's log carries the evaluation of the policy it began with (both are rolled out in one batch), so row t
    takes its evaluation from the log of round t + 1, or from `last_test` if there is none yet.
    """

    def __init__(self, config: Config, columns: dict[str, np.ndarray] | None = None) -> None:
        self.config = config
        self.columns = columns or {}
        self.last_test: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.columns["round"]) if self.columns else 0

    def extend(self, log: Log, rounds: int, seconds: float) -> None:
        """Add the first `rounds` rows of a batch of logs, which took `seconds` together."""
        new = {name: np.asarray(value)[:rounds] for name, value in log._asdict().items()}
        new["seconds"] = np.full(rounds, seconds / max(rounds, 1), np.float32)
        self.columns = {k: np.concatenate([self.columns[k], v]) for k, v in new.items()} if self.columns else new
        self.last_test = None

    @property
    def test_returns(self) -> np.ndarray:
        """Mean evaluation return of rows 0, 1, ...; NaN where it is not known yet.  [rounds + 1]"""
        means = list(self.columns["test_returns"].mean(axis=1)) if self.columns else []
        return np.array([*means, np.nan if self.last_test is None else self.last_test.mean()])

    @property
    def trajectories(self) -> np.ndarray:
        """Trajectories of rows 0, 1, ..., as the paper counts them.  [rounds + 1]"""
        return _running(self.columns["counted"]) if self.columns else np.zeros(1, np.int64)

    @property
    def steps(self) -> int:
        """Environment steps simulated so far."""
        names = ("agent_steps", "server_steps", "test_steps")
        return sum(int(self.columns[name].sum(dtype=np.int64)) for name in names) if self.columns else 0

    def accepted(self) -> tuple[np.ndarray, np.ndarray]:
        """How many honest and how many Byzantine agents were accepted in each round."""
        honest = self.config.agents - self.config.byzantine
        mask = self.columns["accepted"]
        return mask[:, :honest].sum(axis=1), mask[:, honest:].sum(axis=1)

    def return_at(self, trajectories: float) -> float:
        """The evaluation return of the first policy with at least that many trajectories."""
        row = min(int(np.searchsorted(self.trajectories, trajectories)), len(self.test_returns) - 1)
        return float(self.test_returns[row])

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain dict per row, ready for JSON; None where a value does not exist."""
        config, c = self.config, self.columns
        tests = [*c["test_returns"], self.last_test] if c else [self.last_test]
        yield {"round": 0, "trajectories": 0} | _test(tests[0])
        if not c:
            return
        honest, byzantine = self.accepted()
        agent, server = _running(c["batch"]), _running(c["server_trajectories"])
        steps = _running(c["agent_steps"].astype(np.int64) + c["server_steps"] + c["test_steps"])
        counted = self.trajectories
        for i in range(len(self)):
            status = [STATUSES[s] for s in c["status"][i]]
            outcome = [outcome_of(s, bool(a)) for s, a in zip(status, c["accepted"][i], strict=True)]
            turned_away = outcome.count("turned away")
            liars = outcome[config.agents - config.byzantine :]
            caught = liars.count("turned away")
            judged = caught + liars.count("accepted")
            yield {
                "round": int(c["round"][i]),
                "trajectories": int(counted[i + 1]),
                "trajectories_agent": int(agent[i + 1]),
                "trajectories_server": int(server[i + 1]),
                "trajectories_total": int(config.agents * agent[i + 1] + server[i + 1]),
                **_test(tests[i + 1]),
                "train_return": _number(c["train_return"][i]),
                "batch": int(c["batch"][i]),
                "inner_steps": int(c["inner_done"][i]),
                "inner_steps_drawn": int(c["inner_drawn"][i]),
                "ratio": _number(c["ratio"][i]),
                "rule": RULES[int(c["rule"][i])],
                "sigma": _number(c["sigma"][i]),
                "threshold": _number(c["threshold"][i]),
                "accepted_honest": int(honest[i]),
                "accepted_byzantine": int(byzantine[i]),
                "precision": caught / turned_away if turned_away else None,
                "recall": caught / judged if judged else None,
                "gradient_norm": _number(c["gradient_norm"][i]),
                "steps": int(steps[i + 1]),
                "seconds": _number(c["seconds"][i]),
                "centre": int(c["centre"][i]),
                "accepted": c["accepted"][i].tolist(),
                "status": status,
                "outcome": outcome,
                "distances": [_number(x) for x in c["distances"][i]],
                "norms": [_number(x) for x in c["norms"][i]],
            }

    def save(self, path: Path) -> None:
        """records.jsonl: `pandas.read_json(path, lines=True)` or `polars.read_ndjson(path)`."""
        write_whole(path, "".join(json.dumps(row) + "\n" for row in self.rows()))


def _running(values: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(values, dtype=np.int64)])


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _test(returns: np.ndarray | None) -> dict[str, float | None]:
    """The evaluation of a row; None where it is not known yet."""
    if returns is None:
        return {"test_return": None, "test_return_std": None}
    return {"test_return": float(returns.mean()), "test_return_std": float(returns.std())}
