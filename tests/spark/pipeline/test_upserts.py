"""Sinks with a key keep the newest row of each, whatever the order in which batches bring them, and whatever is killed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from deltalake import DeltaTable

from penstock.errors import ConfigurationError
from penstock.redis.embedded import EmbeddedServer
from penstock.spark.lake.files import no_fail_point
from penstock.spark.pipeline import Delta, Iceberg, Jdbc, Pipeline, Postgres, Sql
from penstock.spark.pipeline.batches import writer_of
from penstock.spark.pipeline.files import BatchKey
from penstock.spark.pipeline.plan import Planner
from penstock.spark.pipeline.rejected_rows import Origin
from penstock.spark.pipeline.running import Report
from penstock.spark.pipeline.sinks.keyed import Upsert
from penstock.spark.pipeline.sinks.writer import Writer
from tests.spark.driver import Driver
from tests.spark.limits import limit
from tests.spark.pipeline.conftest import add_orders, dead_letters, iceberg_catalogue
from tests.spark.pipeline.test_crashes import crash_after_each

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.helpers.postgres import PostgresServer

Declare = Callable[..., Pipeline]
RunOnce = Callable[..., Report]
STORES = ("postgres", "jdbc", "delta", "iceberg")
ROTATING = ("jdbc", "iceberg")
UPDATES, KEYS = 20_000, 500
COLUMNS = {"createTableColumnTypes": "k VARCHAR(9), word VARCHAR(9), op VARCHAR(9)"}


class Stores:
    """The same table in each of four stores."""

    def __init__(self, spark: SparkSession, postgres: PostgresServer, derby: str, place: Path) -> None:
        self._spark, self._postgres, self._derby, self._place = spark, postgres, derby, place
        self._catalogue = iceberg_catalogue(place)

    def sink(self, store: str, **given: Any) -> Any:
        given = {"key": ("k",), "name": store, **given}
        if store == "postgres":
            return Postgres(self._postgres.dsn, "latest", **{"create": True, **given})
        if store == "jdbc":
            return Jdbc(self._derby, "latest", **{"create": True, **given})
        if store == "delta":
            return Delta(str(self._place / "latest"), **given)
        return Iceberg("shop.latest", self._catalogue, **given)

    def rows(self, store: str, *columns: str) -> list[tuple[Any, ...]]:
        listed = ", ".join(columns)
        if store == "postgres":
            return sorted(self._postgres.execute(f"SELECT {listed} FROM latest"))
        if store == "jdbc":
            read = self._spark.read.format("jdbc").option("url", self._derby).option("dbtable", "latest").load()
            return sorted(tuple(row) for row in read.select(*columns).collect())
        found = DeltaTable(str(self._place / "latest")).to_pyarrow_table() if store == "delta" else self._iceberg()
        return sorted(zip(*(found[name].to_pylist() for name in columns), strict=True))

    def _iceberg(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("penstock", **self._catalogue).load_table("shop.latest").scan().to_arrow()


@pytest.fixture
def stores(spark: SparkSession, postgres: PostgresServer, derby: str, tmp_path: Path) -> Stores:
    return Stores(spark, postgres, derby, tmp_path)


def end_derby(spark: SparkSession, url: str) -> None:
    """Has the Java of the tests let go of a database."""
    from py4j.protocol import Py4JJavaError

    assert spark._jvm is not None
    with suppress(Py4JJavaError):  # the answer to this is always an exception
        spark._jvm.java.sql.DriverManager.getConnection(f"{url};shutdown=true")


def add_updates(client: redis.Redis) -> None:
    """Adds each version of each key, in no order; version n is of the key n modulo KEYS."""
    versions = list(range(UPDATES))
    random.Random(7).shuffle(versions)
    with client.pipeline(transaction=False) as pipe:
        for version in versions:
            pipe.xadd("orders", {"data": json.dumps({"k": version % KEYS, "version": version})})
        pipe.execute()


NEWEST = [(key, UPDATES - KEYS + key) for key in range(KEYS)]
STEPS = [
    "postgres staged", "postgres moved", "postgres committed", "jdbc staged", "jdbc moved", "jdbc committed",
    "delta written", "delta committed", "iceberg written", "iceberg committed",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.needs_limits
def test_shuffled_updates_leave_the_newest_of_each_key_whatever_crashes(
    stream_redis: redis.Redis, pipeline_of: Declare, run: RunOnce, stores: Stores
) -> None:
    add_updates(stream_redis)
    pipeline = pipeline_of(
        Sql("SELECT k, version FROM input"),
        sinks=tuple(stores.sink(store, order_by="version") for store in STORES),
        source_schema="k bigint NOT NULL, version bigint NOT NULL",
        source_max_rows_per_batch=limit(4_000),
    )
    crash_after_each(run, pipeline, STEPS)
    run(pipeline)
    for store in STORES:
        assert stores.rows(store, "k", "version") == NEWEST, store
    assert not dead_letters(stream_redis)


KILLED = """
import os, signal, sys
from penstock.spark import session
from penstock.spark.pipeline import Pipeline
from penstock.spark.pipeline.running import Run

