"""Whether files of an archive are what was written: their bytes against the manifest, before any row is used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.spark.archive.errors import ArchiveDamaged
from penstock.spark.archive.file_writer import checksum
from penstock.spark.archive.manifest import FileEntry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def why_changed(file: Path, entry: FileEntry) -> str | None:
    """Return how a file differs from what was written, None if it does not; raise OSError if it cannot be read."""
    size = file.stat().st_size
    if size != entry.bytes:
        return f"it has {size:,} bytes instead of {entry.bytes:,}"
    if checksum(file) != entry.sha256:
        return "its bytes are not those that were written"
    return None


class FileChecks:
    """Checks each file once, as long as nobody touches it: a replay goes through its files twice."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: dict[str, tuple[int, ...]] = {}

    def check(self, entry: FileEntry) -> None:
        """Raise ArchiveDamaged if a file is not what was written, and FileNotFoundError if it is not there."""
        file = self._root / entry.path
        known = file.stat()
        mark = (known.st_ino, known.st_size, known.st_mtime_ns, known.st_ctime_ns)
        if self._seen.get(entry.path) == mark:
            return
        why = why_changed(file, entry)
        if why is not None:
            raise damaged(file, why)
        self._seen[entry.path] = mark


def check_on_executors(spark: SparkSession, root: Path, entries: Sequence[FileEntry]) -> None:
    """Check many files, side by side; raise ArchiveDamaged for the first that is missing or changed."""
    if not entries:
        return
    slices = min(len(entries), 4 * spark.sparkContext.defaultParallelism)
    found = spark.sparkContext.parallelize(entries, slices).mapPartitions(_Findings(root)).collect()
    if found:
        path, why = min(found)
        raise damaged(root / path, why)


class _Findings:
    def __init__(self, root: Path) -> None:
        self._root = root

    def __call__(self, entries: Iterable[FileEntry]) -> Iterable[tuple[str, str]]:
        for entry in entries:
            try:
                why = why_changed(self._root / entry.path, entry)
            except OSError as error:
                why = f"it cannot be read: {error.strerror or error}"
            if why is not None:
                yield entry.path, why


def damaged(file: Path, why: str) -> ArchiveDamaged:
    """Return the error for a file that must not be used."""
    return ArchiveDamaged(f"{file} is damaged: {why}. Nothing of it was used; run `penstock archive verify`")
