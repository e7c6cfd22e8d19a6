"""`fedpg theory` and `fedpg theory lab`."""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpg.cli.arguments import check_positive, check_seed
from fedpg.errors import ConfigError
from fedpg.extras import need
from fedpg.presets import renamed
from fedpg.screen import make_console
from fedpg.storage import StorageError


@dataclass(frozen=True)
class Theory:
    """What Theorem 1 promises your federation: its constants, its bound, its conditions, and the trajectories it takes.

    G, M, R, W, sigma and the gap are measured on the task with a fresh policy, or with that of --run, unless you give
    them.

    Examples:
      fedpg theory --agents 30 --byzantine 3 --epsilon 0.01
      fedpg theory --run runs/demo
      fedpg theory --G 1.42 --M 0.5 --R 1 --W 0.1 --sigma 5 --gap 2 --horizon 10 --discount 0.9
    """

    task: str = "CartPole-v1"
    """The task that the constants are measured on; with --run it is the run's own."""
    run: Path | None = None
    """A run folder or a policy file: measure its policy instead of a fresh one."""
    agents: int = 10
    """K, the number of agents."""
    byzantine: int = 0
    """How many of them are Byzantine."""
    batch: int | None = None
    """B, the trajectories per agent and round; by default the middle of the task's own range."""
    rounds: int = 1000
    """T, the rounds of which the output is one, uniformly."""
    epsilon: float = 1.0
    """Reach E||grad J||^2 <= epsilon."""
    delta: float | None = None
    """The probability with which R1 may fail; by default 1/(5KB), the largest that the theorem allows."""
    step: float | None = None
    """The step size eta; by default the largest that the theorem allows."""
    minibatch: int = 1
    """b, the trajectories of an inner step; the theorem has 1."""
    horizon: int | None = None
    """H; by default the task's."""
    discount: float | None = None
    """gamma; by default the task's."""
    sigma: float | None = None
    """The bound on ||g(tau) - grad J||."""
    G: float | None = None
    """The bound on ||grad log pi||."""
    M: float | None = None
    """The bound on the norm of the Hessian of log pi."""
    R: float | None = None
    """The largest reward."""
    W: float | None = None
    """The bound on the variance of importance weights."""
    baseline: float | None = None
    """The largest baseline |C_b|; by default as measured, or 0 where nothing is."""
    gap: float | None = None
    """J* - J(theta_0); by default the most that rewards up to R allow, less what the policy has."""
    trajectories: int = 64
    """How many trajectories to measure from."""
    seed: int = 0
    """The seed of the fresh policy and of those trajectories."""


@dataclass(frozen=True)
class Lab:
    """Measure the theorem's rates on small MDPs whose true gradient is known, and draw the figures.

    An experiment that the folder holds already is not run again, so that an interrupted lab goes on where it was.

    Examples:
      fedpg theory lab --out runs/theory
      fedpg theory lab --only agents error
      fedpg theory lab --quick --out runs/quick
    """

    out: Path = Path("runs/theory")
    """The folder of the results and the pictures."""
    only: tuple[str, ...] = ()
    """Only these experiments: epsilon, agents, alpha, error, rules."""
    quick: bool = False
    """The same with fewer repetitions and points: a look in a few minutes, not a measurement."""
    quiet: bool = False
    """No progress."""


def run_theory(command: Theory) -> int:
    from fedpg.theory.bound import Setting, check, check_epsilon
    from fedpg.theory.report import print_report

    check_positive("agents", command.agents)
    check_positive("trajectories", command.trajectories)
    check_seed(command.seed)
    if not 0 <= 2 * command.byzantine < command.agents:
        raise ConfigError(
            f"byzantine = {command.byzantine} of {command.agents} agents: the theorem stands fewer than half"
        )
    check_epsilon(command.epsilon)

    def setting_of(values: dict[str, Any]) -> Setting:
        return check(
            Setting(
                agents=command.agents,
                alpha=command.byzantine / command.agents,
                rounds=command.rounds,
                delta=command.delta,
                step=command.step,
                minibatch=command.minibatch,
                **values,
            )
        )

    names = ("batch", "horizon", "discount", "sigma", "G", "M", "R", "W", "baseline", "gap")
    given = {name: getattr(command, name) for name in names if getattr(command, name) is not None}
    setting_of(ANY | given)  # what is given is refused before anything is measured
    values, where = _constants(command, given)
    setting = setting_of(values)
    print_report(make_console(), setting, command.epsilon, where)
    return 0


ANY = {"batch": 16, "horizon": 1, "discount": 0.5, "sigma": 1.0, "G": 1.0, "M": 1.0, "R": 1.0, "W": 0.0}
"""Values that nothing is wrong with."""


def _constants(command: Theory, given: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """What depends on policy and task: as given, or else measured; and a line that says where it is from."""
    if all(name in given for name in ("horizon", "discount", "sigma", "G", "M", "R", "W")):
        for name in ("run", "task", "trajectories", "seed"):
            if getattr(command, name) != getattr(Theory, name):
                raise ConfigError(
                    f"--{name} says what to measure, but every constant is given: leave out --{name}, or a constant"
                )
        return {"batch": 16} | given, "as given"
    import jax

    from fedpg.assembly import make_problem
    from fedpg.presets import make_config
    from fedpg.theory.measure import measure
    from fedpg.training.load import read_policy

    if command.run is not None:
        problem, params = read_policy(command.run)
        theta = problem.policy.ravel(params)
        whose = f"the policy of {command.run} on {problem.config.task}"
    else:
        problem = make_problem(make_config(renamed(command.task)[0], "paper"))
        theta = problem.policy.init(jax.random.key(command.seed))
        whose = f"a fresh policy on {problem.config.task}"
    print(f"measuring {whose} from {command.trajectories} trajectories ...", file=sys.stderr, flush=True)
    seen = measure(problem, theta, command.trajectories, command.seed)
    if not all(math.isfinite(value) for value in seen):
        raise ConfigError(f"the constants of {whose} are not finite: {seen}; give them yourself")
    config = problem.config
    values: dict[str, Any] = {
        "batch": sum(config.batch) // 2,
        "horizon": problem.steps,
        "discount": min(config.discount, 1 - 1e-6),  # the constants have 1 / (1 - gamma)
        "sigma": seen.sigma,
        "G": seen.G,
        "M": seen.M,
        "R": seen.R,
        "W": seen.W,
        "baseline": seen.baseline,
    } | given
    if "gap" not in given:
        long = (1 - values["discount"] ** values["horizon"]) / (1 - values["discount"])
        values["gap"] = max(values["R"] * long - seen.start, 0.0)
    measured = [name for name in ("sigma", "G", "M", "R", "W", "baseline", "gap") if name not in given]
    return (
        values,
        f"{', '.join(measured)} measured from {whose}: lower bounds of what the theorem means",
    )


def run_theory_lab(command: Lab) -> int:
    need("matplotlib")
    from fedpg.theory.figures import draw
    from fedpg.theory.report import lab_tables
    from fedpg.theory.study import run_lab

    results = run_lab(command.out, command.quick, command.only, command.quiet)
    console, pictures = make_console(), []
    for name, result in results.items():
        try:
            tables = lab_tables(name, result)
            pictures.append(draw(command.out, name, result))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            path = command.out / f"{name}.json"
            raise StorageError(f"{path} is damaged ({error!r}): delete it, and run again") from error
        for table in tables:
            console.print(table)
    console.print(f"results and pictures: {command.out} ({', '.join(path.name for path in pictures)})", highlight=False)
    return 0
