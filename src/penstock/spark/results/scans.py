"""Which results a query looks at, by kind, status and time, and where they are read from.

A scan for each back-end plans the parts of a query, and reads one in a task.
"""

from __future__ import annotations

import itertools
import logging
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import Filter, InputPartition

from penstock.errors import BackendRefused, ConfigurationError, DecodeError
from penstock.keys import TaskKeys
from penstock.results.entry import in_utc, kind_name
from penstock.settings import ResultBackendSettings
from penstock.spark.format.batch_reader import BatchReader, RangePartition, bounds_of, values_of
from penstock.spark.format.log import log_of
from penstock.spark.runtime.link import retry
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.rows import Entry, RowBuilder
from penstock.sync.redis.client import StreamClient
from penstock.sync.results.fs import FSBackend
from penstock.sync.results.postgres import PostgresBackend
from penstock.sync.results.s3 import S3Backend
from penstock.task import Result, decode_result

_Names = frozenset[str] | None
logger = logging.getLogger("penstock.spark")


@dataclass(frozen=True)
class ResultFilter:
    """Kinds, statuses and the times of their end, both inclusive; None = all."""

    kinds: _Names = None
    statuses: _Names = None
    since: datetime | None = None
    until: datetime | None = None

    def takes(self, result: Result) -> bool:
        """Return whether a result is looked at."""
        if self.kinds is not None and result.kind not in self.kinds:
            return False
        if self.statuses is not None and result.status.value not in self.statuses:
            return False
        if self.since is None and self.until is None:
            return True
        finished = in_utc(result.finished_at)
        return (self.since is None or finished >= self.since) and (self.until is None or finished <= self.until)

    @property
    def only_kind(self) -> str | None:
        """The kind, if it is a single one."""
        return next(iter(self.kinds)) if self.kinds is not None and len(self.kinds) == 1 else None

    def narrowed(self, filters: Sequence[Filter]) -> ResultFilter:
        """Return what is left when all filters hold; Spark applies each once more, so a part of them will do."""
        since, until = bounds_of(filters, "finished_at", _moment)
        return ResultFilter(
            _both(self.kinds, values_of(filters, "kind")),
            _both(self.statuses, values_of(filters, "status")),
            max(filter(None, (self.since, since)), default=None),
            min(filter(None, (self.until, until)), default=None),
        )


def _both(one: _Names, other: _Names) -> _Names:
    return one if other is None else other if one is None else one & other


def _moment(value: object) -> datetime | None:
    return value if isinstance(value, datetime) and value.tzinfo is not None else None


@dataclass(frozen=True)
class PartitionSizes:
    """Into how many parts the results are shared out at least, and how many one part should have at most."""

    min_parts: int = 1
    max_rows: int = 50_000


class ResultScan(Protocol):
    """What each back-end does. It is pickled into tasks, so it holds settings, and no connection."""

    def plan(self, matching: ResultFilter, sizes: PartitionSizes) -> Sequence[Any]:
        """Return parts, each for one task: every matching result is in exactly one of them.

        Raises: ConfigurationError or StreamMissing where there is nothing that holds results.
        """

    def read(self, part: Any, matching: ResultFilter) -> Iterator[Sequence[Result]]:
        """Yield the results of a part, some at a time; others than the matching ones may be among them."""


@dataclass(frozen=True)
class Share:
    """Some folders, or one part of several of one folder: of its files those whose names fall into the slot."""

    folders: tuple[str, ...]
    slot: int = 0
    slots: int = 1

    def takes(self, name: str) -> bool:
        """Return whether a file belongs to this share; of the shares of a folder, one says so."""
        return self.slots == 1 or zlib.crc32(name.encode()) % self.slots == self.slot


def share_out(folders: Sequence[tuple[str, int]], min_parts: int, max_rows: int) -> list[Share]:
    """Return how folders with these numbers of rows are shared out: each file once, no share much above `max_rows`.

    Pure: the sizes of the folders are estimates of the caller.
    """
    total = sum(rows for _, rows in folders)
    target = max(1, min(max_rows, math.ceil(total / min_parts)))
    shares: list[Share] = []
    small: list[str] = []
    taken = 0
    for name, rows in folders:
        if rows > target:
            slots = math.ceil(rows / target)
            shares += [Share((name,), slot, slots) for slot in range(slots)]
            continue
        if small and taken + rows > target:
            shares.append(Share(tuple(small)))
            small, taken = [], 0
        small.append(name)
        taken += rows
    if small:
        shares.append(Share(tuple(small)))
    return _at_least(shares, min_parts)


def _at_least(shares: list[Share], min_parts: int) -> list[Share]:
    if not shares or len(shares) >= min_parts:
        return shares
    # Sizes were wrong, or there are few folders: each share is cut by names once more.
    times = math.ceil(min_parts / len(shares))
    return [
        Share(share.folders, share.slot + share.slots * turn, share.slots * times)
        for share in shares
        for turn in range(times)
    ]


# --- files ------------------------------------------------------------------------------------------

