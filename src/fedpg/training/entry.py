"""`fedpg.train`: a run from Python, by names or by objects."""

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

import gymnasium
import optax
from jax import Array

from fedpg.aggregators import Aggregator
from fedpg.assembly import MakePolicy, make_problem
from fedpg.attacks import Attack, Scene
from fedpg.config import STRINGS, Config, PresetName, refuse_idle_attack
from fedpg.errors import ConfigError
from fedpg.extras import has
from fedpg.policies import Params, Policy
from fedpg.presets import make_config, renamed
from fedpg.problem import Algorithm, Problem
from fedpg.tasks import AnyTask, make_task
from fedpg.tasks.differences import SWITCH, WINDS
from fedpg.tasks.physics import plain
from fedpg.training.progress import Live, Silent, make_reporter
from fedpg.training.result import Run
from fedpg.training.run import train_seeds
from fedpg.training.start import read_start


class Settings(TypedDict, total=False):
    """The numbers of a run; each is described in `fedpg.Config`. What is not given comes from the preset."""

    algorithm_options: Sequence[str]
    agents: int
    vary: Sequence[str]
    vary_seed: int
    byzantine: int
    attack_form: Literal["paper", "released"]
    attack_options: Sequence[str]
    attack_start: int
    aggregator_options: Sequence[str]
    alpha: float
    sigma: float | Literal["auto"]
    delta: float
    none_accepted: Literal["skip", "server"]
    momentum: float
    fail_closed: bool
    batch: tuple[int, int]
    minibatch: int
    inner_law: Literal["fixed", "geometric-from-0", "geometric-from-1"]
    inner_steps: int
    ratio_bound: float
    estimator: Literal["gpomdp", "reinforce", "standardised", "advantage"]
    trace: float
    categorical: Literal["paper", "plain"]
    baseline: Literal["leave-one-out", "none"]
    importance: Literal["trajectory", "decision", "step"]
    learning_rate: float
    discount: float
    horizon: int
    test_horizon: int
    test_episodes: int
    hidden: tuple[int, ...]
    activation: Literal["relu", "tanh"]
    gaussian: Literal["paper", "released"]
    trajectories: int


AnyAttack = str | Attack | Callable[[], Attack] | Callable[[Scene], Array]


class Arguments(Settings, total=False):
    """Everything else that `train` takes, besides the task and the seeds."""

    preset: PresetName | None
    algorithm: str | Algorithm | Callable[..., Algorithm] | None
    attack: AnyAttack | None
    aggregator: str | Aggregator | Callable[..., Aggregator] | None
    policy: str | Policy | MakePolicy
    optimizer: str | optax.GradientTransformation | Callable[[float], optax.GradientTransformation]
    parameters: Mapping[str, Sequence[Any]] | None
    start: str | Path | Params | None
    out: str | Path | None
    resume: bool
    progress: bool | None
    stop: threading.Event | None


