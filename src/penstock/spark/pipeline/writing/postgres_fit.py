"""Whether rows fit a table of PostgreSQL, and whether its user may write there: asked before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from penstock.spark.pipeline.writing.table_fit import Column

if TYPE_CHECKING:
    import psycopg

_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod), typname,
       CASE typname WHEN 'bytea' THEN 'bytes' ELSE typcategory::text END,
       attnotnull AND NOT atthasdef AND attidentity = ''
FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_UNIQUE = """
SELECT array_agg(attname::text) FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
WHERE indrelid = to_regclass(%s) AND indisunique AND indpred IS NULL AND indexprs IS NULL GROUP BY indexrelid
"""


def columns(connection: psycopg.Connection[Any], table: str) -> dict[str, Column] | None:
    """Return the columns of a table, whose name is quoted; None if there is none."""
    return {name: Column(*rest) for name, *rest in connection.execute(_COLUMNS, [table])} or None


def without_index(connection: psycopg.Connection[Any], table: str, key: Sequence[str]) -> bool:
    """Tell whether no index makes the key of a table unique."""
    return all(set(names) != set(key) for (names,) in connection.execute(_UNIQUE, [table]))


def forbidden(connection: psycopg.Connection[Any], table: str, batches: str, schema: str | None) -> Iterator[str]:
    """Yield what the user may not do; names of tables are quoted, and None is the schema that comes first."""
    (place,) = connection.execute("SELECT coalesce(%s::text, current_schema())", [schema]).fetchone() or (None,)
    (exists,) = connection.execute("SELECT to_regnamespace(quote_ident(%s)) IS NOT NULL", [place]).fetchone() or (
        False,
    )
    if not exists:
        yield f"there is no schema {place!r}: create it"
        return
    (has_table, has_batches, may_create) = connection.execute(
        "SELECT to_regclass(%s) IS NOT NULL, to_regclass(%s) IS NOT NULL, has_schema_privilege(%s, 'CREATE')",
        [table, batches, place],
    ).fetchone() or (False, False, False)
    if not (has_table and has_batches) and not may_create:
        yield f"the user may create no table in the schema {place!r}, where batches are noted: GRANT CREATE"
    for name in ([table] if has_table else []) + ([batches] if has_batches else []):
        (may_write,) = connection.execute("SELECT has_table_privilege(%s, 'INSERT')", [name]).fetchone() or (False,)
        if not may_write:
            yield f"the user may not write to the table {name}: GRANT INSERT"
