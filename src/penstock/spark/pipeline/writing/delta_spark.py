"""Delta Lake with its own jars, where the session has them: Delta commits a batch together with its number.

It is the same entry of the log that the jar-less writer makes, so a pipeline may change its library between two runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.spark.master import is_connect
from penstock.spark.pipeline.batch_key import BatchKey, Mark
from penstock.spark.pipeline.files import Files
from penstock.spark.pipeline.sinks import Delta
from penstock.spark.pipeline.writing.parquet import unknown_partitions, unwritable
from penstock.spark.pipeline.writing.refusal import Foldered
from penstock.spark.spark_errors import one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_LOG = "org.apache.spark.sql.delta.DeltaLog"
_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_MISSING = (
    "library = 'spark' needs Delta Lake in the session: its jar for this version of Spark, for example with "
    f'spark."spark.jars.packages", and spark."spark.sql.extensions" = \'{_EXTENSION}\''
)


def uses_jars(sink: Delta, spark: SparkSession) -> bool:
    """Tell whether Spark's own library writes to this sink."""
    if sink.library == "auto":
        return not sink.options and has_jars(spark)
    return sink.library == "spark"


def has_jars(spark: SparkSession) -> bool:
    """Tell whether the session knows Delta Lake: the jar alone is not enough."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    if is_connect(spark) or _EXTENSION not in (spark.conf.get("spark.sql.extensions", "") or ""):
        return False
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark shows no other way to the classes of the session
    try:
        jvm.org.apache.spark.util.Utils.classForName(_LOG, True, False)
    except Py4JError:
        return False
    return True


class DeltaSparkWriter(Foldered):
    """Appends batches to a Delta table, which it makes if there is none."""

    is_atomic = True

    def __init__(self, sink: Delta, spark: SparkSession) -> None:
        self._sink, self._spark = sink, spark
        self.partition_by = sink.partition_by

    def problems(self, schema: StructType) -> Iterator[str]:
        """Yield what would keep rows of this schema from being written; write nothing."""
        from pyspark.errors import PySparkException

        if not has_jars(self._spark):
            yield _MISSING
            return
        yield from unknown_partitions(self._sink.partition_by, schema)
        yield from unwritable(self._sink.path, Files(self._spark))
        try:
            if self._is_table():
                yield from self._misfits(schema)
        except PySparkException as error:
            yield f"the table at {self._sink.path} cannot be read: {one_line(error)}"

    def _misfits(self, schema: StructType) -> Iterator[str]:
        path = self._sink.path
        found = {f.name: f.dataType.simpleString() for f in self._spark.read.format("delta").load(path).schema.fields}
        for field in schema.fields:
            kind = field.dataType.simpleString()
            if found.get(field.name) != kind:
                there = f"{found[field.name]} there" if field.name in found else "missing there"
                yield f"the table at {path} has other columns: {field.name!r} is {kind} here and {there}"
        detail = self._spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
        partitions = [] if detail is None else list(detail["partitionColumns"])
        if partitions != list(self._sink.partition_by):
            yield f"the table at {path} is partitioned by {partitions}, not by partition_by"

    def write(self, rows: DataFrame, key: BatchKey, mark: Mark) -> bool:
        """Write a batch, unless it is there; tell whether it was new."""
        owner = f"{key.query}.{self._sink.name}"
        last = self._last(owner)
        if last is not None and last >= key.number:
            return False
        mark("delta read")
        writer = rows.write.format("delta").mode("append")
        if self._sink.partition_by:
            writer = writer.partitionBy(*self._sink.partition_by)
        # Delta itself leaves a number out that its log has: also one that came after we looked.
        writer.option("txnAppId", owner).option("txnVersion", str(key.number)).save(self._sink.path)
        mark("delta committed")
        return True

    def _is_table(self) -> bool:
        return int(self._log().unsafeVolatileSnapshot().version()) >= 0

    def _last(self, owner: str) -> int | None:
        if not self._is_table():
            return None
        found = self._log().unsafeVolatileSnapshot().transactions().get(owner)
        return int(found.get()) if found.isDefined() else None

    def _log(self) -> Any:
        jvm: Any = self._spark._jvm  # noqa: SLF001 - Delta shows its transactions to Java alone
        delta = jvm.org.apache.spark.sql.delta.DeltaLog
        delta.clearCache()  # another driver, or deltalake, may have written since
        return delta.forTable(self._spark._jsparkSession, self._sink.path)  # noqa: SLF001 - likewise
