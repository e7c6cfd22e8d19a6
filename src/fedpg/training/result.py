"""What a training run leaves behind: the policies as functions, and the records."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedpg.config import Config
from fedpg.errors import ConfigError
from fedpg.policies import Params, Policy
from fedpg.problem import Problem
from fedpg.training.each import Each
from fedpg.training.records import Records

if TYPE_CHECKING:
    from fedpg.plots import Picture


class Trained(NamedTuple):
    """A trained policy: call it with an observation [F], or with several as rows [n, F], and it acts greedily."""

    policy: Policy
    params: Params
    to_task: Callable[[np.ndarray], np.ndarray]
    """The policy's action -> the task's."""
    observations: int
    """F, the size of an observation."""

    def __call__(self, observation: Any) -> np.ndarray:
        try:
            given = np.asarray(observation, np.float32)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"an observation is {self.observations} numbers: {error}") from error
        if given.ndim not in (1, 2) or given.shape[-1] != self.observations:
            raise ConfigError(
                f"an observation has {self.observations} numbers, and several are rows [n, {self.observations}]; "
                f"this has the shape {list(given.shape)}"
            )
        if not np.isfinite(given).all():
            raise ConfigError("an observation has a number that is not finite (NaN or infinity)")
        actions = np.asarray(self.policy.mode(self.params, jnp.asarray(given.T)))  # features first
        return self.to_task(actions.T)

    def __repr__(self) -> str:
        return f"<policy of {self.policy.size:,} parameters, for observations of {self.observations} numbers>"


class Run(NamedTuple):
    """What a training run leaves behind."""

    config: Config
    seed: int
    policy: Trained
    """The policy after the last round."""
    output: Trained
    """The output of the pseudocode: the policy after a round drawn uniformly from all."""
    records: Records
    folder: Path | None
    """Where it was written, if anywhere."""
    seconds: float
    """The time this call took, compiling not included."""
    finished: bool
    """False if the run was interrupted: it goes on with resume."""
    each: Each | None = None
    """Where agents differ, and the run is finished: what the last policy is worth to each of them."""

    def plot(self, path: str | Path | None = None) -> "Picture":
        """The curve of the run: a picture that a notebook shows; with a path it is written there as well (PNG)."""
        from fedpg.plots import curve

        picture = curve([self.records], self.config.title)
        if path is not None:
            picture.save(Path(path))
        return picture

    def __repr__(self) -> str:
        where = f", in {self.folder}" if self.folder is not None else ""
        state = f"{self.seconds:.1f} s" if self.finished else "interrupted"
        return f"<run of {self.config.title}, seed {self.seed}: {self.records.described}; {state}{where}>"


def trained(problem: Problem, params: Params) -> Trained:
    """The policy of these parameters, for the problem's task."""
    return Trained(problem.policy, params, problem.task.to_task, problem.task.observations)
