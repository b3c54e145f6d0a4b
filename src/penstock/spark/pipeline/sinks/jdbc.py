"""Any database with transactions, through Spark's JDBC writer and a staging table.

Tasks write the rows of a batch to the staging table in parallel. A task that Spark runs twice may write its rows
twice, even after the others are done. So rows are counted after writing, and again in the one transaction that moves
them and records the batch in `penstock_jdbc_batches`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from penstock.spark.pipeline.files import BatchKey
from penstock.spark.pipeline.rejected_rows import Origin, Refusal, Refusals, SourceEntry, row_summary, visible
from penstock.spark.pipeline.sink_options import Jdbc
from penstock.spark.pipeline.sinks.jdbc_connection import JdbcConnection, JdbcDatabase, JdbcFailed
from penstock.spark.pipeline.sinks.keyed import ORDER_LENGTH, Upsert, is_refused_for_key
from penstock.spark.pipeline.sinks.staged import Names, Staged, StagedWriter, as_json, bisected, misfits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_BATCHES = "penstock_jdbc_batches"
_BATCHES_COLUMNS = ("query_id", "sink_name", "batch_number")
_BATCHES_SCHEMA = "query_id string, sink_name string, batch_number bigint"
_BATCHES_TYPES = "query_id VARCHAR(64), sink_name VARCHAR(128)"
_COLUMN_TYPES = "createTableColumnTypes"
_ROW = "penstock_row"
_TRIES = 3


class JdbcWriter(StagedWriter):
    """Appends batches to a table, or replaces rows in it by their key."""

    kind = "jdbc"
    why_rows_differ = (
        "a task was repeated after it had written. Run the pipeline again, and find out why executors are lost"
    )

    def __init__(self, sink: Jdbc, spark: SparkSession) -> None:
        super().__init__(sink)
        self._sink, self._spark = sink, spark
        self._database = JdbcDatabase(sink, spark)

    # --- before anything runs ---

    def faults(self, schema: StructType, upsert: Upsert | None) -> Iterator[str]:
        """Yield problems of the database and its table, for rows with these columns in the table."""
        try:
            with self.transaction() as connection:
                has_transactions, found = connection.has_transactions, connection.columns(self.target)
        except JdbcFailed as error:
            yield f"cannot use the database: {error}"
            return
        if not has_transactions:
            yield "the database has no transactions, so a repeated batch would be written twice"
        if found is None and not self._sink.create:
            yield f"table {self.target!r} does not exist: create it, or set create = true"
        if found is not None:
            yield from misfits(self.target, schema, found, upsert, str.lower)

    # --- a batch ---

    def prepare(self, schema: StructType, upsert: Upsert | None) -> None:
        """Create the tables that do not exist."""
        with self.transaction() as connection:
            has_batches = connection.columns(self._in_target_schema(_BATCHES)) is not None
            has_target = connection.columns(self.target) is not None
        if not has_batches:
            empty = self._spark.createDataFrame([], _BATCHES_SCHEMA)
            self._database.save(empty, self._in_target_schema(_BATCHES), "ignore", **{_COLUMN_TYPES: _BATCHES_TYPES})
        if not has_target and self._sink.create:
            self._save(as_json(self._spark.createDataFrame([], schema)), self.target, "ignore", upsert)

    def _save(self, rows: DataFrame, table: str, mode: str, upsert: Upsert | None) -> None:
        # In some databases, Spark's default type for strings cannot be compared.
        types = [self._sink.options.get(_COLUMN_TYPES)]
        if upsert is not None and upsert.has_order_of_its_own:
            types.append(f"{upsert.order} VARCHAR({ORDER_LENGTH})")
        given = ", ".join(filter(None, types))
        self._database.save(rows, table, mode, **({_COLUMN_TYPES: given} if given else {}))

    def last(self, key: BatchKey) -> int:
        """Return the number of the last batch of this sink and query in the table, or -1."""
        with self.transaction() as connection:
            return self._last(connection, key)

    def _last(self, connection: JdbcConnection, key: BatchKey) -> int:
        query, sink, batch = map(self.quoted, _BATCHES_COLUMNS)
        found = connection.number(
            f"SELECT MAX({batch}) FROM {self._in_target_schema(_BATCHES)} WHERE {query} = ? AND {sink} = ? "  # noqa: S608
            f"GROUP BY {query}, {sink}",
            key.query,
            self._sink.name,
        )
        return -1 if found is None else found

    def has(self, key: BatchKey) -> bool:
        """Return whether the table has the batch."""
        with self.transaction() as connection:
            is_noted = connection.columns(self._in_target_schema(_BATCHES)) is not None
            return is_noted and self._last(connection, key) >= key.number

    def new_stage(self, key: BatchKey) -> str:
        """Return the name of the staging table, which is the same for all batches: the next one overwrites it."""
        return self._in_target_schema(self.stage_prefix(key))

    def fill(self, rows: DataFrame, stage: str, upsert: Upsert | None) -> Staged:
        """Let Spark write rows, and count them."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        staged, found = Staged(stage, -1), None
        for _ in range(_TRIES):
            seen = Observation()
            self._save(rows.observe(seen, f.count(f.lit(1)).alias("rows")), stage, "overwrite", upsert)
            staged = Staged(stage, int(seen.get["rows"]))
            with self.transaction() as connection:
                found = self.count(connection, staged)
            if found == staged.rows:
                break
        staged.check(found, self.why_rows_differ)
        return staged

    def check_moved(self, transaction: JdbcConnection, staged: Staged, moved: int | None) -> None:  # type: ignore[override]
        """Raise StageDiffers unless as many rows were moved as the batch has."""
        if moved is None:
            super().check_moved(transaction, staged, moved)
        else:
            staged.check(moved, self.why_rows_differ)

    @contextmanager
    def transaction(self) -> Iterator[JdbcConnection]:
        """Begin a transaction; without a commit, it is rolled back at the end."""
        with self._database.connection() as connection:
            yield connection

    def note(self, transaction: JdbcConnection, key: BatchKey) -> bool:  # type: ignore[override]
        """Raise the number of the last batch to this one; return False if it is not lower. Other drivers wait."""
        query, sink, batch = map(self.quoted, _BATCHES_COLUMNS)
        table, who = self._in_target_schema(_BATCHES), (key.query, self._sink.name)
        raising = f"UPDATE {table} SET {batch} = ? WHERE {query} = ? AND {sink} = ? AND {batch} < ?"  # noqa: S608
        if transaction.execute(raising, key.number, *who, key.number):
            return True
        if self._last(transaction, key) >= 0:
            return False
        adding = f"INSERT INTO {table} ({query}, {sink}, {batch}) VALUES (?, ?, ?)"  # noqa: S608
        transaction.execute(adding, *who, key.number)
        return True

    def drop(self, stage: str) -> None:
        """Drop the staging table, if it exists."""
        with self.transaction() as connection:
            if connection.columns(stage) is not None:
                connection.execute(f"DROP TABLE {stage}")
                connection.commit()

    def replacing(self, names: Names, insert: str, condition: str, *, deletes: bool) -> Iterator[str]:  # noqa: ARG002
        """Yield the statements that replace and delete rows by key: not every database has MERGE."""
        yield names.deletion(condition)
        if names.upsert.order is None:
            yield insert
        else:  # a row that is left with the key is newer
            there = f"SELECT 1 FROM {names.target} WHERE {names.same}"  # noqa: S608
            yield f"{insert} AND NOT EXISTS ({there})"

    def spelled(self, transaction: JdbcConnection, columns: Sequence[str]) -> dict[str, str]:  # type: ignore[override]
        """Return the names of the columns in the target, which may be in upper case."""
        found = {name.lower(): name for name in transaction.columns(self.target) or ()}
        return {name: self.quoted(found.get(name.lower(), name)) for name in columns}

    @property
    def target(self) -> str:
        """The name of the target, as declared."""
        return self._sink.table

    def _in_target_schema(self, table: str) -> str:
        """Return the name of a table in the schema of the target."""
        schema, dot, _ = self._sink.table.rpartition(".")
        return f"{schema}{dot}{table}"

    def quoted(self, column: str) -> str:
        """Return a quoted column name."""
        return self._database.quoted(column)

    # --- rows that it rejects ---

    def is_refusal(self, error: BaseException) -> bool:
        """Return whether a write may have failed because of a value in a row."""
        return is_refused_for_key(error) or (isinstance(error, JdbcFailed) and error.is_about_values)

    def refused_by_database(self, rows: DataFrame, origin: Origin | None, upsert: Upsert | None) -> Refusals:
        """Yield the rows that the database rejects.

        Rows are numbered. Bisection first finds those that cannot be staged, with a Spark job for each half, and then
        those that cannot be moved, with a statement for each half. Nothing is committed to the target.
        """
        from pyspark.sql import functions as f

        stage, number = (
            self._in_target_schema(f"penstock_{uuid4().hex[:12]}"),
            f.monotonically_increasing_id().alias(_ROW),
        )
        plain = as_json(visible(rows if upsert is None else upsert.marked(rows)))
        numbered = plain.select("*", number)
        numbers = sorted(row[0] for row in numbered.select(_ROW).collect())

        def unstaged(some: Sequence[int]) -> JdbcFailed | None:
            try:
                self._save(numbered.where(numbered[_ROW].between(some[0], some[-1])), stage, "overwrite", upsert)
            except JdbcFailed as error:
                if not error.is_about_values:
                    raise
                return error
            return None

        def unmoved(some: Sequence[int]) -> JdbcFailed | None:
            condition = f"{self.quoted(_ROW)} BETWEEN {some[0]} AND {some[-1]}"
            return connection.attempted(lambda: self.move(connection, stage, plain.columns, upsert, condition))

        why = dict(bisected(numbers, unstaged))
        try:
            self._save(numbered.where(~numbered[_ROW].isin(list(why))) if why else numbered, stage, "overwrite", upsert)
            with self.transaction() as connection:
                why |= dict(bisected([each for each in numbers if each not in why], unmoved))
        finally:
            self.drop(stage)
        described = rows.select(*row_summary(rows, origin), number)
        for stream, entry_id, shown, found in described.where(described[_ROW].isin(list(why))).collect() if why else ():
            yield Refusal(SourceEntry.of(stream, entry_id), None, str(why[found]), shown)
