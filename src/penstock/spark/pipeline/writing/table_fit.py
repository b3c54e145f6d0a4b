"""Whether rows fit a table of a database, whichever it is: asked before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# PostgreSQL's own categories of types; those of other databases are sorted into them.
NUMBER, TEXT, TIME, TRUTH, ARRAY = "N", "S", "D", "B", "A"
BYTES, UNKNOWN = "bytes", "unknown"
_TAKEN_BY = {
    "boolean": (TRUTH, TEXT),
    "byte": (NUMBER, TEXT), "short": (NUMBER, TEXT), "integer": (NUMBER, TEXT), "long": (NUMBER, TEXT),
    "float": (NUMBER, TEXT), "double": (NUMBER, TEXT), "decimal": (NUMBER, TEXT),
    "date": (TIME, TEXT), "timestamp": (TIME, TEXT), "timestamp_ntz": (TIME, TEXT),
}  # fmt: skip
_JSON = ("json", "jsonb")


@dataclass(frozen=True)
class Column:
    """A column of a table: its type as the database writes it, names it and sorts it, and whether rows must have it."""

    type: str
    name: str
    category: str
    is_required: bool


def misfits(
    table: str, schema: StructType, found: Mapping[str, Column], fold: Callable[[str], str] = str
) -> Iterator[str]:
    """Yield what keeps rows out of a table; `fold` makes names equal that the database takes for the same."""
    there = {fold(name): column for name, column in found.items()}
    for field in schema.fields:
        kind, column = field.dataType.simpleString(), there.get(fold(field.name))
        if column is None:
            yield f"table {table!r} has no column {field.name!r}; it has {', '.join(found)}"
        elif not _takes(column, field.dataType.typeName(), kind):
            yield f"table {table!r}: column {field.name!r} is {kind} here and {column.type} there: cast it in a step"
    given = {fold(name) for name in schema.names}
    for name, column in found.items():
        if column.is_required and fold(name) not in given:
            yield f"table {table!r}: column {name!r} must not be null and has no default, but the rows lack it"


def _takes(column: Column, family: str, kind: str) -> bool:
    if column.category == UNKNOWN:  # a type of the database's own may well be right
        return True
    if family in ("struct", "map", "array"):
        return column.name in _JSON or column.category == TEXT
    if kind == "binary":
        return column.category == BYTES
    if kind == "string":  # whatever else is read from texts, such as uuid, inet, json or an enum, may be right
        return column.category not in (NUMBER, TIME, TRUTH, ARRAY, BYTES)
    return column.category in _TAKEN_BY.get(family, (column.category,))
