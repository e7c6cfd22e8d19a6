"""The bound: numbers worked out by hand, what it grows and falls with, each condition both ways."""

import dataclasses
import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedpg.aggregators import concentration
from fedpg.errors import ConfigError
from fedpg.theory import Setting, conditions, constants, paper_violations, plan, step_of, terms
from fedpg.theory.bound import delta_of, smallest_batch
from fedpg.theory.report import print_report, what_if

# H = 2 and 1 / (1 - gamma) = 2, so that everything can be worked out on paper; V = 2 log(2K / delta) = 6.
HAND = Setting(
    agents=4, alpha=0.25, batch=27, rounds=10, sigma=2.0, horizon=2, discount=0.5,
    G=1.0, M=1.0, R=1.0, W=1.0, gap=3.0, delta=8 / math.e**3,
)  # fmt: skip
TABULAR = Setting(horizon=10, discount=0.9, G=math.sqrt(2), M=0.5, R=1.0, W=0.1, sigma=5.0, gap=2.0)


def test_the_constants_by_hand():
    c = constants(HAND)
    assert c.L == 2 * 1 * (1 + 2 * 1) * 2
    assert c.L_g == 2 * 1 * 1 * 2
    assert c.C_g == 2 * 1 * 1 * 2
    assert c.C_w == 2 * (2 * 2 * 1 + 1) * (1 + 1)
    assert c.Phi == 4 + 4**2 * 20
    assert pytest.approx(12 * 324) == c.Psi**3
    with_baseline = constants(dataclasses.replace(HAND, baseline=0.5))
    assert (with_baseline.L, with_baseline.L_g, with_baseline.C_g) == (12, 6, 6)


def test_the_terms_by_hand():
    found = terms(HAND)
    assert found.optimisation == pytest.approx(4 * 2 * 3888 ** (1 / 3) * 3 / (10 * 3))
    assert found.sampling == pytest.approx(4 * 8 * 4 / (0.75**2 * 4 * 27))  # 128 / 60.75
    assert found.byzantine == pytest.approx(4 * 96 * 0.25**2 * 4 * 6 / (0.75**2 * 27))  # 576 / 15.1875
    assert found.total == pytest.approx(12.579517 + 2.106996 + 37.925926, rel=1e-5)


def test_the_step_and_delta_are_the_largest_allowed():
    assert step_of(HAND) == pytest.approx(1 / (2 * 3888 ** (1 / 3) * 9))
    assert delta_of(dataclasses.replace(HAND, delta=None)) == 1 / (5 * 4 * 27)


def test_a_smaller_step_takes_as_many_times_longer():
    half = dataclasses.replace(HAND, step=step_of(HAND) / 2)
    assert terms(half).optimisation == pytest.approx(2 * terms(HAND).optimisation)


settings = st.builds(
    Setting,
    agents=st.integers(1, 1000),
    alpha=st.floats(0, 0.49),
    batch=st.integers(1, 10_000),
    rounds=st.integers(1, 10_000),
    sigma=st.floats(0.01, 100),
    horizon=st.integers(1, 1000),
    discount=st.floats(0.1, 0.999),
    G=st.floats(0.1, 10),
    M=st.floats(0.1, 10),
    W=st.floats(0, 10),
    gap=st.none() | st.floats(0.01, 100),
    delta=st.none() | st.floats(1e-9, 0.9),
)
MORE = st.integers(1, 1000)


@given(settings, MORE)
def test_more_rounds_lower_the_bound_and_only_its_first_term(setting: Setting, more: int):
    before, after = terms(setting), terms(dataclasses.replace(setting, rounds=setting.rounds + more))
    assert after.optimisation < before.optimisation
    assert after[1:] == before[1:]


@given(settings, MORE)
def test_a_larger_batch_lowers_every_term(setting: Setting, more: int):
    before, after = terms(setting), terms(dataclasses.replace(setting, batch=setting.batch + more))
    assert all(b < a or a == b == 0 for a, b in zip(before, after, strict=True))


@given(settings, MORE)
def test_more_honest_agents_lower_the_bound(setting: Setting, more: int):
    honest = dataclasses.replace(setting, alpha=0.0)
    before, after = terms(honest), terms(dataclasses.replace(honest, agents=setting.agents + more))
    assert after.sampling < before.sampling
    assert after.total <= before.total  # the sampling term may be too small to show in the sum


@given(settings, st.floats(1e-3, 0.4))
def test_a_larger_share_of_liars_raises_the_bound(setting: Setting, more: float):
    alpha = min(setting.alpha + more, 0.499)
    before, after = (terms(dataclasses.replace(setting, alpha=a)) for a in (setting.alpha, alpha))
    if alpha > setting.alpha:
        assert after.byzantine > before.byzantine
        assert after.sampling > before.sampling
        assert after.optimisation == before.optimisation


