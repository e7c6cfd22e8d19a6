"""Settings: one frozen record, the paper's table as presets, checked once."""

import dataclasses
import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

PresetName = Literal["paper", "released"]
AlgorithmName = Literal["fedpg-br", "svrpg", "gpomdp"]


class ConfigError(ValueError):
    """A setting that cannot work; the message says which, and what to do."""


class SimulationError(RuntimeError):
    """A task that cannot go on; the message says which, and why."""


def unknown(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that nobody registered, with the nearest ones that somebody did."""
    known = sorted(known)
    lower = {k.lower(): k for k in known}
    near = [lower[k] for k in difflib.get_close_matches(str(name).lower(), lower, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return ConfigError(f"unknown {kind} {name!r}: {hint}The {kind}s are {', '.join(known)}.")


@dataclass(frozen=True)
class Config:
    """Everything that decides a run, besides its seed."""

    task: str = "CartPole-v1"
    """The task: a Gymnasium id, or your own as `package.module:factory`."""
    preset: PresetName = "paper"
    """Where the defaults come from: `paper` (its text; CartPole) or `released` (what made its figures; other tasks)."""
    algorithm: AlgorithmName = "fedpg-br"
    """`fedpg-br` (Algorithm 1), `svrpg` (Algorithm 5) or `gpomdp` (Algorithm 4)."""

    agents: int = 10
    """K, the number of agents in the federation."""
    byzantine: int = 0
    """How many of the agents are Byzantine (the last ones)."""
    attack: str = "random-noise"
    """What Byzantine agents do: an attack or a fault by name, or your own `package.module:function`."""
    attack_form: Literal["text", "figures"] = "text"
    """The attack as the paper's text defines it, or as its figures used it."""
    attack_options: tuple[str, ...] = ()
    """Parameters of the attack, as `name=value` (for example `scale=4`)."""
    attack_start: int = 1
    """The first round in which Byzantine agents attack; before it they are honest."""

    filter: str = "fedpg"
    """`fedpg` (Algorithm 1.1), `r2` (its rule R2 alone), `majority` (its set S itself) or `mean` (no filter)."""
    alpha: float = 0.3
    """The share of Byzantine agents that the filter reckons with, below 0.5."""
    sigma: float | Literal["auto"] = "auto"
    """The bound on the deviation of one trajectory's gradient; `auto`: the server estimates it."""
    delta: float = 0.6
    """The probability with which rule R1 may fail."""
    nobody: Literal["skip", "server"] = "skip"
    """If the filter accepts nobody: `skip` the round, or step on the `server`'s own gradients."""

    batch: tuple[int, int] = (12, 20)
    """B: the trajectories per agent and round are drawn from this range, ends included."""
    minibatch: int = 4
    """b: the trajectories of the server per inner step."""
    inner_law: Literal["fixed", "geometric-from-0", "geometric-from-1"] = "geometric-from-0"
    """N, the inner steps per round: fixed, or geometric with mean B/b (from 0) or B/b + 1 (from 1)."""
    inner_steps: int = 3
    """N, where it is fixed."""
    ratio_bound: float = math.inf
    """The inner loop stops before a step whose mean importance ratio is further than this from 1."""

    estimator: Literal["gpomdp", "reinforce", "standardised"] = "gpomdp"
    """The gradient of a trajectory: GPOMDP or REINFORCE (the text), or standardised GPOMDP (the figures)."""
    baseline: Literal["leave-one-out", "none"] = "leave-one-out"
    """C_b: the mean over the batch's other trajectories, or zero."""
    importance: Literal["trajectory", "decision", "step"] = "trajectory"
    """One importance weight per trajectory, per decision (cumulative) or per time step."""

    optimizer: Literal["adam", "sgd"] = "adam"
    """The server's optimiser; one state through all rounds and inner steps."""
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

    hidden: tuple[int, ...] = (16, 16)
    """The sizes of the policy's hidden layers."""
    activation: Literal["relu", "tanh"] = "relu"
    """The activation of the hidden layers."""
    gaussian: Literal["paper", "released"] = "paper"
    """For box actions: one trained log-std per action (paper) or std from a second head (released)."""

    trajectories: int = 5000
    """The run ends when this many trajectories, as the paper counts them, have been sampled."""

    @property
    def required(self) -> int:
        """(1 - alpha) K: how many agents R1 must accept to stand (line 5 of Algorithm 1.1)."""
        return math.ceil((1 - self.alpha) * self.agents - 1e-9)

    @property
    def name(self) -> str:
        """A short name for folders and titles."""
        attack = "".join(c for c in self.attack.split(":")[-1] if c.isalnum() or c in "-_")
        attackers = f"-{self.byzantine}-{attack}" if self.byzantine else ""
        task = "".join(c if c.isalnum() or c in "-_." else "-" for c in self.task.split(":")[-1]).strip("-")
        return f"{task}-{self.algorithm}-K{self.agents}{attackers}"


# The paper's hyper-parameter table: what a task sets, whatever the preset.
TASKS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "hidden": (16, 16),
        "activation": "relu",
        "learning_rate": 1e-3,
        "discount": 0.999,
        "trajectories": 5000,
        "horizon": 500,
        "test_horizon": 500,
        "batch": (12, 20),
        "minibatch": 4,
        "sigma": 0.06,
    },
    "LunarLander-v3": {
        "hidden": (64, 64),
        "activation": "tanh",
        "learning_rate": 1e-3,
        "discount": 0.99,
        "trajectories": 10_000,
        "horizon": 1000,
        "test_horizon": 1000,
        "batch": (26, 38),
        "minibatch": 8,
        "sigma": 0.07,
    },
    "HalfCheetah-v5": {
        "hidden": (64, 64),
        "activation": "tanh",
        "learning_rate": 8e-5,
        "discount": 0.995,
        "trajectories": 10_000,
        "horizon": 500,
        "test_horizon": 1000,
        "batch": (46, 50),
        "minibatch": 16,
        # The table has 0.9, which fits agents that share one stream of noise, as behind the figures. With noise of
        # their own, it turns away a quarter of the honest ones.
        "sigma": "auto",
    },
}

