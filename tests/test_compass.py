"""The default rule: what liars can and cannot do to it."""

from collections.abc import Callable

import jax
import numpy as np
import pytest

from compasses import (
    AGENTS,
    LIARS,
    NOISE,
    ROUNDS,
    SIZE,
    federation,
    fresh,
    judged,
    lying,
    own_of,
    sent_by_all,
    shares,
    update,
)
from fedpg import ConfigError
from fedpg.aggregators import Own, Sent, compass
from fedpg.aggregators.compass import MOST_VOTERS, RECALL


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("push", [0.5, 1.0])
def test_who_sends_the_negative_of_the_honest_mean_hardly_counts(seed: int, push: float):
    """Distances do not find them: the lie is about as near to the honest mean as honest vectors are, or nearer."""
    _, honest, server = federation(seed)
    mean = honest[:-LIARS].mean(axis=0)
    lie = -push * mean
    assert np.linalg.norm(lie - mean) < 1.2 * np.median(np.linalg.norm(honest - mean, axis=1))
    verdict = judged(lying(honest, lie), server)
    assert verdict.accepted[:-LIARS].sum() >= 5
    # Of the lie's push along the mean, which the plain mean takes in three tenths, little is left.
    along = mean / np.linalg.norm(mean) ** 2
    assert np.dot(lying(honest, lie).mean(axis=0), along) == pytest.approx(0.7 - 0.3 * push, abs=1e-5)
    assert np.dot(verdict.gradient, along) > 0.6


