"""The experiments as data: figures, their panels, and the curves in them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fedpg.config import Config
from fedpg.errors import ConfigError, unknown
from fedpg.experiments.panels import (
    BLUE,
    CARTPOLE,
    CHEETAH,
    GREEN,
    GREY,
    LANDER,
    ORANGE,
    OTHERS,
    PURPLE,
    RED,
    SKY,
    TASKS,
    Curve,
    Experiment,
    Panel,
    config_of,
)
from fedpg.experiments.rivals import RIVALS
from fedpg.presets import renamed

AS_IN_THE_PAPER = {CARTPOLE: "CartPole-v1", LANDER: "LunarLander-v2", CHEETAH: "HalfCheetah-v2"}

ATTACK_TITLES = {
    "random-noise": "Random Noise",
    "random-action": "Random Action",
    "sign-flipping": "Sign Flipping",
    "fedpg-attack": "FedPG attack",
    "variance-attack": "Variance attack",
    "zero-gradient": "Zero gradient",
    "reward-flipping": "Reward flipping",
    "shuffled-rewards": "Shuffled rewards",
}


def configs_of(experiments: Iterable[Experiment], until: int | None = None) -> list[Config]:
    """The settings of all curves, each once: figures share runs. No curve goes further than `until`, as it counts."""
    found = (_until(config_of(p, c), c, until) for e in experiments for p in e.panels for c in p.curves)
    return list(dict.fromkeys(found))


def _until(config: Config, curve: Curve, until: int | None) -> Config:
    if until is None:
        return config
    return replace(config, trajectories=min(until * curve.together, config.trajectories))


def find(names: Sequence[str], tasks: Sequence[str], only: Sequence[str] = ()) -> list[Experiment]:
    """The experiments of these names (`all` is all of them) with the panels of these tasks (all, if none is given).

    `only`: with the curves only that have one of these words in their label.
    """
    for name in names:
        if name not in (*EXPERIMENTS, "all"):
            raise unknown("experiment", name, [*EXPERIMENTS, "all"])
    tasks = [renamed(task)[0] for task in tasks]
    for task in tasks:
        if task not in (*TASKS, *OTHERS):
            raise unknown("task", task, [*TASKS, *OTHERS])
    chosen = list(EXPERIMENTS) if "all" in names else list(dict.fromkeys(names))
    found = [EXPERIMENTS[name].on(tasks or (*TASKS, *OTHERS)) for name in chosen]
    for experiment in found:
        if not experiment.panels and "all" not in names:
            have = sorted({panel.task for panel in EXPERIMENTS[experiment.name].panels})
            raise ConfigError(f"{experiment.name} has no panel for {' or '.join(tasks)}: it is about {', '.join(have)}")
    kept = [experiment.only(only) for experiment in found if experiment.panels]
    if not any(experiment.panels for experiment in kept):
        labels = sorted({curve.label for experiment in found for panel in experiment.panels for curve in panel.curves})
        raise ConfigError(f"no curve has {' or '.join(map(repr, only))} in its name; there are: {', '.join(labels)}")
    return [experiment for experiment in kept if experiment.panels]


def _liars(attack: str, count: int = 3, **more: Any) -> dict[str, Any]:
    return {"agents": 10, "byzantine": count, "attack": attack} | more


HONEST_10, HONEST_1 = {"agents": 10}, {"agents": 1}
ALGORITHMS = {"gpomdp": ("GPOMDP", ORANGE), "svrpg": ("SVRPG", GREEN), "fedpg-br": ("FedPG-BR", BLUE)}


def _figure1(task: str) -> Panel:
    def paper(series: str) -> tuple[str, str, str]:
        return "Figure 1", AS_IN_THE_PAPER[task], series

    alone = [
        Curve(f"{name} (K=1)", colour, {"algorithm": algorithm, "agents": 1}, paper(name))
        for algorithm, (name, colour) in ALGORITHMS.items()
        if algorithm != "fedpg-br"
    ]
    federated = [
        Curve(f"FedPG-BR (K={k})", colour, {"agents": k}, paper(f"FedPG-BR (K={k})"))
        for k, colour in ((1, SKY), (3, PURPLE), (10, BLUE))
    ]
    return Panel("figure1", task, task, (*alone, *federated))


def _baselines(task: str) -> Panel:
    """What federation alone does for the two baselines, which the paper's figure 1 shows for one agent only."""
    curves = [
        Curve(f"{name} (K={k})", colour, {"algorithm": algorithm, "agents": k}, reference=k == 1)
        for algorithm, name, colours in (
            ("gpomdp", "GPOMDP", (GREY, ORANGE, RED)),
            ("svrpg", "SVRPG", (SKY, GREEN, BLUE)),
        )
        for k, colour in zip((1, 3, 10), colours, strict=True)
    ]
    return Panel("figure1-baselines", task, task, tuple(curves))


