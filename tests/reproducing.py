"""An experiment of one tiny curve for the tests of `fedpg reproduce`, beside the real ones."""

from pathlib import Path

import pytest

from fedpg import Config, make_problem
from fedpg.cli import main
from fedpg.experiments import catalogue, store
from fedpg.experiments.fingerprint import fingerprint
from fedpg.experiments.panels import Curve, Experiment, Panel, config_of
from fedpg.training import train_seeds
from tiny import TINY


def tiny_experiment(monkeypatch: pytest.MonkeyPatch) -> Config:
    """Put an experiment `tiny` into the catalogue; the settings of its curve."""
    curve = Curve("tiny", "#000000", {"preset": "paper"} | TINY)
    panel = Panel("tiny", "tiny", "CartPole-v1", (curve,))
    monkeypatch.setitem(catalogue.EXPERIMENTS, "tiny", Experiment("tiny", "Tiny", "For tests.", (panel,)))
    return config_of(panel, curve)


def trained(config: Config, seed: int, folder: Path) -> store.Stored:
    """The run of a seed, trained in this process."""
    train_seeds(make_problem(config), [seed], folder)
    return store.from_folder(folder, fingerprint(config))


def reproduce(tmp_path: Path, *words: str) -> int:
    folders = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    return main(["reproduce", *words, *folders])
