"""A task, whoever simulates it, and the episodes that are asked of it."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array

from fedpg.policies import Policy

Act = Callable[[Any, Any], Any]
"""(the policy's action, a uniformly random action) -> the action taken: what Byzantine agents do instead."""

SERVER = -1
"""The number of whoever is no agent: the server, whose task is the nominal one."""


class Episodes(NamedTuple):
    """N episodes to roll out side by side. Each depends on what stands here about it, and on nothing else."""

    keys: Array  # [N]: all the randomness of an episode comes from its key
    horizon: Array  # [N]: steps after which it is cut off; 0 for one that is not wanted
    agents: Array  # [N]: whose task it is, SERVER for the nominal one
    byzantine: Array  # [N]: act as the attack says, where it has a say in actions
    pool_keys: Array  # [N]: a simulator that is slow to make is made from this key, kept for some rounds, and
    resets: Array  # []: has been reset so many times before


class Plan(Protocol):
    """Which episodes; hashable, so that it can be compiled for."""

    @property
    def noise_steps(self) -> int:
        """For how many steps each episode's noise is drawn."""
        ...

    @property
    def steps(self) -> int:
        """The longest of the episodes."""
        ...

    @property
    def greedy(self) -> bool:
        """Act by the policy's mode, instead of drawing from it."""
        ...

    def __call__(self, *inputs: Any) -> Episodes: ...


Then = Callable[..., Any]
"""(trajectories, *given) -> what is wanted of them: a pure function, and hashable, so that it can be compiled for."""


class Rollout(Protocol):
    """Rolls out the episodes of a plan with the policy theta [D], until the last one has ended.

    With `then`, the result is `then(trajectories, *given)`, and a compiled task compiles both into one: that takes two
    thirds of the time that two calls take, with their trajectories in between.
    """

    def __call__(
        self,
        policy: Policy,
        plan: Plan,
        theta: Array,
        inputs: tuple[Any, ...],
        act: Act | None = None,
        cancel: threading.Event | None = None,
        then: Then | None = None,
        given: tuple[Any, ...] = (),
    ) -> Any: ...


class Vary(Protocol):
    """(parameters, each with one value per agent; those of the server) -> the same task with those.

    What is not given stays as it was; the server's is the nominal one unless something is given for it.
    """

    def __call__(self, agents: Mapping[str, Sequence[Any]], server: Mapping[str, Any] = ..., /) -> "Task": ...


@dataclass(frozen=True, eq=False)
class Task:
    """What agents learn: nobody outside this room knows whether JAX, EnvPool or Gymnasium simulates it."""

    id: str
    observations: int
    """F, the size of an observation."""
    actions: spaces.Space[Any]
    """As the policy sees them: whole numbers from 0, or a box that is (-1, 1) where the task's has ends."""
    limit: int
    """The task's own limit of steps."""
    simulator: str
    """What simulates it, for people; "" if it is compiled together with the policy."""
    rollout: Rollout
    to_task: Callable[[np.ndarray], np.ndarray]
    """The policy's actions [n] or [n, A], or one of them, as the task takes them."""
    vary: "Vary"
    nominal: Mapping[str, float]
    """The numbers that may differ from agent to agent, as they are if nobody says otherwise."""
    widths: Callable[[int, int], tuple[int, ...]]
    """(smallest batch, largest) -> how many episodes per agent may be asked for."""
    most: int
    """Episodes that are rolled out together."""
    side_by_side: Callable[[int], int]
    """(episodes of a round) -> how many runs at a time make use of this machine."""
    threads: Callable[[Policy], int]
    """Rollouts of one run that may go side by side without changing a bit."""
    beside_others: Callable[[], "Task"]
    """The same task for one of several runs side by side, which keep the cores busy by themselves."""
    seconds: dict[str, float]
    """Spent so far, by phase; empty where nobody can tell."""
    varied: Mapping[str, Sequence[Any]]
    """What differs between agents, one value for each; nothing if all have the same task."""

    @property
    def agents(self) -> int | None:
        """For how many agents it was varied; None if all have the same."""
        return len(next(iter(self.varied.values()))) if self.varied else None


class RoundKeys(NamedTuple):
    """The part of a broadcast that decides who samples what."""

    key: Array  # of the round: each agent and episode derives its own from it
    pool_key: Array  # that POOL_ROUNDS rounds share
    resets: Any  # which of those rounds this is, from 0


# One stream of randomness for each use, so that none depends on how much another draws.
STREAMS = ("agent", "attack", "batch", "inner steps", "server", "evaluation", "output", "rewards", "pool", "chance")


def stream(key: Array, name: str) -> Array:
    """The key of one use of randomness within a round."""
    return jax.random.fold_in(key, STREAMS.index(name))


def agent_keys(key: Array, agents: Array) -> Array:
    """One key per agent, by its number."""
    return jax.vmap(lambda agent: jax.random.fold_in(key, agent))(agents)


def episode_keys(key: Array, episodes: int) -> Array:
    """One key per episode; the i-th does not depend on how many there are."""
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(episodes))


