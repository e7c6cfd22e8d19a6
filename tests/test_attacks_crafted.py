"""Attacks that craft a lie of honest gradients, and those that try it on the aggregator: each by its definition."""

import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import Array

from fedpg import ATTACKS, ConfigError, Scene
from fedpg.aggregators import Aggregator, Own, Sent, Verdict, decide, make_aggregator
from fedpg.attacks import make_attack
from fedpg.attacks.adaptive import _by_decades, line_search

SETTINGS = settings(max_examples=30, deadline=None, derandomize=True)
ORACLE = json.loads((Path(__file__).parent / "data" / "attacks.json").read_text())
"""Honest vectors, and what the attacks of another library make of them."""


def median() -> Aggregator:
    """The median of every coordinate."""
    return Aggregator(lambda memory, sent, own: (decide(sent, jnp.median(sent.vectors, axis=0), sent.valid), memory))


def trimmed_mean(f: int) -> Aggregator:
    """The mean of every coordinate, without the f highest and the f lowest."""

    def update(memory: Any, sent: Sent, own: Own) -> Any:
        kept = jnp.sort(sent.vectors, axis=0)[f : sent.vectors.shape[0] - f]
        return decide(sent, jnp.mean(kept, axis=0), sent.valid), memory

    return Aggregator(update)


def least_diameter(f: int) -> Aggregator:
    """The mean of the K - f vectors of least diameter, by enumeration."""

    def update(memory: Any, sent: Sent, own: Own) -> Any:
        count = sent.vectors.shape[0]
        sets = np.array(list(itertools.combinations(range(count), count - f)))
        apart = jnp.linalg.norm(sent.vectors[:, None] - sent.vectors, axis=-1)
        best = jnp.asarray(sets)[jnp.argmin(jax.vmap(lambda s: jnp.max(apart[s][:, s]))(sets))]
        accepted = jnp.zeros(count, bool).at[best].set(True)
        return decide(sent, jnp.mean(sent.vectors[best], axis=0), accepted), memory

    return Aggregator(update)


@functools.partial(jax.jit, static_argnums=0)
def verdict(aggregator: Aggregator, vectors: Array) -> Verdict:
    """What an aggregator makes of vectors [K, D] in a first round."""
    sent = Sent(vectors, jnp.all(jnp.isfinite(vectors), axis=1), 16)
    return aggregator.update(aggregator.init(*vectors.shape), sent, Own())[0]


def judge(aggregator: Aggregator, honest: np.ndarray, lies: np.ndarray) -> np.ndarray:
    """The aggregate of these vectors."""
    vectors = np.concatenate([honest, lies]).astype(np.float32)
    return np.asarray(verdict(aggregator, vectors).gradient, np.float64)


Way = tuple[str, tuple[str, ...], Aggregator | None]
"""An attack by name, its options, and the aggregator that it tries its lies on."""


def sent(
    name: str,
    honest: Any,
    liars: Any,
    *options: str,
    against: Aggregator | None = None,
    seed: int = 0,
) -> np.ndarray:
    """What the liars send, given what all would honestly send.  [f, D]"""
    return sent_by(((name, options, against),), honest, liars, seed)[0]


def sent_by(ways: tuple[Way, ...], honest: Any, liars: Any, seed: int = 0) -> list[np.ndarray]:
    """The same of several attacks, in one program."""
    gradients = np.concatenate([np.asarray(honest), np.asarray(liars)]).astype(np.float32)
    byzantine = np.arange(len(gradients)) >= len(honest)
    return [np.asarray(each, np.float64)[len(honest) :] for each in compiled(ways)(seed, gradients, byzantine)]


@functools.cache
def compiled(ways: tuple[Way, ...]) -> Callable[[int, Any, Any], list[Array]]:
    def lies(seed: Array, gradients: Array, byzantine: Array) -> list[Array]:
        keys, found = jax.random.split(jax.random.key(seed), len(gradients)), []
        for name, options, against in ways:
            aggregate = None if against is None else lambda x, rule=against: verdict(rule, x).gradient
            scene = Scene(keys, gradients, byzantine, (), aggregate)
            found.append(make_attack(name, options=options).send((), scene)[0])
        return found

    return jax.jit(lies)


