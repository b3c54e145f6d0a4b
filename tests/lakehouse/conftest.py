"""Spark with the libraries of lakehouses, from Maven. Left out unless asked for: `make test` needs no such jars."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers.s3 import BUCKET, KEY, SECRET, S3Server
from tests.lakehouse.versions import DELTA, EXCLUDED, ICEBERG, POSTGRES, S3A, SQLITE

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

# Of the two environments of `make test-lakehouse`, the one with Spark 4.1 is for Iceberg.
HAS_ICEBERG = version("pyspark").startswith("4.1.")

if os.environ.get("PENSTOCK_LAKEHOUSE") != "1":
    collect_ignore_glob = ["test_*.py"]
else:
    collect_ignore_glob = ["test_[!i]*.py" if HAS_ICEBERG else "test_iceberg.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives them time: the first one fetches jars."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(900))
            if HAS_ICEBERG:  # Spark 4.1 leaves sockets to the collector
                item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


def settings(s3: S3Server) -> dict[str, str]:
    """Returns the settings of a session that knows Delta Lake and S3."""
    return {
        **_common(DELTA, POSTGRES, *S3A),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.hadoop.fs.s3a.endpoint": s3.options()["endpoint"],
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": KEY,
        "spark.hadoop.fs.s3a.secret.key": SECRET,
        # Small tables: the default is 50 tasks to read a log.
        "spark.databricks.delta.snapshotPartitions": "2",
    }


def iceberg_settings(place: Path) -> dict[str, str]:
    """Returns the settings of a session that knows Iceberg, and the catalogue `lake` in a file in this place."""
    return {
        **_common(ICEBERG, SQLITE),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": f"jdbc:sqlite:{place}/catalogue.db",
        "spark.sql.catalog.lake.warehouse": f"file://{place}/warehouse",
    }


def _common(*packages: str) -> dict[str, str]:
    made = {
        "spark.jars.packages": ",".join(packages),
        "spark.jars.excludes": ",".join(EXCLUDED),
        "spark.jars.ivy": str(ROOT / ".venvs" / "ivy"),
        "spark.sql.session.timeZone": "UTC",
        # The default is 200 tasks to keep state.
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
def iceberg_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session has its catalogue of Iceberg."""
    return tmp_path_factory.mktemp("iceberg")


@pytest.fixture(scope="session")
def spark_of_session(
    request: pytest.FixtureRequest, java: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    from penstock.spark.sessions import session
    from tests.spark.conftest import _end_java

    if HAS_ICEBERG:
        conf = iceberg_settings(request.getfixturevalue("iceberg_place"))
    else:
        conf = settings(request.getfixturevalue("s3_of_session"))
    place = tmp_path_factory.mktemp("spark")
    conf |= {"spark.driver.memory": "1g", "spark.local.dir": str(place / "local")}
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    made = session("penstock lakehouse", "local[2,4]", short=True, conf=conf)
    yield made
    made.stop()
    _end_java()
