"""Trajectories until E||grad J||^2 <= epsilon, against epsilon, K and alpha."""

import jax
import jax.numpy as jnp
import numpy as np

from fedpg.theory.effective import Effective, calibrated_sigma
from fedpg.theory.fits import excess_exponent, exponent, means, quantity
from fedpg.theory.lab import (
    AGENTS,
    BUILT_IN,
    CONTROLS,
    SHARE,
    Note,
    Result,
    Scale,
    aggregates,
    as_json,
    attackers,
    constants_of,
    curve,
    rounded,
    run_exactly,
    run_until,
    sizes_of,
)
from fedpg.theory.mdp import MDPS, Tabular
from fedpg.theory.runs import compile_lab, make_lab
from fedpg.theory.search import AIMS

PAPER_EXPONENTS = {"reinforce": 2.0, "gpomdp": 2.0, "svrpg": 5 / 3, "fedpg-br": 5 / 3}
METHODS = (*PAPER_EXPONENTS, *CONTROLS)

# --- trajectories against epsilon, one agent


def experiment_epsilon(scale: Scale, note: Note) -> Result:
    """Trajectories until E||grad J||^2 <= epsilon against epsilon, K = 1: Table 1's methods and two controls."""
    rows: list[Result] = []
    fits: list[Result] = []
    measured: Result = {}
    done, total = 0, sum(count for _, count in scale.halvings) * len(METHODS)
    for i, (name, count) in enumerate(scale.halvings):
        mdp = MDPS[name]()
        known = {e: constants_of(name, e) for e in ("gpomdp", "reinforce")}
        measured[name] = {kind: constants._asdict() for kind, constants in known.items()}
        for method in METHODS:
            kind = "reinforce" if method == "reinforce" else "gpomdp"
            lab, constants = make_lab(mdp, estimator=kind), known[kind]
            epsilons = [constants.steepest / 3 / 2**halved for halved in range(count)]
            chosen = [round(constants.variance / (SHARE * epsilon)) for epsilon in epsilons]
            advance = compile_lab(lab, scale.repetitions, 256, max(chosen) if method == "svrpg" else 1)
            uniform, last = [], []
            for batch, epsilon in zip(chosen, epsilons, strict=True):
                where = f"{name}, {method}, epsilon {epsilon:.3g}"
                base = done
                sizes = sizes_of(method, batch, constants)
                if method == "no noise":
                    runs = run_exactly(mdp, sizes, scale.rounds)
                else:
                    runs = run_until(
                        advance, lab, sizes, epsilon, scale, 100 + i,  # the MDPs do not share their draws
                        lambda share: note((base + share) / total, where),  # noqa: B023
                    )  # fmt: skip
                done += 1
                uniform.append(runs.hits(epsilon, server=True))
                last.append(runs.hits(epsilon, average=False, server=True))
                rows.append(
                    {
                        "mdp": name,
                        "method": method,
                        "epsilon": rounded(epsilon),
                        "batch": batch,
                        "rounds": len(runs.gradient),
                        "uniform": as_json(quantity(uniform[-1])),
                        "last": as_json(quantity(last[-1])),
                        "curve": curve(runs),
                    }
                )
            inverse = [1 / e for e in epsilons]
            fits.append(
                {
                    "mdp": name,
                    "method": method,
                    "uniform": as_json(exponent(inverse, uniform)),
                    "last": as_json(exponent(inverse, last)),
                    "paper": PAPER_EXPONENTS.get(method),
                }
            )
    return {"rows": rows, "fits": fits, "constants": measured}


# --- trajectories against K, all honest


def no_noise(mdp: Tabular, batch: int, constants: Effective, epsilon: float, scale: Scale) -> np.ndarray:
    """The control without noise: trajectories of an agent until epsilon."""
    return run_exactly(mdp, sizes_of("no noise", batch, constants), scale.rounds).hits(epsilon)


