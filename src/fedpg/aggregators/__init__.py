"""Aggregation at the server: which of the agents' vectors to trust, and what to make of them."""

from fedpg.aggregators.aggregator import (
    RULES,
    Aggregator,
    Own,
    Sent,
    Verdict,
    before,
    decide,
    mean,
    pairwise_distances,
)
from fedpg.aggregators.anchored import fltrust, monna, server, zeno
from fedpg.aggregators.centres import centred_clipping, geometric_median
from fedpg.aggregators.compass import compass
from fedpg.aggregators.coordinates import mean_around_median, median, trimmed_mean
from fedpg.aggregators.distances import krum, mda, multi_krum
from fedpg.aggregators.fedpg import fedpg, majority, r2, required
from fedpg.aggregators.guards import check_first_memory, check_memory, check_rule, check_verdict, closed, guarded
from fedpg.aggregators.pre import arc, bucketing, clipping, nnm
from fedpg.aggregators.registry import AGGREGATORS, PRE, make_aggregator
from fedpg.aggregators.sigma import concentration
from fedpg.aggregators.spectral import caf, dnc, smea
from fedpg.attacks.attack import mean_of

__all__ = [
    "AGGREGATORS",
    "PRE",
    "RULES",
    "Aggregator",
    "Own",
    "Sent",
    "Verdict",
    "arc",
    "before",
    "bucketing",
    "caf",
    "centred_clipping",
    "check_first_memory",
    "check_memory",
    "check_rule",
    "check_verdict",
    "clipping",
    "closed",
    "compass",
    "concentration",
    "decide",
    "dnc",
    "fedpg",
    "fltrust",
    "geometric_median",
    "guarded",
    "krum",
    "majority",
    "make_aggregator",
    "mda",
    "mean",
    "mean_around_median",
    "mean_of",
    "median",
    "monna",
    "multi_krum",
    "nnm",
    "pairwise_distances",
    "r2",
    "required",
    "server",
    "smea",
    "trimmed_mean",
    "zeno",
]
