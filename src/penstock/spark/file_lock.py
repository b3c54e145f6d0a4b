"""Locks of the kernel on files: they end with the process that holds them, however that ends."""

from __future__ import annotations

import errno
import fcntl
import logging
from pathlib import Path

logger = logging.getLogger("penstock.spark")
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # a file system that has none


def lock(descriptor: int, file: Path, whose: str) -> bool:
    """Lock an open file; tell whether nobody else has it. Where there are no locks, warn and go on."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning(
            "%s cannot be locked (%s): see to it yourself that there is one %s at a time", file, error, whose
        )
    return True


def is_locked(descriptor: int) -> bool:
    """Tell whether somebody holds the lock of an open file; yes where that cannot be told."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
