"""What the experiments of `fedpg theory lab` share: how much is measured, the rule for all sizes, and the runs.

One rule sets every size, for all methods and all points. B is such that the aggregate's error E||mu_t - grad J||^2 is
0.4 epsilon, which is where the bound's own trade-off is best (`fedpg.theory.bound.plan`: B = 5 c / (2 epsilon)), with
the measured variance in place of the bound's. Steps are those of each method's theory with the measured constants
(`fedpg.theory.effective`): 1/L for plain policy gradient; min(1/L, 1/(2 sqrt Phi)) for SVRPG with N = B^(1/3) and
b = B^(2/3); 1/(2 Psi B^(2/3)) for FedPG-BR with b = 1 and geometric N, as Theorem 1 has it.

Two controls go as far in a round as FedPG-BR does in the mean, B steps of that size: "no correction" takes them as one
plain step of B^(1/3)/(2 Psi), "no noise" as exact ascent. What they share with FedPG-BR comes from the sizes alone.
"""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpg.attacks import make_attack
from fedpg.theory.effective import POINTS, Effective, effective
from fedpg.theory.fits import Estimate, hitting
from fedpg.theory.mdp import MDPS, Tabular, ascent, exact_gradient
from fedpg.theory.runs import Advance, Judged, Lab, Outcome, Sizes, compile_aggregate, make_lab
from fedpg.theory.search import AIMS, search

Result = dict[str, Any]
Note = Callable[[float, str], None]
"""(the share of the experiment that is done, what is being done)."""

SHARE = 0.4
"""Of epsilon, what the error of the aggregate may take."""
BLOCK = 8
"""Rounds per compiled call."""


class Scale(NamedTuple):
    """How much is measured; the code is the same."""

    repetitions: int = 24
    halvings: tuple[tuple[str, int], ...] = (("chain", 4), ("grid", 3), ("garnet", 3))
    """How often epsilon is halved, from a third of the largest ||grad J||^2 on the way of a perfect learner."""
    agents: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    one_agent: int = 1024  # B of a single agent, where K is swept; others have a share of it
    liars: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)  # of 20 agents
    crowds: tuple[int, ...] = (10, 20, 40, 80)  # K, where the aggregate's error is swept over it
    draws: int = 512  # of the aggregate at a fixed policy
    rounds: int = 400  # at most


QUICK = Scale(
    repetitions=4,
    halvings=(("chain", 2),),
    agents=(1, 4),
    one_agent=128,
    liars=(0, 2, 6),
    crowds=(10, 20),
    draws=32,
    rounds=60,
)


CONTROLS = ("no correction", "no noise")


def sizes_of(method: str, batch: int, constants: Effective, sigma: float = math.inf) -> Sizes:
    """The sizes of a method, by the rule."""
    plain = 1 / constants.smoothness
    if method == "fedpg-br":
        return Sizes(batch, 1, 1 / (2 * constants.psi * batch ** (2 / 3)), 0, sigma)
    if method == "svrpg":
        step = min(plain, 1 / (2 * math.sqrt(constants.correction)))
        return Sizes(batch, round(batch ** (2 / 3)), step, round(batch ** (1 / 3)), sigma)
    if method in CONTROLS:
        return Sizes(batch, 1, batch ** (1 / 3) / (2 * constants.psi), 1, sigma)
    return Sizes(batch, 1, plain, 1, sigma)


class Runs(NamedTuple):
    """The rounds of all repetitions."""

    gradient: np.ndarray  # [T, R]: ||grad J||^2
    agent: np.ndarray  # [T, R]: trajectories of one agent so far
    server: np.ndarray  # [T, R]: trajectories of the server so far
    judged: Judged

    def hits(self, epsilon: float, average: bool = True, server: bool = False) -> np.ndarray:
        """Trajectories until epsilon, and bootstrap draws; of an agent, with or without the server's."""
        return hitting(self.gradient, self.agent + self.server * server, epsilon, average=average)


