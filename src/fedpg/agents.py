"""A cohort of agents answers a broadcast: parameters in, messages out. K = 1 at a site, the same code."""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpg.aggregators import Aggregator, Own, Sent, check_first_memory, check_memory
from fedpg.attacks import Attack, Scene
from fedpg.errors import ConfigError, SimulationError
from fedpg.per_agent import Corrections, Gradients, HessianProducts, PerAgent, made_of
from fedpg.policies import Policy
from fedpg.problem import Agent, Broadcast, Cohort, Memory, Problem, Schema, make_broadcast, status_of
from fedpg.tasks import AgentEpisodes
from fedpg.tasks.task import Then, agent_keys, stream
from fedpg.trajectories import Trajectories, join


def _answer(cohort: Cohort, broadcast: Broadcast, memory: Memory) -> tuple[dict[str, Array], Memory]:
    return {"gradient": cohort.sampled_gradient(broadcast.theta)}, memory


GRADIENT = Agent(_answer)
"""Lines 4 to 6 of Algorithm 1: sample, and send the gradient."""


def with_momentum(agent: Agent, beta: float, vectors: tuple[str, ...] = ("gradient",)) -> Agent:
    """The agent, sending for each of these vectors its average over rounds: m_i <- beta m_i + (1 - beta) g_i, from 0.

    S. P. Karimireddy, L. He, M. Jaggi, "Learning from history for Byzantine robust optimization", ICML 2021.
    """
    if not 0 <= beta < 1:
        raise ConfigError(f"momentum must be in [0, 1), not {beta}")

    def answer(cohort: Cohort, broadcast: Broadcast, memory: Memory) -> tuple[dict[str, Array], Memory]:
        message, after = agent.answer(cohort, broadcast, memory["agent"])
        averages = {name: _averaged(beta, memory["averages"][name], message[name]) for name in vectors}
        return message | averages, {"agent": after, "averages": averages}

    def init(agents: int, size: int) -> Memory:
        averages = {name: jnp.zeros((agents, size)) for name in vectors}
        return {"agent": agent.init(agents, size), "averages": averages}

    return Agent(answer, init)


@jax.jit
def _averaged(beta: float, before: Array, new: Array) -> Array:
    return beta * before + (1 - beta) * new


def widths(problem: Problem) -> tuple[int, ...]:
    """How many places for episodes an agent may have, the fewest first."""
    usual, small = problem.task.widths(*problem.config.batch), problem.config.minibatch
    return (small, *usual) if problem.algorithm.small_batches and small < usual[0] else usual


class LocalCohort:
    """Agents of this process, `attacking` [K] of them; number -1 is nobody, and costs nothing."""

    def __init__(
        self,
        problem: Problem,
        broadcast: Broadcast,
        agents: np.ndarray,
        attacking: np.ndarray,
        cancel: threading.Event | None = None,
        width: int | None = None,
    ) -> None:
        self.problem, self.broadcast, self.cancel = problem, broadcast, cancel
        self.agents, self.attacking = agents, attacking
        self.width = width or next(width for width in widths(problem) if width >= broadcast.batch)
        self.returns = np.zeros(len(agents), np.float32)
        self.steps = np.zeros(len(agents), np.int32)

    def sample(self, theta: Array, use: int = 0) -> Trajectories:
        """B_t trajectories of each agent, `width` places each; with theta [K, D] each has its own policy."""
        if theta.ndim == 1:
            return self._roll(theta, use, slice(None))
        return join([self._roll(theta[k], use, slice(k, k + 1)) for k in range(len(self.agents))])

    def gradient(self, theta: Array, trajectories: Trajectories) -> Array:
        """Each agent's own estimate; Byzantine agents believe in the rewards that their attack says.  [K, D]"""
        return self._noted(made_of(self._make(Gradients), trajectories, theta, *self._who))

    def sampled_gradient(self, theta: Array, use: int = 0) -> Array:
        """`gradient` of `sample`, in one.  [K, D]"""
        return self._sampled(Gradients, use, theta)

    def sampled_correction(self, theta: Array, old: Array, use: int = 0) -> tuple[Array, Array]:
        """Of B_t trajectories of theta each, g(tau | theta) and omega g(tau | old).  [K, D] each"""
        return self._sampled(Corrections, use, theta, old)

    def sampled_hessian_product(self, theta: Array, along: Array, use: int = 0) -> Array:
        """Of B_t trajectories of theta each, an estimate of the Hessian of J times a vector.  [K, D]"""
        return self._sampled(HessianProducts, use, theta, along)

    def _sampled(self, kind: type[PerAgent], use: int, theta: Array, *others: Array) -> Any:
        """What these agents make of trajectories that they sample with theta, in one call if it is the same for all."""
        make, given = self._make(kind), (theta, *others, *self._who)
        if theta.ndim == 2:
            return self._noted(made_of(make, self.sample(theta, use), *given))
        return self._noted(self._roll(theta, use, slice(None), make, given))

    def _roll(self, theta: Array, use: int, who: slice, then: Then | None = None, given: tuple[Any, ...] = ()) -> Any:
        p = self.problem
        plan = AgentEpisodes(self.width, p.steps, max(p.steps, p.test_steps))
        inputs = (self.broadcast.keys, self.broadcast.batch, self.agents[who], self.attacking[who], use)
        return p.task.rollout(p.policy, plan, theta, inputs, p.attack.act, self.cancel, then, given)

    def _make(self, kind: type[PerAgent]) -> PerAgent:
        p = self.problem
        return kind(p.policy, p.estimator, p.attack.rewards, self.width)

    @property
    def _who(self) -> tuple[Array, np.ndarray, np.ndarray]:
        return self.broadcast.key, self.agents, self.attacking

    def _noted(self, found: tuple[Any, Array, Array]) -> Any:
        made, returns, steps = found
        self.returns, self.steps = np.asarray(returns), self.steps + np.asarray(steps)
        return made