_NAME_BYTES = 64  # that a file takes in the size of its folder, about; it need not be right
_FILES_AT_ONCE = 500
_SKEW = timedelta(days=1)  # that clocks may differ by, generously


@dataclass(frozen=True)
class FSResultScan:
    """The folder of an FSBackend: a task reads some days, or a part of the files of one day."""

    root: str

    def plan(self, matching: ResultFilter, sizes: PartitionSizes) -> Sequence[Share]:
        """Share the days out; no file is looked at."""
        root = Path(self.root)
        if not root.is_dir():
            raise ConfigurationError(f"there are no results at {root}, which is not a folder")
        backend = FSBackend(root)
        with backend.translated("list results"):
            folders = [(day, root / day) for day in backend.store.days()]
            sizes_of = [
                (day, _estimated_files(folder)) for day, folder in folders if _folder_may_hold(folder, matching)
            ]
        return share_out(sizes_of, sizes.min_parts, sizes.max_rows)

    def read(self, part: Share, matching: ResultFilter) -> Iterator[Sequence[Result]]:
        """Yield the results of some files."""
        store = FSBackend(self.root).store
        for day in part.folders:
            found = store.scan_day(day, matching.only_kind, part.takes)
            while chunk := list(itertools.islice(found, _FILES_AT_ONCE)):
                yield chunk