def random_vectors(seed: int, count: int = 7, size: int = 12, shift: float = 0.5) -> np.ndarray:
    """Vectors around a common mean, on scales that differ by coordinate."""
    rng = np.random.default_rng(seed)
    scales = 10 ** rng.uniform(-1, 1, size)
    return (rng.normal(size=(count, size)) + shift * rng.normal(size=size)) * scales


# The oracle. It adds what we subtract in ALIE; rules that are the same upside down make it the mirror image of ours.


MIRRORED = {"alie tau=1.5": ("alie", ("z=1.5",)), "opt_alie vs trimmed_mean": ("opt-alie", ())}
PLAIN = {"ipm tau=2": ("ipm", ("e=2",)), "opt_ipm vs median": ("opt-ipm", ())}


@pytest.mark.parametrize("case", ORACLE, ids=lambda c: f"{c['n']}-{c['f']}-{len(c['vectors'][0])}")
@pytest.mark.parametrize("mirror", [-1, 1])
def test_attacks_agree_with_another_library(case: Any, mirror: int):
    honest = mirror * np.array(case["vectors"])
    ours, rule = (MIRRORED, trimmed_mean(case["f"])) if mirror < 0 else (PLAIN, median())
    ways = tuple((name, options, rule) for name, options in ours.values())
    for theirs, lies in zip(ours, sent_by(ways, honest, np.full((case["f"], honest.shape[1]), 99.0)), strict=True):
        expected = mirror * np.array(case["attacks"][theirs])
        np.testing.assert_allclose(lies, np.broadcast_to(expected, lies.shape), rtol=1e-5, atol=1e-5, err_msg=theirs)


# Each against its definition.


@pytest.mark.parametrize(("agents", "liars", "z"), [(10, 3, 0.1800), (30, 9, 0.4307), (11, 5, 0.9674), (4, 1, -0.4307)])
def test_alie_goes_as_far_as_a_majority_supports_by_default(agents: int, liars: int, z: float):
    honest = random_vectors(1, agents - liars)
    lie = sent("alie", honest, random_vectors(2, liars))[0]
    shares = (honest.mean(axis=0) - lie) / honest.std(axis=0, ddof=1)
    np.testing.assert_allclose(shares, z, rtol=2e-3)


def test_alie_of_two_hand_computed_vectors():
    lies = sent("alie", [[0.0, 2.0], [2.0, 6.0], [4.0, 10.0]], [[9.0, 9.0]], "z=1.5")
    np.testing.assert_allclose(lies, [[2 - 1.5 * 2, 6 - 1.5 * 4]], rtol=1e-6)


def test_colluders_take_the_deviation_of_their_own_gradients():
    lies = sent(
        "alie", random_vectors(0), [[0.0, 2.0] * 6, [2.0, 6.0] * 6, [4.0, 10.0] * 6], "z=1", "knowledge=colluders"
    )
    np.testing.assert_allclose(lies, [[0.0, 2.0] * 6] * 3, rtol=1e-6, atol=1e-6)


def test_ipm_of_one_who_knows_its_own_gradient_alone_is_its_own_flipped():
    liars = random_vectors(3, 3)
    np.testing.assert_allclose(sent("ipm", random_vectors(0), liars, "e=2", "knowledge=own"), -2 * liars, rtol=1e-6)


def harm(rule: Aggregator, honest: np.ndarray, lies: np.ndarray) -> float:
    """How far the aggregate lies from the mean of the honest."""
    return float(np.linalg.norm(judge(rule, honest, lies) - honest.mean(axis=0)))


def largest(points: np.ndarray, among: np.ndarray) -> float:
    return max(np.linalg.norm(x - y) for x in points for y in among)


def total(point: np.ndarray, among: np.ndarray) -> float:
    return float(((among - point) ** 2).sum())


