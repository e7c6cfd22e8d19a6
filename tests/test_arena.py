"""The arena: games are played once, kept whatever happens, and judged by arithmetic that can be checked by hand."""

import dataclasses
import functools
import gc
import json
import threading
from pathlib import Path

import numpy as np
import pytest

from fedpg import Attack, ConfigError, SimulationError, StorageError
from fedpg.aggregators import Aggregator, decide
from fedpg.arena import games as games_of
from fedpg.arena import players
from fedpg.arena.games import Cast, Game, Ledger, Pairing, Pairings, missing, pairings_of, path_of, play_all, result_of
from fedpg.arena.matrix import matrix_of
from fedpg.arena.players import (
    ATTACKS,
    DEFENCES,
    HONEST,
    NOBODY,
    ONE,
    PLACE,
    base_config,
    pairs_of,
    settings_of,
    words_of,
)
from fedpg.arena.section import arenas, sections
from fedpg.arena.show import heat_map
from fedpg.arena.verify import old_games, sample_of, verify
from fedpg.cli import main
from fedpg.cli.arena import playable
from fedpg.experiments import fingerprint as fingerprint_module
from fedpg.experiments.fingerprint import fingerprint
from fedpg.tasks.simulators import EnvPoolSimulator

SHORT = {"batch": (3, 3), "minibatch": 2, "horizon": 20, "test_horizon": 20, "test_episodes": 2, "sigma": "auto"}
BASE = base_config("CartPole-v1", agents=4, byzantine=1, trajectories=12, **SHORT)


def quiet(game: Game, share: float) -> None:
    """Nobody looks."""


def silent_rule() -> Aggregator:
    """A user's own: accepts nobody."""
    return Aggregator(lambda memory, sent, own: (decide(sent, sent.vectors[0], sent.valid & False), memory))


def own_attack() -> Attack:
    """A user's own: -100 times the gradient."""
    return Attack(message=lambda scene: -100 * scene.gradients)


# --- who plays


def test_a_player_is_a_name_and_its_options():
    assert words_of("ipm") == ("ipm", ())
    assert words_of("min-max,direction=sign, knowledge=all") == ("min-max", ("direction=sign", "knowledge=all"))
    for wrong in ("", "ipm,0.5", ",e=1"):
        with pytest.raises(ConfigError, match="name or name,option=value"):
            words_of(wrong)


@pytest.mark.slow
def test_every_attack_and_defence_of_the_arena_can_be_made_and_differs_from_the_others():
    base = base_config("CartPole-v1", 10, 2, 1500)
    problems = pairings_of(base, list(dict.fromkeys(pairs_of(ATTACKS, DEFENCES[:1]) + [(NOBODY, d) for d in DEFENCES])))
    configs = {dataclasses.replace(p.problem.config, trajectories=1) for p in problems.values()}
    assert len(configs) == len(problems)
    assert len(ATTACKS) >= 24
    assert len(DEFENCES) >= 20


def test_the_references_are_honest_and_as_many_as_they_say():
    place, one, honest = (settings_of(BASE, who, HONEST) for who in (PLACE, ONE, NOBODY))
    assert [c.agents for c in (place, one, honest)] == [3, 1, 4]
    assert {c.byzantine for c in (place, one, honest)} == {0}
    assert {c.aggregator for c in (place, one, honest)} == {"mean"}
    assert settings_of(BASE, "sign-flipping,scale=1,start=7", "fedpg").attack_start == 7


@pytest.mark.parametrize(
    ("attack", "defence", "words"),
    [
        ("sign-flippin", "mean", "sign-flipping"),
        ("sign-flipping,scal=1", "mean", "scale"),
        ("sign-flipping,start=x", "mean", "number of a round"),
        ("sign-flipping,start=999", "mean", "after the last round"),
        ("sign-flipping", "krumm", "krum"),
        ("sign-flipping", "trimmed-mean,f=2", "trimmed-mean"),
    ],
)
def test_what_cannot_be_played_is_an_error_before_the_first_game(attack: str, defence: str, words: str):
    with pytest.raises(ConfigError, match=words):
        pairings_of(BASE, [(attack, defence)])


# --- playing


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    return pairs_of(["sign-flipping", "test_arena:own_attack"], ["mean", "test_arena:silent_rule"])


@pytest.fixture(scope="module")
def pairings(pairs: list[tuple[str, str]]) -> Pairings:
    """Ready to be played, and compiled once."""
    return pairings_of(BASE, pairs)


