from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyspark
import pytest
from py4j.protocol import Py4JJavaError

from penstock.redis.embedded import EmbeddedServer
from penstock.spark import session, sessions
from penstock.spark.runtime.master import SparkStopped
from penstock.spark.runtime.versions import SparkMissing, require_pyspark
from penstock.spark.sessions import _refusal_named
from tests.helpers.threads import join, start
from tests.spark.driver import Driver
from tests.spark.end_to_end.queries import run_now

if TYPE_CHECKING:
    import redis
    from pyspark.sql import SparkSession

_SECRET = "swordfish"


def test_the_package_is_imported_without_pyspark_and_says_what_to_install_when_it_is_used() -> None:
    script = "import sys; sys.modules['pyspark'] = None; import penstock.spark; penstock.spark.session()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "SparkMissing: penstock.spark needs PySpark" in done.stderr
    assert "pip install 'penstock[spark]'" in done.stderr


def test_a_pyspark_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.0.2")
    with pytest.raises(SparkMissing, match=r"needs PySpark 4\.1 or newer, and 4\.0\.2 is installed"):
        require_pyspark()


def test_a_development_version_of_pyspark_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "5.0.0.dev1")
    require_pyspark()


def test_a_second_call_returns_the_running_session_and_changes_nothing_that_was_not_asked_for(
    spark: SparkSession,
) -> None:
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    again = session(conf={"spark.sql.ansi.enabled": False})
    assert again.sparkContext is spark.sparkContext
    assert again.conf.get("spark.sql.ansi.enabled") == "false"
    assert again.conf.get("spark.sql.shuffle.partitions") == partitions
    spark.conf.unset("spark.sql.ansi.enabled")


