"""The room of the tasks: who simulates what. Outside it a Task is a Task."""

from fedpg.tasks.compiled import Environment
from fedpg.tasks.registry import TASKS, AnyTask, Factory, make_task
from fedpg.tasks.task import AgentEpisodes, AgentTests, Episodes, RoundKeys, ServerEpisodes, Task

__all__ = [
    "TASKS",
    "AgentEpisodes",
    "AgentTests",
    "AnyTask",
    "Environment",
    "Episodes",
    "Factory",
    "RoundKeys",
    "ServerEpisodes",
    "Task",
    "make_task",
]
