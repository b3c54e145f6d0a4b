"""The columns of results as a table. The schema that a user gives is the projection: only its columns are built."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from penstock.results.entry import in_utc
from penstock.spark.reading.columns import Columns
from penstock.task import Result

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


def build(results: Sequence[Result], schema: pa.Schema) -> pa.RecordBatch:
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
