"""Settings: one frozen record, checked once."""

import contextlib
import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedpg.errors import ConfigError, unknown

PresetName = Literal["best", "paper", "released"]
SUCCESSORS = ("byzpg", "res-nharpg", "n-pg-igt", "fedsvrpg-m")
"""What others made of FedPG-BR since."""
BUILT_IN = ("natural", "fedpg-br", "svrpg", "gpomdp", *SUCCESSORS)
"""The algorithms that have a name; another one is `package.module:object`."""
STEPS_BY = {"natural": "kl", "res-nharpg": "step", "n-pg-igt": "step", "fedsvrpg-m": "rate"}
"""Those that choose the length of their steps without an optimiser, and the option that it depends on."""
ONE_STEP = ("natural", "gpomdp", *SUCCESSORS)
"""Those without an inner loop."""


@dataclass(frozen=True)
class Config:
    """Everything that decides a run, besides its seed."""

    task: str = "CartPole-v1"
    """The task: a Gymnasium id, or your own as `package.module:factory`."""
    preset: PresetName = "paper"
    """Where the defaults come from: `best` (natural steps), `paper` (its text), `released` (what made its figures)."""
    algorithm: str = "fedpg-br"
    """`natural` (natural steps), the paper's `fedpg-br` (Algorithm 1), `svrpg` (Algorithm 5), `gpomdp` (Algorithm 4),
    their successors `byzpg`, `res-nharpg`, `n-pg-igt` and `fedsvrpg-m` (docs/successors.md), or your own
    `package.module:object`."""
    algorithm_options: tuple[str, ...] = ()
    """Parameters of the algorithm, as `name=value`."""

    agents: int = 10
    """K, the number of agents in the federation."""
    vary: tuple[str, ...] = ()
    """What differs between the agents' tasks: `length=0.5` (each draws from its nominal value give or take half of it),
    `length=even:0.5`, `length=0.3:0.7`, one value for each agent, or your own `package.module:function` of an agent's
    number (docs/heterogeneity.md)."""
    vary_seed: int = 0
    """What is drawn for that depends on this seed, and not on that of the run."""
    byzantine: int = 0
    """How many of the agents are Byzantine (the last ones)."""
    attack: str = "random-noise"
    """What Byzantine agents do (docs/attacks.md): alie, avg-zero, fedpg-attack, ipm, mda-fooling, mimic, min-max,
    min-sum, normalized, opt-alie, opt-ipm, random-action, random-noise, reward-flipping, shuffled-rewards,
    sign-flipping, trim, variance-attack, zero-gradient; the faults infinity, nan, silence, wrong-length; or your own
    `package.module:object`."""
    attack_form: Literal["paper", "released"] = "paper"
    """The attack as the paper's text defines it, or as the released code has it."""
    attack_options: tuple[str, ...] = ()
    """Parameters of the attack, as `name=value` (for example `scale=4`)."""
    attack_start: int = 1
    """The first round in which Byzantine agents attack; before it they are honest."""

    aggregator: str = "compass"
    """What the server makes of the replies: `compass` (by the server's own gradient), `fedpg` (the paper's Algorithm
    1.1), `mean` (no defence); caf, centred-clipping, dnc, fltrust, geometric-median, krum, majority, mda,
    mean-around-median, median, monna, multi-krum, r2, server, smea, trimmed-mean, zeno; before one of them arc,
    bucketing, clipping, nnm (`nnm+krum`); or your own `package.module:object` (docs/aggregators.md)."""
    aggregator_options: tuple[str, ...] = ()
    """Parameters of the aggregator beyond those below, as `name=value`."""
    alpha: float = 0.3
    """The share of Byzantine agents that the aggregator reckons with, below 0.5."""
    sigma: float | Literal["auto"] = "auto"
    """Of the paper's filter: the bound on the deviation of one trajectory's gradient; `auto`: the server's estimate."""
    delta: float = 0.6
    """Of the paper's filter: the probability with which its rule R1 may fail."""
    none_accepted: Literal["skip", "server"] = "skip"
    """If the aggregator accepts nobody: `skip` the round, or step on the `server`'s own gradients."""
    momentum: float = 0.0
    """What agents send is an exponential average of their vectors over rounds, with this weight on the past; 0: this
    round's alone."""

    fail_closed: bool = False
    """If more agents are turned away than alpha allows, the round is not used: more are lying than the aggregator can
    stand, or something is wrong."""

    batch: tuple[int, int] = (12, 20)
    """B: the trajectories per agent and round are drawn from this range, ends included."""
    minibatch: int = 4
    """b: the trajectories of the server per inner step; of every agent in ByzPG's small rounds."""
    inner_law: Literal["fixed", "geometric-from-0", "geometric-from-1"] = "geometric-from-0"
    """N, the inner steps per round: fixed, or geometric with mean B/b (from 0) or B/b + 1 (from 1)."""
    inner_steps: int = 3
    """N, where it is fixed."""
    ratio_bound: float = math.inf
    """The inner loop stops before a step whose mean importance ratio is further than this from 1."""

    estimator: Literal["gpomdp", "reinforce", "standardised", "advantage"] = "gpomdp"
    """The gradient of a trajectory: GPOMDP or REINFORCE (`paper`), standardised GPOMDP (`released`), or advantages by
    a value function that every agent fits to its own batch."""
    baseline: Literal["leave-one-out", "none"] = "leave-one-out"
    """C_b: the mean over the batch's other trajectories, or zero."""
    trace: float = 1.0
    """Of the estimator `advantage`: lambda, from 0 (all by the value function) to 1 (all by the rewards)."""
    importance: Literal["trajectory", "decision", "step"] = "trajectory"
    """One importance weight per trajectory, per decision (cumulative) or per time step."""

    optimizer: str = "adam"
    """`adam`, `sgd`, or your own `package.module:object`; one state through all rounds and inner steps."""
    learning_rate: float = 1e-3
    """The step size eta."""
    discount: float = 0.999
    """The discount factor gamma."""
    horizon: int = 500
    """The longest trajectory in training, in steps; the task's own limit holds as well."""
    test_horizon: int = 500
    """The longest trajectory in evaluation, in steps; the task's own limit holds as well."""
    test_episodes: int = 10
    """Greedy episodes per evaluation; the policy is evaluated after every round."""

    policy: str = "mlp"
    """`mlp` (the paper's networks, by what follows), or your own `package.module:object`."""
    hidden: tuple[int, ...] = (16, 16)
    """The sizes of the policy's hidden layers."""
    activation: Literal["relu", "tanh"] = "relu"
    """The activation of the hidden layers."""
    categorical: Literal["paper", "plain"] = "paper"
    """For discrete actions: tanh before the softmax (paper: then of four actions none has more than 71%), or none."""
    gaussian: Literal["paper", "released"] = "paper"
    """For box actions: one trained log-std per action (paper) or std from a second head (released)."""

    trajectories: int = 5000
    """The run ends when this many trajectories, as the paper counts them, have been sampled."""

    @property
    def name(self) -> str:
        """A short name for folders and titles."""

        def short(name: str) -> str:
            return "".join(c if c.isalnum() or c in "-_." else "-" for c in name.split(":")[-1]).strip("-")

        differ = "-differ" if self.vary else ""
        attackers = f"-{self.byzantine}-{short(self.attack)}" if self.byzantine else ""
        return f"{short(self.task)}-{short(self.algorithm)}-K{self.agents}{differ}{attackers}"

    @property
    def title(self) -> str:
        """A line for people: the task, the algorithm, the agents and what they do."""
        agents = f"{self.agents} agents" if self.agents > 1 else "1 agent"
        liars = f", {self.byzantine} Byzantine ({self.attack})" if self.byzantine else ""
        return f"{self.task}: {self.algorithm}, {agents}{liars}"


