"""Small Gymnasium tasks that watch how they are treated, or go wrong when told to."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([4.0, 1.0], np.float32))
DISCRETE = spaces.Discrete(3, start=-1)
LIMIT = 12


class Walk(gymnasium.Env[Any, Any]):
    """A point that actions and chance push about; chance also ends it, at step LIMIT at the latest.

    It wants to be reset before it is stepped, not to be stepped after its end, and actions that lie in its space.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012 (as Gymnasium has it)

    def __init__(self, actions: spaces.Space[Any] = BOX, ends: float = 0.1, render_mode: str | None = None) -> None:
        self.action_space = actions
        self.ends = ends
        self.render_mode = render_mode
        self.over = True
        self.got: list[Any] = []
        """The actions of all its episodes."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.position, self.steps, self.over = float(self.np_random.normal()), 0, False
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        if self.over:
            raise AssertionError("stepped after its end")
        if not self.action_space.contains(action):
            raise AssertionError(f"{action!r} does not lie in {self.action_space}")
        self.got.append(np.array(action))
        self.position += 0.3 * float(np.sum(action)) + float(self.np_random.normal())
        self.steps += 1
        ended = bool(self.np_random.random() < self.ends)
        late = self.steps >= LIMIT
        self.over = ended or late
        return self._seen(), -abs(self.position), ended, late, {}

    def render(self) -> Any:
        shade = int(128 + 127 * np.tanh(self.position))
        return np.full((60, 80, 3), shade, np.uint8)

    def _seen(self) -> np.ndarray:
        return np.array([self.position, self.steps / LIMIT])


class Trouble(Walk):
    """A walk that goes wrong at one moment, while `Trouble.kind` says so."""

    kind = ""
    after = 0
    """So many steps of any of them are good before."""
    count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        seen, about = super().reset(seed=seed)
        if self._now("reset"):
            raise ZeroDivisionError("trouble in reset")
        return (np.full(2, np.nan) if self._now("first observation") else seen), about

    def step(self, action: Any) -> Any:
        seen, reward, terminated, truncated, about = super().step(action)
        Trouble.count += 1
        if self._now("step"):
            raise ZeroDivisionError("trouble in step")
        seen = np.array([np.inf, 0.0]) if self._now("observation") else seen
        return seen, np.nan if self._now("reward") else reward, terminated, truncated, about

    def _now(self, kind: str) -> bool:
        return Trouble.kind == kind and Trouble.count >= Trouble.after


def walk(render_mode: str | None = None) -> Walk:
    """For `gym_probes:walk`."""
    return Walk(render_mode=render_mode)


def discrete_walk() -> Walk:
    return Walk(DISCRETE)


def no_environment() -> str:
    return "a walk"


def not_installed() -> Walk:
    raise ImportError("No module named 'walking'")


NOT_A_FUNCTION = 3
