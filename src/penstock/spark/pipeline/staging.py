"""The rows of a batch, kept on disk until all sinks have them.

Several sinks must get the same rows, also when a batch is repeated after a crash, but a handler, a shuffle or a clock
may produce others. So a batch is computed once, written into a folder that one rename publishes, and read from there.

The name of the folder ends with a fingerprint of the declaration that produced the rows. If the steps have changed
after a failure, sinks must not get the rows of the old steps.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from penstock.spark.lake.files import FailPoint
from penstock.spark.lake.parquet import written
from penstock.spark.pipeline.files import BatchKey, Files, attempt_of, digest, joined, tidy
from penstock.spark.pipeline.spec import Pipeline
from penstock.spark.pipeline.steps import needed_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WRITING = ".writing"
_FILE_IS_PARTITION = str(1 << 50)
_BY, _BEGUN = "-", "+"  # after the name of a batch: a fingerprint of its steps, or of a sink that may have part of it
_RETRY_OPTIONS = ("batch_size", "max_attempts", "timeout")  # options of a handler that do not change its output


class Staging:
    """The staged batches of a step; `recipe` describes how their rows are computed.

    Methods other than put() use only the columns of `rows`.
    """

    def __init__(self, folder: str, files: Files, recipe: str) -> None:
        self._folder, self._files, self._recipe = folder, files, recipe

    def has(self, rows: DataFrame, key: BatchKey) -> bool:
        """Return whether the batch is staged."""
        return self._files.is_shown(self._path(rows, key))

    def is_outdated(self, rows: DataFrame, key: BatchKey) -> bool:
        """Return whether the batch was staged by other steps, or with other columns."""
        paths = [
            joined(self._folder, name)
            for name in self._files.names(self._folder)
            if name.startswith(f"{key.folder}{_BY}")
        ]
        return any(path != self._path(rows, key) and self._files.is_shown(path) for path in paths)

    def begin(self, sink: str, key: BatchKey) -> None:
        """Record that a sink whose rows become visible one by one may have part of the batch."""
        self._files.touch(self._note(sink, key))

    def has_begun(self, sink: str, key: BatchKey) -> bool:
        """Return whether a sink may have part of the batch."""
        return self._files.exists(self._note(sink, key))

    def _path(self, rows: DataFrame, key: BatchKey) -> str:
        return joined(self._folder, f"{key.folder}{_BY}{digest(self._recipe, rows.schema.simpleString())}")

    def _note(self, sink: str, key: BatchKey) -> str:
        return joined(self._folder, f"{key.folder}{_BEGUN}{digest(sink)}")

    def put(self, rows: DataFrame, key: BatchKey, mark: FailPoint) -> int:
        """Compute and stage the batch; return its number of rows."""
        path = self._path(rows, key)
        self._files.hide(path)
        writing = joined(self._folder, attempt_of(key) + _WRITING)
        count = written(rows, writing, self._files.walk)
        mark("staged")
        self._files.show(writing, path)
        tidy(self._files, self._folder, key)
        mark("stage complete")
        return count

    def get(self, rows: DataFrame, key: BatchKey) -> DataFrame:
        """Return the staged batch."""
        spark = rows.sparkSession
        # One partition per file, on any number of cores, because the sink redis_streams counts rows by partition.
        for name in ("maxPartitionBytes", "openCostInBytes"):
            spark.conf.set(f"spark.sql.files.{name}", _FILE_IS_PARTITION)
        return spark.read.schema(rows.schema).parquet(self._path(rows, key))

    def forget_before(self, rows: DataFrame, key: BatchKey) -> None:
        """Delete earlier batches: Spark starts a batch after it has committed the previous one.

        This also deletes incomplete batches, and this batch as other steps staged it.
        """
        kept = self._path(rows, key)
        for name in self._files.names(self._folder):
            path = joined(self._folder, name)
            if path != kept and not name.startswith(f"{key.folder}{_BEGUN}"):
                self._files.hide(path)

    def forget_all(self, key: BatchKey) -> None:
        """Delete the batch, whichever steps staged it."""
        for name in self._files.names(self._folder):
            if name.startswith(f"{key.folder}{_BY}"):
                self._files.hide(joined(self._folder, name))


def recipe_of(pipeline: Pipeline, step: int) -> str:
    """Return what determines the rows of a step, as far as it is declared."""
    source, needed = pipeline.source, sorted(needed_for(pipeline.steps, [step]) - {0})
    steps = [(number, asdict(pipeline.steps[number - 1])) for number in needed]
    made = [(number, {name: given[name] for name in given if name not in _RETRY_OPTIONS}) for number, given in steps]
    payload = (source.format, source.schema, source.model, source.payload_column, source.columns)
    return repr((payload, pipeline.all_rules(), pipeline.dedup, pipeline.watermark, pipeline.watermark_column, made))
