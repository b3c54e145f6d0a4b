"""Starts Spark sessions with the Java and Python of this machine, and registers our formats.

The formats are `redis_streams` and `penstock_results`. Their code is shipped to the executors.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import penstock
from penstock.errors import ConfigurationError, PenstockError
from penstock.spark.runtime import code_shipping
from penstock.spark.runtime.fast_start import java_options, slim_spark_home
from penstock.spark.runtime.java import ensure_java
from penstock.spark.runtime.master import (
    CONNECT_SCHEME,
    SparkStopped,
    check_yarn,
    is_connect,
    is_local,
    require_running,
)
from penstock.spark.runtime.versions import require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

# What the code of the data source imports on an executor, however it got there.
_PACKAGES = ("redis", "hiredis", "msgspec", "pyarrow")
_PROBES = 64
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"[^:]*:([^\n]*)')
_Settings: TypeAlias = dict[str, "bool | float | int | str | None"]  # as PySpark declares them
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOOPBACK = "127.0.0.1"
_ADDRESS, _HOST, _BIND = "SPARK_LOCAL_IP", "spark.driver.host", "spark.driver.bindAddress"
_YARN = "yarn"
_MOST_SHUFFLE_PARTITIONS = 200
# If one of these is set, the master may be configured elsewhere.
_SPEAKERS = ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME", "SPARK_REMOTE")
# What the constructor of a context fails with if another thread stops it.
_ENDED_MEANWHILE = ("stopped SparkContext", "running MetricsSystem")
_UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
_SHUFFLE = "spark.sql.shuffle.partitions"
_CHECKPOINT_PATH = "spark.sql.streaming.checkpointLocation"
_CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
_CHEAP_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


_start = threading.Lock()  # a start changes the environment and PySpark for its duration


class PackagesMissing(PenstockError):
    """The Python of the executors lacks packages that cannot be shipped with the job."""


def register(spark: SparkSession, by_value: bool | Literal["auto"] = "auto") -> None:
    """Registers the formats `redis_streams` and `penstock_results` in this session, classic or Spark Connect.

    With `by_value` the code of Penstock travels with the job; without it the executors import their own. "auto" takes
    their own on a local master. Elsewhere it asks them with one small job, and sends the code unless they all have
    this version installed. True and False ask nothing.

    Raises:
        SparkMissing: PySpark is not installed, or too old.
        SparkStopped: the session was stopped.
        PackagesMissing: the executors answered that they lack redis, hiredis, msgspec or pyarrow.

    """
    require_pyspark()
    if by_value not in (True, False, "auto"):
        raise ConfigurationError(f"by_value={by_value!r} must be True, False or 'auto'")
    require_running(spark)
    is_by_value = not _is_installed(spark) if by_value == "auto" else by_value
    if not is_by_value:
        code_shipping.leave()
    for source in _sources(spark):
        spark.dataSource.register(code_shipping.shipped(source) if is_by_value else source)


def _sources(spark: SparkSession) -> tuple[type[DataSource], ...]:
    from penstock.spark.format.data_source import RedisStreamsSource, of_session
    from penstock.spark.results.source import ResultsSource

    if is_connect(spark):  # it does not reveal the number of cores
        return RedisStreamsSource, ResultsSource
    return of_session(spark.sparkContext.defaultParallelism), ResultsSource


def _is_installed(spark: SparkSession) -> bool:
    """Returns whether every executor has this version of Penstock; asks them unless they share our Python."""
    if _shares_our_python(spark):
        return True
    answers = [json.loads(answer) for answer in _ask_executors(spark)]
    for answer in answers:
        if answer["missing"]:
            raise PackagesMissing(
                f"The Python of the executors ({answer['python']} on {answer['host']}) is missing "
                f"{', '.join(answer['missing'])}: install penstock[spark] there, or ship an environment that "
                "contains it and point PYSPARK_PYTHON to its Python"
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
            f"The executors cannot start the Python {found[1]} ({found[2].strip()}): set PYSPARK_PYTHON to one "
            "that has the same path on all of them and on the driver, or ship an environment and point "
            "PYSPARK_PYTHON to its Python"
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


def session(
    app_name: str = "penstock",
    master: str | None = None,
    *,
    short: bool = False,
    conf: Mapping[str, str | int | bool] | None = None,
) -> SparkSession:
    """Returns the Spark session of this process, started if there is none, with `redis_streams` registered.

    `master` is a Spark master such as `local[4]` or `spark://host:7077`, or the address of a Spark Connect server,
    `sc://host:15002`. Left out, it is what spark-submit, the environment or Spark's configuration says, else all
    cores of this machine. `short` starts faster and computes slower, without the web interface: for jobs of seconds.
    `conf` goes to Spark as it is, and what it says is never changed.

    Raises:
        SparkMissing: PySpark is not installed, or too old.
        JavaMissing: no Java that is new enough was found.
        ConfigurationError: the master is YARN, and cannot be reached or is named nowhere.
        PackagesMissing: the executors lack a package; see `register`.
        SparkStopped: the cluster ended the application, or the session of this process without stop().

    """
    require_pyspark()
    from pyspark.sql import SparkSession

    given: _Settings = {name: _text(value) for name, value in (conf or {}).items()}
    if master is None:
        master = str(given.pop("spark.master")) if "spark.master" in given else default_master()
    builder = SparkSession.builder.appName(app_name)
    if master is not None and master.startswith(CONNECT_SCHEME):
        spark = builder.remote(master).config(map=given).getOrCreate()
    elif master is None and "SPARK_REMOTE" in os.environ:
        spark = builder.config(map=given).getOrCreate()
    else:
        spark = _classic(builder if master is None else builder.master(master), master, given, short=short)
    register(spark)
    return spark


def _classic(builder: SparkSession.Builder, master: str | None, given: _Settings, *, short: bool) -> SparkSession:
    """Starts Java and Spark, or joins the Spark of this process as it is."""
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not None:
        return builder.config(map=given).getOrCreate()
    settings = dict(given)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started Java, and chosen its options
        if master == _YARN:
            check_yarn(given)
        ensure_java()
        settings = {**_defaults(master, short=short), **given}
        if short:
            settings[_JAVA_OPTIONS] = f"{java_options()} {given.get(_JAVA_OPTIONS, '')}".strip()
    # Python workers are otherwise whatever `python3` is on PATH, and lack what this process has.
    os.environ.setdefault("PYSPARK_PYTHON", str(given.get("spark.pyspark.python", sys.executable)))
    home = slim_spark_home() if short and is_local(master) else nullcontext()
    with _start, home, _web_interface_beside_driver(settings), _signals_kept(), _refusal_named(master), _no_java_left():
        spark = builder.config(map=settings).getOrCreate()
    require_running(spark)  # PySpark returns a session that its cluster has ended
    if not is_connect(spark):
        _leave_nothing(spark)
        if is_local(spark.sparkContext.master):
            _tune_local(spark)
    return spark


def _defaults(master: str | None, *, short: bool) -> _Settings:
    """Returns settings that must be known before Spark starts."""
    settings: _Settings = {}
    if is_local(master):
        # Only this machine must reach the driver, and its host name need not resolve.
        settings |= {_HOST: _LOOPBACK, _BIND: _LOOPBACK}
    elif _is_java_on_loopback():
        settings |= {_HOST: socket.gethostname(), _BIND: "0.0.0.0"}  # noqa: S104 - as Spark itself does
    if is_local(master) and sys.platform == "linux":
        # Over TCP each task waits 40 ms for a delayed acknowledgement between Java and its Python worker.
        settings[_UNIX_SOCKETS] = "true"
    if short:
        settings |= {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    return settings


@contextmanager
def _web_interface_beside_driver(settings: _Settings) -> Iterator[None]:
    """Has the web interface, without a password, listen on loopback where the driver does; else it does everywhere.

    There is no setting for it, only a variable of Java's environment, which is that of this process when Java starts.
    """
    if _ADDRESS in os.environ or settings.get(_BIND) != _LOOPBACK:
        yield
        return
    os.environ[_ADDRESS] = _LOOPBACK
    try:
        yield
    finally:
        del os.environ[_ADDRESS]


@contextmanager
def _no_java_left() -> Iterator[None]:
    """End the Java that PySpark starts in the body if its start is interrupted.

    PySpark then deletes the directory that Java reports to, and that Java would run for ever.
    """
    from pyspark import SparkContext

    java_gateway: Any = import_module("pyspark.java_gateway")
    popen, begun = java_gateway.Popen, list[subprocess.Popen[bytes]]()

    def recording(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        begun.append(popen(*args, **options))
        return begun[-1]

    java_gateway.Popen = recording
    try:
        yield
    except BaseException:
        if SparkContext._gateway is None:  # noqa: SLF001 - else Java has started, and ends with us
            for process in begun:
                process.kill()
                process.wait()
        raise
    finally:
        java_gateway.Popen = popen


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keeps the handler of SIGINT that is installed: PySpark installs one that cancels all jobs."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and before not in (signal.SIG_DFL, signal.default_int_handler, None):
            signal.signal(signal.SIGINT, before)


@contextmanager
def _refusal_named(master: str | None) -> Iterator[None]:
    """Raise SparkStopped if the cluster ends the application while Spark starts, which Spark reports as a mistake."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        yield
    except Py4JJavaError as error:
        if any(sign in str(error) for sign in _ENDED_MEANWHILE):
            raise SparkStopped(
                f"Spark did not start on master {master or 'as configured'}: it cannot be reached, or it rejected the "
                "application; its log says why"
            ) from error
        raise


