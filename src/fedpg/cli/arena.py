"""`fedpg arena`."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedpg.cli.arguments import check_positive, check_seed, on_signal, parse_seeds
from fedpg.errors import ConfigError
from fedpg.extras import need
from fedpg.presets import renamed
from fedpg.screen import clock, make_console, seconds_left

if TYPE_CHECKING:
    from fedpg.arena.games import Cast, Game, Ledger, Pairings
    from fedpg.config import Config


@dataclass(frozen=True)
class Arena:
    """Play every attack against every defence, and find the worst case of each defence.

    Attacks and defences are words as `name` or `name,option=value`; your own is `package.module:object`. What has been
    played is not played again, so an interrupted command goes on where it stopped when it is given again.

    Examples:
      fedpg arena --task CartPole-v1 --agents 10 --byzantine 3
      fedpg arena --defences fedpg krum nnm+trimmed-mean --attacks sign-flipping ipm,e=0.5 --seeds 0:2
      fedpg arena --defences my_rule:rule
      fedpg arena --attacks my_attack:attack
      fedpg arena --task LunarLander-v3 --trajectories 500 --seeds 0:2 --attacks ipm,e=2 trim
      fedpg arena --search 100 --defences fedpg
      fedpg arena --old verify
    """

    task: str = "CartPole-v1"
    """The task."""
    agents: int = 10
    """K, the number of agents."""
    vary: tuple[str, ...] = ()
    """What differs between the agents' tasks, as for `fedpg train`."""
    byzantine: int = 3
    """f: how many of them lie; every rule is told so (alpha = f / K)."""
    attacks: tuple[str, ...] = ()
    """Only these attacks; by default two dozen."""
    defences: tuple[str, ...] = ()
    """Only these defences (aggregators); by default all."""
    seeds: str = "0:5"
    """One seed (`3`), several (`0,1,5`), or a range without its end (`0:10`)."""
    trajectories: int = 500
    """How long each training is."""
    algorithm: str = "natural"
    """The algorithm that the defences are part of."""
    old: Literal["again", "verify"] = "again"
    """Games that another version of the code has played: play them again; or verify them, by playing one of every
    attack and one of every defence again: if all of these come out the same, the others need not be."""
    search: int = 0
    """Instead of a matrix: look for a worse attack on each of the --defences, trying so many."""
    results: Path = Path("results")
    """Where what came of the games is kept, and the heat map is drawn."""
    runs: Path = Path("runs/arena")
    """Where trainings that take minutes keep their checkpoints."""


def run_arena(command: Arena) -> int:
    need("matplotlib", "PIL")
    from fedpg.arena.games import Cast, Ledger
    from fedpg.arena.players import ATTACKS, DEFENCES, base_config
    from fedpg.experiments.runner import say

    for name in ("agents", "trajectories"):
        check_positive(name, getattr(command, name))
    if 2 * command.byzantine >= command.agents:
        raise ConfigError(f"byzantine = {command.byzantine} of {command.agents} agents: fewer than half may lie")
    if command.byzantine < 1:
        raise ConfigError("byzantine must be 1 or more: without liars there is nothing to defend against")
    seeds = parse_seeds(command.seeds)
    for seed in seeds:
        check_seed(seed)
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds {command.seeds!r} overlap: give each once")
    if command.search < 0:
        raise ConfigError(f"search must be 0 or more, not {command.search}")
    task, note = renamed(command.task)
    if note:
        say(note)
    settings = {"algorithm": command.algorithm, "vary": command.vary}
    base = base_config(task, command.agents, command.byzantine, command.trajectories, **settings)
    attacks = tuple(command.attacks or ATTACKS)
    defences = tuple(command.defences or playable(base, DEFENCES, say))
    for names in (attacks, defences):
        if len(set(names)) < len(names):
            raise ConfigError("an attack or a defence is named twice")
    if command.search and not command.defences:
        raise ConfigError("a search is for the worst attack on a defence: name one or more with --defences")
    ledger, stop = Ledger(command.results, base), threading.Event()

    def play(pairs: Sequence[tuple[str, str]], seeds: Sequence[int]) -> None:
        play_missing(ledger, pairs, seeds, command.runs, stop, verify=command.old == "verify")

    try:
        with on_signal(stop, "stopping; what has been played is kept"):
            if command.search:
                _search(ledger, Cast(attacks, defences, tuple(seeds)), command.search, play)
            else:
                _matrix(ledger, Cast(attacks, defences, tuple(seeds)), play)
    except Stopped as stopped:
        say(str(stopped))
        return 130
    return 0


