"""fedpg_br: the policy network."""

from fedpg import Config, Policy, Task
from fedpg.policies import make_mlp


def make_policy(config: Config, task: Task) -> Policy:
    """Dense layers of the sizes of the paper's table.

    Categorical for a task with n actions, Gaussian for one with a box of them.
    """
    return make_mlp(
        task.observations,
        task.actions,
        config.hidden,
        config.activation,
        config.gaussian,
        config.categorical,
    )