@overload
def train(task: AnyTask = ..., *, seed: int = ..., **arguments: Unpack[Arguments]) -> Run: ...
@overload
def train(task: AnyTask = ..., *, seeds: Sequence[int], **arguments: Unpack[Arguments]) -> list[Run]: ...
def train(
    task: AnyTask = "CartPole-v1",
    *,
    preset: PresetName | None = None,
    algorithm: str | Algorithm | Callable[..., Algorithm] | None = None,
    attack: AnyAttack | None = None,
    aggregator: str | Aggregator | Callable[..., Aggregator] | None = None,
    policy: str | Policy | MakePolicy = "mlp",
    optimizer: str | optax.GradientTransformation | Callable[[float], optax.GradientTransformation] = "adam",
    parameters: Mapping[str, Sequence[Any]] | None = None,
    start: str | Path | Params | None = None,
    seed: int = 0,
    seeds: Sequence[int] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
    stop: threading.Event | None = None,
    **settings: Unpack[Settings],
) -> Run | list[Run]:
    """Train one policy by a federation in this process, and return the run; with `seeds`, one run for each.

    Every piece is a name, `package.module:object`, the object itself, or a function that makes it. `task` is a
    Gymnasium id, a function that makes a Gymnasium environment, one such function for every agent, or an `Environment`
    in JAX; `parameters` are those of the task that differ between agents, one value per agent each. `attack` may also
    be a function of a `Scene` that returns what all agents send [K, D]. `start` is the policy to begin from, instead of
    a random one: a run folder, a policy file, or `run.policy.params`. Without a folder `out` nothing is written.
    Progress is shown in a terminal and in a notebook; `progress` says so either way.
    """
    given = None if isinstance(task, str) else make_task(task)
    name, note = renamed(given.id if given is not None else str(task))
    if note:
        warnings.warn(note, stacklevel=2)
    if attack is not None and not settings.get("byzantine"):
        raise ConfigError("attack is given, but no agent is Byzantine: say how many with byzantine")
    if seeds is not None and seed != 0:
        raise ConfigError("give seed for one run, or seeds for several")
    if seeds is not None and not isinstance(seeds, Iterable):
        raise ConfigError(f"seeds must be several, such as range({seeds}) or [0, 1], not {seeds!r}; for one, give seed")
    pieces: dict[str, Any] = {"policy": policy, "optimizer": optimizer}
    pieces |= {kind: piece for kind, piece in (("attack", attack), ("aggregator", aggregator)) if piece is not None}
    config: Config = make_config(
        name,
        preset,
        None if algorithm is None else _name(algorithm),
        **{kind: _name(piece) for kind, piece in pieces.items()},
        **{key: _words(value) if key in STRINGS else value for key, value in settings.items()},
    )
    refuse_idle_attack(config)
    own = {
        kind: piece for kind, piece in (pieces | {"algorithm": algorithm}).items() if not isinstance(piece, str | None)
    }
    problem = make_problem(config, given, parameters=parameters, **own)
    refuse_unheard(problem, parameters or {})
    reporter = make_reporter(config)
    if progress is False or (progress is None and not isinstance(reporter, Live)):
        reporter = Silent()
    theta = None if start is None else read_start(start, problem)
    runs = train_seeds(problem, [seed] if seeds is None else seeds, out, resume, reporter, stop, start=theta)
    if out is not None and has("matplotlib"):
        from fedpg.plots import plot_curve

        plot_curve(Path(out) / "curve.png", [run.records for run in runs], config.title)
    return runs[0] if seeds is None else runs


def refuse_unheard(problem: Problem, parameters: Mapping[str, Sequence[Any]]) -> None:
    """Parameters that were given and yet change nothing: `vary` gives them too, or there is no wind to be strong."""
    varied, nominal = problem.task.varied, problem.task.nominal
    for name, values in parameters.items():
        if problem.config.vary and [*map(plain, varied.get(name, values))] != [*map(plain, values)]:
            raise ConfigError(f"{name} is given twice, by parameters and by vary: leave one of them out")
    winds = [name for name in WINDS if name in parameters and name in nominal]
    by_name = problem.config.task in gymnasium.registry  # in a factory of one's own it may blow already
    if winds and by_name and SWITCH not in varied:
        raise ConfigError(
            f"{winds[0]} changes nothing while no wind blows: give vary=['{winds[0]}=...'], which switches it on, or "
            f"{SWITCH}=[True, ...] beside it in parameters"
        )


def _words(value: Any) -> tuple[Any, ...]:
    """Several texts, or one of them."""
    return (value,) if isinstance(value, str) else tuple(value)


def _name(piece: Any) -> str:
    """What the settings call a piece: its name, or that it is the caller's own and where it was made.

    A run that is resumed with another piece is refused by that.
    """
    if isinstance(piece, str):
        return piece
    records = piece if isinstance(piece, tuple) else ()
    makers = [part.__qualname__.split(".")[0] for part in records if hasattr(part, "__qualname__")]
    return f"custom:{getattr(piece, '__name__', next(iter(makers), type(piece).__name__))}"
