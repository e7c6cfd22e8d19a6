"""What a Byzantine agent does: at its actions, its rewards, its message, or in collusion.

To add an attack, write a function of its parameters that returns an `Attack`, and name it in ATTACKS; or pass a
function of a `Scene`, or `package.module:function`.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.errors import ConfigError
from fedpg.pieces import import_object, look_up
from fedpg.trajectories import Trajectories


class Scene(NamedTuple):
    """What attackers see when they decide what to send."""

    keys: Array  # [K]: one per agent, so that a lie does not depend on who else is simulated; colluders share the first
    gradients: Array  # [K, D]: what each agent would honestly send
    byzantine: Array  # [K]: who attacks
    tensors: tuple[slice, ...]  # where each tensor of the policy lies among the D parameters


Memory = Any


class Attack(NamedTuple):
    """Where an attack changes what an agent does; what it leaves None stays honest."""

    act: Callable[[Any, Any], Any] | None = None
    """(the policy's action, a uniformly random action) -> the action taken."""
    rewards: Callable[[Array, Trajectories], Array] | None = None
    """(key, trajectories) -> the rewards the agent believes in.  [T, B]"""
    message: Callable[[Scene], Array] | None = None
    """scene -> what the agents send [K, D]; only rows of Byzantine agents are used."""
    recall: Callable[[Memory, Scene], tuple[Array, Memory]] | None = None
    """As `message`, with a memory from round to round: (memory, scene) -> (what the agents send, memory)."""
    init: Callable[[int, int], Memory] = lambda agents, size: ()
    """(K, D) -> that memory before the first round."""
    length: Callable[[int], int] | None = None
    """D -> the length of the vector that arrives; 0 is no answer at all."""
    colludes: bool = False
    """Needs the gradients of all colluders: it can be simulated, but no site can make it alone."""

    def send(self, memory: Memory, scene: Scene) -> tuple[Array, Memory]:
        """What all agents send, honest ones included.  [K, D]"""
        if self.recall is not None:
            lies, memory = self.recall(memory, scene)
        elif self.message is not None:
            lies = self.message(scene)
        else:
            return scene.gradients, memory
        if getattr(lies, "shape", None) != scene.gradients.shape:
            got = getattr(lies, "shape", type(lies).__name__)
            raise ConfigError(
                f"the attack returned {got}; it must return what all agents send, an array of shape "
                f"{scene.gradients.shape}"
            )
        return jnp.where(scene.byzantine[:, None], lies, scene.gradients), memory


def random_noise(form: str = "paper", scale: float = 3.0) -> Attack:
    """RN: a random vector (paper), or the gradient with random noise added (released).

    Paper: scale rms(mu) N(0, 1); the paper leaves its size open, so it is tied to the agent's own gradient.
    Released: mu + scale (max mu - min mu) U(-1, 1), tensor by tensor.
    """

    def message(scene: Scene) -> Array:
        keys, gradients, _, tensors = scene
        if form == "paper":
            rms = jnp.sqrt(jnp.mean(gradients**2, axis=1, keepdims=True))
            return scale * rms * jax.vmap(lambda key: jax.random.normal(key, gradients.shape[1:]))(keys)
        noise = jax.vmap(lambda key: jax.random.uniform(key, gradients.shape[1:], minval=-1.0, maxval=1.0))(keys)
        spans = [jnp.broadcast_to(jnp.ptp(gradients[:, t], axis=1, keepdims=True), noise[:, t].shape) for t in tensors]
        return gradients + scale * jnp.concatenate(spans, axis=1) * noise

    return Attack(message=message)


def random_action(form: str = "paper") -> Attack:
    """RA. Paper: acts at random. Released: always plays action 0, or the zero vector."""
    return Attack(act=lambda action, random: random if form == "paper" else 0 * action)


def sign_flipping(scale: float = 2.5) -> Attack:
    """SF: -scale times its gradient."""
    return Attack(message=lambda scene: -scale * scene.gradients)


def fedpg_attack(form: str = "paper", scale: float = 3.0) -> Attack:
    """The colluders send the mean of their gradients, moved by scale * sigma-bar in a random direction.

    sigma-bar is half the largest distance between two of them. Paper: over the whole vector. Released: per tensor.
    """

    def message(scene: Scene) -> Array:
        keys, gradients, byzantine, tensors = scene
        direction = jax.random.normal(keys[0], gradients.shape[1:])
        parts = (slice(0, gradients.shape[1]),) if form == "paper" else tensors
        shifted = []
        for part in parts:
            mine = gradients[:, part]
            centre = _mean_of(mine, byzantine)
            sigma = jnp.sqrt(_largest_squared_distance(mine, byzantine)) / 2
            unit = direction[part] / jnp.maximum(jnp.linalg.norm(direction[part]), 1e-12)
            shifted.append(centre + scale * sigma * unit)
        return jnp.broadcast_to(jnp.concatenate(shifted), gradients.shape)

    return Attack(message=message, colludes=True)


def variance_attack(z: float = 0.18) -> Attack:
    """VA: the colluders send their mean less z of their standard deviations, in every coordinate.

    G. Baruch, M. Baruch, Y. Goldberg, "A little is enough", NeurIPS 2019.
    """

    def message(scene: Scene) -> Array:
        _, gradients, byzantine, _ = scene
        centre = _mean_of(gradients, byzantine)
        std = jnp.sqrt(_mean_of((gradients - centre) ** 2, byzantine))
        return jnp.broadcast_to(centre - z * std, gradients.shape)

    return Attack(message=message, colludes=True)


def zero_gradient() -> Attack:
    """Sends zeros."""
    return Attack(message=lambda scene: jnp.zeros_like(scene.gradients))


def reward_flipping() -> Attack:
    """Learns from the negative of its rewards."""
    return Attack(rewards=lambda key, trajectories: -trajectories.rewards)


def shuffled_rewards() -> Attack:
    """Learns from its rewards in random order, within each episode (on CartPole, where all are 1, that is honest)."""

    def rewards(key: Array, trajectories: Trajectories) -> Array:
        steps, episodes = trajectories.rewards.shape
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(episodes))
        draws = jax.vmap(lambda k: jax.random.uniform(k, (steps,)), out_axes=-1)(keys)  # [T, B]
        order = jnp.argsort(jnp.where(trajectories.mask, draws, 2.0), axis=0)  # the living steps first
        return jnp.take_along_axis(trajectories.rewards, order, axis=0)

    return Attack(rewards=rewards)


