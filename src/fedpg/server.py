"""The trusted server: its own trajectories, its aggregator, its optimiser."""

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fedpg.aggregators import Aggregator, Own, Sent, Verdict, guarded
from fedpg.estimators import Estimator, correction, gradient, influences, scores
from fedpg.policies import Policy
from fedpg.problem import Broadcast, Memory, Problem, Replies, State, make_broadcast
from fedpg.tasks import AgentTests, RoundKeys, ServerEpisodes
from fedpg.tasks.task import Then, stream
from fedpg.trajectories import Trajectories

SCORES = 256
"""Steps at which the server looks at grad log pi, for who needs its metric."""
STATES = 2048
"""Steps at which it looks at the policy itself, for who needs its Fisher matrix."""
FEWEST = 8
"""Trajectories of its own, at the least, from which the server contributes to an aggregate."""


class Server:
    """What an algorithm may ask of the server in a round; it keeps count of what it sampled."""

    def __init__(self, problem: Problem, cancel: threading.Event | None = None) -> None:
        self.problem, self.cancel = problem, cancel
        self._trajectories: dict[int, int] = {}
        self._steps: list[Array] = []
        self._contributed: tuple[Broadcast, Own] | None = None

    def draw_batch(self, run_key: Array, round_: int) -> int:
        """B_t, uniform over its range."""
        return int(_draw_batch(*self.problem.config.batch, run_key, round_))

    def draw_chance(self, run_key: Array, round_: int) -> float:
        """Uniform from [0, 1), for whatever an algorithm leaves to chance in a round."""
        return float(_draw_chance(run_key, round_))

    def draw_inner_steps(self, broadcast: Broadcast) -> int:
        """N_t: fixed, or P(N = n) = G^n (1 - G) with G = B / (B + b), from 0 (`paper`) or moved to start from 1."""
        c = self.problem.config
        if c.inner_law == "fixed":
            return c.inner_steps
        n = int(_draw_geometric(broadcast.key, broadcast.batch, c.minibatch))
        return n + (c.inner_law == "geometric-from-1")

    def sample(self, theta: Array, broadcast: Broadcast, n: int, count: int) -> Trajectories:
        """`count` trajectories of its own with the policy theta, for inner step n (line 10)."""
        return self._roll(theta, broadcast, n, count, _itself)

    def semi_stochastic(self, theta_n: Array, theta_0: Array, mu: Array, broadcast: Broadcast, n: int) -> "Semi":
        """b trajectories of theta_n (line 10), and v of them (line 11)."""
        then = SemiStochastic(self.problem.policy, self.problem.estimator)
        return self._roll(theta_n, broadcast, n, self.problem.config.minibatch, then, (theta_n, theta_0, mu))

    def _roll(
        self,
        theta: Array,
        broadcast: Broadcast,
        n: int,
        count: int,
        then: Then,
        given: tuple[Any, ...] = (),
        wanted: bool = True,
    ) -> Any:
        p = self.problem
        plan, inputs = ServerEpisodes(count, p.steps), (broadcast.keys, n, wanted)
        result, steps = p.task.rollout(
            p.policy, plan, theta, inputs, cancel=self.cancel, then=_Counted(then), given=given
        )
        if wanted:
            self.count(n, count)
            self._steps.append(steps)
        return result

    def warm_up(self, state: State) -> list[Callable[[], Any]]:
        """Calls that compile what rounds will need, on no trajectories; they may go side by side."""
        p, theta = self.problem, state.theta
        broadcast = make_broadcast(state.key, 1, p.config.batch[0], theta=theta)
        alone = p.config.none_accepted == "server"

        def inner_step() -> None:
            if alone or p.config.inner_law != "fixed" or p.config.inner_steps > 1:
                then = SemiStochastic(p.policy, p.estimator)
                self._roll(theta, broadcast, 0, p.config.minibatch, then, (theta, theta, theta), wanted=False)
            self.ascend(theta, state.optimizer, theta)
            self.draw_batch(state.key, 1)
            self.draw_chance(state.key, 1)
            self.draw_inner_steps(broadcast)

        def aggregation() -> None:
            own = self.contribution(broadcast, wanted=False)
            silent = Sent(jnp.zeros((p.config.agents, p.policy.size)), jnp.zeros(p.config.agents, bool), 1)
            _update(p.aggregator, state.aggregator, silent, own)
            p.algorithm.warm_up(p, state, own)

        def test() -> None:
            evaluate(p, theta, broadcast.keys, p.config.test_episodes, wanted=False)

        return [inner_step, aggregation, test]

    def count(self, n: int, count: int) -> None:
        """`count` trajectories of inner step n are the server's, simulated or not."""
        self._trajectories[n] = max(self._trajectories.get(n, 0), count)

    def take_counts(self) -> tuple[int, int]:
        """(trajectories, environment steps) since the last time."""
        counts = sum(self._trajectories.values()), sum(map(int, self._steps))
        self._trajectories, self._steps = {}, []
        return counts

    def aggregate(
        self, memory: Memory, replies: Replies, broadcast: Broadcast, name: str = "gradient"
    ) -> tuple[Verdict, Memory]:
        """Line 7: what the aggregator makes of the replies, with what it needs of the server."""
        own = self.contribution(broadcast)
        return _update(self.problem.aggregator, memory, replies.sent(name), own)

    def contribution(self, broadcast: Broadcast, wanted: bool = True) -> Own:
        """What the aggregator needs of the server, from trajectories of its own; once in a round, whoever asks."""
        if self._contributed is not None and self._contributed[0] is broadcast and wanted:
            return self._contributed[1]
        own = self._contribute(broadcast, wanted)
        if wanted:
            self._contributed = broadcast, own
        return own

    @property
    def own(self) -> Own:
        """What it contributed last."""
        return Own() if self._contributed is None else self._contributed[1]

    def _contribute(self, broadcast: Broadcast, wanted: bool) -> Own:
        p = self.problem
        needs = tuple(dict.fromkeys([*p.aggregator.needs, *p.algorithm.needs]))
        if p.config.agents == 1:  # it cannot be compared with other agents, and how far they lie apart is nothing
            needs = tuple(name for name in needs if name != "influences")
        if not needs:
            return Own()
        # Those of inner step n = 0, which change nothing there: the correction is zero at theta_0.
        theta = broadcast.theta
        then = Contribution(p.policy, p.estimator, needs)
        return self._roll(theta, broadcast, 0, self.own_count, then, (theta,), wanted)

    @property
    def own_count(self) -> int:
        """Trajectories of its own from which it contributes: as many as an agent's, where the algorithm needs them."""
        c = self.problem.config
        return max(c.batch[1], 2) if self.problem.algorithm.needs else max(c.minibatch, FEWEST)

    def gradient(self, theta: Array, trajectories: Trajectories) -> Array:
        """Its own estimate of grad J(theta).  [D]"""
        return _gradient(self.problem.policy, self.problem.estimator, theta, trajectories)

    def ascend(self, theta: Array, optimizer: Memory, direction: Array) -> tuple[Array, Memory]:
        """theta + eta v, by the optimiser (line 12)."""
        return ascend(self.problem.optimizer, theta, optimizer, direction)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _draw_batch(low: int, high: int, run_key: Array, round_: Array) -> Array:
    return jax.random.randint(stream(jax.random.fold_in(run_key, round_), "batch"), (), low, high + 1)


