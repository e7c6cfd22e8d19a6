"""Tables: what the theorem says for a federation, and what the lab measured."""

import dataclasses
from typing import Any

from rich.console import Console
from rich.table import Table

from fedpg.presets import TASKS
from fedpg.theory.bound import Plan, Setting, conditions, constants, delta_of, gap_of, plan, step_of, terms
from fedpg.theory.fits import binomial
from fedpg.theory.lab import Result
from fedpg.theory.rules import R1_ROUNDS


def print_report(console: Console, setting: Setting, epsilon: float, where: str) -> None:
    """All of `fedpg theory`."""
    planned = plan(setting, epsilon)
    there = dataclasses.replace(setting, batch=planned.batch, rounds=planned.rounds, step=None)
    broken = [c.formula for c in conditions(there) if not c.holds]
    # All is computed before anything is printed: any of it may refuse the setting.
    found, bound, asked = _constants_table(setting), _terms_table(setting), _conditions_table(setting)
    answer = what_if_table(setting, epsilon)
    console.print(found)
    console.print(f"[dim]{where}[/]", highlight=False)
    console.print(bound)
    console.print(asked)
    console.print(
        "[dim]in the paper: its own experiments (K = 10, the table's B and b, delta = 0.6, Adam), on all its tasks or "
        "on the named; ? where that takes the constants of its policies[/]",
        highlight=False,
    )
    console.print(answer)
    console.print(
        f"Trajectories are those that make the bound epsilon = {epsilon:g}, with the batch that needs the fewest, and "
        f"{_n(planned.floor)} at least, for 16 <= B, 4 Phi / L^2 <= B and log(2K/delta) <= B/2; in all means all "
        "agents and the server.",
        f"At B = {_n(planned.batch)} and its largest step "
        + (f"the following do not hold: {'; '.join(broken)}." if broken else "every condition holds."),
        sep="\n",
        highlight=False,
        markup=False,
    )


