"""What the file system refuses, in our words."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import BackendRefused, BackendUnavailable

_STAYS = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EFBIG,
    errno.ENOTSUP,
    errno.EXDEV,
}


@contextmanager
def translated(what: str, root: Path) -> Iterator[None]:
    """Turn an OSError into BackendRefused if it stays until somebody acts, else into BackendUnavailable."""
    try:
        yield
    except OSError as error:
        kind = BackendRefused if error.errno in _STAYS else BackendUnavailable
        raise kind(f"cannot {what} under {root}: {error}") from error
