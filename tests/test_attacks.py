"""Attacks and faults against their formulas, in both forms, and where they may act."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedpg
import probes
from fedpg import ATTACKS, Attack, ConfigError, Scene, make_config, make_problem
from fedpg.agents import answer, first_memory
from fedpg.attacks import as_attack, make_attack
from fedpg.problem import STATUSES

TENSORS = (slice(0, 6), slice(6, 8), slice(8, 20))
BYZANTINE = np.array([False, False, True, True, True])
GRADIENTS = np.random.default_rng(0).normal(size=(5, 20)).astype(np.float32)
# Tensors on different scales, so that "per tensor" can be told from "over the whole vector".
GRADIENTS[:, 6:8] *= 100
FORMS = ["paper", "released"]


def attack_of(name, form="paper", *options):
    return make_attack(name, form, options)


def sent(name, form="paper", *options, gradients=GRADIENTS, byzantine=BYZANTINE, seed=0):
    both_alike = name in ATTACKS and "form" not in inspect.signature(ATTACKS[name]).parameters
    lies = compiled_message(name, "paper" if both_alike else form, options)
    return np.asarray(lies(seed, gradients, byzantine), np.float64)


@functools.cache
def compiled_message(name, form, options):
    message = attack_of(name, form, *options).message
    mean = functools.partial(jnp.mean, axis=0)

    @jax.jit
    def lies(seed, gradients, byzantine):
        keys = jax.random.split(jax.random.key(seed), len(gradients))
        return message(Scene(keys, gradients, byzantine, TENSORS, mean))

    return lies


def per_tensor(function):
    return np.concatenate([np.broadcast_to(function(t), GRADIENTS[:, t].shape) for t in TENSORS], axis=1)


def test_released_random_noise_stays_within_three_spans_of_each_tensor():
    bound = per_tensor(lambda t: 3 * np.ptp(GRADIENTS[:, t], axis=1, keepdims=True))
    shares = np.stack([(sent("random-noise", "released", seed=seed) - GRADIENTS) / bound for seed in range(5)])
    assert np.abs(shares).max() <= 1 + 1e-5
    assert shares.min() < -0.95
    assert shares.max() > 0.95
    assert abs(shares.mean()) < 4 / np.sqrt(3 * shares.size)
    assert len(np.unique(shares.round(5))) > 0.99 * shares.size  # no two entries or agents share their noise


def test_random_noise_of_the_paper_is_a_random_vector_of_the_size_of_the_gradient():
    vectors = np.stack([sent("random-noise", "paper", seed=seed) for seed in range(20)])
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
    for part in [slice(0, 20)] if form == "paper" else TENSORS:
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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["fedpg-attack", "variance-attack"])
def test_who_knows_all_takes_the_honest_gradients_instead_of_the_colluders(name, form):
    """As if the honest agents were the colluders."""
    informed = sent(name, form, "knowledge=all", byzantine=~BYZANTINE)[~BYZANTINE]
    np.testing.assert_allclose(informed[0], sent(name, form)[BYZANTINE][0], rtol=1e-6)


def some_episodes():
    lengths = np.array([7, 3, 1, 0], np.int32)
    rewards = np.arange(1.0, 41.0, dtype=np.float32).reshape(10, 4)
    mask = np.arange(10)[:, None] < lengths
    blank = np.zeros((10, 4), np.int32)
    made = probes.trajectories(np.zeros((2, 10, 4), np.float32), blank, np.where(mask, rewards, 0.0), lengths)
    return jax.tree.map(np.asarray, made)


def believed(name):
    """(seed, episodes) -> the rewards that a Byzantine agent believes in."""
    rewards = attack_of(name).rewards
    return jax.jit(lambda seed, episodes: rewards(jax.random.key(seed), episodes))


def test_reward_flipping_negates_every_reward():
    episodes = some_episodes()
    np.testing.assert_array_equal(believed("reward-flipping")(0, episodes), -episodes.rewards)


def test_shuffled_rewards_permute_within_each_episode_and_leave_the_padding():
    episodes, rewards = some_episodes(), believed("shuffled-rewards")
    shuffled = [np.asarray(rewards(seed, episodes)) for seed in range(60)]
    mask = np.arange(10)[:, None] < episodes.lengths
    firsts = set()
    for each in shuffled:
        assert not each[~mask].any()
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
        ("nan", "not finite", "paper"),
        ("infinity", "not finite", "paper"),
        ("wrong-length", "wrong length", "released"),
        ("silence", "no answer", "released"),
    ],
)
def test_faults_arrive_with_their_status_and_the_others_with_theirs(name, status, form):
    problem = probes.tiny_problem(agents=5, byzantine=2, alpha=0.4, attack=attack_of(name, form))
    got = probes.answers(problem)(probes.broadcast(problem))
    assert [STATUSES[i] for i in got.status] == ["answered"] * 3 + [status] * 2
    assert np.isfinite(np.asarray(got.sent["gradient"])[:3]).all()


@pytest.fixture(scope="module")
def honest():
    """What the same agents answer in three rounds if all are honest."""
    problem = probes.tiny_problem(agents=5)
    run = probes.answers(problem)
    return {t: run(probes.broadcast(problem, t)) for t in (1, 2, 3)}


@pytest.mark.parametrize("name", ["sign-flipping", "reward-flipping", "random-action"])
def test_only_byzantine_agents_attack_and_only_from_their_start_on(name, honest):
    settings = {"attack": attack_of(name, "released"), "attack_start": 3}
    problem = probes.tiny_problem(agents=5, byzantine=2, alpha=0.4, **settings)
    run = probes.answers(problem)
    for t in (1, 2, 3):
        mine, theirs = (np.asarray(a.sent["gradient"]) for a in (run(probes.broadcast(problem, t)), honest[t]))
        np.testing.assert_allclose(mine[:3], theirs[:3], rtol=1e-5, atol=1e-6)
        if t < 3:
            np.testing.assert_allclose(mine[3:], theirs[3:], rtol=1e-5, atol=1e-6)
        else:
            assert np.all(np.abs(mine[3:] - theirs[3:]).max(axis=1) > 1e-3)
    factor = {"sign-flipping": -2.5, "reward-flipping": -1.0}.get(name)
    if factor:  # every estimator is linear in the message, and the paper's in the rewards
        np.testing.assert_allclose(mine[3:], factor * theirs[3:], rtol=1e-4, atol=1e-5)


def ten_times(scene):
    assert sum(t.stop - t.start for t in scene.tensors) == scene.gradients.shape[1]
    return 10 * scene.gradients


def test_a_users_own_function_decides_what_is_sent(honest):
    problem = probes.tiny_problem(agents=5, byzantine=2, alpha=0.4, attack=as_attack(ten_times))
    mine = np.asarray(probes.answers(problem)(probes.broadcast(problem)).sent["gradient"])
    theirs = np.asarray(honest[1].sent["gradient"])
    np.testing.assert_allclose(mine[3:], 10 * theirs[3:], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mine[:3], theirs[:3], rtol=1e-5, atol=1e-6)


def replay() -> Attack:
    """Sends the gradient of the round before; in the first round, zeros."""
    return Attack(
        recall=lambda memory, scene: (memory["last"], {"last": scene.gradients}),
        init=lambda agents, size: {"last": jnp.zeros((agents, size))},
    )


def test_an_attack_remembers_from_round_to_round(honest):
    problem = probes.tiny_problem(agents=5, byzantine=2, alpha=0.4, attack=replay())
    memory = first_memory(problem, 5)
    theirs = {t: np.asarray(honest[t].sent["gradient"]) for t in (1, 2, 3)} | {0: np.zeros_like(GRADIENTS[:, :17])}
    for t in (1, 2, 3):
        got, memory = answer(problem, probes.broadcast(problem, t), memory, np.arange(5))
        mine = np.asarray(got.sent["gradient"])
        np.testing.assert_allclose(mine[:3], theirs[t][:3], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mine[3:], theirs[t - 1][3:], rtol=1e-5, atol=1e-6)
    assert np.abs(theirs[2] - theirs[1]).max() > 1e-3


def test_a_users_own_attack_by_the_path_of_its_module(tmp_path, monkeypatch):
    (tmp_path / "my_attacks.py").write_text(
        "from fedpg import Attack\n"
        "def half(scene):\n    return scene.gradients / 2\n"
        "def scaled(scale=1.0):\n    return Attack(message=lambda scene: scale * scene.gradients)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    scene = Scene(np.zeros((len(GRADIENTS), 2), np.uint32), GRADIENTS, BYZANTINE, TENSORS)
    np.testing.assert_allclose(make_attack("my_attacks:half").message(scene), GRADIENTS / 2)
    # With options, it is a function that makes the attack.
    np.testing.assert_allclose(make_attack("my_attacks:scaled", options=["scale=4"]).message(scene), GRADIENTS * 4)
    with pytest.raises(ConfigError, match="no parameter 'size': its parameters are scale"):
        make_attack("my_attacks:scaled", options=["size=4"])
    for path in ("my_attacks:third", "no_such_module:half"):
        with pytest.raises(ConfigError, match=path):
            make_attack(path)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(20,), (2, 17), (5, 16)])
def test_a_wrong_shape_from_a_users_attack_is_an_error_that_names_both_shapes(shape):
    with pytest.raises(ConfigError, match=r"attack returned \(.*must return.*\(5, 17\)"):
        fedpg.train(
            probes.tiny_environment(),
            agents=5,
            byzantine=2,
            alpha=0.4,
            attack=lambda scene: jnp.zeros(shape),
            hidden=(3,),
            algorithm="gpomdp",  # whose steps are compiled soonest
            batch=(3, 3),
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
    np.testing.assert_allclose(sent(name, "released", option)[BYZANTINE], wanted[BYZANTINE], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("sign-flipping", "scal=4", "no parameter 'scal': its parameters are scale"),
        ("zero-gradient", "scale=4", "no parameter 'scale': it has no parameters"),
        ("sign-flipping", "scale=big", "scale must be a number, not 'big'"),
        ("sign-flipping", "scale", "scale must be a number, not ''"),
        ("sign-flipping", "form=1", "no parameter 'form'"),
        ("random-noise", "form=1", "no parameter 'form': its parameters are scale"),  # a setting of its own
    ],
)
def test_wrong_attack_options_are_errors_that_say_what_is_right(name, option, message):
    with pytest.raises(ConfigError, match=message):
        attack_of(name, "paper", option)


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
    assert any(part is not None for part in (attack.act, attack.rewards, attack.message, attack.recall, attack.length))
    if attack.message is not None:
        assert not np.array_equal(sent(name, form)[BYZANTINE], GRADIENTS[BYZANTINE].astype(np.float64))
