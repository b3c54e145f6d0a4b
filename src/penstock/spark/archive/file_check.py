"""Whether files of an archive are what was written: their bytes against the manifest, before any row is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.spark.archive.errors import ArchiveDamaged
from penstock.spark.archive.file_writer import checksum
from penstock.spark.archive.layout import inside
from penstock.spark.archive.manifest import FileEntry
from penstock.spark.carried import Carried
from penstock.spark.master import enough_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TOLD = "path string, bytes bigint, sha256 string"
_FOUND = pa.schema([("path", pa.string()), ("why", pa.string())])
_FOUND_DDL = "path string, why string"


def why_changed(file: Path, size: int, sha256: str) -> str | None:
    """Return how a file differs from what was written, None if it does not; raise OSError if it cannot be read."""
    found = file.stat().st_size
    if found != size:
        return f"it has {found:,} bytes instead of {size:,}"
    if checksum(file) != sha256:
        return "its bytes are not those that were written"
    return None


class FileChecks:
    """Checks each file once, as long as nobody touches it: a replay goes through its files twice."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: dict[str, tuple[int, ...]] = {}

    def check(self, entry: FileEntry) -> None:
        """Raise ArchiveDamaged if a file is not what was written, and FileNotFoundError if it is not there."""
        file = inside(self._root, entry.path)
        known = file.stat()
        mark = (known.st_ino, known.st_size, known.st_mtime_ns, known.st_ctime_ns)
        if self._seen.get(entry.path) == mark:
            return
        why = why_changed(file, entry.bytes, entry.sha256)
        if why is not None:
            raise damaged(file, why)
        self._seen[entry.path] = mark


def check_on_executors(spark: SparkSession, root: Path, entries: Sequence[FileEntry]) -> None:
    """Check many files, side by side; raise ArchiveDamaged for the first that is missing or changed."""
    if not entries:
        return
    told = spark.createDataFrame([(entry.path, entry.bytes, entry.sha256) for entry in entries], _TOLD)
    spread = told.repartition(min(len(entries), enough_tasks(spark)))
    found = spread.mapInArrow(_Findings(root), _FOUND_DDL).collect()
    if found:
        path, why = min((row["path"], row["why"]) for row in found)
        raise damaged(root / path, why)


@dataclass(frozen=True)
class _Findings(Carried):
    root: Path

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = []
            for row in batch.to_pylist():
                why = self._why(row["path"], row["bytes"], row["sha256"])
                if why is not None:
                    found.append({"path": row["path"], "why": why})
            yield pa.RecordBatch.from_pylist(found, _FOUND)

    def _why(self, path: str, size: int, sha256: str) -> str | None:
        try:
            return why_changed(inside(self.root, path), size, sha256)
        except OSError as error:
            return f"it cannot be read: {error.strerror or error}"
        except ArchiveDamaged as error:
            return str(error)


def damaged(file: Path, why: str) -> ArchiveDamaged:
    """Return the error for a file that must not be used."""
    return ArchiveDamaged(f"{file} is damaged: {why}. Nothing of it was used; run `penstock archive verify`")
