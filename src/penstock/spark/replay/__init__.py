"""Replay: messages out of an archive, of dead letters or of a file, into a stream again."""

from penstock.spark.replay.origins import ArchiveOrigin, DeadLetterOrigin, FileOrigin, ReplayOrigin, Span, Where
from penstock.spark.replay.run import Counts, Replay, Replayed

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
