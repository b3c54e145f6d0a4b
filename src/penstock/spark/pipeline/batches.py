"""What is done with each batch: into all sinks, each once, in an order that survives a crash at any point."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.spark.pipeline.batch_key import BatchKey, Mark
from penstock.spark.pipeline.origin import visible
from penstock.spark.pipeline.sifting import Sifter
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

    With one sink that shows a batch in one step, the rows go straight there. Otherwise they are staged first, and so
    are those of a batch that a sink does not take as it is.
    """

    def __init__(
        self,
        query: Callable[[], str],
        writers: Mapping[str, Writer],
        staging: Staging,
        *,
        is_stateful: bool,
        sifter: Sifter,
        mark: Mark = no_mark,
    ) -> None:
        self._query, self._writers, self._staging, self._sifter = query, writers, staging, sifter
        self._is_stateful, self._mark = is_stateful, mark
        self._stop = threading.Event()
        self._has_left = True  # perhaps, a batch that was staged for its refused rows
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
        is_repeated = self._staging.has(key)
        is_staged = self.is_staged or is_repeated
        if is_staged:
            rows = self._staged(rows, key)
        elif self._has_left:
            self._staging.forget_before(key)
            self._has_left = False
        for name, writer in self._writers.items():
            left = self._sifter.left(rows, key, name) if is_repeated else rows
            if not self._put(name, writer, left, key, is_staged=is_staged):
                logger.info("batch %d is in sink %s already", key.number, name)
                if self._is_stateful and not is_staged:
                    _compute(rows)
        self._mark("done")

    def _put(self, name: str, writer: Writer, rows: DataFrame, key: BatchKey, *, is_staged: bool) -> bool:
        """Write the rows that a sink takes, the others into the dead letters; tell whether the batch was new."""
        try:
            return writer.write(visible(rows), key, self._mark)
        except Exception as error:
            if not writer.is_refusal(error):
                raise
            self._has_left = True
            rows = rows if is_staged else self._staged(rows, key)
            left = self._sifter.sifted(rows, key, name, writer)
            if left is None:
                raise
        self._mark("refused")
        return writer.write(visible(left), key, self._mark)

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
