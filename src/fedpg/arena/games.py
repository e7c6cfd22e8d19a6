"""Playing: one training for each attack, defence and seed, several side by side; a file of what came of each."""

import functools
import gc
import json
import math
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpg.aggregators import check_rule
from fedpg.arena.players import PLACE, settings_of
from fedpg.assembly import make_problem
from fedpg.config import Config, from_json, refuse_late_attack, to_json
from fedpg.errors import ConfigError, SimulationError
from fedpg.experiments.fingerprint import fingerprint
from fedpg.experiments.store import machine, name_of
from fedpg.federation import Local
from fedpg.machine import versions
from fedpg.problem import Problem, make_broadcast
from fedpg.server import Server
from fedpg.storage import StorageError, check_format, locked, remove_unfinished, write_whole
from fedpg.tasks import make_task
from fedpg.tasks.differences import differences
from fedpg.training.each import Each, from_values, measure
from fedpg.training.progress import Silent, Snapshot
from fedpg.training.records import Records
from fedpg.training.rounds import advance, evaluated, first_state
from fedpg.training.run import at_a_time, train_seeds

FORMAT = "fedpg arena 1"
POINTS = 21
"""Of the learning curve that is kept of a game."""
SAVE_EVERY = 5.0
"""Seconds between two savings: what is lost if the machine is switched off."""


class Game(NamedTuple):
    """One training."""

    attack: str
    defence: str
    seed: int


@dataclass(frozen=True)
class Result:
    """What came of a game."""

    attack: str
    defence: str
    seed: int
    code: str
    """The fingerprint of the code that played it."""
    area: float
    """The average greedy return over the whole run."""
    curve: tuple[float, ...]
    """The greedy return at POINTS equal distances from the beginning to the end."""
    honest_kept: float
    """The share of honest replies that were accepted."""
    byzantine_kept: float
    harm: float | None
    """The median over rounds of how far the step was moved, in standard errors of the honest mean."""
    rounds: int
    seconds: float
    each: Each | None = None
    """Where agents differ: what the last policy is worth to each of them."""

    @property
    def game(self) -> Game:
        return Game(self.attack, self.defence, self.seed)


class Cast(NamedTuple):
    """Who met whom in a matrix that was asked for."""

    attacks: tuple[str, ...]
    defences: tuple[str, ...]
    seeds: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.attacks) * len(self.defences) * len(self.seeds)