def test_with_liars_more_agents_of_the_same_share_do_not_always_help():
    # V grows with K, and at alpha > 0 the sampling term is the small one.
    many, more = (terms(dataclasses.replace(TABULAR, alpha=0.3, agents=k)).total for k in (1000, 10_000))
    assert more > many


@given(settings, st.floats(1e-4, 10))
def test_a_plan_keeps_its_promise(setting: Setting, epsilon: float):
    found = plan(setting, epsilon)
    planned = dataclasses.replace(setting, batch=found.batch, rounds=found.rounds)
    assert terms(planned).total <= epsilon * (1 + 1e-9)
    assert found.batch >= found.floor == smallest_batch(setting)


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.25, 2.0])
def test_a_plan_takes_the_batch_that_needs_the_fewest_trajectories(factor: float):
    found = plan(TABULAR, 0.01)
    batch = round(found.batch * factor)
    rounds = found.rounds
    while terms(dataclasses.replace(TABULAR, batch=batch, rounds=rounds)).total > 0.01:
        rounds = math.ceil(rounds * 1.001)
    assert rounds * batch > found.per_agent * 0.999


def test_a_plan_has_the_rates_of_the_corollary():
    base = plan(TABULAR, 0.01)
    assert plan(TABULAR, 0.01 / 8).per_agent / base.per_agent == pytest.approx(8 ** (5 / 3), rel=1e-3)
    more = plan(dataclasses.replace(TABULAR, agents=80), 0.01)
    assert more.per_agent / base.per_agent == pytest.approx(8 ** (-2 / 3), rel=1e-3)
    # Where liars decide, c is 96 alpha^2 V / (1 - alpha)^2, and V = 2 log(10 K^2 B) grows with the batch.
    few, many = (plan(dataclasses.replace(TABULAR, agents=10_000, alpha=a), 0.01) for a in (0.1, 0.2))
    v = [concentration(10_000, p.delta) for p in (few, many)]
    expected = (4 * v[1] / v[0] * (0.9 / 0.8) ** 2) ** (2 / 3)
    assert many.per_agent / few.per_agent == pytest.approx(expected, rel=1e-3)


def test_a_batch_that_the_theorem_rules_out_is_never_planned():
    easy = dataclasses.replace(TABULAR, sigma=1e-3)
    assert plan(easy, 1.0).batch == smallest_batch(easy) >= 16
    held = {c.name: c.holds for c in conditions(dataclasses.replace(easy, batch=smallest_batch(easy)))}
    assert all(held[name] for name in ("exponential, right", "batch for the constants", "batch of 16", "small delta"))


# Each condition: settings that satisfy it, and settings that do not.
BOTH_WAYS = {
    "one-trajectory steps": ({"minibatch": 1}, {"minibatch": 4}),
    "small delta": ({"delta": 1 / (5 * 10 * 64)}, {"delta": 1 / (5 * 10 * 64) * 1.01}),
    "exponential, left": ({"delta": 0.1}, {"delta": 0.6}),  # without meaning from 1/2 on
    "exponential, right": ({"delta": 0.01, "batch": 16}, {"delta": 0.001, "batch": 16}),
    "batch for the constants": ({"batch": 9}, {"batch": 8}),  # 4 Phi / L^2 = 8.48
    "step size": ({"step": None}, {"step": 1e-3}),
    "batch of 16": ({"batch": 16}, {"batch": 15}),
    "step for L": ({"batch": 16}, {"batch": 15}),  # L / (2 Psi B^(2/3)) = 0.389 B^(-2/3)
    "step for Phi": ({"batch": 1000}, {"batch": 100}),  # from 125 Phi / L^2 = 265 on
    "step for both": ({"step": 1e-6}, {"step": None}),  # at the theorem's own step it is 1/8
    "a quarter is left": ({"step": 1e-6}, {"batch": 16}),
    "Phi as printed": ({"M": 0.01}, {"M": 0.011}),  # L_g = 100 M
}


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_each_condition_holds_and_fails(name: str):
    for changes, expected in zip(BOTH_WAYS[name], (True, False), strict=True):
        setting = dataclasses.replace(TABULAR, **({"batch": 64} | changes))
        (condition,) = (c for c in conditions(setting) if c.name == name)
        assert condition.holds is expected
        assert condition.source in ("theorem", "proof")


def test_there_is_a_case_for_every_condition():
    assert list(BOTH_WAYS) == [c.name for c in conditions(TABULAR)]


def test_the_left_exponential_condition_by_hand():
    (condition,) = (
        c for c in conditions(dataclasses.replace(TABULAR, delta=0.25, batch=20)) if c.name == "exponential, left"
    )
    assert condition.left == pytest.approx(0.25 * 20 / (2 * 0.5))
    assert condition.right == pytest.approx(math.log(20 / 0.25))
    assert not condition.holds


