"""The algorithms, each with its whole round in one file."""

import functools
from collections.abc import Callable, Sequence

from fedpg.algorithms.byzpg import byzpg
from fedpg.algorithms.fedpg_br import FEDPG_BR
from fedpg.algorithms.fedsvrpg_m import fedsvrpg_m
from fedpg.algorithms.gpomdp import GPOMDP
from fedpg.algorithms.n_pg_igt import n_pg_igt
from fedpg.algorithms.natural import natural
from fedpg.algorithms.res_nharpg import res_nharpg
from fedpg.algorithms.svrpg import SVRPG
from fedpg.errors import ConfigError
from fedpg.pieces import import_object, look_up
from fedpg.problem import Algorithm

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "natural": natural,
    "fedpg-br": lambda: FEDPG_BR,
    "svrpg": lambda: SVRPG,
    "gpomdp": lambda: GPOMDP,
    "byzpg": byzpg,
    "res-nharpg": res_nharpg,
    "n-pg-igt": n_pg_igt,
    "fedsvrpg-m": fedsvrpg_m,
}
"""What makes each of them, of parameters of its own."""


def make_algorithm(name: str, options: Sequence[str] = ()) -> Algorithm:
    """The algorithm of that name, with options `name=value`; or a user's own as `package.module:object`, an
    Algorithm or a function that makes one."""
    if ":" not in name:
        return _known(name, tuple(options))
    own = import_object("algorithm", name)
    made = look_up("algorithm", name, {name: own}, options) if callable(own) or options else own
    if not isinstance(made, Algorithm):
        raise ConfigError(f"the algorithm {name!r} is neither an Algorithm nor a function that makes one")
    return made


@functools.cache  # the same algorithm is the same object, so that nothing is compiled twice for it
def _known(name: str, options: tuple[str, ...]) -> Algorithm:
    made: Algorithm = look_up("algorithm", name, ALGORITHMS, options)
    return made


__all__ = ["ALGORITHMS", "make_algorithm"]
