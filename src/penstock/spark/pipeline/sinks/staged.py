"""Database tables: tasks write a batch to a staging table, and one transaction moves it into the target.

A table in the schema of the target holds the number of the last batch of each sink and query. The transaction that
moves the rows raises that number; a batch with a number that is not greater is already in the target. PostgreSQL and
JDBC differ in how tasks write, and in the statements that replace rows.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from penstock.errors import PenstockError
from penstock.spark.lake.files import FailPoint
from penstock.spark.pipeline.files import BatchKey
from penstock.spark.pipeline.rejected_rows import Origin, RefusalRule, Refusals, broken, unbroken, visible
from penstock.spark.pipeline.sink_options import Jdbc, Postgres
from penstock.spark.pipeline.sinks.keyed import DELETED, Upsert, key_rules, table_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

T = TypeVar("T")
E = TypeVar("E", bound=Exception)
_EVERY = "1 = 1"


class StageDiffers(PenstockError):
    """The staging table does not have as many rows as the batch."""


@dataclass(frozen=True)
class Staged:
    """What the tasks staged: `condition` is true for one copy of each of the batch's `rows` in `table`."""

    table: str
    rows: int
    condition: str = _EVERY

    def check(self, found: int | None, why: str) -> None:
        """Raise StageDiffers unless as many rows were found as the batch has."""
        if found != self.rows:
            raise StageDiffers(f"{self.table} holds {found} rows instead of the {self.rows} of the batch: {why}")


class Transaction(Protocol):
    """An open transaction; without a commit, it is rolled back at the end."""

    def run(self, statement: str) -> int:
        """Run a statement; return the number of affected rows."""

    def number(self, sql: str) -> int | None:
        """Return the number in the first row of a query, or None if there is no row."""

    def commit(self) -> None:
        """Make everything visible."""


