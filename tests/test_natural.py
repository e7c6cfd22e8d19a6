"""Natural steps: the rule for the length of a step."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import Array

from fedpg.aggregators import Own
from fedpg.algorithms.natural import FASTER, LONGER, LONGEST, NEW, SHORTER, SHORTEST, Stride, next_kl, step
from fedpg.metric import damped, fisher_at, solve
from fedpg.policies import Policy
from fedpg.theory.mdp import best_return, chain, exact_gradient, exact_return, occupancy
from small_policies import OBSERVATIONS, POLICIES

ALL = np.float32(1.0)
"""Of mu is signal."""


def start(size: int, kl: float = 0.02, **known: Any) -> Stride:
    zero, one, nothing = np.float32(0.0), np.float32(1.0), np.zeros(size, np.float32)
    fresh = Stride(nothing, zero, np.float32(kl), zero, nothing, zero, one, zero, zero, zero)
    return fresh._replace(**{name: np.asarray(value, np.float32) for name, value in known.items()})


@functools.cache
def first_of(policy: Policy) -> np.ndarray:
    """Its parameters at first."""
    return np.asarray(policy.init(jax.random.key(1)))


def drawn(seed: int, size: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


@functools.partial(jax.jit, static_argnums=0)
def apart(policy: Policy, theta: Array, other: Array) -> Array:
    """The mean divergence of two policies."""
    return jnp.mean(policy.kl(policy.unravel(theta), policy.unravel(other), OBSERVATIONS))


@functools.partial(jax.jit, static_argnums=0)
def curved(policy: Policy, theta: Array, vector: Array) -> Array:
    """F v."""
    return fisher_at(policy, theta, OBSERVATIONS)(vector)


@functools.partial(jax.jit, static_argnums=0)
def uncurved(policy: Policy, theta: Array, vector: Array) -> Array:
    """F^-1 v, nearly."""
    return solve(damped(fisher_at(policy, theta, OBSERVATIONS), vector), vector)


following = jax.jit(next_kl)


def size_of(vector: Any) -> float:
    return float(np.linalg.norm(vector))


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("kl", [2e-3, 0.01])
def test_the_first_step_has_the_divergence_that_it_should(name: str, kl: float):
    policy = POLICIES[name]
    theta = first_of(policy)
    mu = np.asarray(curved(policy, theta, drawn(2, policy.size)))  # as gradients are
    after, stride = step(policy, 0.35, theta, mu, ALL, Own(check=mu, states=OBSERVATIONS), start(policy.size, kl))
    assert float(apart(policy, theta, after)) == pytest.approx(kl, rel=0.3)
    assert float(stride.slope) > 0
    np.testing.assert_allclose(after, theta + np.asarray(stride.move), atol=1e-6)


@pytest.mark.slow
def test_exact_steps_climb_an_enumerated_task_to_its_top():
    """On a chain whose far end is worth most, with the exact gradient and the states that its policy visits."""
    mdp = chain()

    @jax.jit
    def exact(theta: Array) -> tuple[Array, Array, Array]:
        table = theta.reshape(mdp.states, mdp.actions)
        return occupancy(mdp, table).mean(axis=0), exact_gradient(mdp, table).ravel(), exact_return(mdp, table)

    rng, theta, stride = np.random.default_rng(0), np.zeros(mdp.size, np.float32), start(mdp.size)
    returns = []
    for _ in range(10):
        visited, mu = (np.asarray(x) for x in exact(theta)[:2])
        chances = visited.astype(float)
        states = rng.choice(mdp.states, 512, p=chances / chances.sum()).astype(np.int32)[None]
        theta, stride = step(mdp.policy, 0.35, theta, mu, ALL, Own(check=mu, states=states), stride)
        returns.append(float(exact(theta)[2]))
    assert (np.diff(returns) > 0).all()
    assert returns[-1] > 0.98 * float(jax.jit(lambda: best_return(mdp))())


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_a_vector_that_no_gradient_could_be_moves_the_policy_no_further(name: str, scale: float):
    """Some directions leave the policy as it is, and gradients have no part in them; a lie may."""
    policy = POLICIES[name]
    theta, mu = first_of(policy), np.float32(scale) * drawn(2, policy.size)
    after, _ = step(policy, 0.35, theta, mu, ALL, Own(check=mu, states=OBSERVATIONS), start(policy.size))
    assert 0 < float(apart(policy, theta, after)) < 0.05


def test_a_slope_that_is_left_makes_the_next_step_longer_and_one_that_has_turned_makes_it_shorter():
    last = start(2, 0.01, move=[1.0, 0.0], slope=2.0)
    found = [float(following(last, np.array([left, 7.0], np.float32), 0.35)) for left in (2.0, 0.7, 0.2, -4.0)]
    assert found[0] > 0.01 == pytest.approx(found[1], rel=1e-3)
    assert found[1] > found[2] > found[3]
    assert found[3] == pytest.approx(0.01 * SHORTER, rel=1e-3)


@given(left=st.floats(-1e6, 1e6), kl=st.floats(SHORTEST, LONGEST))
def test_lengths_stay_within_their_bounds_whatever_the_slopes(left: float, kl: float):
    last = start(1, kl, move=[1.0], slope=1.0)
    found = float(following(last, np.array([left], np.float32), 0.35))
    assert SHORTEST * 0.999 <= found <= LONGEST * 1.001
    assert kl / LONGER * 0.999 <= found <= kl * LONGER * 1.001


def test_slopes_that_are_noise_around_what_should_be_left_make_steps_no_shorter_and_no_longer():
    """However wide the noise; if a step could shrink to a quarter at once, noise alone would shrink it."""
    logs, last = [], start(1, 0.01, move=[1.0], slope=1.0)
    for left in 0.35 + 3 * np.random.default_rng(0).normal(size=400):
        logs.append(np.log(float(following(last, np.array([left], np.float32), 0.35)) / 0.01))
    assert abs(np.mean(logs)) < 4 * np.std(logs) / 20
    assert np.std(logs) > 0.2  # they do follow the slopes


def repeated(
    policy: Policy, mu: Callable[[int], np.ndarray], own: Callable[[int], np.ndarray], rounds: int, signal: float = 1.0
) -> list[Stride]:
    theta, stride, strides = first_of(policy), start(policy.size), []
    for t in range(rounds):
        given = Own(check=own(t), states=OBSERVATIONS)
        theta, stride = step(policy, 0.35, theta, mu(t), np.float32(signal), given, stride)
        strides.append(stride)
    return strides


def noise(t: int) -> np.ndarray:
    return drawn(t, POLICIES["categorical"].size)


def test_steps_shrink_when_the_aggregate_is_noise():
    """By the slopes that are left, also if agents cannot tell because there is one of them only; and by its share."""
    policy = POLICIES["categorical"]
    for signal, left in ((1.0, 0.2), (0.0, 0.5)):
        strides = repeated(policy, noise, lambda t: noise(1000 + t), 60, signal)
        moved = [size_of(stride.move) for stride in strides]
        assert np.mean(moved[40:]) < left * moved[0]
        if signal:  # where it is known that nothing is real, nothing has to be left either
            assert float(strides[-1].kl) < 0.1 * float(strides[0].kl)


def test_the_less_signal_the_more_rounds_are_averaged_and_the_average_has_more_of_it():
    """The noise of an average with weights w (1 - w)^n of independent rounds is w / (2 - w) of that of one."""
    policy = POLICIES["categorical"]
    for signal in (1.0, 0.5, 0.02):
        last = repeated(policy, noise, noise, 60, signal)[-1]
        weight = max(signal, NEW)
        assert float(last.noise) == pytest.approx(weight / (2 - weight), rel=0.02)
    whole = sum((1 - NEW) ** (59 - t) * NEW * noise(t) for t in range(60))  # the first rounds have more weight
    assert whole @ np.asarray(last.mean) / size_of(whole) / size_of(last.mean) > 0.95


def test_steps_shrink_when_the_server_does_not_see_the_slope_that_is_promised():
    """Liars who agree with each other from round to round: the aggregate is no noise, but the server finds nothing."""
    policy = POLICIES["categorical"]
    lie = drawn(0, policy.size)
    strides = repeated(policy, lambda t: lie, lambda t: np.zeros_like(lie), 45)
    moved = [size_of(stride.move) for stride in strides]
    assert max(moved[40:]) < 0.2 * max(moved)
    against = repeated(policy, lambda t: lie, lambda t: -lie, 20)
    assert size_of(against[-1].move) == 0.0
    honest = repeated(policy, lambda t: lie, lambda t: lie, 10)
    assert size_of(honest[-1].move) > 0.5 * size_of(honest[0].move)


def test_a_vanishing_aggregate_is_not_blown_up_to_full_length():
    policy = POLICIES["categorical"]
    mu = drawn(0, policy.size)

    def vanishing(t: int) -> np.ndarray:
        return mu if t == 0 else np.float32(1e-3) * mu

    strides = repeated(policy, vanishing, vanishing, 3)
    moved = [size_of(stride.move) for stride in strides]
    assert moved[1] < 2 * FASTER * 1e-3 * moved[0]


def test_nothing_moves_without_a_gradient():
    policy = POLICIES["gaussian, released"]
    theta, nothing = first_of(policy), np.zeros(policy.size, np.float32)
    after, stride = step(policy, 0.35, theta, nothing, ALL, Own(check=nothing, states=OBSERVATIONS), start(policy.size))
    np.testing.assert_array_equal(after, theta)
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in stride)


def test_a_fault_of_the_server_in_one_round_is_not_remembered():
    policy = POLICIES["categorical"]
    theta, mu = first_of(policy), drawn(0, policy.size)
    spoilt = np.where(np.arange(policy.size) == 0, np.float32(np.nan), mu)
    for own in (Own(check=spoilt, states=OBSERVATIONS), Own(check=mu, states=np.full_like(OBSERVATIONS, np.nan))):
        after, stride = step(policy, 0.35, theta, mu, ALL, own, start(policy.size))
        np.testing.assert_array_equal(after, theta)
        assert float(stride.promised) == 0.0  # as before the first step


def test_a_moment_of_doubt_is_over_when_the_server_sees_the_slope_again():
    policy = POLICIES["categorical"]
    mu = drawn(0, policy.size)
    promised = float(repeated(policy, lambda t: mu, lambda t: mu, 1)[0].promised)
    doubted = start(policy.size, found=-promised, promised=promised, squares=0.0)
    theta, own = first_of(policy), Own(check=mu, states=OBSERVATIONS)
    moved = []
    for _ in range(15):
        theta, doubted = step(policy, 0.35, theta, mu, ALL, own, doubted)
        moved.append(size_of(doubted.move))
    assert moved[0] == 0.0
    assert max(moved[:8]) > 0.1 * moved[-1] > 0


@pytest.mark.parametrize("scale", [1e4, 1e20, 3e37])
@pytest.mark.parametrize("signal", [1.0, 0.2])
def test_one_very_large_aggregate_is_not_remembered_while_the_server_sees_the_usual_slope(scale: float, signal: float):
    policy = POLICIES["categorical"]
    mu = drawn(0, policy.size) / 10

    def jumping(t: int) -> np.ndarray:
        return np.float32(scale) * mu if t == 3 else mu

    strides = repeated(policy, jumping, lambda t: mu, 30, signal)
    moved = [size_of(stride.move) for stride in strides]
    assert max(moved[20:]) > 0.2 * moved[2]
    assert all(np.isfinite(np.asarray(leaf)).all() for stride in strides for leaf in stride)


@given(scales=st.lists(st.floats(-37, 37), min_size=3, max_size=3), signal=st.floats(-1, 1))
def test_whatever_is_sent_and_found_what_is_remembered_is_finite(scales: list[float], signal: float):
    policy = POLICIES["categorical"]
    theta, stride = first_of(policy), start(policy.size)
    for t, scale in enumerate(scales):
        own = Own(check=noise(t) * np.float32(10 ** scales[-1 - t]), states=OBSERVATIONS)
        theta, stride = step(policy, 0.35, theta, noise(t) * np.float32(10**scale), np.float32(signal), own, stride)
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in (theta, *stride))


def test_the_move_is_along_the_average_and_its_slope_is_that_of_the_average():
    policy = POLICIES["categorical"]
    theta = first_of(policy)
    last = start(policy.size, mean=noise(1), noise=0.5, signal=0.3)
    _, stride = step(policy, 0.35, theta, noise(2), np.float32(0.3), Own(check=noise(2), states=OBSERVATIONS), last)
    mean = np.float32(0.3) * noise(2) + np.float32(0.7) * noise(1)
    np.testing.assert_allclose(stride.mean, mean, rtol=1e-4)
    along, move = np.asarray(uncurved(policy, theta, mean)), np.asarray(stride.move)
    assert along @ move / size_of(along) / size_of(move) == pytest.approx(1.0, abs=1e-3)
    assert float(stride.slope) == pytest.approx(float(mean @ move), rel=1e-3)
    assert float(stride.noise) == pytest.approx(0.3**2 + 0.7**2 * 0.5, rel=1e-3)


def test_the_less_is_real_the_less_has_to_be_left():
    for signal in (1.0, 0.5, 0.1):
        last = start(1, 0.01, move=[1.0], slope=1.0, signal=signal, noise=1.0)
        assert float(following(last, np.array([0.35 * signal], np.float32), 0.35)) == pytest.approx(0.01, rel=1e-3)


def test_rounds_that_tell_nothing_of_the_signal_leave_it_as_it_was():
    policy = POLICIES["categorical"]
    theta, last = first_of(policy), start(policy.size, signal=0.4, mean=noise(0), noise=0.3)
    own = Own(check=noise(1), states=OBSERVATIONS)
    assert float(step(policy, 0.35, theta, noise(1), np.float32(np.nan), own, last)[1].signal) == pytest.approx(0.4)


def test_however_little_signal_is_found_there_is_a_step():
    """Where few agents are rewarded at first, most go along with nobody: without a least share it would end there."""
    policy = POLICIES["categorical"]
    theta, own = first_of(policy), Own(check=noise(1), states=OBSERVATIONS)
    for before in (0.02, -5.0):
        last = start(policy.size, signal=before, mean=noise(0), noise=0.05)
        _, stride = step(policy, 0.35, theta, noise(1), np.float32(-1.0), own, last)
        assert float(stride.signal) == pytest.approx(0.02)
        assert size_of(stride.move) > 0


def test_the_rate_that_is_remembered_falls_to_a_quarter_at_the_most():
    """After a round in which steps had to be short, it is not long before they may be longer again."""
    policy = POLICIES["categorical"]
    theta = first_of(policy)
    mu = np.asarray(curved(policy, theta, noise(1)))  # as gradients are, so that nothing is halved
    own = Own(check=mu, states=OBSERVATIONS)
    usual = float(step(policy, 0.35, theta, mu, ALL, own, start(policy.size))[1].rate)
    for before, after in ((40 * usual, 10 * usual), (2 * usual, usual)):
        last = start(policy.size, rate=before, mean=mu)
        found = float(step(policy, 0.35, theta, mu, ALL, own, last)[1].rate)
        assert found == pytest.approx(after, rel=1e-3)


def test_one_very_large_aggregate_does_not_stop_the_steps_after_it():
    policy = POLICIES["categorical"]
    mu = drawn(0, policy.size)

    def jumping(t: int) -> np.ndarray:
        return np.float32(1e30) * mu if t == 3 else mu

    moved = [size_of(stride.move) for stride in repeated(policy, jumping, jumping, 8)]
    assert max(moved[4:]) > 0.1 * moved[2]


def test_rounds_without_a_gradient_are_no_reason_for_doubt():
    policy = POLICIES["categorical"]
    nothing = np.zeros(policy.size, np.float32)
    mu = drawn(0, policy.size)
    strides = repeated(policy, lambda t: mu if t > 4 else nothing, lambda t: mu if t > 4 else nothing, 6)
    whole = repeated(policy, lambda t: mu, lambda t: mu, 1)
    assert size_of(strides[-1].move) == pytest.approx(size_of(whole[0].move), rel=0.3)
