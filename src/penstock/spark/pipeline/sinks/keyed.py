"""Rows that replace each other by key: the newest row stays, in whichever batch and order the rows arrive.

The newest row has the greatest `order_by` or, without that, the entry with the greatest id, which the table stores in
`order_column`. Rows whose entry is unknown, such as sums, have no order: there, a later batch wins. Tables store the
order of their rows, so writing a batch twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.spark.pipeline.rejected_rows import RefusalRule, origin_of, visible, visible_schema
from penstock.spark.pipeline.sink_options import KeyedOptions
from penstock.spark.runtime.errors import one_line, unsteady

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

DELETED = "penstock_deleted"  # 1 in a row that deletes; not written to the table
_NUMBER, _TIE = "_penstock_number", "_penstock_tie"
_NULL_IN_KEY = "a key column is null"
_NO_ENTRY = "a row of a sink with a key has no source entry"
_DIGITS = 20  # of the greatest 64-bit number
_ENTRY_ID = f"^[0-9]{{1,{_DIGITS}}}-[0-9]{{1,{_DIGITS}}}$"
_WHY_NO_ENTRY = (
    "is not an entry id, which determines the order of rows with the same key: rename this column, or set "
    "order_by to another one"
)
ORDER_LENGTH = 2 * _DIGITS + 1


@dataclass(frozen=True)
class Upsert:
    """How the rows of a sink replace others. If `order` is None, a later batch wins.

    `tie` is the column with the id of the entry, which decides between rows of one batch that are equal in `order_by`.
    """

    key: tuple[str, ...]
    order: str | None
    entry_id: str | None
    delete_when: str | None
    tie: str | None = None
    has_text_order: bool = False

    @classmethod
    def of(cls, sink: KeyedOptions, schema: StructType) -> Upsert | None:
        """Return how a sink replaces rows of this schema; None if it appends."""
        if not sink.key:
            return None
        origin = origin_of(schema)
        if sink.order_by is not None:
            is_text = sink.order_by in schema.names and schema[sink.order_by].dataType.typeName() == "string"
            tie = None if origin is None else origin.id
            return cls(sink.key, sink.order_by, None, sink.delete_when, tie, is_text)
        if origin is None:
            return cls(sink.key, None, None, sink.delete_when)
        return cls(sink.key, sink.order_column, origin.id, sink.delete_when, has_text_order=True)

    @property
    def has_order_of_its_own(self) -> bool:
        """Whether the table has a column for the order that the rows do not have."""
        return self.entry_id is not None

    def newest(self, rows: DataFrame) -> DataFrame:
        """Return the newest row of each key in the columns of the table, and `DELETED` if rows may delete.

        Computing them fails for a null in a key, because it equals nothing, so such a row would never be replaced. It
        also fails for an invalid entry id, if that is the order.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        tie = f.lit(None) if self.tie is None else f.expr(entry_order(self.tie))
        marked = visible(self.marked(rows).withColumn(_TIE, tie))
        reasons = dict.fromkeys(self.key, _NULL_IN_KEY)
        if self.has_order_of_its_own and self.order is not None:
            reasons[self.order] = _NO_ENTRY
        checked = {
            name: f.when(f.isnull(name), f.raise_error(why)).otherwise(f.col(name)) for name, why in reasons.items()
        }
        orders = [_TIE] if self.order is None else [self.order, _TIE]
        newest_first = Window.partitionBy(*self.key).orderBy(*(f.col(name).desc_nulls_last() for name in orders))
        numbered = marked.withColumns(checked).withColumn(_NUMBER, f.row_number().over(newest_first))
        return numbered.where(f"{_NUMBER} = 1").drop(_NUMBER, _TIE)

    def marked(self, rows: DataFrame) -> DataFrame:
        """Return all rows, with their order if the table stores it, and with `DELETED` if rows may delete."""
        from pyspark.sql import functions as f

        more: dict[str, Column] = {}
        if self.entry_id is not None and self.order is not None:
            more[self.order] = f.expr(entry_order(self.entry_id))
        if self.delete_when is not None:
            more[DELETED] = f.expr(f"cast(coalesce({self.delete_when}, false) AS int)")
        return rows.withColumns(more) if more else rows

    def merge_statement(self, target: str, source: str, columns: Sequence[str]) -> str:
        """Return the MERGE statement that writes the newest rows, from a view, into a table."""
        names = [name for name in columns if name != DELETED]
        same = " AND ".join(f"t.`{name}` = s.`{name}`" for name in self.key)
        newer, deletes = self.is_newer("t.`{}`", "s.`{}`"), self.delete_when is not None
        deletion = f"WHEN MATCHED AND {newer} AND s.{DELETED} = 1 THEN DELETE " if deletes else ""
        changes = ", ".join(f"t.`{name}` = s.`{name}`" for name in names)
        listed, values = (", ".join(f"{prefix}`{name}`" for name in names) for prefix in ("", "s."))
        condition = f"AND s.{DELETED} = 0 " if deletes else ""
        return (
            f"MERGE INTO {target} t USING {source} s ON {same} {deletion}"  # noqa: S608 - as declared
            f"WHEN MATCHED AND {newer} THEN UPDATE SET {changes} "
            f"WHEN NOT MATCHED {condition}THEN INSERT ({listed}) VALUES ({values})"
        )

    def is_newer(self, there: str, here: str) -> str:
        """Return SQL for whether a row is not older than the table's; the arguments are formats for columns of both."""
        if self.order is None:
            return "true"
        return f"({there.format(self.order)} IS NULL OR {here.format(self.order)} >= {there.format(self.order)})"

    def schema(self, schema: StructType) -> StructType:
        """Return the columns of the table for rows of this schema."""
        from pyspark.sql.types import StringType, StructField
        from pyspark.sql.types import StructType as Struct

        shown = visible_schema(schema)
        if not self.has_order_of_its_own or self.order is None:
            return shown
        return Struct([*shown.fields, StructField(self.order, StringType())])

    def problems(self, schema: StructType) -> Iterator[str]:
        """Yield problems of the declaration, for rows of this schema."""
        names = visible_schema(schema).names
        for name in self.key:
            if name not in names:
                yield f"key: unknown column {name!r}; available: {', '.join(names)}"
        if self.has_order_of_its_own:
            if self.order in names:
                yield f"order_column: the rows already have a column {self.order!r}: choose another name"
        elif self.order is not None and self.order not in names:
            yield f"order_by: unknown column {self.order!r}; available: {', '.join(names)}"
        if self.delete_when is not None:
            yield from _wrong_condition(self.delete_when, schema)


