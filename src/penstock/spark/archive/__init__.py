"""The archive: a partitioned Parquet log of streams, with a manifest of the ids that it holds."""

from penstock.spark.archive.errors import ArchiveConflict, ArchiveDamaged
from penstock.spark.archive.run import ArchiveRun

__all__ = ["ArchiveConflict", "ArchiveDamaged", "ArchiveRun"]
