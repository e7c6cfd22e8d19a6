"""The aggregate's error against its lemma, how often R1 fails, whom the aggregators turn away; at a fixed policy."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpg.aggregators import RULES, concentration
from fedpg.config import Config
from fedpg.theory.effective import Effective, calibrated_sigma
from fedpg.theory.fits import means, quantity
from fedpg.theory.lab import (
    AGENTS,
    BUILT_IN,
    Note,
    Result,
    Scale,
    aggregates,
    as_json,
    attackers,
    constants_of,
    rounded,
)
from fedpg.theory.mdp import MDPS, exact_gradient
from fedpg.theory.runs import DELTA, Judged, agent_gradients, make_lab, verdict_on
from fedpg.theory.search import AIMS


def lemma_bound(agents: int, batch: int, alpha: float, sigma: float, delta: float) -> float:
    """E||e_t||^2 <= (4 sigma^2 / K + 48 alpha^2 sigma^2 V) / ((1 - alpha)^2 B)."""
    v = concentration(agents, delta)
    return (4 / agents + 48 * alpha**2 * v) * sigma**2 / ((1 - alpha) ** 2 * batch)


def experiment_error(scale: Scale, note: Note) -> Result:
    """E||e_t||^2 under the lie that makes it largest, against the lemma's bound, over K, B and alpha."""
    mdp = MDPS["chain"]()
    known = constants_of("chain")
    theta = jnp.zeros((mdp.states, mdp.actions))

    def row(sweep: str, agents: int, liars: int, batch: int, attack: str, seen: Judged) -> Result:
        bound = lemma_bound(agents, batch, liars / agents, known.largest, DELTA)
        error = quantity(means(seen.error))
        return {
            "sweep": sweep,
            "agents": agents,
            "liars": liars,
            "batch": batch,
            "attack": attack if liars else "none",
            "error": as_json(error),
            "bound": rounded(bound),
            "accepted": rounded(float(seen.liars.mean())),
            "rule_1": rounded(float(np.mean(seen.rule == RULES.index("R1")))),
        }

    batches = (32, 64, 128, 256, 512, 1024)
    plans: list[tuple[str, int, int, tuple[int, ...], str]] = []
    plans += [("K", k, share * k // 10, (128,), "search-error") for k in scale.crowds for share in (0, 3)]
    plans += [("B", 10, liars, batches, "search-error") for liars in (0, 3)]
    plans += [("alpha", AGENTS, liars, (128,), "search-error") for liars in scale.liars]
    plans += [("attack", AGENTS, 6, (128,), attack) for attack in (*BUILT_IN, *AIMS)]
    rows = []
    for i, (sweep, agents, liars, sizes, attack) in enumerate(plans):
        note(i / len(plans), f"{sweep}: K = {agents}, {liars} Byzantine, {attack}")
        lab = attackers(mdp, liars, attack, agents=agents)
        seen = aggregates(lab, theta, scale.draws, [(batch, known.largest) for batch in sizes])
        rows += [row(sweep, agents, liars, batch, attack, s) for batch, s in zip(sizes, seen, strict=True)]
    return {"sigma": rounded(known.largest), "rms": rounded(known.variance**0.5), "delta": DELTA, "rows": rows}


DELTAS = (1e-5, 1e-3, 1e-2, 0.1, 0.3, 0.6, 0.9)
SMALL = 10
"""K of what follows, the paper's."""
BATCH = 16
"""Its B."""
PAPER_DELTA = 0.6
"""Its delta."""
R1_ROUNDS = 8
"""As many times more rounds tell how often R1 fails as whom the aggregators turn away: they cost less."""


def experiment_rules(scale: Scale, note: Note) -> Result:
    """How often R1 fails against delta; how often each aggregator turns honest agents away, and under which attack."""
    mdp = MDPS["chain"]()
    theta = jnp.zeros((mdp.states, mdp.actions))
    known = constants_of("chain", points=(0,))  # of this policy
    note(0.05, "R1 against delta")
    failures, farthest = _failures(theta, known, R1_ROUNDS * scale.draws)
    honest = make_lab(mdp, agents=SMALL, delta=PAPER_DELTA)
    sigmas = {
        "largest": known.largest,  # the assumption's
        "root mean square": known.variance**0.5,
        # The smallest for which Claim 3 held in every draw: its radius is as far as an honest reply ever was.
        "tight": farthest / (concentration(SMALL, PAPER_DELTA) / BATCH) ** 0.5,
        "auto": calibrated_sigma(honest, theta, jax.random.key(9)),
    }
    cases = [(BATCH, sigma) for sigma in sigmas.values()]
    attacks = ("none", "random-noise", "sign-flipping", "fedpg-attack", "search-error", "search-drop")
    rows = []
    for i, attack in enumerate(attacks):
        for j, name in enumerate(("fedpg", "majority")):
            note(0.1 + 0.9 * (2 * i + j) / (2 * len(attacks)), f"aggregator {name}, {attack}")
            settings: dict[str, Any] = {"agents": SMALL, "aggregator": name, "delta": PAPER_DELTA}
            lab = attackers(mdp, 0 if attack == "none" else 3, attack, **settings)
            for sigma, seen in zip(sigmas, aggregates(lab, theta, scale.draws, cases), strict=True):
                rows.append(
                    {
                        "aggregator": name,
                        "attack": attack,
                        "sigma": sigma,
                        "dropped": as_json(quantity(means(1 - seen.honest))),
                        "rounds_with_a_drop": rounded(float(np.mean(seen.honest < 1))),
                        "accepted": rounded(float(seen.liars.mean())),
                        "error": as_json(quantity(means(seen.error))),
                        "rule_1": rounded(float(np.mean(seen.rule == RULES.index("R1")))),
                    }
                )
    values = {name: rounded(value) for name, value in sigmas.items()}
    return {"agents": SMALL, "batch": BATCH, "delta": PAPER_DELTA, "sigmas": values, "failures": failures, "rows": rows}


def _failures(theta: Array, known: Effective, draws: int) -> tuple[list[Result], float]:
    """For each delta and sigma: how often R1 fails; and how far off an honest reply ever was.

    `outside` is the event that delta bounds, an honest reply farther than sigma sqrt(V/B) from grad J; `fails` is what
    may follow, R1 without a majority at its radius 2 sigma sqrt(V/B), or one that loses somebody.
    """
    honest = make_lab(MDPS["chain"](), agents=SMALL, alpha=0.0)
    keys = jax.random.split(jax.random.key(6), draws)
    gradients = jax.jit(jax.vmap(lambda key: agent_gradients(honest, theta, key, BATCH, BATCH)))(keys)  # [n, K, D]
    truth = exact_gradient(honest.mdp, theta).ravel()
    away = jnp.max(jnp.linalg.norm(gradients - truth, axis=2), axis=1)  # [n]
    rms = known.variance**0.5
    shares = [*np.geomspace(0.1, 1.0, 19).tolist(), known.largest / rms]
    rows = []
    for delta in DELTAS:
        config = make_lab(honest.mdp, agents=SMALL, alpha=0.0, delta=delta).config
        sigmas = jnp.array(shares) * rms
        fails = np.asarray(_lost(config, gradients, sigmas))
        radius = np.asarray(sigmas) * (concentration(SMALL, delta) / BATCH) ** 0.5
        outside = [float(jnp.mean(away > r)) for r in radius]
        rows.append(
            {
                "delta": delta,
                "draws": draws,
                "sigma_over_rms": [rounded(x) for x in shares],
                "fails": [rounded(float(x)) for x in fails],
                "outside": [rounded(x) for x in outside],
            }
        )
    return rows, float(jnp.max(away))


@functools.partial(jax.jit, static_argnums=0)
def _lost(config: Config, gradients: Array, sigmas: Array) -> Array:
    """The share of rounds, gradients [n, K, D], in which R1 does not stand, for each sigma."""

    def one(mine: Array, sigma: Array) -> Array:
        return verdict_on(config, mine, sigma, jnp.float32(BATCH)).rule != RULES.index("R1")

    return jax.lax.map(lambda sigma: jnp.mean(jax.vmap(lambda mine: one(mine, sigma))(gradients)), sigmas)
