"""Spark with the libraries of lakehouses, from Maven. Left out unless asked for: `make test` needs no such jars."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers.s3 import BUCKET, KEY, SECRET, S3Server
from tests.lakehouse.versions import DELTA, EXCLUDED, POSTGRES, S3A

# The streams, pipelines and drivers of the other tests of Spark, on the session below.
from tests.spark.conftest import checkpoint, java, spark, start_driver, stream_redis, stream_server
from tests.spark.pipeline.conftest import pipeline_of, postgres, postgres_of_session, run, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "checkpoint",
    "java",
    "pipeline_of",
    "postgres",
    "postgres_of_session",
    "run",
    "spark",
    "start_driver",
    "stream_redis",
    "stream_server",
    "table",
]
ROOT = Path(__file__).resolve().parents[2]

if os.environ.get("PENSTOCK_LAKEHOUSE") != "1":
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives them time: the first one fetches jars."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(900))


def settings(s3: S3Server) -> dict[str, str]:
    """Returns the settings of a session that knows Delta Lake and S3."""
    made = {
        "spark.jars.packages": ",".join([DELTA, POSTGRES, *S3A]),
        "spark.jars.excludes": ",".join(EXCLUDED),
        "spark.jars.ivy": str(ROOT / ".venvs" / "ivy"),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.hadoop.fs.s3a.endpoint": s3.options()["endpoint"],
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": KEY,
        "spark.hadoop.fs.s3a.secret.key": SECRET,
        "spark.sql.session.timeZone": "UTC",
        # Small tables: the defaults are 50 tasks to read a log and 200 to keep state.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    mirror = os.environ.get("PENSTOCK_LAKEHOUSE_REPOSITORY")
    return {**made, "spark.jars.repositories": mirror} if mirror else made


@pytest.fixture
def lake(s3_server: S3Server) -> str:
    """The URL of an empty place in S3, as Hadoop calls it."""
    return f"s3a://{BUCKET}/lake"


@pytest.fixture
def store(s3_server: S3Server) -> dict[str, str]:
    """The same place for deltalake: what its `options` need."""
    return {
        "AWS_ENDPOINT_URL": s3_server.options()["endpoint"],
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ALLOW_HTTP": "true",
    }


@pytest.fixture(scope="session")
def spark_of_session(
    java: Path, s3_of_session: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    from penstock.spark.session import session
    from tests.spark.conftest import _end_java

    place = tmp_path_factory.mktemp("spark")
    conf = {**settings(s3_of_session), "spark.driver.memory": "1g", "spark.local.dir": str(place / "local")}
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    made = session("penstock lakehouse", "local[2,4]", short=True, conf=conf)
    yield made
    made.stop()
    _end_java()