def _figure2(task: str, attack: str) -> Panel:
    title = ATTACK_TITLES[attack]

    def paper(series: str) -> tuple[str, str, str] | None:
        return ("Figure 2", title, series) if task == CHEETAH else None

    attacked = [
        Curve(
            f"{name} (K=10, B=3)",
            colour,
            _liars(attack, algorithm=algorithm),
            paper(f"{name} (K=10 B=3)"),
        )
        for algorithm, (name, colour) in ALGORITHMS.items()
    ]
    alone = [
        Curve(
            f"{name} (K=1)",
            colour,
            {"algorithm": algorithm, "agents": 1},
            paper(f"{name} (K=1)"),
            reference=True,
        )
        for algorithm, (name, colour) in ALGORITHMS.items()
    ]
    return Panel(f"figure2-{task}", f"{task}: {title}", task, (*attacked, *alone))


def _one_attack(picture: str, task: str, attack: str) -> Panel:
    """FedPG-BR under one attack, between ten honest agents and one alone (figure 3, and the variance attack)."""
    paper = "Figure 1", AS_IN_THE_PAPER[task]
    curves = (
        Curve("FedPG-BR (K=10, B=3)", RED, _liars(attack)),
        Curve("FedPG-BR (K=10)", BLUE, HONEST_10, (*paper, "FedPG-BR (K=10)")),
        Curve("FedPG-BR (K=1)", SKY, HONEST_1, (*paper, "FedPG-BR (K=1)")),
    )
    return Panel(picture, task, task, curves)


CONDITIONS: dict[str, dict[str, Any]] = {
    "10 honest agents": HONEST_10,
    "3 of 10 flip signs": _liars("sign-flipping"),
    "3 of 10 make the FedPG attack": _liars("fedpg-attack"),
}
FILTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "R1, then R2 (Algorithm 1.1)": (BLUE, {"aggregator": "fedpg"}),
    "R2 alone": (GREEN, {"aggregator": "r2"}),
    "majority": (PURPLE, {"aggregator": "majority"}),
    "no filter": (ORANGE, {"aggregator": "mean"}),
}
INNER: dict[str, tuple[str, dict[str, Any]]] = {
    "SCSG inner loop": (BLUE, {}),
    # The same agents, aggregator and batches, and one step on mu_t per round.
    "plain steps": (ORANGE, {"algorithm": "gpomdp", "aggregator": "fedpg", "batch": (12, 20)}),
}
SIGMAS: dict[str, tuple[str, dict[str, Any]]] = {
    "sigma = 0.06 (the table)": (BLUE, {"sigma": 0.06}),
    "sigma = auto": (RED, {"sigma": "auto"}),
}
SHARES = {f"{n} of 10": (colour, n) for n, colour in enumerate((SKY, BLUE, PURPLE, RED), start=1)}
READINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "released (the figures)": (BLUE, {}),
    "paper (the text)": (RED, {"preset": "paper"}),
}
TEXT_ESTIMATOR = {"estimator": "gpomdp", "baseline": "leave-one-out", "sigma": "auto"}
DEPARTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "released": (GREY, {}),
    "estimator of the text, sigma auto": (ORANGE, TEXT_ESTIMATOR),
    "estimator and importance of the text, sigma auto": (RED, TEXT_ESTIMATOR | {"importance": "trajectory"}),
    "importance weight per trajectory": (GREEN, {"importance": "trajectory"}),
    "N from 0": (SKY, {"inner_law": "geometric-from-0"}),
    "no bound on the ratio": (BLUE, {"ratio_bound": float("inf")}),
    "alpha = 0.3": (PURPLE, {"alpha": 0.3}),
    "nobody accepted: skip": ("#8B5A2B", {"none_accepted": "skip"}),
    "sigma auto": ("#111827", {"sigma": "auto"}),
}


