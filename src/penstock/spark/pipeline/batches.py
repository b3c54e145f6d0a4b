"""What is done with each batch: into all sinks, each once, in an order that survives a crash at any point."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.spark.pipeline.batch_key import BatchKey, Mark
from penstock.spark.pipeline.staging import Staging
from penstock.spark.pipeline.writing.writer import Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("penstock.spark")


class StopAsked(PenstockError):
    """The pipeline was asked to stop, and this batch has not begun."""


def no_mark(_: str) -> None:
    """Do nothing between two steps."""


class Batches:
    """Writes the batches of one query; Spark calls it with each.

    With one sink that shows a batch in one step, the rows go straight there. Otherwise they are staged first.
    """

    def __init__(
        self,
        query: Callable[[], str],
        writers: Mapping[str, Writer],
        staging: Staging,
        *,
        is_stateful: bool,
        mark: Mark = no_mark,
    ) -> None:
        self._query, self._writers, self._staging = query, writers, staging
        self._is_stateful, self._mark = is_stateful, mark
        self._stop = threading.Event()
        self.under_way: tuple[int, float] | None = None  # the batch, and the moment when it began

    def stop(self) -> None:
        """Let the batch that runs end, and no other begin."""
        self._stop.set()

    @property
    def is_stopping(self) -> bool:
        """Whether stop() was called."""
        return self._stop.is_set()

    @property
    def is_staged(self) -> bool:
        """Whether batches are staged before they are written."""
        return len(self._writers) > 1 or not all(writer.is_atomic for writer in self._writers.values())

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Write one batch."""
        if self._stop.is_set():
            raise StopAsked(f"batch {number} has not begun: the pipeline was asked to stop")
        key = BatchKey(self._query(), number)
        self.under_way = (number, time.monotonic())
        try:
            self._write(rows, key)
        finally:
            self.under_way = None

    def _write(self, rows: DataFrame, key: BatchKey) -> None:
        self._mark("begun")
        if self.is_staged:
            rows = self._staged(rows, key)
        for name, writer in self._writers.items():
            if not writer.write(rows, key, self._mark):
                logger.info("batch %d is in sink %s already", key.number, name)
                if self._is_stateful and not self.is_staged:
                    _compute(rows)
        self._mark("done")

    def _staged(self, rows: DataFrame, key: BatchKey) -> DataFrame:
        self._staging.forget_before(key)
        if not self._staging.has(key):
            self._staging.put(rows, key, self._mark)
        elif self._is_stateful:
            _compute(rows)
        return self._staging.get(rows, key)


def _compute(rows: DataFrame) -> None:
    # Spark wants to see the state of each batch committed by this run, though the rows are in place already.
    rows.write.format("noop").mode("overwrite").save()
