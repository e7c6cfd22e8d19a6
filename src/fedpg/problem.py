"""The records that everybody in a round shares: the problem, the messages, the roles, the state."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fedpg.aggregators import Aggregator, Own, Sent, Verdict
from fedpg.attacks import Attack
from fedpg.config import Config
from fedpg.errors import ConfigError
from fedpg.estimators import Estimator
from fedpg.policies import Policy
from fedpg.tasks.task import RoundKeys, Task, stream
from fedpg.trajectories import Trajectories

Memory = Any
"""What somebody remembers from round to round: a tree of arrays."""

POOL_ROUNDS = 16
"""A simulator whose environments are slow to make keeps them so many rounds (see `fedpg.tasks.pool`)."""


class Problem(NamedTuple):
    """What the agents and the server agree on before the first round: the settings, and all that they name."""

    config: Config
    task: Task
    policy: Policy
    estimator: Estimator
    attack: Attack
    aggregator: Aggregator
    optimizer: optax.GradientTransformation
    algorithm: "Algorithm"

    @property
    def steps(self) -> int:
        """The longest trajectory in training."""
        return min(self.config.horizon, self.task.limit)

    @property
    def test_steps(self) -> int:
        """The longest trajectory in evaluation."""
        return min(self.config.test_horizon, self.task.limit)

    @property
    def byzantine(self) -> np.ndarray:
        """Which agents are Byzantine: the last ones.  [K]"""
        return np.arange(self.config.agents) >= self.config.agents - self.config.byzantine


class Broadcast(NamedTuple):
    """What the server sends (line 3)."""

    round: int  # from 1
    batch: int  # B_t
    key: Array  # of the round; each agent and episode derives its own from it
    pool_key: Array  # that POOL_ROUNDS rounds share
    vectors: dict[str, Array]  # theta [D], and what else the algorithm declares; [K, D] has a row for each agent

    @property
    def theta(self) -> Array:
        return self.vectors["theta"]

    @property
    def keys(self) -> RoundKeys:
        """What the episodes of this round are drawn from."""
        return RoundKeys(self.key, self.pool_key, (self.round - 1) % POOL_ROUNDS)


@jax.jit
def _round_keys(run_key: Array, round_: int) -> tuple[Array, Array]:
    shared = jax.random.fold_in(stream(run_key, "pool"), (round_ - 1) // POOL_ROUNDS)
    return jax.random.fold_in(run_key, round_), shared


def make_broadcast(run_key: Array, round_: int, batch: int, **vectors: Array) -> Broadcast:
    """What the server sends in a round of the run with that key."""
    key, pool_key = _round_keys(run_key, round_)
    return Broadcast(round_, batch, key, pool_key, vectors)


def check_broadcast(broadcast: Broadcast, names: tuple[str, ...], agents: int, size: int) -> None:
    """Refuse a broadcast of other vectors than the algorithm declares, which sites would refuse too."""
    if set(broadcast.vectors) != set(names):
        raise ConfigError(f"the broadcast has {sorted(broadcast.vectors)}, and the algorithm declares {sorted(names)}")
    for name, value in broadcast.vectors.items():
        if jnp.shape(value) not in ((size,), (agents, size)):
            raise ConfigError(
                f"the broadcast's {name!r} has the shape {jnp.shape(value)}: it must be ({size},), or ({agents}, "
                f"{size}) with a row for each agent"
            )


class Schema(NamedTuple):
    """The names in a message. Whatever else a message holds, or does not hold, makes it unusable."""

    vectors: tuple[str, ...]
    """Each has as many numbers as the policy."""
    scalars: tuple[str, ...] = ()


STATUSES = (
    *("answered", "no answer", "wrong length", "not finite"),
    # These can only happen between machines.
    *("failed at the site", "wrong type", "wrong round", "too large"),
)
"""What the border check said of a reply. Only those that answered reach an aggregator."""
OUTCOMES = ("accepted", "turned away", "not judged", "unusable", "failed", "absent")
"""What became of an agent in a round: the words of all records and tables."""


def outcome_of(status: str, accepted: bool | None) -> str:
    """One of OUTCOMES, by one of STATUSES and the aggregator's verdict; None if no aggregator ran."""
    if status == "no answer":
        return "absent"
    if status == "failed at the site":
        return "failed"
    if status != "answered":
        return "unusable"
    if accepted is None:
        return "not judged"
    return "accepted" if accepted else "turned away"


class Replies(NamedTuple):
    """What the K expected agents sent, after the check at the border."""

    vectors: dict[str, Array]  # [K, D] each
    scalars: dict[str, Array]  # [K] each
    status: np.ndarray  # [K]: index into STATUSES
    returns: np.ndarray  # [K]: mean training return of each agent
    steps: np.ndarray  # [K]: environment steps of each agent
    batch: int

    def sent(self, name: str = "gradient") -> Sent:
        """What an aggregator judges."""
        return Sent(self.vectors[name], self.status == 0, self.batch)


