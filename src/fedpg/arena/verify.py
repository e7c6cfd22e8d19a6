"""Games by another version of the code: whether a sample of them comes out the same."""

import dataclasses
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedpg.arena.games import Game, Ledger, Pairings, Report, play_all

MORE = 0.03
"""Of the games that nothing else asks for, such a share is played again as well."""


def sample_of(games: Sequence[Game]) -> list[Game]:
    """At least one game of every attack and one of every defence, and some more."""
    rng = np.random.default_rng(0)
    chosen: list[Game] = []
    attacks: set[str] = set()
    defences: set[str] = set()
    for i in rng.permutation(len(games)):
        game = games[i]
        if game.attack not in attacks or game.defence not in defences or rng.random() < MORE:
            chosen.append(game)
            attacks.add(game.attack)
            defences.add(game.defence)
    return chosen


def old_games(ledger: Ledger, pairs: Sequence[tuple[str, str]], seeds: Sequence[int]) -> list[Game]:
    """Those of the games that have been played, by another version of the code."""
    wanted = [Game(*pair, seed) for seed in seeds for pair in pairs]
    return [game for game in wanted if game in ledger.results and not ledger.current(game)]


def verify(
    ledger: Ledger, games: Sequence[Game], pairings: Pairings, runs: Path, stop: threading.Event, report: Report
) -> tuple[int, list[Game]]:
    """Play a sample of old games again: (how many were, those that came out otherwise).

    If none did, all these games count as played by the code as it is.
    """
    sample = sample_of(games)
    before = {game: ledger.results[game] for game in sample}
    played = play_all(sample, pairings, ledger, runs, stop, report)
    if played < len(sample):
        return played, []
    now = ledger.results
    different = [g for g in sample if (now[g].area, now[g].curve) != (before[g].area, before[g].curve)]
    if not different:
        for game in games:
            ledger.add(dataclasses.replace(now[game], code=pairings[game.attack, game.defence].code))
        ledger.save()
    return played, different