def validate(config: Config) -> Config:
    """The same settings, or a ConfigError that says which of them cannot work and what to do."""
    for field in dataclasses.fields(config):
        _check_type(field.name, getattr(config, field.name))
    c = config
    if ":" not in c.algorithm and c.algorithm not in BUILT_IN:
        raise unknown("algorithm", c.algorithm, BUILT_IN)
    low, high = c.batch
    checks = [
        (c.agents >= 1, f"agents must be at least 1, not {c.agents}"),
        (0 <= c.vary_seed < 2**32, f"vary_seed must be from 0 to 2^32 - 1, not {c.vary_seed}"),
        (
            all("=normal:" not in word or word.startswith("action_offset=") for word in c.vary),
            "vary: only action_offset is drawn from a normal distribution; write name=0.5, or name=LOW:HIGH",
        ),
        (c.byzantine >= 0, f"byzantine must be 0 or more, not {c.byzantine}"),
        (
            0 <= c.alpha < 0.5,
            f"alpha must be in [0, 0.5), not {c.alpha}: no rule can stand half its agents lying",
        ),
        (
            2 * c.byzantine < c.agents,
            f"byzantine = {c.byzantine} of {c.agents} agents: fewer than half may be Byzantine; add agents",
        ),
        (
            c.aggregator == "mean" or c.byzantine <= c.alpha * c.agents + 1e-9,
            f"byzantine = {c.byzantine} is more than alpha * agents = {c.alpha * c.agents:g}: "
            "raise alpha (below 0.5), or add agents",
        ),
        (c.attack_start >= 1, f"attack_start must be 1 or more (rounds count from 1), not {c.attack_start}"),
        (
            c.sigma == "auto" or _positive(c.sigma),
            f"sigma must be a positive number or 'auto', not {c.sigma!r}",
        ),
        (0 < c.delta < 1, f"delta must be between 0 and 1, not {c.delta}"),
        (
            0 <= c.momentum < 1,
            f"momentum must be in [0, 1), not {c.momentum}: 0 sends this round's gradients alone, 0.9 is usual",
        ),
        (1 <= low <= high, f"batch must be two numbers, 1 or more, the smaller first, not {low} {high}"),
        (c.minibatch >= 1, f"minibatch must be 1 or more, not {c.minibatch}"),
        (
            c.minibatch <= low or (c.algorithm in ONE_STEP and c.algorithm != "byzpg"),
            f"minibatch = {c.minibatch} is more than the smallest batch, {low}: "
            "b may not exceed B; lower minibatch or raise batch",
        ),
        (c.inner_steps >= 1, f"inner_steps must be 1 or more, not {c.inner_steps}"),
        (c.ratio_bound > 0, f"ratio_bound must be positive (inf: no bound), not {c.ratio_bound}"),
        (_positive(c.learning_rate), f"learning_rate must be a positive number, not {c.learning_rate}"),
        (0 < c.discount <= 1, f"discount must be in (0, 1], not {c.discount}"),
        (c.horizon >= 1, f"horizon must be 1 or more, not {c.horizon}"),
        (c.test_horizon >= 1, f"test_horizon must be 1 or more, not {c.test_horizon}"),
        (c.test_episodes >= 1, f"test_episodes must be 1 or more, not {c.test_episodes}"),
        (all(n >= 1 for n in c.hidden), f"hidden layers must have 1 or more units each, not {c.hidden}"),
        (c.trajectories >= 1, f"trajectories must be 1 or more, not {c.trajectories}"),
        (
            c.algorithm not in ("svrpg", *ONE_STEP) or c.inner_law == "fixed",
            f"algorithm {c.algorithm!r} takes a fixed number of inner steps: set inner_law to 'fixed', "
            "or use algorithm 'fedpg-br'",
        ),
        (
            c.algorithm not in ONE_STEP or (c.inner_steps == 1 and c.none_accepted == "skip"),
            f"algorithm {c.algorithm!r} takes one step per round, on its agents' gradients only: "
            "inner_steps must be 1 and none_accepted 'skip', or use algorithm 'svrpg'",
        ),
        (
            c.importance != "decision" or c.estimator == "gpomdp",
            f"importance 'decision' needs estimator 'gpomdp' (it weighs each reward by its own past), "
            f"not {c.estimator!r}",
        ),
        (
            c.estimator not in ("standardised", "advantage") or c.baseline == "none",
            f"estimator {c.estimator!r} has a baseline of its own: set baseline to 'none'",
        ),
        (
            c.algorithm not in ("natural", *SUCCESSORS) or c.momentum == 0,
            f"algorithm {c.algorithm!r} remembers the rounds before in its own way: momentum must be 0",
        ),
        (0 <= c.trace <= 1, f"trace must be from 0 to 1, not {c.trace}"),
    ]
    for good, message in checks:
        if not good:
            raise ConfigError(message)
    return config


