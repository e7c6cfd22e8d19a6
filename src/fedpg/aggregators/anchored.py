"""Rules that compare the agents with the server's own gradient g_0, which no attacker sees.

With `smooth` > 0, g_0 is an exponential average of the server's gradients over rounds, corrected for its start at 0:
a <- smooth a + (1 - smooth) g. It is less noisy, and lags behind.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from fedpg.aggregators.aggregator import OTHER, Aggregator, Memory, Own, Sent, Verdict, decide
from fedpg.aggregators.parts import Faults, directions, lengths, smallest, weighted_mean
from fedpg.attacks.attack import mean_of
from fedpg.errors import ConfigError, require


def fltrust(smooth: float = 0.0) -> Aggregator:
    """FLTrust: each agent counts as far as it agrees with g_0, and nobody's vector is longer than that.

    sum of w_i g_i ||g_0|| / ||g_i||, divided by the sum of w_i, where w_i = max(0, cos(g_i, g_0)).
    The recorded distances are ||g_i ||g_0|| / ||g_i|| - g_0||; from sqrt(2) ||g_0|| on, the cosine is not positive.
    Needs the server's gradient, and no f. Promises, for any number of liars, an aggregate that is no longer than g_0
    and never points against it; how good it is depends on g_0.
    X. Cao, M. Fang, J. Liu, N. Gong, "FLTrust: Byzantine-robust federated learning via trust bootstrapping", NDSS 2021.
    """

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        g_0, memory = _smoothed("fltrust", smooth, memory, own)
        length, scaled, cosines = _compared(sent, g_0)
        trust = jnp.where(sent.valid, jnp.maximum(cosines, 0.0), 0.0)
        gradient, limit = weighted_mean(scaled, trust), math.sqrt(2) * length
        return decide(sent, gradient, trust > 0, threshold=limit, distances=_apart(sent, scaled, g_0)), memory

    return Aggregator(update, _first(smooth), needs=("gradient",))


def monna(f: int | None = None, alpha: float = 0.3, smooth: float = 0.0) -> Aggregator:
    """MoNNA with the server's vector: the mean of the n - f vectors nearest to g_0.

    Needs f < n / 2 and the server's gradient. Promises an aggregate no further from g_0 than the honest agents are,
    so an error of the order of the server's own and the honest ones' together.
    S. Farhadkhani, R. Guerraoui, N. Gupta, L. N. Hoang, R. Pinot, J. Stephan, "Robust collaborative learning with
    linear gradient overhead", ICML 2023.
    """
    faults = Faults("monna", f, alpha)

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        g_0, memory = _smoothed("monna", smooth, memory, own)
        distances = _apart(sent, sent.clean, g_0)
        count = jnp.sum(sent.valid) - faults.of(len(distances))
        accepted = smallest(distances, count, sent.valid) & faults.enough(sent.valid)
        threshold = jnp.max(jnp.where(accepted, distances, 0.0))
        gradient = mean_of(sent.vectors, accepted)
        return decide(sent, gradient, accepted, threshold=threshold, distances=distances), memory

    return Aggregator(update, faults.checking(_first(smooth)), needs=("gradient",))


def zeno(rho: float = 0.001, eps: float = 0.0, smooth: float = 0.0) -> Aggregator:
    """Zeno++: the mean of those who would climb by the server's estimate, at the length of g_0.

    Accepted where g_0 . h_i - rho ||h_i||^2 >= -eps, h_i = g_i ||g_0|| / ||g_i||. The recorded distances are
    ||h_i - g_0||, and the threshold is what that condition says of them.
    Needs the server's gradient, and no f. Promises, for any number of liars, that every accepted vector climbs, up to
    eps, as far as g_0 tells.
    C. Xie, O. Koyejo, I. Gupta, "Zeno++: Robust fully asynchronous SGD", ICML 2020.
    """
    require(
        0 <= rho < math.inf and 0 <= eps < math.inf,
        f"zeno: rho and eps must be finite numbers, 0 or more, not {rho} and {eps}",
    )

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        g_0, memory = _smoothed("zeno", smooth, memory, own)
        length, scaled, cosines = _compared(sent, g_0)
        square, moved = length**2, jnp.any(sent.clean != 0, axis=1)
        accepted = sent.valid & moved & (square * (cosines - rho) >= -eps)
        # ||h - g_0||^2 = 2 ||g_0||^2 - 2 g_0 . h
        limit = jnp.sqrt(jnp.clip(2 * square * (1 - rho) + 2 * eps, 0.0))
        distances = _apart(sent, scaled, g_0)
        return decide(sent, mean_of(scaled, accepted), accepted, threshold=limit, distances=distances), memory

    return Aggregator(update, _first(smooth), needs=("gradient",))


def server(smooth: float = 0.0) -> Aggregator:
    """The server's own gradient; the agents are not listened to. What a federation must be better than.

    Nobody is accepted, and yet there is an aggregate: the rule is "other", not "nobody". Where the server keeps half of
    its trajectories for a check, as natural steps do, this is of both halves: who is alone wastes none.
    Needs the server's gradient. Promises that no attack does anything.
    """

    def update(memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
        if own.gradient is not None and own.check is not None:
            own = own._replace(gradient=(own.gradient + own.check) / 2)
        g_0, memory = _smoothed("server", smooth, memory, own)
        nobody = decide(sent, g_0, jnp.zeros_like(sent.valid))
        distances = _apart(sent, sent.clean, g_0)
        return nobody._replace(gradient=g_0, rule=jnp.int32(OTHER), distances=distances), memory

    return Aggregator(update, _first(smooth), needs=("gradient",))


def _smoothed(rule: str, smooth: float, memory: Memory, own: Own) -> tuple[Array, Memory]:
    """(g_0, memory)."""
    if own.gradient is None:
        raise ConfigError(
            f"{rule} needs a gradient of the server's own, and here the server has none: it needs a task, "
            "or another rule (trimmed-mean, nnm+krum)"
        )
    if smooth == 0:
        return own.gradient, memory
    average, weight = memory
    average = smooth * average + (1 - smooth) * own.gradient
    weight = smooth * weight + (1 - smooth)
    return average / weight, (average, weight)


def _first(smooth: float) -> Callable[[int, int], Memory]:
    """The memory of `_smoothed` before the first round."""
    require(0 <= smooth < 1, f"smooth must be at least 0 and less than 1, not {smooth}")
    return lambda agents, size: (jnp.zeros(size), jnp.float32(0.0)) if smooth else ()


def _compared(sent: Sent, g_0: Array) -> tuple[Array, Array, Array]:
    """(||g_0||, the vectors at that length [K, D], their cosines with g_0 [K])."""
    length, ours = lengths(g_0[None])[0], directions(g_0[None])[0]
    theirs = directions(sent.clean)
    return length, length * theirs, theirs @ ours


def _apart(sent: Sent, vectors: Array, g_0: Array) -> Array:
    """The distances to g_0, inf for those without a valid vector.  [K]"""
    return jnp.where(sent.valid, lengths(vectors - g_0), jnp.inf)
