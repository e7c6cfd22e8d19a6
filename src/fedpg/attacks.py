"""What a Byzantine agent does: at its actions, its rewards, its message, or in collusion.

To add an attack, write one function that returns an `Attack`, and name it in ATTACKS.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpg.config import Config, ConfigError, unknown
from fedpg.environments.tasks import import_object
from fedpg.trajectories import Trajectories

Message = Callable[[Array, Array, Array, tuple[slice, ...]], Array]
"""(keys [K], gradients [K, D], byzantine [K], tensors) -> what the agents send [K, D]; only Byzantine rows are used.

Each agent has a key of its own, so that what it sends does not depend on who else is simulated beside it; colluders
share the first one. `tensors` says where each tensor of the policy lies among the D parameters."""


class Attack(NamedTuple):
    """Where an attack changes what an agent does; what it leaves None stays honest."""

    act: Callable[[Array, Array], Array] | None = None
    """(the policy's action, a uniformly random action) -> the action taken."""
    rewards: Callable[[Array, Trajectories], Array] | None = None
    """(key, trajectories) -> the rewards the agent believes in.  [T, B]"""
    message: Message | None = None
    length: Callable[[int], int] | None = None
    """D -> the length of the vector that arrives; 0 is no answer at all."""


def random_noise(form: str, scale: float = 3.0) -> Attack:
    """RN: a random vector (text), or the gradient with random noise added (figures).

    Text: scale rms(mu) N(0, 1); the paper leaves its size open, so it is tied to the agent's own gradient.
    Figures: mu + scale (max mu - min mu) U(-1, 1), tensor by tensor.
    """

    def message(keys: Array, gradients: Array, byzantine: Array, tensors: tuple[slice, ...]) -> Array:
        if form == "text":
            rms = jnp.sqrt(jnp.mean(gradients**2, axis=1, keepdims=True))
            return scale * rms * jax.vmap(lambda key: jax.random.normal(key, gradients.shape[1:]))(keys)
        noise = jax.vmap(lambda key: jax.random.uniform(key, gradients.shape[1:], minval=-1.0, maxval=1.0))(keys)
        spans = [jnp.broadcast_to(jnp.ptp(gradients[:, t], axis=1, keepdims=True), noise[:, t].shape) for t in tensors]
        return gradients + scale * jnp.concatenate(spans, axis=1) * noise

    return Attack(message=message)


def random_action(form: str) -> Attack:
    """RA. Text: acts at random. Figures: always plays action 0, or the zero vector."""
    return Attack(act=lambda action, random: random if form == "text" else 0 * action)


def sign_flipping(form: str, scale: float = 2.5) -> Attack:
    """SF: -scale times its gradient."""
    return Attack(message=lambda keys, gradients, byzantine, tensors: -scale * gradients)


def fedpg_attack(form: str, scale: float = 3.0) -> Attack:
    """The colluders send the mean of their gradients, moved by scale * sigma-bar in a random direction.

    sigma-bar is half the largest distance between two of them. Text: over the whole vector. Figures: per tensor.
    """

    def message(keys: Array, gradients: Array, byzantine: Array, tensors: tuple[slice, ...]) -> Array:
        direction = jax.random.normal(keys[0], gradients.shape[1:])
        parts = (slice(0, gradients.shape[1]),) if form == "text" else tensors
        shifted = []
        for part in parts:
            mine = gradients[:, part]
            centre = _mean_of(mine, byzantine)
            sigma = jnp.sqrt(_largest_squared_distance(mine, byzantine)) / 2
            unit = direction[part] / jnp.maximum(jnp.linalg.norm(direction[part]), 1e-12)
            shifted.append(centre + scale * sigma * unit)
        return jnp.broadcast_to(jnp.concatenate(shifted), gradients.shape)

    return Attack(message=message)


def variance_attack(form: str, z: float = 0.18) -> Attack:
    """VA: the colluders send their mean less z of their standard deviations, in every coordinate.

    G. Baruch, M. Baruch, Y. Goldberg, "A little is enough", NeurIPS 2019.
    """

    def message(keys: Array, gradients: Array, byzantine: Array, tensors: tuple[slice, ...]) -> Array:
        centre = _mean_of(gradients, byzantine)
        std = jnp.sqrt(_mean_of((gradients - centre) ** 2, byzantine))
        return jnp.broadcast_to(centre - z * std, gradients.shape)

    return Attack(message=message)


def zero_gradient(form: str) -> Attack:
    """Sends zeros."""
    return Attack(message=lambda keys, gradients, byzantine, tensors: jnp.zeros_like(gradients))


def reward_flipping(form: str) -> Attack:
    """Learns from the negative of its rewards."""
    return Attack(rewards=lambda key, trajectories: -trajectories.rewards)


def shuffled_rewards(form: str) -> Attack:
    """Learns from its rewards in random order, within each episode (on CartPole, where all are 1, that is honest)."""

    def rewards(key: Array, trajectories: Trajectories) -> Array:
        steps, episodes = trajectories.rewards.shape
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(episodes))
        draws = jax.vmap(lambda k: jax.random.uniform(k, (steps,)), out_axes=-1)(keys)  # [T, B]
        order = jnp.argsort(jnp.where(trajectories.mask, draws, 2.0), axis=0)  # the living steps first
        return jnp.take_along_axis(trajectories.rewards, order, axis=0)

    return Attack(rewards=rewards)