class Target(NamedTuple):
    """What adaptive attackers try their lies on: the aggregator, as it is in this round."""

    aggregator: Aggregator
    memory: Memory
    own: Own  # what the server contributes


Watch = Callable[[Broadcast], Target]
"""The broadcast of a round -> what attackers of that round try their lies on."""


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def send(
    policy: Policy,
    attack: Attack,
    schema: Schema,
    aggregator: Aggregator | None,
    judging: tuple[Memory, Own, int] | None,
    message: dict[str, Array],
    memory: dict[str, Memory],
    key: Array,
    agents: Array,
    attacking: Array,
) -> tuple[dict[str, Array], dict[str, Memory], Array, Array]:
    """(what the agents send, the attack's memory by vector, the lengths of their vectors [K], their status [K]).

    An adaptive attack is compiled for its aggregator, which judges with a memory, what the server contributes, and B_t.
    """
    aggregate = None
    if aggregator is not None and judging is not None:
        aggregate = functools.partial(_aggregate, aggregator, judging)
    keys = agent_keys(stream(key, "attack"), agents)
    sent, after = dict(message), {}
    for name in schema.vectors:
        scene = Scene(keys, message[name], attacking, policy.tensors, aggregate)
        sent[name], after[name] = attack.send(memory[name], scene)
    lengths = jnp.full(agents.shape, policy.size)
    if attack.length is not None:
        lengths = jnp.where(attacking, attack.length(policy.size), lengths)
    vectors, scalars = ({name: sent[name] for name in names} for names in schema)
    return sent, after, lengths, status_of(vectors, scalars, lengths)


def _aggregate(aggregator: Aggregator, judging: tuple[Memory, Own, int], vectors: Array) -> Array:
    """What the server would make of these vectors [K, D].  [D]"""
    memory, own, batch = judging
    valid = jnp.all(jnp.isfinite(vectors), axis=1)
    return aggregator.update(memory, Sent(vectors, valid, batch), own)[0].gradient


def first_memory(problem: Problem, agents: int) -> dict[str, Any]:
    """What so many agents and their attack remember before the first round."""
    size = problem.policy.size
    mine = problem.algorithm.agent.init(agents, size)
    attack = {name: problem.attack.init(agents, size) for name in problem.algorithm.reply.vectors}
    check_first_memory("the agents'", mine, rows=agents)
    check_first_memory("the attack's", attack)
    return {"agents": mine, "attack": attack}


class Answers(NamedTuple):
    """What came of asking some agents."""

    sent: dict[str, Array]  # [K, D] or [K] each
    lengths: Array  # [K]: how many numbers of each vector arrive; 0 for no answer
    status: Array  # [K]
    returns: np.ndarray  # [K]
    steps: np.ndarray  # [K]


