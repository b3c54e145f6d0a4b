"""What the sinks that write files have in common: folders named after values, and places to write to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.spark.lake.partitions import Partitions
from penstock.spark.pipeline.files import Files, local_path
from penstock.spark.pipeline.origin import Origin
from penstock.spark.pipeline.sink_options import Delta, Iceberg, Parquet
from penstock.spark.pipeline.sinks.keyed import is_refused_for_key, key_rules
from penstock.spark.pipeline.sinks.refusal import RefusalRule, Refusals, broken, is_of_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_LONGEST_NAME = 255  # of a folder, in bytes, on nearly every file system
# What Spark writes as three characters in the name of a folder.
_ESCAPED = r"[\\x01-\\x1F\\x7F\"#%\'*/:=?\\\\{\\[\\]^]"


class FileSink:
    """A writer of files. It makes folders of values, and refuses what they cannot be named after."""

    def __init__(self, sink: Parquet | Delta | Iceberg) -> None:
        self.partitions = Partitions.of(sink.partition_by)
        self._of_keys = sink

    def is_refusal(self, error: BaseException) -> bool:
        """Return whether a write may have failed for a value in a row: file systems say it in many ways."""
        return is_refused_for_key(error) or (bool(self.partitions.each) and is_of_spark(error))

    def refusals(self, rows: DataFrame, origin: Origin | None) -> Refusals:
        """Yield the rows that the sink does not take, and write nothing."""
        yield from broken(rows, list(self.rules(rows.schema)), origin)

    def rules(self, schema: StructType) -> Iterator[RefusalRule]:
        """Yield rules for values that cannot be written."""
        yield from key_rules(self._of_keys, schema)
        yield from folder_rules(self.partitions, schema)


def folder_rules(partitions: Partitions, schema: StructType) -> Iterator[RefusalRule]:
    """Yield rules for values that no folder can be named after."""
    for partition in partitions.each:
        text, column = f"cast({partition.expression(schema)} as string)", partition.column
        yield RefusalRule(
            column, f"instr({text}, char(0)) > 0", "has a NUL, and no folder can be named so (partition_by)"
        )
        length = f"octet_length(regexp_replace({text}, '{_ESCAPED}', '%XX')) + {len(partition.name.encode()) + 1}"
        why = f"makes a longer name of a folder than {_LONGEST_NAME} bytes (partition_by)"
        yield RefusalRule(column, f"{length} > {_LONGEST_NAME}", why)


def unwritable(path: str, files: Files | None = None) -> Iterator[str]:
    """Yield why nothing can be written below a path: on this machine, or elsewhere if it cannot be reached at all."""
    place = local_path(path) if files is None else files.local(path)
    if place is None:
        if files is not None and (why := files.why_unreachable(path)):
            yield f"{path} cannot be reached: {why}"
        return
    try:
        while not place.exists() and place != place.parent:
            place = place.parent
    except OSError as error:  # a name that is too long
        yield f"{path} cannot be written to: {error.strerror}"
        return
    if not place.is_dir():
        yield f"{path} cannot be written to: {place} is no folder"
    elif not os.access(place, os.W_OK | os.X_OK):
        yield f"{path} cannot be written to: no permission for {place}"
    elif why := _why_not_in(place):
        yield f"{path} cannot be written to: nothing can be made in {place} ({why})"


def _why_not_in(folder: Path) -> str | None:
    try:
        Path(tempfile.mkdtemp(prefix=".penstock-", dir=folder)).rmdir()  # to the superuser, rights alone do not tell it
    except OSError as error:
        return error.strerror or str(error)
    return None
