"""Attacks and faults against their formulas, in both forms, and where they may act."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpg
import probes
from fedpg import ATTACKS, Attack, ConfigError, make_config
from fedpg.agents import STATUSES, make_problem
from fedpg.attacks import as_attack, make_attack
from fedpg.trajectories import Trajectories

TENSORS = (slice(0, 6), slice(6, 8), slice(8, 20))
BYZANTINE = np.array([False, False, True, True, True])
GRADIENTS = np.random.default_rng(0).normal(size=(5, 20)).astype(np.float32)
# Tensors on different scales, so that "per tensor" can be told from "over the whole vector".
GRADIENTS[:, 6:8] *= 100
FORMS = ["text", "figures"]


def attack_of(name, form="text", *options):
    return make_attack(make_config(attack=name, attack_form=form, attack_options=options))


def sent(name, form="text", *options, gradients=GRADIENTS, byzantine=BYZANTINE, seed=0):
    message = compiled_message(name, form, options)
    return np.asarray(message(jax.random.split(jax.random.key(seed), len(gradients)), gradients, byzantine), np.float64)


@functools.cache
def compiled_message(name, form, options):
    message = attack_of(name, form, *options).message
    return jax.jit(lambda keys, gradients, byzantine: message(keys, gradients, byzantine, TENSORS))


def per_tensor(function):
    return np.concatenate([np.broadcast_to(function(t), GRADIENTS[:, t].shape) for t in TENSORS], axis=1)


def test_random_noise_in_figures_stays_within_three_spans_of_each_tensor():
    bound = per_tensor(lambda t: 3 * np.ptp(GRADIENTS[:, t], axis=1, keepdims=True))
    shares = np.stack([(sent("random-noise", "figures", seed=seed) - GRADIENTS) / bound for seed in range(5)])
    assert np.abs(shares).max() <= 1 + 1e-5
    assert shares.min() < -0.95
    assert shares.max() > 0.95
    assert abs(shares.mean()) < 4 / np.sqrt(3 * shares.size)
    assert len(np.unique(shares.round(5))) > 0.99 * shares.size  # no two entries or agents share their noise


def test_random_noise_in_the_text_is_a_random_vector_of_the_size_of_the_gradient():
    vectors = np.stack([sent("random-noise", "text", seed=seed) for seed in range(20)])
    standard = vectors / (3 * np.sqrt((GRADIENTS**2).mean(axis=1, keepdims=True)))
    assert abs(standard.mean()) < 4 / np.sqrt(standard.size)
    assert abs(standard.std() - 1) < 4 / np.sqrt(2 * standard.size)
    assert abs((standard * np.sign(GRADIENTS)).mean()) < 4 / np.sqrt(standard.size)


@pytest.mark.parametrize("form", FORMS)
def test_sign_flipping_sends_minus_two_and_a_half_times_the_gradient(form):
    np.testing.assert_allclose(sent("sign-flipping", form), -2.5 * GRADIENTS, rtol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_zero_gradient_sends_zeros(form):
    assert not sent("zero-gradient", form).any()


@pytest.mark.parametrize("form", FORMS)
def test_the_fedpg_attack_sends_the_mean_moved_by_three_sigma_bar(form):
    lies, again = (sent("fedpg-attack", form, seed=seed)[BYZANTINE] for seed in (0, 1))
    assert np.all(lies == lies[0])  # they collude
    mine = GRADIENTS[BYZANTINE].astype(np.float64)
    shift = lies[0] - mine.mean(axis=0)
    for part in [slice(0, 20)] if form == "text" else TENSORS:
        sigma = max(np.linalg.norm(a - b) for a in mine[:, part] for b in mine[:, part]) / 2
        assert np.linalg.norm(shift[part]) == pytest.approx(3 * sigma, rel=1e-4)
    other = again[0] - mine.mean(axis=0)
    assert abs(shift @ other) < 0.99 * np.linalg.norm(shift) * np.linalg.norm(other)  # another direction each time


@pytest.mark.parametrize("form", FORMS)
def test_the_fedpg_attack_of_a_single_attacker_is_its_own_gradient(form):
    alone = np.array([False] * 4 + [True])
    np.testing.assert_allclose(sent("fedpg-attack", form, byzantine=alone)[4], GRADIENTS[4], rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_the_variance_attack_shifts_the_colluders_mean_by_a_share_of_their_deviation(form):
    mine = GRADIENTS[BYZANTINE].astype(np.float64)
    expected = mine.mean(axis=0) - 0.18 * mine.std(axis=0)
    for row in sent("variance-attack", form)[BYZANTINE]:
        np.testing.assert_allclose(row, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["fedpg-attack", "variance-attack"])
def test_colluders_know_nothing_of_the_honest(name):
    others = np.where(BYZANTINE[:, None], GRADIENTS, 1e3).astype(np.float32)
    np.testing.assert_array_equal(sent(name, gradients=others)[BYZANTINE], sent(name)[BYZANTINE])


def some_episodes():
    lengths = jnp.array([7, 3, 1, 0])
    rewards = jnp.arange(1.0, 41.0).reshape(10, 4)
    mask = jnp.arange(10)[:, None] < lengths
    return Trajectories(jnp.zeros((2, 10, 4)), jnp.zeros((10, 4), jnp.int32), jnp.where(mask, rewards, 0.0), lengths)


def test_reward_flipping_negates_every_reward():
    episodes = some_episodes()
    assert jnp.array_equal(attack_of("reward-flipping").rewards(jax.random.key(0), episodes), -episodes.rewards)


def test_shuffled_rewards_permute_within_each_episode_and_leave_the_padding():
    episodes, rewards = some_episodes(), attack_of("shuffled-rewards").rewards
    shuffled = [np.asarray(rewards(jax.random.key(seed), episodes)) for seed in range(60)]
    firsts = set()
    for each in shuffled:
        assert not each[~np.asarray(episodes.mask)].any()
        for i, n in enumerate(episodes.lengths.tolist()):
            assert sorted(each[:n, i]) == sorted(episodes.rewards[:n, i].tolist())
        firsts.add(each[0, 0])
    assert len(firsts) == 7  # each reward of an episode can come first
    first, second = (np.stack([each[:3, i] for each in shuffled]) for i in (0, 1))
    assert len(np.unique(first, axis=0)) > 3
    assert len(np.unique(second, axis=0)) > 3


@pytest.mark.parametrize(
    ("name", "status", "form"),
    [
        ("nan", "not finite", "text"),
        ("infinity", "not finite", "text"),
        ("wrong-length", "wrong length", "figures"),
        ("silence", "no answer", "figures"),
    ],
)
def test_faults_arrive_with_their_status_and_the_others_with_theirs(name, status, form):
    problem = probes.tiny_problem(agents=5, byzantine=2, alpha=0.4, attack=attack_of(name, form))
    replies = probes.answers(problem)(probes.broadcast(problem)).replies
    assert [STATUSES[i] for i in replies.status] == ["answered"] * 3 + [status] * 2
    assert np.isfinite(replies.gradients[:3]).all()


@pytest.fixture(scope="module")
def honest():
    """What the same agents answer in three rounds if all are honest."""
    problem = probes.tiny_problem(agents=5)
    run = probes.answers(problem)
    return {t: run(probes.broadcast(problem, t)) for t in (1, 2, 3)}


@pytest.mark.parametrize("name", ["sign-flipping", "reward-flipping", "random-action"])
def test_only_byzantine_agents_attack_and_only_from_their_start_on(name, honest):
    settings = {"attack": attack_of(name, "figures"), "attack_start": 3}
    problem = probes.tiny_problem(agents=5, byzantine=2, alpha=0.4, **settings)
    run = probes.answers(problem)
    for t in (1, 2, 3):
        mine, theirs = (np.asarray(a.replies.gradients) for a in (run(probes.broadcast(problem, t)), honest[t]))
        np.testing.assert_allclose(mine[:3], theirs[:3], rtol=1e-5, atol=1e-6)
        if t < 3:
            np.testing.assert_allclose(mine[3:], theirs[3:], rtol=1e-5, atol=1e-6)
        else:
            assert np.all(np.abs(mine[3:] - theirs[3:]).max(axis=1) > 1e-3)
    factor = {"sign-flipping": -2.5, "reward-flipping": -1.0}.get(name)
    if factor:  # every estimator is linear in the message, and those of the text in the rewards
        np.testing.assert_allclose(mine[3:], factor * theirs[3:], rtol=1e-4, atol=1e-5)


def ten_times(keys, gradients, byzantine, tensors):
    assert sum(t.stop - t.start for t in tensors) == gradients.shape[1]
    return 10 * gradients


def test_a_users_own_function_decides_what_is_sent(honest):
    problem = probes.tiny_problem(agents=5, byzantine=2, alpha=0.4, attack=as_attack(ten_times))
    mine = probes.answers(problem)(probes.broadcast(problem)).replies.gradients
    theirs = np.asarray(honest[1].replies.gradients)
    np.testing.assert_allclose(mine[3:], 10 * theirs[3:], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mine[:3], theirs[:3], rtol=1e-5, atol=1e-6)


def test_a_users_own_function_by_the_path_of_its_module(tmp_path, monkeypatch):
    (tmp_path / "my_attacks.py").write_text(
        "def half(keys, gradients, byzantine, tensors):\n    return gradients / 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    message = make_attack(make_config(attack="my_attacks:half")).message
    np.testing.assert_allclose(
        message(jax.random.split(jax.random.key(0), len(GRADIENTS)), GRADIENTS, BYZANTINE, TENSORS), GRADIENTS / 2
    )
    for path in ("my_attacks:third", "no_such_module:half"):
        with pytest.raises(ConfigError, match=path):
            make_attack(make_config(attack=path))


@pytest.mark.parametrize("shape", [(20,), (2, 17), (5, 16)])
def test_a_wrong_shape_from_a_users_attack_is_an_error_that_names_both_shapes(shape, tmp_path):
    with pytest.raises(ValueError, match=r"attack returned \(.*must return.*\(5, 17\)"):
        fedpg.train(
            agents=5,
            byzantine=2,
            alpha=0.4,
            attack=lambda keys, gradients, byzantine, tensors: jnp.zeros(shape),
            hidden=(3,),
            environment=probes.tiny_environment(),
            out=tmp_path / "run",
        )


def test_an_attack_that_is_neither_function_nor_attack_is_refused():
    attack = Attack(length=lambda size: 0)
    assert as_attack(attack) is attack
    with pytest.raises(ConfigError, match="not 3"):
        as_attack(3)


@pytest.mark.parametrize(
    ("name", "option", "expected"),
    [
        ("sign-flipping", "scale=4", lambda: -4 * GRADIENTS),
        ("variance-attack", "z=2", lambda: GRADIENTS[BYZANTINE].mean(0) - 2 * GRADIENTS[BYZANTINE].std(0)),
        ("random-noise", "scale=0", lambda: GRADIENTS),
        ("fedpg-attack", "scale=0", lambda: GRADIENTS[BYZANTINE].mean(0)),
    ],
)
def test_attack_options_set_the_parameters(name, option, expected):
    wanted = np.broadcast_to(expected(), GRADIENTS.shape)
    np.testing.assert_allclose(sent(name, "figures", option)[BYZANTINE], wanted[BYZANTINE], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("sign-flipping", "scal=4", "no parameter 'scal': its parameters are scale"),
        ("zero-gradient", "scale=4", "no parameter 'scale': it has no parameters"),
        ("sign-flipping", "scale=big", "name=number, not 'scale=big'"),
        ("sign-flipping", "scale", "name=number, not 'scale'"),
        ("sign-flipping", "form=text", "no parameter 'form'"),
        ("my_attacks:half", "scale=4", "attack_options are for built-in attacks"),
    ],
)
def test_wrong_attack_options_are_errors_that_say_what_is_right(name, option, message):
    with pytest.raises(ConfigError, match=message):
        attack_of(name, "text", option)


@pytest.mark.parametrize(
    ("typed", "meant"), [("sign-fliping", "sign-flipping"), ("Random-Noise", "random-noise"), ("silent", "silence")]
)
def test_an_unknown_attack_names_the_nearest(typed, meant):
    with pytest.raises(ConfigError, match=f"did you mean {meant}") as error:
        make_problem(make_config(attack=typed))
    assert all(name in str(error.value) for name in ATTACKS)


@pytest.mark.parametrize("name", list(ATTACKS))
@pytest.mark.parametrize("form", FORMS)
def test_every_attack_changes_something(name, form):
    attack = attack_of(name, form)
    assert any(part is not None for part in attack)
    if attack.message is not None:
        assert not np.array_equal(sent(name, form)[BYZANTINE], GRADIENTS[BYZANTINE].astype(np.float64))
