"""The file system as a store of results: blocking, shared by both halves.

    <root>/<day>/<kind>-<id>.msgpack[.gz]     the result; created by a hard link, which never replaces a file
    <root>/.ids/<bucket>/<id>                 a symbolic link that says `<day>/<kind>.msgpack[.gz]`: where the result of
                                              this id is or will be stored, by any process, on any day
    <root>/.incoming/<random>                 what is being written; left behind only by a process that was killed

The symbolic link is read, not followed: without the id its text fits into the inode. Saving one id goes through these
steps, each of which may be the last one before a crash:

1. claim     the symbolic link of the id is created, or read if it is there. Alone it means nothing.
2. draft     the bytes are written under a random name and synced.
3. publish   a hard link gives the draft the claimed name. Only one writer can do that: the result is there.
4. settle    the folders are synced, the draft's own name is removed.

A process that finds a valid file at the claimed name syncs its folder and leaves it: the first result wins.

Users who can write to the folder can put a link, a pipe or a device there: nothing behind a link is written or
deleted, and only plain files are read.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import gzip
import os
import re
import secrets
import stat
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple, Self

from penstock.errors import BackendRefused, DecodeError
from penstock.results.entry import StoredResult, bucket_of, day_of, kind_name, log, read_entry, split
from penstock.task import Result

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_PLAIN, _PACKED = ".msgpack", ".msgpack.gz"
_CLAIM = re.compile(r"(\d{4}-\d{2}-\d{2})/([^/]+?)(\.msgpack|\.msgpack\.gz)")
_PERMANENT = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP,
          errno.EFBIG, errno.ENOTSUP, errno.EXDEV)  # fmt: skip
_LEFT_BEHIND_S = 24 * 3600.0
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP = 16 + zlib.MAX_WBITS  # the format, for zlib
_MAX_UNPACKED = 256 << 20  # a megabyte of gzip may unpack to a thousand
_OPEN_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # do not follow links, or block on pipes
_SYNCFS_FROM = 32  # below that, syncing each costs less than waiting for what other programs have written


def is_transient_error(error: OSError) -> bool:
    """Return whether the same call may succeed later by itself."""
    return error.errno not in _PERMANENT


class ResultPlace(NamedTuple):
    """Where the result of a task id is stored: decided once, by the first process to claim the id."""

    day: str
    kind_name: str
    ending: str

    @property
    def claim(self) -> str:
        """The text of the symbolic link."""
        return f"{self.day}/{self.kind_name}{self.ending}"

    def path(self, root: Path, task_id: str) -> Path:
        """Return the file of the result."""
        return root.joinpath(self.day, f"{self.kind_name}-{task_id}{self.ending}")


def claim_path(root: Path, task_id: str) -> Path:
    """Return the symbolic link of a task id."""
    return root.joinpath(".ids", bucket_of(task_id), task_id)


class FSStore:
    """Results under one folder; safe to use from several threads and processes at once."""

    def __init__(self, root: Path, compress: bool) -> None:
        self.root, self._is_packed = root, compress
        self._known_folders: set[Path] = set()

    # --- saving -----------------------------------------------------------------------------------

    def save(self, entries: Sequence[StoredResult]) -> dict[str, bytes]:
        """Save what is not there yet; return, by task id, the bytes that are stored now."""
        with _Saving(self, len(entries)) as saving:
            for entry in entries:
                saving.draft(entry)
            saving.publish()
            return saving.stored

    def claim(self, entry: StoredResult, link: Path) -> tuple[ResultPlace, bool]:
        """Return where the result of this id is or will be stored, and whether the id was unclaimed."""
        result = entry.result
        wanted = ResultPlace(day_of(result), kind_name(result.kind), _PACKED if self._is_packed else _PLAIN)
        try:
            os.symlink(wanted.claim, link)  # noqa: PTH211  the tests listen to os, and it is faster
        except FileExistsError:
            return self._claimed(link, wanted), False
        return wanted, True

    def _claimed(self, link: Path, wanted: ResultPlace) -> ResultPlace:
        place = _read_claim(link)
        if place is None:
            raise BackendRefused(f"{link} was not written by Penstock: remove it to save the result")
        if place.kind_name != wanted.kind_name and not place.path(self.root, link.name).exists():
            raise BackendRefused(
                f"task id {link.name} was claimed for a result of kind {place.kind_name!r} that was never "
                f"written, and is now used with kind {wanted.kind_name!r}: an id belongs to one kind; if the "
                f"new kind is correct, remove {link}"
            )
        return place

    def ensure_folder(self, folder: Path) -> set[Path]:
        """Create the folder if need be; return the folders whose names must be synced for that."""
        if folder in self._known_folders:
            return set()
        for each in (folder, *folder.parents):
            if each == self.root:
                break
            if each.is_symlink():
                raise BackendRefused(f"{each} is a symbolic link, which leads out of {self.root}: remove it")
        above = {folder.parent}  # also if it is there: its maker may have been killed before syncing it
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        for each in reversed(missing):
            above.add(each.parent)
            each.mkdir(0o770 if self.is_shared else 0o700, exist_ok=True)
        if folder.name == ".incoming":
            self._remove_left_behind(folder)
        self._known_folders.add(folder)
        return above

    def forget_folders(self) -> None:
        """Forget which folders exist: some may have been removed."""
        self._known_folders.clear()

    def _remove_left_behind(self, incoming: Path) -> None:
        oldest = time.time() - _LEFT_BEHIND_S
        with _opened(incoming, os.O_RDONLY | os.O_DIRECTORY) as folder:
            for name in os.listdir(folder):  # noqa: PTH208  a Path may lead elsewhere by now
                with contextlib.suppress(FileNotFoundError):  # another process cleans as well
                    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    if found.st_mtime < oldest and not stat.S_ISDIR(found.st_mode):
                        os.unlink(name, dir_fd=folder)

    @cached_property
    def is_shared(self) -> bool:
        """Whether the group of the root may write to it: then results are for the group, else for us alone."""
        return self.root.is_dir() and bool(self.root.stat().st_mode & stat.S_IWGRP)

    # --- reading ----------------------------------------------------------------------------------

    def get(self, task_id: str) -> StoredResult | None:
        """Return the result of the id: one symbolic link is read, and one file."""
        place = _read_claim(claim_path(self.root, task_id))
        return None if place is None else _read(place.path(self.root, task_id), task_id)

    def scan(self, kind: str | None) -> Iterator[Result]:
        """Yield the results, the oldest day first, within a day as the file system lists them."""
        for day in self.days():
            yield from self.scan_day(day, kind)

    def days(self) -> list[str]:
        """Return the names of the folders of results, the oldest first."""
        return sorted(name for name in _listing(self.root) if _DAY.fullmatch(name))

    def scan_day(self, day: str, kind: str | None, accepts: Callable[[str], bool] = lambda _: True) -> Iterator[Result]:
        """Yield the results of one folder, of the files that are taken by their names."""
        folder, wanted = self.root / day, None if kind is None else kind_name(kind)
        try:
            for name in _listing(folder):
                if not name.startswith(".") and accepts(name):
                    found = _scanned(folder, name, wanted)
                    if found is not None:
                        yield found.result
        except OSError as error:
            log.warning("skipped %s, which cannot be listed: %s", folder, error)

    def set_aside(self, path: Path, task_id: str) -> StoredResult | None:
        """Give a file that holds no valid result another name; return the result if there is a valid one after all."""
        # One at a time: without the lock, a slow writer could put aside what a faster one has just made good.
        with _opened(self.root / ".ids" / ".lock", os.O_RDWR | os.O_CREAT) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = _read(path, task_id)
            if found is None:
                aside = path.with_name(f".bad-{secrets.token_hex(4)}-{path.name}"[:255])
                with contextlib.suppress(FileNotFoundError):
                    path.rename(aside)
                    log.warning("%s did not hold a valid result; renamed it to %s", path, aside)
            return found


class _Saving:
    """One call of save(): the drafts on their way, and the folders to sync."""

    def __init__(self, store: FSStore, count: int) -> None:
        self._store, self._root = store, store.root
        self._mode = 0o660 if store.is_shared else 0o600
        self._is_synced_at_once = _is_worth_syncing_at_once(count)
        self._drafts: list[tuple[StoredResult, Path, str]] = []  # what, where to, and under which name until then
        self._folders: set[Path] = set()
        self.stored: dict[str, bytes] = {}

    def __enter__(self) -> Self:
        self._folders |= self._store.ensure_folder(self._root / ".incoming")
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        for _entry, _path, draft in self._drafts:
            with contextlib.suppress(OSError):
                os.unlink(draft)  # noqa: PTH108
        if error_type is not None:
            self._store.forget_folders()

    def draft(self, entry: StoredResult) -> None:
        """Claim the id and write the bytes, unless a valid result is there already."""
        task_id = entry.result.task_id
        link = claim_path(self._root, task_id)
        bucket = link.parent
        self._folders |= self._store.ensure_folder(bucket)
        place, is_ours = self._store.claim(entry, link)
        path = place.path(self._root, task_id)
        day = path.parent
        self._folders |= self._store.ensure_folder(day) | {bucket, day}
        if not is_ours and (found := _read(path, task_id)) is not None:
            self.stored[task_id] = found.raw
            return
        draft = f"{self._root}/.incoming/{secrets.token_hex(12)}"
        self._drafts.append((entry, path, draft))
        self._write(draft, _packed(entry.raw) if place.ending == _PACKED else entry.raw)

    def _write(self, draft: str, raw: bytes) -> None:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode)
        try:
            _write_all(descriptor, raw)
            if not self._is_synced_at_once:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def publish(self) -> None:
        """Give the drafts, once they are on the disk, their names, and wait until those are on the disk as well."""
        if self._is_synced_at_once and self._drafts:
            _sync(self._root, at_once=True)
        for entry, path, draft in self._drafts:
            self.stored[entry.result.task_id] = self._link(draft, path, entry)
        if _is_worth_syncing_at_once(len(self._folders)):
            _sync(self._root, at_once=True)
        else:
            for folder in self._folders:
                _sync(folder)

    def _link(self, draft: str, path: Path, entry: StoredResult) -> bytes:
        task_id = entry.result.task_id
        while True:
            try:
                os.link(draft, path)
                return entry.raw
            except FileExistsError:
                found = _read(path, task_id) or self._store.set_aside(path, task_id)
                if found is not None:
                    return found.raw


def _write_all(descriptor: int, raw: bytes) -> None:
    rest = memoryview(raw)
    while rest:  # the system may take fewer bytes at a time
        rest = rest[os.write(descriptor, rest) :]


def _read(path: Path, task_id: str) -> StoredResult | None:
    """Return the result in the file; None if there is none, with a warning if there is something else.

    Raises: OSError if the file cannot be read. It may well hold a result, which must not be taken for a torn one.
    """
    try:
        raw = _content(path)
    except FileNotFoundError:
        return None
    if raw.startswith(_GZIP_MAGIC):
        try:
            raw = _unpacked(raw)
        except (DecodeError, zlib.error) as error:
            log.warning("skipped %s, which does not hold a valid result: %s", path, error)
            return None
    return read_entry(raw, path, task_id)


def _content(path: Path) -> bytes:
    """Return the bytes of a plain file, and none of anything else."""
    try:
        with _opened(path, os.O_RDONLY) as descriptor, open(descriptor, "rb", closefd=False) as file:
            return file.read() if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            return b""
        raise


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | _OPEN_FLAGS, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _scanned(folder: Path, name: str, wanted: str | None) -> StoredResult | None:
    """Return the result in a file of a day, if it is of the wanted kind; None, with a warning, if there is none."""
    parts = split(name.removesuffix(".gz").removesuffix(_PLAIN)) if name.endswith((_PLAIN, _PACKED)) else None
    if parts is None:
        log.warning("skipped %s, which is not a result", folder / name)
    elif wanted is None or parts[0] == wanted:
        try:
            return _read(folder / name, parts[1])
        except OSError as error:
            log.warning("skipped %s, which cannot be read: %s", folder / name, error)
    return None


def _read_claim(link: Path) -> ResultPlace | None:
    try:
        found = _CLAIM.fullmatch(os.readlink(link))  # noqa: PTH115
        return ResultPlace(found[1], found[2], found[3]) if found else None
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: it is no symbolic link
            raise
        log.warning("skipped %s, which is not a claim", link)
        return None


def _listing(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as items:
            for item in items:
                yield item.name
    except FileNotFoundError:
        return


def _packed(raw: bytes) -> bytes:
    if len(raw) > _MAX_UNPACKED:
        raise BackendRefused(
            f"the result has {len(raw):,} bytes, more than the limit of {_MAX_UNPACKED:,} for compressed "
            "results: use compress=False, or store the data elsewhere and return a reference"
        )
    return gzip.compress(raw, compresslevel=6, mtime=0)


def _unpacked(packed: bytes) -> bytes:
    unpacker = zlib.decompressobj(_GZIP)
    raw = unpacker.decompress(packed, _MAX_UNPACKED + 1)
    if len(raw) > _MAX_UNPACKED:
        raise DecodeError(f"it unpacks to more than {_MAX_UNPACKED:,} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise DecodeError("it is not a single, complete gzip file")
    return raw


# --- surviving a power cut ------------------------------------------------------------------------


def _is_worth_syncing_at_once(count: int) -> bool:
    """Return whether syncing the whole file system is faster than syncing this many files or folders."""
    return count >= _SYNCFS_FROM and _syncfs() is not None


def _sync(folder: Path, *, at_once: bool = False) -> None:
    """Return when the names in the folder are on the disk, or all that was written to its file system."""
    sync = _syncfs() if at_once else os.fsync
    assert sync is not None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        sync(descriptor)
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
