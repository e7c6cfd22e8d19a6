"""Tables of the report, from stored runs."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from fedpg.experiments.figures import Stock, runs_of
from fedpg.experiments.panels import OTHERS, Curve, Experiment, Panel
from fedpg.experiments.paper import HOURS, TRAJECTORIES, paper_curves
from fedpg.experiments.render import Table
from fedpg.experiments.statistics import (
    Band,
    areas,
    arrivals,
    band,
    filtering,
    finals,
    interquartile_mean,
    resampled,
    verdict,
)
from fedpg.experiments.store import UNKNOWN, Stored
from fedpg.screen import clock
from fedpg.training.harm import HARM

MARKS = {
    "CartPole-v1": (500, 1000, 2000, 3000, 5000),
    "LunarLander-v3": (1000, 2000, 3000, 5000, 10_000),
    "HalfCheetah-v5": (500, 1000, 2000, 3000, 5000, 10_000),
} | dict.fromkeys(OTHERS, (50, 100, 200, 300))
"""Trajectories at which the paper is compared with, and those of tasks that it does not have."""
VERDICTS = {f"{word}{star}": word for word in ("inside", "above", "below") for star in ("", "*")}


def marks_of(panel: Panel) -> tuple[int, ...]:
    return panel.marks or MARKS[panel.task]


def at_marks(panel: Panel, stored: Stock) -> Iterator[tuple[Curve, Band]]:
    """The curves that have runs, with our band at the marks."""
    for curve, runs in runs_of(panel, stored):
        yield curve, band(runs, np.array(marks_of(panel), float))


def published(curve: Curve, mark: float) -> tuple[float, float]:
    """The paper's mean and half of its band; NaN where it has none."""
    return (np.nan, np.nan) if curve.paper is None else paper_curves()[curve.paper].at(mark)


def overview(panels: Sequence[Panel], stored: Stock) -> Table:
    """Our mean at each mark, with the paper's in brackets where it has one."""
    marks = sorted({mark for panel in panels for mark in marks_of(panel)})
    theirs = _in_paper(panels)
    rows = []
    for panel in panels:
        for curve, ours in at_marks(panel, stored):
            cells = dict.fromkeys(marks, "")
            for i, mark in enumerate(marks_of(panel)):
                mean, _ = published(curve, mark)
                if ours.seeds[i]:
                    read = "" if np.isnan(mean) else f" [{mean:.0f}]"
                    few = f" ({ours.seeds[i]})" if ours.seeds[i] < ours.runs else ""
                    cells[mark] = f"{ours.mean[i]:.0f}{few}{read}"
            tallied = [in_words(Counter(verdicts(panel, curve, ours)))] if theirs else []
            rows.append([panel.title, curve.label, *tallied, str(ours.runs), *cells.values()])
    columns = ["panel", "curve", *(["paper's band"] if theirs else []), "seeds", *(f"{mark:,}" for mark in marks)]
    beside = " [the paper's]" if theirs else ""
    caption = (
        f"Our mean greedy return{beside} at so many trajectories, as the paper counts; in round brackets how many "
        "seeds got there, where not all did."
    )
    return Table(columns, rows, caption, words=3 if theirs else 2, name="Returns at these marks", grouped=True)


def _in_paper(panels: Iterable[Panel]) -> bool:
    return any(curve.paper is not None for panel in panels for curve in panel.curves)


FIGURES = {"figure1": "Figure 1", "figure2": "Figure 2"}
"""The experiments that the paper's curves are compared with."""


def tally(experiments: Iterable[Experiment], stored: Stock) -> tuple[Counter[str], Table]:
    """How often we are inside the paper's band, in all and by panel; references, which several figures share, once."""
    rows, total = [], Counter[str]()
    for experiment in experiments:
        for panel in experiment.panels if experiment.name in FIGURES else ():
            words: Counter[str] = Counter()
            seeds: list[int] = []
            for curve, ours in at_marks(panel, stored):
                if curve.paper and not curve.reference:
                    words.update(word for word in verdicts(panel, curve, ours) if word)
                    seeds += ours.seeds.tolist()
            if words:
                counts = [_starred(words, word) for word in ("inside", "above", "below")]
                rows.append([f"{FIGURES[experiment.name]}, {panel.title}", *counts, span(seeds)])
                total += words
    return total, Table(["panel", "inside", "above", "below", "seeds"], rows)


