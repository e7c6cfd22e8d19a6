"""What a Byzantine agent does: at its actions, its rewards, its message, in collusion, or against the aggregator.

To add an attack, write a function of its parameters that returns an `Attack`, and name it in ATTACKS; or pass a
function of a `Scene`, or `package.module:function`.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from fedpg.attacks.adaptive import mda_fooling, normalized, opt_alie, opt_ipm
from fedpg.attacks.attack import Attack, Group, Knowledge, Scene, mean_of
from fedpg.attacks.classic import (
    fedpg_attack,
    infinity,
    not_a_number,
    random_action,
    random_noise,
    reward_flipping,
    shuffled_rewards,
    sign_flipping,
    silence,
    variance_attack,
    wrong_length,
    zero_gradient,
)
from fedpg.attacks.crafted import alie, avg_zero, ipm, mimic, min_max, min_sum, trim
from fedpg.errors import ConfigError
from fedpg.pieces import import_object, look_up

ATTACKS: dict[str, Callable[..., Attack]] = {
    "random-noise": random_noise,
    "random-action": random_action,
    "sign-flipping": sign_flipping,
    "fedpg-attack": fedpg_attack,
    "variance-attack": variance_attack,
    "zero-gradient": zero_gradient,
    "reward-flipping": reward_flipping,
    "shuffled-rewards": shuffled_rewards,
    "alie": alie,
    "ipm": ipm,
    "min-max": min_max,
    "min-sum": min_sum,
    "trim": trim,
    "avg-zero": avg_zero,
    "mimic": mimic,
    "opt-alie": opt_alie,
    "opt-ipm": opt_ipm,
    "normalized": normalized,
    "mda-fooling": mda_fooling,
    "nan": not_a_number,
    "infinity": infinity,
    "wrong-length": wrong_length,
    "silence": silence,
}


def make_attack(name: str, form: str = "paper", options: Sequence[str] = ()) -> Attack:
    """The attack of that name in that form (`paper` or `released`), or a user's own `package.module:object`."""
    if ":" not in name:
        return _known(name, form, tuple(options))
    own = import_object("attack", name)
    return as_attack(look_up("attack", name, {name: own}, options, form=form) if options else own, form)


def _makes_one(own: Any) -> bool:
    """Whether it can be called with nothing: a function that makes an attack, and not one of a Scene."""
    if not callable(own):
        return False
    return all(parameter.default is not parameter.empty for parameter in inspect.signature(own).parameters.values())


@functools.cache  # the same attack is the same object, so that nothing is compiled twice for it
def _known(name: str, form: str, options: tuple[str, ...]) -> Attack:
    return look_up("attack", name, ATTACKS, options, form=form)


def as_attack(attack: Any, form: str = "paper") -> Attack:
    """An attack from what a user passes: an Attack, a function that makes one, or a function of a Scene."""
    if _makes_one(attack):
        name = getattr(attack, "__name__", "of yours")
        attack = look_up("attack", name, {name: attack}, form=form)
    if isinstance(attack, Attack):
        return attack
    if callable(attack):
        return Attack(message=attack)
    raise ConfigError(f"an attack is an Attack or a function of a Scene, not {attack!r}")


__all__ = [
    "ATTACKS",
    "Attack",
    "Group",
    "Knowledge",
    "Scene",
    "as_attack",
    "make_attack",
    "mean_of",
]