@pytest.mark.slow
@SETTINGS
@given(st.integers(0, 2**20), st.sampled_from(["unit", "sign", "std"]), st.sampled_from(["all", "colluders"]))
def test_min_max_and_min_sum_go_as_far_as_they_may_and_no_further(seed: int, direction: str, knowledge: str):
    honest, liars = random_vectors(seed, 7), random_vectors(seed + 1, 3)
    known = np.float64(np.float32(honest if knowledge == "all" else liars))
    m = known.mean(axis=0)
    p = {"unit": m, "sign": np.sign(m), "std": known.std(axis=0, ddof=1)}[direction]
    names, options = ("min-max", "min-sum"), (f"direction={direction}", f"knowledge={knowledge}")
    both = sent_by(tuple((name, options, None) for name in names), honest, liars)
    for name, lies in zip(names, both, strict=True):
        assert (lies == lies[0]).all()
        move = lies[0] - m
        assert move @ p == pytest.approx(-np.linalg.norm(move) * np.linalg.norm(p), rel=1e-4)  # along -p
        further = m + 1.001 * move
        if name == "min-max":
            bound = largest(known, known)
            assert largest(lies[:1], known) <= bound < largest(further[None], known)
        else:
            bound = max(total(x, known) for x in known)
            assert total(lies[0], known) <= bound < total(further, known)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["min-max", "min-sum"])
@pytest.mark.parametrize("rule", [median(), trimmed_mean(3)], ids=["median", "trimmed mean"])
def test_the_worst_direction_is_the_one_that_moves_the_aggregate_furthest(name: str, rule: Aggregator):
    honest, liars = random_vectors(5), random_vectors(6, 3)
    ways = tuple((name, (f"direction={direction}",), rule) for direction in ("unit", "sign", "std", "worst"))
    *alone, worst = (harm(rule, honest, lies) for lies in sent_by(ways, honest, liars))
    assert max(alone) > 1.01 * min(alone)
    assert worst == pytest.approx(max(alone), rel=1e-4)


def test_trim_lies_beyond_the_honest_extreme_against_the_mean():
    honest = np.array([[1.0, -4.0, -1.0, 4.0], [3.0, 6.0, -3.0, -6.0], [2.0, 4.0, -2.0, -4.0]])
    lies = np.stack([sent("trim", honest, np.zeros((2, 4)), seed=seed) for seed in range(50)]).reshape(-1, 4)
    bounds = [(0.5, 1.0), (-8.0, -4.0), (-1.0, -0.5), (4.0, 8.0)]
    for values, (low, high) in zip(lies.T, bounds, strict=True):
        assert low <= values.min() < low + 0.1 * (high - low)
        assert high - 0.1 * (high - low) < values.max() <= high
    assert len(np.unique(lies[:, 0])) == 100  # each draws its own


@SETTINGS
@given(st.integers(0, 2**20), st.integers(1, 4))
def test_avg_zero_makes_the_mean_of_all_zero(seed: int, liars: int):
    honest = random_vectors(seed)
    lies = sent("avg-zero", honest, random_vectors(seed + 1, liars))
    np.testing.assert_allclose(np.concatenate([honest, lies]).mean(axis=0), 0.0, atol=1e-4 * np.abs(honest).max())


def test_avg_zero_of_colluders_multiplies_their_own_mean():
    lies = sent("avg-zero", random_vectors(0, 6, 2), [[1.0, 0.0], [3.0, 4.0]], "knowledge=colluders")
    np.testing.assert_allclose(lies, [[-6.0, -6.0]] * 2, rtol=1e-6)  # 6 honest agents, 2 liars


def mimicking(warmup: int, agents: int, size: int) -> tuple[Any, Callable[..., Any]]:
    """The first memory of mimic, and what it sends and remembers of (memory, gradients, byzantine), as NumPy."""
    attack = make_attack("mimic", options=(f"warmup={warmup}",))

    @jax.jit
    def send(memory: Any, gradients: Array, byzantine: Array) -> Any:
        return attack.send(memory, Scene(jax.random.split(jax.random.key(0), agents), gradients, byzantine, ()))

    return jax.jit(lambda: attack.init(agents, size))(), lambda *given: jax.tree.map(np.asarray, send(*given))


def test_mimic_copies_whom_its_direction_points_at_and_stays_with_it():
    gradients = np.array([[3.0, 0.0], [-3.0, 0.1], [0.0, -0.1], [9.0, 9.0]], np.float32)
    first, send = mimicking(1, *gradients.shape)
    memory = first | {"z": np.array([1.0, 0.0], np.float32)}
    lies, memory = send(memory, gradients, np.arange(4) >= 3)
    np.testing.assert_array_equal(lies[3], gradients[0])
    turned = np.where(np.arange(4)[:, None] < 2, [-1, 1], 1).astype(np.float32) * gradients
    lies, memory = send(memory, turned, np.arange(4) >= 3)
    np.testing.assert_array_equal(lies[3], [-3.0, 0.0])  # the second agent is the better one now
    _, same = send(memory, gradients, np.zeros(4, bool))
    jax.tree.map(np.testing.assert_array_equal, same, memory)  # nobody attacks: nothing is learnt


