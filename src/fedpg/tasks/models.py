"""MuJoCo's models with other physics: another gravity, heavier, more slippery, with longer limbs."""

import copy
import functools
import hashlib
import inspect
import os
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator

from fedpg.errors import ConfigError

FACTORS = ("gravity", "friction", "mass")
"""Of the whole model, as multiples of what it has. Other parameters are half-lengths of its capsules, by name."""
FRICTION, GRAVITY, DENSITY = "1 0.005 0.0001", "0 0 -9.81", "1000"
"""MuJoCo's own defaults, where a model says nothing."""
FAR = 1000
"""So many times larger or smaller than it is, a number may be: far beyond, MuJoCo's own numbers overflow."""
SUNK = 0.01
"""So many metres deeper than it does, a model may begin in the floor: contacts are soft, and it comes out at once."""


@functools.cache
def model_of(task: str) -> Path | None:
    """The file of the model behind a Gymnasium id; None if there is none, or if the id brings a file of its own."""
    spec = gymnasium.registry.get(task)
    if spec is None or not str(spec.entry_point).startswith("gymnasium.envs.mujoco") or "xml_file" in spec.kwargs:
        return None
    file = inspect.signature(load_env_creator(str(spec.entry_point))).parameters.get("xml_file")
    import gymnasium.envs.mujoco as room

    path = Path(str(room.__file__)).parent / "assets" / str(file.default if file is not None else "")
    return path if path.is_file() else None


@functools.cache
def parameters_of(task: str) -> dict[str, float]:
    """What can be changed in the model of a task, with what it is, where that changes something.

    Nothing if it has no model.
    """
    path = model_of(task)
    if path is None:
        return {}
    tree = _read(path)
    lengths = {name: float(geom.get("size", "").split()[1]) for name, geom in _capsules(tree).items()}
    model = _compiled(tree)
    vain = {"gravity": not _falls(model), "friction": not _rubs(model)}
    return {name: 1.0 for name in FACTORS if not vain.get(name)} | lengths


def unfit(task: str, name: str, value: float) -> str:
    """What a number of the model of a task must be, if this one is not that; else nothing."""
    nominal = parameters_of(task).get(name)
    if nominal is None:
        return ""
    if not nominal / FAR <= value <= nominal * FAR:
        return f"from {nominal / FAR:g} to {nominal * FAR:g}"
    deep = 0.0 if name in FACTORS else _depth(task, ((name, value),))
    if deep > _depth(task) + SUNK:
        return (
            f"shorter, for so long a limb begins {100 * deep:.2g} cm deep in the floor (its middle stays where it is)"
        )
    return ""


@functools.cache
def _depth(task: str, lengths: tuple[tuple[str, float], ...] = ()) -> float:
    """How deep the model of a task is in the ground when an episode begins, with limbs of these half-lengths."""
    import mujoco

    path = model_of(task)
    assert path is not None
    tree = _read(path)
    for name, half in lengths:
        _lengthen(tree, name, half)
    model = _compiled(tree)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    ground = [
        c.dist for c in data.contact[: data.ncon] if 0 in (model.geom_bodyid[c.geom1], model.geom_bodyid[c.geom2])
    ]
    return max(0.0, -min(ground, default=0.0))


def _falls(model: Any) -> bool:
    """Whether gravity pulls at a joint of a compiled model, in some position."""
    import mujoco

    data, chance = mujoco.MjData(model), np.random.default_rng(0)
    data.qpos[:] = chance.uniform(-1, 1, model.nq)
    mujoco.mj_forward(model, data)  # nothing moves yet, so that no other force than gravity is a bias
    return bool(data.qfrc_bias.any())


def _rubs(model: Any) -> bool:
    """Whether two geoms of a compiled model may touch with friction; those that no filter keeps apart may."""
    bodies = model.body_weldid[model.geom_bodyid]
    touch = model.geom_contype[:, None] & model.geom_conaffinity
    rough = np.maximum.outer(model.geom_condim, model.geom_condim) > 1
    apart = bodies[:, None] != bodies
    return bool((((touch | touch.T) > 0) & rough & apart).any() or (model.pair_dim > 1).any())


