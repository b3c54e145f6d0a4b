"""The format, made known to sessions of every kind, and its code to executors that do and do not have it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.errors import ConfigurationError
from penstock.redis.embedded import EmbeddedServer
from penstock.spark import register, sessions
from penstock.spark.runtime import code_shipping
from penstock.spark.sessions import PackagesMissing
from tests.spark.bare_python import bare_python
from tests.spark.clusters import ConnectServer, Standalone
from tests.spark.driver import Driver
from tests.spark.format_job import read, run

if TYPE_CHECKING:
    import redis
    from pyspark.sql import SparkSession

_ENTRIES = 10
_JOB = """
import json, sys
from penstock.spark import session
from penstock.spark.runtime import code_shipping
from tests.spark import format_job
spark = session(master=sys.argv[1], short=True, conf=json.loads(sys.argv[2]))
format_job.run(spark, sys.argv[3], print)
print("carried", code_shipping.is_carried())
spark.stop()
"""


@pytest.fixture
def url(stream_server: EmbeddedServer, stream_redis: redis.Redis) -> str:
    """A server whose stream `orders` has ten entries."""
    for n in range(_ENTRIES):
        stream_redis.xadd("orders", {"data": str(n)})
    return stream_server.url


@pytest.fixture(autouse=True)
def by_reference_again() -> Iterator[None]:
    yield
    code_shipping.leave()


class Said:
    """Collects what a job in this process says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, *words: object) -> None:
        self.lines.append(" ".join(map(str, words)))


@pytest.fixture
def said() -> Said:
    return Said()


def test_another_choice_than_true_false_and_auto_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="by_value='never' must be True, False or 'auto'"):
        register(spark, by_value="never")  # type: ignore[arg-type]


@pytest.mark.slow
def test_spark_finds_the_format_by_itself(start_driver: Callable[..., Driver], url: str) -> None:
    script = (
        "import sys; from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "rows = spark.read.format('redis_streams').option('url', sys.argv[1]).option('streams', 'orders').load()\n"
        "print('read', rows.count())"
    )
    driver = start_driver(script, url, env={"PYSPARK_PYTHON": sys.executable})
    driver.wait_for_line(f"^read {_ENTRIES}$")
    driver.end()


# Executors that have Penstock import their own: end_to_end/test_places.py goes all ways on such a cluster.


@pytest.mark.slow
def test_executors_that_lack_penstock_get_it_with_the_job(
    start_driver: Callable[..., Driver], standalone: Standalone, url: str, tmp_path: Path
) -> None:
    env = {"PYSPARK_PYTHON": str(bare_python(tmp_path))}
    said = start_driver(_JOB, standalone.url, json.dumps(dict(standalone.conf)), url, env=env).end()
    assert {f"read {_ENTRIES}", f"streamed {_ENTRIES}", f"written {_ENTRIES}", "carried True"} <= set(said)


@pytest.mark.slow
def test_executors_that_lack_the_packages_are_named(
    start_driver: Callable[..., Driver], standalone: Standalone, tmp_path: Path
) -> None:
    script = (
        "import json, sys\nfrom penstock.spark import session\nfrom penstock.spark.sessions import PackagesMissing\n"
        "try: session(master=sys.argv[1], short=True, conf=json.loads(sys.argv[2]))\n"
        "except PackagesMissing as error: print(error)"
    )
    env = {"PYSPARK_PYTHON": str(bare_python(tmp_path, has_packages=False))}
    driver = start_driver(script, standalone.url, json.dumps(dict(standalone.conf)), env=env)
    assert (
        "install penstock[spark] there" in driver.wait_for_line("is missing redis, hiredis, msgspec, pyarrow: (.*)")[1]
    )
    driver.end()


def test_a_python_that_executors_do_not_have_is_named() -> None:
    told = (
        'Lost task 0.3: java.io.IOException: Cannot run program "/x/python": error=2, No such file or directory\n\tat'
    )
    with pytest.raises(PackagesMissing, match=r"Python /x/python \(error=2, No such file or directory\): set PYSPARK_"):
        sessions._tell_missing_python(told)
    sessions._tell_missing_python("Job aborted")


@pytest.mark.slow
def test_a_connect_server_that_has_penstock_imports_its_own(connect: SparkSession, url: str, said: Said) -> None:
    register(connect)
    read(connect, url, said)
    assert said.lines == [f"read {_ENTRIES}"]
    assert not code_shipping.is_carried()


@pytest.mark.slow
def test_a_connect_server_that_lacks_penstock_gets_it_with_the_job(
    java: Path, url: str, tmp_path: Path, said: Said
) -> None:
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    with ConnectServer(tmp_path, env={"PYSPARK_PYTHON": str(bare_python(tmp_path))}) as server:
        client = ConnectSession.builder.remote(server.url).create()
        register(client)
        run(client, url, said)
        client.stop()
    assert said.lines == [f"read {_ENTRIES}", f"streamed {_ENTRIES}", f"written {_ENTRIES}"]
    assert code_shipping.is_carried()


def test_a_job_may_force_what_it_knows(spark: SparkSession, url: str, said: Said) -> None:
    register(spark, by_value=True)
    read(spark, url, said)
    assert code_shipping.is_carried()
    register(spark, by_value=False)
    read(spark, url, said)
    assert not code_shipping.is_carried()
    assert said.lines == [f"read {_ENTRIES}"] * 2