def experiment_agents(scale: Scale, note: Note) -> Result:
    """Trajectories per agent until epsilon against K, all honest, FedPG-BR with its aggregator at work."""
    mdp = MDPS["chain"]()
    constants = constants_of("chain")
    epsilon = constants.variance / (SHARE * scale.one_agent)
    rows: list[Result] = []
    hits, exact = [], []
    for i, agents in enumerate(scale.agents):
        batch = max(1, round(scale.one_agent / agents))
        lab = make_lab(mdp, agents=agents, alpha=0.0)
        advance = compile_lab(lab, scale.repetitions, batch)
        sizes = sizes_of("fedpg-br", batch, constants, constants.largest)
        runs = run_until(
            advance, lab, sizes, epsilon, scale, 2,
            lambda share: note((i + share) / len(scale.agents), f"K = {agents}, B = {batch}"),  # noqa: B023
        )  # fmt: skip
        hits.append(runs.hits(epsilon))
        exact.append(no_noise(mdp, batch, constants, epsilon, scale))
        rows.append(
            {
                "agents": agents,
                "batch": batch,
                "rounds": len(runs.gradient),
                "per_agent": as_json(quantity(hits[-1])),
                "last": as_json(quantity(runs.hits(epsilon, average=False))),
                "no_noise": as_json(quantity(exact[-1])),
                "accepted": rounded(float(runs.judged.honest.mean())),
                "error": as_json(quantity(means(runs.judged.error.mean(axis=0)))),
                "curve": curve(runs),
            }
        )
    allowed = [i for i, row in enumerate(rows) if row["batch"] >= 16]
    fits: Result = {"all": as_json(exponent(scale.agents, hits)), "paper": -2 / 3}
    fits["no noise"] = as_json(exponent(scale.agents, exact))
    if len(allowed) > 1:
        fits["B >= 16"] = as_json(exponent([scale.agents[i] for i in allowed], [hits[i] for i in allowed]))
    return {"epsilon": rounded(epsilon), "rows": rows, "fits": fits, "constants": constants._asdict()}


# --- the strongest attack, and trajectories against alpha

HONEST_BATCH = 26
"""B by the rule when nobody lies: that sets epsilon."""


def experiment_alpha(scale: Scale, note: Note) -> Result:
    """The strongest attack by what it does to learning, then trajectories until epsilon against alpha under it."""
    mdp = MDPS["chain"]()
    constants = constants_of("chain")
    theta = jnp.zeros((mdp.states, mdp.actions))
    sigma = calibrated_sigma(make_lab(mdp, agents=AGENTS), theta, jax.random.key(9))
    reference, liars = 64, 6
    names = (*BUILT_IN, *AIMS)
    contest: list[Result] = []
    for i, name in enumerate(names):
        note(0.4 * i / len(names), f"attack {name}")
        lab = attackers(mdp, liars, name)
        advance = compile_lab(lab, scale.repetitions, reference)
        sizes = sizes_of("fedpg-br", reference, constants, sigma)
        runs = run_until(advance, lab, sizes, 0.0, scale._replace(rounds=40), 4)
        row: Result = {"attack": name, "gradient": as_json(quantity(means(runs.gradient.mean(axis=0))))}
        row["error"] = as_json(quantity(means(runs.judged.error.mean(axis=0))))
        row["accepted"] = rounded(float(runs.judged.liars.mean()))
        row["honest"] = rounded(float(runs.judged.honest.mean()))
        contest.append(row)
    strongest = max(contest, key=lambda row: row["gradient"][0])["attack"]
    epsilon = constants.variance / (SHARE * HONEST_BATCH * AGENTS)
    rows: list[Result] = []
    hits, errors = [], []
    for i, count in enumerate(scale.liars):
        where = f"{strongest}, {count} of {AGENTS}"
        lab = attackers(mdp, count, strongest)
        (seen,) = aggregates(lab, theta, scale.draws, [(reference, sigma)])
        error = means(seen.error)
        # The rule: B is such that the error under this attack, measured once at the first policy, is 0.4 epsilon.
        batch = max(1, round(reference * float(error[0]) / (SHARE * epsilon)))
        advance = compile_lab(lab, scale.repetitions, batch)
        sizes = sizes_of("fedpg-br", batch, constants, sigma)
        runs = run_until(
            advance, lab, sizes, epsilon, scale, 5,
            lambda share: note(0.4 + 0.6 * (i + share) / len(scale.liars), where),  # noqa: B023
        )  # fmt: skip
        hits.append(runs.hits(epsilon))
        errors.append(error * reference)
        rows.append(
            {
                "liars": count,
                "alpha": count / AGENTS,
                "batch": batch,
                "rounds": len(runs.gradient),
                "error_times_B": as_json(quantity(errors[-1])),
                "error_times_B_while_learning": as_json(quantity(batch * means(runs.judged.error.mean(axis=0)))),
                "per_agent": as_json(quantity(hits[-1])),
                "accepted": rounded(float(runs.judged.liars.mean())),
                "honest": rounded(float(runs.judged.honest.mean())),
            }
        )
    shares = [count / AGENTS for count in scale.liars]
    added = slice(1, None)
    fits = {
        "error": as_json(excess_exponent(shares[added], errors[added], errors[0])),
        "trajectories": as_json(excess_exponent(shares[added], hits[added], hits[0])),
        "paper error": 2.0,
        "paper trajectories": 4 / 3,
    }
    return {
        "agents": AGENTS,
        "epsilon": rounded(epsilon),
        "sigma": rounded(sigma),
        "contest": {"batch": reference, "liars": liars, "rounds": 40, "rows": contest},
        "strongest": strongest,
        "rows": rows,
        "fits": fits,
    }
