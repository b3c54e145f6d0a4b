"""Which entry a row came from, as far as its columns tell: rows that a sink refuses are given up by that."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

HIDDEN = ("_stream", "_id")  # for steps that keep the origin of rows out of the tables
_PLAIN = ("stream", "id")
_ENTRY_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


@dataclass(frozen=True)
class Origin:
    """The columns that name the stream and the id of the entry."""

    stream: str
    id: str

    @property
    def key(self) -> str:
        """Both as one value, in SQL."""
        return f"concat({self.stream}, ' ', {self.id})"


@dataclass(frozen=True)
class SourceEntry:
    """The entry that a row came from."""

    stream: str
    id: str

    @classmethod
    def of(cls, stream: object, entry_id: object) -> SourceEntry | None:
        """Return the entry, or None for values that cannot name one."""
        if isinstance(stream, str) and isinstance(entry_id, str) and stream and _ENTRY_ID.fullmatch(entry_id):
            return cls(stream, entry_id)
        return None

    def __str__(self) -> str:
        """Return what `Origin.key` is for its rows."""
        return f"{self.stream} {self.id}"


def origin_of(schema: StructType) -> Origin | None:
    """Return where rows tell what they came from; None if they do not."""
    texts = {field.name for field in schema.fields if field.dataType.typeName() == "string"}
    found = next((pair for pair in (HIDDEN, _PLAIN) if texts.issuperset(pair)), None)
    return None if found is None else Origin(*found)


def is_hidden(schema: StructType) -> bool:
    """Tell whether rows have an origin that no sink writes."""
    return origin_of(schema) == Origin(*HIDDEN)


def visible(rows: DataFrame) -> DataFrame:
    """Return the rows as sinks write them."""
    return rows.drop(*HIDDEN) if is_hidden(rows.schema) else rows


def visible_schema(schema: StructType) -> StructType:
    """Return the columns that sinks write."""
    from pyspark.sql.types import StructType as Struct

    if not is_hidden(schema):
        return schema
    return Struct([field for field in schema.fields if field.name not in HIDDEN])
