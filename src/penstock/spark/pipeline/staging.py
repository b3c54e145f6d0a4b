"""The rows of a batch, kept on disk until all sinks have them.

Several sinks must get the same rows, also when a batch is repeated after a crash: a handler, a shuffle or a clock may
give others. So a batch is computed once, written into a folder that one rename completes, and read from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.lake.parquet import written
from penstock.spark.pipeline.batch_key import BatchKey, FailPoint, attempt_of, tidy
from penstock.spark.pipeline.files import Files, joined

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WRITING = ".writing"
_FILE_IS_PARTITION = str(1 << 50)


class Staging:
    """The staged batches of a pipeline."""

    def __init__(self, folder: str, files: Files) -> None:
        self._folder, self._files = folder, files

    def has(self, key: BatchKey) -> bool:
        """Tell whether the batch was computed."""
        return self._files.is_shown(joined(self._folder, key.folder))

    def put(self, rows: DataFrame, key: BatchKey, mark: FailPoint) -> int:
        """Compute the batch and keep it; return the number of its rows."""
        place = joined(self._folder, key.folder)
        self._files.hide(place)
        writing = joined(self._folder, attempt_of(key) + _WRITING)
        count = written(rows, writing, self._files)
        mark("staged")
        self._files.show(writing, place)
        tidy(self._files, self._folder, key)
        mark("stage complete")
        return count

    def get(self, rows: DataFrame, key: BatchKey) -> DataFrame:
        """Return the batch as it was computed; `rows` only tells the columns."""
        spark = rows.sparkSession
        # A file is a partition, whatever the number of cores is today: the sink of streams counts rows by partition.
        for name in ("maxPartitionBytes", "openCostInBytes"):
            spark.conf.set(f"spark.sql.files.{name}", _FILE_IS_PARTITION)
        return spark.read.schema(rows.schema).parquet(joined(self._folder, key.folder))

    def forget_before(self, key: BatchKey) -> None:
        """Delete the batches before this one: Spark begins a batch when the last one is committed. Torn ones go too."""
        for name in self._files.names(self._folder):
            if name != key.folder:
                self._files.hide(joined(self._folder, name))
