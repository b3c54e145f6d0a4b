"""Any database with transactions, through Spark's own JDBC writer and a table beside the target.

Tasks write the rows of a batch to a table of its own, in parallel. Then the driver moves them into the target and notes
the number of the batch in `penstock_jdbc_batches`, in one transaction: a batch that is not above the noted one is there
already. A task that Spark runs twice may have written its rows twice: they are counted before they are moved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

from penstock.errors import PenstockError
from penstock.spark.pipeline.batch_key import BatchKey, Mark
from penstock.spark.pipeline.origin import Origin, visible
from penstock.spark.pipeline.sinks import Jdbc
from penstock.spark.pipeline.writing.jdbc_database import JdbcConnection, JdbcDatabase, JdbcFailed
from penstock.spark.pipeline.writing.jdbc_refusals import JdbcJudge
from penstock.spark.pipeline.writing.refusal import Refusals
from penstock.spark.pipeline.writing.table_fit import misfits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_BATCHES = "penstock_jdbc_batches"
_BATCHES_COLUMNS = ("query_id", "sink_name", "batch_number")
_BATCHES_SCHEMA = "query_id string, sink_name string, batch_number bigint"
_BATCHES_TYPES = "query_id VARCHAR(64), sink_name VARCHAR(128)"
_TRIES = 3


class JdbcStageDiffers(PenstockError):
    """Tasks left more or fewer rows than they were given."""


class JdbcWriter:
    """Appends batches to a table, or replaces rows in it by their key."""

    is_atomic = True

    def __init__(self, sink: Jdbc, spark: SparkSession) -> None:
        self._sink, self._spark = sink, spark
        self._database = JdbcDatabase(sink, spark)

    # --- before anything runs ---

    def problems(self, schema: StructType) -> Iterator[str]:
        """Yield what would keep rows of this schema from being written; write nothing."""
        for name in self._sink.key:
            if name not in schema.names:
                yield f"key: there is no column {name!r}; there are {', '.join(schema.names)}"
        try:
            with self._database.connection() as connection:
                has_transactions, found = connection.has_transactions, connection.columns(self._sink.table)
        except JdbcFailed as error:
            yield f"the database cannot be used: {error}"
            return
        if not has_transactions:
            yield "the database has no transactions: a batch that is repeated would be there twice"
        if found is None and not self._sink.create:
            yield f"table {self._sink.table!r} does not exist: create it, or say create = true"
        if found is not None:
            yield from misfits(self._sink.table, schema, found, str.lower)

    # --- a batch ---

    def write(self, rows: DataFrame, key: BatchKey, mark: Mark) -> bool:
        """Write a batch, unless it is there; tell whether it was new."""
        plain = _plain(rows.dropDuplicates(list(self._sink.key)) if self._sink.key else rows)
        self._prepare(plain.schema)
        with self._database.connection() as connection:
            if self._last(connection, key) >= key.number:
                return False
        stage = self._beside(f"penstock_{hashlib.sha256(self._owner(key).encode()).hexdigest()[:12]}")
        self._fill(plain, stage)
        mark("jdbc staged")
        with self._database.connection() as connection:
            is_new = self._note(connection, key)
            if is_new:
                self._move(connection, stage, plain.columns)
                mark("jdbc moved")
                connection.commit()
        mark("jdbc committed")
        with self._database.connection() as connection:
            connection.execute(f"DROP TABLE {stage}")
            connection.commit()
        return is_new

    def _prepare(self, schema: StructType) -> None:
        with self._database.connection() as connection:
            has_batches = connection.columns(self._beside(_BATCHES)) is not None
            has_target = connection.columns(self._sink.table) is not None
        if not has_batches:
            empty = self._spark.createDataFrame([], _BATCHES_SCHEMA)
            self._database.save(empty, self._beside(_BATCHES), "ignore", createTableColumnTypes=_BATCHES_TYPES)
        if not has_target and self._sink.create:
            self._database.save(self._spark.createDataFrame([], schema), self._sink.table, "ignore")

    def _fill(self, rows: DataFrame, stage: str) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        wanted, found = 0, None
        for _ in range(_TRIES):
            seen = Observation()
            self._database.save(rows.observe(seen, f.count(f.lit(1)).alias("rows")), stage, "overwrite")
            wanted = int(seen.get["rows"])
            with self._database.connection() as connection:
                found = connection.number(f"SELECT COUNT(*) FROM {stage}")  # noqa: S608 - our own name
            if found == wanted:
                return
        raise JdbcStageDiffers(
            f"{stage} holds {found} rows and not the {wanted} of the batch: a task was repeated after it had written. "
            "Start the pipeline again, and look why executors are lost"
        )

    def _last(self, connection: JdbcConnection, key: BatchKey) -> int:
        """Return the last batch that is noted, or -1."""
        query, sink, batch = map(self._database.quoted, _BATCHES_COLUMNS)
        found = connection.number(
            f"SELECT MAX({batch}) FROM {self._beside(_BATCHES)} WHERE {query} = ? AND {sink} = ? "  # noqa: S608
            f"GROUP BY {query}, {sink}",
            key.query,
            self._sink.name,
        )
        return -1 if found is None else found

    def _note(self, connection: JdbcConnection, key: BatchKey) -> bool:
        """Note the batch if it is above the last one; the line stays locked until the commit."""
        query, sink, batch = map(self._database.quoted, _BATCHES_COLUMNS)
        table, who = self._beside(_BATCHES), (key.query, self._sink.name)
        raising = f"UPDATE {table} SET {batch} = ? WHERE {query} = ? AND {sink} = ? AND {batch} < ?"  # noqa: S608
        if connection.execute(raising, key.number, *who, key.number):
            return True
        if self._last(connection, key) >= 0:
            return False
        adding = f"INSERT INTO {table} ({query}, {sink}, {batch}) VALUES (?, ?, ?)"  # noqa: S608
        connection.execute(adding, *who, key.number)
        return True

    def _move(self, connection: JdbcConnection, stage: str, columns: list[str], condition: str = "1 = 1") -> None:
        target, quoted = self._sink.table, self._database.quoted
        # A table that somebody else has made may spell its columns in capitals.
        spelled = {name.lower(): name for name in connection.columns(target) or ()}
        there = {name: quoted(spelled.get(name.lower(), name)) for name in columns}
        if self._sink.key:
            same = " AND ".join(f"{stage}.{quoted(name)} = {target}.{there[name]}" for name in self._sink.key)
            replaced = f"SELECT 1 FROM {stage} WHERE {same} AND {condition}"  # noqa: S608 - our own names, and declared
            connection.execute(f"DELETE FROM {target} WHERE EXISTS ({replaced})")  # noqa: S608
        into, taken = ", ".join(there.values()), ", ".join(map(quoted, columns))
        connection.execute(f"INSERT INTO {target} ({into}) SELECT {taken} FROM {stage} WHERE {condition}")  # noqa: S608

    # --- rows that it does not take ---

    def is_refusal(self, error: BaseException) -> bool:
        """Tell whether a write may have failed for a value in a row."""
        return isinstance(error, JdbcFailed) and error.is_about_values

    def refusals(self, rows: DataFrame, origin: Origin | None) -> Refusals:
        """Yield the rows that the table does not take, and write nothing."""
        plain, stage = _plain(visible(rows)), self._beside(f"penstock_{uuid4().hex[:12]}")
        columns = plain.columns

        def move(connection: JdbcConnection, condition: str) -> None:
            self._move(connection, stage, columns, condition)

        yield from JdbcJudge(self._database, stage, move).refusals(rows, plain, origin)

    def _owner(self, key: BatchKey) -> str:
        return f"{key.query}.{self._sink.name}"

    def _beside(self, table: str) -> str:
        """Return the name of a table in the schema of the target."""
        schema, dot, _ = self._sink.table.rpartition(".")
        return f"{schema}{dot}{table}"


def _plain(rows: DataFrame) -> DataFrame:
    """Turn structs, maps and arrays into JSON: few databases have types for them."""
    from pyspark.sql import functions as f

    nested = [
        field.name for field in rows.schema.fields if field.dataType.typeName() in ("struct", "map", "array", "variant")
    ]
    return rows.withColumns({name: f.to_json(name) for name in nested}) if nested else rows
