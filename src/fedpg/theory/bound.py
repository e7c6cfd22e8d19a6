"""Theorem 1 as functions: its constants, its three terms, what it asks for, and the trajectories it promises."""

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, ParamSpec, TypeVar

from fedpg.aggregators import concentration
from fedpg.config import Config
from fedpg.errors import ConfigError
from fedpg.presets import TASKS, make_config

FACTOR = 4.0
"""The factor of the whole bound that the appendix adds in red; the proceedings have 1."""
SMALLEST_DELTA = 1e-300
"""Below it 1 / delta is infinite."""
HUGE = 1e150
"""Products of two numbers below it are finite."""
TOO_FAR = "these constants are too large or too small to compute with"

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """What the theorem speaks of: a federation, its sizes, and the constants of its policy and task."""

    agents: int = 10
    """K."""
    alpha: float = 0.0
    """The share of Byzantine agents."""
    batch: int = 16
    """B, the trajectories per agent and round."""
    rounds: int = 1000
    """T."""
    sigma: float = 1.0
    """||g(tau) - grad J|| <= sigma for every trajectory (the assumption on the estimator)."""
    horizon: int = 500
    """H."""
    discount: float = 0.999
    """gamma, below 1."""
    G: float = 1.0
    """||grad log pi(a | s)|| <= G."""
    M: float = 1.0
    """||Hessian of log pi(a | s)|| <= M."""
    R: float = 1.0
    """0 <= r(s, a) <= R."""
    W: float = 1.0
    """Var omega <= W, the importance weights of whole trajectories."""
    baseline: float = 0.0
    """|C_b|."""
    gap: float | None = None
    """J* - J(theta_0); None: the most that rewards in [0, R] allow, R (1 - gamma^H) / (1 - gamma)."""
    delta: float | None = None
    """delta; None: the largest that the theorem allows, 1 / (5 K B)."""
    step: float | None = None
    """eta; None: the largest that the theorem allows, 1 / (2 Psi B^(2/3))."""
    minibatch: int = 1
    """b."""


class Constants(NamedTuple):
    """What the proof derives from G, M, R, W, H and gamma."""

    L: float  # J is L-smooth: H R (M + H G^2) / (1 - gamma)
    L_g: float  # g is L_g-Lipschitz: H M (R + |C_b|) / (1 - gamma)
    C_g: float  # ||g|| <= C_g: H G (R + |C_b|) / (1 - gamma)
    C_w: float  # Var omega <= C_w ||theta_1 - theta_2||^2: H (2 H G^2 + M) (W + 1)
    Phi: float  # L_g + C_g^2 C_w
    Psi: float  # (L Phi)^(1/3)


class Terms(NamedTuple):
    """E||grad J(theta_a)||^2 <= optimisation + sampling + byzantine, each with the factor 4."""

    optimisation: float  # 4 * 2 Psi (J* - J_0) / (T B^(1/3))
    sampling: float  # 4 * 8 sigma^2 / ((1 - alpha)^2 K B)
    byzantine: float  # 4 * 96 alpha^2 sigma^2 V / ((1 - alpha)^2 B)

    @property
    def total(self) -> float:
        """The bound."""
        return sum(self)


class Plan(NamedTuple):
    """The batch and the rounds that make the bound epsilon with the fewest trajectories per agent."""

    epsilon: float
    batch: int
    rounds: int
    step: float
    delta: float
    floor: int  # the smallest batch that the theorem allows

    @property
    def per_agent(self) -> int:
        """T B: what the corollary counts."""
        return self.rounds * self.batch

    def total(self, agents: int) -> int:
        """Of all agents and the server, whose inner steps take B trajectories a round in the mean."""
        return self.per_agent * (agents + 1)


class Condition(NamedTuple):
    """One thing that the theorem or its proof asks for: left <= right."""

    name: str
    source: str  # theorem or proof
    formula: str
    left: float
    right: float
    paper: tuple[str, ...] | None  # the paper's tasks whose experiments violate it; None: it needs their constants

    @property
    def holds(self) -> bool:
        """Both sides are numbers, and in order."""
        return self.left <= self.right * (1 + 1e-12)  # a step or a delta that is exactly the largest allowed


