"""Nearest-neighbour mixing: a step that goes in front of any aggregator.

Each vector is replaced by the mean of the n - f vectors nearest to it, itself included.
Y. Allouah et al., "Fixing by mixing: a recipe for optimal Byzantine ML under heterogeneity", AISTATS 2023.

    fedpg train --byzantine 3 --attack variance-attack --aggregator nnm:nnm_fedpg
"""

import jax.numpy as jnp

from fedpg.aggregators import Aggregator, before, fedpg, pairwise_distances, required


def nnm(rule: Aggregator, alpha: float = 0.3) -> Aggregator:
    """`rule`, applied to mixed vectors; f is the share alpha of the agents."""

    def mix(vectors, valid):
        distances = pairwise_distances(vectors, valid)  # [K, K]; inf to those who sent nothing usable
        rank = jnp.argsort(jnp.argsort(distances, axis=1), axis=1)
        near = (rank < required(len(vectors), alpha)) & valid
        return near @ vectors / jnp.maximum(jnp.sum(near, axis=1, keepdims=True), 1)

    return before(mix, rule)


def nnm_fedpg(alpha: float = 0.3, sigma: float | str = "auto", delta: float = 0.6) -> Aggregator:
    """Mixing, then the paper's rule. Settings of the run with these names are passed in as arguments."""
    return nnm(fedpg(alpha, sigma, delta), alpha)