def _positive(value: Any) -> bool:
    return _number(value) and 0 < value < math.inf


STRINGS = ("algorithm_options", "aggregator_options", "attack_options", "vary")
"""The settings that are several texts."""


def _check_type(name: str, value: Any) -> None:
    """Refuse what the command line cannot produce but a file or a Python caller can."""
    hint = _HINTS[name]
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise unknown(name, str(value), get_args(hint))
        return
    default = Config.__dataclass_fields__[name].default
    kind: Any = type(default)
    if name == "sigma":
        good = value == "auto" or _number(value)
    elif kind is float:
        good = _number(value)
    elif kind is tuple:
        item: Any = str if name in STRINGS else int
        good = isinstance(value, tuple) and all(type(x) is item for x in value)
        good = good and (name != "batch" or len(value) == 2)
    else:
        good = type(value) is kind
    if not good:
        raise ConfigError(f"{name} must be like {default!r}, not {value!r}")
    for number in value if isinstance(value, tuple) else (value,):
        if type(number) is int and kind is not float and not -MOST < number < MOST:
            raise ConfigError(f"{name} must be below 2^31, not {number}")


MOST = 2**31
"""Whole numbers are below this: arrays count in 32 bits."""
_HINTS = get_type_hints(Config)


def _number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value == math.inf or abs(value) < 1e300  # a whole number in Python may be too large for a float


