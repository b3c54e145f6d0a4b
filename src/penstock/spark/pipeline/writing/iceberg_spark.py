"""Iceberg with its own jars, where the session has them: Iceberg writes a batch beside the table, then publishes it.

Rows are first appended to a branch of the table, which nobody reads. One commit then takes them over into the table and
notes the batch, in the property that the jar-less writer uses as well: a pipeline may change its library between two
runs. Iceberg publishes a batch once, also when two drivers try to at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.spark.master import is_connect
from penstock.spark.pipeline.batch_key import BatchKey, Mark
from penstock.spark.pipeline.sinks import Iceberg
from penstock.spark.pipeline.writing.iceberg_fit import misfits
from penstock.spark.pipeline.writing.iceberg_java_table import IcebergFailed, IcebergJavaTable
from penstock.spark.pipeline.writing.iceberg_note import BatchNote
from penstock.spark.pipeline.writing.parquet import unfit, unknown_partitions, unwritable
from penstock.spark.pipeline.writing.refusal import Foldered
from penstock.spark.spark_errors import one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_CATALOGUES = ("org.apache.iceberg.spark.SparkCatalog", "org.apache.iceberg.spark.SparkSessionCatalog")
_EXTENSION = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


def is_for_jars(sink: Iceberg, spark: SparkSession) -> bool:
    """Tell whether Spark's own library writes to this sink."""
    if sink.library == "auto" and sink.spark_catalog is not None:
        return not sink.catalog or has_jars(sink.spark_catalog, spark)
    return sink.library == "spark"


def has_jars(catalogue: str, spark: SparkSession) -> bool:
    """Tell whether the session knows Iceberg and the catalogue: the jar alone is not enough."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    if is_connect(spark) or _EXTENSION not in (spark.conf.get("spark.sql.extensions", "") or ""):
        return False
    kind = spark.conf.get(_setting(catalogue), "")
    if kind not in _CATALOGUES:
        return False
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark shows no other way to the classes of the session
    try:
        jvm.org.apache.spark.util.Utils.classForName(kind, True, False)
    except Py4JError:
        return False
    return True


class IcebergSparkWriter(Foldered):
    """Appends batches to an Iceberg table, which it makes if there is none."""

    is_atomic = True

    def __init__(self, sink: Iceberg, spark: SparkSession) -> None:
        assert sink.spark_catalog is not None
        self._sink, self._spark, self._catalogue = sink, spark, sink.spark_catalog
        self.partition_by = sink.partition_by

    def problems(self, schema: StructType) -> Iterator[str]:
        """Yield what would keep rows of this schema from being written; write nothing."""
        if not has_jars(self._catalogue, self._spark):
            yield _missing(self._catalogue)
            return
        yield from unknown_partitions(self._sink.partition_by, schema)
        faults = [*unfit(schema), *self._unwritable()]
        yield from faults
        if not faults:
            yield from self._misfits(schema)

    def _unwritable(self) -> Iterator[str]:
        if warehouse := self._spark.conf.get(f"{_setting(self._catalogue)}.warehouse", None):
            yield from unwritable(warehouse)

    def _misfits(self, schema: StructType) -> Iterator[str]:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        table = IcebergJavaTable(self._sink, self._spark)
        try:
            if table.is_there():
                yield from misfits(self._sink, table.types_of(schema), table.described())
        except (PySparkException, Py4JError) as error:
            yield f"the catalogue cannot be used: {one_line(getattr(error, 'java_exception', error))}"

    def write(self, rows: DataFrame, key: BatchKey, mark: Mark) -> bool:
        """Write a batch, unless it is there; tell whether it was new."""
        from py4j.protocol import Py4JJavaError

        try:
            return self._write(rows, key, mark)
        except Py4JJavaError as error:
            raise IcebergFailed(f"table {self._sink.table!r}: {one_line(error.java_exception)}") from error

    def _write(self, rows: DataFrame, key: BatchKey, mark: Mark) -> bool:
        note = BatchNote(key, self._sink.name)
        table = IcebergJavaTable(self._sink, rows.sparkSession)
        table.open(rows.schema)
        if table.has(note):
            return False
        branch = table.branch(note)
        mark("iceberg branched")
        options = {f"snapshot-property.{name}": value for name, value in note.summary.items()}
        table.filled(rows).writeTo(table.name_of(branch)).options(**options).append()
        mark("iceberg written")
        is_new = table.publish(branch, note)
        mark("iceberg committed")
        return is_new


def _setting(catalogue: str) -> str:
    return f"spark.sql.catalog.{catalogue}"


def _missing(catalogue: str) -> str:
    return (
        f"the session does not know Iceberg, or no catalogue {catalogue!r} of it: it needs the jar for this version of "
        f'Spark, for example with spark."spark.jars.packages", spark."spark.sql.extensions" = \'{_EXTENSION}\' and '
        f"spark.\"{_setting(catalogue)}\" = '{_CATALOGUES[0]}', with its type, uri and warehouse behind it"
    )
