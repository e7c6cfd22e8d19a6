"""What `pip install fedpg` leaves out: which extra brings a package, and how to say so."""

import importlib.util

from fedpg.errors import ConfigError

EXTRAS: dict[str, tuple[str, str]] = {
    "matplotlib": ("matplotlib", "figures"),
    "PIL": ("Pillow", "figures"),
    "pygame": ("pygame", "figures"),
    "tensorboardX": ("tensorboardX", "tensorboard"),
    "envpool": ("EnvPool", "simulators"),
    "Box2D": ("Box2D", "simulators"),
    "mujoco": ("MuJoCo", "simulators"),
    "flwr": ("Flower", "flower"),
    "ray": ("Ray", "ray"),
    "onnx": ("onnx", "onnx"),
}
"""The module that is imported -> (what people call it, the extra that brings it)."""


def install(*extras: str) -> str:
    """The command that adds these extras."""
    names = ",".join(dict.fromkeys(extras))
    return f"pip install 'fedpg[{names}]' (from a checkout: pip install -e '.[{names}]')"


def has(module: str) -> bool:
    """Whether a package of an extra is installed."""
    return importlib.util.find_spec(module) is not None


def need(*modules: str) -> None:
    """A ConfigError that says what to install, unless all of these are there: before work begins, not after it."""
    lacking = [module for module in modules if not has(module)]
    if lacking:
        names = " and ".join(EXTRAS[module][0] for module in lacking)
        raise ConfigError(f"this needs {names}: {install(*(EXTRAS[module][1] for module in lacking))}")


def hint(error: BaseException) -> str:
    """What to install, where a simulator or a package that is an extra is behind an error; else nothing."""
    cause = error.__cause__ if isinstance(error, ConfigError) else error
    if isinstance(cause, ModuleNotFoundError):
        module = str(cause.name).partition(".")[0]
        return install(EXTRAS[module][1]) if module in EXTRAS else ""
    if type(cause).__name__ == "DependencyNotInstalled":  # of Gymnasium, which names its own extras
        words = str(cause).lower()
        found = [extra for module, (_, extra) in EXTRAS.items() if module.lower() in words and not has(module)]
        return install(*found) if found else ""
    return ""
