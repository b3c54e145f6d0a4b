"""Results of penstock.results: one per row, saved by the tasks.

A back-end keeps the first result for an id, so writing a row again changes nothing. Rows become visible one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import ConfigurationError, PenstockError
from penstock.results.entry import in_utc
from penstock.settings import ResultBackendSettings
from penstock.spark.lake.files import FailPoint
from penstock.spark.lake.parquet import FilesMissing
from penstock.spark.pipeline.files import BatchKey
from penstock.spark.pipeline.rejected_rows import (
    Origin,
    RefusalRule,
    Refusals,
    broken,
    is_of_spark,
    time_rules,
    visible,
    visible_schema,
)
from penstock.spark.pipeline.sink_options import Results
from penstock.spark.pipeline.sinks.writer import unwritable
from penstock.spark.runtime.code_shipping import Shipped
from penstock.spark.runtime.freeze_gc import freeze_gc
from penstock.sync.providers import make_result_backend
from penstock.sync.results.backend import ResultBackend
from penstock.task import ID_PATTERN, Result, decode_result, encode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

logger = logging.getLogger("penstock.spark")
_IDS = ("string", "byte", "short", "integer", "long")
_SAVED_DDL = "others bigint, last string"
_AT_ONCE = 1_000
_PROBE = "penstock-validate"
_CONNECT_S = 10
_NO_ID = (
    "is not a valid result id: use 1 to 128 letters, digits, '_', '-' or single dots, starting with a letter or digit"
)


class ResultInvalid(PenstockError):
    """A row cannot become a result."""


class ResultsWriter:
    """Saves the rows of batches as results. A repetition must have the same rows."""

    is_atomic = False

    def __init__(self, sink: Results) -> None:
        self._sink = sink

    def problems(self, schema: StructType) -> Iterator[str]:
        """Yield problems with writing rows of this schema; write nothing."""
        schema = visible_schema(schema)
        types = {field.name: field.dataType.typeName() for field in schema.fields}
        wanted = {"id": (self._sink.id,), "columns": self._sink.columns, "finished_at": (self._sink.finished_at,)}
        for key, names in wanted.items():
            for name in names:
                if name is not None and name not in types:
                    yield f"{key}: unknown column {name!r}; available: {', '.join(types)}"
        if types.get(self._sink.id, _IDS[0]) not in _IDS:
            yield f"id: column {self._sink.id!r} is {types[self._sink.id]}; it must be a string or a whole number"
        if types.get(self._sink.finished_at or "", "timestamp") not in ("timestamp", "timestamp_ntz"):
            yield f"finished_at: column {self._sink.finished_at!r} is not a timestamp"
        yield from self._unreachable()

    def _unreachable(self) -> Iterator[str]:
        try:
            with closing(opened(self._sink)) as backend:
                if self._sink.backend == "fs":
                    root = Path(self._sink.options.get("root", ResultBackendSettings.root))
                    yield from unwritable(str(root.absolute()))
                elif self._sink.backend == "postgres":
                    yield from self._no_database()
                else:
                    backend.get(_PROBE)
        except PenstockError as error:
            yield f"cannot use the result back-end: {error}"

    def _no_database(self) -> Iterator[str]:
        import psycopg

        try:  # a read by the back-end would create its tables
            psycopg.connect(self._sink.options["dsn"], connect_timeout=_CONNECT_S).close()
        except psycopg.Error as error:
            yield f"cannot use the result back-end: {' '.join(str(error).split())}"

    def has(self, key: BatchKey) -> bool:  # noqa: ARG002 - there is no record
        """Return True: some of its rows may be there."""
        return True

    def write(self, rows: DataFrame, key: BatchKey, mark: FailPoint) -> bool:
        """Write a batch; rows that are already there are skipped one by one."""
        rows = visible(rows)
        saved = rows.mapInArrow(SaveTask(self._sink), _SAVED_DDL).collect()
        self._check_shared([row["last"] for row in saved if row["last"] is not None])
        others = sum(row["others"] for row in saved)
        if others:
            logger.warning(
                "sink %s, batch %d: skipped %d rows, because other results already have their ids",
                self._sink.name, key.number, others,
            )  # fmt: skip
        mark("results saved")
        return True

    def is_refusal(self, error: BaseException) -> bool:
        """Return whether a write may have failed because of a value in a row."""
        return is_of_spark(error)

    def refusals(self, rows: DataFrame, origin: Origin | None) -> Refusals:
        """Yield the rows that cannot become results, and write nothing."""
        text = f"cast(`{self._sink.id}` as string)"
        rules = [
            RefusalRule(self._sink.id, f"{text} IS NULL", "is null, but is the id of the result"),
            RefusalRule(self._sink.id, f"NOT ({text} RLIKE '^({ID_PATTERN})$') OR instr({text}, '..') > 0", _NO_ID),
        ]
        yield from broken(rows, [*rules, *time_rules(rows.schema)], origin)

    def _check_shared(self, ids: list[str]) -> None:
        """Raise FilesMissing unless the driver sees a result of each task: executors may use other disks."""
        if self._sink.backend != "fs":
            return
        with closing(opened(self._sink)) as backend:
            missing = sum(backend.get(task_id) is None for task_id in ids)
        if missing:
            raise FilesMissing(
                f"the driver cannot see the saved results of {missing} of {len(ids)} tasks: use a root that the "
                "driver and all executors share, or another back-end"
            )


@dataclass(frozen=True)
class SaveTask(Shipped):
    """Saves the rows of one task; called by Spark with its Arrow batches."""

    sink: Results

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield for how many rows another result has the id."""
        freeze_gc()
        backend = opened(self.sink)
        try:
            others, last = 0, None
            for batch in batches:
                others += self._save(backend, batch)
                last = str(batch.column(self.sink.id)[-1].as_py()) if batch.num_rows else last
        finally:
            backend.close()
        saved = {"others": pa.array([others], pa.int64()), "last": pa.array([last], pa.string())}
        yield pa.RecordBatch.from_pydict(saved)

    def _save(self, backend: ResultBackend, batch: Any) -> int:
        others = 0
        for start in range(0, batch.num_rows, _AT_ONCE):
            results = [
                result_of(self.sink, row) for row in batch.slice(start, _AT_ONCE).to_pylist(maps_as_pydicts="lossy")
            ]
            saved = backend.save_many(results)
            # A result that is already there may be from an earlier attempt, with another time.
            refused = (result for result, is_ours in zip(results, saved, strict=True) if not is_ours)
            others += sum(_is_other(backend.get(result.task_id), result) for result in refused)
        return others