class Ledger:
    """The results of an arena, in one file, which several processes may add to."""

    def __init__(self, results: Path, base: Config) -> None:
        self.base, self.path = base, path_of(results, base)
        self.results: dict[Game, Result] = {}
        self.casts: list[Cast] = []
        self.mine: set[Game] = set()
        self.lock, self.saved = threading.Lock(), time.monotonic()
        self._read()

    def _read(self) -> None:
        """Take in what is on disk, but for what was played here."""
        if not self.path.exists():
            return
        settings, found, casts = read(self.path)
        if settings != self.base:
            raise StorageError(f"{self.path} is of another arena than its name says: move it away")
        self.results |= {result.game: result for result in found if result.game not in self.mine}
        self.casts = list(dict.fromkeys([*casts, *self.casts]))

    def current(self, game: Game) -> bool:
        """Whether it has been played by the code as it is now."""
        found = self.results.get(game)
        return found is not None and found.code == fingerprint(settings_of(self.base, game.attack, game.defence))

    def add(self, result: Result, at_once: bool = False) -> None:
        """Keep a result; it is written within some seconds, or at once."""
        with self.lock:
            self.results[result.game] = result
            self.mine.add(result.game)
            if at_once or time.monotonic() - self.saved > SAVE_EVERY:
                self._write()

    def save(self, cast: Cast | None = None) -> None:
        """Write everything, and the cast of a matrix if one was completed."""
        with self.lock:
            if cast is not None and cast not in self.casts:
                self.casts.append(cast)
            if self.results:
                self._write()

    def _write(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make {self.path.parent}: {error.strerror or error}") from error
        with locked(self.path.parent):
            self._read()
            remove_unfinished(self.path.parent, self.path.name)
            head = {
                "format": FORMAT,
                "settings": to_json(self.base),
                "machine": machine(),
                "versions": versions(),
                "casts": self.casts,
            }
            games = (json.dumps(_plain(result)) for result in sorted(self.results.values(), key=lambda r: r.game))
            lines = ",\n".join(games)  # a line each, so that versions can be compared
            write_whole(self.path, f'{json.dumps(head)[:-1]}, "games": [\n{lines}\n]}}\n')
        self.saved = time.monotonic()


def _plain(result: Result) -> dict[str, Any]:
    """As JSON; where agents are alike, without a word about it, as it always was."""
    values = asdict(result)
    return values if result.each is not None else {name: x for name, x in values.items() if name != "each"}


def path_of(results: Path, base: Config) -> Path:
    """The file of an arena: its name says the task and who is there, and differs where any setting does."""
    who = replace(base, byzantine=0).name
    return results / "arena" / f"{who}-{base.byzantine}-{base.trajectories}-{name_of(base)[-8:]}.json"


def read(path: Path) -> tuple[Config, list[Result], list[Cast]]:
    """The settings, results and casts of an arena's file, or a StorageError that says what is wrong with it."""
    try:
        content = json.loads(path.read_text())
        check_format(path, content["format"], FORMAT)
        found = [
            Result(
                **{
                    **game,
                    "curve": tuple(map(float, game["curve"])),
                    "each": from_values(game["each"]) if game.get("each") else None,
                }
            )
            for game in content["games"]
        ]
        good = (
            isinstance(r.attack, str)
            and isinstance(r.defence, str)
            and isinstance(r.seed, int)
            and math.isfinite(r.area)
            and len(r.curve) == POINTS
            for r in found
        )
        if not all(good):
            raise ValueError("it has a game that is none")
        casts = [Cast(tuple(a), tuple(d), tuple(s)) for a, d, s in content["casts"]]
        return from_json(content["settings"]), found, casts
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        raise StorageError(f"{path} is damaged or no arena: {error}. Move it away and play again") from error


class Pairing(NamedTuple):
    """An attack and a defence, ready to be played."""

    problem: Problem
    code: str
    """The fingerprint of the code, taken before it is played."""


Pairings = dict[tuple[str, str], Pairing]


def pairings_of(base: Config, pairs: Sequence[tuple[str, str]]) -> Pairings:
    """Every pair, ready; whatever cannot be played is an error now, not after an hour."""
    found: Pairings = {}
    names: dict[Config, tuple[str, str]] = {}
    checked: set[tuple[int, str]] = set()
    for pair in pairs:
        config = settings_of(base, *pair)
        refuse_late_attack(config)
        problem = _problem(base, pair[0], config)
        if (rule := (config.agents, pair[1])) not in checked:
            check_rule(problem.aggregator, config.agents, problem.policy.size, problem.task.observations)
            checked.add(rule)
        if config in names:
            raise ConfigError(f"{' against '.join(names[config])} and {' against '.join(pair)} are the same game")
        names[config] = pair
        found[pair] = Pairing(problem, fingerprint(config))
    return found


def _problem(base: Config, attack: str, config: Config) -> Problem:
    """What the settings of a game make; the honest agents alone have the server of the games with all agents."""
    if attack != PLACE or not base.vary:
        return make_problem(config)
    task = make_task(base.task)
    found = differences(task, base.vary, base.agents, base.vary_seed)  # the server's may depend on all of them
    mine = {name: values[: config.agents] for name, values in found.agents.items()}
    return make_problem(replace(config, vary=()), task.vary(mine, found.server))._replace(config=config)


Report = Callable[[Game, float], None]
"""(game, the share of it that is done)."""


def play_all(
    games: Sequence[Game], pairings: Pairings, ledger: Ledger, runs: Path, stop: threading.Event, report: Report
) -> int:
    """Play the games, several side by side; returns how many were finished. What is done is kept whatever happens."""
    done = 0
    first = next(iter(pairings.values())).problem
    workers = min(at_a_time(first), len(games))

    def one(game: Game) -> None:
        nonlocal done
        if stop.is_set():
            return
        try:
            problem, code = pairings[game.attack, game.defence]
            slow = bool(problem.task.simulator)
            folder = runs / code / name_of(problem.config) / f"{problem.config.trajectories}-seed-{game.seed}"
            if slow:  # with simulators of its own, which end with it: a gigabyte for each pair would be kept otherwise
                problem = _problem(ledger.base, game.attack, problem.config)
            if workers > 1:
                problem = problem._replace(task=problem.task.beside_others())
            share = functools.partial(report, game)
            played = (
                _resumed(problem, game.seed, folder, stop, share) if slow else _play(problem, game.seed, stop, share)
            )
            if played is not None:
                ledger.add(result_of(game, code, *played), at_once=slow)
                shutil.rmtree(folder, ignore_errors=True)
                done += 1
                report(game, 1.0)
            if slow:
                del problem
                gc.collect()  # pools and those who keep them know each other
        except BaseException:
            stop.set()
            raise

    try:
        with ThreadPoolExecutor(workers) as pool:
            for job in [pool.submit(one, game) for game in games]:
                job.result()
    finally:
        ledger.save()
    return done


Played = tuple[Records, Each | None]
"""What a training left."""


def _play(problem: Problem, seed: int, stop: threading.Event, share: Callable[[float], None]) -> Played | None:
    """One training of some seconds, or None if it was stopped before its end."""
    config = problem.config
    server, federation = Server(problem), Local(problem)
    state, records = first_state(problem, seed), Records(config)
    records.add_test(*evaluated(problem, state))
    while state.counted < config.trajectories:
        if stop.is_set():
            return None
        began = time.monotonic()
        state, log = advance(problem, state, federation, server)
        records.add_round(log, time.monotonic() - began)
        records.add_test(*evaluated(problem, state))
        share(min(1.0, state.counted / config.trajectories))
    keys = make_broadcast(state.key, state.round + 1, 0).keys
    return records, measure(problem, state.theta, keys) if problem.task.varied else None


class _Shares(Silent):
    """Reports how far a training is."""

    def __init__(self, trajectories: int, share: Callable[[float], None]) -> None:
        self.trajectories, self.share = trajectories, share

    def update(self, seed: int, snapshot: Snapshot) -> None:
        self.share(min(1.0, snapshot.trajectories / self.trajectories))


def _resumed(
    problem: Problem, seed: int, folder: Path, stop: threading.Event, share: Callable[[float], None]
) -> Played | None:
    """One training of minutes, which goes on from its checkpoint, or None if it was stopped before its end."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {folder.parent}: {error.strerror or error}") from error
    reporter = _Shares(problem.config.trajectories, share)
    run = train_seeds(problem, [seed], folder, resume=folder.exists(), reporter=reporter, stop=stop)[0]
    return (run.records, run.each) if run.finished else None


def result_of(game: Game, code: str, records: Records, each: Each | None = None) -> Result:
    """What is kept of a training."""
    config = records.config
    at, returns = records.trajectories.astype(float), records.test_returns
    if not np.isfinite(returns).all():
        who = f"{game.attack} against {game.defence}, seed {game.seed}"
        raise SimulationError(f"{who}: a return is not a number; look at the task's rewards")
    points = np.linspace(0, config.trajectories, POINTS)
    curve = np.interp(points, at, returns)
    inside = at < config.trajectories
    x, y = np.append(at[inside], config.trajectories), np.append(returns[inside], curve[-1])
    honest, byzantine = records.accepted()
    harm = np.array([log["harm_step"] for log in records.logs], float)
    return Result(
        *game,
        code=code,
        area=round(float(np.trapezoid(y, x) / config.trajectories), 3),
        curve=tuple(round(float(r), 2) for r in curve),
        honest_kept=round(float(honest.mean() / (config.agents - config.byzantine)), 4),
        byzantine_kept=round(float(byzantine.mean() / config.byzantine), 4) if config.byzantine else 0.0,
        harm=round(float(np.nanmedian(harm)), 4) if np.isfinite(harm).any() else None,
        rounds=len(records),
        seconds=round(float(sum(log["seconds"] for log in records.logs)), 2),
        each=each,
    )


def missing(ledger: Ledger, pairs: Sequence[tuple[str, str]], seeds: Sequence[int]) -> list[Game]:
    """The games that have not been played by the code as it is; one seed of every pair first."""
    wanted: list[Any] = [Game(*pair, seed) for seed in seeds for pair in pairs]
    return [game for game in wanted if not ledger.current(game)]
