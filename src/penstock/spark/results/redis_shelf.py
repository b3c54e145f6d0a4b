"""Results of a task queue: the entries of its stream `<queue>.results`, read by ranges of ids.

An entry holds one result or several, each with a field `data`. A hash leads from the id of a task to the entry of its
result: what it does not lead to is no result any more, because the task was put back, say.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.errors import DecodeError
from penstock.keys import TaskKeys
from penstock.spark.patience import patiently
from penstock.spark.reading.batch_reader import BatchReader, RangePartition
from penstock.spark.reading.holdings import holdings_of
from penstock.spark.reading.options import SourceOptions
from penstock.spark.reading.rows import Entry, RowBuilder
from penstock.spark.results.shelf import Sizes
from penstock.spark.results.wanted import Wanted
from penstock.sync.redis.client import StreamClient
from penstock.task import Result, decode_result

logger = logging.getLogger("penstock.spark")
_NO_ROWS = RowBuilder(pa.schema([]))
_AT_ONCE = 1_000
_AN_ENTRY = 16  # results of an entry, between the one and the 64 that there may be


@dataclass(frozen=True)
class RedisShelf:
    """The results of a RedisTaskQueue; `given` are options of the source of streams, and may hold a password."""

    queue: str
    given: Mapping[str, str] = field(repr=False)

    def __post_init__(self) -> None:
        """Raise ConfigurationError for options that cannot work."""
        self._options()

    def plan(self, wanted: Wanted, sizes: Sizes) -> Sequence[InputPartition]:  # noqa: ARG002  the reader looks itself
        """Cut the stream into ranges of ids; StreamMissing before the first result."""
        entries = max(1, sizes.max_rows // _AN_ENTRY)
        parts = {"minPartitions": str(sizes.min_parts), "maxRowsPerPartition": str(entries)}
        return BatchReader(self._options(**parts), _NO_ROWS).partitions()

    def read(self, part: RangePartition, wanted: Wanted) -> Iterator[Sequence[Result]]:  # noqa: ARG002  likewise
        """Yield the results of a range."""
        options = self._options()
        client, keys = options.link.client(), self._keys(options)
        for _, entries in holdings_of(options).scanner().pages(part.ranges):
            found = [(entry[0], result) for entry in entries for result in _results(entry)]
            for start in range(0, len(found), _AT_ONCE):
                yield _valid(client, keys.done, found[start : start + _AT_ONCE], options.retry_timeout.total_seconds())

    def _options(self, **more: str) -> SourceOptions:
        # The stream is named as the queue names it in a cluster, which the client knows.
        first = SourceOptions.parse({**self.given, "streams": self.queue})
        return SourceOptions.parse({**self.given, **more, "streams": f"{self._keys(first).name}.results"})

    def _keys(self, options: SourceOptions) -> TaskKeys:
        client = options.link.client()
        return TaskKeys.of(self.queue, client.prefix, client.is_cluster)


def _results(entry: Entry) -> Iterator[Result]:
    entry_id, fields = entry
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        if name != b"data":
            continue
        try:
            yield decode_result(value)
        except DecodeError as error:
            logger.warning("entry %s holds no valid result, and is skipped: %s", entry_id.decode(), error)


def _valid(client: StreamClient, done: str, found: Sequence[tuple[bytes, Result]], timeout_s: float) -> list[Result]:
    words = ("HMGET", done, *(result.task_id for _, result in found))
    places = patiently(lambda: client.call(done, *words), timeout_s, "reading results")
    return [result for (entry_id, result), place in zip(found, places, strict=True) if place == entry_id]