def not_a_number(form: str) -> Attack:
    """Fault: a vector of NaN."""
    return Attack(message=lambda keys, gradients, byzantine, tensors: jnp.full_like(gradients, jnp.nan))


def infinity(form: str) -> Attack:
    """Fault: one infinite entry."""
    return Attack(message=lambda keys, gradients, byzantine, tensors: gradients.at[:, 0].set(jnp.inf))


def wrong_length(form: str) -> Attack:
    """Fault: a vector one entry short."""
    return Attack(length=lambda size: size - 1)


def silence(form: str) -> Attack:
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


COLLUSIVE = ("fedpg-attack", "variance-attack")
"""Attacks that need the gradients of all colluders: they can be simulated, but no site can make one alone."""


def make_attack(config: Config) -> Attack:
    """The attack that the settings name: a built-in one, or a user's `package.module:function`."""
    if ":" in config.attack and config.attack_options:
        raise ConfigError("attack_options are for built-in attacks: give your own function its parameters yourself")
    if ":" in config.attack:
        return as_attack(import_object("attack", config.attack))
    if config.attack not in ATTACKS:
        raise unknown("attack", config.attack, ATTACKS)
    factory = ATTACKS[config.attack]
    known = [name for name in inspect.signature(factory).parameters if name != "form"]
    options = {}
    for option in config.attack_options:
        name, _, value = option.partition("=")
        if name not in known:
            have = f"its parameters are {', '.join(known)}" if known else "it has no parameters"
            raise ConfigError(f"attack {config.attack!r} has no parameter {name!r}: {have}")
        try:
            options[name] = float(value)
        except ValueError:
            raise ConfigError(f"attack_options wants name=number, not {option!r}") from None
    return factory(config.attack_form, **options)


def as_attack(attack: Any) -> Attack:
    """An attack from what a user passes: an Attack, or a function for its message."""
    if isinstance(attack, Attack):
        return attack
    if callable(attack):
        return Attack(message=attack)
    raise ConfigError(f"an attack is an Attack or a function of (keys, gradients, byzantine, tensors), not {attack!r}")


def _mean_of(rows: Array, chosen: Array) -> Array:
    return jnp.sum(jnp.where(chosen[:, None], rows, 0.0), axis=0) / jnp.maximum(jnp.sum(chosen), 1)


def _largest_squared_distance(rows: Array, chosen: Array) -> Array:
    def furthest(row: Array) -> Array:  # one row at a time: [K, D] of memory, not [K, K, D]
        return jnp.max(jnp.where(chosen, jnp.sum((rows - row) ** 2, axis=1), 0.0))

    return jnp.max(jnp.where(chosen, jax.lax.map(furthest, rows), 0.0))
