"""Aggregation at the server: which of the agents' vectors to trust, and what to make of them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from fedpg.aggregators.aggregator import (
    RULES,
    Aggregator,
    Own,
    Sent,
    Verdict,
    before,
    decide,
    mean,
    mean_of,
    pairwise_distances,
)
from fedpg.aggregators.fedpg import fedpg, majority, r2, required
from fedpg.aggregators.sigma import concentration
from fedpg.errors import ConfigError
from fedpg.pieces import import_object, look_up

AGGREGATORS: dict[str, Callable[..., Aggregator]] = {"fedpg": fedpg, "r2": r2, "majority": majority, "mean": mean}


def make_aggregator(name: str, options: Sequence[str] = (), **given: Any) -> Aggregator:
    """The aggregator of that name, or a user's own as `package.module:object`, an Aggregator or what makes one.

    `given` are settings (alpha, sigma, delta) for those that take them.
    """
    if ":" not in name:
        return _known(name, tuple(options), tuple(sorted(given.items())))
    own = import_object("aggregator", name)
    made = look_up("aggregator", name, {name: own}, options, **given) if callable(own) or options else own
    if not isinstance(made, Aggregator):
        raise ConfigError(f"the aggregator {name!r} is neither an Aggregator nor a function that makes one")
    return made


@functools.cache  # the same aggregator is the same object, so that nothing is compiled twice for it
def _known(name: str, options: tuple[str, ...], given: tuple[tuple[str, Any], ...]) -> Aggregator:
    return look_up("aggregator", name, AGGREGATORS, options, **dict(given))


__all__ = [
    "AGGREGATORS",
    "RULES",
    "Aggregator",
    "Own",
    "Sent",
    "Verdict",
    "before",
    "concentration",
    "decide",
    "fedpg",
    "majority",
    "make_aggregator",
    "mean",
    "mean_of",
    "pairwise_distances",
    "r2",
    "required",
]
