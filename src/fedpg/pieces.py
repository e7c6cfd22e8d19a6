"""Pieces by name: from a registry, or a user's own as `package.module:object`; with arguments as `name=value`."""

import contextlib
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

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
    `name=value` each, must be arguments of this one; their annotations say what a value may be.
    """
    if name not in registry:
        raise unknown(kind, name, registry)
    make = registry[name]
    if not callable(make):
        raise ConfigError(f"{kind} {name!r} takes no options: it is not a function")
    takes = inspect.signature(make).parameters
    hints = get_type_hints(make) if inspect.isroutine(make) else {}
    arguments = {key: value for key, value in given.items() if key in takes}
    known = [key for key in takes if key not in given]
    parsed: list[str] = []
    for option in options:
        key, _, value = option.partition("=")
        if key in parsed:
            raise ConfigError(f"{kind} {name!r}: {key} is given twice")
        parsed.append(key)
        if key not in known:
            have = f"its parameters are {', '.join(known)}" if known else "it has no parameters"
            raise ConfigError(f"{kind} {name!r} has no parameter {key!r}: {have}")
        arguments[key] = _parsed(f"{kind} {name!r}: {key}", value, hints.get(key, float))
    missing = [
        key
        for key, parameter in takes.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and key not in arguments
    ]
    if missing:
        raise ConfigError(
            f"{kind} {name!r} is made by a function that needs {', '.join(missing)}: give options {missing[0]}=..., or "
            f"defaults in the function; if it is not what makes the {kind}, name what does"
        )
    return make(**arguments)


def _parsed(what: str, text: str, wanted: Any) -> Any:
    """The value that a text stands for, where `wanted` (an annotation) is expected."""
    choices = [choice for choice in (get_args(wanted) or (wanted,)) if choice is not type(None)]
    for choice in choices:
        if isinstance(choice, str):
            if text == choice:
                return text
        elif get_origin(choice) is Literal:
            if text in get_args(choice):
                return text
        elif choice is bool:
            if text in ("true", "false"):
                return text == "true"
        elif choice in (int, float):
            with contextlib.suppress(ValueError):
                return choice(text)
    words = {int: "a whole number", float: "a number", bool: "true or false"}
    names = [name for c in choices for name in (get_args(c) if get_origin(c) is Literal else (words.get(c, c),))]
    raise ConfigError(f"{what} must be {' or '.join(map(str, names))}, not {text!r}")
