"""The reader of streaming queries for Spark 4.1, which does not say where a batch begins when it asks for its end.

So a batch takes all that is there, one task a stream or less, and what is missing is found when it is planned. Limits
need to know the beginning, and so does an archive behind the stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql.datasource import InputPartition

from penstock import ids
from penstock.errors import ConfigurationError, StreamMissing
from penstock.spark.source.base_stream_reader import BaseStreamReader
from penstock.spark.source.catalogue import StreamState
from penstock.spark.source.offsets import BatchRange, Offset, Offsets, Position, batch_of, first, opened
from penstock.spark.source.options import SourceOptions


def check_unlimited(options: SourceOptions) -> None:
    """Raise ConfigurationError for options that Spark 4.1 leaves no room for."""
    given = {
        "maxRowsPerTrigger (max_rows_per_batch of a pipeline)": options.max_rows,
        "maxBytesPerTrigger": options.max_bytes, "minRowsPerTrigger": options.min_rows, "archive": options.archive,
    }  # fmt: skip
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise ConfigurationError(
            f"{' and '.join(names)} in a streaming query: needs Spark 4.2 or newer. Before that a batch takes all "
            "that is there: leave it out"
        )


class Spark41Reader(BaseStreamReader):
    """Reads streams as they grow, all that is there at a time."""

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Return where a new query begins."""
        return first(Offsets.load(super().initialOffset()))

    def latestOffset(self) -> Offset:  # type: ignore[override]  # noqa: N802  # as Spark 4.1 asks
        """Return the ends of the streams. Asked for at any time, also before Spark has told where the query is."""
        begun = self._begun()
        states = self._retry(lambda: self._look({}))
        found = {name: (begun.get(name), state) for name, state in states.items() if state is not None}
        return opened(Offsets({name: self._upto(name, *both) for name, both in found.items()}))

    def _begun(self) -> Mapping[str, Position]:
        try:
            return Offsets.load(self.initialOffset()).positions()
        except StreamMissing as error:  # of a query that goes on as well: here they cannot be told apart
            raise StreamMissing(
                f"{error}. If this query has read it before, the stream was deleted, with what was left to read in it"
            ) from None

    def _upto(self, name: str, begun: Position | None, state: StreamState) -> BatchRange:
        end, start = Position(state.last_id, state.added), begun or Position(ids.ZERO, 0)
        is_ahead = ids.parse(start.id) > ids.parse(end.id) and self._log.gap(name, start, state) is None
        return BatchRange(start if is_ahead else end, start)  # ahead: a query may begin at a time that has not come

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the tasks of a batch. Everything before `start` is committed, unless there is no batch."""
        if start == end:
            return []
        return self._tasks(self._retry(lambda: self._checked(Offsets.load(start), batch_of(start, end))))

    def _checked(self, at: Offsets, planned: Offsets) -> Offsets:
        streams = dict(planned.streams)
        for name, state in self._look(at.streams).items():
            if name not in at.streams:
                continue
            here = streams[name].start if name in streams else at.streams[name].end
            gap = self._gap(name, here, state)
            if gap is not None and name in streams:
                here = gap.resume
                streams[name] = BatchRange(streams[name].end, here, streams[name].cuts)
            if state is not None:
                self._show(name, here)
        return Offsets(streams)
