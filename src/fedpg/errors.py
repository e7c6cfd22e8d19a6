"""What goes wrong, and how to say it."""

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """A setting that cannot work; the message says which, and what to do."""


class SimulationError(RuntimeError):
    """A task that cannot go on; the message says which, and why."""


class Stopped(Exception):
    """Somebody asked the run to stop: nothing is wrong, and the round under way is done again when it goes on."""


def require(holds: bool, message: str) -> None:
    """A ConfigError with that message, unless it holds."""
    if not holds:
        raise ConfigError(message)


def unknown(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that nobody registered, with the nearest ones that somebody did."""
    known = sorted(known)
    lower = {k.lower(): k for k in known}
    near = [lower[k] for k in difflib.get_close_matches(str(name).lower(), lower, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    head, of, whose = kind.partition(" of ")
    listed = f"The {head}s{of}{whose} are {', '.join(known)}." if known else f"There is no {kind}."
    return ConfigError(f"unknown {kind} {name!r}: {hint}{listed}")
