"""compass with two memories, as a rule for the arena. Minutes on CartPole.

    PYTHONPATH=studies fedpg arena --results runs/two-memories --defences compass two_memories:rule
    PYTHONPATH=studies fedpg arena --results runs/two-memories --trajectories 1500 --defences compass two_memories:rule
    PYTHONPATH=studies fedpg arena --results runs/two-memories --defences compass two_memories:rule \
        --attacks sign-flipping,start=15 random-action,start=15 avg-zero,start=15

compass judges by some ten rounds, so that a liar who begins late is soon found; where there is little signal, ten
rounds do not show who lies all the time (docs/natural.md, What limits it). Here two of it judge, one by ten rounds and
one by some fifty: whom the second turns away, the first does not hear.
"""

import importlib
from typing import Any

from fedpg.aggregators import Aggregator

compass = importlib.import_module("fedpg.aggregators.compass")  # its package has a function of that name
LONG = 0.98


def rule() -> Aggregator:
    by_ten, by_fifty = compass.compass(), compass.compass()

    def init(agents: int, size: int) -> Any:
        return by_ten.init(agents, size), by_fifty.init(agents, size)

    def update(memory: Any, sent: Any, own: Any) -> Any:
        short = compass.RECALL
        try:
            compass.RECALL = LONG  # read while this is compiled
            doubted, long_memory = by_fifty.update(memory[1], sent, own)
        finally:
            compass.RECALL = short
        verdict, short_memory = by_ten.update(memory[0], sent._replace(valid=sent.valid & doubted.accepted), own)
        return verdict, (short_memory, long_memory)

    return Aggregator(update, init, needs=("gradient",), by_agent=True)
