"""TensorBoard event files, one event per round."""

from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from tensorboardX import SummaryWriter
from tensorboardX.proto.summary_pb2 import Summary

from fedpg.storage import StorageError
from fedpg.training.records import Records


class Events:
    """Writes what people watch while a run goes on."""

    def __init__(self, folder: Path, first: int) -> None:
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

    def write(self, records: Records, new: int) -> None:
        """The last `new` rounds."""
        honest, byzantine = records.accepted()
        c = records.columns
        for i in range(len(records) - new, len(records)):
            values = {
                "return/train": c["train_return"][i],
                "filter/accepted_honest": honest[i],
                "filter/accepted_byzantine": byzantine[i],
                "filter/threshold": c["threshold"][i],
                "filter/sigma": c["sigma"][i],
                "inner/steps": c["inner_done"][i],
                "inner/ratio": c["ratio"][i],
                "gradient/norm": c["gradient_norm"][i],
            }
            self._event(values, i + 1)
            # The evaluation in a round's log is of the policy before it.
            self._event({"return/test": c["test_returns"][i].mean()}, i)

    def write_last(self, records: Records) -> None:
        """The evaluation after the last round."""
        self._event({"return/test": records.test_returns[-1]}, len(records))

    def _event(self, values: dict[str, float], step: int) -> None:
        # One event with all values: tensorboardX's add_scalar, one event each, would take a tenth of the run.
        entries = [Summary.Value(tag=tag, simple_value=float(v)) for tag, v in values.items() if np.isfinite(v)]
        self.writer.file_writer.add_summary(Summary(value=entries), step)
