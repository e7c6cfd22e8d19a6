"""Training: rounds, evaluation, checkpoints, records."""

from fedpg.training.entry import train
from fedpg.training.records import Records
from fedpg.training.run import Run, Trained, train_seeds

__all__ = ["Records", "Run", "Trained", "train", "train_seeds"]