@jax.jit
def _draw_chance(run_key: Array, round_: Array) -> Array:
    return jax.random.uniform(stream(jax.random.fold_in(run_key, round_), "chance"))


@jax.jit
def _draw_geometric(key: Array, batch: Array, minibatch: Array) -> Array:
    log_g = jnp.log(batch / (batch + minibatch))
    u = 1.0 - jax.random.uniform(stream(key, "inner steps"))  # in (0, 1]
    return jnp.floor(jnp.log(u) / log_g).astype(jnp.int32)


def _itself(mine: Trajectories) -> Trajectories:
    return mine


@dataclass(frozen=True)
class _Counted:
    """What is wanted of some trajectories, and how many steps they are."""

    then: Then

    def __call__(self, mine: Trajectories, *given: Any) -> tuple[Any, Array]:
        return self.then(mine, *given), jnp.sum(mine.lengths)


@dataclass(frozen=True)
class Contribution:
    """What the server contributes to an aggregate."""

    policy: Policy
    estimator: Estimator
    needs: tuple[str, ...]

    def __call__(self, mine: Trajectories, theta: Array) -> Own:
        policy, estimator, needs = self.policy, self.estimator, self.needs
        params = policy.unravel(theta)
        first, second = mine, mine
        if "check" in needs:  # one half for the aggregator, the other for who wants to check what came of it
            half = mine.lengths.shape[0] // 2
            first, second = mine.take(0, half), mine.take(half, half)
        return Own(
            gradient=gradient(estimator, policy, params, first) if "gradient" in needs else None,
            check=gradient(estimator, policy, params, second) if "check" in needs else None,
            influences=influences(estimator, policy, params, mine) if "influences" in needs else None,
            scores=scores(policy, params, mine, SCORES) if "scores" in needs else None,
            states=mine.some_steps(STATES)[0] if "states" in needs else None,
        )


