"""What compass keeps of honest and of lying agents where no task is learnt: vectors with a signal and noise. A minute.

    python studies/compass_limits.py
    python studies/compass_limits.py --seeds 30

Ten agents send the same signal and noise of their own, five times as long as a signal of 1, in fourteen directions.
Honest agents have cosines of 0.04 +- 0.27 with each other then, as on LunarLander once a lander flies. Distances are
those of natural steps, by scores in the same directions; in the lines of the spread, the noise has two hundred
directions, and the measure is the spread of each. Printed is how often honest agents and liars were accepted in the
rounds that a line is about, the mean over seeds.
"""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpg.aggregators import Aggregator, Own, Sent, compass

AGENTS, SIZE, DIRECTIONS, NOISE = 10, 200, 14, 5.0
Lie = Callable[[int, np.ndarray, np.ndarray], np.ndarray]
"""(the round, what all would honestly send [K, d], the signal [d]) -> what the liars send, or would [K, d]."""


class Case(NamedTuple):
    what: str
    lie: Lie
    liars: int = 3
    signal: Callable[[int], float] = lambda t: 1.0
    judged: tuple[int, int] = (60, 150)
    """From which round to which the answer is about."""
    spread: bool = False
    differ: float = 0.0
    """How long a direction of its own each agent has in all rounds."""


def flipped(t: int, honest: np.ndarray, truth: np.ndarray) -> np.ndarray:
    return -honest


def against_mean(liars: int) -> Lie:
    return lambda t, honest, truth: np.broadcast_to(-2 * honest[:-liars].mean(axis=0), honest.shape)


def middle(liars: int) -> Lie:
    """Copies of the honest agent whose cosine with the signal is the middle one."""

    def lie(t: int, honest: np.ndarray, truth: np.ndarray) -> np.ndarray:
        along = honest[:-liars] @ truth / np.linalg.norm(honest[:-liars], axis=1)
        return np.broadcast_to(honest[np.argsort(along)[len(along) // 2]], honest.shape)

    return lie


def while_(begin: int, end: int, lie: Lie) -> Lie:
    return lambda t, honest, truth: lie(t, honest, truth) if begin <= t < end else honest


def honestly(t: int, honest: np.ndarray, truth: np.ndarray) -> np.ndarray:
    return honest


def none(t: int) -> float:
    return 0.0


CASES = (
    Case("all honest", honestly, 0),
    Case("all honest, no signal", honestly, 0, none),
    Case("three flip signs from the first round on", flipped),
    Case("three flip signs from round 60 on", while_(60, 999, flipped), judged=(90, 200)),
    Case("the same after a signal of 5", while_(60, 999, flipped), 3, lambda t: 5.0 if t < 60 else 1.0, (90, 200)),
    Case("three copy the middle agent, no signal", middle(3), 3, none),
    Case("four copy the middle agent, no signal", middle(4), 4, none),
    *(
        Case(f"three went against the mean for 20 rounds, {n} rounds ago", while_(20, 40, against_mean(3)), 3, s, at)
        for n, s, at in (("20 to 40", lambda t: 1.0, (60, 80)), ("40 to 60", lambda t: 1.0, (80, 100)))
    ),
    Case("all honest, each with a direction of its own of 5", honestly, 0, differ=5.0),
    Case("all honest, each with a direction of its own of 10", honestly, 0, differ=10.0),
    Case("four against the mean, no signal; by the spread", against_mean(4), 4, none, spread=True),
    Case("four against the mean, a signal of 0.3; by the spread", against_mean(4), 4, lambda t: 0.3, spread=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12)
    options = parser.parse_args()
    rule = compass()
    update = jax.jit(lambda memory, sent, own: rule.update(memory, sent, own))
    for case in CASES:
        kept = np.mean([play(rule, update, case, seed) for seed in range(options.seeds)], axis=0)
        lying = f", of the others {kept[AGENTS - case.liars :].mean():.0%}" if case.liars else ""
        print(f"{case.what}: of the honest {kept[: AGENTS - case.liars].mean():.0%}{lying}", flush=True)


def play(rule: Aggregator, update: Callable[..., Any], case: Case, seed: int) -> np.ndarray:
    """How often each agent was accepted in the rounds that the case is about.  [K]"""
    rng = np.random.default_rng(seed)
    size = SIZE if case.spread else DIRECTIONS
    basis = np.eye(SIZE) if case.spread else rng.normal(size=(DIRECTIONS, SIZE)) / np.sqrt(SIZE)
    scores = None if case.spread else jnp.asarray(8 * np.linalg.qr(rng.normal(size=(64, DIRECTIONS)))[0] @ basis)
    truth = rng.normal(size=size)
    truth /= np.linalg.norm(truth)
    own_ways = case.differ * rng.normal(size=(AGENTS, size)) / np.sqrt(size)
    memory, found, everybody = rule.init(AGENTS, SIZE), [], np.ones(AGENTS, bool)
    lies = np.arange(AGENTS)[:, None] >= AGENTS - case.liars
    for t in range(case.judged[1]):
        noise = NOISE * rng.normal(size=(AGENTS + 1, size)) / np.sqrt(size)
        honest, server = case.signal(t) * truth + own_ways + noise[1:], case.signal(t) * truth + noise[0]
        vectors = np.where(lies, case.lie(t, honest, truth), honest) @ basis
        sent = Sent(jnp.asarray(vectors, jnp.float32), jnp.asarray(everybody), 16)
        verdict, memory = update(memory, sent, Own(jnp.asarray(server @ basis, jnp.float32), scores=scores))
        found.append(np.asarray(verdict.accepted))
    return np.mean(found[case.judged[0] :], axis=0)


if __name__ == "__main__":
    main()