file, moment, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
seen = 0

def mark(step):
    global seen
    seen += step == moment
    if seen == batch:
        print("killed", flush=True)
        os.killpg(0, signal.SIGKILL)

spark = session("killed", "local[2]", short=True, conf={"spark.log.level": "ERROR"})
Run(Pipeline.from_file(file), spark, once=True, mark=mark).run()
"""
FILE = """
name = "latest"
checkpoint = "{place}/checkpoint"
[source]
url = "{url}"
streams = "orders"
schema = "k bigint NOT NULL, version bigint NOT NULL"
max_rows_per_batch = 7000
[[step]]
sql = "SELECT k, version FROM input"
[[sink]]
kind = "postgres"
dsn = "{dsn}"
table = "latest"
create = true
key = "k"
order_by = "version"
[[sink]]
kind = "delta"
path = "{place}/latest"
key = "k"
order_by = "version"
[[sink]]
kind = "iceberg"
table = "shop.latest"
catalog = {catalogue}
key = "k"
order_by = "version"
"""


@pytest.mark.slow
@pytest.mark.needs_limits
def test_a_killed_driver_changes_nothing_of_that(
    stream_redis: redis.Redis,
    stream_server: EmbeddedServer,
    start_driver: Callable[..., Driver],
    run: RunOnce,
    stores: Stores,
    postgres: PostgresServer,
    tmp_path: Path,
) -> None:
    add_updates(stream_redis)
    catalogue = ", ".join(f'{name} = "{value}"' for name, value in iceberg_catalogue(tmp_path).items())
    file = tmp_path / "latest.toml"
    file.write_text(
        FILE.format(place=tmp_path, url=stream_server.url, dsn=postgres.dsn, catalogue=f"{{ {catalogue} }}")
    )
    for moment, batch in (("postgres moved", 2), ("delta committed", 1)):
        driver = start_driver(KILLED, str(file), moment, str(batch))
        driver.wait_for_line("killed")
        driver.kill()
    run(Pipeline.from_file(file))
    for store in ("postgres", "delta", "iceberg"):
        assert stores.rows(store, "k", "version") == NEWEST, store
    left = postgres.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename LIKE 'penstock%'"
    )
    assert left == [("penstock_batches",)]


BEHIND_JDBC = """
name = "latest"
checkpoint = "{place}/checkpoint"
[source]
url = "{url}"
streams = "orders"
schema = "k bigint NOT NULL, version bigint NOT NULL"
max_rows_per_batch = 7000
[[step]]
sql = "SELECT k, version FROM input"
[[sink]]
kind = "jdbc"
url = "{database}"
table = "latest"
create = true
key = "k"
order_by = "version"
"""


@pytest.mark.slow
@pytest.mark.needs_limits
def test_a_killed_driver_leaves_the_newest_rows_in_a_database_behind_jdbc(
    spark: SparkSession,
    stream_redis: redis.Redis,
    stream_server: EmbeddedServer,
    start_driver: Callable[..., Driver],
    run: RunOnce,
    tmp_path: Path,
) -> None:
    database = f"jdbc:derby:{tmp_path}/database"  # on the disk: the one that is killed has it in its own Java
    file = tmp_path / "latest.toml"
    file.write_text(BEHIND_JDBC.format(place=tmp_path, url=stream_server.url, database=f"{database};create=true"))
    add_updates(stream_redis)
    for moment, batch in (("jdbc staged", 1), ("jdbc moved", 2), ("jdbc committed", 1)):
        driver = start_driver(KILLED, str(file), moment, str(batch))
        driver.wait_for_line("killed")
        driver.kill()
    try:
        run(Pipeline.from_file(file))
        read = spark.read.format("jdbc").option("url", database)
        found = read.option("dbtable", "latest").load().select("k", "version").collect()
        assert sorted(map(tuple, found)) == NEWEST
        tables = read.option("dbtable", "sys.systables").load().select("tablename").collect()
        assert [row[0] for row in tables if row[0].startswith("PENSTOCK")] == ["PENSTOCK_JDBC_BATCHES"]
    finally:
        end_derby(spark, database)


# --- one batch after the other ---

Write = Callable[..., bool]


# JDBC shares its staged table with PostgreSQL, Iceberg its lake layer with Delta.
@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.rotates if name in ROTATING else ()) for name in STORES])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def changes(spark: SparkSession) -> Callable[..., DataFrame]:
    """Returns rows as (key, id of the entry, word), where a word that begins with `-` deletes."""

    def made(*rows: tuple[str | None, str, str]) -> DataFrame:
        values = [("orders", entry, k, word, "d" if word.startswith("-") else "u") for k, entry, word in rows]
        return spark.createDataFrame(values, "_stream string, _id string, k string, word string, op string")

    return made


@pytest.fixture
def writer(spark: SparkSession, pipeline_of: Declare, stores: Stores, store: str) -> Writer:
    more = {"options": COLUMNS} if store == "jdbc" else {}
    return writer_of(stores.sink(store, delete_when="op = 'd'", **more), pipeline_of(), spark)


def test_the_greater_id_wins_as_numbers_within_a_batch_and_across(
    changes: Callable[..., DataFrame], writer: Writer, stores: Stores, store: str
) -> None:
    def write(number: int, *rows: tuple[str, str, str]) -> list[tuple[Any, ...]]:
        assert writer.write(changes(*rows), BatchKey("q", number), no_fail_point)
        return stores.rows(store, "k", "word")

    first = changes(("a", "9-5", "old"))
    assert list(writer.problems(first.schema)) == []
    assert write(0, ("a", "10-0", "new"), ("a", "9-5", "old"), ("b", "5-9", "old"), ("b", "5-10", "new")) == [
        ("a", "new"),
        ("b", "new"),
    ]
    assert list(writer.problems(first.schema)) == []
    assert not writer.write(first, BatchKey("q", 0), no_fail_point)
    assert write(1, ("a", "9-9", "stale"), ("b", "6-0", "newer"), ("c", "1-0", "one")) == [
        ("a", "new"),
        ("b", "newer"),
        ("c", "one"),
    ]
    # Of a deletion and a change the newer one counts; one that is older than the row deletes nothing.
    assert write(
        2, ("a", "9-9", "-"), ("b", "7-0", "-"), ("b", "8-0", "back"), ("c", "3-0", "-"), ("c", "2-0", "two")
    ) == [("a", "new"), ("b", "back")]
    assert write(3, ("d", "4-0", "-"), ("d", "3-0", "four")) == [("a", "new"), ("b", "back")]
    # The same ids again, from another checkpoint.
    again = changes(("a", "10-0", "again"), ("b", "7-5", "stale"))
    assert writer.write(again, BatchKey("other", 0), no_fail_point)
    assert stores.rows(store, "k", "word") == [("a", "again"), ("b", "back")]


def test_a_null_in_the_key_is_refused_and_told(
    changes: Callable[..., DataFrame], writer: Writer, stores: Stores, store: str
) -> None:
    rows = changes((None, "1-0", "none"), ("a", "2-0", "one"))
    with pytest.raises(Exception, match="a key column is null") as caught:
        writer.write(rows, BatchKey("q", 0), no_fail_point)
    assert writer.is_refusal(caught.value)
    (refused,) = writer.refusals(rows, Origin("_stream", "_id"))
    assert (refused.column, refused.why) == ("k", "is null, but is part of the key")
    assert refused.entry is not None
    assert refused.entry.id == "1-0"
    assert writer.write(rows.where("k IS NOT NULL"), BatchKey("q", 0), no_fail_point)
    assert stores.rows(store, "k", "word") == [("a", "one")]


@pytest.mark.parametrize("entry", ["u-17", "17", None, f"{'9' * 21}-0"])
def test_what_is_not_the_id_of_an_entry_is_no_order(
    changes: Callable[..., DataFrame], spark: SparkSession, pipeline_of: Declare, stores: Stores, entry: Any
) -> None:
    writer = writer_of(stores.sink("postgres"), pipeline_of(), spark)
    rows = changes(("a", entry, "none"), ("b", "2-0", "one"))
    with pytest.raises(Exception, match="has no source entry") as caught:
        writer.write(rows, BatchKey("q", 0), no_fail_point)
    assert writer.is_refusal(caught.value)
    (refused,) = writer.refusals(rows, Origin("_stream", "_id"))
    assert (refused.column, refused.entry) == ("_id", None)
    assert refused.why.startswith("is not an entry id, which determines the order of rows with the same key")


def test_of_rows_that_are_equal_in_order_by_the_later_entry_wins(spark: SparkSession) -> None:
    values = [("orders", f"{entry}-0", entry % 3, 7, entry) for entry in range(90, 120)]
    rows = spark.createDataFrame(values, "_stream string, _id string, k bigint, at bigint, n bigint").repartition(4)
    upsert = Upsert.of(Delta("/t", key="k", order_by="at"), rows.schema)
    assert upsert is not None
    found = upsert.newest(rows)
    assert found.columns == ["k", "at", "n"]
    assert sorted(map(tuple, found.collect())) == [(0, 7, 117), (1, 7, 118), (2, 7, 119)]


def test_rows_without_an_entry_are_replaced_by_those_of_a_later_batch(
    spark: SparkSession, pipeline_of: Declare, stores: Stores, store: str
) -> None:
    writer = writer_of(stores.sink(store), pipeline_of(), spark)
    for number, counts in enumerate(([(1, 10), (2, 5)], [(2, 3), (3, 1)])):
        assert writer.write(spark.createDataFrame(counts, "k bigint, n bigint"), BatchKey("q", number), no_fail_point)
    assert stores.rows(store, "k", "n") == [(1, 10), (2, 3), (3, 1)]


def test_two_columns_are_a_key_and_null_is_the_least_order(
    spark: SparkSession, pipeline_of: Declare, stores: Stores, store: str
) -> None:
    writer = writer_of(stores.sink(store, key=("k", "part"), order_by="n"), pipeline_of(), spark)
    batches: list[list[tuple[int, int, int | None]]] = [
        [(1, 1, None), (1, 1, 4), (1, 2, None)],
        [(1, 1, 3), (1, 2, 7), (2, 1, 1)],
        [(1, 1, None), (2, 1, 2)],
    ]
    for number, rows in enumerate(batches):
        frame = spark.createDataFrame(rows, "k bigint, part bigint, n bigint")
        assert writer.write(frame, BatchKey("q", number), no_fail_point)
    assert stores.rows(store, "k", "part", "n") == [(1, 1, 4), (1, 2, 7), (2, 1, 2)]


def test_strings_are_ordered_by_their_bytes_across_batches_as_within_one(
    spark: SparkSession, pipeline_of: Declare, postgres: PostgresServer
) -> None:
    """Also in a database whose collation has `a` before `B`."""
    postgres.execute('CREATE TABLE latest (k bigint PRIMARY KEY, version text COLLATE "en-x-icu")')
    writer = writer_of(Postgres(postgres.dsn, "latest", key="k", order_by="version"), pipeline_of(), spark)
    for number, versions in enumerate((["B", "a"], ["B", "C"])):
        rows = spark.createDataFrame([(1, version) for version in versions], "k bigint, version string")
        assert writer.write(rows, BatchKey("q", number), no_fail_point)
    assert postgres.execute("SELECT k, version FROM latest") == [(1, "a")]


def test_a_table_in_a_schema_keeps_what_only_it_has(
    changes: Callable[..., DataFrame], spark: SparkSession, pipeline_of: Declare, postgres: PostgresServer
) -> None:
    postgres.execute(
        'CREATE SCHEMA "My shop"; CREATE TABLE "My shop"."Latest" '
        "(k text PRIMARY KEY, word text, op text, penstock_order text, note text DEFAULT 'none')"
    )
    sink = Postgres(postgres.dsn, "My shop.Latest", key="k", delete_when="op = 'd'")
    writer = writer_of(sink, pipeline_of(), spark)
    assert writer.write(changes(("a", "1-0", "one"), ("b", "1-1", "one")), BatchKey("q", 0), no_fail_point)
    postgres.execute("""UPDATE "My shop"."Latest" SET note = 'mine'""")
    assert writer.write(
        changes(("a", "2-0", "two"), ("b", "3-0", "-"), ("c", "4-0", "one")), BatchKey("q", 1), no_fail_point
    )
    found = postgres.execute('SELECT k, word, note FROM "My shop"."Latest" ORDER BY k')
    assert found == [("a", "two", "mine"), ("c", "one", "none")]
    tables = postgres.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'My shop' AND tablename LIKE 'penstock%'"
    )
    assert tables == [("penstock_batches",)]


def test_what_is_wrong_with_a_key_is_told_before_anything_runs(
    spark: SparkSession, pipeline_of: Declare, stores: Stores, postgres: PostgresServer
) -> None:
    postgres.execute("CREATE TABLE latest (k bigint PRIMARY KEY)")
    schema = spark.createDataFrame([], "stream string, id string, k bigint").schema

    def problems(**given: Any) -> list[str]:
        return list(writer_of(stores.sink("delta", **given), pipeline_of(), spark).problems(schema))

    (problem,) = problems(order_by="at")
    assert problem.startswith("order_by: unknown column 'at'")
    (problem,) = problems(order_column="k")
    assert problem.startswith("order_column: the rows already have a column 'k'")
    (problem,) = problems(delete_when="op = 'd'")
    assert problem.startswith("delete_when = \"op = 'd'\": [UNRESOLVED_COLUMN")
    for changing, what in (("k < unix_seconds(now())", "now()"), ("rand() < 0.5", "rand()")):
        (problem,) = problems(delete_when=changing)
        assert problem.startswith(f"delete_when = {changing!r} deletes different rows each time: remove {what}")
    kept = spark.createDataFrame([], "_stream string, _id string, k bigint").schema
    (problem,) = writer_of(stores.sink("postgres"), pipeline_of(), spark).problems(kept)
    assert problem.startswith("table 'latest' has no column 'penstock_order', in which a sink with a key stores")
    with pytest.raises(ConfigurationError, match="delete_when needs key"):
        stores.sink("jdbc", key=(), delete_when="true")


@pytest.mark.needs_limits
def test_a_least_size_of_batches_above_the_default_limit_of_a_keyed_table_raises_that_limit(
    spark: SparkSession, stream_redis: redis.Redis, pipeline_of: Declare, tmp_path: Path
) -> None:
    add_orders(stream_redis, 1)
    sinks = (Delta(str(tmp_path / "delta"), key=("n",), order_by="n"),)
    declared = pipeline_of(sinks=sinks, source_options={"minRowsPerTrigger": "600000"})
    assert "n" in Planner(spark, declared).first().columns
