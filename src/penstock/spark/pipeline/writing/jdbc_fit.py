"""The columns of a table behind JDBC, with their types sorted as those of PostgreSQL are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.spark.pipeline.writing.table_fit import ARRAY, BYTES, NUMBER, TEXT, TIME, TRUTH, UNKNOWN, Column

# Numbers of java.sql.Types.
_CATEGORIES = {
    **dict.fromkeys((-6, 5, 4, -5, 6, 7, 8, 2, 3), NUMBER),
    **dict.fromkeys((1, 12, -1, -15, -9, -16, 2005, 2011), TEXT),
    **dict.fromkeys((91, 92, 93, 2013, 2014), TIME),
    **dict.fromkeys((16, -7), TRUTH),
    **dict.fromkeys((-2, -3, -4, 2004), BYTES),
    2003: ARRAY,
}
_NO_NULLS = 0
_LENGTHY = ("CHAR", "VARCHAR", "DECIMAL", "NUMERIC")


def described(metadata: Any, defaults: set[str] | None) -> dict[str, Column]:
    """Return the columns of a result; `defaults` are those that rows may lack, None if that is not known."""
    found = {}
    for number in range(1, metadata.getColumnCount() + 1):
        name = str(metadata.getColumnName(number))
        may_lack = metadata.isNullable(number) != _NO_NULLS or metadata.isAutoIncrement(number)
        category = _CATEGORIES.get(int(metadata.getColumnType(number)), UNKNOWN)
        is_required = defaults is not None and not may_lack and name not in defaults
        found[name] = Column(_type(metadata, number), "", category, is_required)
    return found


def with_defaults(metadata: Any, table: str) -> set[str] | None:
    """Return the columns for which a database fills in what rows lack; None if it does not tell."""
    schema, _, name = table.replace('"', "").replace("`", "").rpartition(".")
    for folded in (str, str.upper, str.lower):
        rows = metadata.getColumns(None, folded(schema) if schema else None, folded(name), None)
        found = dict(_columns(rows))
        rows.close()
        if found:
            return {column for column, has_default in found.items() if has_default}
    return None


def _columns(rows: Any) -> Iterator[tuple[str, bool]]:
    while rows.next():
        is_made = "YES" in (rows.getString("IS_AUTOINCREMENT"), rows.getString("IS_GENERATEDCOLUMN"))
        yield str(rows.getString("COLUMN_NAME")), is_made or rows.getString("COLUMN_DEF") is not None


def _type(metadata: Any, number: int) -> str:
    name = str(metadata.getColumnTypeName(number))
    if name.upper() not in _LENGTHY:
        return name
    scale = metadata.getScale(number)
    return f"{name}({metadata.getPrecision(number)}{f',{scale}' if scale else ''})"