def _starred(words: Counter[str], word: str) -> str:
    return f"{words[word]} + {words[f'{word}*']}*" if words[f"{word}*"] else str(words[word])


def verdicts(panel: Panel, curve: Curve, ours: Band) -> list[str]:
    """The verdict at each mark."""
    if curve.paper is None:
        return [""] * len(ours.at)
    return [verdict(panel.task, ours, i, paper_curves()[curve.paper]) for i in range(len(ours.at))]


def in_words(counts: Counter[str]) -> str:
    """As `3 inside, 1 below*`."""
    return ", ".join(f"{counts[word]} {word}" for word in VERDICTS if counts[word])


def comparison(panel: Panel, stored: Stock) -> Table | None:
    """Every mark of every curve, beside the paper's where it has one."""
    rows = []
    theirs = _in_paper([panel])
    for curve, ours in at_marks(panel, stored):
        words = verdicts(panel, curve, ours)
        for i, mark in enumerate(marks_of(panel)):
            if ours.seeds[i]:
                mean, half = published(curve, mark)
                row = [
                    curve.label,
                    f"{mark:,}",
                    *([words[i]] if theirs else []),
                    str(ours.seeds[i]),
                    number(ours.mean[i]),
                    interval(ours.low90[i], ours.high90[i]),
                    interval(ours.low95[i], ours.high95[i]),
                ]
                if theirs:
                    row += [
                        number(mean),
                        "" if np.isnan(half) else f"{mean - half:.0f} to {mean + half:.0f}",
                        f"{ours.mean[i] - mean:+.0f}" if not np.isnan(mean) else "",
                    ]
                rows.append(row)
    columns = ["curve", "trajectories", *(["verdict"] if theirs else []), "seeds", "ours", "90%", "95%"]
    columns += ["paper", "its 90% band", "difference"] if theirs else []
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
                    f"{area.mean():.0f}" + (f" ± {area.std(ddof=1) / len(area) ** 0.5:.0f}" if len(area) > 1 else ""),
                    clock(float(np.median([seconds_to(run, shortest(runs)) for run in runs]))),
                ]
            )
    columns = ["panel", "curve", "seeds", "trajectories", "final", "90%", "95%", "IQM", "IQM 95%", "area", "time"]
    caption = (
        "Each row as far as all of its seeds got: only rows of about the same length compare. ± is the standard error "
        "over seeds."
    )
    return Table(columns, rows, caption, words=2, grouped=True)


TARGETS = {"CartPole-v1": 475, "LunarLander-v3": 150, "HalfCheetah-v5": 1500}
"""A return that means that a task is learnt."""
PRICES = {
    "trajectories": "trajectories",
    "trajectories_agent": "per agent",
    "trajectories_total": "in all",
    "steps_training": "steps",
    "bytes": "megabytes",
}


def prices(panels: Sequence[Panel], stored: Stock) -> Table:
    """What a return costs each method, however one counts."""
    rows = []
    for panel in panels:
        target = TARGETS[panel.task]
        for curve, runs in runs_of(panel, stored):
            rounds = arrivals(runs, target)
            there = [(run, row) for run, row in zip(runs, rounds, strict=True) if row is not None]
            cells = [f"{len(there)} of {len(runs)}"]
            for name in PRICES:
                unit = 1e6 if name == "bytes" else 1.0
                paid = np.array([run.columns[name][row] / unit for run, row in there if name in run.columns], float)
                cells.append(f"{np.median(paid):,.0f}" if len(paid) else "")
                if name == "trajectories":
                    cells.append(_bootstrap(paid, lambda x: float(np.median(x)), 90) if len(paid) else "")
            cells.append(f"{np.median([row for _, row in there]):.0f}" if there else "")
            rows.append([panel.title, curve.label, f"{target:,}", *cells])
    names = list(PRICES.values())
    columns = ["panel", "curve", "return", "seeds there", names[0], "90%", *names[1:], "rounds"]
    caption = (
        "Until the mean of three evaluations is that return, the median of the seeds that got there: trajectories as "
        "the paper counts them, of one agent, of all agents and the server, environment steps in training, what "
        "crossed the network, and rounds. Of the server alone, only its own trajectories. Runs of older versions do "
        "not have all of it."
    )
    return Table(columns, rows, caption, words=2, name="What a return costs", grouped=True)


