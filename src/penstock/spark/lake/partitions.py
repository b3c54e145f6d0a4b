"""What a table is partitioned by: a column, or the day, the hour, a bucket or the beginning of one.

Iceberg knows such transforms itself. In Delta Lake and Parquet, where partitions are columns, the table gets a column
with the result, such as `timestamp_day`. Days and hours are those of UTC everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

IDENTITY, DAY, HOUR, BUCKET, TRUNCATE = "identity", "day", "hour", "bucket", "truncate"
_CALL = re.compile(r"(\w+)\(\s*(?:([^(),]*?)\s*,\s*)?([^(),]+?)\s*\)")
_WITH_NUMBER = {DAY: False, HOUR: False, BUCKET: True, TRUNCATE: True}
_WHOLE = ("byte", "short", "integer", "long")
_TAKEN = {
    DAY: ("date", "timestamp", "timestamp_ntz"),
    HOUR: ("timestamp", "timestamp_ntz"),
    BUCKET: (*_WHOLE, "string", "binary", "date", "timestamp", "timestamp_ntz", "decimal"),
    TRUNCATE: (*_WHOLE, "string"),
}
_NO_FOLDERS = ("binary", "struct", "map", "array", "variant")


@dataclass(frozen=True)
class Partition:
    """One of the things that a table is partitioned by."""

    column: str
    transform: str = IDENTITY
    number: int | None = None

    @classmethod
    def of(cls, text: str) -> Partition:
        """Read `day`, `day(at)`, `hour(at)`, `bucket(16, customer)` or `truncate(4, name)`; the first is a column.

        Raises: ConfigurationError for anything else.
        """
        found = _CALL.fullmatch(text)
        if found is None:
            return cls(text)
        transform, number, column = found.groups()
        if transform not in _WITH_NUMBER:
            raise ConfigurationError(
                f"partition_by: {text!r} must be a column, or a column in {', '.join(_WITH_NUMBER)}"
            )
        if not _WITH_NUMBER[transform]:
            if number is not None:
                raise ConfigurationError(f"partition_by: {text!r} must be written as {transform}(column)")
            return cls(column, transform)
        if number is None or not number.isdecimal() or int(number) < 1:
            raise ConfigurationError(f"partition_by: {text!r} must be written as {transform}(16, column)")
        return cls(column, transform, int(number))

    def __str__(self) -> str:
        """Return it as it is declared."""
        if self.transform == IDENTITY:
            return self.column
        return f"{self.transform}({self.column if self.number is None else f'{self.number}, {self.column}'})"

    @property
    def name(self) -> str:
        """The column that has the result."""
        if self.transform == IDENTITY:
            return self.column
        return "_".join(map(str, filter(None, (self.column, self.transform, self.number))))

    def expression(self, schema: StructType) -> str:
        """Return the result in SQL, for rows of this schema."""
        column, kind = f"`{self.column}`", schema[self.column].dataType.typeName()
        if self.transform == IDENTITY:
            return column
        if self.transform == BUCKET:
            return f"pmod(hash({column}), {self.number})"
        if self.transform == TRUNCATE:
            is_text = kind == "string"
            return f"substring({column}, 1, {self.number})" if is_text else f"{column} - pmod({column}, {self.number})"
        # Not by Spark's functions of time, which go by the zone of the session.
        day = f"date_from_unix_date(CAST(floor(unix_seconds({column}) / 86400) AS INT))"
        hour = f"CAST(pmod(floor(unix_seconds({column}) / 3600), 24) AS STRING)"
        if kind != "timestamp":
            day, hour = f"CAST({column} AS DATE)", f"CAST(hour({column}) AS STRING)"
        return day if self.transform == DAY else f"concat({day}, '-', lpad({hour}, 2, '0'))"

    def problems(self, schema: StructType) -> Iterator[str]:
        """Yield why rows of this schema cannot be partitioned so."""
        types = {field.name: field.dataType for field in schema.fields}
        if self.column not in types:
            yield f"partition_by: unknown column {self.column!r}; available: {', '.join(schema.names)}"
            return
        kind = types[self.column].typeName()
        if self.transform == IDENTITY and kind in _NO_FOLDERS:
            said = types[self.column].simpleString()
            yield f"partition_by: folders cannot be named after {self.column!r}, which is {said}"
        elif kind not in _TAKEN.get(self.transform, (kind,)):
            yield f"partition_by: {self} does not support a column of type {types[self.column].simpleString()}"


@dataclass(frozen=True)
class Partitions:
    """All that a table is partitioned by, in their order."""

    each: tuple[Partition, ...]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Partitions:
        """Read what a declaration says."""
        return cls(tuple(map(Partition.of, texts)))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that have the results."""
        return tuple(partition.name for partition in self.each)

    @property
    def made(self) -> tuple[Partition, ...]:
        """Those that are not columns of the rows."""
        return tuple(partition for partition in self.each if partition.transform != IDENTITY)

    def added(self, rows: DataFrame) -> DataFrame:
        """Return the rows with a column for each result that is none of their own."""
        from pyspark.sql import functions as f

        made = {partition.name: f.expr(partition.expression(rows.schema)) for partition in self.made}
        return rows.withColumns(made) if made else rows

    def schema(self, schema: StructType) -> StructType:
        """Return the columns of the rows that `added` returns."""
        from pyspark.sql.types import DateType, IntegerType, StringType, StructField
        from pyspark.sql.types import StructType as Struct

        types = {DAY: DateType(), HOUR: StringType(), BUCKET: IntegerType()}
        fields = [StructField(each.name, types.get(each.transform, schema[each.column].dataType)) for each in self.made]
        return Struct([*schema.fields, *fields])

    def problems(self, schema: StructType) -> Iterator[str]:
        """Yield why rows of this schema cannot be partitioned so."""
        for partition in dict.fromkeys(self.each):
            yield from partition.problems(schema)
            if self.each.count(partition) > 1:
                yield f"partition_by names {str(partition)!r} twice"
        for partition in self.made:
            if partition.name in schema.names:
                yield (
                    f"partition_by: {partition} creates a column {partition.name!r}, which the rows already "
                    "have: rename it"
                )
