"""The experiments of `fedpg theory lab`, where the true gradient is known.

One rule sets every size, for all methods and all points. B is such that the aggregate's error E||mu_t - grad J||^2 is
0.4 epsilon, which is where the bound's own trade-off is best (`fedpg.theory.bound.plan`: B = 5 c / (2 epsilon)), with the
measured variance in place of the bound's. Steps are those of each method's theory with the measured constants
(`fedpg.theory.effective`): 1/L for plain policy gradient; min(1/L, 1/(2 sqrt Phi)) for SVRPG with N = B^(1/3) and
b = B^(2/3); 1/(2 Psi B^(2/3)) for FedPG-BR with b = 1 and geometric N, as Theorem 1 has it.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpg.attacks import ATTACKS
from fedpg.theory.effective import Effective, calibrated_sigma, effective
from fedpg.theory.fits import Estimate, excess_exponent, exponent, hitting, means, quantity
from fedpg.theory.mdp import MDPS, Tabular
from fedpg.theory.runs import Lab, Outcome, Sizes, compile_lab, make_lab
from fedpg.theory.search import AIMS, search

Result = dict[str, Any]
Note = Callable[[float, str], None]
"""(the share of the experiment that is done, what is being done)."""

SHARE = 0.4
"""Of epsilon, what the error of the aggregate may take."""
BLOCK = 8
"""Rounds per compiled call."""
METHODS = ("reinforce", "gpomdp", "svrpg", "fedpg-br")
PAPER_EXPONENTS = {"reinforce": 2.0, "gpomdp": 2.0, "svrpg": 5 / 3, "fedpg-br": 5 / 3}


class Scale(NamedTuple):
    """How much is measured; the code is the same."""

    repetitions: int = 16
    batches: tuple[tuple[str, tuple[int, ...]], ...] = (
        ("chain", (256, 512, 1024, 2048)),
        ("grid", (512, 1024, 2048)),
        ("garnet", (512, 1024, 2048)),
    )
    agents: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    one_agent: int = 1024  # B of a single agent, where K is swept; others have a share of it
    liars: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)  # of 20 agents
    draws: int = 512  # of the aggregate at a fixed policy
    rounds: int = 1000  # at most


QUICK = Scale(
    repetitions=4,
    batches=(("chain", (64, 128)),),
    agents=(1, 4),
    one_agent=128,
    liars=(0, 2, 6),
    draws=32,
    rounds=60,
)


def sizes_of(method: str, batch: int, constants: Effective, sigma: float = math.inf) -> Sizes:
    """The sizes of a method, by the rule."""
    plain = 1 / constants.smoothness
    if method == "fedpg-br":
        return Sizes(batch, 1, 1 / (2 * constants.psi * batch ** (2 / 3)), 0, sigma)
    if method == "svrpg":
        step = min(plain, 1 / (2 * math.sqrt(constants.correction)))
        return Sizes(batch, round(batch ** (2 / 3)), step, round(batch ** (1 / 3)), sigma)
    return Sizes(batch, 1, plain, 1, sigma)


class Runs(NamedTuple):
    """The rounds of all repetitions."""

    gradient: np.ndarray  # [T, R]: ||grad J||^2
    agent: np.ndarray  # [T, R]: trajectories of one agent so far
    server: np.ndarray  # [T, R]: trajectories of the server so far
    outcome: Outcome

    def hits(self, epsilon: float, average: bool = True, server: bool = False) -> np.ndarray:
        """Trajectories until epsilon, and bootstrap draws; of an agent, with or without the server's."""
        return hitting(self.gradient, self.agent + self.server * server, epsilon, average=average)


def run_until(
    advance: Callable[..., Any], lab: Lab, sizes: Sizes, epsilon: float, scale: Scale, seed: int, note: Callable[[float], None]
) -> Runs:
    """Rounds until the policy that is uniform over them has E||grad J||^2 well below epsilon, or there are too many."""
    theta = jnp.zeros((scale.repetitions, lab.mdp.states, lab.mdp.actions))
    key = jax.random.key(seed)
    blocks: list[Outcome] = []
    first = None
    while True:
        keys = jax.random.split(jax.random.fold_in(key, len(blocks)), (scale.repetitions, BLOCK))
        theta, outcome = advance(theta, keys, sizes)
        blocks.append(jax.tree.map(np.asarray, outcome))
        done = Outcome(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))
        average = float(done.gradient.mean())
        last = float(blocks[-1].gradient.mean())
        first = first or average
        note(min(1.0, 0.85 * epsilon / average))
        if (average <= 0.85 * epsilon and last <= epsilon) or len(done.gradient) >= scale.rounds:
            break
    rounds = np.arange(1, len(done.gradient) + 1)[:, None] * np.ones(scale.repetitions)
    server = np.cumsum(done.inner, axis=0) * int(sizes.minibatch)
    if int(sizes.fixed) == 1:
        server = 0 * server  # plain policy gradient has no inner loop
    return Runs(done.gradient, rounds * int(sizes.batch), server, done)