def _ablation(picture: str, variants: dict[str, tuple[str, dict[str, Any]]], task: str = CARTPOLE) -> tuple[Panel, ...]:
    """Each variant under each condition."""
    return tuple(
        Panel(picture, title, task, tuple(Curve(label, c, base | change) for label, (c, change) in variants.items()))
        for title, base in CONDITIONS.items()
    )


def _readings(title: str, settings: dict[str, Any], task: str = CARTPOLE, **paper: Any) -> Panel:
    """Both under the attacks of the released code, so that they can be compared."""
    if "attack" in settings:
        settings = settings | {"attack_form": "released"}
    curves = [
        Curve(label, colour, settings | change | (paper if "preset" in change else {}))
        for label, (colour, change) in READINGS.items()
    ]
    return Panel(f"presets-{task}", title, task, tuple(curves))


PUBLISHED = {CARTPOLE: ("l=0.83", "c=0.03"), LANDER: ("l=1", "c=0.02")}
"""The parameters that the Normalized attack's authors give."""


def _normalized(task: str, title: str, **settings: Any) -> Panel:
    """30 agents, 9 of whom turn the aggregate as far as they can (Fang et al., WWW 2025)."""
    liars = {"agents": 30, "byzantine": 9, "attack": "normalized"} | settings
    given, colluders = PUBLISHED[task], "knowledge=colluders"
    curves = (
        Curve("30 honest agents", GREY, {"agents": 30} | settings, reference=True),
        Curve("published l and c, knowing all", SKY, liars | {"attack_options": given}),
        Curve("published l and c, colluders' own", PURPLE, liars | {"attack_options": (*given, colluders)}),
        Curve("l and c searched, knowing all", RED, liars),
        Curve("l and c searched, colluders' own", ORANGE, liars | {"attack_options": (colluders,)}),
        Curve("searched, knowing all, against compass", BLUE, liars | {"aggregator": "compass"}),
        Curve("the server alone", GREEN, {"agents": 30, "aggregator": "server"} | settings, reference=True),
    )
    return Panel(f"normalized-{task}", title, task, curves)


