"""The archive: a Delta table of streams, partitioned by stream and day, that knows which ids it holds."""

from penstock.spark.archive.compact import Compacted, compact
from penstock.spark.archive.old_format import import_archive
from penstock.spark.archive.read import StreamStatus, is_archive, read, status
from penstock.spark.archive.run import ArchiveRun
from penstock.spark.archive.state import ArchiveConflict, ArchiveDamaged
from penstock.spark.archive.verify import ArchiveFinding, VerificationReport, verify

__all__ = [
    "ArchiveConflict",
    "ArchiveDamaged",
    "ArchiveFinding",
    "ArchiveRun",
    "Compacted",
    "StreamStatus",
    "VerificationReport",
    "compact",
    "import_archive",
    "is_archive",
    "read",
    "status",
    "verify",
]
