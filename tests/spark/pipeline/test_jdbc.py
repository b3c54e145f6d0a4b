"""Rows reach a database behind JDBC once, also when tasks are repeated, and whoever has made the table."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.spark.lake.files import no_fail_point
from penstock.spark.pipeline import Jdbc
from penstock.spark.pipeline.files import BatchKey
from penstock.spark.pipeline.sinks.jdbc import JdbcWriter
from penstock.spark.pipeline.sinks.jdbc_connection import (
    JdbcConnection,
    JdbcDatabase,
    JdbcFailed,
    JdbcUnavailable,
    _failure,
)
from penstock.spark.pipeline.sinks.staged import StageDiffers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def rows_of(spark: SparkSession, derby: str) -> Callable[[str], list[tuple[Any, ...]]]:
    def found(table: str) -> list[tuple[Any, ...]]:
        return sorted(
            map(tuple, spark.read.format("jdbc").option("url", derby).option("dbtable", table).load().collect())
        )

    return found


def test_rows_that_a_repeated_task_has_doubled_are_staged_again(
    spark: SparkSession,
    derby: str,
    rows_of: Callable[[str], list[tuple[Any, ...]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save, doubled = JdbcDatabase.save, []

    def save_twice(self: JdbcDatabase, rows: DataFrame, table: str, mode: str, **more: str) -> None:
        save(self, rows, table, mode, **more)
        if mode == "overwrite" and len(doubled) < most:
            doubled.append(table)
            save(self, spark.range(1), table, "append")

    monkeypatch.setattr(JdbcDatabase, "save", save_twice)
    writer = JdbcWriter(Jdbc(derby, "numbers", create=True), spark)
    most = 1
    assert writer.write(spark.range(3), BatchKey("q", 0), no_fail_point) is True
    assert writer.write(spark.range(3), BatchKey("q", 0), no_fail_point) is False
    assert rows_of("numbers") == [(0,), (1,), (2,)]
    most = 100
    with pytest.raises(StageDiffers, match="holds 4 rows instead of the 3 of the batch"):
        writer.write(spark.range(3), BatchKey("q", 1), no_fail_point)
    assert len(rows_of("numbers")) == 3


@pytest.mark.rotates
@pytest.mark.parametrize("given", [{}, {"key": ("id",)}], ids=["append", "key"])
def test_rows_that_a_late_task_adds_before_they_are_moved_are_noticed(
    spark: SparkSession, derby: str, rows_of: Callable[[str], list[tuple[Any, ...]]], given: dict[str, Any]
) -> None:
    sink = Jdbc(derby, "numbers", create=True, **given)
    writer, key = JdbcWriter(sink, spark), BatchKey("q", 0)

    def late(step: str) -> None:
        if step == "jdbc staged":
            JdbcDatabase(sink, spark).save(spark.range(1), writer.new_stage(key), "append")

    with pytest.raises(StageDiffers, match="holds 4 rows instead of the 3 of the batch"):
        writer.write(spark.range(3), key, late)
    assert rows_of("numbers") == []
    assert writer.write(spark.range(3), key, no_fail_point)
    assert rows_of("numbers") == [(0,), (1,), (2,)]


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("08006", JdbcUnavailable),
        ("40P01", JdbcUnavailable),
        ("57P01", JdbcUnavailable),
        ("42P01", JdbcFailed),
        ("40002", JdbcFailed),
        ("08004", JdbcFailed),
        ("28P01", JdbcFailed),
    ],
)
def test_a_failure_passes_by_its_sql_state(spark: SparkSession, state: str, kind: type[JdbcFailed]) -> None:
    assert spark._jvm is not None
    java = spark._jvm.java
    thrown = java.lang.RuntimeException("Job aborted", java.sql.SQLException("An I/O error occurred", state))
    found = _failure(SimpleNamespace(java_exception=thrown))
    assert type(found) is kind
    assert str(found) == "An I/O error occurred"


def test_a_value_that_breaks_a_constraint_does_not_pass_with_the_transaction_that_it_ends(spark: SparkSession) -> None:
    assert spark._jvm is not None
    java = spark._jvm.java.sql
    thrown = java.SQLException("transaction rolled back", "40000", java.SQLException("duplicate key", "23505"))
    found = _failure(SimpleNamespace(java_exception=thrown))
    assert (type(found), found.is_about_values) == (JdbcFailed, True)


def test_too_many_connections_pass(spark: SparkSession) -> None:
    assert spark._jvm is not None
    thrown = spark._jvm.java.sql.SQLException("Too many connections", "08004")  # as MySQL says it
    assert type(_failure(SimpleNamespace(java_exception=thrown))) is JdbcUnavailable


def test_a_missing_driver_does_not_pass(spark: SparkSession) -> None:
    assert spark._jvm is not None
    thrown = spark._jvm.java.sql.SQLException("No suitable driver", "08001")
    assert type(_failure(SimpleNamespace(java_exception=thrown))) is JdbcFailed


def test_a_database_without_transactions_is_refused(
    spark: SparkSession, derby: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JdbcConnection, "has_transactions", False)
    (problem,) = JdbcWriter(Jdbc(derby, "numbers", create=True), spark).problems(spark.range(1).schema)
    assert problem == "the database has no transactions, so a repeated batch would be written twice"


def test_a_row_replaces_the_one_of_its_key_in_a_table_that_was_there(
    spark: SparkSession, derby: str, rows_of: Callable[[str], list[tuple[Any, ...]]]
) -> None:
    sink = Jdbc(derby, "people", key=("id",))
    with JdbcDatabase(sink, spark).connection() as connection:
        assert connection.has_transactions
        connection.execute("CREATE TABLE people (id INT PRIMARY KEY, name VARCHAR(9), tags CLOB, more INT DEFAULT 7)")
        connection.execute("INSERT INTO people VALUES (1, 'ann', NULL, 1), (2, 'bob', NULL, 2)")
        connection.commit()
    typed = Jdbc(derby, "people", key=("id",), options={"createTableColumnTypes": "name VARCHAR(9)"})
    rows = spark.sql(
        "SELECT id, name, map('a', 1) AS tags FROM VALUES (2, 'eve'), (3, 'kim'), (3, 'kim') AS t(id, name)"
    )
    assert not list(JdbcWriter(typed, spark).problems(rows.schema))
    assert JdbcWriter(typed, spark).write(rows, BatchKey("q", 0), no_fail_point)
    assert rows_of("people") == [(1, "ann", None, 1), (2, "eve", '{"a":1}', 7), (3, "kim", '{"a":1}', 7)]