def refuse_idle_attack(config: Config) -> None:
    """An attack that nobody makes is a mistake, not a wish."""
    given = [n for n in ("attack", "attack_options", "attack_start") if getattr(config, n) != getattr(Config, n)]
    if given and not config.byzantine:
        raise ConfigError(f"{given[0]} is given, but no agent is Byzantine: say how many with byzantine")
    refuse_late_attack(config)


def refuse_late_attack(config: Config) -> None:
    """Nor is one that starts when the run is over: the defence would be praised for nothing."""
    most = most_rounds(config)
    if config.byzantine and config.attack_start > most:
        raise ConfigError(
            f"attack_start = {config.attack_start} is after the last round: {config.trajectories} trajectories are "
            f"{most} rounds at the most; lower attack_start, or raise trajectories"
        )


def most_rounds(config: Config) -> int:
    """No run has more, however small its batches are drawn."""
    large = config.algorithm in BUILT_IN and config.algorithm != "byzpg"  # others may ask for b trajectories
    batch = _batches(config) * (config.batch[0] if large else min(config.batch[0], config.minibatch))
    k, own = config.agents, max(config.batch[1], 2) if config.algorithm == "natural" else 0  # at the least
    counted = batch + own if k == 1 else max(1, round((batch * k + own) / (k + 1)))  # as the paper does: all of them
    return -(-config.trajectories // counted)


def _batches(config: Config) -> int:
    """How many every agent samples in a round, before there is an `Algorithm` to ask; at the least, of a user's own."""
    if config.algorithm == "fedsvrpg-m":
        steps = [option.removeprefix("steps=") for option in config.algorithm_options if option.startswith("steps=")]
        with contextlib.suppress(ValueError):  # what is no number is refused where the algorithm is made
            return max(1, int(steps[0])) if steps else 2
    return 2 if config.algorithm == "res-nharpg" else 1


def of_compass(aggregator: str) -> bool:
    """Whether compass decides, by the server's own gradient: it has no use for sigma and delta."""
    return str(aggregator).split("+")[-1] == "compass"


RENAMED_SETTINGS = {"filter": "aggregator", "nobody": "none_accepted"}
RENAMED_VALUES = {"attack_form": {"text": "paper", "figures": "released"}}
"""What the first edition called them, in files that it wrote."""


def to_json(config: Config) -> dict[str, Any]:
    """The settings as plain JSON values (infinity as the string "inf")."""
    values = dataclasses.asdict(config)
    return {k: "inf" if v == math.inf else list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def from_json(values: dict[str, Any]) -> Config:
    """The settings back from `to_json`, validated."""
    values = {RENAMED_SETTINGS.get(name, name): value for name, value in values.items()}
    refuse_unknown(values)
    plain: dict[str, Any] = {
        k: math.inf if v == "inf" else tuple(v) if isinstance(v, list) else v for k, v in values.items()
    }
    for name, renamed in RENAMED_VALUES.items():
        if isinstance(plain.get(name), str):
            plain[name] = renamed.get(plain[name], plain[name])
    return validate(Config(**plain))


def refuse_unknown(values: Iterable[str]) -> None:
    """An error for names that are no settings."""
    names = {f.name for f in dataclasses.fields(Config)}
    for name in values:
        if name not in names:
            raise unknown("setting", name, names)
