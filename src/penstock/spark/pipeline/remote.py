"""A pipeline through Spark Connect.

The query runs on the server, and so does what is done with each batch: in a Python process that the server starts, with
a session of its own. This side can tell it nothing but by files. So the checkpoint, and whatever else a pipeline keeps
in files, lies on a disk that the client, the server and the executors share under the same path.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigurationError
from penstock.spark.pipeline.batches import Batches, StopAsked
from penstock.spark.pipeline.declaration import Pipeline
from penstock.spark.pipeline.plan import office_of
from penstock.spark.pipeline.query_id import query_id
from penstock.spark.pipeline.shared_files import files_of
from penstock.spark.pipeline.sifting import Sifter
from penstock.spark.pipeline.staging import Staging
from penstock.spark.pipeline.status import Places
from penstock.spark.pipeline.writing.writers import writer_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STOP = "stop"


@dataclass(frozen=True)
class RemoteBatches:
    """Writes the batches of a pipeline on the server, which it is pickled for."""

    pipeline: Pipeline

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Write one batch."""
        places = Places(self.pipeline.checkpoint)
        if _stop_file(places).exists():
            raise StopAsked(f"batch {number} has not begun: the pipeline was asked to stop")
        spark = rows.sparkSession
        writers = {sink.name: writer_of(sink, self.pipeline, spark) for sink in self.pipeline.sinks}
        # Whether the plan keeps state cannot be seen from here: to compute a batch once too often does no harm.
        batches = Batches(
            lambda: query_id(places.checkpoint),
            writers,
            Staging(places.staging, files_of(spark)),
            is_stateful=True,
            sifter=Sifter(office_of(self.pipeline)),
        )
        batches(rows, number)


def ask_to_stop(places: Places) -> None:
    """Let the batch that runs end, and no other begin."""
    _stop_file(places).touch()


def forget_stop(places: Places) -> None:
    """Let batches begin."""
    _stop_file(places).unlink(missing_ok=True)


def _stop_file(places: Places) -> Path:
    folder = places.local()
    if folder is None:
        raise ConfigurationError(f"checkpoint {places.checkpoint} is not on a disk that this process sees")
    return folder / _STOP
