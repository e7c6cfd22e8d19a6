"""What experiments are made of: curves, panels with the curves in them, and the settings behind a curve."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedpg.config import Config
from fedpg.experiments.store import Stored
from fedpg.presets import make_config

CARTPOLE, LANDER, CHEETAH = "CartPole-v1", "LunarLander-v3", "HalfCheetah-v5"
TASKS = (CARTPOLE, LANDER, CHEETAH)
OTHERS = ("Acrobot-v1", "Pendulum-v1", "Hopper-v5")
"""Tasks that the paper does not have, and that nothing here was tuned to."""

# Told apart with every kind of colour vision (after Okabe and Ito).
ORANGE, GREEN, SKY, BLUE, RED, PURPLE, GREY = (
    *("#E69F00", "#009E73", "#56B4E9", "#0072B2", "#D55E00", "#AA4499", "#6b7280"),
)
BROWN, OLIVE, PINK, TEAL, BLACK = "#8C510A", "#999933", "#CC79A7", "#117733", "#000000"


@dataclass(frozen=True)
class Curve:
    """One line of a panel: settings, trained with several seeds."""

    label: str
    colour: str
    settings: dict[str, Any]
    """Where they differ from the preset `released` of the panel's task."""
    paper: tuple[str, str, str] | None = None
    """(figure, panel, series) of the paper's own curve, where it has been read off."""
    reference: bool = False
    """Drawn dotted, without its band: it is there to compare with."""
    together: int = 1
    """So many trajectories of a run count as one: where one agent has what others share."""


@dataclass(frozen=True)
class Panel:
    """One set of axes."""

    picture: str
    """Panels of the same picture stand side by side."""
    title: str
    task: str
    curves: tuple[Curve, ...]
    marks: tuple[int, ...] = ()
    """Trajectories at which tables have the returns; by default those at which the paper is compared with."""


@dataclass(frozen=True)
class Experiment:
    """What one name on the command line stands for."""

    name: str
    title: str
    about: str
    panels: tuple[Panel, ...]

    def on(self, tasks: Sequence[str]) -> "Experiment":
        """The panels of these tasks only."""
        return replace(self, panels=tuple(p for p in self.panels if p.task in tasks))

    def only(self, words: Sequence[str]) -> "Experiment":
        """The curves only with one of these words in `panel: curve`, all if there is none; no panel without curves."""
        if not words:
            return self
        panels = (
            replace(
                p, curves=tuple(c for c in p.curves if any(w.lower() in f"{p.title}: {c.label}".lower() for w in words))
            )
            for p in self.panels
        )
        return replace(self, panels=tuple(panel for panel in panels if panel.curves))


def counted(curve: Curve, run: Stored) -> Stored:
    """A run with its trajectories as the curve counts them.

    Of the server alone, without what its agents sample, to whom it does not listen; how many time steps and bytes are
    theirs was not stored.
    """
    columns = dict(run.columns)
    if curve.together != 1:
        columns["trajectories"] = run.trajectories // curve.together
    if run.config.aggregator == "server" and "trajectories_agent" in columns:
        columns["trajectories_total"] = (
            columns["trajectories_total"] - run.config.agents * columns["trajectories_agent"]
        )
        for name in ("trajectories_agent", "steps_training", "bytes"):
            columns.pop(name, None)
    return replace(run, columns=columns)


def config_of(panel: Panel, curve: Curve) -> Config:
    """The settings of a curve, as long as the paper's runs of its task, unless the curve says otherwise."""
    return make_config(panel.task, **({"preset": "released"} | curve.settings))
