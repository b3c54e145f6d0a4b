"""Making files and folders survive a power cut, one by one or all at once."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

_WORTH_IT = 32  # below that, syncing each costs less than waiting for what other programs have written


def is_worth_syncing_at_once(count: int) -> bool:
    """Tell whether so many files or folders are better synced with everything else on their file system."""
    return count >= _WORTH_IT and _syncfs() is not None


def sync_everything(folder: Path) -> None:
    """Return when all that was written to the file system of this folder is on the disk."""
    syncfs = _syncfs()
    assert syncfs is not None
    _with_folder(folder, syncfs)


def sync_folder(folder: Path) -> None:
    """Return when the names in the folder are on the disk."""
    _with_folder(folder, os.fsync)


def _with_folder(path: Path, function: Callable[[int], None]) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        function(descriptor)
    finally:
        os.close(descriptor)


@cache
def _syncfs() -> Callable[[int], None] | None:
    # Before Linux 5.8 syncfs() kept quiet about data that could not be written.
    if sys.platform != "linux" or _kernel() < (5, 8):
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).syncfs
    except (AttributeError, OSError):
        return None

    def syncfs(descriptor: int) -> None:
        if function(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    return syncfs


def _kernel() -> tuple[int, int]:
    major, minor = [*os.uname().release.split("."), "0"][:2]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)
