"""Whether rows fit a table of PostgreSQL, and whether its user may write there: asked before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql.types import StructType

_NUMBER, _TEXT, _TIME, _TRUTH, _ARRAY = "N", "S", "D", "B", "A"  # PostgreSQL's own categories of types
_TAKEN_BY = {
    "boolean": (_TRUTH, _TEXT),
    "tinyint": (_NUMBER, _TEXT), "smallint": (_NUMBER, _TEXT), "int": (_NUMBER, _TEXT), "bigint": (_NUMBER, _TEXT),
    "float": (_NUMBER, _TEXT), "double": (_NUMBER, _TEXT), "decimal": (_NUMBER, _TEXT),
    "date": (_TIME, _TEXT), "timestamp": (_TIME, _TEXT), "timestamp_ntz": (_TIME, _TEXT),
}  # fmt: skip
_JSON = ("json", "jsonb")
_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod), typname, typcategory,
       attnotnull AND NOT atthasdef AND attidentity = ''
FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_UNIQUE = """
SELECT array_agg(attname::text) FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
WHERE indrelid = to_regclass(%s) AND indisunique AND indpred IS NULL AND indexprs IS NULL GROUP BY indexrelid
"""


@dataclass(frozen=True)
class Column:
    """A column of a table: its type as PostgreSQL writes it, names it and sorts it, and whether rows must have it."""

    type: str
    name: str
    category: str
    is_required: bool


def columns(connection: psycopg.Connection[Any], table: str) -> dict[str, Column] | None:
    """Return the columns of a table, whose name is quoted; None if there is none."""
    return {name: Column(*rest) for name, *rest in connection.execute(_COLUMNS, [table])} or None


def misfits(table: str, schema: StructType, found: Mapping[str, Column]) -> Iterator[str]:
    """Yield what keeps rows out of a table."""
    for field in schema.fields:
        kind, there = field.dataType.simpleString(), found.get(field.name)
        if there is None:
            yield f"table {table!r} has no column {field.name!r}; it has {', '.join(found)}"
        elif not _takes(there, field.dataType.typeName(), kind):
            yield f"table {table!r}: column {field.name!r} is {kind} here and {there.type} there: cast it in a step"
    for name, column in found.items():
        if column.is_required and name not in schema.names:
            yield f"table {table!r}: column {name!r} must not be null and has no default, but the rows lack it"


def _takes(column: Column, family: str, kind: str) -> bool:
    if family in ("struct", "map", "array"):
        return column.name in _JSON or column.category == _TEXT
    if kind == "binary":
        return column.name == "bytea"
    if kind == "string":  # whatever else is read from texts, such as uuid, inet, json or an enum, may be right
        return column.category not in (_NUMBER, _TIME, _TRUTH, _ARRAY)
    return column.category in _TAKEN_BY.get(family, (column.category,))


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