def _constants_table(setting: Setting) -> Table:
    s, c = setting, constants(setting)
    table = Table(title="The constants of Theorem 1", title_justify="left")
    for name in ("", "value", "formula"):
        table.add_column(name, justify="right" if name == "value" else "left")
    rows = [
        ("H, gamma", f"{s.horizon}, {s.discount:g}", ""),
        ("G, M", f"{s.G:.3g}, {s.M:.3g}", "first and second derivatives of log pi"),
        ("R, |C_b|, W", f"{s.R:.3g}, {s.baseline:.3g}, {s.W:.3g}", "reward, baseline, variance of importance weights"),
        ("sigma", f"{s.sigma:.3g}", "||g - grad J||"),
        ("J* - J_0", f"{gap_of(s):.3g}", ""),
        ("L", f"{c.L:.3g}", "H R (M + H G^2) / (1 - gamma)"),
        ("L_g", f"{c.L_g:.3g}", "H M (R + |C_b|) / (1 - gamma)"),
        ("C_g", f"{c.C_g:.3g}", "H G (R + |C_b|) / (1 - gamma)"),
        ("C_w", f"{c.C_w:.3g}", "H (2 H G^2 + M) (W + 1)"),
        ("Phi", f"{c.Phi:.3g}", "L_g + C_g^2 C_w"),
        ("Psi", f"{c.Psi:.3g}", "(L Phi)^(1/3)"),
        ("eta", f"{step_of(s):.3g}", "1 / (2 Psi B^(2/3))" if s.step is None else "as given"),
        ("delta", f"{delta_of(s):.3g}", "1 / (5 K B)" if s.delta is None else "as given"),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _terms_table(setting: Setting) -> Table:
    s, found = setting, terms(setting)
    title = f"E||grad J||^2 after T = {s.rounds} rounds of B = {s.batch}, K = {s.agents}, alpha = {s.alpha:g}, at most"
    table = Table(title=title, title_justify="left")
    table.add_column("term")
    table.add_column("value", justify="right")
    table.add_column("formula (with the appendix's factor 4)")
    first = "4 * 2 Psi (J* - J_0) / (T B^(1/3))" if s.step is None else "4 (J* - J_0) / (T B eta)"
    table.add_row("optimisation", f"{found.optimisation:.3g}", first)
    table.add_row("sampling", f"{found.sampling:.3g}", "4 * 8 sigma^2 / ((1 - alpha)^2 K B)")
    table.add_row("Byzantine", f"{found.byzantine:.3g}", "4 * 96 alpha^2 sigma^2 V / ((1 - alpha)^2 B)")
    table.add_row("all", f"{found.total:.3g}", "")
    return table


def _conditions_table(setting: Setting) -> Table:
    table = Table(title="What the theorem and its proof ask for", title_justify="left")
    for name in ("from", "condition", "left", "right", "here", "in the paper"):
        table.add_column(name, justify="right" if name in ("left", "right") else "left")
    for c in conditions(setting):
        here = "[green]holds[/]" if c.holds else "[red]violated[/]"
        paper = "?" if c.paper is None else "[red]violated[/]" if c.paper else "[green]holds[/]"
        if c.paper and len(c.paper) < len(TASKS):
            paper += f" ({', '.join(_short(task) for task in c.paper)})"
        table.add_row(c.source, c.formula, f"{c.left:.3g}", f"{c.right:.3g}", here, paper)
    return table


def _short(task: str) -> str:
    return task.split("-")[0]


def what_if(setting: Setting, epsilon: float) -> list[tuple[str, int, int, Plan | None]]:
    """(what, K, liars, plan): this federation, ten agents more, three more that lie, both, and one agent alone."""
    liars = round(setting.alpha * setting.agents)
    more, worse = setting.agents + 10, liars + 3
    wanted = [
        ("now", setting.agents, liars),
        ("10 agents more", more, liars),
        ("3 more lie", setting.agents, worse),
        ("both", more, worse),
        ("one alone", 1, 0),
    ]
    rows: list[tuple[str, int, int, Plan | None]] = []
    for what, agents, count in wanted:
        if 2 * count >= agents:
            rows.append((what, agents, count, None))
            continue
        changed = dataclasses.replace(setting, agents=agents, alpha=count / agents)
        rows.append((what, agents, count, plan(changed, epsilon)))
    return rows


def what_if_table(setting: Setting, epsilon: float) -> Table:
    """What does adding ten agents buy me; what do three liars cost me."""
    title = f"Trajectories to E||grad J||^2 <= {epsilon:g}, by the bound"
    table = Table(title=title, title_justify="left", caption_justify="left")
    for name in ("", "K", "liars", "B", "T", "each", "in all", "x now"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    rows = what_if(setting, epsilon)
    now = rows[0][3]
    assert now is not None  # fewer than half of this federation lie
    for what, agents, liars, found in rows:
        if found is None:
            table.add_row(what, f"{agents}", f"{liars}", *["–"] * 5)
            table.caption = "–: half of them or more lie, and nothing is promised"
            continue
        ratio = found.per_agent / now.per_agent
        cells = (_n(found.batch), _n(found.rounds), _n(found.per_agent), _n(found.total(agents)), _n(ratio, 2))
        table.add_row(what, f"{agents}", f"{liars}", *cells)
    return table


def _n(number: float, decimals: int = 0) -> str:
    """In at most seven characters: 96.20, 56,192 or 1.1e8."""
    if 10.0**-decimals <= number < 1e5 or number == 0:
        return f"{number:,.{decimals}f}"
    mantissa, power = f"{number:.1e}".split("e")
    return f"{mantissa}e{int(power)}"


def _with_interval(cell: Any, digits: int = 3) -> str:
    """What is exact, or was never seen, has none."""
    value, low, high = cell
    if value is None:
        return "not reached"
    return f"{value:.{digits}g}" + (f" [{low:.{digits}g}, {high:.{digits}g}]" if low < high else "")


NAMES = ("MDP", "method", "sweep", "attack", "sigma", "aggregator")
"""Columns of words, which are not broken."""


def lab_tables(name: str, result: Result) -> list[Table]:
    """What an experiment found, beside the paper's."""
    tables = []
    for title, columns, rows in (make(result) for make in TABLES[name]):
        table = Table(title=title, title_justify="left")
        for column in columns:
            table.add_column(column, overflow="fold", no_wrap=column in NAMES)
        for row in rows:
            table.add_row(*row)
        tables.append(table)
    return tables


def _epsilon(result: Result) -> Any:
    rows = [
        (
            f["mdp"],
            f["method"],
            _with_interval(f["uniform"]),
            "–" if f["paper"] is None else f"{f['paper']:.3g}",
            _with_interval(f["last"]),
        )
        for f in result["fits"]
    ]
    columns = ("MDP", "method", "exponent of 1/epsilon [90%]", "paper", "of the last policy instead")
    return "Trajectories against epsilon, K = 1", columns, rows


def _agents(result: Result) -> Any:
    rows = [
        (
            f"{r['agents']}",
            f"{r['batch']}",
            f"{r['rounds']}",
            _with_interval(r["per_agent"]),
            _with_interval(r["no_noise"]),
            f"{r['accepted']:.3g}",
        )
        for r in result["rows"]
    ]
    fit, exact = (_with_interval(result["fits"][name]) for name in ("all", "no noise"))
    what = f"exponent of K {fit}, paper -0.667, no noise {exact}"
    title = f"Trajectories per agent to epsilon = {result['epsilon']:.3g}: {what}"
    return title, ("K", "B", "rounds run", "per agent [90%]", "no noise", "honest accepted"), rows


def _alpha(result: Result) -> Any:
    rows = [
        (
            f"{r['alpha']:g}",
            f"{r['batch']}",
            _with_interval(r["per_agent"]),
            _with_interval(r["error_times_B"]),
            f"{r['accepted']:.2f}",
        )
        for r in result["rows"]
    ]
    fit = _with_interval(result["fits"]["trajectories"])
    title = f"{result['strongest']}: what is added grows as alpha^ {fit}, paper 1.33"
    return title, ("alpha", "B", "per agent [90%]", "B E||e||^2 [90%]", "Byzantine accepted"), rows


def _error(result: Result) -> Any:
    rows = [
        (
            r["sweep"],
            f"{r['agents']}",
            f"{r['liars']}",
            f"{r['batch']}",
            r["attack"],
            _with_interval(r["error"]),
            f"{r['bound']:.3g}",
            f"{r['error'][0] / r['bound']:.2g}",
        )
        for r in result["rows"]
    ]
    columns = ("sweep", "K", "Byzantine", "B", "attack", "E||e||^2 [90%]", "lemma", "share")
    return f"The aggregate's error against its lemma, sigma = {result['sigma']:.3g}", columns, rows


def _failures(result: Result) -> Any:
    rows = []
    for row in result["failures"]:
        for i, sigma in ((-2, "root mean square"), (-1, "largest")):
            seen = (_share(row[event][i], row["draws"]) for event in ("outside", "fails"))
            rows.append((f"{row['delta']:g}", sigma, *seen))
    columns = ("delta", "sigma", "a reply beyond sigma sqrt(V/B) [90%]", "R1 fails [90%]")
    return f"R1: the share of rounds with {result['agents']} honest agents, B = {result['batch']}", columns, rows


def _share(share: float, rounds: int) -> str:
    """With an exact interval, which says how little it says that something was never seen."""
    value, low, high = (f"{100 * x:.2g}%" for x in binomial(round(share * rounds), rounds))
    return f"{value} [{low}, {high}]"


def _rules(result: Result) -> Any:
    rounds = result["failures"][0]["draws"] // R1_ROUNDS
    rows = [
        (
            r["attack"],
            r["sigma"],
            r["aggregator"],
            _with_interval(r["dropped"], 2),
            _share(r["rounds_with_a_drop"], rounds),
            f"{r['accepted']:.2f}",
            f"{r['error'][0]:.3g}",
        )
        for r in result["rows"]
    ]
    columns = (
        "attack",
        "sigma",
        "aggregator",
        "honest dropped [90%]",
        "rounds with one [90%]",
        "liars accepted",
        "E||e||^2",
    )
    return f"Whom the aggregators turn away: K = {result['agents']}, B = {result['batch']}", columns, rows


TABLES = {
    "epsilon": (_epsilon,),
    "agents": (_agents,),
    "alpha": (_alpha,),
    "error": (_error,),
    "rules": (_failures, _rules),
}
