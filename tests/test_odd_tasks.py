"""Tasks that do not do what Gymnasium asks of them: each is refused with a sentence."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from fedpg import ConfigError, SimulationError, make_task
from fedpg.tasks.simulators import one_step


class Still(gymnasium.Env[np.ndarray, int]):
    """Nothing happens in it, for six steps."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)
    answer: Any = (np.zeros(2, np.float32), 1.0, False, True, {})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        return self.answer


def answering(answer: Any) -> Still:
    environment = Still()
    environment.answer = answer
    return environment


def of(**members: Any) -> Callable[[], gymnasium.Env[Any, Any]]:
    return type("Odd", (Still,), members)


def wants(size: int) -> Still:
    return Still()


EMPTY = spaces.Box(-1, 1, (0,), np.float32)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (of(observation_space=EMPTY), "at least one number of each"),
        (of(action_space=EMPTY), "at least one number of each"),
        (wants, r"called without arguments: missing a required argument: 'size'.*functools.partial"),
        (of(reset=lambda self: (np.zeros(2), {})), "takes no seed"),
        (functools.partial(sys.exit, 4), r"called sys.exit\(4\) while it was made"),
    ],
)
def test_a_task_that_cannot_work_is_refused_when_it_is_made(factory: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        make_task(factory)


def test_what_makes_a_task_may_have_defaults_or_get_its_arguments_before():
    for factory in (functools.partial(wants, 3), functools.partial(wants, size=3), lambda size=3: wants(size)):
        assert make_task(factory).observations == 2


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((np.zeros(2), 1.0, True, {}), "4 values from step, not Gymnasium's five"),
        (np.zeros(2), "from step, not Gymnasium's five"),
        ((np.zeros(2), 1.0, None, True, {}), "terminated = None"),
        ((np.zeros(2), 1.0, False, "no", {}), "truncated = 'no'"),
        ((np.zeros(2), None, False, True, {}), "the reward None, which is no number"),
    ],
)
def test_what_a_step_returns_is_checked(answer: Any, message: str):
    with pytest.raises(SimulationError, match=message):
        one_step("Odd-v0", answering(answer), 0)


def test_true_and_false_of_other_libraries_are_taken():
    for yes, no in ((True, False), (np.True_, np.False_), (1, 0), (np.array([True]), np.array(False))):
        assert one_step("Odd-v0", answering((np.zeros(2), np.float32(1), yes, no, {})), 0)[1:] == (1.0, True, False)


def test_a_task_that_ends_the_program_fails_instead():
    odd = of(step=lambda self, action: sys.exit(3))
    with pytest.raises(SimulationError, match=r"called sys.exit\(3\) in step"):
        one_step("Odd-v0", odd(), 0)
