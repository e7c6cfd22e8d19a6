"""Models of MuJoCo with other physics and limbs: what was asked for is in them, and what cannot be is refused."""

import functools

import gymnasium
import jax
import mujoco
import numpy as np
import pytest

from fedpg import ConfigError, make_config, make_problem, make_task
from fedpg.server import evaluate, evaluate_agents
from fedpg.tasks import RoundKeys
from fedpg.tasks.differences import SETTINGS, differences
from fedpg.tasks.models import changed_model, model_of, parameters_of, with_model

KEYS = RoundKeys(jax.random.key(5), jax.random.key(6), 0)


@pytest.mark.simulators
@pytest.mark.parametrize("task", ["HalfCheetah-v5", "Hopper-v5", "Ant-v5", "Reacher-v5"])
def test_a_model_has_the_physics_that_were_asked_for(task: str):
    before = mujoco.MjModel.from_xml_path(str(model_of(task)))
    after = mujoco.MjModel.from_xml_path(
        str(changed_model(task, (("friction", 0.5), ("gravity", 0.8), ("mass", 1.25))))
    )
    np.testing.assert_allclose(after.body_mass, 1.25 * before.body_mass, rtol=1e-6)
    np.testing.assert_allclose(after.opt.gravity, 0.8 * before.opt.gravity)
    np.testing.assert_allclose(after.geom_friction, 0.5 * before.geom_friction)
    np.testing.assert_allclose(after.geom_size, before.geom_size)


@pytest.mark.simulators
def test_limbs_get_the_length_that_was_asked_for():
    model = mujoco.MjModel.from_xml_path(str(changed_model("HalfCheetah-v5", (("bthigh", 0.18), ("fthigh", 0.11)))))
    found = {name: model.geom(name).size[1] for name in ("bthigh", "fthigh", "bshin")}
    assert found == pytest.approx({"bthigh": 0.18, "fthigh": 0.11, "bshin": 0.15})
    assert set(SETTINGS["thighs"].words) == {"bthigh=0.1005:0.1855", "fthigh=0.1005:0.1655"}
    assert parameters_of("LunarLander-v3") == {}


@pytest.mark.simulators
@pytest.mark.parametrize("task", ["Hopper-v5", "Walker2d-v5"])
def test_a_limb_that_begins_in_the_floor_is_refused(task: str):
    hopper = make_task(task)
    assert len(differences(hopper, ["leg_geom=0.25"], 5, 0).agents["leg_geom"]) == 5
    assert differences(make_task("HalfCheetah-v5"), ["thighs", "bshin=even:0.25"], 5, 0).agents.keys() == {
        *("bthigh", "fthigh", "bshin")
    }
    with pytest.raises(
        ConfigError, match=rf"leg_geom of {task} must be shorter.* 6\.5 cm deep.* not 0\.375 \(agent 1\)"
    ):
        differences(hopper, ["leg_geom=0.25,0.375"], 2, 0)
    with pytest.raises(ConfigError, match=r"leg_geom .* 6\.5 cm deep.* and 0\.1:0\.375 goes to 0\.375"):
        differences(hopper, ["leg_geom=0.1:0.375"], 2, 0)


VAIN = {
    "Pusher-v5": {"gravity", "friction"},
    "Reacher-v5": {"gravity", "friction"},
    "Swimmer-v5": {"gravity", "friction"},
    "InvertedPendulum-v5": {"friction"},
    "InvertedDoublePendulum-v5": {"friction"},
}


@pytest.mark.simulators
@pytest.mark.parametrize(
    "task", [*VAIN, "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5", "Ant-v4"]
)
def test_only_what_changes_something_in_a_model_may_differ(task: str):
    assert {"gravity", "friction", "mass"} - parameters_of(task).keys() == VAIN.get(task, set())
    assert "rail" not in parameters_of(task)
    assert ("cart" in parameters_of(task)) == ("Inverted" in task)
    assert not any(parameters_of(old) for old in ("HalfCheetah-v4", "Walker2d-v4", "Humanoid-v4"))


@pytest.mark.simulators
@pytest.mark.parametrize("word", ["gravity=1e20,1", "mass=1e-4,1", "bthigh=1e3,1", "friction=1:1e4"])
def test_absurd_multiples_are_refused(word: str):
    with pytest.raises(ConfigError, match=r"of HalfCheetah-v5 must be from .* to "):
        differences(make_task("HalfCheetah-v5"), [word], 2, 0)
    assert differences(make_task("HalfCheetah-v5"), ["gravity=0.001,1000"], 2, 0).agents == {"gravity": [0.001, 1000]}


@pytest.mark.simulators
def test_a_model_of_ones_own_is_not_replaced():
    with pytest.raises(ConfigError, match=r"has the model /my\.xml, and friction would change Gymnasium's own"):
        with_model("HalfCheetah-v5", {"xml_file": "/my.xml", "friction": 0.5})
    assert with_model("HalfCheetah-v5", {"xml_file": "/my.xml"}) == {"xml_file": "/my.xml"}
    entry = gymnasium.spec("HalfCheetah-v5").entry_point
    gymnasium.register("fedpg/MyCheetah-v0", entry, kwargs={"xml_file": "/my.xml"})
    try:
        assert parameters_of("fedpg/MyCheetah-v0") == {}
    finally:
        del gymnasium.registry["fedpg/MyCheetah-v0"]


@pytest.mark.simulators
def test_envpool_simulates_the_changed_model_as_gymnasium_does():
    task, config = make_task("HalfCheetah-v5"), make_config("HalfCheetah-v5", agents=2, horizon=20, test_horizon=20)
    drawn = differences(task, ["friction=even:0.5", "gravity=0.3", "thighs"], 2, 0).agents
    still = {"reset_noise_scale": [0.0, 0.0]}  # the two simulators draw first states of their own
    problem = make_problem(config, task.vary(drawn | still))
    assert problem.task.simulator.startswith("EnvPool")
    theta = problem.policy.init(jax.random.key(0))
    ours = evaluate_agents(problem, theta, KEYS, 2, 1)[:, 0]
    theirs = []
    for agent in range(2):
        file = changed_model("HalfCheetah-v5", tuple(sorted((name, values[agent]) for name, values in drawn.items())))
        make = functools.partial(gymnasium.make, "HalfCheetah-v5", xml_file=str(file), reset_noise_scale=0.0)
        theirs.append(evaluate(make_problem(config, make_task(make)), theta, KEYS, 1)[0][0])
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)
    assert abs(ours[0] - ours[1]) > 0.01  # they do differ


@pytest.mark.simulators
def test_actions_may_have_offsets():
    problem = make_problem(make_config("Pendulum-v1", agents=2, vary=("action-offsets",), horizon=5, test_horizon=5))
    offsets = problem.task.varied["action_offset"]
    assert len(offsets) == 2
    assert all(len(offset) == 1 for offset in offsets)
    theta = problem.policy.init(jax.random.key(0))
    returns = evaluate_agents(problem, theta, KEYS, 2, 2)
    assert (returns[0] != returns[1]).all()  # the same first states, other actions
