"""The format `penstock_results`: its options, and the classes that Spark calls; it pickles the readers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from penstock.errors import ConfigurationError
from penstock.keys import check_name
from penstock.results.entry import in_utc
from penstock.settings import ResultBackendSettings, Settings
from penstock.spark.format import columns as known
from penstock.spark.format.columns import Columns
from penstock.spark.results.scans import (
    FSResultScan,
    PartitionSizes,
    PostgresResultScan,
    RedisResultScan,
    ResultFilter,
    ResultScan,
    S3ResultScan,
)
from penstock.spark.runtime.code_shipping import Shipped
from penstock.spark.runtime.freeze_gc import freeze_gc
from penstock.spark.runtime.option_values import Options
from penstock.spark.runtime.versions import arrow_schema
from penstock.spark.source.options import milliseconds
from penstock.spark.source.rows import LAST_MS
from penstock.task import Result

FORMAT = "penstock_results"
_BACKENDS = ("fs", "postgres", "s3", "redis")
# Spelled as Spark spells secrets, so that it hides them wherever it shows options.
_KEYS = {"accessKeyId": "access_key_id", "secretAccessKey": "secret_access_key", "sessionToken": "session_token"}
_OF_A_STREAM = ("url", "passwordFile", "passwordEnv", "failOnDataLoss", "retryTimeout", "fetchSize")
_BATCH = 5_000
_TEXT, _TIMES = pa.string(), [pa.timestamp("us", tz="UTC"), pa.timestamp("us")]
RESULT: Columns = {
    "task_id": [_TEXT],
    "kind": [_TEXT],
    "status": [_TEXT],
    "data": [_TEXT],
    "error": [_TEXT],
    "attempts": [pa.int64()],
    "started_at": _TIMES,
    "finished_at": _TIMES,
}
_MOST = (1 << 63) - 1


@dataclass(frozen=True)
class ResultsOptions:
    """Everything that can be said about reading results."""

    scan: ResultScan
    matching: ResultFilter
    sizes: PartitionSizes
    filter_pushdown: bool

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ResultsOptions:
        """Read the options; raise ConfigurationError for what is unknown, wrong or contradictory."""
        options = Options(given, FORMAT)
        made = cls(
            scan=_scan(options),
            matching=_filter(options),
            sizes=PartitionSizes(
                options.whole("minPartitions") or 1, options.whole("maxRowsPerPartition") or PartitionSizes.max_rows
            ),
            filter_pushdown=options.flag("filterPushdown", default=False),
        )
        options.refuse_unknown()
        return made


def _filter(options: Options) -> ResultFilter:
    kind = options.text("kind")
    since, ending = _moment(options, "startingTimestamp"), _moment(options, "endingTimestamp")
    return ResultFilter(
        kinds=None if kind is None else frozenset([check_name("option kind", kind)]),
        since=since,
        until=None if ending is None else ending - timedelta(microseconds=1),
    )


def _moment(options: Options, name: str) -> datetime | None:
    text = options.text(name)
    if text is None:
        return None
    # Results have no time beyond the calendar, whatever entries of streams have.
    return datetime.fromtimestamp(min(milliseconds(f"option {name}", text), LAST_MS) / 1000, UTC)


def _scan(options: Options) -> ResultScan:
    config, backend = options.text("config"), options.text("backend")
    if (config is None) == (backend is None):
        raise ConfigurationError(
            f"set exactly one of option backend={', '.join(_BACKENDS[:-1])} or {_BACKENDS[-1]}, and option "
            "config with the path of a penstock.toml"
        )
    if config is not None:
        return scan_of(Settings.load(config).result_backend)
    chosen = options.choice("backend", _BACKENDS, "fs")
    if chosen == "redis":
        return _of_queue(options)
    if chosen == "fs":
        return scan_of(ResultBackendSettings("fs", root=_location(options, "root")))
    timeout = {"timeout_s": options.duration("timeout", timedelta(seconds=30)).total_seconds()}
    if chosen == "postgres":
        return scan_of(ResultBackendSettings("postgres", options={"dsn": _location(options, "url"), **timeout}))
    return scan_of(
        ResultBackendSettings("s3", options={"url": _location(options, "url"), **timeout, **_s3_options(options)})
    )


def _location(options: Options, name: str) -> str:
    location = options.text(name, "path")
    if not location:
        raise ConfigurationError(f"option {name} is missing: it says where the results are")
    return location


def _s3_options(options: Options) -> dict[str, str]:
    given = {spelled: options.text(name) for name, spelled in _KEYS.items()}
    given |= {name: options.text(name) for name in ("endpoint", "region")}
    known = {name: value for name, value in given.items() if value is not None}
    return {**known, **options.starting_with("s3.")}


def _of_queue(options: Options) -> RedisResultScan:
    queue = options.text("queue", "path") or "penstock"
    given = {name: value for name in _OF_A_STREAM if (value := options.text(name)) is not None}
    given |= {f"redis.{name}": value for name, value in options.starting_with("redis.").items()}
    return RedisResultScan(queue, given)


def scan_of(settings: ResultBackendSettings) -> ResultScan:
    """Return where the results of a back-end are read from; raise ConfigurationError for one that is not ours."""
    if settings.provider == "fs":
        return FSResultScan(str(Path(str(settings.options.get("root", settings.root))).absolute()))
    if settings.provider == "postgres":
        from penstock.results import PostgresBackend

        PostgresBackend.from_settings(settings)  # says what is wrong with it; nothing is connected yet
        return PostgresResultScan(**settings.options)
    if settings.provider == "s3":
        from penstock.results import S3Backend

        S3Backend.from_settings(settings)
        return S3ResultScan(settings)
    raise ConfigurationError(
        f"the results of back-end {settings.provider!r} cannot be read as a table, only those of "
        f"{', '.join(_BACKENDS)}; for others, use penstock.results.results_table()"
    )


class ResultsPartition(InputPartition):
    """What one task reads; None = nothing."""

    def __init__(self, part: Any) -> None:
        super().__init__(None)
        self.part = part


class ResultsReader(Shipped, DataSourceReader):
    """Reads what is stored; a result that is saved while the query runs may be in it or not."""

    def __init__(self, options: ResultsOptions, schema: pa.Schema) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks."""
        parts = self._options.scan.plan(self._options.matching, self._options.sizes)
        # Where there is no partition, Spark makes one up, of its own kind.
        return [ResultsPartition(part) for part in parts] or [ResultsPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition; called in a task."""
        freeze_gc()
        assert isinstance(partition, ResultsPartition)
        if partition.part is None:
            return
        matching, waiting = self._options.matching, list[Result]()
        for results in self._options.scan.read(partition.part, matching):
            waiting += [result for result in results if matching.takes(result)]
            if len(waiting) >= _BATCH:
                yield _build(waiting, self._schema)
                waiting = []
        if waiting:
            yield _build(waiting, self._schema)


class FilteringResultsReader(ResultsReader):
    """Reads less where a filter of the query says so; Spark applies every filter once more itself.

    A class of its own: Spark refuses every reader that takes filters unless its configuration allows that.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Take note of the filters on kind, status and finished_at."""
        self._options = replace(self._options, matching=self._options.matching.narrowed(filters))
        return filters


class ResultsSource(Shipped, DataSource):
    """Results of tasks as a table, for batch queries."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given: Mapping[str, str] = dict(options)

    def schema(self) -> str:
        """Return all columns."""
        return known.ddl(RESULT)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        options = ResultsOptions.parse(self._given)
        arrow = arrow_schema(schema)
        known.check(arrow, RESULT, ())
        return FilteringResultsReader(options, arrow) if options.filter_pushdown else ResultsReader(options, arrow)


# --- columns: the schema that a user gives is the projection, and only its columns are built ----------


def _build(results: Sequence[Result], schema: pa.Schema) -> pa.RecordBatch:
    """Return results as a batch of the wanted columns."""
    arrays = []
    for field in schema:
        value = _VALUES[field.name]
        arrays.append(pa.array([value(result) for result in results], field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _time(moment: datetime | None) -> int | None:
    # Whole microseconds: as datetime, a column without a zone would not take it.
    if moment is None:
        return None
    since = in_utc(moment) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _json(data: Any) -> str | None:
    if data is None:
        return None
    try:
        return msgspec.json.encode(data).decode()
    except (TypeError, ValueError, RecursionError):
        return json.dumps(repr(data))  # one odd result must not keep the others from being read


_VALUES: dict[str, Callable[[Result], Any]] = {
    "task_id": lambda result: result.task_id,
    "kind": lambda result: result.kind,
    "status": lambda result: result.status.value,
    "data": lambda result: _json(result.data),
    "error": lambda result: result.error,
    "attempts": lambda result: max(-_MOST, min(result.attempts, _MOST)),
    "started_at": lambda result: _time(result.started_at),
    "finished_at": lambda result: _time(result.finished_at),
}