def run_until(
    advance: Advance,
    lab: Lab,
    sizes: Sizes,
    epsilon: float,
    scale: Scale,
    seed: int,
    note: Callable[[float], None] = lambda share: None,
) -> Runs:
    """Rounds until the policy that is uniform over them has E||grad J||^2 well below epsilon, or there are too many."""
    theta = jnp.zeros((scale.repetitions, lab.mdp.states, lab.mdp.actions))
    key = jax.random.key(seed)
    blocks: list[Outcome] = []
    while True:
        keys = jax.random.split(jax.random.fold_in(key, len(blocks)), (scale.repetitions, BLOCK))
        theta, outcome = advance(theta, keys, sizes)
        blocks.append(jax.tree.map(np.asarray, outcome))
        done: Outcome = jax.tree.map(lambda *parts: np.concatenate(parts), *blocks)
        average = float(done.gradient.mean())
        last = float(blocks[-1].gradient.mean())
        note(min(1.0, 0.85 * epsilon / average))
        if (average <= 0.85 * epsilon and last <= epsilon) or len(done.gradient) >= scale.rounds:
            break
    rounds = np.arange(1, len(done.gradient) + 1)[:, None] * np.ones(scale.repetitions)
    server = np.cumsum(done.inner, axis=0) * int(sizes.minibatch)
    if int(sizes.fixed) == 1:
        server = 0 * server  # plain policy gradient has no inner loop
    return Runs(done.gradient, rounds * int(sizes.batch), server, done.judged)


def run_exactly(mdp: Tabular, sizes: Sizes, rounds: int, substeps: int = 16) -> Runs:
    """Exact ascent, as far in a round as the sizes say, in small steps; an agent and the server would take B each."""
    path = ascent(mdp, float(sizes.step) / substeps, rounds * substeps + 1)[substeps::substeps]  # [T, S, A]
    gradient = np.asarray(jax.lax.map(lambda theta: jnp.sum(exact_gradient(mdp, theta) ** 2), path))[:, None]
    taken = np.arange(1, rounds + 1)[:, None] * float(sizes.batch)
    zero = np.zeros_like(gradient)
    return Runs(gradient, taken, taken, Judged(error=zero, honest=zero + 1, liars=zero, rule=zero))


def curve(runs: Runs, points: int = 60) -> list[list[float]]:
    """(trajectories of an agent, E||grad J||^2 of the uniform output, of the last policy), thinned."""
    total = len(runs.gradient)
    uniform = np.cumsum(runs.gradient.mean(axis=1)) / np.arange(1, total + 1)
    which = np.unique(np.round(np.geomspace(1, total, points)).astype(int)) - 1
    return [[float(runs.agent[i, 0]), rounded(uniform[i]), rounded(runs.gradient[i].mean())] for i in which]


def rounded(value: float, digits: int = 5) -> float:
    return float(f"{value:.{digits}g}")


def as_json(estimate: Estimate) -> list[float | None]:
    """[value, low, high], with null for what was not reached."""
    return [None if math.isnan(x) else rounded(x) for x in estimate]


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
    return lab._replace(attack=make_attack(attack))


def aggregates(lab: Lab, theta: Array, draws: int, cases: Iterable[tuple[int, float]], seed: int = 3) -> list[Judged]:
    """The aggregator's verdicts at a fixed policy, `draws` of them, for each (B, sigma); nothing is learnt.  [draws]"""
    compiled = compile_aggregate(lab, 32)
    keys = jax.random.split(jax.random.key(seed), draws)
    found = (compiled(theta, keys, Sizes(batch, 1, 0.0, 1, sigma)) for batch, sigma in cases)
    return [jax.tree.map(np.asarray, judged) for judged in found]


@functools.cache
def constants_of(name: str, estimator: str = "gpomdp", points: tuple[int, ...] = POINTS) -> Effective:
    """The measured constants of an MDP, once for all experiments."""
    return effective(make_lab(MDPS[name](), estimator=estimator), points=points)