def not_a_number() -> Attack:
    """Fault: a vector of NaN."""
    return Attack(message=lambda scene: jnp.full_like(scene.gradients, jnp.nan))


def infinity() -> Attack:
    """Fault: one infinite entry."""
    return Attack(message=lambda scene: scene.gradients.at[:, 0].set(jnp.inf))


def wrong_length() -> Attack:
    """Fault: a vector one entry short."""
    return Attack(length=lambda size: size - 1)


def silence() -> Attack:
    """Fault: no answer."""
    return Attack(length=lambda size: 0)


ATTACKS: dict[str, Callable[..., Attack]] = {
    "random-noise": random_noise,
    "random-action": random_action,
    "sign-flipping": sign_flipping,
    "fedpg-attack": fedpg_attack,
    "variance-attack": variance_attack,
    "zero-gradient": zero_gradient,
    "reward-flipping": reward_flipping,
    "shuffled-rewards": shuffled_rewards,
    "nan": not_a_number,
    "infinity": infinity,
    "wrong-length": wrong_length,
    "silence": silence,
}


def make_attack(name: str, form: str = "paper", options: Sequence[str] = ()) -> Attack:
    """The attack of that name in that form (`paper` or `released`), or a user's own `package.module:object`."""
    if ":" not in name:
        return _known(name, form, tuple(options))
    own = import_object("attack", name)
    if options or _makes_one(own):
        return as_attack(look_up("attack", name, {name: own}, options, form=form))
    return as_attack(own)


def _makes_one(own: Any) -> bool:
    """Whether it can be called with nothing: a function that makes an attack, and not one of a Scene."""
    if not callable(own):
        return False
    return all(parameter.default is not parameter.empty for parameter in inspect.signature(own).parameters.values())


@functools.cache  # the same attack is the same object, so that nothing is compiled twice for it
def _known(name: str, form: str, options: tuple[str, ...]) -> Attack:
    return look_up("attack", name, ATTACKS, options, form=form)


def as_attack(attack: Any) -> Attack:
    """An attack from what a user passes: an Attack, or a function of a Scene."""
    if isinstance(attack, Attack):
        return attack
    if callable(attack):
        return Attack(message=attack)
    raise ConfigError(f"an attack is an Attack or a function of a Scene, not {attack!r}")


def _mean_of(rows: Array, chosen: Array) -> Array:
    return jnp.sum(jnp.where(chosen[:, None], rows, 0.0), axis=0) / jnp.maximum(jnp.sum(chosen), 1)


def _largest_squared_distance(rows: Array, chosen: Array) -> Array:
    def furthest(row: Array) -> Array:  # one row at a time: [K, D] of memory, not [K, K, D]
        return jnp.max(jnp.where(chosen, jnp.sum((rows - row) ** 2, axis=1), 0.0))

    return jnp.max(jnp.where(chosen, jax.lax.map(furthest, rows), 0.0))
