"""The default rule: agents that are too much alike, in a round or over rounds, count as one."""

import numpy as np
import pytest

from compasses import AGENTS, LIARS, NOISE, SIZE, fresh, lying, own_of, sent_by_all, shares, update
from fedpg.aggregators.compass import RECALL


@pytest.mark.parametrize("apart", [0.05, 0.5, 1.0])
def test_liars_who_push_the_same_way_count_as_one_however_hidden_their_way_is(apart: float):
    """At right angles to the truth, about which the server and most others say nothing; each with noise of its own."""
    rng = np.random.default_rng(3)
    way = rng.normal(size=SIZE) / np.sqrt(SIZE)

    def sent(t: int, honest: np.ndarray) -> np.ndarray:
        vectors = honest.copy()
        vectors[-LIARS:] = NOISE * (way + apart * rng.normal(size=(LIARS, SIZE)) / np.sqrt(SIZE))
        return vectors

    counted = shares(sent, signal=0.0)[5:].mean(axis=0)
    assert counted[-LIARS:].sum() < 0.2  # one of eight is 0.125, three of ten are 0.3
    assert np.ptp(counted[:-LIARS]) < 0.1


def test_liars_who_look_unlike_in_every_round_and_push_one_way_over_rounds_count_as_one():
    """Noise on which they agree cancels in their sum: with 1 / sqrt(f) of the push each, they are at right angles."""
    rng = np.random.default_rng(3)
    way = rng.normal(size=SIZE)
    way /= np.linalg.norm(way)

    def sent(t: int, honest: np.ndarray) -> np.ndarray:
        rest = rng.normal(size=(LIARS, SIZE))
        rest -= rest.mean(axis=0)
        rest /= np.linalg.norm(rest, axis=1, keepdims=True)
        lies = LIARS**-0.5 * way + (1 - 1 / LIARS) ** 0.5 * rest
        assert abs(lies[0] @ lies[1]) < 0.2  # the cosine of two honest agents varies by 0.07
        return np.concatenate([honest[:-LIARS], NOISE * lies])

    counted = shares(sent, signal=0.0)
    assert counted[:2, -LIARS:].sum(axis=1).max() < 0.4
    assert counted[10:, -LIARS:].sum(axis=1).mean() < 0.2  # one of eight is 0.125, three of ten are 0.3


def test_liars_who_are_alike_in_every_round_and_push_another_way_in_each_count_as_one():
    rng = np.random.default_rng(5)

    def sent(t: int, honest: np.ndarray) -> np.ndarray:
        way = NOISE * rng.normal(size=SIZE) / np.sqrt(SIZE)
        return np.concatenate([honest[:-LIARS], 0.95 * honest[-LIARS:] + 0.31 * way])

    counted = shares(sent, signal=0.0)[10:]
    assert counted[:, -LIARS:].sum(axis=1).mean() < 0.2


@pytest.mark.slow
def test_a_crowd_of_thirty_in_a_hundred_counts_as_few_though_some_honest_agents_are_alike_by_chance():
    way = np.random.default_rng(3).normal(size=SIZE) / np.sqrt(SIZE)

    def sent(t: int, honest: np.ndarray) -> np.ndarray:
        return np.concatenate([honest[:-30], honest[-30:] + NOISE * way])

    counted = shares(sent, signal=0.0, agents=100)[10:].mean(axis=0)
    assert counted[-30:].sum() < 0.04  # one of 71 is 0.014, thirty of a hundred are 0.3


@pytest.mark.parametrize("signal", [0.0, 1.0, 20.0], ids=["noise alone", "faint", "strong"])
def test_honest_agents_count_alike_whatever_the_signal_is(signal: float):
    counted = shares(lambda t, honest: honest, signal)
    several = 1 / (counted**2).sum(axis=1)  # so many agents of equal weight would average noise away as well
    assert several.mean() > 0.8 * AGENTS
    assert counted.mean(axis=0).min() > 0.05


def test_a_crowd_of_copies_counts_as_the_one_it_copies():
    """As the attack `mimic` does; the copies differ in the last digits."""
    rng = np.random.default_rng(4)

    def sent(t: int, honest: np.ndarray) -> np.ndarray:
        return lying(honest, honest[0]) + 1e-3 * rng.normal(size=(AGENTS, SIZE))

    counted = shares(sent)[3:].mean(axis=0)
    assert counted[[0, *range(-LIARS, 0)]].sum() < 0.25
    assert counted[1:-LIARS].min() > 0.1


@pytest.mark.slow
def test_what_was_sent_over_rounds_is_compared_as_the_sums_themselves_would_be():
    """The products of sums, kept up to date round by round, where the metric stays: a Fisher matrix of 1."""
    rng = np.random.default_rng(6)
    memory, sums, scores = fresh(4), np.zeros((4, SIZE)), np.sqrt(SIZE) * np.eye(SIZE, dtype=np.float32)
    for _ in range(5):
        vectors = rng.normal(size=(4, SIZE)) + 0.3
        memory = update(memory, sent_by_all(vectors), own_of(np.ones(SIZE), scores=scores))[1]
        sums = RECALL[0] * sums + vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    apart = ~np.eye(4, dtype=bool)
    np.testing.assert_allclose(memory.gathered[apart], (sums @ sums.T)[apart], rtol=1e-4)


@pytest.mark.slow
def test_what_was_sent_over_rounds_is_compared_in_units_of_the_spread():
    """Coordinates that are all stretched, each by its own factor, change nothing."""
    factors = np.random.default_rng(7).choice([0.5, 1.0, 2.0], size=SIZE)
    found = []
    for stretch in (np.ones(SIZE), factors):
        rng, memory = np.random.default_rng(6), fresh()
        for _ in range(5):
            vectors = stretch * (rng.normal(size=(AGENTS, SIZE)) + 0.5)
            memory = update(memory, sent_by_all(vectors), own_of(stretch))[1]
        found.append(memory.gathered[~np.eye(AGENTS, dtype=bool)])
    np.testing.assert_allclose(found[1], found[0], rtol=0.02)


@pytest.mark.slow
def test_two_of_forty_honest_agents_are_seldom_alike_over_rounds():
    """Products of sums of noise, in units of what they vary by: about a normal number each."""
    rng, memory, found = np.random.default_rng(8), fresh(40), []
    for _ in range(60):
        vectors = rng.normal(size=(40, SIZE))
        memory = update(memory, sent_by_all(vectors), own_of(rng.normal(size=SIZE)))[1]
        found.append(memory.gathered[np.triu_indices(40, 1)] / (memory.doubt[0] * np.sqrt(SIZE)))
    assert 0.7 < np.std(found[20:]) < 1.3
    counted = shares(lambda t, honest: honest, signal=0.0, agents=40)[10:]
    assert (1 / (counted**2).sum(axis=1)).mean() > 36.4  # 37.3; of so many equal agents