_LIST = (
    *RIVALS,
    Experiment(
        "figure1",
        "Figure 1: more agents learn faster",
        "GPOMDP, SVRPG and FedPG-BR with K = 1, 3, 10 agents, none of them Byzantine.",
        tuple(_figure1(task) for task in TASKS),
    ),
    Experiment(
        "figure2",
        "Figure 2: three of ten agents are Byzantine",
        "Random noise, random action and sign flipping against federated GPOMDP, SVRPG and FedPG-BR, with each "
        "algorithm alone (K = 1) as a reference. The paper's figure 2 and its two appendix figures.",
        tuple(_figure2(t, a) for t in TASKS for a in ("random-noise", "random-action", "sign-flipping")),
    ),
    Experiment(
        "figure3",
        "Figure 3: the FedPG attack",
        "Three of ten agents collude and know the filter; ten honest agents and one alone as references.",
        tuple(_one_attack("figure3", task, "fedpg-attack") for task in TASKS),
    ),
    Experiment(
        "figure-va",
        "The variance attack",
        "Three of ten agents collude to stay within the variance of the honest ones (the paper's appendix figure).",
        tuple(_one_attack("figure-va", task, "variance-attack") for task in TASKS),
    ),
    Experiment(
        "figure1-baselines",
        "Federated baselines, all honest",
        "What federation alone does for GPOMDP and SVRPG; the paper shows them for one agent only.",
        tuple(_baselines(task) for task in TASKS),
    ),
    Experiment(
        "ablation-filter",
        "Ablation: the rules of the filter",
        "R1 with its fallback R2, R2 alone, the majority set S itself, and no filter.",
        _ablation("ablation-filter", FILTERS),
    ),
    Experiment(
        "ablation-inner",
        "Ablation: the inner loop",
        "Variance-reduced steps of the server (SCSG) against one plain step per round on the same filtered gradient.",
        _ablation("ablation-inner", INNER),
    ),
    Experiment(
        "ablation-sigma",
        "Ablation: sigma from the table, or estimated",
        "On CartPole 0.06 against `auto`; on HalfCheetah the table's 0.9 against `auto`.",
        (
            *_ablation("ablation-sigma", SIGMAS),
            Panel(
                "ablation-sigma-HalfCheetah",
                "HalfCheetah-v5, 10 honest agents",
                CHEETAH,
                (
                    Curve("sigma = 0.9 (the table)", BLUE, HONEST_10 | {"sigma": 0.9, "trajectories": 1000}),
                    Curve("sigma = auto", RED, HONEST_10),
                ),
            ),
        ),
    ),
    Experiment(
        "ablation-alpha",
        "Ablation: the share of Byzantine agents",
        "One to four of ten agents lie; the filter reckons with up to four (alpha = 0.4).",
        tuple(
            Panel(
                "ablation-alpha",
                ATTACK_TITLES[attack],
                CARTPOLE,
                tuple(Curve(label, colour, _liars(attack, n)) for label, (colour, n) in SHARES.items()),
            )
            for attack in ("random-noise", "sign-flipping", "fedpg-attack")
        ),
    ),
    Experiment(
        "more-attacks",
        "The released code's other attacks",
        "Three of ten agents send zeros, or learn from flipped or shuffled rewards; FedPG-BR.",
        tuple(
            Panel("more-attacks", ATTACK_TITLES[a], CARTPOLE, (Curve("FedPG-BR (K=10, B=3)", RED, _liars(a)),))
            for a in ("zero-gradient", "reward-flipping", "shuffled-rewards")
        ),
    ),
    Experiment(
        "normalized",
        "The Normalized attack on FedPG-BR",
        "30 agents, 9 of them Byzantine, as in Fang, Wang and Gong, Provably robust federated reinforcement learning, "
        "WWW 2025, who report that the return falls from 500 to 101 on CartPole if the liars know all gradients, to "
        "243 if they know their own, and the median on LunarLander from 219 to -33.",
        (
            _normalized(CARTPOLE, "preset released", trajectories=3000),
            _normalized(CARTPOLE, "preset paper", preset="paper", trajectories=3000),
            _normalized(LANDER, "preset released", trajectories=1000),
        ),
    ),
    Experiment(
        "presets",
        "The two readings of the paper",
        "The preset `released` (what made the figures) against `paper` (the text).",
        (
            _readings("1 agent", HONEST_1),
            _readings("3 agents", {"agents": 3}),
            *(_readings(title, settings) for title, settings in CONDITIONS.items()),
            *(_readings(ATTACK_TITLES[a], _liars(a)) for a in ("random-noise", "random-action", "variance-attack")),
            _readings("LunarLander-v3, 10 agents", HONEST_10, LANDER, trajectories=2000),
            _readings("HalfCheetah-v5, 10 agents", HONEST_10, CHEETAH, trajectories=700),
        ),
    ),
    Experiment(
        "departures",
        "One departure at a time",
        "The preset `released` with one of its departures from the text taken back.",
        _ablation("departures", DEPARTURES)[:2],
    ),
)
EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _LIST}
