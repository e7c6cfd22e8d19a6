"""Pictures of a policy that acts outside JAX."""

from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from PIL import Image

import gym_probes
from fedpg import ConfigError, make_config, make_problem, make_task
from fedpg.play import render

pytestmark = pytest.mark.simulators


def draws(task: str) -> bool:
    """Whether this machine can draw the task at all."""
    try:
        environment = gymnasium.make(task, render_mode="rgb_array")
        environment.reset(seed=0)
        return environment.render() is not None
    except Exception:
        return False


@pytest.mark.parametrize("task", ["LunarLander-v3", "HalfCheetah-v5", "gym_probes:walk"])
def test_a_policy_that_acts_outside_jax_is_rendered(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # where MuJoCo keeps its log
    problem = make_problem(make_config(task, hidden=(4,), test_horizon=7))
    params = problem.policy.unravel(problem.policy.init(jax.random.key(0)))
    try:
        returns = render(problem, params, tmp_path / "play.gif", episodes=2, seed=0)
    except ConfigError as error:
        if task == "HalfCheetah-v5" and "EGL" in str(error) and not draws(task):
            pytest.skip(f"nothing here draws MuJoCo: {error}")
        raise
    assert len(returns) == 2
    assert np.isfinite(returns).all()
    with Image.open(tmp_path / "play.gif") as picture:
        assert picture.format == "GIF"
        assert picture.n_frames > 1
        picture.seek(picture.n_frames - 1)
        picture.load()


def test_what_cannot_be_rendered_is_refused_with_the_reason(tmp_path: Path):
    for task, factory, words in [
        ("gym_probes:discrete_walk", None, "render_mode='rgb_array'"),
        ("walk", gym_probes.walk, "walk"),
    ]:
        problem = make_problem(make_config(task, hidden=(4,)), make_task(factory or task))
        params = problem.policy.unravel(problem.policy.init(jax.random.key(0)))
        with pytest.raises(ConfigError, match=words):
            render(problem, params, tmp_path / "play.gif", episodes=1, seed=0)
    assert list(tmp_path.iterdir()) == []
