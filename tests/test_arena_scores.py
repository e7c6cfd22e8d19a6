"""The arena's arithmetic: standings that can be checked by hand, and a search on landscapes that are known."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fedpg import SimulationError
from fedpg.arena.games import POINTS, Game, Ledger, Result, pairings_of
from fedpg.arena.matrix import Matrix
from fedpg.arena.players import HONEST, NOBODY, ONE, PLACE, SERVER, base_config, words_of
from fedpg.arena.search import SPACE, draws, mutations, search, unlike
from fedpg.arena.show import percent, standings_rows

BASE = base_config("CartPole-v1", agents=4, byzantine=1, trajectories=12)


# --- judging


def matrix() -> Matrix:
    gains = {
        (NOBODY, "mean"): [100.0, 200.0],
        (NOBODY, SERVER): [50.0, 100.0],
        (ONE, HONEST): [20.0, 40.0],
        (PLACE, HONEST): [90.0, 180.0],
        (NOBODY, "krum"): [80.0, 160.0],
        ("ipm", "mean"): [0.0, 0.0],
        ("alie", "mean"): [100.0, 140.0],
        ("ipm", "krum"): [75.0, 150.0],
        ("alie", "krum"): [60.0, 150.0],
    }
    return Matrix(("ipm", "alie"), ("mean", "krum"), (0, 1), {pair: np.array(x) for pair, x in gains.items()})


def test_defences_stand_by_their_worst_case():
    krum, mean = matrix().standings()
    assert (krum.defence, krum.by, mean.defence, mean.by) == ("krum", "alie", "mean", "ipm")
    assert krum.worst.value == pytest.approx(210 / 300)
    assert krum.scaled.value == pytest.approx(60 / 150)
    assert krum.average == pytest.approx((225 / 300 + 210 / 300) / 2)
    assert krum.honest.value == pytest.approx(0.8)
    assert mean.worst.value == 0
    assert mean.scaled.value == pytest.approx(-1)
    assert krum.worst.low == pytest.approx(0.6)
    assert krum.worst.high == pytest.approx(0.75)


def test_floor_and_ceiling_are_shares_of_the_honest_federation():
    shares = [score.value for score in matrix().references().values()]
    assert shares == pytest.approx([1.0, 0.9, 0.2, 0.5])


def test_where_the_honest_are_no_better_than_the_server_the_scale_has_no_meaning():
    gains = matrix().gains | {(NOBODY, SERVER): np.array([100.0, 200.0])}
    standing = matrix()._replace(gains=gains).standings()[0]
    assert np.isnan(standing.scaled.value)
    assert standings_rows(matrix()._replace(gains=gains))[0][3] == "-"


def test_one_seed_has_no_interval():
    one = matrix()._replace(seeds=(0,), gains={pair: x[:1] for pair, x in matrix().gains.items()})
    assert percent(one.share("ipm", "krum")) == "75%"
    assert percent(matrix().share("ipm", "krum")) == "75% [75, 75]"


# --- looking for a worse attack


def test_a_search_finds_the_worst_of_a_known_landscape(tmp_path: Path):
    """The damage of ipm grows with e up to 3; everything else is harmless."""
    ledger = Ledger(tmp_path, BASE)
    played: list[tuple[str, int]] = []

    def play(pairs: Sequence[tuple[str, str]], seeds: Sequence[int]) -> None:
        for seed in seeds:
            for attack, defence in pairs:
                if Game(attack, defence, seed) in ledger.results:
                    continue
                played.append((attack, seed))
                name, options = words_of(attack) if attack != NOBODY else (attack, ())
                e = next((float(o[2:]) for o in options if o.startswith("e=")), 0.0)
                learnt = 100 - (50 - 10 * abs(e - 3)) * (name == "ipm")
                result = Result(attack, defence, seed, "", learnt, (0.0,) * POINTS, 1, 0, None, 1, 1.0)
                ledger.results[result.game] = result

    found = search("krum", 60, [0, 1, 2], ledger, play, ["alie"])
    name, options = words_of(found[0][0])
    assert name == "ipm"
    assert 2 < float(options[0][2:]) < 4
    assert found[0][1] == pytest.approx(0.5, abs=0.1)
    assert [share for _, share in found] == sorted(share for _, share in found)
    assert len({attack for attack, seed in played if seed == 0}) == 60 + 1 + 1  # the budget, the known one, the honest
    before = len(played)
    assert search("krum", 60, [0, 1, 2], ledger, play, ["alie"]) == found
    assert len(played) == before, "a search that is repeated plays nothing again"


@pytest.mark.parametrize("budget", [20, 100])
def test_a_search_ends_where_the_worst_attacks_have_few_relatives(budget: int, tmp_path: Path):
    ledger = Ledger(tmp_path, BASE)

    def play(pairs: Sequence[tuple[str, str]], seeds: Sequence[int]) -> None:
        for seed in seeds:
            for attack, defence in pairs:
                learnt = 10 if attack.startswith(("trim", "avg-zero", "opt-ipm")) else 100
                result = Result(attack, defence, seed, "", learnt, (0.0,) * POINTS, 1, 0, None, 1, 1.0)
                ledger.results[result.game] = result

    assert search("krum", budget, [0], ledger, play)[0][1] == pytest.approx(0.1)


def test_a_search_where_the_honest_learn_nothing_says_so(tmp_path: Path):
    ledger = Ledger(tmp_path, BASE)

    def play(pairs: Sequence[tuple[str, str]], seeds: Sequence[int]) -> None:
        for attack, defence in pairs:
            result = Result(attack, defence, 0, "", -5.0, (0.0,) * POINTS, 1, 0, None, 1, 1.0)
            ledger.results[result.game] = result

    with pytest.raises(SimulationError, match="more --trajectories"):
        search("krum", 4, [0], ledger, play)


def test_a_child_of_an_attack_keeps_the_options_that_are_not_searched():
    child = next(mutations(np.random.default_rng(0), ["my:attack,a=1,b=x=y"], [1]))
    assert words_of(child)[1][:2] == ("a=1", "b=x=y")


def test_everything_that_a_search_draws_can_be_played():
    base = base_config("CartPole-v1", 10, 3, 1500)
    rng = np.random.default_rng(1)
    drawn = unlike(draws(rng, [1, 5]), [], 100)
    assert {words_of(attack)[0] for attack in drawn} == set(SPACE)
    children = unlike(mutations(rng, drawn, [1, 5]), drawn, 30)
    pairings_of(base, [(attack, "mean") for attack in drawn + children])