def curve(runs: Runs, points: int = 60) -> list[list[float]]:
    """(trajectories of an agent, E||grad J||^2 of the uniform output, of the last policy), thinned."""
    total = len(runs.gradient)
    uniform = np.cumsum(runs.gradient.mean(axis=1)) / np.arange(1, total + 1)
    which = np.unique(np.round(np.geomspace(1, total, points)).astype(int)) - 1
    return [
        [float(runs.agent[i, 0]), _round(uniform[i]), _round(runs.gradient[i].mean())] for i in which
    ]


def _round(value: float, digits: int = 5) -> float:
    return float(f"{value:.{digits}g}")


def as_json(estimate: Estimate) -> list[float | None]:
    """[value, low, high], with null for what was not reached."""
    return [None if math.isnan(x) else _round(x) for x in estimate]


# --- trajectories against epsilon, one agent


def experiment_epsilon(scale: Scale, note: Note) -> Result:
    """Trajectories until E||grad J||^2 <= epsilon against epsilon, K = 1, for the four methods of Table 1."""
    rows: list[Result] = []
    fits: list[Result] = []
    done, total = 0, sum(len(batches) for _, batches in scale.batches) * len(METHODS)
    for name, batches in scale.batches:
        mdp = MDPS[name]()
        known = {e: effective(make_lab(mdp, estimator=e)) for e in ("gpomdp", "reinforce")}
        for method in METHODS:
            kind = "reinforce" if method == "reinforce" else "gpomdp"
            lab, constants = make_lab(mdp, estimator=kind), known[kind]
            # Equal epsilon for all methods: those of GPOMDP's variance. REINFORCE's is larger, and so are its batches.
            epsilons = [known["gpomdp"].variance / (SHARE * batch) for batch in batches]
            chosen = [round(constants.variance / (SHARE * epsilon)) for epsilon in epsilons]
            advance = compile_lab(lab, scale.repetitions, 256, max(chosen) ** 2 if method == "svrpg" else 1)
            uniform, last = [], []
            for batch, epsilon in zip(chosen, epsilons, strict=True):
                where = f"{name}, {method}, epsilon {epsilon:.3g}"
                base = done
                runs = run_until(
                    advance, lab, sizes_of(method, batch, constants), epsilon, scale, 1,
                    lambda share: note((base + share) / total, where),  # noqa: B023
                )  # fmt: skip
                done += 1
                uniform.append(runs.hits(epsilon, server=True))
                last.append(runs.hits(epsilon, average=False, server=True))
                rows.append(
                    {
                        "mdp": name,
                        "method": method,
                        "epsilon": _round(epsilon),
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
                    "paper": PAPER_EXPONENTS[method],
                }
            )
    constants_of = {
        name: effective(make_lab(MDPS[name]()))._asdict() for name, _ in scale.batches
    }
    return {"rows": rows, "fits": fits, "constants": constants_of}


# --- trajectories against K, all honest


def experiment_agents(scale: Scale, note: Note) -> Result:
    """Trajectories per agent until epsilon against K, all honest, FedPG-BR with its filter at work."""
    mdp = MDPS["chain"]()
    constants = effective(make_lab(mdp))
    epsilon = constants.variance / (SHARE * scale.one_agent)
    rows, hits = [], []
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
        rows.append(
            {
                "agents": agents,
                "batch": batch,
                "rounds": len(runs.gradient),
                "per_agent": as_json(quantity(hits[-1])),
                "last": as_json(quantity(runs.hits(epsilon, average=False))),
                "accepted": _round(float(runs.outcome.honest.mean())),
                "error": as_json(quantity(means(runs.outcome.error.mean(axis=0)))),
                "curve": curve(runs),
            }
        )
    allowed = [i for i, row in enumerate(rows) if row["batch"] >= 16]
    fits = {"all": as_json(exponent(scale.agents, hits)), "paper": -2 / 3}
    if len(allowed) > 1:
        fits["B >= 16"] = as_json(exponent([scale.agents[i] for i in allowed], [hits[i] for i in allowed]))
    return {"epsilon": _round(epsilon), "rows": rows, "fits": fits, "constants": constants._asdict()}


