"""The tables in PostgreSQL, every statement that is sent there, and a result as a row.

`result` holds the result exactly as it was given, in MessagePack; the other columns say the same to SQL. JSONB alone
cannot: it turns 1e16 into a whole number, and has no bytes, no NaN, no NUL and no times.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from penstock.errors import EncodeError, text_of
from penstock.results.entry import StoredResult

# How a server refuses a login. While connecting, libpq tells its words and no SQLSTATE.
LOGIN_REFUSED: Final = re.compile(
    r"(?:FATAL|ERROR):\s+(?:no pg_hba\.conf entry|permission denied"
    r"|[^\n]*(?:authentication failed|does not exist|is not permitted to log in|not currently accepting connections))"
    r"|no password supplied|server does not support SSL"
)
VERSION: Final = 1
_LOCK: Final = 0x70656E73746F636B  # "penstock", as the number of an advisory lock

# Two processes that start at the same time would both create the tables otherwise; freed when the transaction ends.
LOCK: Final = f"SELECT pg_advisory_xact_lock({_LOCK})"
# Not to_regclass(): that one remembers, behind the lock, that there was no such table before it.
EXISTS: Final = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_tables
    WHERE tablename = 'penstock_schema' AND schemaname = ANY (current_schemas(false))
)
"""
READ_VERSION: Final = "SELECT version FROM penstock_schema WHERE part = 'results'"
WRITE_VERSION: Final = """
INSERT INTO penstock_schema (part, version) VALUES ('results', %s)
ON CONFLICT (part) DO UPDATE SET version = excluded.version
"""
CREATE_VERSIONS: Final = "CREATE TABLE IF NOT EXISTS penstock_schema (part text PRIMARY KEY, version integer NOT NULL)"

# Step n leads from version n to version n + 1.
STEPS: Final = (
    """
CREATE TABLE penstock_results (
    task_id text COLLATE "C" PRIMARY KEY,
    kind text NOT NULL,
    status text NOT NULL,
    data jsonb,
    error text,
    attempts bigint NOT NULL,
    started_at timestamptz,
    finished_at timestamptz NOT NULL,
    saved_at timestamptz NOT NULL DEFAULT now(),
    result bytea NOT NULL
);
CREATE INDEX penstock_results_by_kind ON penstock_results (kind, finished_at, task_id);
CREATE INDEX penstock_results_by_time ON penstock_results (finished_at, task_id)
""",
)
assert len(STEPS) == VERSION

COLUMNS: Final = ("task_id", "kind", "status", "data", "error", "attempts", "started_at", "finished_at", "result")
_TYPES: Final = ("text", "text", "text", "text", "text", "bigint", "timestamptz", "timestamptz", "bytea")

# One array per column: one statement and one round trip, however many rows.
INSERT: Final = f"""
INSERT INTO penstock_results ({", ".join(COLUMNS)})
SELECT task_id, kind, status, data::jsonb, error, attempts, started_at, finished_at, result
FROM unnest({", ".join(f"%s::{kind}[]" for kind in _TYPES)}) AS new ({", ".join(COLUMNS)})
ON CONFLICT (task_id) DO NOTHING
RETURNING task_id
"""  # noqa: S608  nothing but our own column names
FIND: Final = "SELECT task_id, result FROM penstock_results WHERE task_id = ANY(%s)"
ALL: Final = "SELECT task_id, result FROM penstock_results ORDER BY finished_at, task_id"
OF_KIND: Final = "SELECT task_id, result FROM penstock_results WHERE kind = %s ORDER BY finished_at, task_id"

_NUL, _NUL_SIGN = "\0", "\u2400"  # PostgreSQL has no NUL in texts; the sign for it shows where one was
_MAX_ATTEMPTS = (1 << 63) - 1


def columns_of(entries: Sequence[StoredResult]) -> list[list[Any]]:
    """Return the columns of many rows, in the order of INSERT; raise EncodeError for what no row can hold."""
    return [list(column) for column in zip(*map(_row, entries), strict=True)]


def _row(entry: StoredResult) -> tuple[Any, ...]:
    result = entry.result
    if abs(result.attempts) > _MAX_ATTEMPTS:
        raise EncodeError(f"result of task {result.task_id}: attempts={result.attempts} is too large for a bigint")
    return (
        result.task_id,
        result.kind,
        result.status.value,
        _json(entry),
        None if result.error is None else _without_nul(result.error),
        result.attempts,
        None if result.started_at is None else _with_zone(result.started_at),
        _with_zone(result.finished_at),
        entry.raw,
    )


def _json(entry: StoredResult) -> str | None:
    # What was encoded is decoded again: structs, enums, UUIDs and the like are plain values then.
    data = msgspec.msgpack.decode(entry.raw)["data"]
    if data is None:
        return None
    try:
        text = msgspec.json.encode(data)
        if b"\\u0000" in text or b"\xcb\x7f" in entry.raw or b"\xcb\xff" in entry.raw:  # the latter: NaN or infinite
            text = msgspec.json.encode(_json_value(data))
        return text.decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise EncodeError(
            f"result of task {entry.result.task_id}: its data cannot be stored as JSON, which PostgreSQL needs: "
            f"{text_of(error)}"
        ) from error


def _json_value(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return "NaN" if math.isnan(data) else f"{'-' if data < 0 else ''}Infinity"
    if isinstance(data, str):
        return _without_nul(data)
    if isinstance(data, dict):
        return {_json_value(key): _json_value(value) for key, value in data.items()}
    return [_json_value(item) for item in data] if isinstance(data, list | tuple) else data


def _without_nul(text: str) -> str:
    return text.replace(_NUL, _NUL_SIGN)


def _with_zone(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
