"""Iceberg, without jars or with them.

Without jars, Spark writes the files of a batch to `<table>/data/batch-<batch>-<sink>/<attempt>`, and the driver adds
them to the table. With jars, rows are appended to a temporary branch, and one commit publishes them. Both commits
record the number of the batch in the properties of the table. A batch whose number is not greater than the last one is
already in the table, and a pipeline may change its library between two runs.

Rows with a key are merged into the table by the driver, or by Iceberg's MERGE. Because rows are ordered, repeating a
MERGE changes nothing, so with jars the batch is recorded after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from penstock.spark.lake.files import FailPoint
from penstock.spark.lake.iceberg import BatchNote, IcebergTable, Merge, for_hadoop
from penstock.spark.lake.iceberg_java import IcebergFailed, IcebergJavaTable
from penstock.spark.lake.parquet import nullable_arrow, unfit, written
from penstock.spark.pipeline.files import BatchKey, Files, joined, keep_attempt
from penstock.spark.pipeline.rejected_rows import RefusalRule, time_rules, visible
from penstock.spark.pipeline.sink_options import Iceberg
from penstock.spark.pipeline.sinks.keyed import DELETED, Upsert, table_schema
from penstock.spark.pipeline.sinks.writer import FileSink, has_class, has_extension, unwritable
from penstock.spark.runtime.errors import one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_FOLDER = "_penstock_partition_"
_CATALOGUES = ("org.apache.iceberg.spark.SparkCatalog", "org.apache.iceberg.spark.SparkSessionCatalog")
_EXTENSION = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_ROWS = "penstock_rows"


class IcebergWriter(FileSink):
    """Appends batches to an Iceberg table, or replaces rows in it by their key, through PyIceberg."""

    is_atomic = True

    def __init__(self, sink: Iceberg, files: Files) -> None:
        super().__init__(sink)
        self._sink, self._files = sink, files
        self._table = IcebergTable(sink.table, sink.catalog, self.partitions)

    def problems(self, schema: StructType) -> Iterator[str]:
        """Yield problems with writing rows of this schema; write nothing."""
        upsert = Upsert.of(self._sink, schema)
        wanted = table_schema(upsert, schema)
        yield from self.declared_faults(schema)
        faults = [fault for path in self._table.paths() for fault in unwritable(path)]
        yield from faults or self._table.problems(
            nullable_arrow(wanted), is_keyed=upsert is not None, may_add=self._sink.evolve
        )

    def has(self, key: BatchKey) -> bool:
        """Return whether the batch is in the table."""
        return self._table.is_there() and self._table.has(BatchNote(key.query, self._sink.name, key.number))

    def write(self, rows: DataFrame, key: BatchKey, mark: FailPoint) -> bool:
        """Write a batch, unless the table has it; return whether it was new."""
        upsert, note = Upsert.of(self._sink, rows.schema), BatchNote(key.query, self._sink.name, key.number)
        self._table.open(nullable_arrow(table_schema(upsert, rows.schema)), may_add=self._sink.evolve)
        mark("iceberg prepared")
        if self._table.has(note):
            return False
        if upsert is None:
            is_new = self._append(visible(rows), key, note, mark)
        else:
            newest = upsert.newest(rows)
            found = newest.toArrow().cast(nullable_arrow(newest.schema))
            mark("iceberg written")
            is_new = self._table.merge(found, Merge(upsert.key, upsert.order, DELETED), note)
        mark("iceberg committed")
        return is_new

    def _append(self, rows: DataFrame, key: BatchKey, note: BatchNote, mark: FailPoint) -> bool:
        batch, attempt = joined(self._table.location, "data", key.folder_of(note.sink)), uuid4().hex[:8]
        folder = joined(batch, attempt)
        hadoop_folder = for_hadoop(folder)
        count = written(self._foldered(rows), hadoop_folder, self._files.walk, partition_by=self._folders)
        mark("iceberg written")
        if not count:
            self._files.delete(hadoop_folder)
            return True
        found = [file.path for file in self._files.walk(hadoop_folder) if file.path.endswith(".parquet")]
        is_new = self._table.add([joined(folder, path) for path in found], note)
        if is_new:
            keep_attempt(self._files, for_hadoop(batch), attempt)
        return is_new

    @property
    def _folders(self) -> tuple[str, ...]:
        return tuple(f"{_FOLDER}{name}" for name in self.partitions.names)

    def _foldered(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        # Spark omits partition columns from the files, but Iceberg reads them there.
        copies: dict[str, Any] = {
            f"{_FOLDER}{each.name}": f.expr(each.expression(rows.schema)) for each in self.partitions.each
        }
        return rows.withColumns(copies) if copies else rows

    def is_refusal(self, error: BaseException) -> bool:
        """Return whether a write may have failed because of a value: PyIceberg reads the bounds of each column."""
        return isinstance(error, OverflowError | ValueError) or super().is_refusal(error)

    def rules(self, schema: StructType) -> Iterator[RefusalRule]:
        """Yield rules for values that cannot be written."""
        yield from super().rules(schema)
        floats = {field.name for field in schema.fields if field.dataType.typeName() in ("float", "double")}
        for name in self.partitions.names:
            if name in floats:
                yield RefusalRule(name, f"isnan(`{name}`)", "is NaN, which PyIceberg cannot use as a partition value")
        yield from time_rules(schema)


class IcebergSparkWriter(FileSink):
    """Appends batches to an Iceberg table, or replaces rows in it by their key, through Iceberg's jars."""

    def __init__(self, sink: Iceberg, spark: SparkSession) -> None:
        assert sink.spark_catalog is not None
        super().__init__(sink)
        self._sink, self._spark, self._catalogue = sink, spark, sink.spark_catalog
        self.is_atomic = not sink.key  # MERGE may compute the rows more than once

    def problems(self, schema: StructType) -> Iterator[str]:
        """Yield problems with writing rows of this schema; write nothing."""
        if not has_jars(self._catalogue, self._spark):
            yield _missing(self._catalogue)
            return
        wanted = table_schema(Upsert.of(self._sink, schema), schema)
        yield from self.declared_faults(schema)
        faults = [*unfit(wanted), *self._unwritable()]
        yield from faults or self._misfits(wanted)

    def _unwritable(self) -> Iterator[str]:
        if warehouse := self._spark.conf.get(f"{_setting(self._catalogue)}.warehouse", None):
            yield from unwritable(warehouse)

    def _misfits(self, schema: StructType) -> Iterator[str]:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        table = self._opened(self._spark)
        try:
            if table.is_there():
                found, may_add = table.described(), self._sink.evolve
                yield from found.misfits(self._sink.table, table.types_of(schema), self.partitions, may_add=may_add)
        except (PySparkException, Py4JError) as error:
            yield f"cannot use the catalogue: {one_line(getattr(error, 'java_exception', error))}"

    def _opened(self, spark: SparkSession) -> IcebergJavaTable:
        return IcebergJavaTable(self._sink.table, self._catalogue, self.partitions, spark)

    def has(self, key: BatchKey) -> bool:
        """Return whether the batch is in the table."""
        table = self._opened(self._spark)
        return table.is_there() and table.has(BatchNote(key.query, self._sink.name, key.number))

    def write(self, rows: DataFrame, key: BatchKey, mark: FailPoint) -> bool:
        """Write a batch, unless the table has it; return whether it was new."""
        from py4j.protocol import Py4JJavaError

        upsert, note = Upsert.of(self._sink, rows.schema), BatchNote(key.query, self._sink.name, key.number)
        table = self._opened(rows.sparkSession)
        try:
            table.open(table_schema(upsert, rows.schema), may_add=self._sink.evolve)
            mark("iceberg prepared")
            if table.has(note):
                return False
            if upsert is None:
                return self._append(visible(rows), table, note, mark)
            newest = upsert.newest(rows)
            newest.createOrReplaceTempView(_ROWS)
            rows.sparkSession.sql(upsert.merge_statement(table.name_of(), _ROWS, newest.columns))
            mark("iceberg written")
            table.note(note)
            mark("iceberg committed")
        except Py4JJavaError as error:
            raise IcebergFailed(f"table {self._sink.table!r}: {one_line(error.java_exception)}") from error
        return True

    def _append(self, rows: DataFrame, table: IcebergJavaTable, note: BatchNote, mark: FailPoint) -> bool:
        branch = table.branch(note)
        mark("iceberg branched")
        options = {f"snapshot-property.{name}": value for name, value in note.summary.items()}
        table.filled(rows).writeTo(table.name_of(branch)).options(**options).append()
        mark("iceberg written")
        is_new = table.publish(branch, note)
        mark("iceberg committed")
        return is_new


def is_for_jars(sink: Iceberg, spark: SparkSession) -> bool:
    """Return whether the jars write to this sink."""
    if sink.library == "auto" and sink.spark_catalog is not None:
        return not sink.catalog or has_jars(sink.spark_catalog, spark)
    return sink.library == "spark"


def has_jars(catalogue: str, spark: SparkSession) -> bool:
    """Return whether the session has Iceberg's jar and extension, and the catalogue."""
    kind = spark.conf.get(_setting(catalogue), "") if has_extension(spark, _EXTENSION) else ""
    return kind in _CATALOGUES and has_class(spark, str(kind))


def _setting(catalogue: str) -> str:
    return f"spark.sql.catalog.{catalogue}"


def _missing(catalogue: str) -> str:
    return (
        f"the Spark session has no Iceberg, or no catalogue {catalogue!r}: add the jar for this Spark version, for "
        f'example with spark."spark.jars.packages", and set spark."spark.sql.extensions" = \'{_EXTENSION}\' and '
        f"spark.\"{_setting(catalogue)}\" = '{_CATALOGUES[0]}', with its type, uri and warehouse"
    )
