"""What can be wrong with an archive."""

from __future__ import annotations

from penstock.errors import ConfigurationError, NotFound, PenstockError


class ArchiveMissing(NotFound, ConfigurationError):
    """There is no archive at the path that was named."""


class ArchiveDamaged(PenstockError):
    """The archive is not what its log says, or the log itself is not whole."""


class ArchiveConflict(PenstockError):
    """Somebody else wrote to the archive, or a stream has come back with ids that are archived already."""
