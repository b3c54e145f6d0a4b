"""The tables in PostgreSQL, and every statement that is sent there.

`result` holds the result exactly as it was given, in MessagePack; the other columns say the same to SQL. JSONB alone
cannot: it turns 1e16 into a whole number, and has no bytes, no NaN, no NUL and no times.
"""

from __future__ import annotations

from typing import Final

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