def with_model(task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments with parameters of the model turned into a file that has them."""
    known = parameters_of(task)
    changes = {name: float(value) for name, value in arguments.items() if name in known}
    rest = {name: value for name, value in arguments.items() if name not in known}
    if changes and "xml_file" in rest:
        raise ConfigError(
            f"{task} has the model {rest['xml_file']}, and {', '.join(changes)} would change Gymnasium's own instead: "
            "leave one of them out, or write what differs into a file for each agent"
        )
    return rest | {"xml_file": str(changed_model(task, tuple(sorted(changes.items()))))} if changes else rest


def for_envpool(base: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same arguments for EnvPool, which looks for models below a folder of its own."""
    if "xml_file" not in arguments or not os.path.isabs(arguments["xml_file"]):
        return dict(arguments)
    below = os.path.join(base, "mujoco", "assets_gym")
    return {**arguments, "xml_file": os.path.relpath(arguments["xml_file"], below)}


@functools.cache
def changed_model(task: str, changes: tuple[tuple[str, float], ...]) -> Path:
    """A file with the model of a task, changed; the same file for the same changes, for as long as this process."""
    path = model_of(task)
    assert path is not None
    tree = _read(path)
    for name, value in changes:
        change = {"gravity": _gravity, "friction": _friction, "mass": _mass}.get(name)
        if change is not None:
            change(tree, value)
        else:
            _lengthen(tree, name, value)
    text = ElementTree.tostring(tree, encoding="unicode")
    file = Path(_folder().name) / f"{path.stem}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.xml"
    file.write_text(text)
    return file


@functools.cache
def _folder() -> "tempfile.TemporaryDirectory[str]":
    """Of this process: a simulator reads a model when it is made, and no other process needs it."""
    return tempfile.TemporaryDirectory(prefix="fedpg-models-")


def _read(path: Path) -> ElementTree.Element:
    return ElementTree.parse(path).getroot()


def _compiled(tree: ElementTree.Element) -> Any:
    """What MuJoCo makes of a model, but for its mass: its warning that `settotalmass` is old is not ours to pass on."""
    import mujoco

    own = copy.deepcopy(tree)
    _child(own, "compiler").attrib.pop("settotalmass", None)
    return mujoco.MjModel.from_xml_string(ElementTree.tostring(own, encoding="unicode"))


def _capsules(tree: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """The capsules of bodies that have a name and a half-length: not what stands in the world, as a rail does."""
    bodies = [body for world in tree.iter("worldbody") for body in world.findall("body")]
    found = {str(geom.get("name")): geom for body in bodies for geom in body.iter("geom") if geom.get("name")}
    return {
        name: geom
        for name, geom in found.items()
        if geom.get("type") == "capsule" and geom.get("fromto") is None and len(geom.get("size", "").split()) == 2
    }


def _child(parent: ElementTree.Element, name: str) -> ElementTree.Element:
    found = parent.find(name)
    return ElementTree.SubElement(parent, name) if found is None else found


def _default(tree: ElementTree.Element, name: str, value: str) -> None:
    """Say what MuJoCo would assume of geoms."""
    geom = _child(_child(tree, "default"), "geom")
    geom.set(name, geom.get(name, value))


def _scale(element: ElementTree.Element, name: str, factor: float) -> None:
    text = element.get(name)
    if text is not None:
        element.set(name, " ".join(repr(factor * float(x)) for x in text.split()))


def _gravity(tree: ElementTree.Element, factor: float) -> None:
    option = _child(tree, "option")
    option.set("gravity", option.get("gravity", GRAVITY))
    _scale(option, "gravity", factor)


def _friction(tree: ElementTree.Element, factor: float) -> None:
    """Of every geom: that of a contact is the larger one of the two."""
    _default(tree, "friction", FRICTION)
    for element in (*tree.iter("geom"), *tree.iter("pair")):
        _scale(element, "friction", factor)


def _mass(tree: ElementTree.Element, factor: float) -> None:
    compiler = _child(tree, "compiler")
    if float(compiler.get("settotalmass", "-1")) > 0:
        _scale(compiler, "settotalmass", factor)
        return
    _default(tree, "density", DENSITY)
    for geom in tree.iter("geom"):
        _scale(geom, "mass" if geom.get("mass") is not None else "density", factor)
    for inertial in tree.iter("inertial"):
        for name in ("mass", "diaginertia", "fullinertia"):
            _scale(inertial, name, factor)


def _lengthen(tree: ElementTree.Element, name: str, half: float) -> None:
    geom = _capsules(tree)[name]
    radius = geom.get("size", "").split()[0]
    geom.set("size", f"{radius} {half!r}")
