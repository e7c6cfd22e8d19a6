"""Training: rounds, evaluation, checkpoints, records."""

from fedpg.training.records import Records
from fedpg.training.run import Run, Trained, train, train_seeds

__all__ = ["Records", "Run", "Trained", "train", "train_seeds"]