# --- the strongest attack, and trajectories against alpha

AGENTS = 20
BUILT_IN = ("random-noise", "random-action", "sign-flipping", "fedpg-attack", "variance-attack", "zero-gradient")


def attackers(mdp: Tabular, liars: int, attack: str, **settings: Any) -> Lab:
    """The lab with that many Byzantine agents, and alpha to match."""
    agents = settings.pop("agents", AGENTS)
    settings |= {"agents": agents, "byzantine": liars, "alpha": min(liars / agents + 1e-9, 0.4999)}
    lab = make_lab(mdp, **settings)
    if not liars:
        return lab
    if attack in AIMS:
        return lab._replace(lie=search(lab.config, AIMS[attack]))
    return lab._replace(attack=ATTACKS[attack]("text"))


def aggregate(lab: Lab, theta: Array, scale: Scale, sizes: Sizes, seed: int = 3) -> Outcome:
    """One round's verdicts at a fixed policy, `draws` of them; nothing is learnt.  [draws]"""
    repetitions = min(scale.draws, 64)
    advance = compile_lab(lab, repetitions, int(sizes.batch))
    thetas = jnp.broadcast_to(theta, (repetitions, *theta.shape))
    still = sizes._replace(step=0.0, fixed=1)
    keys = jax.random.split(jax.random.key(seed), (repetitions, scale.draws // repetitions))
    return jax.tree.map(lambda x: np.asarray(x).ravel(), advance(thetas, keys, still)[1])


def experiment_alpha(scale: Scale, note: Note) -> Result:
    """The strongest attack by what it does to learning, then trajectories until epsilon against alpha under it."""
    mdp = MDPS["chain"]()
    constants = effective(make_lab(mdp))
    theta = jnp.zeros((mdp.states, mdp.actions))
    sigma = calibrated_sigma(make_lab(mdp, agents=AGENTS), theta, jax.random.key(9))
    reference, liars = 64, 6
    names = (*BUILT_IN, *AIMS)
    contest = []
    for i, name in enumerate(names):
        note(0.4 * i / len(names), f"attack {name}")
        lab = attackers(mdp, liars, name)
        advance = compile_lab(lab, scale.repetitions, reference)
        sizes = sizes_of("fedpg-br", reference, constants, sigma)
        runs = run_until(advance, lab, sizes, 0.0, scale._replace(rounds=40), 4, lambda share: None)
        row = {"attack": name, "gradient": as_json(quantity(means(runs.gradient.mean(axis=0))))}
        row["error"] = as_json(quantity(means(runs.outcome.error.mean(axis=0))))
        row["accepted"] = _round(float(runs.outcome.liars.mean()))
        row["honest"] = _round(float(runs.outcome.honest.mean()))
        contest.append(row)
    strongest = max(contest, key=lambda row: row["gradient"][0])["attack"]
    epsilon = constants.variance / (SHARE * 26 * AGENTS)
    rows, hits, errors = [], [], []
    for i, count in enumerate(scale.liars):
        where = f"{strongest}, {count} of {AGENTS}"
        lab = attackers(mdp, count, strongest)
        seen = aggregate(lab, theta, scale, Sizes(reference, 1, 0.0, 1, sigma))
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
                "per_agent": as_json(quantity(hits[-1])),
                "accepted": _round(float(runs.outcome.liars.mean())),
                "honest": _round(float(runs.outcome.honest.mean())),
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
        "epsilon": _round(epsilon),
        "sigma": _round(sigma),
        "contest": {"batch": reference, "liars": liars, "rounds": 40, "rows": contest},
        "strongest": strongest,
        "rows": rows,
        "fits": fits,
    }


EXPERIMENTS: dict[str, Callable[[Scale, Note], Result]] = {
    "epsilon": experiment_epsilon,
    "agents": experiment_agents,
    "alpha": experiment_alpha,
}


def names() -> Iterator[str]:
    """The experiments, in order."""
    yield from EXPERIMENTS
