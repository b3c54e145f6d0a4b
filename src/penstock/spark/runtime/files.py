"""Directories that are made once and used by every later process, and locks on files."""

from __future__ import annotations

import atexit
import errno
import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

logger = logging.getLogger("penstock.spark")
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # a file system that has none


def made_once(kind: str, key: str, make: Callable[[Path], None]) -> Path:
    """Returns the directory for this key; `make` fills it if it is not there yet.

    Guarantees: another process sees the directory complete or not at all, however many make it at the same time.
    """
    folder = find_made(kind, key)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder.parent))
    try:
        make(draft)
        try:
            draft.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster, and its directory is as good
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def find_made(kind: str, key: str) -> Path:
    """Returns where the directory for this key is or will be."""
    return cache_directory() / kind / hashlib.sha256(key.encode()).hexdigest()[:16]


def cache_directory() -> Path:
    """Returns the private directory of this user: `$XDG_CACHE_HOME/penstock`, or one in /tmp that goes with us."""
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    folder = Path(home) / "penstock"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return _temporary_directory()
    # Files here are executed, so others must not be able to write to the directory.
    status = folder.stat()
    is_ours = status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(folder, os.W_OK)
    return folder if is_ours else _temporary_directory()


@cache
def _temporary_directory() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="penstock-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def lock(descriptor: int, file: Path, whose: str) -> bool:
    """Lock an open file; return whether that succeeded. Where locks are not supported, warn and return True.

    The kernel ends the lock with the process that holds it, however that ends.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning("cannot lock %s (%s): make sure that there is only one %s at a time", file, error, whose)
    return True


def is_locked(descriptor: int) -> bool:
    """Return whether the lock of an open file is held; True where that is unknown."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
