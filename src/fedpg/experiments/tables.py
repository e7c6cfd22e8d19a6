"""Tables of the report, from stored runs."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from fedpg.experiments.catalogue import Curve, Experiment, Panel
from fedpg.experiments.figures import Stock, runs_of
from fedpg.experiments.paper import HOURS, TRAJECTORIES, paper_curves
from fedpg.experiments.render import Table
from fedpg.experiments.runner import clock
from fedpg.experiments.statistics import (
    Band,
    areas,
    band,
    filtering,
    finals,
    interquartile_mean,
    resampled,
    verdict,
)
from fedpg.experiments.store import UNKNOWN, Stored

MARKS = {
    "CartPole-v1": (500, 1000, 2000, 3000, 5000),
    "LunarLander-v3": (1000, 2000, 3000, 5000, 10_000),
    "HalfCheetah-v5": (500, 1000, 2000, 3000, 5000, 10_000),
}
"""Trajectories at which the paper is compared with."""
VERDICTS = {f"{word}{star}": word for word in ("inside", "above", "below") for star in ("", "*")}


def compared(panel: Panel, stored: Stock) -> Iterator[tuple[Curve, Band]]:
    """The curves that the paper has as well, with our band at the marks."""
    for curve, runs in runs_of(panel, stored):
        if curve.paper is not None:
            yield curve, band(runs, np.array(MARKS[panel.task], float))


def overview(panels: Sequence[Panel], stored: Stock) -> Table | None:
    """Our mean with the paper's in brackets, at each mark; None where there is nothing to compare."""
    marks = sorted({mark for panel in panels for mark in MARKS[panel.task]})
    rows = []
    for panel in panels:
        for curve, ours in compared(panel, stored):
            cells = dict.fromkeys(marks, "")
            for i, mark in enumerate(MARKS[panel.task]):
                mean, _ = paper_curves()[curve.paper or ("", "", "")].at(mark)
                if not np.isnan(ours.mean[i]):
                    read = "" if np.isnan(mean) else f" [{mean:.0f}]"
                    cells[mark] = f"{ours.mean[i]:.0f}{read}"
            counts = Counter(VERDICTS.get(word, "") for word in verdicts(panel, curve, ours))
            rows.append([panel.title, curve.label, span(ours.seeds), *cells.values(), _tally(counts)])
    if not rows:
        return None
    columns = ["panel", "curve", "seeds", *(f"{mark:,}" for mark in marks), "paper's band"]
    caption = "Our mean greedy return [the paper's] at so many trajectories, as the paper counts."
    return Table(columns, once(rows), caption, words=2)


def once(rows: list[list[str]]) -> list[list[str]]:
    """The rows without the first cell where it is that of the row before."""
    before = [None, *(row[0] for row in rows)]
    return [["" if row[0] == last else row[0], *row[1:]] for row, last in zip(rows, before, strict=False)]


def tally(experiments: Iterable[Experiment], stored: Stock) -> Table:
    """How often we are inside the paper's band, by figure and panel; references, which several figures share, once."""
    rows = []
    for experiment in experiments:
        for panel in experiment.panels:
            words: Counter[str] = Counter()
            seeds: list[int] = []
            for curve, ours in compared(panel, stored):
                if not curve.reference and experiment.name in ("figure1", "figure2"):
                    words.update(verdicts(panel, curve, ours))
                    seeds += ours.seeds.tolist()
            counts = [words[word] for word in VERDICTS]
            if sum(counts):
                rows.append([experiment.name, panel.title, span(seeds), *map(str, counts)])
    return Table(["figure", "panel", "seeds", *VERDICTS], once(rows), words=2)


def verdicts(panel: Panel, curve: Curve, ours: Band) -> list[str]:
    """The verdict at each mark."""
    published = paper_curves()[curve.paper or ("", "", "")]
    return [verdict(panel.task, ours, i, published) for i in range(len(ours.at))]


def _tally(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[word]} {word}" for word in ("inside", "above", "below") if counts[word])


def comparison(panel: Panel, stored: Stock) -> Table | None:
    """Every mark of every curve against the paper's."""
    rows = []
    for curve, ours in compared(panel, stored):
        words = verdicts(panel, curve, ours)
        for i, mark in enumerate(MARKS[panel.task]):
            if ours.seeds[i]:
                mean, half = paper_curves()[curve.paper or ("", "", "")].at(mark)
                rows.append(
                    [
                        curve.label,
                        f"{mark:,}",
                        str(ours.seeds[i]),
                        number(mean),
                        "" if np.isnan(half) else f"{mean - half:.0f} to {mean + half:.0f}",
                        number(ours.mean[i]),
                        interval(ours.low90[i], ours.high90[i]),
                        interval(ours.low95[i], ours.high95[i]),
                        f"{ours.mean[i] - mean:+.0f}" if not np.isnan(mean) else "",
                        words[i],
                    ]
                )
    columns = ["curve", "trajectories", "seeds", "paper", "its 90% band", "ours", "90%", "95%", "difference", "verdict"]
    return Table(columns, rows, marks=VERDICTS) if rows else None


