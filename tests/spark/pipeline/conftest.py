"""Orders in a stream, and pipelines over them in as few words as possible."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from penstock.redis.embedded import EmbeddedServer
from penstock.spark.pipeline import Parquet, Pipeline, Source
from penstock.spark.pipeline.running import Report, Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.helpers.postgres import PostgresServer

SHOP = "tests.spark.pipeline.shop"


def add_orders(client: redis.Redis, count: int, *, first: int = 0, stream: str = "orders") -> None:
    with client.pipeline(transaction=False) as pipe:
        for n in range(first, first + count):
            pipe.xadd(stream, {"data": json.dumps({"n": n}), "message_id": f"m{n}"})
        pipe.execute()


def dead_letters(client: redis.Redis, stream: str = "orders_dlq") -> list[dict[str, str]]:
    entries = client.xrange(stream)
    return [
        {name.decode(): value.decode("utf-8", "replace") for name, value in fields.items()} for _, fields in entries
    ]


def iceberg_catalogue(folder: Path) -> dict[str, str]:
    """Returns the properties of a catalogue in a file, which need not be there yet."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalogue.db", "warehouse": f"file://{folder}/warehouse"}


def iceberg_rows(catalogue: dict[str, str], table: str, column: str) -> list[Any]:
    from pyiceberg.catalog import load_catalog

    found = load_catalog(**{"name": "penstock", **catalogue}).load_table(table)
    return sorted(found.scan(selected_fields=(column,)).to_arrow()[column].to_pylist())


@pytest.fixture
def derby(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """The URL of a new database of Derby, whose driver comes with Spark; it lives in Spark's Java."""
    assert spark._jvm is not None
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", "/dev/null")
    url = f"jdbc:derby:memory:{tmp_path.name}"
    yield f"{url};create=true"
    from py4j.protocol import Py4JJavaError

    with suppress(Py4JJavaError):  # the answer to this is always an exception
        spark._jvm.java.sql.DriverManager.getConnection(f"{url};drop=true")


@pytest.fixture
def pipeline_of(stream_server: EmbeddedServer, tmp_path: Path) -> Callable[..., Pipeline]:
    """Declares a pipeline over the stream `orders`; keywords of Source come with `source_`."""

    def made(*steps: Any, sinks: Any = None, **given: Any) -> Pipeline:
        of_source = {
            name.removeprefix("source_"): given.pop(name) for name in list(given) if name.startswith("source_")
        }
        source = Source(
            **{"url": stream_server.url, "streams": ("orders",), "schema": "n bigint NOT NULL", **of_source}
        )
        return Pipeline(
            **{
                "name": "shop",
                "source": source,
                "steps": steps,
                "sinks": sinks or (Parquet(str(tmp_path / "table")),),
                "checkpoint": str(tmp_path / "checkpoint"),
                **given,
            }
        )

    return made


@pytest.fixture
def run(spark: SparkSession) -> Callable[..., Report]:
    """Runs a pipeline over all that is there."""

    def once(pipeline: Pipeline, **given: Any) -> Report:
        return Run(pipeline, spark, **{"once": True, **given}).run()

    return once


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Callable[..., list[Any]]:
    """Returns the values of a column of the table, sorted; an empty list if there is no table."""

    def values(column: str = "n", place: str = "table") -> list[Any]:
        path = tmp_path / place
        if not list(path.glob("batch=*")):
            return []
        return sorted(row[0] for row in spark.read.parquet(str(path)).select(column).collect())

    return values


@pytest.fixture(scope="session")
def postgres_of_session() -> Iterator[PostgresServer]:
    pytest.importorskip("psycopg")
    from tests.helpers.postgres import PostgresServer

    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres(postgres_of_session: PostgresServer) -> PostgresServer:
    """An empty database."""
    postgres_of_session.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return postgres_of_session