def playable(base: "Config", defences: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """Those of the defences that can be played with so many agents; it says which cannot, and why."""
    from fedpg.arena.games import pairings_of
    from fedpg.arena.players import NOBODY

    found = []
    for defence in defences:
        try:
            pairings_of(base, [(NOBODY, defence)])
            found.append(defence)
        except ConfigError as error:
            say(f"without {defence}: {error}")
    return found


class Stopped(Exception):
    """Somebody asked to stop before all games were played."""


Play = Callable[[Sequence[tuple[str, str]], Sequence[int]], None]
"""(pairs, seeds): plays what is missing of these."""


def play_missing(
    ledger: "Ledger",
    pairs: Sequence[tuple[str, str]],
    seeds: Sequence[int],
    runs: Path,
    stop: threading.Event,
    verify: bool = False,
) -> None:
    """Play what is missing, with progress and the time left."""
    from fedpg.arena.games import missing, pairings_of, play_all
    from fedpg.arena.verify import old_games

    pairings = pairings_of(ledger.base, pairs)
    if verify:
        _verify(ledger, old_games(ledger, pairs, seeds), pairings, runs, stop)
    games = missing(ledger, pairs, seeds)
    if not games:
        return
    progress = _Progress(len(games))
    try:
        played = play_all(games, pairings, ledger, runs, stop, progress)
    finally:
        progress.close()
    if played < len(games):
        raise Stopped(f"stopped: {played} of {len(games)} games were played. Give the same command to go on")


def _verify(ledger: "Ledger", games: "Sequence[Game]", pairings: "Pairings", runs: Path, stop: threading.Event) -> None:
    """Verify games by another version of the code, and say what came of it."""
    from fedpg.arena.verify import sample_of, verify
    from fedpg.experiments.runner import say

    if not games:
        return
    total = len(sample_of(games))
    progress = _Progress(total)
    try:
        played, different = verify(ledger, games, pairings, runs, stop, progress)
    finally:
        progress.close()
    if played < total:
        raise Stopped(f"stopped: {played} of {total} games were verified. Give the same command to begin again")
    if different:
        first = different[0]
        which = f"{first.attack} against {first.defence}, seed {first.seed}"
        say(f"{len(different)} of {total} games come out otherwise ({which}): all {len(games)} are played again")
    else:
        say(f"{total} of {len(games)} games by another version of the code were played again: all came out the same")


def _matrix(ledger: "Ledger", cast: "Cast", play: Play) -> None:
    """Play all against all, print the tables, and draw the heat map."""
    from fedpg.arena.matrix import matrix_of
    from fedpg.arena.players import HONEST, NOBODY, pairs_of, title_of
    from fedpg.arena.show import heat_map, tables
    from fedpg.experiments.runner import say
    from fedpg.storage import write_whole

    play(pairs_of(cast.attacks, cast.defences), cast.seeds)
    matrix = matrix_of(ledger.results, *cast)
    ledger.save(cast)
    make_console().print(tables(matrix))
    if matrix.gains[NOBODY, HONEST].mean() <= 0:
        say("the honest federation is no better than the untrained policy in this time: give more --trajectories")
    whole = cast.size >= max(other.size for other in ledger.casts)
    picture = ledger.path.with_name(f"{ledger.path.stem}{'' if whole else '-part'}.png")
    write_whole(picture, heat_map(matrix, title_of(ledger.base, len(cast.seeds))))
    print(picture)


def _search(ledger: "Ledger", cast: "Cast", budget: int, play: Play) -> None:
    """Look for a worse attack on each defence, and print the worst that were found."""
    from fedpg.arena.search import search

    for defence in cast.defences:
        found = search(defence, budget, cast.seeds, ledger, play, cast.attacks)
        known, seeds = len(cast.attacks), len(cast.seeds)
        print(f"{defence}: the worst of {budget} attacks and of {known} known ones, {seeds} seed(s)")
        for attack, share in found:
            print(f"  {100 * share:4.0f}%  {attack}")


class _Progress:
    """How many games are done, and the time left: rewritten on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, total: int) -> None:
        self.total, self.began, self.said = total, time.monotonic(), time.monotonic()
        self.shares: dict[Game, float] = {}
        self.lock = threading.Lock()
        self.console = make_console()

    def __call__(self, game: "Game", share: float) -> None:
        with self.lock:
            self.shares[game] = share
            now = time.monotonic()
            if now - self.said < (0.5 if self.console.is_terminal else 10.0):
                return
            self.said = now
            done = sum(self.shares.values())
            left = seconds_left(done, self.total - done, now - self.began)
            line = f"{sum(s >= 1 for s in self.shares.values())} of {self.total} games"
            line += f", {clock(left)} left" if left is not None else ""
            line += f" | {game.attack} against {game.defence}, seed {game.seed}"
            if self.console.is_terminal:
                print(f"\r\033[K{line[: self.console.width - 1]}", end="", flush=True)
            else:
                print(line, flush=True)

    def close(self) -> None:
        if self.console.is_terminal:
            print("\r\033[K", end="", flush=True)
