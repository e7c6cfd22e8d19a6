"""fedpg_br: the environments, which are to these agents what data are to others."""

from fedpg import Task, make_task


def load_environment(name: str) -> Task:
    """Make the environment of a node.

    A Gymnasium id, or the node's own as `package.module:factory`. Nobody partitions
    it: every node samples its own trajectories, by the key that the server sends.
    """
    return make_task(name)