def _is_other(found: Result | None, result: Result) -> bool:
    written = decode_result(encode(result))  # as it reads back: a Decimal becomes a string, for example
    return found is None or (found.kind, found.data) != (written.kind, written.data)


def result_of(sink: Results, row: Mapping[str, Any]) -> Result:
    """Return the result for a row."""
    value = row[sink.id]
    if value is None:
        raise ResultInvalid(f"a row has null in {sink.id!r}, the id of its result: filter such rows out")
    names: Iterable[str] = sink.columns or (name for name in row if name not in (sink.id, sink.finished_at))
    finished_at = row[sink.finished_at] if sink.finished_at is not None else None
    return Result(
        task_id=str(value),
        kind=sink.result_kind,
        data={name: row[name] for name in names},
        finished_at=in_utc(finished_at) if finished_at is not None else datetime.now(UTC),
    )


def opened(sink: Results) -> ResultBackend:
    """Return the back-end of a sink."""
    return make_result_backend(ResultBackendSettings(provider=sink.backend, options=_typed(sink.options)))


def _typed(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the options with the types that back-ends expect: in a pipeline, all of them are strings."""
    made: dict[str, Any] = {**options}
    for name, value in options.items():
        if value in ("true", "false"):
            made[name] = value == "true"
        elif name.endswith("_s"):
            try:
                made[name] = float(value)
            except ValueError:
                raise ConfigurationError(f"options.{name} = {value!r} must be a number of seconds") from None
    return made
