"""Rendering: a trained policy in Gymnasium's own environment, as an animated GIF."""

import io
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.progress import Progress

from fedpg.errors import ConfigError
from fedpg.pieces import import_object
from fedpg.policies import Params
from fedpg.problem import Problem
from fedpg.storage import write_whole

WIDTH = 400
FPS = 12
"""Frames per second of the picture, or a little more or less: drawing in software takes a while."""
COLOURS = 64


def render(problem: Problem, params: Params, out: Path, episodes: int, seed: int) -> list[float]:
    """Write a GIF of greedy episodes; returns their returns."""
    if out.suffix.lower() != ".gif":
        raise ConfigError(f"play writes GIF files: give --out a name that ends in .gif, not {out}")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"cannot write {out}: there is no folder {out.absolute().parent}; make it first")
    environment = make_rendered(problem.task.id)
    weights = {name: np.asarray(value) for name, value in params.items()}
    frames: list[Image.Image] = []
    returns = []
    fps = float(environment.metadata.get("render_fps", 50))
    every = max(1, round(fps / FPS))
    progress = Progress(disable=not sys.stdout.isatty(), transient=True)
    line = progress.add_task("drawing", total=episodes * problem.test_steps)
    progress.start()
    for episode in range(episodes):
        observation, _ = environment.reset(seed=seed + episode)
        total, over, steps = 0.0, False, 0
        while not over and steps < problem.test_steps:
            if steps % every == 0:
                frames.append(_frame(environment, problem.task.id))
            action = problem.policy.mode(weights, np.asarray(observation, np.float32), np)
            observation, reward, terminated, truncated, _ = environment.step(problem.task.to_task(np.asarray(action)))
            total, over, steps = total + float(reward), terminated or truncated, steps + 1
            progress.update(line, completed=episode * problem.test_steps + steps)
        returns.append(total)
    progress.stop()
    environment.close()
    picture = io.BytesIO()
    duration = round(1000 * every / fps)
    frames[0].save(picture, "GIF", save_all=True, append_images=frames[1:], duration=duration, loop=0, optimize=True)
    write_whole(out, picture.getvalue())
    return returns


def make_rendered(task: str) -> Any:
    """The task as a Gymnasium environment that renders to arrays; no screen is needed."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
    import gymnasium

    try:
        if ":" not in task:
            # MuJoCo draws in software where there is no screen: a smaller picture is drawn faster.
            size: dict[str, Any] = (
                {"width": 320, "height": 240} if "mujoco" in str(gymnasium.spec(task).entry_point) else {}
            )
            return gymnasium.make(task, render_mode="rgb_array", **size)
        return import_object("task", task, "factory")(render_mode="rgb_array")
    except (gymnasium.error.Error, ImportError) as error:
        raise ConfigError(f"Gymnasium cannot render {task}: {error}") from error
    except TypeError as error:
        raise ConfigError(f"to be rendered, {task} must take render_mode='rgb_array': {error}") from error


def _frame(environment: Any, task: str) -> Image.Image:
    try:
        pixels = environment.render()
    except Exception as error:  # of whatever draws: OpenGL, SDL, a user's code
        raise ConfigError(
            f"{task} cannot be drawn: {error}. Tasks of MuJoCo need EGL or OSMesa to draw without a screen "
            "(on Debian: libegl1 or libosmesa6, and MUJOCO_GL=egl or osmesa)"
        ) from error
    if not isinstance(pixels, np.ndarray):
        raise ConfigError(
            f"{task} drew {type(pixels).__name__}, not an array of pixels: its render_mode must be rgb_array"
        )
    image = Image.fromarray(pixels)
    return image.resize((WIDTH, image.height * WIDTH // image.width)).quantize(COLOURS)
