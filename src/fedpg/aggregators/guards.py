"""What protects a round from its aggregator: a verdict of the right form, a finite aggregate, and who is too few."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.aggregators.aggregator import RULES, Aggregator, Memory, Own, Sent, Verdict
from fedpg.errors import ConfigError

Update = Callable[[Memory, Sent, Own], tuple[Verdict, Memory]]


@functools.cache  # the same aggregator is the same object, so that nothing is compiled twice for it
def closed(rule: Aggregator, alpha: float) -> Aggregator:
    """Fail closed: `rule`, but nobody is accepted if more agents are turned away or absent than floor(alpha K).

    More suspects than the rule was told to expect mean that it may be wrong about all of them. This is not for rules
    that listen to few on purpose (krum, dnc, server): they would never do anything. What the rule remembers then stays
    as it was before the round; its distances are kept as evidence.
    """

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        verdict, after = rule.update(memory, sent, own)
        agents = len(sent.valid)
        shut = agents - jnp.sum(verdict.accepted & sent.valid) > math.floor(alpha * agents + 1e-9)
        kept = jax.tree.map(lambda old, new: jnp.where(shut, old, new), memory, after)
        return _nobody_if(shut, verdict), kept

    return rule._replace(update=update)


def guarded(update: Update) -> Update:
    """`update`, with a verdict and a memory of the right form, and nobody accepted if the aggregate is not finite.

    A form that is wrong is a ConfigError when the function is traced. With an aggregate that is not finite the memory
    stays as it was.
    """

    def checked(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        answer: Any = update(memory, sent, own)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise ConfigError(f"the aggregator's update must return (verdict, memory), not {_kind(answer)}")
        verdict, after = answer
        check_verdict(verdict, *sent.vectors.shape)
        check_memory("the aggregator's", memory, after)
        finite = jnp.all(jnp.isfinite(verdict.gradient))
        evidence = {name: getattr(verdict, name) for name in ("threshold", "distances", "sigma")}
        known = {name: jnp.where(jnp.isnan(value), jnp.inf, value) for name, value in evidence.items()}
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, memory)
        return _nobody_if(~finite, verdict._replace(**known)), kept

    return checked


def check_rule(rule: Aggregator, agents: int, size: int, observations: int) -> None:
    """Try the aggregator on shapes alone, for K agents' vectors of D numbers; a ConfigError if it cannot work."""

    def shape(*axes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(axes, jnp.float32)

    rows = 8  # of the server's trajectories or steps: it does not matter how many
    shapes = {
        "gradient": shape(size),
        "influences": shape(rows, size),
        "scores": shape(rows, size),
        "check": shape(size),
        "states": shape(observations, rows),
    }
    own = Own(**{name: shapes[name] for name in rule.needs})  # type: ignore[arg-type]
    sent = Sent(shape(agents, size), jax.ShapeDtypeStruct((agents,), bool), 1)  # type: ignore[arg-type]
    jax.eval_shape(guarded(rule.update), rule.init(agents, size), sent, own)


def check_verdict(verdict: Any, agents: int, size: int) -> None:
    """Refuse what is not a verdict on K agents' vectors of D numbers."""
    if not isinstance(verdict, Verdict):
        raise ConfigError(f"the aggregator must return a Verdict (see `decide`), not {_kind(verdict)}")
    real, boolean, whole = (
        ("a real number", jnp.floating),
        ("True or False", jnp.bool_),
        ("a whole number", jnp.integer),
    )
    fields = {
        "gradient": ((size,), real),
        "accepted": ((agents,), boolean),
        "rule": ((), whole),
        "threshold": ((), real),
        "distances": ((agents,), real),
        "centre": ((), whole),
        "sigma": ((), real),
    }
    for name, (shape, (words, kind)) in fields.items():
        value = getattr(verdict, name)
        try:
            fits = jnp.shape(value) == shape and jnp.issubdtype(jnp.result_type(value), kind)
        except TypeError:  # not an array at all
            fits = False
        if not fits:
            wanted = f"an array of shape {shape}, each {words}" if shape else words
            raise ConfigError(f"the aggregator's verdict is wrong: {name} must be {wanted}, not {_kind(value)}")


def check_memory(whose: str, before: Memory, after: Memory) -> None:
    """Refuse a memory that changed its form: a checkpoint could not be read."""

    def form(memory: Memory) -> Any:
        leaves, structure = jax.tree.flatten(memory)
        return structure, [(jnp.shape(leaf), getattr(leaf, "dtype", None) or jnp.result_type(leaf)) for leaf in leaves]

    if form(before) != form(after):
        raise ConfigError(
            f"{whose} memory changed its structure, shapes or types from one round to the next: "
            f"it was {jax.tree.map(_kind, before)} and became {jax.tree.map(_kind, after)}; `init` must give the same"
        )


def check_first_memory(whose: str, memory: Memory, rows: int | None = None) -> None:
    """Refuse a memory that cannot be saved, or, with `rows`, one whose arrays have not that many."""
    for leaf in jax.tree.leaves(memory):
        if jnp.issubdtype(getattr(leaf, "dtype", jnp.float32), jax.dtypes.prng_key):
            raise ConfigError(
                f"{whose} memory holds a key of JAX, which cannot be saved: remember jax.random.key_data(key), and "
                "make the key of it with jax.random.wrap_key_data"
            )
        if rows is not None and jnp.shape(leaf)[:1] != (rows,):
            raise ConfigError(f"{whose} memory must have a row for each of {rows}, not {_kind(leaf)}: see `init`")


def _kind(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of shape {value.shape} and type {value.dtype}"
    return f"a {type(value).__name__}"


def _nobody_if(refused: Array, verdict: Verdict) -> Verdict:
    """The verdict, or the same evidence for an aggregate that nobody is accepted for."""
    return verdict._replace(
        gradient=jnp.where(refused, 0.0, verdict.gradient),
        accepted=verdict.accepted & ~refused,
        rule=jnp.where(refused, RULES.index("nobody"), verdict.rule).astype(jnp.int32),
    )
