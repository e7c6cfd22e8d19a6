"""One round of each algorithm.

Algorithm 4 (federated GPOMDP) and Algorithm 5 (federated SVRPG) are the round of Algorithm 1 without its filter and
with N fixed: at n = 0 the variance-reduced step is the plain step on mu_t, so GPOMDP is N = 1. Their settings say so
(`fedpg.config.defaults`), and there is one round to read.
"""

from fedpg.algorithms.fedpg_br import fedpg_br
from fedpg.algorithms.server import Log, Round, State, first_state

ALGORITHMS: dict[str, Round] = {"fedpg-br": fedpg_br, "svrpg": fedpg_br, "gpomdp": fedpg_br}

__all__ = ["ALGORITHMS", "Log", "Round", "State", "first_state"]
