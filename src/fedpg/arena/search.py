"""Looking for a worse attack: over the parameters of all attacks, against one defence."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fedpg.arena.games import Ledger
from fedpg.arena.matrix import gains, ratio
from fedpg.arena.players import HONEST, NOBODY, words_of
from fedpg.errors import SimulationError

Range = tuple[float, float]

KNOWING = ("all", "colluders")
SPACE: dict[str, dict[str, Range | tuple[str, ...]]] = {
    "sign-flipping": {"scale": (0.1, 10.0)},
    "random-noise": {"scale": (0.3, 30.0)},
    "fedpg-attack": {"scale": (0.3, 10.0)},
    "alie": {"z": (0.1, 5.0), "knowledge": KNOWING},
    "ipm": {"e": (0.05, 10.0), "knowledge": KNOWING},
    "opt-alie": {"knowledge": KNOWING},
    "opt-ipm": {"knowledge": KNOWING},
    "min-max": {"direction": ("unit", "sign", "std", "worst"), "knowledge": KNOWING},
    "min-sum": {"direction": ("unit", "sign", "std", "worst"), "knowledge": KNOWING},
    "normalized": {"l": (0.1, 10.0), "c": (0.01, 10.0), "knowledge": KNOWING},
    "trim": {"knowledge": KNOWING},
    "mimic": {"warmup": ("1", "5", "30")},
    "avg-zero": {"knowledge": KNOWING},
    "mda-fooling": {"direction": ("mean", "random", "worst"), "knowledge": KNOWING},
    "reward-flipping": {},
    "variance-attack": {"z": (0.05, 5.0), "knowledge": KNOWING},
}
"""What may be varied: between two numbers (evenly in their logarithm), or one of some words."""
STARTS = (0.0, 0.0, 0.0, 0.3, 0.6)
"""When an attack begins, as a share of all rounds."""
FINALISTS = 5
PARENTS = 4


def search(
    defence: str,
    budget: int,
    seeds: Sequence[int],
    ledger: Ledger,
    play: Callable[[Sequence[tuple[str, str]], Sequence[int]], None],
    known: Sequence[str] = (),
) -> list[tuple[str, float]]:
    """(attack, what was learnt under it as a share of the honest) of the worst found, the worst first.

    Half of the budget is drawn at random, half are changes of the worst so far; all on the first seed. The worst of
    these and of the `known` ones play on all seeds. `play` plays what is missing, so that a search can be repeated.
    """
    rng = np.random.default_rng(0)
    first = seeds[:1]
    rounds = ledger.base.trajectories / np.mean(ledger.base.batch)  # about
    starts = [1 + int(share * rounds) for share in STARTS]
    play([(NOBODY, HONEST)], seeds)
    tried: list[str] = list(known)
    play([(attack, defence) for attack in tried], first)
    drawn = unlike(draws(rng, starts), tried, -(-budget // 2))
    play([(attack, defence) for attack in drawn], first)
    tried += drawn
    generation = max(1, budget // 8)
    left = budget - len(drawn)
    while left > 0:
        parents = ranked(ledger, defence, tried, first)[:PARENTS]
        wanted = min(generation, left)
        children = unlike(mutations(rng, [attack for attack, _ in parents], starts), tried, wanted)
        # The worst may have few relatives that are new.
        children += unlike(draws(rng, starts), [*tried, *children], wanted - len(children))
        if not children:
            break
        play([(attack, defence) for attack in children], first)
        tried += children
        left -= len(children)
    finalists = [attack for attack, _ in ranked(ledger, defence, tried, first)[:FINALISTS]]
    play([(attack, defence) for attack in finalists], seeds)
    return ranked(ledger, defence, finalists, seeds)


def ranked(ledger: Ledger, defence: str, attacks: Sequence[str], seeds: Sequence[int]) -> list[tuple[str, float]]:
    """The attacks by how little was learnt under them."""
    honest = gains(ledger.results, NOBODY, HONEST, seeds)
    if honest.mean() <= 0:
        raise SimulationError("the honest federation learns nothing in this time: give more --trajectories")
    shares = {attack: ratio(gains(ledger.results, attack, defence, seeds), honest).value for attack in attacks}
    return sorted(shares.items(), key=lambda pair: pair[1])


def unlike(candidates: Iterator[str], tried: Sequence[str], count: int) -> list[str]:
    """So many of the candidates that have not been tried; fewer if hardly any is new."""
    found: list[str] = []
    for _ in range(20 * count):
        candidate = next(candidates)
        if candidate not in tried and candidate not in found:
            found.append(candidate)
        if len(found) == count:
            break
    return found


def draws(rng: np.random.Generator, starts: Sequence[int]) -> Iterator[str]:
    """Attacks at random, from one of these rounds on."""
    names = list(SPACE)
    while True:
        name = names[rng.integers(len(names))]
        yield spelled(name, {key: _draw(rng, space) for key, space in SPACE[name].items()}, int(rng.choice(starts)))


def mutations(rng: np.random.Generator, parents: Sequence[str], starts: Sequence[int]) -> Iterator[str]:
    """Attacks like one of the parents: every number a little larger or smaller, sometimes another word."""
    while True:
        name, options = words_of(parents[int(rng.integers(len(parents)))])
        given = {key: value for key, _, value in (option.partition("=") for option in options)}
        start = int(given.pop("start", 1))
        values = dict(given)
        for key, space in SPACE.get(name, {}).items():
            if key not in given or rng.random() < 0.2:
                values[key] = _draw(rng, space)
            elif isinstance(space[0], str):
                values[key] = given[key]
            else:
                low, high = space
                values[key] = _number(float(np.clip(float(given[key]) * np.exp(0.4 * rng.normal()), low, high)))
        yield spelled(name, values, int(rng.choice(starts)) if rng.random() < 0.2 else start)


def spelled(name: str, values: dict[str, str], start: int) -> str:
    """An attack as one word."""
    options = [f"{key}={value}" for key, value in values.items()] + ([f"start={start}"] if start > 1 else [])
    return ",".join([name, *options])


def _draw(rng: np.random.Generator, space: Range | tuple[str, ...]) -> str:
    if isinstance(space[0], str):
        return str(space[rng.integers(len(space))])
    low, high = space
    return _number(float(np.exp(rng.uniform(np.log(float(low)), np.log(float(high))))))


def _number(value: float) -> str:
    return f"{value:.3g}"
