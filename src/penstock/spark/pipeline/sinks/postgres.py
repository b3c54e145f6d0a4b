"""PostgreSQL: each task copies its rows into an unlogged staging table, and one transaction moves them.

Staged rows name the attempt that wrote them. Spark returns the result of one attempt of each task; only the rows of
these attempts are moved. Batches are recorded in `penstock_batches`, in the schema of the target.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, LiteralString
from uuid import uuid4

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.spark.pipeline.files import BatchKey
from penstock.spark.pipeline.rejected_rows import (
    HIDDEN,
    Origin,
    Refusal,
    RefusalRule,
    Refusals,
    SourceEntry,
    time_rules,
    visible,
)
from penstock.spark.pipeline.sink_options import Postgres
from penstock.spark.pipeline.sinks.keyed import DELETED, Upsert, is_refused_for_key
from penstock.spark.pipeline.sinks.staged import Column, Names, Staged, StagedWriter, as_json, bisected, misfits
from penstock.spark.runtime.code_shipping import Shipped
from penstock.spark.runtime.freeze_gc import freeze_gc
from penstock.spark.runtime.versions import required

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import DataType, StructType

_BATCHES = "penstock_batches"
_TASK = "penstock_task"
_TRIED = "penstock_rows"
_COPIED_DDL = "task string, rows bigint, refused string"
_CONNECT_S = 10
_DROP_LOCK_MS = 2_000
_TRIED_AT_ONCE = 1_000
_MOST_SHOWN = 200
_COLUMN_IN_CONTEXT = re.compile(r"COPY .*?, line \d+, column ([^:]+):")
_TYPES = {
    "boolean": "boolean", "tinyint": "smallint", "smallint": "smallint", "int": "integer", "bigint": "bigint",
    "float": "real", "double": "double precision", "string": "text", "binary": "bytea", "date": "date",
    "timestamp": "timestamptz", "timestamp_ntz": "timestamp",
}  # fmt: skip


class PostgresMissing(PenstockError):
    """The PostgreSQL driver is not installed."""


class PostgresRefused(PenstockError):
    """PostgreSQL rejects a value in a row."""


def _driver() -> Any:
    return required("psycopg", PostgresMissing, "the sink postgres", "'penstock[postgres]', also on the executors")


def _is_about_values(error: BaseException) -> bool:
    psycopg = _driver()
    return isinstance(error, (psycopg.DataError, psycopg.IntegrityError, ValueError, OverflowError))


@dataclass(frozen=True)
class PostgresTransaction:
    """An open transaction."""

    connection: psycopg.Connection[Any]

    def run(self, statement: str) -> int:
        """Run a statement; return the number of affected rows."""
        return self.connection.execute(statement.encode()).rowcount

    def number(self, sql: str) -> int | None:
        """Return the number in the first row of a query, or None if there is no row."""
        found = self.connection.execute(sql.encode()).fetchone()
        return None if found is None else int(found[0])

    def commit(self) -> None:
        """Make everything visible."""
        self.connection.commit()


class PostgresWriter(StagedWriter):
    """Appends batches to a table, or replaces rows in it by their key."""

    kind = "postgres"
    why_rows_differ = "PostgreSQL crashed or failed over, which empties unlogged tables. Run the pipeline again"

    def __init__(self, sink: Postgres) -> None:
        super().__init__(sink)
        self._sink = sink

    # --- before anything runs ---

    def faults(self, schema: StructType, upsert: Upsert | None) -> Iterator[str]:
        """Yield problems of the database and its table, for rows with these columns in the table."""
        psycopg, name = _driver(), self._sink.table
        try:
            with closing(_connect(self._sink.dsn)) as connection:
                found = _columns(connection, self.target)
                if found is not None:
                    yield from misfits(name, schema, found, upsert)
                    yield from self._without_index(connection, found)
                elif self._sink.create:
                    yield from _without_type(schema)
                else:
                    yield f"table {name!r} does not exist: create it, or set create = true"
                    return
                yield from self._forbidden(connection)
        except psycopg.Error as error:
            yield f"cannot use PostgreSQL: {_line(error)}"

    def _without_index(self, connection: psycopg.Connection[Any], found: dict[str, Column]) -> Iterator[str]:
        key, name = self._sink.key, self._sink.table
        if not key or not set(key) <= set(found):
            return
        if all(set(names) != set(key) for (names,) in connection.execute(_UNIQUE, [self.target])):
            listed = ", ".join(key)
            yield f"key: table {name!r} has no unique index on ({listed}): CREATE UNIQUE INDEX ON {name} ({listed})"

    def _forbidden(self, connection: psycopg.Connection[Any]) -> Iterator[str]:
        """Yield the rights that the user does not have."""
        schema = self._sink.table.rpartition(".")[0].rpartition(".")[2] or None
        found_schema = _value(connection, "SELECT coalesce(%s::text, current_schema())", schema)
        if not _value(connection, "SELECT to_regnamespace(quote_ident(%s)) IS NOT NULL", found_schema):
            yield f"schema {found_schema!r} does not exist: create it"
            return
        if not _value(connection, "SELECT has_schema_privilege(%s, 'CREATE')", found_schema):
            yield (
                f"the user may not create tables in schema {found_schema!r}, where batches are staged and recorded: "
                "GRANT CREATE"
            )
        for table in (self.target, self._in_target_schema(_BATCHES)):
            may_insert = _value(connection, "SELECT has_table_privilege(to_regclass(%s), 'INSERT')", table)
            if may_insert is False:  # null where there is no such table
                yield f"the user may not write to table {table}: GRANT INSERT"

    # --- a batch ---

    def prepare(self, schema: StructType, upsert: Upsert | None) -> None:  # noqa: ARG002
        """Create the tables that do not exist, in a separate transaction, because other drivers wait for it."""
        batches = self._in_target_schema(_BATCHES)
        with self.transaction() as transaction:
            wanted = [batches, self.target] if self._sink.create else [batches]
            if all(_columns(transaction.connection, table) for table in wanted):
                return
            # If two pipelines start at once, both would find no table, and one would fail.
            transaction.connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [_BATCHES])
            transaction.run(
                f"CREATE TABLE IF NOT EXISTS {batches} (query text, sink text, batch bigint NOT NULL, committed_at "
                "timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (query, sink))"
            )
            if self._sink.create:
                transaction.run(self._creation(schema))
            transaction.commit()

    def _creation(self, schema: StructType) -> str:
        made = [f"{self.quoted(column.name)} {_type(column.dataType)}" for column in schema.fields]
        if self._sink.key:
            made.append(f"PRIMARY KEY ({', '.join(map(self.quoted, self._sink.key))})")
        return f"CREATE TABLE IF NOT EXISTS {self.target} ({', '.join(made)})"

    def last(self, key: BatchKey) -> int:
        """Return the number of the last batch of this sink and query in the table, or -1."""
        query = f"SELECT batch FROM {self._in_target_schema(_BATCHES)} WHERE query = %s AND sink = %s"  # noqa: S608
        with closing(_connect(self._sink.dsn)) as connection:
            found = connection.execute(query.encode(), [key.query, self._sink.name]).fetchone()
        return -1 if found is None else int(found[0])

    def has(self, key: BatchKey) -> bool:
        """Return whether the table has the batch."""
        with closing(_connect(self._sink.dsn)) as connection:
            is_noted = _columns(connection, self._in_target_schema(_BATCHES)) is not None
        return is_noted and self.last(key) >= key.number

    def new_stage(self, key: BatchKey) -> str:
        """Return the name of the staging table for a batch; drop those of earlier attempts."""
        psycopg, prefix = _driver(), self.stage_prefix(key)
        with self.transaction() as transaction:
            left = transaction.connection.execute(
                "SELECT relname FROM pg_class WHERE relkind = 'r' AND starts_with(relname, %s) AND relnamespace = "
                "(SELECT relnamespace FROM pg_class WHERE oid = to_regclass(%s))",
                [f"{prefix}_", self.target],
            ).fetchall()
        for (name,) in left:
            with self.transaction() as transaction:
                # A task of a killed driver may still write to it; then the next batch drops it.
                transaction.run(f"SET LOCAL lock_timeout = {_DROP_LOCK_MS}")
                try:
                    transaction.run(f"DROP TABLE IF EXISTS {self._in_target_schema(name)}")
                    transaction.commit()
                except psycopg.errors.LockNotAvailable:
                    continue
        return self._in_target_schema(f"{prefix}_{uuid4().hex[:8]}")

    def fill(self, rows: DataFrame, stage: str, upsert: Upsert | None) -> Staged:  # noqa: ARG002
        """Let the tasks copy rows; those of the attempts whose results Spark returned count."""
        with self.transaction() as transaction:
            transaction.run(f"CREATE UNLOGGED TABLE {stage} AS {self._empty(rows.columns, with_task=True)}")
            transaction.commit()
        copied = rows.mapInArrow(CopyTask(self._sink.dsn, self._copying(stage, [*rows.columns, _TASK])), _COPIED_DDL)
        tasks, count = [], 0
        for task, number, refused in copied.collect():
            if refused is not None:
                raise PostgresRefused(refused)
            tasks.append(f"'{task}'")
            count += number
        return Staged(stage, count, f"{stage}.{_TASK} IN ({', '.join(tasks) or 'NULL'})")

    def _empty(self, columns: Sequence[str], *, with_task: bool = False) -> str:
        """Return a query without rows whose columns have the types of the target."""
        found = [f"0 AS {DELETED}" if name == DELETED else self.quoted(name) for name in columns]
        found += [f"'' AS {_TASK}"] if with_task else []
        return f"SELECT {', '.join(found)} FROM {self.target} LIMIT 0"  # noqa: S608

    def _copying(self, table: str, columns: Sequence[str]) -> str:
        return f"COPY {table} ({', '.join(map(self.quoted, columns))}) FROM STDIN"

    @contextmanager
    def transaction(self) -> Iterator[PostgresTransaction]:
        """Begin a transaction; without a commit, it is rolled back at the end."""
        with closing(_connect(self._sink.dsn)) as connection:
            yield PostgresTransaction(connection)

    def note(self, transaction: PostgresTransaction, key: BatchKey) -> bool:  # type: ignore[override]
        """Raise the number of the last batch to this one; return False if it is not lower. Other drivers wait."""
        noted = transaction.connection.execute(
            f"INSERT INTO {self._in_target_schema(_BATCHES)} AS t (query, sink, batch) VALUES (%s, %s, %s) "  # noqa: S608
            "ON CONFLICT (query, sink) DO UPDATE SET batch = excluded.batch, committed_at = now() "
            "WHERE t.batch < excluded.batch RETURNING batch".encode(),
            [key.query, self._sink.name, key.number],
        )
        return noted.fetchone() is not None

    def drop(self, stage: str) -> None:
        """Drop the staging table of a batch."""
        with self.transaction() as transaction:
            transaction.run(f"DROP TABLE IF EXISTS {stage}")
            transaction.commit()

    def replacing(self, names: Names, insert: str, condition: str, *, deletes: bool) -> Iterator[str]:
        """Yield the statements that replace and delete rows by key; other columns of the table keep their values."""
        if deletes:
            yield names.deletion(f"{condition} AND {names.stage}.{DELETED} = 1")
        changes = ", ".join(f"{column} = excluded.{column}" for column in names.others)
        action = f"UPDATE SET {changes} WHERE {names.newer('excluded')}" if changes else "NOTHING"
        yield f"{insert} ON CONFLICT ({', '.join(names.key)}) DO {action}"

    def comparable(self, column: str, upsert: Upsert) -> str:
        """Return a column of the order: strings compare by their bytes, as in Spark, whatever the collation."""
        return f'{column}::text COLLATE "C"' if upsert.has_text_order else column

    @property
    def target(self) -> str:
        """The name of the target, quoted."""
        return ".".join(map(self.quoted, self._sink.table.split(".")))

    def _in_target_schema(self, table: str) -> str:
        """Return the name of a table in the schema of the target, quoted."""
        return ".".join(map(self.quoted, [*self._sink.table.split(".")[:-1], table]))

    def quoted(self, column: str) -> str:
        """Return a quoted name."""
        return '"' + column.replace('"', '""') + '"'

    # --- rows that it rejects ---

    def is_refusal(self, error: BaseException) -> bool:
        """Return whether a write may have failed because of a value in a row."""
        return isinstance(error, PostgresRefused) or is_refused_for_key(error) or _is_about_values(error)

    def rules(self, schema: StructType) -> Iterator[RefusalRule]:
        """Yield rules for times that Python cannot represent."""
        yield from time_rules(schema)

    def refused_by_database(self, rows: DataFrame, origin: Origin | None, upsert: Upsert | None) -> Refusals:
        """Yield the rows that the database rejects, by writing them in a transaction that is rolled back."""
        marked = rows if upsert is None else upsert.marked(rows)
        columns = visible(marked).columns
        hidden = [name for name in marked.columns if name not in columns]
        plain = as_json(marked.select(*columns, *hidden))
        found: Any = plain.toLocalIterator()  # partition by partition
        # Closed here, so that Java stops computing rows now and not at the next garbage collection.
        with self.transaction() as transaction, closing(found):
            connection = transaction.connection
            # Deferred constraints are checked at a commit, and there is none.
            transaction.run("SET CONSTRAINTS ALL IMMEDIATE")
            transaction.run(f"CREATE TEMP TABLE {_TRIED} ON COMMIT DROP AS {self._empty(columns)}")

            def attempt(some: Sequence[Row]) -> Exception | None:
                try:
                    with connection.transaction():  # a savepoint: earlier rows stay
                        transaction.run(f"TRUNCATE {_TRIED}")
                        _copy(connection, self._copying(_TRIED, columns), (row[: len(columns)] for row in some))
                        self.move(transaction, _TRIED, columns, upsert)
                except Exception as error:
                    # Several rows with one key are tried one by one.
                    if not _is_about_values(error) and not isinstance(error, _driver().errors.CardinalityViolation):
                        raise
                    return error
                return None

            while some := list(islice(found, _TRIED_AT_ONCE)):
                for row, error in bisected(some, attempt):
                    yield _refusal(row, origin, error, upsert)


@dataclass(frozen=True)
class CopyTask(Shipped):
    """Copies the rows of one task in a transaction; called by Spark with Arrow batches."""

    dsn: str = field(repr=False)
    statement: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the name of this attempt, its number of rows, and why a row is rejected if one is."""
        freeze_gc()
        task, count, refused = uuid4().hex, 0, None
        try:
            with closing(_connect(self.dsn)) as connection:
                count = _copy(
                    connection,
                    self.statement,
                    (
                        (*row, task)
                        for batch in batches
                        for row in zip(*(each.to_pylist() for each in batch.columns), strict=True)
                    ),
                )
                connection.commit()
        except Exception as error:
            if not _is_about_values(error):
                raise
            refused = _line(error)  # if this raised, Spark would repeat the task
        yield pa.RecordBatch.from_pydict({"task": [task], "rows": [count], "refused": pa.array([refused], pa.string())})