# A task that is not in the table: the middle of it, and sigma from the task itself.
OTHER_TASKS: dict[str, Any] = {
    "hidden": (64, 64),
    "activation": "tanh",
    "learning_rate": 1e-3,
    "discount": 0.99,
    "trajectories": 5000,
    "horizon": 1000,
    "test_horizon": 1000,
    "batch": (26, 38),
    "minibatch": 8,
    "sigma": "auto",
}

# The paper's names of tasks that have been retired: what they are now, and what changed.
RENAMED = {
    "LunarLander-v2": (
        "LunarLander-v3",
        "Gymnasium retired v2; v3 builds its world anew at each reset, so that a seed repeats it; same rewards",
    ),
    "HalfCheetah-v2": (
        "HalfCheetah-v5",
        "v2 was retired with mujoco-py; v5 runs on MuJoCo's own bindings; its observations and rewards are the same",
    ),
}

# The two readings of the paper: its text, and the experiments behind its figures.
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "attack_form": "text",
        "alpha": 0.3,
        # The table's sigma only makes sense on the scale of the released estimator.
        "sigma": "auto",
        "nobody": "skip",
        "inner_law": "geometric-from-0",
        "ratio_bound": math.inf,
        "estimator": "gpomdp",
        "baseline": "leave-one-out",
        "importance": "trajectory",
        "gaussian": "paper",
    },
    "released": {
        "attack_form": "figures",
        "alpha": 0.4,
        "nobody": "server",
        "inner_law": "geometric-from-1",
        "ratio_bound": 0.005,
        "estimator": "standardised",
        "baseline": "none",
        "importance": "step",
        "gaussian": "released",
    },
}


def renamed(task: str) -> tuple[str, str]:
    """(the task as it is called now, a line that says so and why if it was called otherwise)."""
    if task not in RENAMED:
        return task, ""
    now, why = RENAMED[task]
    return now, f"{task} is {now} here: {why}"


def default_preset(task: str) -> PresetName:
    """The preset that learns better: over long episodes, importance weights of whole trajectories lose their worth."""
    return "paper" if task == "CartPole-v1" else "released"


def make_config(
    task: str = "CartPole-v1",
    preset: PresetName | None = None,
    algorithm: AlgorithmName = "fedpg-br",
    **overrides: Any,
) -> Config:
    """The settings of a preset for a task and an algorithm, with the given ones instead, validated.

    Without a preset: `paper` for CartPole and `released` for the other tasks, because that is what learns better there.
    """
    return validate(defaults(task, preset, algorithm, **overrides))