def status_of(vectors: Mapping[str, Any], scalars: Mapping[str, Any], lengths: Any) -> Array:
    """The index into STATUSES of messages whose vectors had these lengths.  [K]"""
    size = next(iter(vectors.values())).shape[1]
    finite = [jnp.all(jnp.isfinite(v), axis=1) for v in vectors.values()]
    finite += [jnp.isfinite(s) for s in scalars.values()]
    good = jnp.all(jnp.stack(finite), axis=0)
    return jnp.where(lengths == 0, 1, jnp.where(lengths != size, 2, jnp.where(good, 0, 3)))


class Cohort(Protocol):
    """Some agents of one process, who are asked together: K of them, or one at a site."""

    agents: np.ndarray
    """Their numbers.  [K]"""

    def sample(self, theta: Array, use: int = 0) -> Trajectories:
        """B_t trajectories of each agent, [.., K * width]; several batches in one round have different `use`s."""
        ...

    def gradient(self, theta: Array, trajectories: Trajectories) -> Array:
        """Each agent's estimate of grad J(theta) from its trajectories of theta (line 6).  [K, D]"""
        ...

    def sampled_gradient(self, theta: Array, use: int = 0) -> Array:
        """`gradient` of `sample`, in one, which is faster.  [K, D]"""
        ...

    def sampled_correction(self, theta: Array, old: Array, use: int = 0) -> tuple[Array, Array]:
        """Of `sample(theta, use)`, each agent's g(tau | theta) and omega(tau | theta, old) g(tau | old).  [K, D] each

        Their difference has the mean grad J(theta) - grad J(old), and varies little if the two are close (line 11).
        """
        ...

    def sampled_hessian_product(self, theta: Array, along: Array, use: int = 0) -> Array:
        """Of `sample(theta, use)`, each agent's estimate of H(theta) u, H the Hessian of J and u = `along`.  [K, D]"""
        ...


class Agent(NamedTuple):
    """What an agent does with a broadcast. Written for K agents at once; none may depend on another."""

    answer: Callable[[Cohort, Broadcast, Memory], tuple[dict[str, Array], Memory]]
    """(cohort, broadcast, memory) -> (the message: [K, D] or [K] by name; memory)."""
    init: Callable[[int, int], Memory] = lambda agents, size: ()
    """(K, D) -> the memory before the first round; every leaf has the agents first."""


class Federation(Protocol):
    """Who answers a broadcast: agents in this process, or sites across a network."""

    def ask(self, broadcast: Broadcast, memory: Memory) -> tuple[Replies, Memory]:
        """(the replies, the agents' memory after them); Stopped if it was asked to before enough of them came."""
        ...

    def tell(self, round_: int, outcome: "Outcome") -> None:
        """What came of their answers."""
        ...

    def warm_up(self, memory: Memory) -> list[Callable[[], Any]]:
        """Calls that compile what rounds will need here; they may go side by side."""
        ...


class State(NamedTuple):
    """Everything that the next round depends on."""

    key: Array  # of the whole run: its seed
    round: int  # rounds done
    theta: Array  # [D]
    optimizer: Memory
    aggregator: Memory
    agents: Memory  # of the agents in this process and of their attack; sites keep their own
    algorithm: Memory  # whatever else the algorithm keeps
    output: Array  # [D]: theta-tilde_a, uniform over the rounds so far
    counted: int  # trajectories, as the paper counts them


class Outcome(NamedTuple):
    """What happened in a round: what records are made of."""

    replies: Replies
    verdict: Verdict
    inner_drawn: int = 1  # N_t
    inner_done: int = 1  # steps that were taken
    ratio: Any = 1.0  # mean importance weight of the last inner step that was looked at
    own: int = 0  # trajectories of the server that the paper counts: b for every inner step


Round = Callable[[Problem, State, Federation, Any], tuple[State, Outcome]]


class Algorithm(NamedTuple):
    """A round, and what its agents do in it."""

    round: Round
    """(problem, state, federation, server) -> (state, what happened)."""
    agent: Agent
    reply: Schema = Schema(vectors=("gradient",))
    """What every agent sends."""
    broadcast: tuple[str, ...] = ("theta",)
    """The vectors that the server sends."""
    init: Callable[[Problem, Array], Memory] = lambda problem, theta: ()
    """(problem, theta_0) -> what the algorithm keeps besides theta and the optimiser."""
    needs: tuple[str, ...] = ()
    """The fields of `Own` that the server is to compute for it, besides those of the aggregator."""
    warm_up: Callable[[Problem, State, Own], Any] = lambda problem, state, own: None
    """(problem, state, what the server contributes) -> nothing: compiles what only this algorithm uses."""
    batches: int = 1
    """How many batches of B_t trajectories every agent samples in a round."""
    optimised: bool = True
    """Whether the optimiser makes its steps; else they go along the aggregate, or along its natural gradient."""
    small_batches: bool = False
    """Whether the server may also ask for b trajectories, the minibatch, instead of B_t."""
