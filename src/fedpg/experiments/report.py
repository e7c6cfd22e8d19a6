"""The report: figures, tables and where they come from, from stored runs alone."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from fedpg.experiments import tables
from fedpg.experiments.answer import PICTURE, answer, panels_of
from fedpg.experiments.catalogue import EXPERIMENTS
from fedpg.experiments.figures import (
    Stock,
    legend_of,
    needs_totals,
    panel_image,
    picture,
    pictures_of,
    runs_of,
    theirs_of,
)
from fedpg.experiments.findings import Finding, findings, table_of
from fedpg.experiments.panels import Experiment, Panel
from fedpg.experiments.render import (
    Block,
    Contents,
    Details,
    Heading,
    Pictures,
    Section,
    Table,
    Text,
    folded,
    to_csv,
    to_html,
    to_markdown,
)
from fedpg.experiments.statistics import inside_by_luck
from fedpg.storage import StorageError, write_whole

TITLE = "FedPG-BR, reproduced"
READING = (
    "Lines are means over seeds of the greedy return (10 episodes after every round), bands are 90% percentile "
    "bootstrap intervals over seeds; where only some of the seeds got that far, a thin line of its own goes on. If a "
    "legend has several numbers of seeds (10, 3, 3), they are those of the panels, in their order. "
    "Trajectories on the x axis are counted as in the paper: B + b N per round for one agent, and (B K + b N) / (K + "
    "1) for K agents and the server. That count favours large K; where the number of agents differs, a second row of "
    "panels counts all trajectories. Our intervals are too narrow, as percentile bootstrap over few values is: if "
    "returns are normal, a 90% (95%) interval of ten seeds holds the true mean in 84% (90%) of cases, of three seeds "
    "in 61% (75%), of two in 50% (50%): it is then no more than how far these lie apart."
)
VERDICT = (
    "A verdict compares our mean with the paper's 90% band, widened by the error of reading it off the published plot "
    "(3 on CartPole, 10 on LunarLander, 15 on HalfCheetah). LunarLander's has no verdict before 2500 trajectories, "
    "where the error is larger. A star: that band could not be read off, and the paper's mean is compared with our "
    "95% interval instead, if we have five seeds or more. Where not all of our seeds got, there is no verdict. "
    "`final` is the mean of a run's last 20 evaluations (or fifth of its evaluations, if that is less), `IQM` the "
    "inter-quartile mean of these over seeds, `area` the area under a run's curve over its length (its average "
    "return), all up to the length that all seeds have. `precision`: of the rejected replies, the share that was "
    "Byzantine; `recall`: of the Byzantine replies, the share that was rejected."
)

OTHER_CODE = " (starred: with games of another version of the code)"
COUNTED = (
    "The verdict counts how often our mean lies inside the paper's 90% band, above it or below it, over the curves of "
    "figures 1 and 2 (without those that are repeated as a reference) and all marks. Starred: where that band cannot "
    "be read off, and the paper's mean is compared with our 95% interval, a weaker test. "
)


def perfect() -> str:
    """What the share inside would be if nothing differed but the seeds."""
    shares = ", ".join(f"{inside_by_luck(n):.0%} for {n}" for n in (10, 3, 1))
    return (
        "A perfect reproduction would not be inside everywhere, since both means vary with their seeds: an exact "
        "replication lies inside a 90% band of ten seeds with probability P(|Z| < 1.645 / sqrt(1 + 10 / n)) for n "
        f"seeds of ours, which is {shares} (the error of reading off, which widens the band, not counted). Marks of "
        "one curve are not independent of each other."
    )


def write_report(
    results: Path,
    out: Path,
    stored: Stock,
    say: Callable[[str], None],
    further: Iterable[Finding] = (),
    short: Iterable[Block] = (),
    more: Iterable[Block] = (),
) -> list[Path]:
    """report.html, report.md, pictures/ and tables/ in `out`; returns what was written.

    `further`: what else the answer at the top says; `short`: its numbers; `more`: what else there is at the end.
    """
    if not stored:
        raise StorageError(f"there are no stored runs in {results}: make some with `fedpg reproduce figure1`")
    experiments = [e for e in EXPERIMENTS.values() if any(runs_of(panel, stored) for panel in e.panels)]
    say("making the tables, and the pictures of the page")
    written = write_pictures(experiments, stored, out, say)
    blocks = [*page(experiments, stored, further, short), *sections_of(more)]
    for name, text in (("report.html", to_html(TITLE, blocks)), ("report.md", to_markdown(TITLE, blocks))):
        write_whole(out / name, text)
        written.append(out / name)
    beside = {out / path: to_csv(table) for path, table in folded(blocks).items()}
    (out / "tables").mkdir(exist_ok=True)
    for path in {*(out / "tables").glob("*.csv")} - set(beside):  # of an older report
        path.unlink()
    for path, text in beside.items():
        write_whole(path, text)
    return [*written, *beside]


def sections_of(blocks: Iterable[Block]) -> list[Block]:
    """Blocks with what follows each second-level heading folded below it."""
    found: list[Block] = []
    for block in blocks:
        if isinstance(block, Heading) and block.level == 2:
            found.append(Section(block, []))
        elif found and isinstance(last := found[-1], Section):
            found[-1] = Section(last.heading, [*last.blocks, block])
        else:
            found.append(block)
    return found


def write_pictures(
    experiments: Sequence[Experiment], stored: Stock, out: Path, say: Callable[[str], None]
) -> list[Path]:
    """One PNG for each picture that has runs."""
    folder = out / "pictures"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {folder}: {error.strerror or error}") from error
    written = []
    for experiment in experiments:
        say(f"drawing {experiment.name}")
        for name, panels in drawn(experiment, stored).items():
            write_whole(folder / f"{name}.png", picture(panels, stored))
            written.append(folder / f"{name}.png")
    if short := panels_of(experiments, stored):
        write_whole(folder / f"{PICTURE}.png", picture(short, stored))
        written.append(folder / f"{PICTURE}.png")
    return written


def drawn(experiment: Experiment, stored: Stock) -> dict[str, list[Panel]]:
    """The pictures of an experiment that have runs."""
    pictures = pictures_of(experiment.panels)
    return {name: panels for name, panels in pictures.items() if any(runs_of(panel, stored) for panel in panels)}


def page(
    experiments: Sequence[Experiment], stored: Stock, further: Iterable[Finding] = (), short: Iterable[Block] = ()
) -> Iterator[Block]:
    """The whole page: the answer, its numbers, then one section after the other."""
    runs = list(stored.values())
    found = [*findings(stored), *further]
    yield Text("**What holds, and what does not**" + OTHER_CODE * any("*" in line.measured for line in found) + ":")
    yield table_of(found)
    panels = panels_of(experiments, stored)
    if panels:
        yield _pictures("What a return costs", panels, stored)
    yield Text(
        f"{len(runs)} runs of {len({run.key[0] for run in runs})} settings, each a function of its settings and its "
        "seed. The paper: Fan et al., Fault-Tolerant Federated Reinforcement Learning with Theoretical Guarantee, "
        "NeurIPS 2021. Runs use its table of hyper-parameters and the preset `released`, which is what its figures "
        "were made with, unless a curve says otherwise.",
        "lead",
    )
    other = sum(not run.current for run in runs)
    if other:
        yield Text(
            f"**{other} of these runs were made by another version of the code** and are used as they are.", "warning"
        )
    yield Contents()
    total, table = tables.tally(experiments, stored)
    yield Section(Heading("The answer in numbers"), list(_numbers(panels, stored, short, total, table)), unfolded=True)
    yield Section(
        Heading("How to read this"), [*([Text(COUNTED + perfect())] if total else []), Text(READING), Text(VERDICT)]
    )
    for experiment in experiments:
        unfolded = experiment.name in tables.FIGURES
        yield Section(Heading(experiment.title), list(section(experiment, stored)), unfolded)
    shared = (
        "One run of FedPG-BR with ten agents, three of them Byzantine, at the paper's length; shorter runs are scaled "
        "up to it; the median over runs. Compiling (some ten seconds for each setting) is not in it. Several runs, and "
        "other work, shared the machine: a run alone is faster."
    )
    yield Section(Heading("Time"), [Text(shared), tables.times(experiments, stored)])
    known = "A run is known by its settings, its seed and the version of the code that decides its numbers."
    yield Section(Heading("Code, versions and machines"), [Text(known), *tables.provenance(runs)])


def _numbers(
    panels: Sequence[Panel], stored: Stock, short: Iterable[Block], total: Counter[str], table: Table
) -> Iterator[Block]:
    """What a return costs, what else there is in short, and the paper's curves."""
    if panels:
        yield from answer(panels, stored)
    yield from short
    if total:
        found = ", ".join(f"{total[word] + total[f'{word}*']} {word}" for word in ("inside", "above", "below"))
        weaker = sum(count for word, count in total.items() if word.endswith("*"))
        yield Text(
            f"**The paper's figures**: at {total.total()} marks of the curves of figures 1 and 2, against its 90% "
            f"bands, **{found}**" + (f"; {weaker} of these, starred below, by a weaker test." if weaker else "."),
            "verdict",
        )
        yield table