def _estimated_files(folder: Path) -> int:
    return max(1, folder.stat().st_size // _NAME_BYTES)


def _folder_may_hold(folder: Path, matching: ResultFilter) -> bool:
    """Return whether results of the time can be in a folder.

    The name does not say it: a result is in the folder of the day on which its id was first claimed, which may be weeks
    before it was finished. But it was finished before it was saved, and the folder was last changed when something was
    saved.
    """
    return matching.since is None or folder.stat().st_mtime >= (matching.since - _SKEW).timestamp()


# --- object stores ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class S3ResultScan:
    """The bucket of an S3Backend: a task reads the marks of one kind and day, and the results that they stand for."""

    settings: ResultBackendSettings

    def plan(self, matching: ResultFilter, sizes: PartitionSizes) -> Sequence[Share]:
        """List kinds and days, and nothing below them."""
        backend = S3Backend.from_settings(self.settings)
        with backend.translated("list results"):
            folders = [folder for folder in backend.folders() if _day_may_hold(folder, matching)]
        # Only a listing would show how much a folder contains: each is a task, or several if that many are requested.
        return share_out([(folder, 1) for folder in sorted(folders)], max(sizes.min_parts, len(folders)), 1)

    def read(self, part: Share, matching: ResultFilter) -> Iterator[Sequence[Result]]:  # noqa: ARG002  the reader looks itself
        """Yield the results of some marks."""
        backend = S3Backend.from_settings(self.settings)
        with backend.translated("list results"):
            for folder in part.folders:
                yield from backend.chunks(folder, part.takes)


def _day_may_hold(folder: str, matching: ResultFilter) -> bool:
    """Return whether matching results can be in `kinds/<kind>/<day>`; a result counts on its own day only."""
    _, kind, day = folder.split("/")
    if matching.kinds is not None and kind not in {kind_name(name) for name in matching.kinds}:
        return False
    if matching.since is not None and day < matching.since.astimezone(UTC).date().isoformat():
        return False
    return matching.until is None or day <= matching.until.astimezone(UTC).date().isoformat()


# --- PostgreSQL -------------------------------------------------------------------------------------

_ROW_BYTES = 250  # of a small result; it need not be right
_SAMPLES_A_CUT = 200
_ROWS_AT_ONCE = 1_000
_NO_TABLE = "42P01"  # the SQLSTATE
_SIZE = "SELECT pg_relation_size('penstock_results')"
# Some pages are enough to know how the results are spread over time; the same ones are used each time.
_CUTS = """
SELECT percentile_disc(%s::float8[]) WITHIN GROUP (ORDER BY finished_at)
FROM penstock_results TABLESAMPLE SYSTEM (%s) REPEATABLE (0)
"""


@dataclass(frozen=True)
class TimeRange:
    """From a time on, and before another one; None = without end."""

    low: datetime | None = None
    high: datetime | None = None


@dataclass(frozen=True)
class PostgresResultScan:
    """The table of a PostgresBackend: a task reads a range of times, along the index on `finished_at`."""

    dsn: str = field(repr=False)
    timeout_s: float = 30.0

    def plan(self, matching: ResultFilter, sizes: PartitionSizes) -> Sequence[TimeRange]:
        """Cut the results into ranges of time that hold about as many each."""
        backend = PostgresBackend(self.dsn, timeout_s=self.timeout_s)
        with (
            _translated(backend, "plan a query of results"),
            closing(backend.connect()) as connection,
            backend.limited(connection),
        ):
            cuts = _cuts(connection, sizes)
        ranges = [TimeRange(low, high) for low, high in itertools.pairwise([None, *cuts, None])]
        return [each for each in ranges if _meets(each, matching)]

    def read(self, part: TimeRange, matching: ResultFilter) -> Iterator[Sequence[Result]]:
        """Yield the results of a range, from a cursor in the server."""
        backend = PostgresBackend(self.dsn, timeout_s=self.timeout_s)
        with _translated(backend, "read results"):
            yield from backend.pages(*_query(part, matching), _ROWS_AT_ONCE, prepares=False)


@contextmanager
def _translated(backend: PostgresBackend, what: str) -> Iterator[None]:
    try:
        with backend.translated(what):
            yield
    except BackendRefused as error:
        if getattr(error.__cause__, "sqlstate", None) != _NO_TABLE:
            raise
        raise ConfigurationError(
            f"there are no results in {backend.where}: the table penstock_results does not exist; check the "
            "database and its schema"
        ) from None


def _cuts(connection: Any, sizes: PartitionSizes) -> list[datetime]:
    rows = max(1, connection.execute(_SIZE).fetchone()[0] // _ROW_BYTES)
    pieces = max(sizes.min_parts, math.ceil(rows / sizes.max_rows))
    if pieces == 1:
        return []
    share = min(100.0, 100.0 * pieces * _SAMPLES_A_CUT / rows)
    shares = [n / pieces for n in range(1, pieces)]
    found = connection.execute(_CUTS, [shares, share]).fetchone()[0]
    return sorted(set(found or ()))


def _meets(part: TimeRange, matching: ResultFilter) -> bool:
    is_before = part.high is not None and matching.since is not None and part.high <= matching.since
    is_behind = part.low is not None and matching.until is not None and part.low > matching.until
    return not is_before and not is_behind


def _query(part: TimeRange, matching: ResultFilter) -> tuple[str, list[Any]]:
    conditions: list[tuple[str, Any]] = [
        ("finished_at >= %s", part.low),
        ("finished_at < %s", part.high),
        ("finished_at >= %s", matching.since),
        ("finished_at <= %s", matching.until),
        ("kind = ANY(%s)", None if matching.kinds is None else sorted(matching.kinds)),
        ("status = ANY(%s)", None if matching.statuses is None else sorted(matching.statuses)),
    ]
    said = [(text, value) for text, value in conditions if value is not None]
    where = " AND ".join(text for text, _ in said) or "true"
    return f"SELECT task_id, result FROM penstock_results WHERE {where}", [value for _, value in said]  # noqa: S608  our own words


# --- task queues ------------------------------------------------------------------------------------

_NO_ROWS = RowBuilder(pa.schema([]))
_IDS_AT_ONCE = 1_000
_RESULTS_AN_ENTRY = 16  # results of an entry, between the one and the 64 that there may be


@dataclass(frozen=True)
class RedisResultScan:
    """The results of a RedisTaskQueue: the entries of its stream `<queue>.results`, read by ranges of ids.

    An entry holds one result or several, each with a field `data`. A hash maps the id of a task to the entry of its
    result: a result that it does not point to is none any more, because its task was put back, for example. `given` are
    options of the source of streams, and may hold a password.
    """

    queue: str
    given: Mapping[str, str] = field(repr=False)

    def __post_init__(self) -> None:
        """Raise ConfigurationError for options that cannot work."""
        self._options()

    def plan(self, matching: ResultFilter, sizes: PartitionSizes) -> Sequence[InputPartition]:  # noqa: ARG002  the reader looks itself
        """Cut the stream into ranges of ids; StreamMissing before the first result."""
        entries = max(1, sizes.max_rows // _RESULTS_AN_ENTRY)
        parts = {"minPartitions": str(sizes.min_parts), "maxRowsPerPartition": str(entries)}
        return BatchReader(self._options(**parts), _NO_ROWS).partitions()

    def read(self, part: RangePartition, matching: ResultFilter) -> Iterator[Sequence[Result]]:  # noqa: ARG002  likewise
        """Yield the results of a range."""
        options = self._options()
        client, keys = options.link.client(), self._keys(options)
        for _, entries in log_of(options).scanner().pages(part.ranges):
            found = [(entry[0], result) for entry in entries for result in _results(entry)]
            for start in range(0, len(found), _IDS_AT_ONCE):
                yield _valid(
                    client, keys.done, found[start : start + _IDS_AT_ONCE], options.retry_timeout.total_seconds()
                )

    def _options(self, **more: str) -> SourceOptions:
        # The stream is named as the queue names it in a cluster, which the client knows.
        first = SourceOptions.parse({**self.given, "streams": self.queue})
        return SourceOptions.parse({**self.given, **more, "streams": self._keys(first).results_name})

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
            logger.warning("skipped entry %s, which does not hold a valid result: %s", entry_id.decode(), error)


def _valid(client: StreamClient, done: str, found: Sequence[tuple[bytes, Result]], timeout_s: float) -> list[Result]:
    words = ("HMGET", done, *(result.task_id for _, result in found))
    saved_as = retry(lambda: client.call(done, *words), timeout_s, "reading results")
    return [result for (entry_id, result), saved in zip(found, saved_as, strict=True) if saved == entry_id]