class Semi(NamedTuple):
    """The semi-stochastic gradient of an inner step."""

    v: Array  # [D]: mean[g(tau | theta_n) - omega g(tau | theta_0)] + mu
    plain: Array  # [D]: mean[g(tau | theta_n)], the server's own gradient
    ratio: Array  # the mean importance weight


@dataclass(frozen=True)
class SemiStochastic:
    """Line 11, from trajectories of theta_n."""

    policy: Policy
    estimator: Estimator

    def __call__(self, mine: Trajectories, theta_n: Array, theta_0: Array, mu: Array) -> Semi:
        unravel = self.policy.unravel
        change = correction(self.estimator, self.policy, unravel(theta_n), unravel(theta_0), mine)
        return Semi(change.plain - change.corrected + mu, change.plain, change.ratio)


@functools.partial(jax.jit, static_argnums=0)
def _update(aggregator: Aggregator, memory: Memory, sent: Sent, own: Own) -> tuple[Verdict, Memory]:
    return guarded(aggregator.update)(memory, sent, own)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _gradient(policy: Policy, estimator: Estimator, theta: Array, mine: Trajectories) -> Array:
    return gradient(estimator, policy, policy.unravel(theta), mine)


@functools.partial(jax.jit, static_argnums=0)
def ascend(
    transformation: optax.GradientTransformation, theta: Array, optimizer: Memory, direction: Array
) -> tuple[Array, Memory]:
    """theta + eta v. Optax descends, so it is handed the negative."""
    updates, optimizer = transformation.update(-direction, optimizer, theta)
    return optax.apply_updates(theta, updates), optimizer


@jax.jit
def stride(theta: Array, direction: Array, length: float) -> Array:
    """theta + length v / |v|: a step whose length does not depend on v. A direction of 0 leads nowhere."""
    norm = jnp.linalg.norm(direction)
    return theta + length * direction / jnp.where(norm > 0, norm, 1.0)


def evaluate(
    problem: Problem,
    theta: Array,
    keys: RoundKeys,
    episodes: int,
    cancel: threading.Event | None = None,
    wanted: bool = True,
) -> tuple[np.ndarray, int]:
    """(the returns of greedy episodes with the policy theta [E], their environment steps)."""
    plan = ServerEpisodes(episodes, problem.test_steps, greedy=True)
    then = _Counted(_returns)
    returns, steps = problem.task.rollout(problem.policy, plan, theta, (keys, 0, wanted), cancel=cancel, then=then)
    return np.asarray(returns), int(steps)


def evaluate_agents(problem: Problem, theta: Array, keys: RoundKeys, agents: int, episodes: int) -> np.ndarray:
    """The returns of greedy episodes with the policy theta in the tasks of agents 0, 1, ...  [K, E]"""
    together = max(1, min(agents, problem.task.most // episodes))
    found = []
    for first in range(0, agents, together):
        first = min(first, agents - together)  # the last ones overlap, so that all are of one size and compiled once
        plan = AgentTests(together, episodes, problem.test_steps)
        returns = problem.task.rollout(problem.policy, plan, theta, (keys, first), then=_returns)
        found.append((first, np.asarray(returns).reshape(together, episodes)))
    whole = np.zeros((agents, episodes), np.float32)
    for first, part in found:
        whole[first : first + together] = part
    return whole


def _returns(mine: Trajectories) -> Array:
    return mine.returns
