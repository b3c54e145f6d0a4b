"""Rows that a sink cannot take because of a value in them, and rules in SQL by which some of them are found."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from penstock.errors import PenstockError
from penstock.spark.pipeline.origin import Origin, SourceEntry, visible

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_MOST_SHOWN = 200
_RULE, _SHOWN, _STREAM, _ID = "_penstock_rule", "_penstock_shown", "_penstock_stream", "_penstock_id"


class RowRefused(PenstockError):
    """A sink does not take a row."""


@dataclass(frozen=True)
class Refusal:
    """A row that a sink does not take: where it came from if that is known, the column, why, and what it looks like."""

    entry: SourceEntry | None
    column: str | None
    why: str
    shown: str

    def told(self, sink: str) -> RowRefused:
        """Return it as an error."""
        column = "" if self.column is None else f"column {self.column!r} "
        return RowRefused(f"sink {sink!r} does not take the row {self.shown!r:.300}: {column}{self.why}")


Refusals: TypeAlias = Generator[Refusal, None, None]  # whoever reads only a part of them closes it


class Choosy(Protocol):
    """A writer that may refuse single rows."""

    def is_refusal(self, error: BaseException) -> bool:
        """Tell whether a write may have failed for a value in a row."""

    def refusals(self, rows: DataFrame, origin: Origin | None) -> Refusals:
        """Yield the rows that the sink does not take, and write nothing."""


@dataclass(frozen=True)
class RefusalRule:
    """A condition in SQL, true for a value that cannot be written, and how that is told."""

    column: str
    condition: str
    why: str


def broken(rows: DataFrame, rules: Sequence[RefusalRule], origin: Origin | None) -> Iterator[Refusal]:
    """Yield the rows for which a rule holds, with the first one that does."""
    from pyspark.sql import functions as f

    if not rules:
        return
    first: Column = f.lit(None).cast("int")
    for number, rule in reversed(list(enumerate(rules))):
        first = f.when(f.coalesce(f.expr(rule.condition), f.lit(False)), f.lit(number)).otherwise(first)
    found = rows.select(*told_of(rows, origin), first.alias(_RULE)).where(f"{_RULE} IS NOT NULL")
    for stream, entry_id, shown, number in found.collect():
        yield Refusal(SourceEntry.of(stream, entry_id), rules[number].column, rules[number].why, shown)


def unbroken(rows: DataFrame, rules: Sequence[RefusalRule]) -> DataFrame:
    """Return the rows for which no rule holds."""
    for rule in rules:
        rows = rows.where(f"NOT coalesce({rule.condition}, false)")
    return rows


def told_of(rows: DataFrame, origin: Origin | None) -> list[Column]:
    """Return three columns that tell of a row: its stream, its id, and what it looks like."""
    from pyspark.sql import functions as f

    nothing = f.lit(None).cast("string")
    stream, entry_id = (nothing, nothing) if origin is None else (f.col(origin.stream), f.col(origin.id))
    names = [f"`{name}`" for name in visible(rows).columns]
    shown = f.expr(f"substring(cast(struct({', '.join(names)}) as string), 1, {_MOST_SHOWN})")
    return [stream.alias(_STREAM), entry_id.alias(_ID), shown.alias(_SHOWN)]


def time_rules(schema: StructType) -> Iterator[RefusalRule]:
    """Yield rules for times that Python has no values for."""
    for field in schema.fields:
        name, kind = f"`{field.name}`", field.dataType.typeName()
        why = "is outside the years 1 to 9999"
        if kind == "date":
            yield RefusalRule(field.name, f"{name} < date'0001-01-01' OR {name} > date'9999-12-31'", why)
        elif kind in ("timestamp", "timestamp_ntz"):  # a zone may move it by hours
            yield RefusalRule(field.name, f"{name} < {kind}'0001-01-02' OR {name} > {kind}'9999-12-30'", why)


def is_of_spark(error: BaseException) -> bool:
    """Return whether Spark has failed, and not the driver around it."""
    return type(error).__module__.startswith(("py4j.", "pyspark."))
