"""Rendering: a trained policy in Gymnasium's own environment, as an animated GIF."""

import io
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from fedpg.agents import Problem
from fedpg.config import ConfigError
from fedpg.policies import Params
from fedpg.storage import write_whole


def render(problem: Problem, params: Params, out: Path, episodes: int, seed: int) -> list[float]:
    """Write a GIF of greedy episodes; returns their returns."""
    if out.suffix.lower() != ".gif":
        raise ConfigError(f"play writes GIF files: give --out a name that ends in .gif, not {out}")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"cannot write {out}: there is no folder {out.absolute().parent}; make it first")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # no screen is needed
    import gymnasium

    try:
        environment = gymnasium.make(problem.environment.id, render_mode="rgb_array")
    except gymnasium.error.Error as error:
        raise ConfigError(f"Gymnasium cannot render {problem.environment.id}: {error}") from error
    act = jax.jit(problem.policy.mode)
    frames: list[Image.Image] = []
    returns = []
    for episode in range(episodes):
        observation, _ = environment.reset(seed=seed + episode)
        total, over = 0.0, False
        while not over:
            frames.append(_frame(environment.render()))
            action = act(params, jnp.asarray(observation, jnp.float32))
            observation, reward, terminated, truncated, _ = environment.step(np.asarray(action))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    fps = environment.metadata.get("render_fps", 50)
    environment.close()
    # GIF players do not go below 20 ms a frame: show every second one at half the rate.
    frames = frames[:: max(1, round(fps / 25))]
    picture = io.BytesIO()
    frames[0].save(picture, "GIF", save_all=True, append_images=frames[1:], duration=40, loop=0, optimize=True)
    write_whole(out, picture.getvalue())
    return returns


def _frame(pixels: object) -> Image.Image:
    image = Image.fromarray(pixels)  # type: ignore[arg-type]
    return image.resize((image.width * 2 // 3, image.height * 2 // 3)).quantize(64)
