"""Iceberg tables in a catalogue of the session, through Iceberg's Java library."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from penstock.errors import PenstockError
from penstock.spark.lake.iceberg import BatchNote, Described, partition_text
from penstock.spark.lake.partitions import IDENTITY, Partition, Partitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

_PUBLISHED = "DuplicateWAPCommitException"


class IcebergFailed(PenstockError):
    """Iceberg's Java library could not do what it was asked to."""


class IcebergBranchLost(PenstockError):
    """The branch with the rows of a batch was removed before they were published."""


class IcebergJavaTable:
    """A table; nothing is asked for before it is needed."""

    def __init__(self, name: str, catalogue: str, partitions: Partitions, spark: SparkSession) -> None:
        self._name, self._partitions, self._spark = name, partitions, spark
        self._jvm: Any = spark._jvm  # noqa: SLF001 - Iceberg shows branches and properties to Java alone
        self._session: Any = spark._jsparkSession  # noqa: SLF001 - likewise
        self._parts = [catalogue, *name.split(".")]
        self._table: Any = None

    def name_of(self, branch: str | None = None) -> str:
        """Return the name of the table, or of a branch of it, as SQL writes it."""
        return _quoted([*self._parts, f"branch_{branch}"] if branch else self._parts)

    # --- before anything runs ---

    def is_there(self) -> bool:
        """Return whether the catalogue has the table."""
        iceberg, session = self._jvm.org.apache.iceberg, self._session
        # Not through Spark, which would look for a view as well: not every catalogue has views.
        catalogue = iceberg.spark.Spark3Util.loadIcebergCatalog(session, self._parts[0])
        return bool(catalogue.tableExists(iceberg.catalog.TableIdentifier.parse(self._name)))

    def described(self) -> Described:
        """Return its columns and partitions."""
        table = self._loaded()
        schema, fields = table.schema(), table.spec().fields()
        partitions = [
            partition_text(str(schema.findColumnName(field.sourceId())), str(field.transform().toString()))
            for field in fields
        ]
        return Described(_types(schema), partitions)

    def types_of(self, schema: StructType) -> dict[str, str]:
        """Return what Iceberg calls the types of rows."""
        return _types(self._jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(self._java(schema)))

    # --- a batch ---

    def open(self, schema: StructType, *, may_add: bool = False) -> None:
        """Load the table as it is now; make it if there is none, and add columns that it lacks if that is allowed."""
        if not self.is_there():
            self._create(schema)
        self._table = self._loaded()
        there = _types(self._table.schema())
        missing = [field for field in schema.fields if field.name not in there]
        if missing and may_add:
            self._spark.sql(f"ALTER TABLE {self.name_of()} ADD COLUMNS ({self._columns(missing)})")
            self._spark.catalog.refreshTable(self.name_of())
            self._table = self._loaded()

    def _columns(self, fields: list[StructField]) -> str:
        from pyspark.sql.types import StructField, StructType

        # Later rows may have nulls in columns that have none today.
        return str(self._java(StructType([StructField(field.name, field.dataType) for field in fields])).toDDL())

    def _create(self, schema: StructType) -> None:
        columns = self._columns(schema.fields)
        self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {_quoted(self._parts[:-1])}")
        partitions = ", ".join(map(_partition, self._partitions.each))
        by = f" PARTITIONED BY ({partitions})" if partitions else ""
        self._spark.sql(f"CREATE TABLE IF NOT EXISTS {self.name_of()} ({columns}) USING iceberg{by}")

    def has(self, note: BatchNote) -> bool:
        """Return whether the batch, or a later one, is in the table."""
        table = self._loaded() if self._table is None else self._table
        last = table.properties().get(note.name)
        return note.is_in({} if last is None else {note.name: last})

    def filled(self, rows: DataFrame) -> DataFrame:
        """Return the rows with null in the columns that only the table has."""
        from pyspark.sql import functions as f

        there = self._spark.table(self.name_of()).schema.fields
        missing = {field.name: f.lit(None).cast(field.dataType) for field in there if field.name not in rows.columns}
        return rows.withColumns(missing) if missing else rows

    def note(self, note: BatchNote) -> None:
        """Note a batch whose rows are in the table."""
        self._table.refresh()
        self._table.updateProperties().set(note.name, note.value).commit()

    def branch(self, note: BatchNote) -> str:
        """Make a branch of the table as it was loaded, in place of those that killed drivers have left."""
        owner = hashlib.sha256(note.name.encode()).hexdigest()[:16]
        name = f"penstock_{owner}_{note.value}_{uuid4().hex[:8]}"
        # Not as the table is by now: another driver's batch would then look like one that was published before.
        begin = self._table.currentSnapshot()
        left = [ref for ref in self._table.refs() if ref.startswith(f"penstock_{owner}_")]
        if left:
            change = self._table.manageSnapshots()
            for ref in left:
                change.removeBranch(ref)
            change.commit()
        change = self._table.manageSnapshots()
        (change.createBranch(name) if begin is None else change.createBranch(name, begin.snapshotId())).commit()
        return name

    def publish(self, branch: str, note: BatchNote) -> bool:
        """Take over what is in the branch, and note the batch, in one commit; return whether it was new."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        self._table.refresh()
        if self.has(note):
            return False
        head = self._table.snapshot(branch)
        if head is None:
            raise IcebergBranchLost(
                f"table {self._name!r}: branch {branch!r} was removed before batch {note.value} was published. "
                "Does another driver run this pipeline with the same checkpoint? Stop one of them and restart "
                "the other"
            )
        try:
            self._staged(head, branch, note).commitTransaction()
        except Py4JJavaError as error:
            if _PUBLISHED not in str(error.java_exception):
                raise
            return False  # another driver was faster; the branch is removed with its next batch
        return True

    def _staged(self, head: Any, branch: str, note: BatchNote) -> Any:
        change, summary = self._table.newTransaction(), head.summary()
        if summary.get("wap.id") == note.wap_id and summary.get("added-records") is not None:
            change.manageSnapshots().cherrypick(head.snapshotId()).commit()
            change.updateProperties().set(note.name, note.value).commit()
        change.manageSnapshots().removeBranch(branch).commit()
        return change

    def _loaded(self) -> Any:
        table = self._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(self._session, self.name_of())
        table.refresh()  # Spark keeps tables for a while: another driver, or PyIceberg, may have written since
        return table

    def _java(self, schema: StructType) -> Any:
        return self._jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())


def _types(schema: Any) -> dict[str, str]:
    return {field.name(): str(field.type().toString()) for field in schema.columns()}


def _partition(partition: Partition) -> str:
    column = _quoted([partition.column])
    if partition.transform == IDENTITY:
        return column
    name = f"{partition.transform}s" if partition.number is None else partition.transform  # days, hours
    return f"{name}({column if partition.number is None else f'{partition.number}, {column}'})"


def _quoted(parts: list[str]) -> str:
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)
