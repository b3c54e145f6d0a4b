"""Replay: messages out of an archive, of dead letters or of a file, into a stream again."""

from penstock.spark.replay.archive_origin import ArchiveOrigin
from penstock.spark.replay.origins import DeadLetterOrigin, FileOrigin, ReplayOrigin, Span
from penstock.spark.replay.rewrite import Counts
from penstock.spark.replay.run import Replay, Replayed
from penstock.spark.replay.where import Where

__all__ = [
    "ArchiveOrigin",
    "Counts",
    "DeadLetterOrigin",
    "FileOrigin",
    "Replay",
    "ReplayOrigin",
    "Replayed",
    "Span",
    "Where",
]
