"""The tasks, by name, and the one way in: roll out N episodes of a policy from N keys."""

from collections.abc import Callable

from jax import Array

from fedpg.environments.environment import Environment, Lanes, compiled_rollout, join, lanes
from fedpg.environments.pool import Pool, pool_rollout
from fedpg.environments.tasks import ENVIRONMENTS, Factory, make_environment
from fedpg.policies import Params, Policy
from fedpg.trajectories import Trajectories


def rollout(
    environment: Environment | Pool,
    policy: Policy,
    params: Params,
    lanes: Lanes,
    steps: int,
    act: Callable[[Array, Array], Array] | None = None,
) -> Trajectories:
    """Roll out one episode per lane, at most `steps` long, until the last one has ended.

    `act(action, random_action)` is what Byzantine lanes do instead of the policy's action.
    Each lane's result depends on its key alone, however many lanes there are.
    """
    if isinstance(environment, Pool):
        return pool_rollout(environment, policy, params, lanes, steps, act)
    return compiled_rollout(environment, policy, params, lanes, steps, act)


__all__ = [
    "ENVIRONMENTS",
    "Environment",
    "Factory",
    "Lanes",
    "Pool",
    "join",
    "lanes",
    "make_environment",
    "rollout",
]
