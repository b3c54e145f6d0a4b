"""A Spark that starts in half the time, for jobs so short that starting is most of their work.

Measured on two cores, from `import pyspark` to the first row of a Python data source: 15.5 s as Spark comes, 13.3 s
with the plain compiler and collector, 9.6 s with the class archive as well, 7.8 s with the slim SPARK_HOME on top.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import PenstockError
from penstock.spark.runtime.files import find_made, made_once
from penstock.spark.runtime.java import ensure_java, release_of

# The optimising compiler and the parallel collector pay off after minutes, and cost seconds before that.
_PLAIN = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_SILENT = ("-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr")  # an archive that does not fit is left alone
_ARCHIVE = "classes.jsa"
_ARCHIVE_TIMEOUT_S = 600.0

# Touches what a short job touches: SQL, a Python worker, Arrow, a streaming query with its checkpoint.
_REHEARSAL = """
import sys, tempfile
from pyspark.sql import SparkSession
options, memory = sys.argv[1], "1g"
spark = (
    SparkSession.builder.master("local[2]").config("spark.driver.extraJavaOptions", options)
    .config("spark.ui.enabled", "false").config("spark.driver.memory", memory)
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
spark.range(100).selectExpr("id % 7 as k", "id").groupBy("k").sum("id").collect()
spark.range(10).mapInArrow(lambda batches: batches, "id long").collect()
with tempfile.TemporaryDirectory() as place:
    query = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load().writeStream.format("parquet")
    query = query.option("path", place + "/out").option("checkpointLocation", place + "/checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()
    spark.read.parquet(place + "/out").count()
spark.stop()
java = spark.sparkContext._gateway.proc
java.stdin.close()
java.wait()
"""


def java_options() -> str:
    """Returns the options of a Java that starts fast; with the class archive if it has been made."""
    archive = find_made("classes", _archive_key()) / _ARCHIVE
    return " ".join([*_PLAIN, *_SILENT, f"-XX:SharedArchiveFile={archive}"] if archive.is_file() else _PLAIN)


def make_class_archive() -> Path:
    """Makes the archive of loaded classes that later sessions start from, and returns it.

    It takes about half a minute and 170 MB in the cache directory, and saves four seconds of each start. It belongs to
    one Java and one PySpark; make it again after an upgrade.

    Raises:
        PenstockError: Spark did not run through, or its Java makes no archives.

    """

    def make(folder: Path) -> None:
        options = " ".join([*_PLAIN, *_SILENT, f"-XX:ArchiveClassesAtExit={folder / _ARCHIVE}"])
        environment = {"PYSPARK_PYTHON": sys.executable, **os.environ}
        done = subprocess.run(
            [sys.executable, "-c", _REHEARSAL, options],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_ARCHIVE_TIMEOUT_S,
            check=False,
        )
        if done.returncode or not (folder / _ARCHIVE).is_file():
            raise PenstockError(
                f"cannot create the class archive; output of Spark: {(done.stdout + done.stderr)[-2000:]}"
            )

    return made_once("classes", _archive_key(), make) / _ARCHIVE


@contextmanager
def slim_spark_home() -> Iterator[None]:
    """Lets a local Spark that is started inside the block import PySpark from where this process has it.

    By default its Python workers import PySpark from a zip file without compiled code, once for each kind of worker.
    SPARK_HOME is changed for the block only, and only if PySpark was installed as a package and SPARK_HOME is not set.
    """
    package = _pyspark_package()
    if "SPARK_HOME" in os.environ or not (package / "jars").is_dir() or not (package / "python" / "lib").is_dir():
        yield
        return
    os.environ["SPARK_HOME"] = str(_slim_home(package))
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def _slim_home(package: Path) -> Path:
    def make(home: Path) -> None:
        for entry in package.iterdir():
            if entry.name != "python":
                (home / entry.name).symlink_to(entry)
        library = home / "python" / "lib"
        library.mkdir(parents=True)
        for archive in (package / "python" / "lib").glob("*.zip"):
            # Spark looks whether they are there before it looks for data sources: there they are, and empty.
            zipfile.ZipFile(library / archive.name, "w").close()

    return made_once("spark-home", _pyspark_key(package), make)


def _archive_key() -> str:
    home = ensure_java()
    return f"{home.resolve()} {release_of(home)} {_pyspark_key(_pyspark_package())}"


def _pyspark_key(package: Path) -> str:
    from pyspark import __version__ as version

    return f"{package} {version}"


def _pyspark_package() -> Path:
    import pyspark

    return Path(pyspark.__file__).resolve().parent