def test_the_direction_of_mimic_is_the_top_eigenvector_of_how_honest_agents_scatter():
    honest = random_vectors(4)
    gradients = np.concatenate([honest, np.ones((2, 12))]).astype(np.float32)
    memory, send = mimicking(100, *gradients.shape)
    for _ in range(60):
        lies, memory = send(memory, gradients, np.arange(9) >= 7)
    top = np.linalg.svd(honest - honest.mean(axis=0))[2][0]
    assert abs(top @ memory["z"]) == pytest.approx(1.0, abs=1e-3)
    np.testing.assert_array_equal(lies[8], gradients[np.argmax(honest @ memory["z"])])


# Those that try their lies on the aggregator.


@pytest.mark.parametrize(
    ("score", "best"),
    [
        (lambda x: -((x - 47.0) ** 2), 47.0),
        (lambda x: -((x - 0.7) ** 2), 0.7),
        (lambda x: jnp.where(x <= 3, x, -x), 3.0),
        (lambda x: -x, 0.0),
        (lambda x: jnp.where(x > 0, jnp.nan, 1.0), 0.0),
    ],
)
def test_the_line_search_finds_the_top_of_a_hill(score: Any, best: float):
    assert float(jax.jit(lambda: line_search(score))()) == pytest.approx(best, rel=0.1, abs=0.05)


def test_the_line_search_asks_twenty_times():
    asked = []

    def score(x: Array) -> Array:
        jax.debug.callback(lambda value: asked.append(float(value)), x)
        return -((x - 47.0) ** 2)

    jax.block_until_ready(jax.jit(lambda: line_search(score))())
    jax.effects_barrier()
    assert len(asked) == 20
    assert asked[:4] == [0.0, 10.0, 30.0, 70.0]
    assert asked[4] == pytest.approx(70 - 0.8 * 40)  # beyond the top: back, by less


RULES: dict[str, Aggregator] = {
    **{
        name: make_aggregator(name, **({} if name == "mean" else {"sigma": 6.0}))
        for name in ("mean", "fedpg", "majority")
    },
    "median": median(),
    "trimmed mean": trimmed_mean(3),
}


@pytest.mark.parametrize(
    "rule", [pytest.param(name, marks=pytest.mark.slow if name in ("fedpg", "majority") else ()) for name in RULES]
)
@pytest.mark.parametrize("name", ["opt-alie", "opt-ipm"])
def test_an_optimised_lie_moves_the_aggregate_further_than_any_of_the_usual_ones(name: str, rule: str):
    fixed, parameter = ("alie", "z") if name == "opt-alie" else ("ipm", "e")
    # A filter that turns lies away has no one hill to climb; the lies that are always tried are 0 and 10.
    usual = (10.0,) if rule in ("fedpg", "majority") else (0.5, 1.0, 10.0)
    ways = ((name, (), RULES[rule]), *((fixed, (f"{parameter}={x}",), None) for x in usual))
    for seed in range(3):
        honest, liars = random_vectors(seed), random_vectors(seed + 50, 3)
        best, *others = (harm(RULES[rule], honest, lies) for lies in sent_by(ways, honest, liars))
        assert best >= 0.98 * max(others)


def turned(rule: Aggregator, honest: np.ndarray, liars: np.ndarray, lies: np.ndarray) -> float:
    """The cosine of the aggregate under attack with the honest one."""
    a, b = (judge(rule, honest, x) for x in (liars, lies))
    return float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-30))


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_the_normalized_attack_turns_the_aggregate_at_least_as_far_as_sign_flipping(rule: str):
    for seed in range(4):
        rng = np.random.default_rng(seed)  # on one scale, as a direction made of signs is
        vectors = rng.normal(size=(10, 40)) + 0.5 * rng.normal(size=40)
        honest, liars = vectors[:7], vectors[7:]
        found = turned(RULES[rule], honest, liars, sent("normalized", honest, liars, against=RULES[rule]))
        flipped = turned(RULES[rule], honest, liars, sent("sign-flipping", honest, liars))
        assert found <= flipped + 1e-3, seed


