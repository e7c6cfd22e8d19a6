"""The paper's experiments as data, stored runs, their statistics, and the page made of them."""

import ast
import dataclasses
import gzip
import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpg
from fedpg import Config, ConfigError, StorageError, make_config
from fedpg.agents import Problem
from fedpg.aggregators import FILTERS, RULES
from fedpg.attacks import ATTACKS
from fedpg.experiments import statistics, store
from fedpg.experiments.catalogue import EXPERIMENTS, TASKS, Curve, Panel, config_of, configs_of, find
from fedpg.experiments.figures import needs_totals, panel_image, runs_of
from fedpg.experiments.paper import READING_ERROR, PaperCurve, paper_curves
from fedpg.experiments.render import Details, Heading, Pictures, Table, Text, to_html, to_markdown
from fedpg.experiments.report import READING, write_report
from fedpg.experiments.runner import plan, rates_of, seconds_of, slots_of
from fedpg.experiments.store import Stored
from fedpg.experiments.tables import comparison, learning, overview
from fedpg.experiments.work import Unit
from fedpg.training import train_seeds

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)


def stored_run(
    config: Config | None = None,
    seed: int = 0,
    returns: Any = (9.0, 20.5, 400.1),
    length: float = 100.0,
    code: str = "now",
) -> Stored:
    """A run with these returns at equal distances, made up; everybody is accepted by R1."""
    config = config or make_config(preset="released", agents=10)
    rows = len(returns)
    count = np.linspace(0, length, rows).round()
    honest = config.agents - config.byzantine
    columns = {
        "trajectories": count,
        "trajectories_total": count * (config.agents + 1),
        "test_return": np.asarray(returns),
        "inner_steps": np.ones(rows),
        "rule": np.full(rows, RULES.index("R1")),
        "accepted_honest": np.r_[0, np.full(rows - 1, honest)],
        "accepted_byzantine": np.zeros(rows),
    }
    about = {
        "made": "2026-01-01",
        "versions": {"python": "3"},
        "hardware": store.machine(),
        "seconds": 2.0,
        "steps": 10,
    }
    return Stored(config, seed, code, about, {n: columns[n].astype(kind) for n, kind in store.COLUMNS.items()})


# The experiments as data


def test_every_curve_has_settings_that_work_and_the_names_of_a_panel_are_its_own():
    for experiment in EXPERIMENTS.values():
        for panel in experiment.panels:
            labels = [curve.label for curve in panel.curves]
            assert len(set(labels)) == len(labels)
            for curve in panel.curves:
                config = config_of(panel, curve)
                assert config.task == panel.task in TASKS
                assert config.filter in FILTERS
                assert config.attack in ATTACKS


def test_the_figures_are_those_of_the_paper():
    def curves(name: str, task: str) -> set[tuple[Any, ...]]:
        keys = ("algorithm", "agents", "byzantine", "attack")
        found = configs_of([EXPERIMENTS[name].on([task])])
        return {tuple(getattr(c, k) for k in keys[: 4 if c.byzantine else 3]) for c in found}

    alone = {(a, 1, 0) for a in ("gpomdp", "svrpg", "fedpg-br")}
    for task in TASKS:
        assert curves("figure1", task) == alone | {("fedpg-br", 3, 0), ("fedpg-br", 10, 0)}
        attacks = ("random-noise", "random-action", "sign-flipping")
        assert curves("figure2", task) == alone | {
            (a, 10, 3, x) for a in ("gpomdp", "svrpg", "fedpg-br") for x in attacks
        }
        for name, attack in (("figure3", "fedpg-attack"), ("figure-va", "variance-attack")):
            honest = {("fedpg-br", 10, 0), ("fedpg-br", 1, 0)}
            assert curves(name, task) == honest | {("fedpg-br", 10, 3, attack)}


def test_every_curve_of_the_paper_is_drawn_in_some_panel_and_none_is_asked_for_that_it_does_not_have():
    asked = {c.paper for e in EXPERIMENTS.values() for p in e.panels for c in p.curves if c.paper}
    assert asked == set(paper_curves())


def test_algorithms_of_a_panel_share_everything_that_the_initial_policy_depends_on():
    for panel in EXPERIMENTS["figure2"].panels:
        assert (
            len({(c.task, c.hidden, c.activation, c.gaussian) for c in (config_of(panel, x) for x in panel.curves)})
            == 1
        )


