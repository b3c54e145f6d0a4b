"""A result as a row: what SQL sees of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.errors import EncodeError
from penstock.results.batch import Entry

Row = tuple[str, str, str, str | None, str | None, int, datetime | None, datetime, bytes]
_NUL, _NUL_SIGN = "\0", "\u2400"  # PostgreSQL has no NUL in texts; the sign for it shows where one was
_MAX_ATTEMPTS = (1 << 63) - 1


def columns_of(entries: Sequence[Entry]) -> list[list[Any]]:
    """Return the columns of many rows, in the order of the statement."""
    return [list(column) for column in zip(*map(row_of, entries), strict=True)]


def row_of(entry: Entry) -> Row:
    """Return the row of a result; raise EncodeError for what no row can hold."""
    result = entry.result
    if abs(result.attempts) > _MAX_ATTEMPTS:
        raise EncodeError(f"result of task {result.task_id}: attempts={result.attempts} is too large for a bigint")
    started = None if result.started_at is None else _in_utc(result.started_at)
    return (
        result.task_id,
        result.kind,
        result.status.value,
        _json(entry),
        None if result.error is None else _without_nul(result.error),
        result.attempts,
        started,
        _in_utc(result.finished_at),
        entry.raw,
    )


def _json(entry: Entry) -> str | None:
    # What was encoded is decoded again: structs, enums, UUIDs and the like are plain values then.
    data = msgspec.msgpack.decode(entry.raw)["data"]
    if data is None:
        return None
    try:
        text = msgspec.json.encode(data)
        if b"\\u0000" in text or b"\xcb\x7f" in entry.raw or b"\xcb\xff" in entry.raw:  # the latter: NaN or infinite
            text = msgspec.json.encode(_sayable(data))
        return text.decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise EncodeError(
            f"result of task {entry.result.task_id}: its data has no form in JSON, which PostgreSQL needs: {error}"
        ) from error


def _sayable(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return "NaN" if math.isnan(data) else f"{'-' if data < 0 else ''}Infinity"
    if isinstance(data, str):
        return _without_nul(data)
    if isinstance(data, dict):
        return {_sayable(key): _sayable(value) for key, value in data.items()}
    return [_sayable(item) for item in data] if isinstance(data, list | tuple) else data


def _without_nul(text: str) -> str:
    return text.replace(_NUL, _NUL_SIGN)


def _in_utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