def computable(function: Callable[P, T]) -> Callable[P, T]:
    """The same function, with a ConfigError where numbers become infinite, or zero under a fraction."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            found = function(*args, **kwargs)
        except (OverflowError, ZeroDivisionError) as error:
            raise ConfigError(TOO_FAR) from error
        if isinstance(found, Constants | Terms | Plan) and not all(0 <= x < HUGE for x in found):
            raise ConfigError(TOO_FAR)
        return found

    return wrapped


@computable
def check(setting: Setting) -> Setting:
    """The same setting, or a ConfigError that says what cannot be."""
    s = setting
    for field in dataclasses.fields(s):
        value = getattr(s, field.name)
        if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
            raise ConfigError(f"{field.name} must be a finite number, not {value!r}")
    checks = [
        (s.agents >= 1, f"agents must be 1 or more, not {s.agents}"),
        (0 <= s.alpha < 0.5, f"alpha must be in [0, 0.5), not {s.alpha}: the theorem says nothing beyond"),
        (s.batch >= 1, f"batch must be 1 or more, not {s.batch}"),
        (s.rounds >= 1, f"rounds must be 1 or more, not {s.rounds}"),
        (s.minibatch >= 1, f"minibatch must be 1 or more, not {s.minibatch}"),
        (s.horizon >= 1, f"horizon must be 1 or more, not {s.horizon}"),
        (0 < s.discount < 1, f"discount must be between 0 and 1, not {s.discount}: the constants have 1 / (1 - gamma)"),
        (
            s.delta is None or SMALLEST_DELTA <= s.delta < 1,
            f"delta must be in [{SMALLEST_DELTA:g}, 1), not {s.delta}",
        ),
        (s.step is None or s.step > 0, f"step must be positive, not {s.step}"),
        (s.sigma > 0, f"sigma must be positive, not {s.sigma}"),
        (s.G > 0 and s.M > 0, f"G and M must be positive, not {s.G} and {s.M}"),
        (s.R > 0, f"R must be positive, not {s.R}: without rewards there is nothing to learn"),
        (s.W >= 0 and s.baseline >= 0, f"W and baseline must be 0 or more, not {s.W} and {s.baseline}"),
        (s.gap is None or s.gap >= 0, f"gap must be 0 or more, not {s.gap}"),
    ]
    for good, message in checks:
        if not good:
            raise ConfigError(message)
    return s


@computable
def constants(setting: Setting) -> Constants:
    """The proposition on smoothness and the lemma on importance weights, as formulas."""
    s, long = check(setting), 1 / (1 - setting.discount)
    smooth = s.horizon * s.R * (s.M + s.horizon * s.G**2) * long
    lipschitz = s.horizon * s.M * (s.R + s.baseline) * long
    size = s.horizon * s.G * (s.R + s.baseline) * long
    weight = s.horizon * (2 * s.horizon * s.G**2 + s.M) * (s.W + 1)
    phi = lipschitz + size**2 * weight
    return Constants(smooth, lipschitz, size, weight, phi, (smooth * phi) ** (1 / 3))


def delta_of(setting: Setting) -> float:
    """delta as given, or the largest that the theorem allows."""
    return setting.delta if setting.delta is not None else 1 / (5 * setting.agents * setting.batch)


@computable
def step_of(setting: Setting) -> float:
    """eta as given, or the largest that the theorem allows."""
    largest = 1 / (2 * constants(setting).Psi * setting.batch ** (2 / 3))
    return setting.step if setting.step is not None else largest


def gap_of(setting: Setting) -> float:
    """J* - J_0 as given, or the most that rewards in [0, R] allow."""
    if setting.gap is not None:
        return setting.gap
    return setting.R * (1 - setting.discount**setting.horizon) / (1 - setting.discount)


def variance(setting: Setting) -> float:
    """4 sigma^2 (8/K + 96 alpha^2 V) / (1 - alpha)^2: B times the two terms that more rounds do not lower."""
    s = setting
    v = concentration(s.agents, delta_of(s))
    return FACTOR * s.sigma**2 * (8 / s.agents + 96 * s.alpha**2 * v) / (1 - s.alpha) ** 2


@computable
def terms(setting: Setting) -> Terms:
    """The three terms of Theorem 1; a smaller step than the largest takes 1 / (eta B) in place of 2 Psi / B^(1/3)."""
    s = check(setting)
    v = concentration(s.agents, delta_of(s))
    over = (1 - s.alpha) ** 2 * s.batch
    return Terms(
        FACTOR * gap_of(s) / (s.rounds * s.batch * step_of(s)),
        FACTOR * 8 * s.sigma**2 / (over * s.agents),
        FACTOR * 96 * s.alpha**2 * s.sigma**2 * v / over,
    )


@computable
def smallest_batch(setting: Setting) -> int:
    """The smallest B with B >= 16 (the proof), B >= 4 Phi / L^2 and B >= 2 log(2K/delta) (the theorem)."""
    c = constants(setting)
    batch = max(16, math.ceil(4 * c.Phi / c.L**2))
    while (v := concentration(setting.agents, delta_of(dataclasses.replace(setting, batch=batch)))) > batch:
        if not math.isfinite(v):
            raise ConfigError(TOO_FAR)
        batch += 1  # a few steps: the left side grows by log B at the most
    return batch


def check_epsilon(epsilon: float) -> None:
    if not (0 < epsilon < math.inf):
        raise ConfigError(f"epsilon must be a positive number, not {epsilon}")


@computable
def plan(setting: Setting, epsilon: float) -> Plan:
    """The fewest trajectories per agent for which the bound is epsilon.

    With c = B times the last two terms, T B = 8 Psi gap B^(2/3) / (epsilon - c/B) is least at B = 5 c / (2 epsilon):
    per agent, epsilon^(-5/3) K^(-2/3) where alpha = 0. The theorem's smallest batch may be larger, and then decides.
    """
    check_epsilon(epsilon)
    base = dataclasses.replace(check(setting), step=None)  # the plan's own step goes with its own batch
    floor = smallest_batch(base)
    s = dataclasses.replace(base, batch=floor)
    for _ in range(100):  # V depends on B by log(1 / delta) alone, so this settles at once
        wanted = max(floor, math.ceil(2.5 * variance(s) / epsilon))
        if wanted == s.batch:
            break
        s = dataclasses.replace(s, batch=wanted)
    left = epsilon - variance(s) / s.batch
    first = 2 * FACTOR * constants(s).Psi * gap_of(s) / s.batch ** (1 / 3)
    return Plan(epsilon, s.batch, max(1, math.ceil(first / left)), step_of(s), delta_of(s), floor)


@computable
def conditions(setting: Setting) -> list[Condition]:
    """What Theorem 1 and its proof ask for, with both sides.

    The exponential condition e^(delta B / (2 (1 - 2 delta))) <= 2K/delta <= e^(B/2) is in logarithms: its two sides
    overflow otherwise. Where a condition of the proof is stronger than the theorem's, both are here. What is left of
    the step is 1 - L eta - 1/B - 1/(2 (1 - 2 eta^2 Phi B - 2 L eta^3 Phi B^2)). The lemma on E||v||^2 bounds the square
    of an L_g-Lipschitz difference by L_g, where L_g^2 is meant: Phi as printed is enough for L_g <= 1 only.
    """
    s, c = check(setting), constants(setting)
    delta, eta, batch = delta_of(s), step_of(s), s.batch
    cubic = c.L * eta**3 * c.Phi * batch**2
    square = eta**2 * c.Phi * batch
    bracket = 1 - 2 * square - 2 * cubic
    kept = 1 - c.L * eta - 1 / batch - 1 / (2 * bracket) if bracket > 0 else -math.inf
    rows = [
        ("theorem", "b = 1", s.minibatch, 1),
        ("theorem", "delta <= 1/(5KB)", delta, 1 / (5 * s.agents * batch)),
        ("theorem", "delta B / (2 (1 - 2 delta)) <= log(2K/delta)", *_left_exponential(s.agents, batch, delta)),
        ("theorem", "log(2K/delta) <= B/2", math.log(2 * s.agents / delta), batch / 2),
        ("theorem", "4 Phi / L^2 <= B", 4 * c.Phi / c.L**2, batch),
        ("theorem", "eta <= 1/(2 Psi B^(2/3))", eta, 1 / (2 * c.Psi * batch ** (2 / 3))),
        ("proof", "16 <= B", 16, batch),
        ("proof", "L eta <= 1/16", c.L * eta, 1 / 16),
        ("proof", "eta^2 Phi B <= 1/20", square, 1 / 20),
        ("proof", "L eta^3 Phi B^2 <= 1/20", cubic, 1 / 20),
        ("proof", "1/4 <= what is left of the step", 0.25, kept),
        ("proof", "L_g <= 1 (or L_g^2 in Phi)", c.L_g, 1),
    ]
    return [
        Condition(NAMES[i], source, formula, float(left), float(right), paper_violations(NAMES[i]))
        for i, (source, formula, left, right) in enumerate(rows)
    ]


NAMES = (
    "one-trajectory steps",
    "small delta",
    "exponential, left",
    "exponential, right",
    "batch for the constants",
    "step size",
    "batch of 16",
    "step for L",
    "step for Phi",
    "step for both",
    "a quarter is left",
    "Phi as printed",
)


def _left_exponential(agents: int, batch: int, delta: float) -> tuple[float, float]:
    """Both sides in logarithms; from delta = 1/2 on the exponent has no meaning, and the left side is infinite."""
    left = delta * batch / (2 * (1 - 2 * delta)) if delta < 0.5 else math.inf
    return left, math.log(2 * agents / delta)


def paper_violations(name: str) -> tuple[str, ...] | None:
    """The tasks on which the paper's own experiments violate a condition, at some B_t that they may draw (K = 10).

    None where that cannot be said without their constants; the step is Adam's, which the theorem does not cover.
    """

    def violated(config: Config) -> bool | None:
        low, high = config.batch
        sides = {
            "one-trajectory steps": (config.minibatch, 1),
            "small delta": (config.delta, 1 / (5 * config.agents * high)),
            "exponential, left": _left_exponential(config.agents, high, config.delta),
            "exponential, right": (math.log(2 * config.agents / config.delta), low / 2),
            "step size": (math.inf, 1.0) if config.optimizer == "adam" else None,
            "batch of 16": (16, low),
        }.get(name)
        return None if sides is None else sides[0] > sides[1]

    tasks = {task: violated(make_config(task, "paper")) for task in TASKS}
    if None in tasks.values():
        return None
    return tuple(task for task, bad in tasks.items() if bad)
