"""PostgreSQL: rows and the number of the batch in one transaction.

The table `penstock_batches`, beside the target, holds the last batch of each sink of each query. A batch that is not
above it is there already. Rows come through the driver, partition by partition, and go in with one COPY.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.spark.pipeline.batch_key import BatchKey, Mark
from penstock.spark.pipeline.origin import Origin, visible_schema
from penstock.spark.pipeline.sinks import Postgres
from penstock.spark.pipeline.writing.local_rows import local_rows
from penstock.spark.pipeline.writing.postgres_fit import columns, forbidden, without_index
from penstock.spark.pipeline.writing.postgres_refusals import refusals, refused_values
from penstock.spark.pipeline.writing.refusal import Refusals
from penstock.spark.pipeline.writing.table_fit import misfits

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

_BATCHES = "penstock_batches"
_CONNECT_S = 10
_TYPES = {
    "boolean": "boolean", "tinyint": "smallint", "smallint": "smallint", "int": "integer", "bigint": "bigint",
    "float": "real", "double": "double precision", "string": "text", "binary": "bytea", "date": "date",
    "timestamp": "timestamptz", "timestamp_ntz": "timestamp",
}  # fmt: skip


class PostgresMissing(PenstockError):
    """The driver of PostgreSQL is not installed."""


def _driver() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise PostgresMissing(
            f"the sink postgres needs psycopg, which cannot be imported ({error}): pip install 'penstock[postgres]'"
        ) from error
    return psycopg


class PostgresWriter:
    """Appends batches to a table, or replaces rows in it by their key."""

    is_atomic = True

    def __init__(self, sink: Postgres) -> None:
        self._sink = sink

    # --- before anything runs ---

    def problems(self, schema: StructType) -> Iterator[str]:
        """Yield what would keep rows of this schema from being written; write nothing."""
        psycopg = _driver()
        for name in self._sink.key:
            if name not in schema.names:
                yield f"key: there is no column {name!r}; there are {', '.join(schema.names)}"
        try:
            with self._connection() as connection:
                yield from self._faults(connection, schema)
        except psycopg.Error as error:
            yield f"PostgreSQL cannot be used: {_line(error)}"

    def _faults(self, connection: psycopg.Connection[Any], schema: StructType) -> Iterator[str]:
        table, name = self._quoted().as_string(connection), self._sink.table
        found = columns(connection, table)
        if found is not None:
            yield from misfits(name, schema, found)
            key = self._sink.key
            if key and set(key) <= set(found) and without_index(connection, table, key):
                listed = ", ".join(key)
                yield f"key: table {name!r} has no unique index on ({listed}): CREATE UNIQUE INDEX ON {name} ({listed})"
        elif self._sink.create:
            yield from _without_type(schema)
        else:
            yield f"table {name!r} does not exist: create it, or say create = true"
            return
        batches = self._quoted(_BATCHES).as_string(connection)
        yield from forbidden(connection, table, batches, name.rpartition(".")[0].rpartition(".")[2] or None)

    def _connection(self) -> psycopg.Connection[Any]:
        made: psycopg.Connection[Any] = _driver().connect(self._sink.dsn, connect_timeout=_CONNECT_S)
        return made

    # --- a batch ---

    def write(self, rows: DataFrame, key: BatchKey, mark: Mark) -> bool:
        """Write a batch, unless it is there; tell whether it was new."""
        self._prepare(rows.schema)
        with self._connection() as connection:  # commits at its end, or rolls back
            if not self._is_new(connection, key):
                return False
            with local_rows(rows) as found:
                self._copy(connection, rows.schema, found)
            mark("postgres copied")
        mark("postgres committed")
        return True

    def _prepare(self, schema: StructType) -> None:
        """Make the tables that are not there, in a transaction of their own: others would wait for its end."""
        from psycopg import sql

        batches, target = self._quoted(_BATCHES), self._quoted()
        with self._connection() as connection:
            wanted = [batches, target] if self._sink.create else [batches]
            if all(columns(connection, table.as_string(connection)) for table in wanted):
                return
            # Two pipelines that begin at once would both find no table, and one of them would fail.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [_BATCHES])
            connection.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (query text, sink text, batch bigint NOT NULL, committed_at "
                    "timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (query, sink))"
                ).format(batches)
            )
            if self._sink.create:
                connection.execute(self._creation(schema))

    def _is_new(self, connection: psycopg.Connection[Any], key: BatchKey) -> bool:
        """Lock the line of this sink, and note the batch in it if it is above the last one."""
        from psycopg import sql

        table = self._quoted(_BATCHES)
        who = [key.query, self._sink.name]
        noted = connection.execute(
            sql.SQL(
                "INSERT INTO {} AS t (query, sink, batch) VALUES (%s, %s, %s) ON CONFLICT (query, sink) DO UPDATE "
                "SET batch = excluded.batch, committed_at = now() WHERE t.batch < excluded.batch RETURNING batch"
            ).format(table),
            [*who, key.number],
        )
        return noted.fetchone() is not None

    def _copy(self, connection: psycopg.Connection[Any], schema: StructType, rows: Iterable[Sequence[Any]]) -> None:
        from psycopg import sql

        target = self._quoted()
        names = sql.SQL(", ").join(map(sql.Identifier, schema.names))
        into: sql.Composable = target
        if self._sink.key:
            into = sql.Identifier("penstock_rows")
            made = "CREATE TEMP TABLE IF NOT EXISTS {0} ON COMMIT DROP AS SELECT {1} FROM {2} LIMIT 0; TRUNCATE {0}"
            connection.execute(sql.SQL(made).format(into, names, target))
        types = [field.dataType for field in schema.fields]
        copying = sql.SQL("COPY {} ({}) FROM STDIN").format(into, names)
        with connection.cursor() as cursor, cursor.copy(copying) as copy:
            for row in rows:
                # A hidden origin may be behind these columns.
                copy.write_row([_value(value, kind) for value, kind in zip(row, types, strict=False)])
        if self._sink.key:
            connection.execute(self._merge(schema.names))

    # --- rows that it does not take ---

    def is_refusal(self, error: BaseException) -> bool:
        """Tell whether a write may have failed for a value in a row."""
        return refused_values(error)

    def refusals(self, rows: DataFrame, origin: Origin | None) -> Refusals:
        """Yield the rows that the table does not take, and write nothing."""
        schema = visible_schema(rows.schema)
        hidden = [name for name in rows.columns if name not in schema.names]
        with self._connection() as connection:
            yield from refusals(
                rows.select(*schema.names, *hidden),
                origin,
                connection,
                lambda some: self._copy(connection, schema, some),
            )
            connection.rollback()

    def _merge(self, named: list[str]) -> sql.Composed:
        from psycopg import sql

        key = sql.SQL(", ").join(map(sql.Identifier, self._sink.key))
        names = sql.SQL(", ").join(map(sql.Identifier, named))
        rest = [name for name in named if name not in self._sink.key]
        action: sql.Composable = sql.SQL("NOTHING")
        if rest:
            one = sql.SQL("{0} = excluded.{0}")
            action = sql.SQL("UPDATE SET ") + sql.SQL(", ").join([one.format(sql.Identifier(name)) for name in rest])
        return sql.SQL(
            "INSERT INTO {target} ({names}) SELECT DISTINCT ON ({key}) {names} FROM penstock_rows "
            "ON CONFLICT ({key}) DO {action}"
        ).format(target=self._quoted(), names=names, key=key, action=action)

    def _creation(self, schema: StructType) -> sql.Composed:
        from psycopg import sql

        made = [sql.Identifier(field.name) + sql.SQL(f" {_type(field.dataType)}") for field in schema.fields]
        if self._sink.key:
            made.append(sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, self._sink.key))))
        return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(self._quoted(), sql.SQL(", ").join(made))

    def _quoted(self, table: str | None = None) -> sql.Identifier:
        """Return the name of the target, or of a table beside it."""
        from psycopg import sql

        parts = self._sink.table.split(".")
        return sql.Identifier(*(parts if table is None else [*parts[:-1], table]))


def _type(kind: DataType) -> str | None:
    name = kind.simpleString()
    if name.startswith("decimal"):
        return name.replace("decimal", "numeric")
    if name.startswith(("struct", "map", "array")):
        return "jsonb"
    return _TYPES.get(name)


def _without_type(schema: StructType) -> Iterator[str]:
    for field in schema.fields:
        if _type(field.dataType) is None:
            yield f"column {field.name!r} is {field.dataType.simpleString()}, for which PostgreSQL has no type: cast it"


def _value(value: Any, kind: DataType) -> Any:
    if value is not None and kind.simpleString().startswith(("struct", "map", "array")):
        return json.dumps(_plain(value), default=str, allow_nan=False)
    if isinstance(value, bytearray):
        return bytes(value)
    return value


def _plain(value: Any) -> Any:
    """Return a value as JSON can say it, and as Spark's to_json does: bytes in base64, and no number by its name."""
    if hasattr(value, "asDict"):
        value = value.asDict()
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
