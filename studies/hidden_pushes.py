"""Attacks that hide a common push behind noise of each liar's own, for the arena.

    cd studies && fedpg arena --trajectories 1500 --seeds 0:3 --results ../results --runs ../runs/arena \\
        --defences compass --attacks hidden_pushes:aside,c=0.5 hidden_pushes:aside,c=1 hidden_pushes:aside,c=3 \\
        hidden_pushes:back,c=1.5 hidden_pushes:back,c=3 hidden_pushes:along_deviation,z=1 \\
        hidden_pushes:along_deviation,z=2 hidden_pushes:against_signs,z=0.5 hidden_pushes:against_signs,z=1.5

compass counts agents that are far more alike than either is with most others as one, in a round or over rounds. Here
every liar sends its own honest gradient, which is mostly noise and like nobody else's, and the same push in addition.
Two minutes.

    ... --seeds 0:5 --attacks hidden_pushes:balanced,a=0.5 hidden_pushes:balanced,a=0.55 hidden_pushes:balanced,a=0.6 \\
        hidden_pushes:balanced,a=0.65 hidden_pushes:steady,a=0.5 hidden_pushes:steady,a=0.55 hidden_pushes:steady,a=0.6

hide behind noise that the liars agree on and that cancels in their sum: no two are alike in any round, and those of
`steady` not over rounds either.
"""

import jax
import jax.numpy as jnp

from fedpg import Attack, Scene
from fedpg.attacks import mean_of


def aside(c: float = 1.0) -> Attack:
    """A fixed direction, drawn at random once: at right angles to nearly everything."""

    def message(scene: Scene) -> jax.Array:
        way = jax.random.normal(jax.random.key(7), scene.gradients.shape[1:])
        length = jnp.median(jnp.linalg.norm(scene.gradients, axis=1))
        return scene.gradients + c * length * way / jnp.linalg.norm(way)

    return Attack(message=message, colludes=True)


def back(c: float = 2.0) -> Attack:
    """Against the mean of the honest."""
    return Attack(message=lambda scene: scene.gradients - c * scene.mean("all"), colludes=True)


def along_deviation(z: float = 1.5) -> Attack:
    """As ALIE: so many deviations of the honest, coordinate by coordinate."""
    return Attack(message=lambda scene: scene.gradients - z * scene.deviation("all"), colludes=True)


def against_signs(z: float = 1.0) -> Attack:
    """The same, in each coordinate against the sign of the honest mean."""

    def message(scene: Scene) -> jax.Array:
        return scene.gradients - z * scene.deviation("all") * jnp.sign(scene.mean("all"))

    return Attack(message=message, colludes=True)


def balanced(a: float = 0.6) -> Attack:
    """Random actions, whose gradients push the same way; that push is the share `a` of each message.

    The rest is what each liar's gradient has beyond their mean. These rests sum to nothing, so f of them have cosines
    of -1/(f - 1) with each other: with a = 1/sqrt(f) the messages are at right angles, as honest noise is.
    """

    def message(scene: Scene) -> jax.Array:
        common = mean_of(scene.gradients, scene.byzantine)
        lengths = jnp.where(scene.honest, jnp.linalg.norm(scene.gradients, axis=1), jnp.nan)
        rest = scene.gradients - common
        return jnp.nanmedian(lengths) * (a * _unit(common) + jnp.sqrt(1 - a**2) * _unit(rest))

    return Attack(act=lambda action, random: random, message=message, colludes=True)


def steady(a: float = 0.55) -> Attack:
    """The same push behind a rest that each liar keeps: at right angles to the others over rounds as well."""

    def message(scene: Scene) -> jax.Array:
        common = mean_of(scene.gradients, scene.byzantine)
        lengths = jnp.where(scene.honest, jnp.linalg.norm(scene.gradients, axis=1), jnp.nan)
        drawn = jax.random.normal(jax.random.key(7), scene.gradients.shape)
        rest = drawn - mean_of(drawn, scene.byzantine)
        return jnp.nanmedian(lengths) * (a * _unit(common) + jnp.sqrt(1 - a**2) * _unit(rest))

    return Attack(act=lambda action, random: random, message=message, colludes=True)


def _unit(vectors: jax.Array) -> jax.Array:
    return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-30)
