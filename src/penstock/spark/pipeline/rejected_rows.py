"""Takes rows that a sink refuses out of a batch, and into the dead letters of their streams.

Only a write that has failed is looked into, so rows that are well pay nothing. The batch is staged by then: it is the
same when it is repeated. All rows of an entry are taken out together, and stay out when the batch is repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING

from penstock.policy import Reason
from penstock.spark.pipeline.batch_key import BatchKey
from penstock.spark.pipeline.dead_letters import DeadLetterConfig, DeadLetterWriter, Failure
from penstock.spark.pipeline.origin import SourceEntry, origin_of
from penstock.spark.pipeline.sinks.refusal import Choosy, Refusal, RowRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("penstock.spark")
_HINT = (
    "It cannot go to the dead letters, since it does not say which entry it came from: let the steps keep the columns "
    "stream and id, or `stream AS _stream, id AS _id`, which no sink writes; or filter such rows out"
)


class RejectedRows:
    """The rows of one batch at a time, of one pipeline."""

    def __init__(self, dead_letters: DeadLetterConfig) -> None:
        self._dead_letters = dead_letters

    def left(self, rows: DataFrame, key: BatchKey, sink: str) -> DataFrame:
        """Return a repeated batch without the rows that the sink refused before."""
        origin = origin_of(rows.schema)
        if origin is None:
            return rows
        letters = self._letters(key, sink)
        streams = [row[0] for row in rows.select(origin.stream).distinct().collect() if row[0]]
        return _without(rows, (SourceEntry(stream, each) for stream in streams for each in letters.given_up(stream)))

    def without_refused(self, rows: DataFrame, key: BatchKey, sink: str, writer: Choosy) -> DataFrame | None:
        """Give up what the sink refuses and return the other rows; None if it refuses none.

        Raises: RowRefused for a row that does not tell where it came from.
        """
        refused: dict[SourceEntry, Refusal] = {}
        with closing(writer.refusals(rows, origin_of(rows.schema))) as found:
            for refusal in found:
                if refusal.entry is None:
                    raise RowRefused(f"{refusal.told(sink)}. {_HINT}")
                refused.setdefault(refusal.entry, refusal)
        letters = self._letters(key, sink)
        for entry, refusal in refused.items():
            letters.dead_letter(entry.stream, entry.id, None, Failure(Reason.INVALID, refusal.told(sink)))
        if refused:
            logger.warning(
                "sink %s, batch %d: %d entries are dead letters, since it refuses their rows",
                sink, key.number, len(refused),
            )  # fmt: skip
        return _without(rows, refused) if refused else None

    def _letters(self, key: BatchKey, sink: str) -> DeadLetterWriter:
        return self._dead_letters.writer(f"{key.query}:{key.number}:sink {sink}")


def _without(rows: DataFrame, entries: Iterable[SourceEntry]) -> DataFrame:
    from pyspark.sql import functions as f

    origin, keys = origin_of(rows.schema), [str(entry) for entry in entries]
    if origin is None or not keys:
        return rows
    # A filter leaves partitions and their order as they are, which the sink of streams goes by.
    return rows.where(~f.coalesce(f.expr(origin.key).isin(keys), f.lit(False)))
