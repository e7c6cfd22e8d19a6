"""The lab: its rounds, its attacks, its fits, what it stores, and its command."""

import functools
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probes
from fedpg.cli import main
from fedpg.errors import ConfigError
from fedpg.storage import StorageError
from fedpg.theory import figures, measure, study
from fedpg.theory.effective import deviations
from fedpg.theory.fits import binomial, excess_exponent, exponent, hitting, means, quantity, slope
from fedpg.theory.lab import QUICK, Scale, attackers, run_exactly, sizes_of
from fedpg.theory.mdp import MDPS, exact_gradient
from fedpg.theory.report import lab_tables
from fedpg.theory.rules import lemma_bound
from fedpg.theory.runs import DELTA, Sizes, aggregate, compile_aggregate, compile_lab, judged, make_lab, one_round

pytestmark = pytest.mark.slow

CHAIN = MDPS["chain"]()
THETA = np.zeros((CHAIN.states, CHAIN.actions), np.float32)
RESULTS = Path(__file__).parent.parent / "results" / "theory"
DOC = Path(__file__).parent.parent / "docs" / "theory.md"

# --- rounds

_compiled_slope = jax.jit(lambda theta: exact_gradient(CHAIN, theta))


def slope_of(theta: Any) -> np.ndarray:
    """The exact gradient on the chain."""
    return np.asarray(_compiled_slope(theta))


def test_a_plain_round_steps_along_the_mean_of_honest_agents():
    lab = make_lab(CHAIN, agents=3)
    key = jax.random.key(0)
    sizes = Sizes(8, 1, 0.5, 1, 100.0)
    after, outcome = jax.jit(lambda k: one_round(lab, THETA, k, sizes, 8, 1))(key)
    verdict, truth = jax.jit(lambda k: aggregate(lab, THETA, jax.random.split(k, 3)[0], sizes, 8))(key)
    aggregated = np.asarray(verdict.gradient)
    np.testing.assert_allclose(after, 0.5 * aggregated.reshape(THETA.shape), rtol=1e-4, atol=1e-6)
    assert float(outcome.inner) == 1
    assert float(outcome.judged.honest) == 1.0
    assert float(outcome.gradient) == pytest.approx(np.sum(slope_of(after) ** 2), rel=1e-4)
    assert float(outcome.judged.error) == pytest.approx(np.sum((aggregated - np.asarray(truth)) ** 2), rel=1e-3)


@functools.cache
def learner(repetitions: int) -> Any:
    return compile_lab(make_lab(CHAIN), repetitions, 8)


def test_inner_steps_have_the_mean_of_their_law_and_sizes_are_arguments():
    advance = learner(64)
    thetas = np.zeros((64, *THETA.shape), np.float32)
    for batch, count in ((8, 1), (4, 2)):
        keys = jax.random.split(jax.random.key(batch), (64, 12))
        _, outcome = advance(thetas, keys, Sizes(batch, count, 1e-3, 0))
        mean, inner = batch / count, np.asarray(outcome.inner)
        assert abs(inner.mean() - mean) < 4 * math.sqrt(mean * (mean + 1) / inner.size)
    assert advance._cache_size() == 1  # nothing was compiled again


def test_a_round_learns():
    keys = jax.random.split(jax.random.key(1), (64, 12))
    _, outcome = learner(64)(np.zeros((64, *THETA.shape), np.float32), keys, Sizes(64, 1, 2.0, 1))
    assert np.asarray(outcome.gradient)[-1].mean() < 0.2 * np.sum(slope_of(THETA) ** 2)


