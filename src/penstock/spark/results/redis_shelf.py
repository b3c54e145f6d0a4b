"""Results of a task queue: the entries of its stream `<queue>.results`, read by ranges of ids."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.errors import DecodeError
from penstock.keys import TaskKeys
from penstock.spark.reading.batch_reader import BatchReader, RangePartition, TaskReader
from penstock.spark.reading.options import SourceOptions
from penstock.spark.reading.rows import Entry, RowBuilder
from penstock.spark.results.shelf import Sizes
from penstock.spark.results.wanted import Wanted
from penstock.task import Result, decode_result

logger = logging.getLogger("penstock.spark")
_NO_ROWS = RowBuilder(pa.schema([]))


@dataclass(frozen=True)
class RedisShelf:
    """The results of a RedisTaskQueue; `given` are options of the source that reads streams."""

    given: Mapping[str, str]

    @classmethod
    def of(cls, queue: str, given: Mapping[str, str]) -> RedisShelf:
        """Return the shelf of a queue."""
        made = cls({**given, "streams": TaskKeys(queue).results})
        SourceOptions.parse(made.given)
        return made

    def __repr__(self) -> str:
        return f"RedisShelf({self.given['streams']!r})"  # a URL may hold a password

    def plan(self, wanted: Wanted, sizes: Sizes) -> Sequence[InputPartition]:  # noqa: ARG002  the reader looks itself
        """Cut the stream into ranges of ids; the first worker that saves a result creates it."""
        parts = {"minPartitions": str(sizes.min_parts), "maxRowsPerPartition": str(sizes.max_rows)}
        return BatchReader(SourceOptions.parse({**self.given, **parts}), _NO_ROWS).partitions()

    def read(self, part: RangePartition, wanted: Wanted) -> Iterator[Sequence[Result]]:  # noqa: ARG002  the reader looks itself
        """Yield the results of a range."""
        for _, entries in TaskReader(SourceOptions.parse(self.given), _NO_ROWS).scanner().pages(part.ranges):
            yield [result for entry in entries if (result := _result(entry)) is not None]


def _result(entry: Entry) -> Result | None:
    entry_id, fields = entry
    by_name = dict(zip(fields[::2], fields[1::2], strict=True))
    try:
        return decode_result(by_name.get(b"data", b""))
    except DecodeError as error:
        logger.warning("entry %s holds no valid result, and is skipped: %s", entry_id.decode(), error)
        return None