def _wrong_condition(condition: str, schema: StructType) -> Iterator[str]:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    rows = SparkSession.active().createDataFrame([], schema)
    try:
        found = rows.where(condition)
        _ = found.schema  # Spark Connect parses the condition only now
        if what := unsteady(rows, found):
            yield f"delete_when = {condition!r} deletes different rows each time: remove {what}"
    except PySparkException as error:
        yield f"delete_when = {condition!r}: {one_line(error)}"


def upsert_of(sink: object, schema: StructType) -> Upsert | None:
    """Return how a sink replaces rows of this schema; None if it appends."""
    return Upsert.of(sink, schema) if isinstance(sink, KeyedOptions) else None


def table_schema(upsert: Upsert | None, schema: StructType) -> StructType:
    """Return the columns of the table of a sink."""
    return visible_schema(schema) if upsert is None else upsert.schema(schema)


def entry_order(column: str) -> str:
    """Return SQL for a string that sorts as the two numbers of an id do: both padded to 20 digits.

    It is null if the column is not an id.
    """
    ms, seq = (f"lpad(substring_index(`{column}`, '-', {part}), {_DIGITS}, '0')" for part in (1, -1))
    return f"CASE WHEN `{column}` RLIKE '{_ENTRY_ID}' THEN concat({ms}, '-', {seq}) END"


def key_rules(sink: object, schema: StructType) -> Iterator[RefusalRule]:
    """Yield rules for rows that a sink with a key cannot order or replace."""
    upsert = upsert_of(sink, schema)
    if upsert is None:
        return
    for name in upsert.key:
        yield RefusalRule(name, f"`{name}` IS NULL", "is null, but is part of the key")
    if upsert.entry_id is not None:
        yield RefusalRule(upsert.entry_id, f"{entry_order(upsert.entry_id)} IS NULL", _WHY_NO_ENTRY)


def is_refused_for_key(error: BaseException) -> bool:
    """Return whether a write failed because of a row that cannot be ordered or replaced."""
    return _NULL_IN_KEY in str(error) or _NO_ENTRY in str(error)