def defaults(
    task: str = "CartPole-v1",
    preset: PresetName | None = None,
    algorithm: AlgorithmName = "fedpg-br",
    **overrides: Any,
) -> Config:
    """As `make_config`, without the check of the numbers."""
    preset = default_preset(task) if preset is None else preset
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    if algorithm not in get_args(AlgorithmName):
        raise unknown("algorithm", algorithm, get_args(AlgorithmName))
    names = {f.name for f in dataclasses.fields(Config)}
    for name in overrides:
        if name not in names:
            raise unknown("setting", name, names)
    task, _ = renamed(task)
    values = TASKS.get(task, OTHER_TASKS) | PRESETS[preset]
    if algorithm in ("svrpg", "gpomdp"):
        # The table gives these one batch size, the middle of FedPG-BR's range, and no filter.
        low, high = values.get("batch", Config.batch)
        values |= {"batch": ((low + high) // 2,) * 2, "filter": "mean", "inner_law": "fixed"}
        values |= {"inner_steps": 3} if algorithm == "svrpg" else {"inner_steps": 1, "nobody": "skip"}
    values |= {name: tuple(value) if isinstance(value, list) else value for name, value in overrides.items()}
    return Config(**({"task": task, "preset": preset, "algorithm": algorithm} | values))


def validate(config: Config) -> Config:
    """The same settings, or a ConfigError that says which of them cannot work and what to do."""
    for field in dataclasses.fields(config):
        _check_type(field.name, getattr(config, field.name))
    c = config
    low, high = c.batch
    checks = [
        (c.agents >= 1, f"agents must be at least 1, not {c.agents}"),
        (c.byzantine >= 0, f"byzantine must be 0 or more, not {c.byzantine}"),
        (
            0 <= c.alpha < 0.5,
            f"alpha must be in [0, 0.5), not {c.alpha}: no filter can stand half its agents lying",
        ),
        (
            2 * c.byzantine < c.agents,
            f"byzantine = {c.byzantine} of {c.agents} agents: fewer than half may be Byzantine; add agents",
        ),
        (
            c.filter == "mean" or c.byzantine <= c.alpha * c.agents + 1e-9,
            f"byzantine = {c.byzantine} is more than alpha * agents = {c.alpha * c.agents:g}: "
            "raise alpha (below 0.5), or add agents",
        ),
        (c.attack_start >= 1, f"attack_start must be 1 or more (rounds count from 1), not {c.attack_start}"),
        (
            c.sigma == "auto" or _positive(c.sigma),
            f"sigma must be a positive number or 'auto', not {c.sigma!r}",
        ),
        (0 < c.delta < 1, f"delta must be between 0 and 1, not {c.delta}"),
        (1 <= low <= high, f"batch must be two numbers, 1 or more, the smaller first, not {low} {high}"),
        (c.minibatch >= 1, f"minibatch must be 1 or more, not {c.minibatch}"),
        (
            c.minibatch <= low or c.algorithm == "gpomdp",
            f"minibatch = {c.minibatch} is more than the smallest batch, {low}: "
            "the inner loop's b may not exceed B; lower minibatch or raise batch",
        ),
        (c.inner_steps >= 1, f"inner_steps must be 1 or more, not {c.inner_steps}"),
        (c.ratio_bound > 0, f"ratio_bound must be positive (inf: no bound), not {c.ratio_bound}"),
        (_positive(c.learning_rate), f"learning_rate must be a positive number, not {c.learning_rate}"),
        (0 < c.discount <= 1, f"discount must be in (0, 1], not {c.discount}"),
        (c.horizon >= 1, f"horizon must be 1 or more, not {c.horizon}"),
        (c.test_horizon >= 1, f"test_horizon must be 1 or more, not {c.test_horizon}"),
        (c.test_episodes >= 1, f"test_episodes must be 1 or more, not {c.test_episodes}"),
        (all(n >= 1 for n in c.hidden), f"hidden layers must have 1 or more units each, not {c.hidden}"),
        (1 <= c.trajectories < 2**31, f"trajectories must be 1 or more, below 2^31, not {c.trajectories}"),
        (
            c.algorithm == "fedpg-br" or c.inner_law == "fixed",
            f"algorithm {c.algorithm!r} takes a fixed number of inner steps: set inner_law to 'fixed', "
            "or use algorithm 'fedpg-br'",
        ),
        (
            c.algorithm != "gpomdp" or (c.inner_steps == 1 and c.nobody == "skip"),
            "algorithm 'gpomdp' takes one step per round, on its agents' gradients only: "
            "inner_steps must be 1 and nobody 'skip', or use algorithm 'svrpg'",
        ),
        (
            c.importance != "decision" or c.estimator == "gpomdp",
            f"importance 'decision' needs estimator 'gpomdp' (it weighs each reward by its own past), "
            f"not {c.estimator!r}",
        ),
        (
            c.estimator != "standardised" or c.baseline == "none",
            "estimator 'standardised' subtracts each episode's own mean: set baseline to 'none'",
        ),
    ]
    for good, message in checks:
        if not good:
            raise ConfigError(message)
    return config


def _positive(value: Any) -> bool:
    return _number(value) and 0 < value < math.inf


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
        item: Any = str if name == "attack_options" else int
        good = isinstance(value, tuple) and all(type(x) is item for x in value)
        good = good and (name != "batch" or len(value) == 2)
    else:
        good = type(value) is kind
    if not good:
        raise ConfigError(f"{name} must be like {default!r}, not {value!r}")


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


def to_json(config: Config) -> dict[str, Any]:
    """The settings as plain JSON values (infinity as the string "inf")."""
    values = dataclasses.asdict(config)
    return {k: "inf" if v == math.inf else list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def from_json(values: dict[str, Any]) -> Config:
    """The settings back from `to_json`, validated."""
    names = {f.name for f in dataclasses.fields(Config)}
    for name in values:
        if name not in names:
            raise unknown("setting", name, names)
    plain: dict[str, Any] = {
        k: math.inf if v == "inf" else tuple(v) if isinstance(v, list) else v for k, v in values.items()
    }
    return validate(Config(**plain))
