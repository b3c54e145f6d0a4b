"""Making the formats `redis_streams` and `penstock_results` known to a session, and their code to the executors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import penstock
from penstock.errors import ConfigurationError, PenstockError
from penstock.spark.runtime import code_shipping
from penstock.spark.runtime.master import is_connect, is_local
from penstock.spark.runtime.prerequisites import require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

# What the code of the data source imports on an executor, however it got there.
_PACKAGES = ("redis", "hiredis", "msgspec", "pyarrow")
_PROBES = 64
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"[^:]*:([^\n]*)')


class PackagesMissing(PenstockError):
    """The Python of the executors lacks packages that travel neither by value nor with the job."""


def register(spark: SparkSession, by_value: bool | Literal["auto"] = "auto") -> None:
    """Makes the formats `redis_streams` and `penstock_results` known to this session, classic or Spark Connect.

    With `by_value` the code of Penstock travels with the job; without it the executors import their own. "auto" takes
    their own on a local master. Elsewhere it asks them with one small job, and sends the code unless they all have
    this version installed. True and False ask nothing.

    Raises:
        SparkMissing: PySpark is not installed, or too old.
        PackagesMissing: the executors answered that they lack redis, hiredis, msgspec or pyarrow.

    """
    require_pyspark()
    if by_value not in (True, False, "auto"):
        raise ConfigurationError(f"by_value={by_value!r} must be True, False or 'auto'")
    is_by_value = not _is_installed(spark) if by_value == "auto" else by_value
    if not is_by_value:
        code_shipping.leave()
    for source in _sources(spark):
        spark.dataSource.register(code_shipping.shipped(source) if is_by_value else source)


def _sources(spark: SparkSession) -> tuple[type[DataSource], ...]:
    from penstock.spark.results.source import ResultsSource
    from penstock.spark.source.data_source import RedisStreamsSource, of_session

    if is_connect(spark):  # it does not tell the number of cores
        return RedisStreamsSource, ResultsSource
    return of_session(spark.sparkContext.defaultParallelism), ResultsSource


def _is_installed(spark: SparkSession) -> bool:
    """Tells whether every executor has this version of Penstock; asks them unless they share our Python."""
    if _shares_our_python(spark):
        return True
    answers = [json.loads(answer) for answer in _ask_executors(spark)]
    for answer in answers:
        if answer["missing"]:
            raise PackagesMissing(
                f"The Python of the executors ({answer['python']} on {answer['host']}) lacks "
                f"{', '.join(answer['missing'])}: install penstock[spark] there, or ship an environment that has it "
                f"and point PYSPARK_PYTHON at its Python"
            )
    return all(answer["version"] == penstock.__version__ for answer in answers)


def _shares_our_python(spark: SparkSession) -> bool:
    return not is_connect(spark) and is_local(spark.sparkContext.master)


def _ask_executors(spark: SparkSession) -> set[str]:
    from pyspark.sql.types import StringType

    # Named outright: PySpark itself goes by the kind of session that was started first in this process.
    functions: Any = import_module(f"pyspark.sql.{'connect.' if is_connect(spark) else ''}functions")
    # Pickled rows, not Arrow: an executor without pyarrow is to say so, and not to fail. The type as a value: where no
    # session of the other kind was ever started, PySpark cannot read the name of one.
    answer = functions.udf(_probe(_PACKAGES), StringType(), useArrow=False)
    try:
        rows = spark.range(_PROBES).select(answer(functions.col("id")).alias("answer")).distinct().collect()
    except Exception as error:  # of Spark, of the bridge to Java or of Spark Connect
        _tell_missing_python(str(error))
        raise
    return {row["answer"] for row in rows}


def _tell_missing_python(error: str) -> None:
    """Raise PackagesMissing if an error says that there is no such Python on an executor."""
    found = _NO_PYTHON.search(error)
    if found is not None:
        raise PackagesMissing(
            f"The executors cannot start the Python {found[1]} ({found[2].strip()}): set PYSPARK_PYTHON to one that is "
            "in the same place on all of them and on the driver, or ship an environment and point it at its Python"
        ) from None


def _probe(packages: tuple[str, ...]) -> Callable[[Any], str]:
    """Returns a function that describes the Python it runs in. It is local, so that it is always pickled by value."""

    def probe(_: object) -> str:
        import importlib.util
        import json
        import socket
        import sys

        from pyspark import SparkFiles

        def where(name: str) -> str | None:
            spec = importlib.util.find_spec(name)
            return None if spec is None else spec.origin or ""

        version = None
        origin = where("penstock")
        # A package that came with --py-files or addArtifacts is here, but not where streaming queries look for it.
        if origin is not None and not origin.startswith(SparkFiles.getRootDirectory()):
            version = importlib.import_module("penstock").__version__
        missing = [name for name in packages if where(name) is None]
        return json.dumps(
            {"version": version, "missing": missing, "python": sys.executable, "host": socket.gethostname()}
        )

    return probe
