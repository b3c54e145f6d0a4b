"""The archive: a partitioned Parquet log of streams, with a manifest of the ids that it holds."""

from penstock.spark.archive.compact import Compacted, compact
from penstock.spark.archive.errors import ArchiveConflict, ArchiveDamaged
from penstock.spark.archive.read import read
from penstock.spark.archive.run import ArchiveRun
from penstock.spark.archive.status import StreamStatus, is_archive, status
from penstock.spark.archive.verify import Finding, Report, verify

__all__ = [
    "ArchiveConflict",
    "ArchiveDamaged",
    "ArchiveRun",
    "Compacted",
    "Finding",
    "Report",
    "StreamStatus",
    "compact",
    "is_archive",
    "read",
    "status",
    "verify",
]