def test_the_theorems_largest_step_always_breaks_the_proofs_own_condition():
    # L eta^3 Phi B^2 = 1/8 whatever the constants, where the proof wants 1/20.
    for setting in (HAND, TABULAR):
        (condition,) = (c for c in conditions(dataclasses.replace(setting, batch=500)) if c.name == "step for both")
        assert condition.left == pytest.approx(1 / 8)
        assert not condition.holds


def test_what_the_papers_own_experiments_violate():
    all_three = ("CartPole-v1", "LunarLander-v3", "HalfCheetah-v5")
    assert paper_violations("small delta") == all_three
    assert paper_violations("exponential, left") == all_three
    assert paper_violations("exponential, right") == ()
    assert paper_violations("one-trajectory steps") == all_three
    assert paper_violations("step size") == all_three
    assert paper_violations("batch of 16") == ("CartPole-v1",)
    assert paper_violations("batch for the constants") is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"agents": 0}, "agents"),
        ({"alpha": 0.5}, "alpha"),
        ({"discount": 1.0}, "discount"),
        ({"sigma": 0.0}, "sigma"),
        ({"sigma": math.nan}, "sigma"),
        ({"G": math.inf}, "G"),
        ({"delta": 1.0}, "delta"),
        ({"delta": 1e-320}, "delta"),
        ({"gap": -1.0}, "gap"),
        ({"R": 0.0}, "R"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes: dict[str, float], named: str):
    with pytest.raises(ConfigError, match=named):
        terms(dataclasses.replace(TABULAR, **changes))


@pytest.mark.parametrize(
    ("changes", "epsilon"),
    [
        ({}, 1e-300),
        ({"G": 1e200}, 0.1),
        ({"step": 1e300}, 0.1),
        ({"R": 1e-200}, 0.1),
        ({"agents": 10**400}, 0.1),
        ({"agents": 10**200}, 0.1),
        ({"agents": 10**9, "delta": 1e-300}, 0.1),
    ],
)
def test_numbers_that_cannot_be_computed_with_are_refused(changes: dict[str, float], epsilon: float):
    setting = dataclasses.replace(TABULAR, **changes)
    with pytest.raises(ConfigError, match="too large or too small"):
        print_report(Console(quiet=True), setting, epsilon, "")


positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)


@given(positive, positive, positive, positive, positive, st.floats(1e-320, 0.999), st.integers(1, 10**320))
def test_any_numbers_give_numbers_or_a_plain_refusal(
    g: float, r: float, sigma: float, step: float, epsilon: float, delta: float, agents: int
):
    setting = dataclasses.replace(TABULAR, G=g, R=r, sigma=sigma, step=step, delta=delta, agents=agents)
    try:
        found = (*constants(setting), *terms(setting), *plan(setting, epsilon), *(c.left for c in conditions(setting)))
    except ConfigError:
        return
    assert not any(math.isnan(x) for x in found)


@pytest.mark.parametrize("agents", [10, 6, 1000])
@pytest.mark.parametrize("epsilon", [10.0, 0.1, 1e-9])
def test_the_answer_fits_a_narrow_terminal(agents: int, epsilon: float):
    console = Console(width=80, record=True, file=io.StringIO())
    print_report(console, dataclasses.replace(TABULAR, agents=agents), epsilon, "as given")
    said = console.export_text()
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= 80
    assert ("nothing is promised" in said) is (agents == 6)


def test_the_report_names_what_does_not_hold_for_its_own_plan():
    console = Console(width=400, record=True, file=io.StringIO())
    print_report(console, TABULAR, 0.1, "as given")
    (line,) = (line for line in console.export_text().splitlines() if "do not hold" in line)
    there = dataclasses.replace(TABULAR, batch=plan(TABULAR, 0.1).batch)
    for condition in conditions(there):
        assert (condition.formula in line) is not condition.holds


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_epsilon_is_refused(epsilon: float):
    with pytest.raises(ConfigError, match="epsilon"):
        plan(TABULAR, epsilon)


def test_ten_agents_more_and_three_liars():
    rows = {what: found for what, _, _, found in what_if(TABULAR, 0.1)}
    now = rows["now"].per_agent
    assert rows["10 agents more"].per_agent / now == pytest.approx(2 ** (-2 / 3), rel=1e-2)
    assert rows["one alone"].per_agent / now == pytest.approx(10 ** (2 / 3), rel=1e-2)
    # By the bound, ten agents of which three lie need more than one honest agent alone.
    assert rows["3 more lie"].per_agent > rows["one alone"].per_agent
    assert now < rows["both"].per_agent < rows["3 more lie"].per_agent
    assert what_if(dataclasses.replace(TABULAR, alpha=0.2), 0.1)[2][3] is None  # five of ten: no promise