def learning(panels: Sequence[Panel], stored: Stock) -> Table:
    """Final returns and areas of every curve."""
    rows = []
    for panel in panels:
        for curve, runs in runs_of(panel, stored):
            last, area = finals(runs, shortest(runs)), areas(runs, shortest(runs))
            rows.append(
                [
                    panel.title,
                    curve.label,
                    str(len(runs)),
                    f"{shortest(runs):,}",
                    f"{last.mean():.0f}",
                    _bootstrap(last, np.mean, 90),
                    _bootstrap(last, np.mean, 95),
                    f"{interquartile_mean(last):.0f}",
                    _bootstrap(last, interquartile_mean, 95),
                    f"{area.mean():.0f}",
                    clock(float(np.median([run.about["seconds"] for run in runs]))),
                ]
            )
    columns = ["panel", "curve", "seeds", "trajectories", "final", "90%", "95%", "IQM", "IQM 95%", "area", "time"]
    return Table(columns, once(rows), words=2)


def filters(panels: Sequence[Panel], stored: Stock) -> Table | None:
    """What the filter did in each setting that has one and more than one agent to judge."""
    rows = []
    for panel in panels:
        for curve, runs in runs_of(panel, stored):
            config = runs[0].config
            if config.filter == "mean" or config.agents == 1:
                continue
            did = filtering(runs)
            rules = [share(did.rules.get(rule, 0.0)) for rule in ("R1", "R2", "nobody")]
            # Where nobody lies there is nobody to detect.
            precision = did.precision if config.byzantine else float("nan")
            shares = [did.honest_kept, did.byzantine_kept, precision, did.recall]
            rows.append([panel.title, curve.label, *map(share, shares), *rules])
    columns = ["panel", "curve", "honest kept", "Byzantine kept", "precision", "recall", "R1", "R2", "nobody"]
    return Table(columns, once(rows), "What the filter did, over all rounds and seeds.", words=2) if rows else None


def per_seed(panels: Sequence[Panel], stored: Stock) -> Table:
    """Final return and area of each run."""
    found = [(panel, curve, runs) for panel in panels for curve, runs in runs_of(panel, stored)]
    seeds = sorted({run.seed for _, _, runs in found for run in runs})
    rows = []
    for panel, curve, runs in found:
        for name, values in (("final", finals(runs, shortest(runs))), ("area", areas(runs, shortest(runs)))):
            by_seed = {run.seed: f"{value:.0f}" for run, value in zip(runs, values, strict=True)}
            rows.append([panel.title, curve.label, name, *(by_seed.get(seed, "") for seed in seeds)])
    return Table(["panel", "curve", "", *(f"seed {seed}" for seed in seeds)], once(rows), words=3)


def times(runs: Iterable[Stored]) -> Table:
    """The time of runs of FedPG-BR with 3 of 10 Byzantine agents, against the published one."""
    rows = []
    chosen = [r for r in runs if (r.config.algorithm, r.config.agents, r.config.byzantine) == ("fedpg-br", 10, 3)]
    for task, hours in HOURS.items():
        mine = [run for run in chosen if run.config.task == task and run.config.preset == "released"]
        if not mine:
            continue
        whole = [run.about["seconds"] * TRAJECTORIES[task] / run.reached for run in mine]
        rows.append(
            [
                task,
                f"{hours:g} h",
                clock(float(np.median(whole))),
                f"{hours * 3600 / float(np.median(whole)):,.0f}",
                str(len(mine)),
                f"{np.mean([run.reached for run in mine]):,.0f}",
            ]
        )
    columns = ["task", "published, 14 cores", "ours, per run", "times faster", "runs", "mean length"]
    return Table(columns, rows)


def provenance(runs: Sequence[Stored], code: str) -> list[Table]:
    """The code, the packages and the machines that the runs were made with."""

    def count(name: str, describe: Callable[[Stored], str]) -> Table:
        found = Counter(describe(run) for run in runs)
        return Table([name, "runs"], [[text, str(n)] for text, n in found.most_common()])

    return [
        count("code", lambda run: _code(run, code)),
        count("machine", lambda run: _machine(run.about["hardware"])),
        count("versions", lambda run: ", ".join(f"{n} {v}" for n, v in run.about["versions"].items()) or "unknown"),
    ]


def _code(run: Stored, code: str) -> str:
    if run.code != code:
        return f"other code ({run.code or 'unknown'}), kept as it is"
    return f"{code}, verified by its first rounds" if "verified" in run.about else code


def _machine(hardware: dict[str, str]) -> str:
    if hardware == UNKNOWN["hardware"]:
        return "unknown"
    return f"{hardware['processor']}, {hardware['cores']} cores, {hardware['system']}"


def shortest(runs: Sequence[Stored]) -> int:
    """How far all of the runs got."""
    return min(run.reached for run in runs)


def span(seeds: Iterable[int]) -> str:
    """How many seeds got to the marks that any got to."""
    some = [count for count in seeds if count]
    low, high = min(some, default=0), max(some, default=0)
    return f"{high}" if low == high else f"{low} to {high}"


def number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.0f}"


def share(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.1%}"


def interval(low: float, high: float) -> str:
    return "" if np.isnan(low) else f"{low:.0f} to {high:.0f}"


def _bootstrap(values: np.ndarray, statistic: Callable[[np.ndarray], float], level: float) -> str:
    """A percentile bootstrap interval over seeds; none for a single one."""
    if len(values) < 2:
        return ""
    samples = [statistic(np.repeat(values, counts)) for counts in resampled(len(values), 1000)]
    low, high = np.percentile(samples, ((100 - level) / 2, (100 + level) / 2))
    return interval(float(low), float(high))