LATER = 2**30
"""No agent has a number like this: from it on, keys are those of an agent's later batches in a round."""


class AgentEpisodes(NamedTuple):
    """`width` episodes per agent, the first B_t of them wanted; key by (seed, round, agent, use, episode).

    Several batches of one agent in one round have different `use`s, from 0; all are compiled once.
    """

    width: int
    steps: int
    noise_steps: int

    @property
    def greedy(self) -> bool:
        return False

    def __call__(
        self, keys: RoundKeys, batch: Array, agents: Array, attacking: Array, use: Array | int = 0
    ) -> Episodes:
        def each(key: Array) -> Array:
            first = stream(key, "agent")
            mine = jnp.where(use == 0, first, jax.random.fold_in(first, LATER + use))
            by_agent = agent_keys(mine, agents)
            return jax.vmap(lambda k: episode_keys(k, self.width))(by_agent).reshape(-1)  # [K * width]

        wanted = (jnp.arange(self.width) < batch) & (agents >= 0)[:, None]
        return Episodes(
            keys=each(keys.key),
            horizon=jnp.where(wanted, self.steps, 0).reshape(-1),
            agents=jnp.repeat(agents, self.width),
            byzantine=jnp.repeat(attacking, self.width),
            pool_keys=each(keys.pool_key),
            resets=jnp.asarray(keys.resets),
        )


class AgentTests(NamedTuple):
    """Greedy episodes in the tasks of agents 0, 1, ...: the same first states for all, as far as their tasks allow."""

    agents: int
    episodes: int
    steps: int

    @property
    def greedy(self) -> bool:
        return True

    @property
    def noise_steps(self) -> int:
        return self.steps

    def __call__(self, keys: RoundKeys, first: Array | int = 0) -> Episodes:
        def each(key: Array) -> Array:
            mine = jax.random.fold_in(stream(key, "evaluation"), LATER)
            return jnp.tile(episode_keys(mine, self.episodes), self.agents)

        count = self.agents * self.episodes
        return Episodes(
            keys=each(keys.key),
            horizon=jnp.full(count, self.steps),
            agents=first + jnp.repeat(jnp.arange(self.agents), self.episodes),
            byzantine=jnp.zeros(count, bool),
            pool_keys=each(keys.pool_key),
            resets=jnp.asarray(keys.resets),
        )


class ServerEpisodes(NamedTuple):
    """Episodes of the server's own, for inner step n or to evaluate a policy."""

    episodes: int
    steps: int
    greedy: bool = False

    @property
    def noise_steps(self) -> int:
        return self.steps

    def __call__(self, keys: RoundKeys, n: Array | int = 0, wanted: Array | bool = True) -> Episodes:
        def each(key: Array) -> Array:
            if self.greedy:
                return episode_keys(stream(key, "evaluation"), self.episodes)
            return episode_keys(jax.random.fold_in(stream(key, "server"), n), self.episodes)

        def all_(value: Any) -> Array:
            return jnp.full(self.episodes, value)

        return Episodes(
            keys=each(keys.key),
            horizon=jnp.where(all_(wanted), self.steps, 0),
            agents=all_(SERVER),
            byzantine=all_(False),
            pool_keys=each(keys.pool_key),
            resets=jnp.asarray(keys.resets),
        )
