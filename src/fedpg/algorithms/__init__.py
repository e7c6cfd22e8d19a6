"""The algorithms, each with its whole round in one file."""

from fedpg.algorithms.fedpg_br import FEDPG_BR
from fedpg.algorithms.gpomdp import GPOMDP
from fedpg.algorithms.svrpg import SVRPG
from fedpg.errors import ConfigError, unknown
from fedpg.pieces import import_object
from fedpg.problem import Algorithm

ALGORITHMS = {"fedpg-br": FEDPG_BR, "svrpg": SVRPG, "gpomdp": GPOMDP}


def make_algorithm(name: str) -> Algorithm:
    """The algorithm of that name, or a user's own as `package.module:object`."""
    if ":" not in name:
        if name not in ALGORITHMS:
            raise unknown("algorithm", name, ALGORITHMS)
        return ALGORITHMS[name]
    own = import_object("algorithm", name)
    if not isinstance(own, Algorithm):
        raise ConfigError(f"the algorithm {name!r} is not an Algorithm")
    return own


__all__ = ["ALGORITHMS", "make_algorithm"]
