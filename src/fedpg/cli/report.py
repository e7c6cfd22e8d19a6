"""`fedpg report`."""

from dataclasses import dataclass
from pathlib import Path

from fedpg.extras import need


@dataclass(frozen=True)
class Report:
    """Write report.html, report.md and their pictures from the runs that `fedpg reproduce` stored.

    Example:
      fedpg report --results results --out page
    """

    results: Path = Path("results")
    """Where the runs are stored."""
    out: Path | None = None
    """The folder to write to; by default that of the results."""


def run_report(command: Report) -> int:
    need("matplotlib", "PIL")
    from fedpg.arena.section import found_in, in_short, sections
    from fedpg.experiments.report import write_report
    from fedpg.experiments.runner import say
    from fedpg.experiments.store import load_all

    out = command.out or command.results
    stored = load_all(command.results)
    written = write_report(
        command.results,
        out,
        stored,
        say,
        further=found_in(command.results),
        short=in_short(command.results),
        more=sections(command.results, out),
    )
    for path in written:
        print(path)
    return 0