class StagedWriter(ABC):
    """Appends batches to a table, or replaces rows in it by their key."""

    is_atomic = True
    kind: ClassVar[str]
    why_rows_differ: ClassVar[str]

    def __init__(self, sink: Postgres | Jdbc) -> None:
        self._declared = sink

    # --- before anything runs ---

    def problems(self, schema: StructType) -> Iterator[str]:
        """Yield problems with writing rows of this schema; write nothing."""
        upsert = Upsert.of(self._declared, schema)
        if upsert is not None:
            yield from upsert.problems(schema)
        yield from self.faults(table_schema(upsert, schema), upsert)

    @abstractmethod
    def faults(self, schema: StructType, upsert: Upsert | None) -> Iterator[str]:
        """Yield problems of the database and its table, for rows with these columns in the table."""

    # --- a batch ---

    @abstractmethod
    def has(self, key: BatchKey) -> bool:
        """Return whether the table has the batch."""

    def write(self, rows: DataFrame, key: BatchKey, mark: FailPoint) -> bool:
        """Write a batch, unless the table has it; return whether it was new."""
        upsert = Upsert.of(self._declared, rows.schema)
        plain = as_json(visible(rows) if upsert is None else upsert.newest(rows))
        self.prepare(table_schema(upsert, rows.schema), upsert)
        if self.last(key) >= key.number:
            return False
        stage = self.new_stage(key)
        staged = self.fill(plain, stage, upsert)
        mark(f"{self.kind} staged")
        with self.transaction() as transaction:
            is_new = self.note(transaction, key)
            if is_new:
                moved = self.move(transaction, stage, plain.columns, upsert, staged.condition)
                self.check_moved(transaction, staged, moved if upsert is None else None)
                mark(f"{self.kind} moved")
                transaction.commit()
        mark(f"{self.kind} committed")
        self.drop(stage)
        return is_new

    @abstractmethod
    def prepare(self, schema: StructType, upsert: Upsert | None) -> None:
        """Create the tables that do not exist."""

    @abstractmethod
    def last(self, key: BatchKey) -> int:
        """Return the number of the last batch of this sink and query in the table, or -1."""

    @abstractmethod
    def new_stage(self, key: BatchKey) -> str:
        """Return the name of the staging table for a batch; drop those of earlier attempts."""

    @abstractmethod
    def fill(self, rows: DataFrame, stage: str, upsert: Upsert | None) -> Staged:
        """Let the tasks write rows."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Transaction]:
        """Begin a transaction."""

    @abstractmethod
    def note(self, transaction: Transaction, key: BatchKey) -> bool:
        """Raise the number of the last batch to this one; return False if it is not lower. Other drivers wait."""

    @abstractmethod
    def drop(self, stage: str) -> None:
        """Drop the staging table of a batch."""

    # --- moving ---

    def move(
        self,
        transaction: Transaction,
        stage: str,
        columns: Sequence[str],
        upsert: Upsert | None,
        condition: str = _EVERY,
    ) -> int:
        """Move the staged rows that meet the condition into the target; return the row count of the last statement."""
        there = self.spelled(transaction, [name for name in columns if name != DELETED])
        into, taken = ", ".join(there.values()), ", ".join(map(self.quoted, there))
        deletes = upsert is not None and upsert.delete_when is not None
        chosen = f"{condition} AND {stage}.{self.quoted(DELETED)} = 0" if deletes else condition
        insert = f"INSERT INTO {self.target} ({into}) SELECT {taken} FROM {stage} WHERE {chosen}"  # noqa: S608
        if upsert is None:
            return transaction.run(insert)
        names, moved = Names(self.target, stage, there, self.quoted, self.comparable, upsert), 0
        for statement in self.replacing(names, insert, condition, deletes=deletes):
            moved = transaction.run(statement)
        return moved

    def check_moved(self, transaction: Transaction, staged: Staged, moved: int | None) -> None:  # noqa: ARG002
        """Raise StageDiffers unless the staging table has the rows of the batch; `moved` is None with a key."""
        # Not the rows that were moved: with a key, or a trigger of the target, there may be fewer.
        staged.check(self.count(transaction, staged), self.why_rows_differ)

    def count(self, transaction: Transaction, staged: Staged) -> int | None:
        """Return the number of rows of the batch in the staging table."""
        return transaction.number(f"SELECT COUNT(*) FROM {staged.table} WHERE {staged.condition}")  # noqa: S608

    @abstractmethod
    def replacing(self, names: Names, insert: str, condition: str, *, deletes: bool) -> Iterator[str]:
        """Yield the statements that replace and delete rows by key; `insert` adds the staged rows."""

    @property
    @abstractmethod
    def target(self) -> str:
        """The name of the target, for statements."""

    @abstractmethod
    def quoted(self, column: str) -> str:
        """Return the name of a column, for statements."""

    def spelled(self, transaction: Transaction, columns: Sequence[str]) -> dict[str, str]:  # noqa: ARG002
        """Return the names of the columns in the target, for statements."""
        return {name: self.quoted(name) for name in columns}

    def comparable(self, column: str, upsert: Upsert) -> str:  # noqa: ARG002
        """Return a column of the order as SQL that compares its values as Spark does."""
        return column

    # --- rows that it rejects ---

    @abstractmethod
    def is_refusal(self, error: BaseException) -> bool:
        """Return whether a write may have failed because of a value in a row."""

    def refusals(self, rows: DataFrame, origin: Origin | None) -> Refusals:
        """Yield the rows that the table rejects, and write nothing."""
        upsert = Upsert.of(self._declared, rows.schema)
        rules: list[RefusalRule] = [*self.rules(rows.schema), *key_rules(self._declared, rows.schema)]
        yield from broken(rows, rules, origin)
        yield from self.refused_by_database(unbroken(rows, rules), origin, upsert)

    def rules(self, schema: StructType) -> Iterator[RefusalRule]:  # noqa: ARG002
        """Yield rules for values that cannot be sent to the database."""
        yield from ()

    @abstractmethod
    def refused_by_database(self, rows: DataFrame, origin: Origin | None, upsert: Upsert | None) -> Refusals:
        """Yield the rows that the database rejects, by writing them in a transaction that is rolled back."""

    def stage_prefix(self, key: BatchKey) -> str:
        """Return the prefix of the staging tables of this sink and query."""
        owner = f"{key.query}.{self._declared.name}"
        return f"penstock_{hashlib.sha256(owner.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Names:
    """Parts of statements that replace rows by key."""

    target: str
    stage: str
    there: Mapping[str, str]
    quoted: Callable[[str], str]
    comparable: Callable[[str, Upsert], str]
    upsert: Upsert

    @property
    def key(self) -> list[str]:
        """The columns of the key in the target."""
        return [self.there[name] for name in self.upsert.key]

    @property
    def others(self) -> list[str]:
        """The other columns of the target."""
        return [column for name, column in self.there.items() if name not in self.upsert.key]

    @property
    def same(self) -> str:
        """SQL for whether a staged row has the key of a row in the target."""
        pairs = (f"{self.stage}.{self.quoted(name)} = {self.target}.{self.there[name]}" for name in self.upsert.key)
        return " AND ".join(pairs)

    def newer(self, staged: str | None = None) -> str:
        """Return SQL for whether a staged row is not older than the one in the target."""
        order = self.upsert.order
        if order is None:
            return _EVERY
        columns = f"{self.target}.{self.there[order]}", f"{staged or self.stage}.{self.quoted(order)}"
        there, here = (self.comparable(column, self.upsert) for column in columns)
        return f"({there} IS NULL OR {here} >= {there})"

    def deletion(self, condition: str) -> str:
        """Return the statement that deletes rows that are not newer than a staged row with their key."""
        found = f"SELECT 1 FROM {self.stage} WHERE {self.same} AND {self.newer()} AND {condition}"  # noqa: S608
        return f"DELETE FROM {self.target} WHERE EXISTS ({found})"  # noqa: S608


# --- whether rows fit ---

# PostgreSQL's categories of types, also used for other databases.
NUMBER, TEXT, TIME, TRUTH, ARRAY = "N", "S", "D", "B", "A"
BYTES, UNKNOWN = "bytes", "unknown"
_TAKEN_BY = {
    "boolean": (TRUTH, TEXT),
    "byte": (NUMBER, TEXT), "short": (NUMBER, TEXT), "integer": (NUMBER, TEXT), "long": (NUMBER, TEXT),
    "float": (NUMBER, TEXT), "double": (NUMBER, TEXT), "decimal": (NUMBER, TEXT),
    "date": (TIME, TEXT), "timestamp": (TIME, TEXT), "timestamp_ntz": (TIME, TEXT),
}  # fmt: skip
_JSON = ("json", "jsonb")
_NESTED = ("struct", "map", "array", "variant")


@dataclass(frozen=True)
class Column:
    """A column of a table: its type with arguments, type name and category, and whether rows must have it."""

    type: str
    name: str
    category: str
    is_required: bool


def misfits(
    table: str,
    schema: StructType,
    found: Mapping[str, Column],
    upsert: Upsert | None,
    fold: Callable[[str], str] = str,
) -> Iterator[str]:
    """Yield how rows do not fit a table; `fold` normalizes names as the database does."""
    there = {fold(name): column for name, column in found.items()}
    for field in schema.fields:
        kind, column = field.dataType.simpleString(), there.get(fold(field.name))
        if column is None and upsert is not None and upsert.has_order_of_its_own and field.name == upsert.order:
            yield (
                f"table {table!r} has no column {field.name!r}, in which a sink with a key stores the order of "
                f"rows: ALTER TABLE {table} ADD {field.name} VARCHAR(41), or set order_by to a column of the "
                "rows"
            )
        elif column is None:
            yield f"table {table!r} has no column {field.name!r}; available: {', '.join(found)}"
        elif not _takes(column, field.dataType.typeName(), kind):
            yield (
                f"table {table!r}: column {field.name!r} is {kind} in the rows and {column.type} in the "
                "table: cast it in a step"
            )
    given = {fold(name) for name in schema.names}
    for name, column in found.items():
        if column.is_required and fold(name) not in given:
            yield f"table {table!r}: column {name!r} must not be null and has no default, but the rows do not have it"


def _takes(column: Column, family: str, kind: str) -> bool:
    if column.category == UNKNOWN:  # the database may accept it
        return True
    if family in _NESTED:
        return column.name in _JSON or column.category == TEXT
    if kind == "binary":
        return column.category == BYTES
    if kind == "string":  # other types are parsed from strings: uuid, inet, json, enums
        return column.category not in (NUMBER, TIME, TRUTH, ARRAY, BYTES)
    return column.category in _TAKEN_BY.get(family, (column.category,))


def as_json(rows: DataFrame) -> DataFrame:
    """Convert structs, maps and arrays to JSON: few databases have types for them."""
    from pyspark.sql import functions as f

    nested = [field.name for field in rows.schema.fields if field.dataType.typeName() in _NESTED]
    texts = {name: f.to_json(name, {"ignoreNullFields": "false"}) for name in nested}
    return rows.withColumns(texts) if texts else rows


# --- which rows are rejected ---


def bisected(items: Sequence[T], attempt: Callable[[Sequence[T]], E | None]) -> Iterator[tuple[T, E]]:
    """Yield the items for which an attempt fails, with the error; `attempt` returns the error for some items."""
    error = attempt(items) if items else None
    if error is None:
        return
    if len(items) == 1:
        yield items[0], error
        return
    half = len(items) // 2
    yield from bisected(items[:half], attempt)
    yield from bisected(items[half:], attempt)
