"""TensorBoard event files, one event per round."""

from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from fedpg.storage import StorageError
from fedpg.training.harm import Harm
from fedpg.training.records import Records


class Events:
    """Writes what people watch while a run goes on."""

    def __init__(self, folder: Path, first: int) -> None:
        # Here, because a run without these files needs no tensorboardX.
        from tensorboardX import SummaryWriter
        from tensorboardX.proto.summary_pb2 import Summary

        self.summary = Summary
        # Rounds that an interrupted run had written beyond its checkpoint are superseded.
        # The queue to the writing thread is long, so that no round waits for the disk.
        self.writer = SummaryWriter(str(folder), purge_step=first if first > 1 else None, max_queue=1000)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.writer.close()
        except OSError as failed:
            if kind is None:
                raise StorageError(f"cannot write the event file in {self.writer.logdir}: {failed}") from failed

    def write_round(self, records: Records) -> None:
        """The last round."""
        log = records.logs[-1]
        honest = records.config.agents - records.config.byzantine
        values = {
            "return/train": log["train_return"],
            "aggregator/accepted_honest": log["accepted"][:honest].sum(),
            "aggregator/accepted_byzantine": log["accepted"][honest:].sum(),
            "aggregator/threshold": log["threshold"],
            "aggregator/sigma": log["sigma"],
            **{f"aggregator/{name}": log[name] for name in Harm._fields},
            "inner/steps": log["inner_done"],
            "inner/ratio": log["ratio"],
            "gradient/norm": log["gradient_norm"],
        }
        self._event(values, len(records))

    def write_test(self, records: Records) -> None:
        """The last evaluation."""
        self._event({"return/test": records.tests[-1].mean()}, len(records.tests) - 1)

    def _event(self, values: dict[str, float], step: int) -> None:
        # One event with all values: tensorboardX's add_scalar, one event each, would take a tenth of the run.
        known = {tag: float(v) for tag, v in values.items() if np.isfinite(v)}
        entries = [self.summary.Value(tag=tag, simple_value=value) for tag, value in known.items()]
        self.writer.file_writer.add_summary(self.summary(value=entries), step)