def _copy(connection: psycopg.Connection[Any], statement: str, rows: Iterable[Sequence[Any]]) -> int:
    """Copy rows; return their number."""
    count = 0
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        for count, row in enumerate(rows, 1):  # noqa: B007
            copy.write_row([bytes(value) if isinstance(value, bytearray) else value for value in row])
    return count


def _connect(dsn: str) -> psycopg.Connection[Any]:
    made: psycopg.Connection[Any] = _driver().connect(dsn, connect_timeout=_CONNECT_S)
    return made


def _refusal(row: Row, origin: Origin | None, error: Exception, upsert: Upsert | None) -> Refusal:
    entry = None if origin is None else SourceEntry.of(row[origin.stream], row[origin.id])
    ours = {DELETED, upsert.order if upsert is not None and upsert.has_order_of_its_own else DELETED}
    values = {
        name: value
        for name, value in row.asDict().items()
        if name not in ours and (name not in HIDDEN or entry is None)
    }
    why = str(getattr(getattr(error, "diag", None), "message_primary", None) or error)
    return Refusal(entry, _column_of(error, values), " ".join(why.split()), str(values)[:_MOST_SHOWN])


def _column_of(error: Exception, values: dict[str, Any]) -> str | None:
    diag = getattr(error, "diag", None)
    if diag is not None and diag.column_name:
        return str(diag.column_name)
    found = _COLUMN_IN_CONTEXT.search(getattr(diag, "context", None) or "")
    if found:
        return found[1].strip('"')
    # psycopg itself rejects strings with NUL.
    return next((name for name, value in values.items() if isinstance(value, str) and "\0" in value), None)


