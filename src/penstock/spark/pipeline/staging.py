"""The rows of a batch, kept on disk until all sinks have them.

Several sinks must get the same rows, also when a batch is repeated after a crash: a handler, a shuffle or a clock may
give others. So a batch is computed once, written into a folder that one rename completes, and read from there.

The name of the folder ends with a fingerprint of what made the rows: after a failure somebody may have changed the
steps, and what the old ones made is not what the sinks are to get then.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import TYPE_CHECKING

from penstock.spark.lake.files import FailPoint
from penstock.spark.lake.parquet import written
from penstock.spark.pipeline.files import BatchKey, Files, attempt_of, joined, tidy
from penstock.spark.pipeline.spec import Pipeline
from penstock.spark.pipeline.steps import needed_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WRITING = ".writing"
_FILE_IS_PARTITION = str(1 << 50)
_BY, _BEGUN = "-", "+"  # behind the name of a batch: what made it, and a sink that may have a part of it
_OF_TRIES = ("batch_size", "max_attempts", "timeout")  # of a handler: how it is called, not what it makes


class Staging:
    """The staged batches of a step; `recipe` says what makes their rows.

    But for put(), `rows` only tell the columns.
    """

    def __init__(self, folder: str, files: Files, recipe: str) -> None:
        self._folder, self._files, self._recipe = folder, files, recipe

    def has(self, rows: DataFrame, key: BatchKey) -> bool:
        """Tell whether the batch was computed."""
        return self._files.is_shown(self._place(rows, key))

    def is_outdated(self, rows: DataFrame, key: BatchKey) -> bool:
        """Tell whether the batch was computed by other steps, or has other columns."""
        places = [
            joined(self._folder, name)
            for name in self._files.names(self._folder)
            if name.startswith(f"{key.folder}{_BY}")
        ]
        return any(place != self._place(rows, key) and self._files.is_shown(place) for place in places)

    def begin(self, sink: str, key: BatchKey) -> None:
        """Note that a sink which shows rows one by one may have some of the batch."""
        self._files.touch(self._note(sink, key))

    def has_begun(self, sink: str, key: BatchKey) -> bool:
        """Tell whether that was noted."""
        return self._files.exists(self._note(sink, key))

    def _place(self, rows: DataFrame, key: BatchKey) -> str:
        return joined(self._folder, f"{key.folder}{_BY}{_digest(self._recipe, rows.schema.simpleString())}")

    def _note(self, sink: str, key: BatchKey) -> str:
        return joined(self._folder, f"{key.folder}{_BEGUN}{_digest(sink)}")

    def put(self, rows: DataFrame, key: BatchKey, mark: FailPoint) -> int:
        """Compute the batch and keep it; return the number of its rows."""
        place = self._place(rows, key)
        self._files.hide(place)
        writing = joined(self._folder, attempt_of(key) + _WRITING)
        count = written(rows, writing, self._files.walk)
        mark("staged")
        self._files.show(writing, place)
        tidy(self._files, self._folder, key)
        mark("stage complete")
        return count

    def get(self, rows: DataFrame, key: BatchKey) -> DataFrame:
        """Return the batch as it was computed."""
        spark = rows.sparkSession
        # A file is a partition, whatever the number of cores is today: the sink of streams counts rows by partition.
        for name in ("maxPartitionBytes", "openCostInBytes"):
            spark.conf.set(f"spark.sql.files.{name}", _FILE_IS_PARTITION)
        return spark.read.schema(rows.schema).parquet(self._place(rows, key))

    def forget_before(self, rows: DataFrame, key: BatchKey) -> None:
        """Delete the batches before this one: Spark begins a batch when the last one is committed.

        Torn ones go too, and what other steps have made of this one.
        """
        kept = self._place(rows, key)
        for name in self._files.names(self._folder):
            place = joined(self._folder, name)
            if place != kept and not name.startswith(f"{key.folder}{_BEGUN}"):
                self._files.hide(place)

    def forget_all(self, key: BatchKey) -> None:
        """Delete the batch, whatever has made it."""
        for name in self._files.names(self._folder):
            if name.startswith(f"{key.folder}{_BY}"):
                self._files.hide(joined(self._folder, name))


def recipe_of(pipeline: Pipeline, step: int) -> str:
    """Return what makes the rows of a step, as far as the declaration tells."""
    source, needed = pipeline.source, sorted(needed_for(pipeline.steps, [step]) - {0})
    steps = [(number, asdict(pipeline.steps[number - 1])) for number in needed]
    made = [(number, {name: given[name] for name in given if name not in _OF_TRIES}) for number, given in steps]
    payload = (source.format, source.schema, source.model, source.payload_column, source.columns)
    return repr((payload, pipeline.all_rules(), pipeline.dedup, pipeline.watermark, pipeline.watermark_column, made))


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]
