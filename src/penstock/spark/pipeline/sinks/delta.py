"""Delta Lake, without jars or with them.

Without jars, Spark writes the files of a batch to `<path>/batch-<batch>-<sink>/<attempt>`, and the driver commits them;
with jars, Delta writes and commits. Both commits carry the number of the batch, as Delta's `txn` of the query and sink.
A batch whose number is not greater than the last one is already in the table, and a pipeline may change its library
between two runs. If two drivers commit the same batch, Delta Lake rejects the second.

Rows with a key are merged into the table by the driver, or by Delta's MERGE.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

from penstock.errors import ConfigurationError
from penstock.spark.lake.delta import ATTEMPTS, CommitConflict, DataFile, DeltaLog, LogDamaged, library, statistics
from penstock.spark.lake.files import FailPoint, Location, wait_for_others
from penstock.spark.lake.parquet import nullable_arrow, written
from penstock.spark.pipeline.files import BatchKey, Files, joined, keep_attempt
from penstock.spark.pipeline.rejected_rows import visible
from penstock.spark.pipeline.sink_options import Delta
from penstock.spark.pipeline.sinks.keyed import DELETED, Upsert, table_schema
from penstock.spark.pipeline.sinks.writer import FileSink, has_class, has_extension, unwritable
from penstock.spark.runtime.errors import one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_NULL = "__HIVE_DEFAULT_PARTITION__"
_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_MISSING = (
    "library = 'spark' needs Delta Lake in the Spark session: add the jar for this Spark version, for example with "
    f'spark."spark.jars.packages", and set spark."spark.sql.extensions" = \'{_EXTENSION}\''
)
_ROWS = "penstock_rows"
_REQUIRED = re.compile(r'("(?:containsNull|valueContainsNull|nullable)":\s*)false')  # in a type as JSON
_FOOTERS_AT_ONCE = 8
_RECENT = 50  # commits to search for the one just made: other writers may commit meanwhile


class _DeltaSink(FileSink):
    """What both libraries have in common."""

    def __init__(self, sink: Delta) -> None:
        super().__init__(sink)
        self._sink = sink

    def _schema(self, schema: StructType) -> StructType:
        """Return the columns of the table for rows of this schema."""
        return self.partitions.schema(table_schema(Upsert.of(self._sink, schema), schema))

    def _misfits(self, wanted: dict[str, str], found: dict[str, str], partitions: list[str]) -> Iterator[str]:
        path = self._sink.path
        for name, kind in wanted.items():
            if found.get(name) == kind or (name not in found and self._sink.evolve):
                continue
            there = f"{found[name]} in the table" if name in found else "missing in the table"
            yield f"the table at {path} has different columns: {name!r} is {kind} in the rows and {there}"
        if partitions != list(self.partitions.names):
            yield f"the table at {path} is partitioned by {partitions}, which differs from partition_by"

    def _owner(self, key: BatchKey) -> str:
        return f"{key.query}.{self._sink.name}"


class DeltaWriter(_DeltaSink):
    """Appends batches to a Delta table, or replaces rows in it by their key, through deltalake."""

    is_atomic = True

    def __init__(self, sink: Delta, files: Files) -> None:
        super().__init__(sink)
        self._files = files

    def problems(self, schema: StructType) -> Iterator[str]:
        """Yield problems with writing rows of this schema; write nothing."""
        library()
        faults = [*self.declared_faults(schema), *unwritable(self._sink.path, self._files)]
        yield from faults
        if faults:
            return
        try:
            log = DeltaLog.open(self._location)
        except LogDamaged as error:
            yield str(error)
            return
        except Exception as error:  # the errors of stores have no common class
            yield f"cannot read the table at {self._sink.path}: {one_line(error)}"
            return
        if log is not None:
            yield from self._differences(nullable_arrow(self._schema(schema)), log)

    def has(self, key: BatchKey) -> bool:
        """Return whether the batch is in the table."""
        log = DeltaLog.open(self._location)
        return log is not None and log.has((self._owner(key), key.number))

    def write(self, rows: DataFrame, key: BatchKey, mark: FailPoint) -> bool:
        """Write a batch, unless the table has it; return whether it was new."""
        upsert, batch = Upsert.of(self._sink, rows.schema), (self._owner(key), key.number)
        log = self._log(rows.schema)
        mark("delta prepared")
        if log.has(batch):
            return False
        # Another sink may have created the table after the problems were looked for.
        if misfits := list(self._differences(nullable_arrow(self._schema(rows.schema)), log)):
            raise ConfigurationError("; ".join(misfits))
        if upsert is None:
            is_new = self._append(log, self.partitions.added(visible(rows)), key, batch, mark)
        else:
            is_new = self._merge(log, self.partitions.added(upsert.newest(rows)), upsert, batch, mark)
        mark("delta committed")
        return is_new

    def _log(self, schema: StructType) -> DeltaLog:
        """Open the current version of the table; create it if it does not exist, and add missing columns if allowed."""
        wanted = nullable_arrow(self._schema(schema))
        log = DeltaLog.create(self._location, wanted, self.partitions.names)
        if self._sink.evolve:
            log.add_columns(wanted)
        return log

    def _differences(self, wanted: Any, log: DeltaLog) -> Iterator[str]:
        types = _types(library().Schema.from_arrow(wanted))
        return self._misfits(types, _types(log.table.schema()), log.partition_by)

    def _append(self, log: DeltaLog, rows: DataFrame, key: BatchKey, batch: tuple[str, int], mark: FailPoint) -> bool:
        folder, attempt = key.folder_of(self._sink.name), uuid4().hex[:8]
        attempt_path = joined(self._sink.path, folder, attempt)
        # The log of a Delta table has partition values as strings, with times in UTC.
        count = written(rows, attempt_path, self._files.walk, partition_by=self.partitions.names, zone="UTC")
        mark("delta written")
        is_new = not count or self._add(log, attempt_path, f"{folder}/{attempt}", batch)
        if count and is_new:
            keep_attempt(self._files, joined(self._sink.path, folder), attempt)
        else:
            self._files.delete(attempt_path)
        return is_new

    def _add(self, log: DeltaLog, attempt_path: str, folder: str, batch: tuple[str, int]) -> bool:
        """Add the files of a batch to the table; return whether the batch was new."""
        log.refresh()
        if log.has(batch):
            return False  # another driver was faster, and deleted these files
        found = [file for file in self._files.walk(attempt_path) if file.path.endswith(".parquet")]
        store = self._location.store

        def described(file: Any) -> DataFile:
            path, values = f"{folder}/{file.path}", partition_values(file.path)
            stats = statistics(_footer(store.opened(path)), without=tuple(values))
            return DataFile(path, file.size, values, stats=stats, modified_ms=file.modified_ms)

        with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as readers:
            files = list(readers.map(described, found))
        return self._committed(log, batch, lambda: log.commit(files, app=batch, keeps_log=False))

    def _merge(self, log: DeltaLog, rows: DataFrame, upsert: Upsert, batch: tuple[str, int], mark: FailPoint) -> bool:
        found, newer = rows.toArrow().cast(nullable_arrow(rows.schema)), upsert.is_newer('t."{}"', 's."{}"')
        mark("delta written")

        def merge() -> None:
            log.merge(found, upsert.key, is_newer=newer, deleted=DELETED, app=batch)

        return self._committed(log, batch, merge)

    def _committed(self, log: DeltaLog, batch: tuple[str, int], change: Callable[[], object]) -> bool:
        """Commit a change, and retry if others change the table meanwhile; return whether the batch was new."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                change()
            except CommitConflict:
                wait_for_others(attempt)
                log.refresh()
                if log.has(batch):
                    return False
                if attempt == ATTEMPTS:
                    raise
            else:
                break
        return True

    @property
    def _location(self) -> Location:
        path = self._sink.path
        if "://" not in path and self._files.local(path) is None:
            path = self._files.qualified(path)  # Spark's default file system is not local
        return Location.of(path, self._sink.options)