def section(experiment: Experiment, stored: Stock) -> Iterator[Block]:
    """One experiment: pictures and tables."""
    yield Text(experiment.about)
    yield Text(f"`fedpg reproduce {experiment.name} --seeds 0:10`")
    pictures = drawn(experiment, stored)
    for panels in pictures.values():
        if len(pictures) > 1:
            yield Heading(panels[0].task, 3)
        yield _pictures(experiment.title, panels, stored)
        if experiment.name in ("algorithms", "estimators"):
            yield tables.prices(panels, stored)
        yield from _tables(panels, stored)


def _pictures(title: str, panels: Sequence[Panel], stored: Stock) -> Pictures:
    """The panels of one picture."""
    seen = [panel for panel in panels if runs_of(panel, stored)]
    twin = [panel for panel in seen if needs_totals(panel)]
    return Pictures(
        alt=f"{title}: {', '.join(panel.title for panel in panels)}",
        path=f"pictures/{panels[0].picture}.png",
        images=[panel_image(p, stored) for p in seen] + [panel_image(p, stored, total=True) for p in twin],
        legend=legend_of(panels, stored),
        theirs=[(line.shown, line.label) for line in theirs_of(seen)],
    )


def _tables(panels: Sequence[Panel], stored: Stock) -> Iterator[Block]:
    yield tables.overview(panels, stored)
    for panel in panels:
        table = tables.comparison(panel, stored)
        if table is not None:
            yield Details(f"{panel.title}: every mark, with intervals", [table])
    yield Details("Final returns, areas and times", [tables.learning(panels, stored)])
    did: Table | None = tables.filters(panels, stored)
    if did is not None:
        yield Details("What the aggregator did", [did])
    yield Details("Final return and area of each seed", [tables.per_seed(panels, stored)])
