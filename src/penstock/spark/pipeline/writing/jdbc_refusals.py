"""Which rows a database behind JDBC refuses: it is asked itself, by halves, and nothing of that is committed.

Rows are numbered. First those are found that cannot even be written to a table beside the target, with a job of Spark
for each half; then those that cannot be moved from there, with a statement for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.spark.pipeline.origin import Entry, Origin
from penstock.spark.pipeline.writing.bisection import bisected
from penstock.spark.pipeline.writing.jdbc_database import JdbcConnection, JdbcDatabase, JdbcFailed
from penstock.spark.pipeline.writing.refusal import Refusal, told_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROW = "penstock_row"
Move = Callable[[JdbcConnection, str], None]  # given a condition, moves the staged rows for which it is true


class JdbcJudge:
    """Asks a database about the rows of a staged batch."""

    def __init__(self, database: JdbcDatabase, stage: str, move: Move) -> None:
        self._database, self._stage, self._move = database, stage, move

    def refusals(self, rows: DataFrame, plain: DataFrame, origin: Origin | None) -> Iterator[Refusal]:
        """Yield what is refused; `plain` are the rows as they are written."""
        from pyspark.sql import functions as f

        numbered = plain.withColumn(ROW, f.monotonically_increasing_id())
        numbers = sorted(row[0] for row in numbered.select(ROW).collect())
        why = dict(bisected(numbers, lambda some: self._unstaged(numbered, some)))
        left = [number for number in numbers if number not in why]
        try:
            self._database.save(
                numbered.where(~numbered[ROW].isin(list(why))) if why else numbered, self._stage, "overwrite"
            )
            with self._database.connection() as connection:
                why |= dict(bisected(left, lambda some: self._unmoved(connection, some)))
        finally:
            self._drop()
        told = rows.select(*told_of(rows, origin), f.monotonically_increasing_id().alias(ROW))
        for stream, entry_id, shown, number in told.where(told[ROW].isin(list(why))).collect() if why else ():
            yield Refusal(Entry.of(stream, entry_id), None, str(why[number]), shown)

    def _unstaged(self, numbered: DataFrame, some: Sequence[int]) -> JdbcFailed | None:
        try:
            self._database.save(numbered.where(numbered[ROW].between(some[0], some[-1])), self._stage, "overwrite")
        except JdbcFailed as error:
            if not error.is_about_values:
                raise
            return error
        return None

    def _unmoved(self, connection: JdbcConnection, some: Sequence[int]) -> JdbcFailed | None:
        row = self._database.quoted(ROW)
        return connection.attempted(lambda: self._move(connection, f"{row} BETWEEN {some[0]} AND {some[-1]}"))

    def _drop(self) -> None:
        with self._database.connection() as connection:
            if connection.columns(self._stage) is not None:
                connection.execute(f"DROP TABLE {self._stage}")
                connection.commit()
