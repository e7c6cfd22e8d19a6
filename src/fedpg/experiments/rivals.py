"""Natural steps beside their rivals, as experiments."""

from dataclasses import replace
from typing import Any

from fedpg.experiments.panels import (
    BLACK,
    BLUE,
    BROWN,
    CARTPOLE,
    GREEN,
    GREY,
    OLIVE,
    ORANGE,
    OTHERS,
    PINK,
    PURPLE,
    RED,
    SKY,
    TASKS,
    TEAL,
    Curve,
    Experiment,
    Panel,
)

LENGTH = 1000
"""Trajectories of the comparisons: by then natural steps have learnt each of the tasks."""
UNTUNED = 300
"""Of tasks that nobody tuned for."""
LONGER = 2500
"""Of natural steps, where the paper's curves of 10,000 trajectories end higher."""
EARLY = (100, 250, 350, 500, 700, 1000)
LATER = (*EARLY, 1500, 2000, LONGER)
"""Marks of tables: natural steps have learnt before the paper's begin."""
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "natural steps, compass": (BLUE, {"preset": "best"}),
    "FedPG-BR, as in the figures": (RED, {}),
    "FedPG-BR, compass": (ORANGE, {"aggregator": "compass", "sigma": "auto"}),
    "ByzPG": (GREEN, {"preset": "best", "algorithm": "byzpg", "aggregator": "geometric-median"}),
    "Res-NHARPG": (BROWN, {"preset": "best", "algorithm": "res-nharpg"}),
    "N-PG-IGT": (OLIVE, {"preset": "best", "algorithm": "n-pg-igt"}),
    "FedSVRPG-M": (PINK, {"preset": "best", "algorithm": "fedsvrpg-m"}),
}
REFERENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "natural steps, the server alone": (GREY, {"preset": "best", "aggregator": "server"}),
    "natural steps, one agent alone": (PURPLE, {"preset": "best", "agents": 1}),
    "natural steps, 10 honest agents, plain mean": (SKY, {"preset": "best", "aggregator": "mean"}),
}
"""The floors, and what averaging gives without a defence: none of these has liars."""
POOLED, SHARED = 160, 20
"""Of the ceiling: its one agent has the trajectories of ten, for one gradient and one value function, and the server as
many; so 20 count as one of each of ten agents."""


def ceiling(length: int) -> Curve:
    """All trajectories in one place."""
    settings = {"preset": "best", "agents": 1, "batch": (POOLED, POOLED), "trajectories": length * SHARED}
    name = "natural steps, all trajectories in one place"
    return Curve(name, BLACK, settings, reference=True, together=SHARED)


LEFT = ("natural steps, the 7 honest agents alone", TEAL, {"preset": "best", "agents": 7})
"""What a defence that finds every liar would reach."""
CONDITIONS: dict[str, dict[str, Any]] = {
    "10 honest agents": {"agents": 10},
    "3 of 10 flip signs": {"agents": 10, "byzantine": 3, "attack": "sign-flipping"},
    "3 of 10: ALIE, z = 1.5": {"agents": 10, "byzantine": 3, "attack": "alie", "attack_options": ("z=1.5",)},
    "3 of 10 flip rewards": {"agents": 10, "byzantine": 3, "attack": "reward-flipping"},
}
"""The paper's strongest attack, one that hides among honest replies, and one on what agents learn from; the arena has
all the others."""


def _methods(task: str, title: str, settings: dict[str, Any]) -> Panel:
    length = {"trajectories": LENGTH}
    curves = [Curve(name, colour, length | settings | given) for name, (colour, given) in METHODS.items()]
    if task != CARTPOLE:
        ours = curves[0]
        curves[0] = replace(ours, settings=ours.settings | {"trajectories": LONGER})
    curves += [Curve(name, colour, length | given, reference=True) for name, (colour, given) in REFERENCES.items()]
    curves.append(ceiling(LENGTH))
    if "attack" in settings:
        name, colour, given = LEFT
        curves.append(Curve(name, colour, length | given, reference=True))
    return Panel(f"algorithms-{task}", f"{task}, {title}", task, tuple(curves), EARLY if task == CARTPOLE else LATER)


def _estimators(task: str) -> Panel:
    """Natural steps with other gradients."""
    best = {"preset": "best", "trajectories": LENGTH}
    curves = (
        Curve("advantages by a value function", BLUE, best),
        Curve("the same, lambda = 1", SKY, best | {"trace": 1.0}),
        Curve("GPOMDP, leave-one-out baseline", RED, best | {"estimator": "gpomdp", "baseline": "leave-one-out"}),
        Curve("standardised GPOMDP", ORANGE, best | {"estimator": "standardised"}),
    )
    return Panel(f"estimators-{task}", f"{task}, 10 honest agents", task, curves, EARLY)


def _untuned(task: str) -> Panel:
    """Natural steps as they are, with and without liars, between their floor and their ceiling."""
    best = {"preset": "best", "trajectories": UNTUNED}
    curves = [
        Curve("natural steps, compass", BLUE, best),
        Curve("the same, 3 of 10 flip signs", RED, best | CONDITIONS["3 of 10 flip signs"]),
        *(Curve(name, colour, best | given, reference=True) for name, (colour, given) in REFERENCES.items()),
        ceiling(UNTUNED),
    ]
    return Panel(f"untuned-{task}", task, task, tuple(curves))


RIVALS = (
    Experiment(
        "algorithms",
        "Natural steps and their rivals",
        "The default beside FedPG-BR and its successors, with honest agents and with three liars of ten; the server "
        "alone and one agent alone are the floors, all trajectories in one place the ceiling.",
        tuple(_methods(task, title, settings) for task in TASKS for title, settings in CONDITIONS.items()),
    ),
    Experiment(
        "estimators",
        "What a value function buys",
        "Natural steps with advantages by a value function, and with the paper's gradients.",
        tuple(_estimators(task) for task in TASKS),
    ),
    Experiment(
        "untuned",
        "Tasks that nobody tuned for",
        "The default, with the constants that it has everywhere, on tasks on which nothing of it was ever chosen.",
        tuple(_untuned(task) for task in OTHERS),
    ),
)
