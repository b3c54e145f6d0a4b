"""Rows that a sink rejects for a value in them: the entry that they came from, rules that find them, dead letters.

Rows are examined only after a write has failed, so good rows cost nothing. By then, the batch is staged, so it is the
same when it is repeated. All rows of an entry are left out together, also when the batch is repeated.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from penstock.errors import PenstockError
from penstock.policy import Reason
from penstock.spark.pipeline.dead_letters import DeadLetterConfig, DeadLetterWriter, Failure
from penstock.spark.pipeline.files import BatchKey

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

HIDDEN = ("_stream", "_id")  # these identify the origin of rows, and no sink writes them
_PLAIN = ("stream", "id")
_ENTRY_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
_MOST_SHOWN = 200
_RULE, _SHOWN, _STREAM, _ID = "_penstock_rule", "_penstock_shown", "_penstock_stream", "_penstock_id"
logger = logging.getLogger("penstock.spark")
_HINT = (
    "It cannot be dead-lettered, because its source entry is unknown: let the steps keep the columns stream and "
    "id, or `stream AS _stream, id AS _id`, which sinks do not write; or filter such rows out"
)


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
        """Return the value of `Origin.key` for its rows."""
        return f"{self.stream} {self.id}"


def origin_of(schema: StructType) -> Origin | None:
    """Return the columns that name the source entry; None if there are none."""
    texts = {field.name for field in schema.fields if field.dataType.typeName() == "string"}
    found = next((pair for pair in (HIDDEN, _PLAIN) if texts.issuperset(pair)), None)
    return None if found is None else Origin(*found)


def is_hidden(schema: StructType) -> bool:
    """Return whether the columns of the origin are ones that no sink writes."""
    return origin_of(schema) == Origin(*HIDDEN)


def visible(rows: DataFrame) -> DataFrame:
    """Return the rows without the columns that no sink writes."""
    return rows.drop(*HIDDEN) if is_hidden(rows.schema) else rows


def visible_schema(schema: StructType) -> StructType:
    """Return the columns that sinks write."""
    from pyspark.sql.types import StructType as Struct

    if not is_hidden(schema):
        return schema
    return Struct([field for field in schema.fields if field.name not in HIDDEN])


class RowRefused(PenstockError):
    """A sink rejects a row."""


@dataclass(frozen=True)
class Refusal:
    """A row that a sink rejects: its entry and the column, if known, the reason, and the row as text."""

    entry: SourceEntry | None
    column: str | None
    why: str
    shown: str

    def as_error(self, sink: str) -> RowRefused:
        """Return the error for it."""
        column = "" if self.column is None else f"column {self.column!r} "
        return RowRefused(f"sink {sink!r} rejected the row {self.shown!r:.300}: {column}{self.why}")


Refusals: TypeAlias = Generator[Refusal, None, None]  # close it if you do not read all of them


class RejectsRows(Protocol):
    """A writer that may reject single rows."""

    def is_refusal(self, error: BaseException) -> bool:  # noqa: ARG002
        """Return whether a write may have failed because of a value in a row; never, if the sink accepts all."""
        return False

    def refusals(self, rows: DataFrame, origin: Origin | None) -> Refusals:  # noqa: ARG002
        """Yield the rows that the sink rejects, and write nothing."""
        yield from ()


@dataclass(frozen=True)
class RefusalRule:
    """An SQL condition that is true for a value that cannot be written, and the reason to report."""

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
    found = rows.select(*row_summary(rows, origin), first.alias(_RULE)).where(f"{_RULE} IS NOT NULL")
    for stream, entry_id, shown, number in found.collect():
        yield Refusal(SourceEntry.of(stream, entry_id), rules[number].column, rules[number].why, shown)


def unbroken(rows: DataFrame, rules: Sequence[RefusalRule]) -> DataFrame:
    """Return the rows for which no rule holds."""
    for rule in rules:
        rows = rows.where(f"NOT coalesce({rule.condition}, false)")
    return rows


def row_summary(rows: DataFrame, origin: Origin | None) -> list[Column]:
    """Return three columns that describe a row: its stream, its id, and the row as text."""
    from pyspark.sql import functions as f

    nothing = f.lit(None).cast("string")
    stream, entry_id = (nothing, nothing) if origin is None else (f.col(origin.stream), f.col(origin.id))
    names = [f"`{name}`" for name in visible(rows).columns]
    shown = f.expr(f"substring(cast(struct({', '.join(names)}) as string), 1, {_MOST_SHOWN})")
    return [stream.alias(_STREAM), entry_id.alias(_ID), shown.alias(_SHOWN)]


def time_rules(schema: StructType) -> Iterator[RefusalRule]:
    """Yield rules for times that Python cannot represent."""
    for field in schema.fields:
        name, kind = f"`{field.name}`", field.dataType.typeName()
        why = "is outside the years 1 to 9999"
        if kind == "date":
            yield RefusalRule(field.name, f"{name} < date'0001-01-01' OR {name} > date'9999-12-31'", why)
        elif kind in ("timestamp", "timestamp_ntz"):  # a time zone may shift it by hours
            yield RefusalRule(field.name, f"{name} < {kind}'0001-01-02' OR {name} > {kind}'9999-12-30'", why)


def is_of_spark(error: BaseException) -> bool:
    """Return whether Spark raised the error."""
    return type(error).__module__.startswith(("py4j.", "pyspark."))


class RejectedRows:
    """Removes and dead-letters the rows that the sinks of a pipeline reject."""

    def __init__(self, dead_letters: DeadLetterConfig) -> None:
        self._dead_letters = dead_letters

    def left(self, rows: DataFrame, key: BatchKey, sink: str) -> DataFrame:
        """Return a repeated batch without the rows that the sink rejected before."""
        origin = origin_of(rows.schema)
        if origin is None:
            return rows
        letters = self._letters(key, sink)
        streams = [row[0] for row in rows.select(origin.stream).distinct().collect() if row[0]]
        return _without(rows, (SourceEntry(stream, each) for stream in streams for each in letters.given_up(stream)))

    def without_refused(self, rows: DataFrame, key: BatchKey, sink: str, writer: RejectsRows) -> DataFrame | None:
        """Dead-letter the rows that the sink rejects and return the others; None if it rejects none.

        Raises: RowRefused for a rejected row whose entry is unknown.
        """
        refused: dict[SourceEntry, Refusal] = {}
        with closing(writer.refusals(rows, origin_of(rows.schema))) as found:
            for refusal in found:
                if refusal.entry is None:
                    raise RowRefused(f"{refusal.as_error(sink)}. {_HINT}")
                refused.setdefault(refusal.entry, refusal)
        letters = self._letters(key, sink)
        for entry, refusal in refused.items():
            letters.dead_letter(entry.stream, entry.id, None, Failure(Reason.INVALID, refusal.as_error(sink)))
        if refused:
            logger.warning(
                "sink %s, batch %d: dead-lettered %d entries whose rows it rejected",
                sink, key.number, len(refused),
            )  # fmt: skip
        return _without(rows, refused) if refused else None

    def _letters(self, key: BatchKey, sink: str) -> DeadLetterWriter:
        return self._dead_letters.writer(f"{key.query}:{key.number}:sink {sink}")


def _without(rows: DataFrame, entries: Iterable[SourceEntry]) -> DataFrame:
    from pyspark.sql import functions as f

    origin, keys = origin_of(rows.schema), [str(entry) for entry in entries]
    if origin is None or not keys:
        return rows
    # A filter keeps partitions and their order, on which the sink redis_streams relies.
    return rows.where(~f.coalesce(f.expr(origin.key).isin(keys), f.lit(False)))
