"""Pieces by name: from a registry, or a user's own as `package.module:object`; with arguments as `name=value`."""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedpg.errors import ConfigError, unknown


def import_object(kind: str, path: str, name: str = "object") -> Any:
    """What `package.module:object` points at."""
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"cannot load the {kind} {path!r}: {error}. It must be package.module:{name}.") from error


def look_up(
    kind: str,
    name: str,
    registry: Mapping[str, Callable[..., Any]],
    options: Sequence[str] = (),
    **given: Any,
) -> Any:
    """The piece of that name: what the function of that name makes of its arguments.

    `given` are settings that any of them may take; those that this one does not take are left out. `options`,
    `name=number` each, must be arguments of this one.
    """
    if name not in registry:
        raise unknown(kind, name, registry)
    make = registry[name]
    if not callable(make):
        raise ConfigError(f"{kind} {name!r} takes no options: it is not a function")
    takes = inspect.signature(make).parameters
    arguments = {key: value for key, value in given.items() if key in takes}
    known = [key for key in takes if key not in given]
    for option in options:
        key, _, value = option.partition("=")
        if key not in known:
            have = f"its parameters are {', '.join(known)}" if known else "it has no parameters"
            raise ConfigError(f"{kind} {name!r} has no parameter {key!r}: {have}")
        try:
            arguments[key] = float(value)
        except ValueError:
            raise ConfigError(f"{kind}_options wants name=number, not {option!r}") from None
    return make(**arguments)