def _is_java_on_loopback() -> bool:
    """Returns whether Java was started for an earlier local session, which executors elsewhere cannot reach."""
    from pyspark import SparkContext

    java: Any = SparkContext._jvm  # noqa: SLF001 - the only way to Java
    return java is not None and _ADDRESS not in os.environ and java.System.getenv(_ADDRESS) == _LOOPBACK


def _leave_nothing(spark: SparkSession) -> None:
    """Has Java delete, when it ends, the one file that PySpark deletes in `stop()` alone: a socket of its own.

    Java ends after its Python, also one that is killed, and deletes all other files of Spark then.
    """
    server = getattr(spark.sparkContext, "_accumulatorServer", None)  # PySpark's own; over TCP it has no file
    path = getattr(server, "server_address", None)
    if isinstance(path, str):
        assert spark._jvm is not None  # noqa: SLF001 - the only way to Java
        spark._jvm.java.io.File(path).deleteOnExit()  # noqa: SLF001


def _tune_local(spark: SparkSession) -> None:
    """Sets what suits one machine, unless the user has set it."""
    context = spark.sparkContext
    given = context.getConf()
    if not given.contains(_SHUFFLE):
        # Spark's 200 are for clusters: here each is one more task on the same cores, in every micro-batch.
        spark.conf.set(_SHUFFLE, str(min(context.defaultParallelism, _MOST_SHUFFLE_PARTITIONS)))
    hadoop = context._jsc.hadoopConfiguration()  # noqa: SLF001 - PySpark shows Hadoop's settings nowhere else
    paths = [hadoop.get("fs.defaultFS"), given.get(_CHECKPOINT_PATH) or "file:"]
    if not given.contains(_CHECKPOINTS) and all(path.startswith(("file:", "/")) for path in paths):
        # Spark's own manager takes 100 ms for the two files of a micro-batch, this one 30. It looks before it renames,
        # which is enough on the disk of one driver, and not on a store that several can reach.
        spark.conf.set(_CHECKPOINTS, _CHEAP_CHECKPOINTS)


def default_master() -> str | None:
    """Returns the default master of a session; None if Spark may have one configured elsewhere."""
    return None if any(name in os.environ for name in _SPEAKERS) else "local[*]"


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
