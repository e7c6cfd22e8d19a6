"""Aggregators by name, alone and composed."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from fedpg.aggregators.aggregator import Aggregator, Memory, Own, Sent, Verdict, mean
from fedpg.aggregators.anchored import fltrust, monna, server, zeno
from fedpg.aggregators.centres import centred_clipping, geometric_median
from fedpg.aggregators.compass import compass
from fedpg.aggregators.coordinates import mean_around_median, median, trimmed_mean
from fedpg.aggregators.distances import krum, mda, multi_krum
from fedpg.aggregators.fedpg import fedpg, majority, r2
from fedpg.aggregators.parts import count_of
from fedpg.aggregators.pre import BUCKET, arc, bucketing, clipping, nnm
from fedpg.aggregators.spectral import caf, dnc, smea
from fedpg.errors import ConfigError, unknown
from fedpg.pieces import import_object, look_up

AGGREGATORS: dict[str, Callable[..., Aggregator]] = {
    "compass": compass,
    "fedpg": fedpg,
    "r2": r2,
    "majority": majority,
    "mean": mean,
    "krum": krum,
    "multi-krum": multi_krum,
    "median": median,
    "trimmed-mean": trimmed_mean,
    "mean-around-median": mean_around_median,
    "geometric-median": geometric_median,
    "mda": mda,
    "smea": smea,
    "caf": caf,
    "centred-clipping": centred_clipping,
    "dnc": dnc,
    "fltrust": fltrust,
    "monna": monna,
    "zeno": zeno,
    "server": server,
}
PRE: dict[str, Callable[..., Aggregator]] = {"nnm": nnm, "bucketing": bucketing, "arc": arc, "clipping": clipping}
"""What comes before a rule: functions of that rule (their parameter `rule`) and of parameters of their own."""


def make_aggregator(name: str, options: Sequence[str] = (), **given: Any) -> Aggregator:
    """The aggregator of that name: a rule of AGGREGATORS, or some of PRE and then a rule, as in `arc+nnm+krum`.

    Any of these may be a user's own as `package.module:object`: the rule an Aggregator or what makes one, the others
    functions with a parameter `rule`. `options` (name=value) go to every part that has such a parameter, or to one as
    `krum.f=2`. `given` are settings (alpha, sigma, delta) for those that take them.
    """
    if ":" not in name:
        return _known(name, tuple(options), tuple(sorted(given.items())))
    return _composed(name, options, given)


@functools.cache  # the same aggregator is the same object, so that nothing is compiled twice for it
def _known(name: str, options: tuple[str, ...], given: tuple[tuple[str, Any], ...]) -> Aggregator:
    return _composed(name, options, dict(given))


def _composed(name: str, options: Sequence[str], given: dict[str, Any]) -> Aggregator:
    *steps, last = name.split("+")
    parts = [(part, _step(part)) for part in steps] + [(last, _rule(last))]
    shared = _share_out(name, parts, options, given)

    def made(i: int, given: dict[str, Any]) -> Aggregator:
        part, maker = parts[i]
        if maker is bucketing and "alpha" in given:
            s = look_up("aggregator", part, {part: _bucket}, shared[i])
            return _bucketed(lambda alpha: joined(i, given, given | {"alpha": alpha}), given["alpha"], s)
        return joined(i, given, given)

    def joined(i: int, given: dict[str, Any], behind: dict[str, Any]) -> Aggregator:
        part, maker = parts[i]
        if i < len(steps):
            given = given | {"rule": made(i + 1, behind)}
        own = maker if isinstance(maker, Aggregator) and not shared[i] else None
        rule = own or look_up("aggregator", part, {part: maker}, shared[i], **given)
        if not isinstance(rule, Aggregator):
            raise ConfigError(f"the aggregator {part!r} is neither an Aggregator nor a function that makes one")
        return rule

    return made(0, given)


def _rule(name: str) -> Any:
    """The rule of that name, or what makes it."""
    if ":" in name:
        own = import_object("aggregator", name)
        if not callable(own) and not isinstance(own, Aggregator):
            raise ConfigError(f"the aggregator {name!r} is not a function that makes an Aggregator, nor is it one")
        return own
    if name in PRE:
        raise ConfigError(f"{name!r} comes before another aggregator: write {name}+krum, for example")
    if name not in AGGREGATORS:
        raise unknown("aggregator", name, AGGREGATORS)
    return AGGREGATORS[name]


def _step(name: str) -> Callable[..., Aggregator]:
    """What makes the step before a rule of that name."""
    if ":" in name:
        own = import_object("aggregator", name)
        if not callable(own) or "rule" not in inspect.signature(own).parameters:
            raise ConfigError(f"{name!r} cannot come before a rule: it must be a function with a parameter `rule`")
        return own
    if name in AGGREGATORS:
        raise ConfigError(f"the aggregator {name!r} must come last: before it may be {', '.join(PRE)}, joined by +")
    if name not in PRE:
        raise unknown("step before an aggregator", name, PRE)
    return PRE[name]


def _share_out(
    name: str, parts: Sequence[tuple[str, Any]], options: Sequence[str], given: dict[str, Any]
) -> list[list[str]]:
    """The options for each part."""
    takes = [
        [key for key in inspect.signature(maker).parameters if key not in given and key != "rule"]
        if callable(maker)
        else []
        for _, maker in parts
    ]
    shared: list[list[str]] = [[] for _ in parts]
    for option in options:
        key, equals, value = option.partition("=")
        to, _, parameter = key.rpartition(".")
        chosen = [i for i, (part, _) in enumerate(parts) if to in ("", part) and parameter in takes[i]]
        if not chosen and not to and len(parts) == 1:
            chosen = [0]  # which refuses it, and says why
        if not chosen:
            have = "; ".join(
                f"{part}: {', '.join(keys) or 'none'}" for (part, _), keys in zip(parts, takes, strict=True)
            )
            raise ConfigError(f"aggregator {name!r} has no parameter {key!r}: the parameters are {have}")
        for i in chosen:
            shared[i].append(f"{parameter}{equals}{value}")
    return shared


def _bucketed(make: Callable[[float], Aggregator], alpha: float, s: int) -> Aggregator:
    """Buckets of s before a rule with the alpha that `make` takes: floor(alpha K) liars may each spoil a bucket.

    That share of the buckets depends on K, which is known when the rule is used.
    """

    def of(agents: int) -> Aggregator:
        return make(count_of(alpha, agents) / -(-agents // s))

    def init(agents: int, size: int) -> Memory:
        return of(agents).init(agents, size)

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        return of(len(sent.valid)).update(memory, sent, own)

    return make(alpha)._replace(init=init, update=update)


def _bucket(s: int = BUCKET, f: int | None = None) -> int:
    """s, of the options of `bucketing`."""
    return s
