"""What Prometheus reads: the runs as plain numbers, in its text format 0.0.4."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from fedpg.dashboard.runs import View

STATES = ("waiting", "running", "quiet", "finished", "damaged", "removed")


class Metric(NamedTuple):
    """One name, of a run or of a site."""

    name: str
    kind: str
    help: str


RUN = {
    "round": Metric("fedpg_round", "gauge", "Rounds that are finished."),
    "trajectories": Metric("fedpg_trajectories", "gauge", "Trajectories so far, as the paper counts them."),
    "total": Metric("fedpg_trajectories_target", "gauge", "Trajectories at which the run is finished."),
    "test_return": Metric("fedpg_test_return", "gauge", "Mean return of the last policy in its test episodes."),
    "test_return_std": Metric("fedpg_test_return_std", "gauge", "Standard deviation of those returns."),
    "harm": Metric("fedpg_harm", "gauge", "Mean harm of the last 20 rounds, in standard errors; of simulations only."),
    "unused": Metric("fedpg_unused_rounds", "gauge", "Rounds in which nobody was accepted."),
    "threshold": Metric("fedpg_threshold", "gauge", "Threshold of the rule that decided the last round."),
    "seconds_per_round": Metric("fedpg_round_seconds", "gauge", "Seconds per round, mean of the last 20."),
    "steps_per_second": Metric("fedpg_steps_per_second", "gauge", "Environment steps per second, same rounds."),
    "seconds_left": Metric("fedpg_left_seconds", "gauge", "Seconds to the end of the run at that pace."),
    "changed": Metric("fedpg_last_change_timestamp_seconds", "gauge", "When the run last wrote something."),
}
STATE = Metric("fedpg_state", "gauge", "1 for the state that the run is in, else 0.")
SITE = {
    "connected": Metric("fedpg_site_connected", "gauge", "1 if the site is connected, 0 if not."),
    "replied": Metric("fedpg_site_last_reply_round", "gauge", "The last round that the site replied to."),
    "seen": Metric("fedpg_site_last_seen_timestamp_seconds", "gauge", "When the site was last heard of."),
    "distance": Metric("fedpg_site_distance", "gauge", "Distance of its last reply to the aggregator's centre."),
    "far": Metric("fedpg_site_how_far", "gauge", "That distance over the rule's threshold."),
    "seconds": Metric("fedpg_site_reply_seconds", "gauge", "Seconds that its last reply took."),
    "mean_return": Metric("fedpg_site_return", "gauge", "Mean return that it reported with its last reply."),
}
OUTCOMES = Metric("fedpg_site_outcomes_total", "counter", "Attempts at a round by what became of the site's reply.")


def metrics(views: list[View]) -> str:
    """The whole page: every metric with what it is, then a line for each run or site that has it."""
    lines: list[str] = []
    for key, metric in RUN.items():
        lines += _lines(metric, (({"run": view["name"]}, view.get(key)) for view in views))
    lines += _lines(
        STATE,
        (({"run": view["name"], "state": state}, view["state"] == state) for view in views for state in STATES),
    )
    sites = [({"run": view["name"], "site": row["name"]}, row) for view in views for row in view["rows"]]
    for key, metric in SITE.items():
        lines += _lines(metric, ((labels, row.get(key)) for labels, row in sites))
    counts = ((labels | {"outcome": name}, n) for labels, row in sites for name, n in sorted(row["counts"].items()))
    lines += _lines(OUTCOMES, counts)
    return "\n".join(lines) + "\n"


def _lines(metric: Metric, values: Iterator[tuple[dict[str, str], float | None]]) -> list[str]:
    known = [f"{metric.name}{_labels(labels)} {float(value)!r}" for labels, value in values if value is not None]
    if not known:
        return []
    return [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}", *known]


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return re.sub(r'[\\"\n]', lambda found: {"\n": "\\n"}.get(found[0], "\\" + found[0]), value)