def filters(panels: Sequence[Panel], stored: Stock) -> Table | None:
    """What the aggregator did in each setting that has one and more than one agent to judge."""
    rows = []
    for panel in panels:
        for curve, runs in runs_of(panel, stored):
            config = runs[0].config
            if config.aggregator == "mean" or config.agents == 1:
                continue
            did = filtering(runs)
            rules = [share(did.rules.get(rule, 0.0)) for rule in ("R1", "R2", "nobody")]
            # Where nobody lies there is nobody to detect.
            precision = did.precision if config.byzantine else float("nan")
            shares = [did.honest_kept, did.byzantine_kept, precision, did.recall]
            harms = ["" if np.isnan(harm) else f"{harm:.2f}" for harm in (did.harm, did.harm_step)]
            rows.append([panel.title, curve.label, *map(share, shares), *rules, *harms])
    columns = ["panel", "curve", "honest kept", "Byzantine kept", "precision", "recall", "R1", "R2", "nobody"]
    caption = "What the aggregator did, over all rounds and seeds."
    if any(row[-2:] != ["", ""] for row in rows):
        columns += ["harm", "harm to the step"]
        caption += (
            f" {HARM[0].upper()}{HARM[1:]}. Harm to the step is the same of the move that the optimiser would make. "
            "Runs of older versions have neither."
        )
    else:  # all runs are of a version that did not measure it
        rows = [row[:-2] for row in rows]
    return Table(columns, rows, caption, words=2, grouped=True) if rows else None


def per_seed(panels: Sequence[Panel], stored: Stock) -> Table:
    """Final return and area of each run."""
    found = [(panel, curve, runs) for panel in panels for curve, runs in runs_of(panel, stored)]
    seeds = sorted({run.seed for _, _, runs in found for run in runs})
    rows = []
    for panel, curve, runs in found:
        for name, values in (("final", finals(runs, shortest(runs))), ("area", areas(runs, shortest(runs)))):
            by_seed = {run.seed: f"{value:.0f}" for run, value in zip(runs, values, strict=True)}
            length = f"{shortest(runs):,}"
            rows.append([panel.title, curve.label, name, length, *(by_seed.get(seed, "") for seed in seeds)])
    return Table(
        ["panel", "curve", "", "trajectories", *(f"seed {seed}" for seed in seeds)], rows, words=3, grouped=True
    )


def times(experiments: Iterable[Experiment], stored: Stock) -> Table:
    """The time of the paper's runs of FedPG-BR with 3 of 10 Byzantine agents, against the published one."""
    rows = []
    panels = [panel for e in experiments if e.name in ("figure2", "figure3", "figure-va") for panel in e.panels]
    found = {run.key: run for panel in panels for _, runs in runs_of(panel, stored) for run in runs}.values()
    chosen = [r for r in found if (r.config.algorithm, r.config.agents, r.config.byzantine) == ("fedpg-br", 10, 3)]
    for task, hours in HOURS.items():
        mine = [r for r in chosen if r.config.task == task and r.reached and r.about["seconds"]]
        if not mine:
            continue
        whole = [seconds_to(run, TRAJECTORIES[task]) for run in mine]
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


def provenance(runs: Sequence[Stored]) -> list[Table]:
    """The code, the packages and the machines that the runs were made with."""

    def count(name: str, describe: Callable[[Stored], str]) -> Table:
        found = Counter(describe(run) for run in runs)
        return Table([name, "runs"], [[text, str(n)] for text, n in found.most_common()], name=f"Runs by {name}")

    return [
        count("code", _code),
        count("machine", lambda run: _machine(run.about["hardware"])),
        count("versions", lambda run: ", ".join(f"{n} {v}" for n, v in run.about["versions"].items()) or "unknown"),
    ]


def _code(run: Stored) -> str:
    if not run.current:
        return f"other code ({run.code or 'unknown'}), kept as it is"
    if "verified" not in run.about:
        return "this version"
    verdict = str(run.about["verified"].get("verdict", "same bits")).partition(" until")[0]
    return f"this version, verified by its first rounds: {verdict}"


def _machine(hardware: dict[str, str]) -> str:
    if hardware == UNKNOWN["hardware"]:
        return "unknown"
    return f"{hardware['processor']}, {hardware['cores']} cores, {hardware['system']}"


def seconds_to(run: Stored, trajectories: float) -> float:
    """The time of a run if it had been so long."""
    return float(run.about["seconds"]) * (trajectories / run.reached if run.reached else 1.0)


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