@pytest.mark.parametrize(
    ("names", "tasks", "message"),
    [
        (["figure4"], [], "did you mean figure"),
        (["figure1"], ["CartPole"], "did you mean CartPole-v1"),
        (["ablation-alpha"], ["HalfCheetah-v5"], "it is about CartPole-v1"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest_known(names: list[str], tasks: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        find(names, tasks)


def test_the_papers_names_of_tasks_are_taken_and_all_is_everything():
    assert [p.task for p in find(["figure1"], ["HalfCheetah-v2"])[0].panels] == ["HalfCheetah-v5"]
    assert [e.name for e in find(["all"], [])] == list(EXPERIMENTS)


# The paper's curves


def test_the_papers_curves_are_the_ones_that_were_read_off():
    curve = paper_curves()["Figure 1", "CartPole-v1", "FedPG-BR (K=10)"]
    assert curve.at(500)[0] == pytest.approx(379, abs=1)
    assert math.isnan(curve.at(7000)[0])  # the figure ends at 5000
    # One readable side of a symmetric band is enough.
    assert paper_curves()["Figure 1", "HalfCheetah-v2", "GPOMDP"].at(10_000) == pytest.approx((1766, 1766 - 1616))


# Stored runs


@SETTINGS
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
    st.integers(0, 2**32 - 1),
)
def test_a_stored_run_comes_back_to_the_bit(returns: list[float], seed: int):
    run = stored_run(seed=seed, returns=returns)
    again = store.unpack(store.pack(run), Path("x"))
    assert again.key == run.key
    assert again.begins_like(run)
    assert run.begins_like(again)
    assert again.about == run.about
    assert store.pack(again) == store.pack(run)


def test_a_run_is_known_by_its_settings_and_seed_but_not_by_its_length(tmp_path: Path):
    config = make_config(preset="released", agents=10)
    longer = dataclasses.replace(config, trajectories=9999)
    assert store.key_of(config, 0) == store.key_of(longer, 0) != store.key_of(config, 1)
    assert store.path_of(tmp_path, config, 0) == store.path_of(tmp_path, longer, 0)
    others = [
        make_config(preset="released", agents=10, **{k: v})
        for k, v in {"alpha": 0.2, "sigma": 1.0, "discount": 0.9}.items()
    ]
    assert len({store.name_of(c) for c in (config, *others)}) == 4


def write(results: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A stored run whose content has been changed."""
    path = store.save(results, stored_run())
    content = json.loads(gzip.decompress(path.read_bytes()))
    change(content)
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another format": lambda c: c.update(format="fedpg run 2"),
    "no settings": lambda c: c.pop("settings"),
    "impossible settings": lambda c: c["settings"].update(agents=-1),
    "unknown setting": lambda c: c["settings"].update(colour=1),
    "seed": lambda c: c.update(seed="0"),
    "seed out of range": lambda c: c.update(seed=-1),
    "no machine": lambda c: c.pop("hardware"),
    "a machine without cores": lambda c: c["hardware"].pop("cores"),
    "endless": lambda c: c.update(seconds=float("inf")),
    "no time": lambda c: c.update(seconds="2"),
    "versions": lambda c: c.update(versions={"jax": 1}),
    "returns that are words": lambda c: c["columns"].update(test_return=["1", "2", "3"]),
    "fewer than none": lambda c: c["columns"].update(trajectories_total=[-1, 5, 9]),
    "column missing": lambda c: c["columns"].pop("rule"),
    "column short": lambda c: c["columns"]["rule"].pop(),
    "not a number": lambda c: c["columns"].update(test_return=[float("nan")] * 3),
    "half an agent": lambda c: c["columns"].update(accepted_honest=[0, 1.5, 1]),
    "too many agents": lambda c: c["columns"].update(accepted_honest=[0, 11, 1]),
    "going back": lambda c: c["columns"].update(trajectories=[0, 9, 5]),
    "unknown rule": lambda c: c["columns"].update(rule=[0, 99, 1]),
    "too large a number": lambda c: c["columns"].update(trajectories=[0, 1, 10**30]),
    "not a list": lambda c: c.update(columns=3),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_named_and_stays_as_it_is(name: str, tmp_path: Path):
    path = write(tmp_path, DAMAGES[name])
    before = path.read_bytes()
    with pytest.raises(StorageError, match=r"seed-0\.json\.gz is damaged"):
        store.load_all(tmp_path)
    assert path.read_bytes() == before


def broken_stream() -> bytes:
    """A gzip file whose compressed bytes are not those of any text."""
    whole = gzip.compress(bytes(range(256)))
    return whole[:10] + b"\xff" * 20 + whole[30:]


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"x", gzip.compress(b"[]"), gzip.compress(b"{}")[:-4]),
        *(broken_stream(), gzip.compress(b"[" * 200_000)),
    ],
)
def test_what_is_no_stored_run_at_all_is_named(data: bytes, tmp_path: Path):
    path = store.save(tmp_path, stored_run())
    path.write_bytes(data)
    with pytest.raises(StorageError, match="Move it away"):
        store.load_all(tmp_path)


def test_a_file_that_unpacks_to_more_than_a_run_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store, "LARGEST", 100)
    with pytest.raises(StorageError, match="too large"):
        store.unpack(gzip.compress(b" " * 10_000), Path("x"))


def test_saving_a_run_leaves_the_unfinished_files_of_others_alone(tmp_path: Path):
    folder = store.save(tmp_path, stored_run()).parent
    mine, other = (folder / f".seed-{seed}.json.gz.abc.unfinished" for seed in (0, 1))
    for path in (mine, other):
        path.touch()
    store.save(tmp_path, stored_run())
    assert not mine.exists()
    assert other.exists()


def test_a_run_under_another_runs_name_is_refused(tmp_path: Path):
    path = store.save(tmp_path, stored_run())
    path.rename(path.with_name("seed-1.json.gz"))
    with pytest.raises(StorageError, match="holds another run than its name says"):
        store.load_all(tmp_path)


def test_the_fingerprint_covers_everything_that_a_round_imports():
    base = Path(fedpg.__file__).parent

    def files_of(module: str) -> list[Path]:
        path = base.joinpath(*module.split(".")[1:])
        return [p for p in (path.with_suffix(".py"), path / "__init__.py") if p.exists() and path != base]

    todo, seen = [base / "training" / "rounds.py"], set()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedpg"):
                todo += files_of(str(node.module))
                todo += [f for alias in node.names for f in files_of(f"{node.module}.{alias.name}")]
    covered = {
        p for name in store.DECISIVE for p in ([base / name] if name.endswith(".py") else (base / name).rglob("*.py"))
    }
    assert seen <= covered
    assert all(path.exists() for path in covered)


def test_a_run_folder_is_stored_as_far_as_it_goes(
    tiny: Callable[..., Problem], compiled: Any, content: Callable[[Path], dict[str, bytes]], tmp_path: Path
):
    (run,) = train_seeds(tiny(), [3], tmp_path / "run")
    before = content(tmp_path)
    found = store.from_folder(tmp_path / "run", "code", adopted=True)
    assert content(tmp_path) == before
    assert found.key == store.key_of(run.config, 3)
    assert found.trajectories.tolist() == run.records.trajectories.tolist()
    assert found.returns.tolist() == run.records.test_returns.tolist()
    assert found.columns["accepted_honest"][1:].tolist() == run.records.accepted()[0].tolist()
    assert found.about["steps"] == run.records.steps
    rows = (tmp_path / "run" / "records.jsonl").read_text().splitlines()
    unfinished = [*rows[:3], json.dumps(json.loads(rows[3]) | {"test_return": None})]
    (tmp_path / "run" / "records.jsonl").write_text("\n".join(unfinished))
    assert len(store.from_folder(tmp_path / "run", "").returns) == 3
    (tmp_path / "run" / "records.jsonl").write_text(rows[0] + "\n{")
    with pytest.raises(StorageError, match=r"records\.jsonl is damaged"):
        store.from_folder(tmp_path / "run", "")


# What is missing


def test_a_plan_has_what_is_missing_too_short_or_wanted_again():
    config = make_config(preset="released", agents=10, trajectories=100)
    half = dataclasses.replace(config, trajectories=50)
    runs = [stored_run(config, 0), stored_run(config, 1, length=60), stored_run(config, 2, code="before")]
    stored = {run.key: run for run in runs}
    todo = plan([config, half], [0, 1, 2, 3], stored, "now", again=False)
    assert todo.units == (Unit(config, (1, 3)),)  # compiled: all seeds in one process; the longest of both lengths
    assert todo.wanted == 4
    assert [run.seed for run in todo.old] == [2]
    # What is of other code is not replaced without a word, however short it is.
    short = {run.key: run for run in [stored_run(config, 0, length=60, code="before")]}
    todo = plan([config], [0], short, "now", again=False)
    assert (todo.units, [run.seed for run in todo.old]) == ((), [0])
    # What is made again gets as long as it was.
    todo = plan([half], [2, 3], stored, "now", again=True)
    assert todo.units == (Unit(config, (2,)), Unit(half, (3,)))
    again = plan([config], [0, 1, 2, 3], stored, "now", again=True)
    assert again.units == (Unit(config, (1, 2, 3)),)
    assert again.old == ()
    assert plan([half], [0, 1], stored, "now", again=False).units == ()


def test_runs_of_other_tasks_are_units_of_their_own_one_seed_of_each_setting_first():
    few, many = (make_config("LunarLander-v3", agents=k) for k in (1, 10))
    assert [(u.config.agents, u.seeds) for u in plan([few, many], [0, 1], {}, "", again=False).units] == [
        (1, (0,)),
        (10, (0,)),
        (1, (1,)),
        (10, (1,)),
    ]


@given(st.integers(1, 64), st.integers(1, 200))
def test_units_at_a_time_never_have_more_cores_than_there_are(total: int, units: int):
    config = make_config()
    count, share = slots_of([Unit(config, (i,)) for i in range(units)], total)
    assert 1 <= count * share <= total
    assert count <= units


def test_the_time_is_estimated_from_runs_on_a_machine_like_this_one():
    slow = dataclasses.replace(
        stored_run(), about=stored_run().about | {"hardware": {"processor": "old"}, "seconds": 99.0}
    )
    config = make_config(preset="released", agents=10)
    here = rates_of([slow, dataclasses.replace(stored_run(), seed=1)])["CartPole-v1"]
    assert here == pytest.approx(1000 * 2.0 / 1100)
    assert rates_of([slow])["CartPole-v1"] > here
    ten, one = (seconds_of(Unit(config, tuple(range(n))), {"CartPole-v1": here}) for n in (10, 1))
    assert ten > one > 0


# Statistics


def test_the_mean_and_its_intervals_at_each_point_are_those_of_the_seeds_that_got_there():
    runs = [stored_run(seed=s, returns=[0, v / 2, v]) for s, v in enumerate([10, 20, 60])]
    runs.append(stored_run(seed=3, returns=[0, 500, 1000], length=40))
    at = np.array([0.0, 20, 50, 100, 101])
    found = statistics.band(runs, at)
    assert found.seeds.tolist() == [4, 4, 3, 3, 0]
    assert found.mean[:4].tolist() == pytest.approx([0, (5 + 10 + 30 + 500) / 4, 15, 30])
    assert math.isnan(found.mean[4])
    # All resamples of three seeds can be counted: the 90% interval of their mean.
    means = sorted(np.mean(x) for x in np.stack(np.meshgrid(*[[10, 20, 60]] * 3), -1).reshape(-1, 3))
    assert means[0] <= found.low95[3] <= found.low90[3] <= 30 <= found.high90[3] <= found.high95[3] <= means[-1]
    assert found.low90[3] == pytest.approx(np.percentile(means, 5), abs=4)
    single = statistics.band(runs[:1], at)
    assert np.isnan(single.low90).all()
    assert single.mean[3] == 10


@SETTINGS
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12))
def test_the_interquartile_mean_is_that_of_the_middle_half(values: list[float]):
    repeated = np.sort(np.repeat(values, 4))  # four times the values: the middle half is whole numbers of them
    middle = repeated[len(values) : 3 * len(values)]
    assert statistics.interquartile_mean(np.array(values)) == pytest.approx(middle.mean(), abs=1e-9)


def test_the_area_is_the_average_return_over_the_length():
    runs = [stored_run(returns=[0, 10, 10]), stored_run(returns=[5, 5])]
    assert statistics.areas(runs, 100) == pytest.approx([7.5, 5])
    assert statistics.areas(runs, 50) == pytest.approx([5, 5])
    assert statistics.finals(runs, 100) == pytest.approx([10, 5])
    later = [stored_run(returns=[0, 10, 40]), stored_run(returns=[0, 10], length=50)]
    assert statistics.finals(later, 50) == pytest.approx([10, 10])  # as far as both got


def test_counted_in_all_trajectories_no_policy_is_credited_before_it_was_paid_for():
    run = stored_run(returns=[1, 2, 3])  # at 0, 50 and 100, in all at 0, 550 and 1100
    at = np.array([0, 1, 549, 550, 1099, 1100, 1101.0])
    (values,) = statistics.returns_at([run], at, total=True)
    assert values[:-1].tolist() == [1, 1, 1, 2, 2, 3]
    assert math.isnan(values[-1])
    assert statistics.returns_at([run], np.array([0, 1, 50, 51.0]))[0].tolist() == [1, 2, 2, 3]


def test_precision_and_recall_of_the_filter():
    config = make_config(preset="released", agents=10, byzantine=3)
    run = stored_run(config)
    run.columns["accepted_honest"][1:] = [7, 5]
    run.columns["accepted_byzantine"][1:] = [3, 1]
    did = statistics.filtering([run])
    assert did.honest_kept == pytest.approx(12 / 14)
    assert did.byzantine_kept == pytest.approx(4 / 6)
    assert did.precision == pytest.approx(2 / 4)
    assert did.recall == pytest.approx(2 / 6)
    assert did.rules == {"R1": 1.0}
    assert math.isnan(statistics.filtering([stored_run()]).recall)


@pytest.mark.parametrize(
    ("ours", "half", "word"),
    [
        ([100, 100], 10.0, "inside"),
        ([109, 109], 10.0, "inside"),
        ([114, 114], 10.0, "above"),
        ([86, 86], 10.0, "below"),
        ([90, 130], math.nan, "inside*"),
        ([120, 130], math.nan, "above*"),
        ([60, 70], math.nan, "below*"),
        ([100], math.nan, ""),
    ],
)
def test_the_verdict_against_the_papers_band(ours: list[float], half: float, word: str):
    paper = PaperCurve(np.array([0.0, 100.0]), np.array([0.0, 100.0]), np.array([half, half]))
    runs = [stored_run(seed=i, returns=[v, v]) for i, v in enumerate(ours)]
    assert READING_ERROR["CartPole-v1"] == 3
    assert statistics.verdict("CartPole-v1", statistics.band(runs, np.array([100.0])), 0, paper) == word


def test_no_verdict_where_the_papers_curve_cannot_be_read_off_well():
    paper = PaperCurve(np.array([2000.0, 3000.0]), np.zeros(2), np.ones(2))
    runs = [stored_run(seed=i, returns=[500, 500], length=3000) for i in range(2)]
    found = statistics.band(runs, np.array([2000.0, 3000.0]))
    assert [statistics.verdict("LunarLander-v3", found, i, paper) for i in (0, 1)] == ["", "above"]


def test_an_exact_replication_is_inside_as_often_as_simulation_says():
    draw = np.random.default_rng(0).normal(size=(2, 200_000))
    for seeds in (10, 3, 1):
        inside = np.abs(draw[0] / np.sqrt(seeds) - draw[1] / np.sqrt(10)) < 1.645 / np.sqrt(10)
        assert statistics.inside_by_luck(seeds) == pytest.approx(inside.mean(), abs=0.005)


@pytest.mark.parametrize(("seeds", "words"), [(10, "84% (90%)"), (3, "61% (75%)"), (2, "50% (50%)")])
def test_the_page_says_how_often_our_intervals_hold_the_true_mean(seeds: int, words: str):
    means = statistics.resampled(seeds) @ np.random.default_rng(1).normal(size=(seeds, 3000)) / seeds
    low90, high90, low95, high95 = np.percentile(means, (5, 95, 2.5, 97.5), axis=0)
    held = [((low < 0) & (high > 0)).mean() for low, high in ((low90, high90), (low95, high95))]
    assert words in READING
    assert held == pytest.approx([int(x) / 100 for x in re.findall(r"\d+", words)], abs=0.03)


# Figures and the page


def stock(seeds: int = 2) -> dict[store.Key, Stored]:
    """Made-up runs of all curves of figure 1 on CartPole."""
    chosen = [EXPERIMENTS["figure1"].on(["CartPole-v1"])]
    runs = [
        stored_run(c, s, returns=np.linspace(9, 300 + 50 * s, 6), length=5000.0)
        for c in configs_of(chosen)
        for s in range(seeds)
    ]
    return {run.key: run for run in runs}


def test_a_panel_draws_the_runs_of_its_settings_and_no_others():
    panel = EXPERIMENTS["figure1"].panels[0]
    found = runs_of(panel, stock())
    assert [(curve.label, [run.seed for run in runs]) for curve, runs in found] == [
        (c.label, [0, 1]) for c in panel.curves
    ]
    assert runs_of(EXPERIMENTS["figure1"].panels[1], stock()) == []
    assert needs_totals(panel)
    assert not needs_totals(EXPERIMENTS["ablation-alpha"].panels[0])


def test_the_same_runs_give_the_same_picture_to_the_byte():
    panel = EXPERIMENTS["figure1"].panels[0]
    assert panel_image(panel, stock()) == panel_image(panel, stock())
    assert panel_image(panel, stock()) != panel_image(panel, stock(3))


def test_the_tables_have_the_numbers_of_the_runs():
    panel = EXPERIMENTS["figure1"].panels[0]
    table = comparison(panel, stock())
    assert table is not None
    row = next(row for row in table.rows if row[:2] == ["FedPG-BR (K=10)", "5,000"])
    paper = paper_curves()["Figure 1", "CartPole-v1", "FedPG-BR (K=10)"].at(5000)[0]
    assert row[2] == "2"
    assert row[3] == f"{paper:.0f}"
    assert row[5] == "325"
    assert row[8] == f"{325 - paper:+.0f}"
    assert row[9].startswith("below")
    seen = overview([panel], stock())
    assert seen is not None
    assert f"325 [{paper:.0f}]" in [cell for row in seen.rows for cell in row]
    assert len(learning([panel], stock()).rows) == len(panel.curves)


class Page(HTMLParser):
    """Collects what a page refers to, and whether its tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.links += [str(values[name]) for name in ("src", "href") if name in values]
        self.ids += [str(values["id"])] if "id" in values else []
        if tag not in ("meta", "img", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_report_is_one_page_without_anything_from_outside_and_the_same_as_markdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    few = {name: EXPERIMENTS[name].on(["CartPole-v1"]) for name in ("figure1", "figure3")}
    monkeypatch.setattr("fedpg.experiments.report.EXPERIMENTS", few)
    written = write_report(tmp_path, tmp_path, stock(), lambda text: None)
    page = Page()
    text = (tmp_path / "report.html").read_text()
    page.feed(text)
    assert page.open == []
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert all(link.startswith(("data:image/svg+xml;base64,", "#")) for link in page.links)
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert "@import" not in text
    assert "url(" not in text
    assert text.count('<div class="wide"') == page.tags.count("table")  # each scrolls in a box of its own
    markdown = (tmp_path / "report.md").read_text()
    pictures = [line.split("](")[1].rstrip(")") for line in markdown.splitlines() if line.startswith("![")]
    assert pictures
    assert all((tmp_path / path).exists() for path in pictures)
    assert {tmp_path / path for path in pictures} == {path for path in written if path.suffix == ".png"}
    assert "were made by another version of the code" in markdown  # their code is "now"


def test_an_empty_results_folder_is_an_error_that_says_what_to_do(tmp_path: Path):
    with pytest.raises(StorageError, match=r"no stored runs .*fedpg reproduce figure1"):
        write_report(tmp_path, tmp_path, {}, lambda text: None)
    assert list(tmp_path.iterdir()) == []


def test_what_a_block_says_is_escaped_in_html_and_kept_in_markdown():
    blocks = [
        Heading("A <b> & c"),
        Text("`x < y` and **bold** [x](javascript:y)", "lead"),
        Table(["one", "two"], [["<script>", "a|b"], ["[x](javascript:y)", "1 [2]"]]),
        Details("more", [Text("inside")]),
        Pictures("alt", "p.png", [b"<svg/>"], [("label", "#fff", True)], dashed=True),
    ]
    page, markdown = to_html("T", blocks), to_markdown("T", blocks)
    assert "<script>" not in page
    assert "<code>x &lt; y</code>" in page
    assert "<strong>bold</strong>" in page
    assert "| \\<script> | a\\|b |" in markdown
    assert "<a " not in page
    assert "| [x]\\(javascript:y) | 1 [2] |" in markdown
    assert "![alt](p.png)" in markdown
    assert 'id="a-b--c"' in page


def test_a_curve_without_runs_is_left_out_of_a_figure():
    panel = Panel("p", "t", "CartPole-v1", (Curve("nothing", "#000", {"agents": 7}),))
    assert runs_of(panel, stock()) == []
    assert overview([panel], stock()) is None