# --- tables ---

_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod), typname,
       CASE typname WHEN 'bytea' THEN 'bytes' ELSE typcategory::text END,
       attnotnull AND NOT atthasdef AND attidentity = ''
FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_UNIQUE = """
SELECT array_agg(attname::text) FROM pg_index JOIN pg_attribute
  ON attrelid = indrelid AND attnum = ANY ((indkey::int2[])[0:indnkeyatts - 1]) -- without INCLUDE columns
WHERE indrelid = to_regclass(%s) AND indisunique AND indpred IS NULL AND indexprs IS NULL GROUP BY indexrelid
"""


def _value(connection: psycopg.Connection[Any], query: LiteralString, argument: str | None) -> Any:
    """Return the single value of a query."""
    found = connection.execute(query, [argument]).fetchone()
    return None if found is None else found[0]


def _columns(connection: psycopg.Connection[Any], table: str) -> dict[str, Column] | None:
    """Return the columns of a table, whose name is quoted; None if it does not exist."""
    return {name: Column(*rest) for name, *rest in connection.execute(_COLUMNS, [table])} or None


def _type(kind: DataType) -> str | None:
    name = kind.simpleString()
    if name.startswith("decimal"):
        return name.replace("decimal", "numeric")
    if name.startswith(("struct", "map", "array")):
        return "jsonb"
    return _TYPES.get(name)


def _without_type(schema: StructType) -> Iterator[str]:
    for column in schema.fields:
        if _type(column.dataType) is None:
            kind = column.dataType.simpleString()
            yield f"column {column.name!r} is {kind}, which PostgreSQL has no type for: cast it"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