def test_the_sizes_are_those_of_the_rule():
    known = type("Known", (), {"smoothness": 0.5, "correction": 4.0, "psi": 2.0 ** (1 / 3)})()
    fedpg = sizes_of("fedpg-br", 64, known)
    assert (fedpg.batch, fedpg.minibatch, fedpg.fixed) == (64, 1, 0)
    assert fedpg.step == pytest.approx(1 / (2 * 2 ** (1 / 3) * 16))
    assert sizes_of("svrpg", 64, known) == Sizes(64, 16, 0.25, 4)
    # The controls go as far in a round as B steps of FedPG-BR.
    assert sizes_of("no correction", 64, known) == sizes_of("no noise", 64, known)
    assert sizes_of("no noise", 64, known) == Sizes(64, 1, pytest.approx(64 * fedpg.step), 1)
    assert sizes_of("gpomdp", 64, known) == sizes_of("reinforce", 64, known) == Sizes(64, 1, 2.0, 1)


def test_the_control_without_noise_is_exact_ascent():
    runs = run_exactly(CHAIN, Sizes(64, 1, 2.0, 1), 3, substeps=2)
    theta = THETA
    for i in range(6):
        theta = theta + slope_of(theta)
        if i % 2:
            assert float(runs.gradient[i // 2, 0]) == pytest.approx(np.sum(slope_of(theta) ** 2), rel=1e-4)
    assert runs.agent.ravel().tolist() == runs.server.ravel().tolist() == [64, 128, 192]


# --- attacks that search


@functools.cache
def compiled_attack(attack: str) -> Any:
    return compile_aggregate(attackers(CHAIN, 3, attack, agents=10), 16)


def under(attack: str, sigma: float) -> Any:
    keys = jax.random.split(jax.random.key(2), 64)
    return jax.tree.map(np.asarray, compiled_attack(attack)(THETA, keys, Sizes(16, 1, 0.0, 1, sigma)))


def test_the_search_does_more_harm_than_what_it_is_compared_with():
    sigma = 0.45  # about what `auto` settles at
    searched, flipped = under("search-error", sigma), under("sign-flipping", sigma)
    assert searched.error.mean() > 2 * flipped.error.mean()
    assert searched.liars.mean() > 0.5 > flipped.liars.mean()  # it stays within what the aggregator accepts


@pytest.mark.parametrize("sigma", [2.0, 20.0])
def test_the_search_stays_below_the_lemma(sigma: float):
    # sigma = 2 is the root mean square, 20 about the largest deviation: the lemma's own.
    error = float(under("search-error", sigma).error.mean())
    assert 0.005 * lemma_bound(10, 16, 0.3, sigma, DELTA) < error < lemma_bound(10, 16, 0.3, sigma, DELTA)


def test_the_lemma_by_hand():
    # V = 2 log(2 * 10 / delta) = 6
    assert lemma_bound(10, 8, 0.2, 3.0, 20 / math.e**3) == pytest.approx((0.4 + 48 * 0.04 * 6) * 9 / (0.64 * 8))


def test_who_is_in_the_aggregate_is_counted():
    lab = attackers(CHAIN, 3, "sign-flipping", agents=10)
    sizes = Sizes(16, 1, 0.0, 1, 5.0)
    accepted = np.arange(10) % 2 == 0  # 0, 2, 4, 6 of seven; 8 of the last three

    @jax.jit
    def judge(key: jax.Array) -> Any:
        verdict, truth = aggregate(lab, THETA, key, sizes, 16)
        return judged(lab, verdict._replace(accepted=jnp.asarray(accepted)), truth)

    shares = judge(jax.random.key(0))
    assert (float(shares.honest), float(shares.liars)) == pytest.approx((4 / 7, 1 / 3))


def test_deviations_have_no_mean():
    rows = np.asarray(jax.jit(lambda key: deviations(make_lab(CHAIN), THETA, key, 20_000))(jax.random.key(3)))
    assert np.all(np.abs(rows.mean(axis=0)) < 4.5 * rows.std(axis=0) / math.sqrt(20_000))


# --- fits


def test_an_exact_power_law_is_found_again():
    x = [1.0, 2.0, 5.0]
    draws = [np.full(5, 3 * v**-1.5) for v in x]
    assert exponent(x, draws) == pytest.approx((-1.5, -1.5, -1.5))
    assert excess_exponent(x, [d + 7.0 for d in draws], np.full(5, 7.0)) == pytest.approx((-1.5, -1.5, -1.5))
    np.testing.assert_allclose(slope(x, np.array([[1.0, 4.0, 25.0], [1.0, 2.0, 5.0]])), [2.0, 1.0])


def test_hitting_times_are_interpolated_and_may_not_exist():
    curves = np.array([[8.0], [4.0], [0.0]])
    costs = np.array([[10.0], [20.0], [30.0]])
    assert hitting(curves, costs, 6.0, average=False)[0] == 15.0
    assert hitting(curves, costs, 5.0)[0] == 25.0  # the averages are 8, 6, 4
    assert hitting(curves, costs, 9.0)[0] == 10.0
    assert np.isnan(hitting(curves, costs, -1.0)[0])


def test_a_bootstrap_interval_holds_the_mean_as_often_as_it_says():
    random = np.random.default_rng(0)
    held = 0
    for i in range(300):
        found = quantity(means(random.normal(size=30), seed=i))
        held += found.low <= 0.0 <= found.high
    assert 0.82 < held / 300 < 0.95  # 90%, a little less with 30 values


def test_a_share_has_an_exact_interval():
    # The ends are where the binomial's tail is 5%; and what was never seen may still be.
    share, low, high = binomial(3, 20)

    def tail(p: float, counts: range) -> float:
        return sum(math.comb(20, k) * p**k * (1 - p) ** (20 - k) for k in counts)

    assert share == 0.15
    assert tail(low, range(3, 21)) == pytest.approx(0.05)
    assert tail(high, range(4)) == pytest.approx(0.05)
    assert binomial(0, 512) == (0, 0, pytest.approx(1 - 0.05 ** (1 / 512)))
    assert binomial(512, 512) == (1, pytest.approx(0.05 ** (1 / 512)), 1)


# --- what is measured of a policy


def test_the_measured_constants_are_those_of_every_state_and_action():
    problem = probes.tiny_problem()
    theta = problem.policy.init(jax.random.key(5))
    seen = measure(problem, theta, trajectories=64)

    def log_pi(theta: jax.Array, state: jax.Array, action: jax.Array) -> jax.Array:
        params = problem.policy.unravel(theta)
        return problem.policy.log_prob(params, jax.nn.one_hot(state, 2), action)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(None, 0, 0))
    def derivatives(theta: jax.Array, state: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.grad(log_pi)(theta, state, action), jax.hessian(log_pi)(theta, state, action)

    states, actions = np.divmod(np.arange(4), 2)
    scores, hessians = map(np.asarray, derivatives(theta, states, actions))
    assert np.linalg.norm(scores, axis=1).max() == pytest.approx(seen.G, rel=1e-3)
    assert np.abs(np.linalg.eigvalsh(hessians)).max() == pytest.approx(seen.M, rel=2e-2)
    assert probes.REWARDS.max() == seen.R
    assert seen.baseline == seen.R
    assert 0 < seen.sigma < math.inf
    assert 0 <= seen.W < math.inf


# --- what is stored


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Experiments that only say that they were run."""
    calls: list[str] = []

    def fake(name: str) -> Any:
        def run(scale: Scale, note: Any) -> dict[str, Any]:
            calls.append(name)
            note(0.5, "half")
            return {"rows": [{"a": 1}], "name": name}

        return run

    monkeypatch.setattr(study, "EXPERIMENTS", {name: fake(name) for name in study.EXPERIMENTS})
    return calls


def test_an_interrupted_lab_goes_on_where_it_was(
    counted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def breaks(scale: Scale, note: Any) -> dict[str, Any]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(study.EXPERIMENTS, "alpha", breaks)
        with pytest.raises(KeyboardInterrupt):
            study.run_lab(tmp_path)
    assert counted == ["epsilon", "agents"]
    found = study.run_lab(tmp_path)
    assert counted == list(study.EXPERIMENTS)
    assert list(found) == list(study.EXPERIMENTS)
    assert study.run_lab(tmp_path) == found
    assert len(counted) == len(study.EXPERIMENTS)
    assert "left" in capsys.readouterr().out


def test_results_of_another_scale_or_damaged_ones_are_not_taken(counted: list[str], tmp_path: Path):
    study.run_lab(tmp_path, quick=True, only=["rules"], quiet=True)
    with pytest.raises(ConfigError, match="other repetitions"):
        study.run_lab(tmp_path, only=["rules"], quiet=True)
    for text in ("{", "[]", _stored(None), '{"format": 1, "experiment": "agents", "scale": {}, "result": {}}'):
        (tmp_path / "rules.json").write_text(text)
        with pytest.raises(StorageError, match="damaged"):
            study.run_lab(tmp_path, quick=True, only=["rules"], quiet=True)


def _stored(result: Any) -> str:
    return json.dumps({"format": 1, "experiment": "rules", "scale": study._plain(QUICK), "result": result})


@pytest.mark.parametrize("result", [{}, {"rows": [{"mdp": "chain"}], "fits": []}, "no interval"])
def test_a_stored_result_without_its_parts_is_named(result: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    if result == "no interval":
        result = study.read_result(RESULTS, "rules", Scale())
        result["rows"][0]["dropped"] = [1.0, None, None]
    (tmp_path / "rules.json").write_text(_stored(result))
    assert main(["theory", "lab", "--quick", "--only", "rules", "--out", str(tmp_path)]) == 2
    assert f"{tmp_path / 'rules.json'} is damaged" in capsys.readouterr().err


def test_an_unknown_experiment_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="agents"):
        study.run_lab(tmp_path / "x", only=["agent"])
    assert not (tmp_path / "x").exists()


def test_the_lab_runs_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    tiny = QUICK._replace(repetitions=2, agents=(1, 4), one_agent=32, rounds=16)
    monkeypatch.setattr(study, "QUICK", tiny)
    assert main(["theory", "lab", "--quick", "--only", "agents", "--out", str(tmp_path)]) == 0
    assert {p.name for p in tmp_path.iterdir()} == {"agents.json", "agents.png"}
    stored = json.loads((tmp_path / "agents.json").read_text())
    assert [row["batch"] for row in stored["result"]["rows"]] == [32, 8]
    assert all(row["accepted"] == 1.0 for row in stored["result"]["rows"])
    said = capsys.readouterr().out
    assert "K = 1, B = 32" in said
    assert "exponent of K" in said


# --- what is in the repository


@pytest.mark.parametrize("name", study.EXPERIMENTS)
def test_the_stored_results_are_of_the_full_lab_and_can_be_drawn(name: str, tmp_path: Path):
    result = study.read_result(RESULTS, name, Scale())
    assert figures.draw(tmp_path, name, result).stat().st_size > 10_000
    assert all(table.row_count for table in lab_tables(name, result))
    assert (RESULTS / f"{name}.json").stat().st_size < 200_000
    assert f"results/theory/{name}.png" in DOC.read_text()


def test_the_document_has_the_measured_exponents():
    text = " ".join(DOC.read_text().split())
    for fit in study.read_result(RESULTS, "epsilon", Scale())["fits"]:
        value, low, high = fit["uniform"]
        cell = f"{value:.2f} [{low:.2f}, {high:.2f}]" if low < high else f"| {value:.2f} |"
        assert cell in text, (fit["mdp"], fit["method"])
    assert f"{study.read_result(RESULTS, 'agents', Scale())['fits']['no noise'][0]:.2f}" in text
    for name, key in (("agents", "all"), ("alpha", "trajectories"), ("alpha", "error")):
        value, low, high = study.read_result(RESULTS, name, Scale())["fits"][key]
        assert f"{value:.2f} [{low:.2f}, {high:.2f}]" in text, (name, key)
