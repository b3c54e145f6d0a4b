"""The interface of all sinks, and what sinks that write files have in common."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from penstock.spark.lake.files import FailPoint, why_unwritable
from penstock.spark.lake.partitions import Partitions
from penstock.spark.pipeline.files import BatchKey, Files, local_path
from penstock.spark.pipeline.rejected_rows import Origin, RefusalRule, Refusals, RejectsRows, broken, is_of_spark
from penstock.spark.pipeline.sink_options import Delta, Iceberg, Parquet
from penstock.spark.pipeline.sinks.keyed import is_refused_for_key, key_rules, table_schema, upsert_of
from penstock.spark.runtime.errors import is_transient_failure, root_cause
from penstock.spark.runtime.master import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_LONGEST_NAME = 255  # of a folder, in bytes, on nearly every file system
_FOLDERS = re.compile(r"/[^/\n]*=[^/\n]*")
# Characters that Spark escapes in the name of a folder, as three characters.
_ESCAPED = r"[\\x01-\\x1F\\x7F\"#%\'*/:=?\\\\{\\[\\]^]"


class Writer(RejectsRows, Protocol):
    """Writes the batches of a pipeline to one sink."""

    is_atomic: bool
    """Whether a batch becomes visible in one step, so that a repetition may have other rows."""

    def problems(self, schema: StructType) -> Iterator[str]:
        """Yield problems with writing rows of this schema; write nothing."""

    def has(self, key: BatchKey) -> bool:
        """Return whether the batch is in the sink or, unless `is_atomic`, whether part of it may be."""

    def write(self, rows: DataFrame, key: BatchKey, mark: FailPoint) -> bool:
        """Write a batch, unless the sink has it; return whether it was new."""


class FileSink:
    """A writer of files in folders named by values; it rejects values that cannot be folder names."""

    def __init__(self, sink: Parquet | Delta | Iceberg) -> None:
        self.partitions = Partitions.of(sink.partition_by)
        self._declared = sink

    def declared_faults(self, schema: StructType) -> Iterator[str]:
        """Yield problems of the declaration, for rows of this schema."""
        upsert = upsert_of(self._declared, schema)
        yield from () if upsert is None else upsert.problems(schema)
        yield from self.partitions.problems(table_schema(upsert, schema))

    def is_refusal(self, error: BaseException) -> bool:
        """Return whether a write may have failed because of a value in a row: file systems report this in many ways."""
        return is_refused_for_key(error) or (
            bool(self.partitions.each) and is_of_spark(error) and not _is_transient(error)
        )

    def refusals(self, rows: DataFrame, origin: Origin | None) -> Refusals:
        """Yield the rows that the sink rejects, and write nothing."""
        yield from broken(rows, list(self.rules(rows.schema)), origin)

    def rules(self, schema: StructType) -> Iterator[RefusalRule]:
        """Yield rules for values that cannot be written."""
        yield from key_rules(self._declared, schema)
        yield from folder_rules(self.partitions, schema)


def _is_transient(error: BaseException) -> bool:
    # Without the names of folders, which contain values.
    return is_transient_failure(_FOLDERS.sub("", f"{error}\n{root_cause(error)}"))


def folder_rules(partitions: Partitions, schema: StructType) -> Iterator[RefusalRule]:
    """Yield rules for values that cannot be folder names."""
    for partition in partitions.each:
        text, column = f"cast({partition.expression(schema)} as string)", partition.column
        yield RefusalRule(
            column, f"instr({text}, char(0)) > 0", "contains NUL, which a folder name cannot (partition_by)"
        )
        length = f"octet_length(regexp_replace({text}, '{_ESCAPED}', '%XX')) + {len(partition.name.encode()) + 1}"
        why = f"makes a folder name longer than {_LONGEST_NAME} bytes (partition_by)"
        yield RefusalRule(column, f"{length} > {_LONGEST_NAME}", why)


def unwritable(path: str, files: Files | None = None) -> Iterator[str]:
    """Yield why a local path is not writable, or why a remote one cannot be reached."""
    file = local_path(path) if files is None else files.local(path)
    if file is None:
        if files is not None and (unreachable := files.why_unreachable(path)):
            yield f"cannot reach {path}: {unreachable}"
        return
    if why := why_unwritable(file):
        yield f"cannot write to {path}: {why}"


def has_class(spark: SparkSession, name: str) -> bool:
    """Return whether the session has a Java class."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no other access
    try:
        jvm.org.apache.spark.util.Utils.classForName(name, True, False)
    except Py4JError:
        return False
    return True


def has_extension(spark: SparkSession, name: str) -> bool:
    """Return whether the settings of a classic session name an extension."""
    return not is_connect(spark) and name in (spark.conf.get("spark.sql.extensions", "") or "")