@pytest.fixture(scope="module")
def played(pairs: list[tuple[str, str]], pairings: Pairings, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    ledger = Ledger(tmp_path_factory.mktemp("arena"), BASE)
    games = missing(ledger, pairs, [0, 1])
    assert len(games) == 2 * len(pairs) == 2 * 9
    assert play_all(games, pairings, ledger, Path("unused"), threading.Event(), quiet) == len(games)
    return ledger


@pytest.mark.slow
def test_what_was_played_is_on_disk_and_not_played_again(played: Ledger, pairs: list[tuple[str, str]]):
    again = Ledger(played.path.parent.parent, BASE)
    assert again.results == played.results
    assert missing(again, pairs, [0, 1]) == []
    assert missing(again, pairs, [0, 1, 2]) == [Game(*pair, 2) for pair in pairs]


@pytest.mark.slow
def test_a_rule_that_accepts_nobody_learns_nothing(played: Ledger):
    result = played.results[Game("sign-flipping", "test_arena:silent_rule", 0)]
    assert result.honest_kept == result.byzantine_kept == 0.0
    # It is tested in other episodes every round, but it is the same policy: returns of at most 20 steps.
    assert result.area == pytest.approx(result.curve[0], abs=8)
    assert played.results[Game("sign-flipping", "mean", 0)].byzantine_kept == 1.0


@pytest.mark.slow
def test_games_of_other_code_are_played_again(played: Ledger, pairs: list[tuple[str, str]], tmp_path: Path):
    ledger = Ledger(tmp_path, BASE)
    ledger.results = dict(played.results)
    game = Game("sign-flipping", "mean", 0)
    ledger.results[game] = dataclasses.replace(ledger.results[game], code="old")
    assert missing(ledger, pairs, [0, 1]) == [game]


@pytest.mark.slow
@pytest.mark.parametrize("same", [True, False])
def test_of_games_of_other_code_a_sample_speaks_for_all_if_it_comes_out_the_same(
    same: bool, played: Ledger, pairs: list[tuple[str, str]], pairings: Pairings, tmp_path: Path
):
    ledger = Ledger(tmp_path, BASE)
    ledger.results = {g: dataclasses.replace(r, code="old") for g, r in played.results.items()}
    games = old_games(ledger, pairs, [0, 1])
    assert len(games) == len(played.results) > len(sample_of(games))
    for who in ("attack", "defence"):
        assert {getattr(g, who) for g in sample_of(games)} == {getattr(g, who) for g in games}
    other = sample_of(games)[1]
    if not same:
        ledger.results[other] = dataclasses.replace(ledger.results[other], area=ledger.results[other].area + 1e-3)
    count, different = verify(ledger, games, pairings, Path("unused"), threading.Event(), quiet)
    assert (count, different) == (len(sample_of(games)), [] if same else [other])
    left = missing(Ledger(tmp_path, BASE), pairs, [0, 1])
    assert len(left) == (0 if same else len(games) - count)


def test_a_defence_may_have_agents_who_average_over_rounds():
    base = base_config("CartPole-v1", agents=4, byzantine=1, trajectories=12, **(SHORT | {"algorithm": "fedpg-br"}))
    config = settings_of(base, "ipm", "nnm+krum,momentum=0.9,krum.f=0")
    assert (config.momentum, config.aggregator_options) == (0.9, ("krum.f=0",))
    assert settings_of(base, "ipm", "krum").momentum == 0
    with pytest.raises(ConfigError, match="remembers the rounds before in its own way"):
        settings_of(BASE, "ipm", "krum,momentum=0.9")
    with pytest.raises(ConfigError, match="momentum must be a number"):
        settings_of(base, "ipm", "krum,momentum=much")


@pytest.mark.slow
def test_a_stop_keeps_what_was_played_and_the_rest_is_played_later(
    played: Ledger, pairs: list[tuple[str, str]], pairings: Pairings, tmp_path: Path
):
    ledger, stop = Ledger(tmp_path, BASE), threading.Event()

    def report(game: Game, share: float) -> None:
        if share >= 1 and len(ledger.results) >= 3:
            stop.set()

    games = missing(ledger, pairs, [0])
    done = play_all(games, pairings, ledger, Path("unused"), stop, report)
    assert 3 <= done < len(games)
    again = Ledger(tmp_path, BASE)
    left = missing(again, pairs, [0])
    assert len(left) == len(games) - done
    play_all(left, pairings, again, Path("unused"), threading.Event(), quiet)
    for game in games:
        assert again.results[game].curve == pytest.approx(played.results[game].curve)


@pytest.mark.slow
def test_an_error_in_a_game_is_raised_and_the_others_are_kept(pairings: Pairings, tmp_path: Path):
    ledger = Ledger(tmp_path, BASE)
    problems = dict(pairings)
    problem, code = problems["sign-flipping", "mean"]
    broken = problem.aggregator._replace(update=lambda memory, sent, own: 1 / 0)
    problems["sign-flipping", "mean"] = Pairing(problem._replace(aggregator=broken), code)
    games = [Game(NOBODY, "mean", 0), Game("sign-flipping", "mean", 0)]
    with pytest.raises(ZeroDivisionError):
        play_all(games, problems, ledger, Path("unused"), threading.Event(), quiet)
    assert set(Ledger(tmp_path, BASE).results) <= {Game(NOBODY, "mean", 0)}


def test_a_file_that_is_no_arena_is_refused_and_left_as_it_is(tmp_path: Path):
    path = path_of(tmp_path, BASE)
    path.parent.mkdir()
    good = {"format": games_of.FORMAT, "settings": {}, "games": [], "casts": []}
    for text in ("", "{", "[]", json.dumps(good | {"format": "x"}), json.dumps(good | {"games": [{"area": 1}]})):
        path.write_text(text)
        with pytest.raises(StorageError, match=r"damaged|no arena|another|is of the format"):
            Ledger(tmp_path, BASE)
        assert path.read_text() == text


@pytest.mark.slow
def test_two_processes_may_add_to_one_file(played: Ledger, tmp_path: Path):
    one, other = Ledger(tmp_path, BASE), Ledger(tmp_path, BASE)
    first, second = (played.results[Game("sign-flipping", "mean", seed)] for seed in (0, 1))
    one.add(first, at_once=True)
    other.add(second, at_once=True)
    one.save(Cast(("sign-flipping",), ("mean",), (0,)))
    again = Ledger(tmp_path, BASE)
    assert again.results == {first.game: first, second.game: second}
    assert again.casts == [Cast(("sign-flipping",), ("mean",), (0,))]


def test_the_same_game_under_two_names_is_refused():
    with pytest.raises(ConfigError, match="the same game"):
        pairings_of(BASE, [("sign-flipping", "mean"), ("sign-flipping,start=1", "mean")])


def wrong_rule() -> Aggregator:
    """A user's own, which returns a vector that is too short."""
    return Aggregator(lambda memory, sent, own: (decide(sent, sent.vectors[0, :1], sent.valid), memory))


def test_a_rule_of_the_wrong_form_is_refused_before_the_first_game():
    with pytest.raises(ConfigError, match="gradient must be an array of shape"):
        pairings_of(BASE, [(NOBODY, "test_arena:wrong_rule")])


def test_ones_own_rule_that_changed_is_played_again(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    config, codes = settings_of(BASE, NOBODY, "own_arena_rule:rule"), []
    for text in ("rule = 1", "rule = 1  # a remark", "rule = 2"):
        (tmp_path / "own_arena_rule.py").write_text(text)
        codes.append(fingerprint_module._digest.__wrapped__((), (config.aggregator,)))
    assert codes[0] == codes[1] != codes[2]


def test_a_return_that_is_no_number_is_an_error_that_names_the_game(pairings: Pairings):
    problem = pairings["sign-flipping", "mean"].problem
    played = games_of._play(problem, 0, threading.Event(), lambda share: None)
    assert played is not None
    records, _ = played
    records.tests[-1] = np.array([np.nan])
    with pytest.raises(SimulationError, match="sign-flipping against mean, seed 0"):
        result_of(Game("sign-flipping", "mean", 0), "", records)


@pytest.mark.simulators
def test_a_game_that_takes_minutes_goes_on_from_its_checkpoint(tmp_path: Path):
    base = base_config("Acrobot-v1", 4, 1, 12, **(SHORT | {"hidden": (4,)}))
    pairings = pairings_of(base, [("sign-flipping", "mean")])
    game, stop, shares = Game("sign-flipping", "mean", 0), threading.Event(), []

    def stopping(game: Game, share: float) -> None:
        shares.append(share)
        stop.set()

    ledger = Ledger(tmp_path, base)
    assert play_all([game], pairings, ledger, tmp_path / "runs", stop, stopping) == 0
    assert 0 < shares[0] < 1
    assert list((tmp_path / "runs").rglob("checkpoint.safetensors"))
    assert play_all([game], pairings, ledger, tmp_path / "runs", threading.Event(), quiet) == 1
    assert not list((tmp_path / "runs").rglob("checkpoint.safetensors"))
    whole = Ledger(tmp_path / "whole", base)
    play_all([game], pairings, whole, tmp_path / "other", threading.Event(), quiet)
    assert whole.results[game].curve == ledger.results[game].curve


@pytest.mark.simulators
@pytest.mark.slow
def test_the_simulators_of_a_game_end_with_it(tmp_path: Path):
    pytest.importorskip("envpool", reason="no EnvPool here: there are no pools to be kept")
    base = base_config("InvertedPendulum-v5", 4, 1, 12, **(SHORT | {"hidden": (4,)}))
    pairs = [("sign-flipping", "mean"), ("sign-flipping", "median")]
    pairings, ledger = pairings_of(base, pairs), Ledger(tmp_path, base)
    most = []

    def count(game: Game, share: float) -> None:
        most.append(len(pools()))

    before = pools()
    assert (
        play_all([Game(*pair, 0) for pair in pairs], pairings, ledger, tmp_path / "runs", threading.Event(), count) == 2
    )
    assert max(most) > len(before)
    assert pools() <= before


def pools() -> set[int]:
    """All of EnvPool that are alive."""
    gc.collect()
    return {id(found) for found in gc.get_objects() if isinstance(found, EnvPoolSimulator)}


# --- what came of it


@pytest.mark.slow
def test_a_matrix_is_made_of_the_area_above_the_untrained_policy(played: Ledger):
    found = matrix_of(played.results, ["sign-flipping"], ["mean"], [0, 1])
    result = played.results[Game("sign-flipping", "mean", 1)]
    assert found.gains["sign-flipping", "mean"][1] == pytest.approx(result.area - result.curve[0])
    assert heat_map(found, "title").startswith(b"\x89PNG")


# --- the command


@pytest.mark.slow
def test_the_command_plays_prints_and_draws_and_then_only_prints(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(players, "base_config", functools.partial(base_config, **SHORT))
    words = ["arena", "--agents", "4", "--byzantine", "1", "--trajectories", "12", "--seeds", "0"]
    words += ["--attacks", "sign-flipping", "--defences", "mean", "fedpg"]
    assert main(words) == 0
    first = capsys.readouterr().out
    assert "defences by their worst case" in first
    assert "the server alone" in first
    (picture,) = (tmp_path / "results/arena").glob("*.png")
    drawn = picture.read_bytes()
    monkeypatch.setattr(games_of, "_play", None)
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[-20:] == first.splitlines()[-20:]
    assert main(words[:-1]) == 0  # a part of it has a picture of its own
    assert capsys.readouterr().out.splitlines()[-1].endswith("-part.png")
    assert picture.read_bytes() == drawn
    blocks = list(sections(tmp_path / "results", tmp_path / "results"))
    assert [type(block).__name__ for block in blocks[-3:]] == ["Pictures", "Table", "Table"]
    assert not any("another version" in str(block) for block in blocks)
    (arena,) = arenas(tmp_path / "results")
    assert (arena.old, len(arena.played)) == (0, len(arena.games))
    other = {game: dataclasses.replace(result, code="before") for game, result in arena.games.items()}
    assert arena._replace(games=other).old == len(other)


@pytest.mark.slow
def test_defences_that_so_few_agents_cannot_have_are_left_out_by_default():
    said: list[str] = []
    found = playable(base_config("CartPole-v1", 3, 1, 1500), DEFENCES, said.append)
    assert "krum" not in found
    assert "compass" in found
    assert any("krum needs at least 4" in line for line in said)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--byzantine", "0"], "nothing to defend"),
        (["--byzantine", "5"], "fewer than half"),
        (["--attacks", "ipm", "ipm"], "twice"),
        (["--seeds", "x"], "seeds"),
        (["--seeds", "0,0"], "give each once"),
        (["--search", "-1"], "search"),
        (["--search", "5"], "--defences"),
        (["--defences", "no_such"], "no_such"),
    ],
)
def test_bad_words_are_errors_that_say_what_is_right(words: list[str], message: str, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["arena", *words]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_fingerprint_of_a_game_is_that_of_its_settings(played: Ledger):
    for game, result in played.results.items():
        assert result.code == fingerprint(settings_of(BASE, game.attack, game.defence))


@pytest.mark.slow
def test_the_curve_of_a_game_begins_with_the_untrained_policy(played: Ledger):
    starts = {r.curve[0] for g, r in played.results.items() if g.seed == 0 and g.attack not in (ONE, PLACE)}
    assert len(starts) == 1
    assert np.isfinite([r.area for r in played.results.values()]).all()