@pytest.mark.parametrize("seed", range(5))
def test_a_lie_in_a_quiet_direction_is_cut_down(seed: int):
    """Half of the coordinates vary a hundred times less: a lie of honest length in them would be all of the step."""
    scale = np.where(np.arange(SIZE) < SIZE // 2, 1.0, 0.01)
    _, honest, server = federation(seed, scale)
    quiet = np.where(scale < 1, 1.0, 0.0)
    length = np.median(np.linalg.norm(honest, axis=1))
    lie = honest.mean(axis=0) * (scale == 1) + length * quiet / np.linalg.norm(quiet)
    verdict = judged(lying(honest, lie), server)
    plain = lying(honest, lie).mean(axis=0)
    moved, unmoved = (np.linalg.norm((x - honest[:-LIARS].mean(axis=0)) * quiet) for x in (verdict.gradient, plain))
    assert moved < unmoved / 10


@pytest.mark.slow
def test_agents_cannot_change_what_they_are_compared_with():
    _, honest, server = federation(0)
    both = (honest, lying(honest, 1e6 * np.ones(SIZE)))
    memories = [update(fresh(), sent_by_all(vectors), own_of(server))[1] for vectors in both]
    np.testing.assert_array_equal(memories[0].reference, memories[1].reference)


@pytest.mark.slow
def test_the_direction_is_an_average_of_the_servers_gradients_over_rounds():
    smoothed = jax.jit(compass(smooth=0.5).update)
    memory = fresh(4, 2)
    for server in ([1.0, 0.0], [0.0, 1.0]):
        memory = jax.tree.map(np.asarray, smoothed(memory, sent_by_all(np.eye(4, 2)), own_of(np.array(server)))[1])
    np.testing.assert_allclose(memory.reference / memory.weights[0], [1 / 3, 2 / 3], rtol=1e-6)


def test_who_sends_exactly_what_the_server_has_counts_hardly_more_than_an_honest_agent():
    _, honest, server = federation(1)
    verdict = judged(lying(honest, server), server)
    ten = judged(honest, server)
    # The three could at most count as three full agents of ten: what they send is no longer than the median.
    length = np.median(np.linalg.norm(honest, axis=1))
    assert np.linalg.norm(verdict.gradient - ten.gradient) < LIARS / 5 * 2 * length
    assert verdict.accepted[:-LIARS].sum() >= 5


def rounds(
    sent: Callable[[int, np.ndarray], np.ndarray], knows: bool = True, count: int = ROUNDS, noise: float = NOISE
) -> np.ndarray:
    """Who is accepted in each round, in which agents send what `sent` makes of the round and of the honest gradients.

    The server's own gradient is as noisy as an agent's, or 0 if it knows nothing.  [rounds, K]
    """
    rng = np.random.default_rng(0)
    truth = rng.normal(size=SIZE) / np.sqrt(SIZE)
    memory, found = fresh(), []
    for t in range(count):
        drawn = noise * rng.normal(size=(AGENTS + 1, SIZE)) / np.sqrt(SIZE)
        vectors, own = sent(t, truth + drawn[1:]), own_of(knows * (truth + drawn[0]))
        verdict, memory = update(memory, sent_by_all(vectors), own)
        found.append(verdict.accepted)
    return np.array(found)


@pytest.mark.parametrize("push", [1.0, 2.0, 7 / 3], ids=["ipm 1", "ipm 2", "avg-zero"])
def test_who_goes_against_all_others_is_found_though_the_server_knows_little(push: float):
    """The server's cosine with an honest agent is 0.04 on average, and varies by 0.07."""
    kept = rounds(lambda t, honest: lying(honest, -push * honest[:-LIARS].mean(axis=0)))
    assert not kept[1:, -LIARS:].any()
    assert kept[:, :-LIARS].mean() > 0.95


def test_who_begins_to_lie_is_found_and_who_stops_is_believed_again():
    def sent(t: int, honest: np.ndarray) -> np.ndarray:
        return lying(honest, -2 * honest[:-LIARS].mean(axis=0)) if 10 <= t < 15 else honest

    kept = rounds(sent, count=60)
    assert kept[:10].mean() > 0.9  # who is turned away by chance is so for some rounds
    assert not kept[12:15, -LIARS:].any()
    assert kept[45:].mean() > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("liars", [3, 4])
def test_who_goes_against_all_honest_agents_does_not_set_these_against_each_other(liars: int):
    """Lies along the honest mean make wide the coordinates on which the honest agree by chance in that round."""

    def sent(t: int, honest: np.ndarray) -> np.ndarray:
        lie = -2 * honest[:-liars].mean(axis=0)
        return np.concatenate([honest[:-liars], np.broadcast_to(lie, (liars, SIZE))])

    kept = rounds(sent, count=100, noise=3 * NOISE)
    assert not kept[20:, -liars:].any()
    assert kept[20:, :-liars].mean() > 0.9


def test_what_most_others_say_decides_how_much_an_agent_counts():
    """Three push against the others, by less than what turns them away; the server knows nothing."""
    way = np.ones(SIZE) / np.sqrt(SIZE)
    side = np.where(np.arange(AGENTS) < AGENTS - LIARS, 1.0, -1.0)[:, None]
    counted = shares(lambda t, honest: honest + 0.3 * NOISE * side * way, signal=0.0)[:5]
    assert counted[:, -LIARS:].mean() < 0.7 * counted[:, :-LIARS].mean()
    assert counted[:, -LIARS:].min() >= -1e-6


@pytest.mark.slow
def test_who_flips_signs_is_found_over_many_rounds_where_in_ten_nobody_can_tell():
    """The cosine of two honest agents is 0.02 on average, and varies by 0.07: a third of a deviation a round."""
    side = np.where(np.arange(AGENTS) < AGENTS - LIARS, 1.0, -1.0)[:, None]
    kept = rounds(lambda t, honest: side * honest, count=150, noise=1.4 * NOISE)
    assert kept[:10, -LIARS:].mean() > 0.8
    assert kept[75:, -LIARS:].mean() < 0.1
    assert kept[:, :-LIARS].mean() > 0.97


@pytest.mark.slow
def test_who_lies_after_many_honest_rounds_is_found_as_soon_as_who_lies_after_few():
    found = []
    for begin in (10, 80):

        def sent(t: int, honest: np.ndarray, begin: int = begin) -> np.ndarray:
            return lying(honest, -2 * honest[:-LIARS].mean(axis=0)) if t >= begin else honest

        kept = rounds(sent, count=begin + 10)
        assert kept[:begin].mean() > 0.95
        found.append(np.argmin(kept[begin:, -LIARS:].any(axis=1)))  # rounds in which somebody was let in
    assert found[1] <= found[0] + 1 <= 4


def test_half_of_the_agents_outvote_nobody_and_more_than_half_do():
    """Agents that differ may want different things. The server is of no help here: it knows nothing."""

    def camps(second: int) -> Callable[[int, np.ndarray], np.ndarray]:
        side = np.where(np.arange(AGENTS) < AGENTS - second, 1.0, -1.0)[:, None]
        return lambda t, honest: honest + 3.0 * side * np.ones(SIZE) / np.sqrt(SIZE)

    assert rounds(camps(5), knows=False).all()
    kept = rounds(camps(4), knows=False)
    assert kept[5:, :6].all()
    assert not kept[5:, 6:].any()


@pytest.mark.slow
def test_of_very_many_agents_nobody_is_compared_with_the_others():
    agents, size = MOST_VOTERS + 1, 20
    memory = fresh(agents, size)
    assert memory.mutual.size == 0
    assert fresh(MOST_VOTERS, size).mutual.shape == (2, MOST_VOTERS, MOST_VOTERS)
    truth = np.random.default_rng(0).normal(size=size).astype(np.float32)
    vectors = np.tile(truth, (agents, 1))
    vectors[:100] *= -1
    verdict, memory = update(memory, sent_by_all(vectors), own_of(truth))
    assert not verdict.accepted[:100].any()
    assert verdict.accepted[100:].all()


@pytest.mark.parametrize("lie", [1e15, 1e20, 1e34])
def test_what_two_of_ten_send_in_one_round_does_not_spoil_the_rounds_after(lie: float):
    _, honest, server = federation(0)
    own, two = own_of(server), np.arange(AGENTS) < 2
    memory = update(fresh(), sent_by_all(honest), own)[1]
    spoilt = np.where(np.arange(AGENTS)[:, None] == 1, lie, honest)
    verdict, memory = update(memory, sent_by_all(spoilt, two), own)
    assert ((verdict.distances < verdict.threshold) == verdict.accepted).all()
    after = [update(m, sent_by_all(honest), own)[0] for m in (memory, fresh())]
    assert after[0].accepted.sum() >= after[1].accepted.sum() - 1
    assert np.isfinite(memory.along).all()


@pytest.mark.slow
def test_scores_that_are_no_numbers_cost_one_round_and_no_more():
    _, honest, server = federation(0)
    sent, memory = sent_by_all(honest), fresh()
    scores = np.random.default_rng(0).normal(size=(64, SIZE)).astype(np.float32)
    for wrong in (np.nan, 1e19):
        spoilt = scores.copy()
        spoilt[3, 3] = wrong
        memory = update(memory, sent, own_of(server, scores=spoilt))[1]
        assert all(np.isfinite(leaf).all() for leaf in memory)
    assert update(memory, sent, own_of(server, scores=scores))[0].accepted.sum() >= 5


@pytest.mark.slow
def test_of_who_did_not_answer_nothing_is_remembered_but_what_was_before():
    _, honest, server = federation(0)
    own, there = own_of(server), np.arange(AGENTS) != 4
    memory = update(fresh(), sent_by_all(honest), own)[1]
    after = update(memory, sent_by_all(np.where(there[:, None], honest, np.nan), there), own)[1]
    for which, recall in enumerate(RECALL):
        np.testing.assert_allclose(after.along[which, 4], recall * memory.along[which, 4], rtol=1e-6)
        np.testing.assert_allclose(after.mutual[which, 4], recall * memory.mutual[which, 4], rtol=1e-6)
        assert (np.abs(after.along - recall * memory.along)[which, there] > 0).all()
    np.testing.assert_allclose(after.sums[4], RECALL[0] * memory.sums[4], rtol=1e-6)


@pytest.mark.slow
def test_there_is_a_derivative_though_an_agent_is_missing():
    """For attacks that follow the slope of the rule."""
    _, honest, server = federation(0)
    there = np.arange(AGENTS) != 4

    def length(vectors: jax.Array) -> jax.Array:
        return (compass().update(fresh(), Sent(vectors, there, 16), own_of(server))[0].gradient ** 2).sum()

    slope = jax.grad(length)(np.where(there[:, None], honest, np.nan).astype(np.float32))
    assert np.isfinite(slope[there]).all()
    assert np.abs(slope[there]).max() > 0


@pytest.mark.parametrize("agents", [1, 2])
def test_too_few_to_be_outvoted_are_averaged(agents: int):
    vectors = np.array([[1.0, 2.0], [-3.0, 4.0]])[:agents]
    verdict = judged(vectors, np.array([-1.0, -1.0]))
    assert verdict.accepted.all()
    if agents == 1:
        np.testing.assert_allclose(verdict.gradient, vectors[0], rtol=1e-6)


def test_equal_vectors_are_their_mean_if_they_go_the_servers_way_and_nothing_if_not():
    vectors = np.ones((AGENTS, SIZE))
    np.testing.assert_allclose(judged(vectors, np.linspace(0.5, 1, SIZE)).gradient, np.ones(SIZE), rtol=1e-5)
    against = judged(vectors, -np.linspace(0.5, 1, SIZE))
    assert not against.accepted.any()
    assert not against.gradient.any()


def test_two_who_came_of_ten_are_too_few_to_be_outvoted_as_well():
    _, honest, server = federation(3)
    verdict = judged(honest, -server, np.arange(AGENTS) < 2)
    assert verdict.accepted.tolist() == [True] * 2 + [False] * 8


@pytest.mark.slow
def test_a_fault_of_the_server_in_one_round_is_not_remembered():
    _, honest, server = federation(0)
    sent = sent_by_all(honest)
    memory = update(fresh(), sent, own_of(server))[1]
    verdict, after = update(memory, sent, own_of(np.where(np.arange(SIZE) == 3, np.nan, server)))
    assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), memory, after))
    assert verdict.accepted.any()
    assert np.isfinite(verdict.gradient).all()


def test_who_is_beyond_the_threshold_is_turned_away():
    _, honest, server = federation(2)
    verdict = judged(lying(honest, -20 * server), server)
    assert not verdict.accepted[-LIARS:].any()
    assert ((verdict.distances < verdict.threshold) == verdict.accepted).all()


def test_a_server_without_a_gradient_and_a_smoothness_that_is_none_are_refused():
    rule = compass()
    with pytest.raises(ConfigError, match="a gradient of the server's own"):
        rule.update(fresh(4, 2), sent_by_all(np.eye(4, 2)), Own())
    for smooth in (-0.1, 1.0):
        with pytest.raises(ConfigError, match="smooth"):
            compass(smooth)
