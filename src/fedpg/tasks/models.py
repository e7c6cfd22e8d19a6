"""MuJoCo's models with other physics: another gravity, heavier, more slippery, with longer limbs."""

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
from gymnasium.envs.registration import load_env_creator

FACTORS = ("gravity", "friction", "mass")
"""Of the whole model, as multiples of what it has. Other parameters are half-lengths of its capsules, by name."""
FRICTION, GRAVITY, DENSITY = "1 0.005 0.0001", "0 0 -9.81", "1000"
"""MuJoCo's own defaults, where a model says nothing."""


@functools.cache
def model_of(task: str) -> Path | None:
    """The file of the model behind a Gymnasium id; None if there is none."""
    spec = gymnasium.registry.get(task)
    if spec is None or not str(spec.entry_point).startswith("gymnasium.envs.mujoco"):
        return None
    file = inspect.signature(load_env_creator(str(spec.entry_point))).parameters.get("xml_file")
    import gymnasium.envs.mujoco as room

    path = Path(str(room.__file__)).parent / "assets" / str(file.default if file is not None else "")
    return path if path.is_file() else None


@functools.cache
def parameters_of(task: str) -> dict[str, float]:
    """What can be changed in the model of a task, with what it is; nothing if it has no model."""
    path = model_of(task)
    if path is None:
        return {}
    lengths = {name: float(geom.get("size", "").split()[1]) for name, geom in _capsules(_read(path)).items()}
    return dict.fromkeys(FACTORS, 1.0) | lengths


def with_model(task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments with parameters of the model turned into a file that has them."""
    known = parameters_of(task)
    changes = {name: float(value) for name, value in arguments.items() if name in known}
    rest = {name: value for name, value in arguments.items() if name not in known}
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


def _capsules(tree: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """The capsules that have a name and a half-length."""
    found = {str(geom.get("name")): geom for geom in tree.iter("geom") if geom.get("name")}
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