def answer(
    problem: Problem,
    broadcast: Broadcast,
    memory: dict[str, Any],
    agents: np.ndarray,
    threads: ThreadPoolExecutor | None = None,
    parts: int = 1,
    cancel: threading.Event | None = None,
    width: int | None = None,
    watch: Watch | None = None,
) -> tuple[Answers, dict[str, Any]]:
    """The answers of the agents with these numbers, and what they remember; `parts` of them side by side.

    `width` are the places for episodes of each agent; by default the fewest that hold B_t. With `watch`, adaptive
    attackers see what the server would make of their lies.
    """
    attacking = problem.byzantine[agents] & (broadcast.round >= problem.config.attack_start)
    count = len(agents)
    widest = widths(problem)[-1]
    size = max(1, min(-(-count // parts), problem.task.most // widest))

    def work(first: int) -> tuple[Any, ...]:
        # The last ones may be fewer: number -1 fills up, so that all parts are of one size and compiled once.
        mine = np.resize(np.arange(first, min(first + size, count)), size)
        there = np.arange(size) < count - first
        numbers, lying = np.where(there, agents[mine], -1), attacking[mine] & there
        cohort = LocalCohort(problem, broadcast, numbers, lying, cancel, width)
        remembered = jax.tree.map(lambda x: _rows(x, mine), memory["agents"])
        message, after = problem.algorithm.agent.answer(cohort, _for(broadcast, mine), remembered)
        return message, after, cohort.returns, cohort.steps

    firsts = range(0, count, size)
    done = list(threads.map(work, firsts)) if threads is not None and len(firsts) > 1 else [*map(work, firsts)]
    message, after, returns, steps = jax.tree.map(lambda *x: _joined(x)[:count], *done)
    if not np.isfinite(returns[~attacking]).all():  # simulators outside JAX are looked at while they go on
        raise SimulationError(f"{problem.task.id} gave rewards that are not finite: correct the task")
    check_message(problem.algorithm.reply, message, count, problem.policy.size)
    check_memory("the agents'", memory["agents"], after)
    aggregator, judging = None, None
    if watch is not None and problem.attack.adaptive:
        target = watch(broadcast)
        aggregator, judging = target.aggregator, (target.memory, target.own, broadcast.batch)
    sent, lies, lengths, status = send(
        problem.policy,
        problem.attack,
        problem.algorithm.reply,
        aggregator,
        judging,
        message,
        memory["attack"],
        broadcast.key,
        agents,
        attacking,
    )
    check_memory("the attack's", memory["attack"], lies)
    return Answers(sent, lengths, status, returns, steps), {"agents": after, "attack": lies}


def check_message(schema: Schema, message: dict[str, Any], agents: int, size: int) -> None:
    """Refuse what so many agents are to send if it is not what the algorithm declares."""
    names = {*schema.vectors, *schema.scalars}
    if not schema.vectors:
        raise ConfigError("the algorithm's schema has no vector: agents must send one, for the aggregator")
    if set(message) != names:
        raise ConfigError(f"the agents sent {sorted(message)}, and the algorithm declares {sorted(names)}")
    for name, value in message.items():
        shape = (agents, size) if name in schema.vectors else (agents,)
        if jnp.shape(value) != shape:
            raise ConfigError(f"the agents sent {name!r} of shape {jnp.shape(value)}: it must be {shape}, a row each")


def warm_up(
    problem: Problem, memory: dict[str, Any], agents: np.ndarray, parts: int = 1, watch: Watch | None = None
) -> list[Callable[[], Any]]:
    """Calls that compile what rounds will need, an answer of no trajectories at every width; also side by side."""
    key = jax.random.key(0, impl="threefry2x32")
    nothing = {name: jnp.zeros(problem.policy.size) for name in problem.algorithm.broadcast}
    broadcast = make_broadcast(key, 1, 0, **nothing)
    return [
        functools.partial(answer, problem, broadcast, memory, agents, None, parts, width=width, watch=watch)
        for width in widths(problem)
    ]


def _for(broadcast: Broadcast, agents: np.ndarray) -> Broadcast:
    """With the rows of these agents, where a vector has one for each."""
    rows = {name: _rows(v, agents) if v.ndim == 2 else v for name, v in broadcast.vectors.items()}
    return broadcast._replace(vectors=rows)


def _rows(x: Any, chosen: np.ndarray) -> Any:
    """x[chosen], cut out by NumPy: JAX would compile a program for every shape."""
    return jax.device_put(np.asarray(x)[chosen])


def _joined(parts: tuple[Any, ...]) -> Any:
    return parts[0] if len(parts) == 1 else np.concatenate([np.asarray(part) for part in parts])
