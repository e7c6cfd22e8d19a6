"""A federation that does not use a round in which more agents are turned away than it reckons with."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from fedpg import Config, ConfigError, Problem, make_config, make_problem, train_seeds
from fedpg.aggregators import RULES, Aggregator, Own, Sent, Verdict, closed, decide, make_aggregator, mean_of
from fedpg.cli import main
from fedpg.sites.gathering import Gathering
from fedpg.sites.ledger import Ledger, how_far_out
from fedpg.sites.table import make_table
from fedpg.training.progress import why_unused
from same import bits


def near(limit: float = 1.0) -> Aggregator:
    """Those within the limit of zero; it remembers the last mean."""

    def update(memory: Array, sent: Sent, own: Own) -> tuple[Verdict, Array]:
        lengths = jnp.where(sent.valid, jnp.linalg.norm(sent.clean, axis=1), jnp.inf)
        kept = lengths <= limit
        middle = mean_of(sent.clean, kept)
        return decide(sent, middle, kept, threshold=limit, distances=lengths), middle

    return Aggregator(update, init=lambda agents, size: jnp.zeros(size))


def judge(rule: Aggregator, lengths: list[float], valid: list[bool] | None = None) -> tuple[Verdict, Array]:
    vectors = np.asarray(lengths, np.float32)[:, None]
    sent = Sent(vectors, np.asarray(valid or [True] * len(lengths)), 1)  # type: ignore[arg-type]
    verdict, memory = jax.jit(rule.update)(np.full(1, 7.0, np.float32), sent, Own())
    return jax.tree.map(np.asarray, verdict), memory


def test_as_many_may_be_turned_away_as_alpha_allows():
    verdict, memory = judge(closed(near(), 0.29), [0.5] * 71 + [5.0] * 29)  # 0.29 * 100 is a little less than 29
    assert verdict.accepted.tolist() == [True] * 71 + [False] * 29
    assert verdict.gradient.tolist() == memory.tolist() == [0.5]
    assert verdict.somebody


def test_if_one_more_is_turned_away_nobody_is_accepted():
    verdict, memory = judge(closed(near(), 0.3), [0.5] * 6 + [5.0] * 4)
    assert not verdict.accepted.any()
    assert RULES[int(verdict.rule)] == "nobody"
    assert verdict.gradient.tolist() == [0.0]
    assert memory.tolist() == [7.0]  # liars do not move what the rule remembers either
    assert verdict.distances.tolist() == pytest.approx([0.5] * 6 + [5.0] * 4)  # the evidence stays


def test_who_sent_nothing_usable_counts_as_turned_away():
    rule = closed(near(), 0.25)
    assert judge(rule, [0.5] * 4, [True, True, True, False])[0].somebody
    assert not judge(rule, [0.5, 0.5, 0.5, 5.0], [True, True, False, True])[0].somebody
    assert not judge(closed(near(), 0.0), [0.5, 0.5], [True, False])[0].somebody


def test_the_same_rule_is_closed_once_so_that_nothing_is_compiled_twice():
    rule = near()
    assert closed(rule, 0.3) is closed(rule, 0.3)
    assert closed(rule, 0.3) is not closed(rule, 0.2)
    plain, shut = (make_problem(make_config(fail_closed=closing)) for closing in (False, True))
    assert plain.aggregator is make_aggregator("compass", alpha=0.3, sigma="auto", delta=0.6)
    assert shut.aggregator is closed(plain.aggregator, 0.3)
    assert shut.aggregator.needs == plain.aggregator.needs
    own = near()
    assert make_problem(make_config(fail_closed=True, alpha=0.2), aggregator=own).aggregator is closed(own, 0.2)


@pytest.mark.parametrize("name", ["krum", "dnc", "server", "nnm+krum", "multi-krum", "mda", "bucketing+median"])
def test_rules_that_listen_to_few_on_purpose_cannot_fail_closed(name: str):
    with pytest.raises(ConfigError, match=re.escape(f"fail_closed with the aggregator {name!r} would use no round")):
        make_problem(make_config(aggregator=name, fail_closed=True))
    rule = make_problem(make_config(aggregator=name)).aggregator
    shut = make_problem(make_config(aggregator=name, fail_closed=True), aggregator=rule)  # the caller's own concern
    assert shut.aggregator is closed(rule, 0.3)


def test_a_run_that_fails_closed_stands_still_while_too_many_are_turned_away(tiny: Callable[..., Problem]):
    """One of four lies, and alpha allows none: each round in which the liar is found out is lost."""
    settings = {"aggregator": "mean", "attack": "nan", "alpha": 0.2, "attack_start": 3, "trajectories": 30}
    shut = train_seeds(tiny(**settings, fail_closed=True), [0])[0]
    rules = [row["rule"] for row in shut.records.rows() if row["round"]]
    assert rules == ["mean"] * 2 + ["nobody"] * (len(rules) - 2)
    assert shut.records.unused == len(rules) - 2 > 0
    returns = shut.records.test_returns
    assert bits(shut.policy.params) != bits(train_seeds(tiny(**settings), [0])[0].policy.params)
    assert len(returns) == len(rules) + 1


def test_the_command_says_how_many_rounds_were_not_used_and_why(
    tiny: Callable[..., Problem],
    as_options: Callable[[Config], list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    words = as_options(tiny(attack="nan", alpha=0.25).config)
    options = ["--aggregator", "mean", "--alpha", "0.2", "--fail-closed", "--out", str(tmp_path / "run")]
    assert main(["train", *words, *options]) == 0
    said = capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()][1:]
    assert {row["rule"] for row in rows} == {"nobody"}
    assert f"{len(rows)} of {len(rows)} rounds were not used: more than 0 of 4 agents" in said
    assert "alpha = 0.2 allows" in said
    assert f" {len(rows)} unused " in said


def test_the_reason_names_the_setting_that_decides_what_happens_instead():
    assert why_unused(make_config()) == "the aggregator accepted nobody"
    text = why_unused(make_config(algorithm="fedpg-br", fail_closed=True, none_accepted="server"))
    assert "more than 3 of 10 agents" in text
    assert text.endswith("the server stepped on its own gradients")


# What a server of real sites can know


@jax.jit
def decided(distances: Array, threshold: Array, accepted: Array) -> Verdict:
    """What a rule decides that finds these distances."""
    sent = Sent(jnp.zeros((len(distances), 1)), jnp.ones(len(distances), bool), 1)
    return decide(sent, jnp.zeros(1), accepted, threshold=threshold, distances=distances)


def verdict_of(distances: list[float], threshold: float, accepted: list[bool]) -> Verdict:
    verdict = decided(np.asarray(distances, np.float32), np.float32(threshold), np.asarray(accepted))
    return jax.tree.map(np.asarray, verdict)


def test_how_far_out_a_site_is_is_in_thresholds_or_in_median_distances():
    some = [True, True, False]
    assert how_far_out(verdict_of([1.0, 2.0, 8.0], 4.0, some)).tolist() == [0.25, 0.5, 2.0]
    assert how_far_out(verdict_of([1.0, 2.0, 8.0], np.inf, some)).tolist() == [0.5, 1.0, 4.0]
    assert how_far_out(verdict_of([1.0, 3.0, np.inf], np.inf, some)).tolist() == [0.5, 1.5, np.inf]
    assert np.isnan(how_far_out(verdict_of([0.0, 0.0, 0.0], np.inf, some))).all()


def test_the_ledger_says_who_is_turned_away_how_often_and_how_far_out(tmp_path: Path):
    said: list[str] = []
    ledger = Ledger(["one", "two", "far"], tmp_path / "federation.jsonl", said.append)
    problem = make_problem(make_config(agents=3, hidden=(4,)))
    status = np.array([0, 1, 0])
    for number, threshold in ((1, 2.0), (2, 1.0), (3, 1.0)):
        round_ = Gathering(number, problem.config, problem.policy.size, problem.algorithm.reply, 4)
        ledger.begin(round_, 1, [0, 1, 2])
        ledger.decided(round_, verdict_of([1.0, np.inf, 6.0], threshold, [True, False, False]), status)
    assert [row.how_far for row in ledger.rows][::2] == [1.0, 6.0]  # the median of three rounds
    assert np.isnan(ledger.rows[1].how_far)
    assert ledger.rows[2].counts["turned away"] == 3
    line = json.loads((tmp_path / "federation.jsonl").read_text().splitlines()[0])
    assert [line["sites"][name]["how_far"] for name in ("one", "two", "far")] == [0.5, None, 3.0]
    assert (line["rule"], line["unused"]) == ("other", "")
    columns = {str(column.header).replace("\n", " "): list(column.cells) for column in make_table(ledger).columns}
    assert columns["how far"] == ["1.0", "", "6.0"]
    assert columns["turned away"] == ["0", "0", "3"]
    for value, text in ((99.94, "99.9"), (99.96, "100"), (123.4, "123"), (9999.9, "1e04"), (4e12, "4e12")):
        ledger.rows[2].far.clear()
        ledger.rows[2].far.append(value)
        shown = make_table(ledger).columns[list(columns).index("how far")]
        assert list(shown.cells)[2] == text
    assert said == []


def test_the_ledger_says_which_rounds_were_not_used(tmp_path: Path):
    said: list[str] = []
    ledger = Ledger(["one", "two"], tmp_path / "federation.jsonl", said.append)
    problem = make_problem(make_config(agents=2, hidden=(4,)))
    round_ = Gathering(5, problem.config, problem.policy.size, problem.algorithm.reply, 4)
    ledger.begin(round_, 1, [0, 1])
    ledger.decided(round_, verdict_of([1.0, 1.0], 1.0, [False, False]), np.array([0, 0]), "too many lie")
    assert said == ["round 5 is not used: too many lie"]
    line = json.loads((tmp_path / "federation.jsonl").read_text())
    assert (line["rule"], line["unused"]) == ("nobody", "too many lie")
    assert "rounds not used, since nobody was accepted: 1" in str(make_table(ledger).title)