def _footer(source: Any) -> Any:
    import pyarrow.parquet as pq

    return pq.read_metadata(source)


def _types(schema: Any) -> dict[str, str]:
    """Return the type of each column, without what may be null in it: Spark forgets that when rows are staged."""
    return {field.name: _REQUIRED.sub(r"\1true", str(field.type.to_json())).strip('"') for field in schema.fields}


def partition_values(path: str) -> dict[str, str | None]:
    """Return the partition values in a path such as `day=2026-11-15/part-0.parquet`."""
    pairs = (part.partition("=") for part in path.split("/")[:-1])
    return {name: None if value == _NULL else unquote(value) for name, _, value in pairs}


class DeltaSparkWriter(_DeltaSink):
    """Appends batches to a Delta table, or replaces rows in it by their key, through Delta's jars."""

    def __init__(self, sink: Delta, spark: SparkSession) -> None:
        super().__init__(sink)
        self._spark = spark
        self.is_atomic = not sink.key  # MERGE may compute the rows more than once

    def problems(self, schema: StructType) -> Iterator[str]:
        """Yield problems with writing rows of this schema; write nothing."""
        from pyspark.errors import PySparkException

        if not has_jars(self._spark):
            yield _MISSING
            return
        faults = [*self.declared_faults(schema), *unwritable(self._sink.path, Files(self._spark))]
        yield from faults
        if faults:
            return
        try:
            if self._is_table(self._spark):
                there = self._spark.read.format("delta").load(self._sink.path).schema
                detail = self._spark.sql(f"DESCRIBE DETAIL {self._name}").first()
                partitions = [] if detail is None else list(detail["partitionColumns"])
                yield from self._misfits(_names(self._schema(schema)), _names(there), partitions)
        except PySparkException as error:
            yield f"cannot read the table at {self._sink.path}: {one_line(error)}"

    def has(self, key: BatchKey) -> bool:
        """Return whether the batch is in the table."""
        if not self._is_table(self._spark):
            return False
        jvm: Any = self._spark._jvm  # noqa: SLF001 - no statement returns the numbers of Delta's `txn`
        session = self._spark._jsparkSession  # noqa: SLF001 - likewise
        snapshot = jvm.org.apache.spark.sql.delta.DeltaLog.forTableWithSnapshot(
            session, self._sink.path
        ).productElement(1)
        last = snapshot.transactions().get(self._owner(key))
        return bool(last.isDefined()) and int(last.get()) >= key.number

    def write(self, rows: DataFrame, key: BatchKey, mark: FailPoint) -> bool:
        """Write a batch, unless the table has it; return whether it was new."""
        spark, upsert = rows.sparkSession, Upsert.of(self._sink, rows.schema)
        token = f"{self._owner(key)} {key.number} {uuid4().hex}"
        mark("delta read")
        if upsert is None:
            self._append(self.partitions.added(visible(rows)), key, token)
        else:
            self._merge(self.partitions.added(upsert.newest(rows)), upsert, key, token, mark)
        mark("delta committed")
        # Delta silently skips a batch that it has; then no commit is ours.
        return self._has_commit(spark, token)

    def _has_commit(self, spark: SparkSession, token: str) -> bool:
        recent = spark.sql(f"DESCRIBE HISTORY {self._name} LIMIT {_RECENT}").select("userMetadata").collect()
        return any((row[0] or "").startswith(token) for row in recent)

    def _append(self, rows: DataFrame, key: BatchKey, token: str) -> None:
        writer = rows.write.format("delta").mode("append").option("mergeSchema", str(self._sink.evolve).lower())
        if self.partitions.each:
            writer = writer.partitionBy(*self.partitions.names)
        writer = writer.option("txnAppId", self._owner(key)).option("txnVersion", str(key.number))
        writer.option("userMetadata", token).save(self._sink.path)

    def _merge(self, rows: DataFrame, upsert: Upsert, key: BatchKey, token: str, mark: FailPoint) -> None:
        spark = rows.sparkSession
        if not self._is_table(spark) or self._sink.evolve:
            # Without rows: this creates the table, or adds missing columns.
            empty = spark.createDataFrame([], rows.drop(DELETED).schema)
            writer = empty.write.format("delta").mode("append").option("mergeSchema", "true")
            writer.partitionBy(*self.partitions.names).save(self._sink.path)
            mark("delta prepared")
        rows.createOrReplaceTempView(_ROWS)
        settings = {
            "spark.databricks.delta.write.txnAppId": self._owner(key),
            "spark.databricks.delta.write.txnVersion": str(key.number),
            "spark.databricks.delta.commitInfo.userMetadata": token,
        }
        with _set(spark, settings):
            spark.sql(upsert.merge_statement(self._name, _ROWS, rows.columns))

    @property
    def _name(self) -> str:
        return f"delta.`{self._sink.path}`"

    def _is_table(self, spark: SparkSession) -> bool:
        # A killed driver may leave a folder without a commit, or with the draft of one.
        return any(name[:1].isdigit() for name in Files(spark).names(joined(self._sink.path, "_delta_log")))


@contextmanager
def _set(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Set options of statements, which only the session can have."""
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


def _names(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def uses_jars(sink: Delta, spark: SparkSession) -> bool:
    """Return whether the jars write to this sink."""
    if sink.library == "auto":
        return not sink.options and has_jars(spark)
    return sink.library == "spark"


def has_jars(spark: SparkSession) -> bool:
    """Return whether the session has Delta Lake's jar and extension."""
    return has_extension(spark, _EXTENSION) and has_class(spark, _EXTENSION)
