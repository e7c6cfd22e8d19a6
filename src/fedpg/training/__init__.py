"""Training: rounds, evaluation, checkpoints, records."""

from fedpg.training.entry import train
from fedpg.training.load import load
from fedpg.training.records import Records
from fedpg.training.result import Run, Trained
from fedpg.training.run import train_seeds

__all__ = ["Records", "Run", "Trained", "load", "train", "train_seeds"]