def test_the_normalized_attack_with_given_numbers_is_its_formula():
    honest, liars = random_vectors(0), random_vectors(1, 3)
    lies = sent("normalized", honest, liars, "l=0.83", "c=0.03", against=make_aggregator("mean"))
    plain = np.concatenate([honest, liars]).mean(axis=0)
    x = plain / np.linalg.norm(plain) - 0.83 * np.sign(honest.mean(axis=0))
    np.testing.assert_allclose(lies, np.broadcast_to(0.03 * x / np.linalg.norm(x), lies.shape), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["mean", "random", "worst"])
def test_mda_fooling_makes_its_lies_part_of_the_set_of_least_diameter(direction: str):
    rule = least_diameter(3)
    for seed in range(4):
        honest = random_vectors(seed)
        lies = sent("mda-fooling", honest, random_vectors(seed + 50, 3), f"direction={direction}", against=rule)
        accepted = verdict(rule, np.concatenate([honest, lies]).astype(np.float32)).accepted
        assert np.asarray(accepted)[7:].all()
        assert sum(np.linalg.norm(honest - lies[0], axis=1) <= largest(honest, honest)) >= 4  # K - 2f
        assert np.linalg.norm(honest.mean(axis=0) - lies[0]) > 0.3 * largest(honest, honest)


# Bad parameters


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("alie", "z=inf", "z must be a finite number"),
        ("ipm", "e=-1", "e must be a positive number, not -1"),
        ("ipm", "e=nan", "e must be a positive number"),
        ("ipm", "knowledge=some", "knowledge must be own or colluders or all, not 'some'"),
        ("alie", "knowledge=own", "knowledge must be colluders or all, not 'own'"),
        ("min-max", "direction=up", "direction must be unit or sign or std or worst, not 'up'"),
        ("mda-fooling", "direction=unit", "direction must be mean or random or worst"),
        ("mimic", "warmup=0", "warmup must be 1 round or more"),
        ("mimic", "warmup=1.5", "warmup must be a whole number"),
        ("normalized", "l=0", "l must be a positive number"),
        ("normalized", "c=-2", "c must be a positive number"),
        ("sign-flipping", "scale=nan", "scale must be a positive number, not nan"),
        ("sign-flipping", "scale=-1", "scale must be a positive number, not -1"),
        ("sign-flipping", "scale=0", "scale must be a positive number, not 0"),
        ("random-noise", "scale=inf", "scale must be a finite number, 0 or more, not inf"),
        ("random-noise", "scale=-1", "scale must be a finite number, 0 or more, not -1"),
        ("fedpg-attack", "scale=-3", "scale must be a finite number, 0 or more, not -3"),
        ("fedpg-attack", "scale=nan", "scale must be a finite number, 0 or more, not nan"),
        ("variance-attack", "z=nan", "z must be a positive number, not nan"),
        ("variance-attack", "z=-1", "z must be a positive number, not -1"),
    ],
)
def test_parameters_out_of_range_are_errors_when_an_attack_is_made(name: str, option: str, message: str):
    with pytest.raises(ConfigError, match=message):
        make_attack(name, options=(option,))


@pytest.mark.parametrize("make", ["alie", "min-max", "trim", "avg-zero", "opt-alie", "normalized", "variance-attack"])
def test_a_word_that_nobody_knows_is_an_error_in_python_too(make: str):
    with pytest.raises(ConfigError, match="knowledge must be colluders or all, not 'nothing'"):
        ATTACKS[make](knowledge="nothing")


@pytest.mark.parametrize("search", [line_search, lambda score: _by_decades(score, jnp.float32(1.0))])
def test_searches_take_scores_of_any_precision(search: Any):
    """As they are where JAX computes in float64."""
    with jax.enable_x64(True):
        found = jax.jit(lambda top: search(lambda x: -((x.astype(jnp.float64) - top) ** 2)))(jnp.float64(7.0))
    assert abs(float(found) - 7.0) < 2.5