def test_a_local_session_suits_one_machine(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    manager = spark.conf.get("spark.sql.streaming.checkpointFileManagerClass")
    assert manager is not None
    assert manager.endswith("FileSystemBasedCheckpointFileManager")
    assert spark.sparkContext.getConf().get("spark.driver.host") == "127.0.0.1"


def test_a_short_session_has_no_web_interface(spark: SparkSession) -> None:
    assert spark.sparkContext.uiWebUrl is None


def test_a_short_session_leaves_the_environment_as_it_was(spark: SparkSession) -> None:
    assert "SPARK_HOME" not in os.environ


_ASKS_ITS_INTERFACE = """
import os, socket
from urllib.parse import urlsplit
from penstock.spark import session
spark = session("interface", "local[1]", conf={"spark.log.level": "OFF", "spark.ui.showConsoleProgress": False})
port = urlsplit(spark.sparkContext.uiWebUrl).port
socket.create_connection(("127.0.0.1", port), 30).close()
try:
    socket.create_connection(("127.0.0.2", port), 30).close()  # all of 127.* is this machine
    print("everywhere")
except ConnectionRefusedError:
    print("loopback", "SPARK_LOCAL_IP" in os.environ)
spark.stop()
"""


@pytest.mark.slow
def test_the_web_interface_of_a_local_session_is_for_this_machine(start_driver: Callable[..., Driver]) -> None:
    assert "loopback False" in start_driver(_ASKS_ITS_INTERFACE).end()


def test_a_query_runs_from_a_stream_to_a_table_and_starts_again_where_it_stopped(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis, checkpoint: str
) -> None:
    def run() -> int:
        source = spark.readStream.format("redis_streams").option("url", stream_server.url).option("streams", "orders")
        rows = source.option("startingOffsets", "earliest").load()
        place = f"{checkpoint}-out"
        query = rows.writeStream.format("parquet").option("checkpointLocation", checkpoint).option("path", place)
        run_now(query)
        return spark.read.parquet(place).count()

    for n in range(10):
        stream_redis.xadd("orders", {"data": str(n)})
    assert run() == 10
    stream_redis.xadd("orders", {"data": "10"})
    assert run() == 11


_SHORT = """
from penstock.spark import session
spark = session("short", "local[2]", short=True)
print(spark.range(10).mapInArrow(lambda batches: batches, "id long").repartition(2).count())
print(spark.conf.get("spark.python.unix.domain.socket.enabled"))
"""


@pytest.mark.slow
def test_a_driver_that_ends_without_stopping_spark_leaves_nothing_behind(
    start_driver: Callable[..., Driver], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("java")
    said = start_driver(_SHORT, env={"SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={place}"}).end()
    assert "10" in said
    assert "true" in said or sys.platform != "linux"  # one of the files that are to go
    assert list(place.iterdir()) == []  # Java had our pipe, and has ended


def test_a_master_that_ends_the_application_while_spark_starts_is_named() -> None:
    class Failed(Py4JJavaError):
        def __init__(self, text: str) -> None:
            Exception.__init__(self, text)

        __str__ = Exception.__str__

    with pytest.raises(SparkStopped, match="did not start on master spark://m:7077"), _refusal_named("spark://m:7077"):
        raise Failed("IllegalStateException: Cannot call methods on a stopped SparkContext.")
    with pytest.raises(Failed), _refusal_named("spark://m:7077"):
        raise Failed("ClassNotFoundException")


def test_spark_is_started_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start changes variables of the process and a function of PySpark, and then restores them."""
    monkeypatch.setattr(pyspark.sql.SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(sessions, "ensure_java", lambda: None)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    both = threading.Barrier(2)

    class Builder:
        def config(self, **_: object) -> Builder:
            return self

        def getOrCreate(self) -> object:  # noqa: N802
            both.wait(0.2)  # the other thread never comes, so there is nothing else to wait for
            return None

    def start_spark() -> None:
        with pytest.raises(threading.BrokenBarrierError):
            sessions._classic(Builder(), "local[1]", {}, short=False)  # type: ignore[arg-type]

    threads = [start(start_spark), start(start_spark)]
    for thread in threads:
        join(thread)


_STOPPED = """
from penstock.spark import register, session
from penstock.spark.pipeline import Parquet, Pipeline, Source
from penstock.spark.pipeline.preview import preview
from penstock.spark.runtime.master import SparkStopped

pipeline = Pipeline("p", Source("redis://127.0.0.1:1/0", "orders"), Parquet("table"), "checkpoint")

def try_all(spark):
    calls = (register, pipeline.run, pipeline.validate, lambda spark: preview(pipeline, spark), lambda _: session())
    for number, call in enumerate(calls):
        try:
            call(spark)
        except SparkStopped:
            print("refused", number)

spark = session("stopped", "local[1]", short=True)
spark._jsc.sc().stop()  # as it stops when the cluster ends the application
try_all(spark)
spark.stop()
try_all(spark)
print("rows", session("another", "local[1]", short=True).range(3).count())
"""


@pytest.mark.slow
def test_a_session_that_was_stopped_is_named_and_another_one_can_be_started(
    start_driver: Callable[..., Driver],
) -> None:
    said = [line for line in start_driver(_STOPPED).end() if line.startswith(("refused", "rows"))]
    assert said == [*(f"refused {n}" for n in range(5)), *(f"refused {n}" for n in range(4)), "rows 3"]


@pytest.mark.parametrize("name", ["url", "password", "redis.password", "passwordFile", "secret", "token"])
def test_options_that_hold_secrets_are_redacted_in_plans(spark: SparkSession, name: str) -> None:
    options = spark._jvm.scala.collection.immutable.HashMap().updated(name, _SECRET)
    shown = spark._jsparkSession.sessionState().conf().redactOptions(options).toString()
    assert _SECRET not in shown
    assert name in shown


def test_plans_do_not_show_the_address(
    spark: SparkSession, stream_server: EmbeddedServer, stream_redis: redis.Redis
) -> None:
    stream_redis.xadd("orders", {"data": "1"})
    url = stream_server.url.replace("redis://", f"redis://default:{_SECRET}@")
    rows = spark.read.format("redis_streams").option("url", url).option("streams", "orders").load()
    assert _SECRET not in rows._jdf.queryExecution().toString()
