"""The file system as a store of results: blocking, shared by both halves.

Saving one id goes through these steps, each of which may be the last one before a crash:

1. claim     the symbolic link of the id is created, or read if it is there. Alone it means nothing.
2. draft     the bytes are written under a random name and synced.
3. publish   a hard link gives the draft the claimed name. Only one writer can do that: the result is there.
4. settle    the folders are synced, the draft's own name is removed.

Whoever finds a valid file at the claimed name syncs its folder and leaves it: the first result wins.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import logging
import os
import secrets
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Self

from penstock.errors import BackendRefused, DecodeError
from penstock.results.batch import Entry
from penstock.results.durable import is_worth_syncing_at_once, sync_everything, sync_folder
from penstock.results.fs_errors import translated
from penstock.results.fs_layout import PACKED, Place, claim_path, parts_of, place_for, place_of
from penstock.results.names import DAY, kind_name
from penstock.task import Result, decode_result

log = logging.getLogger(__name__)
_LEFT_BEHIND_S = 24 * 3600.0
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP = 16 + zlib.MAX_WBITS  # the format, for zlib
_MAX_UNPACKED = 256 << 20  # a megabyte of gzip may unpack to a thousand


class FSStore:
    """Results under one folder; safe to use from several threads and processes at once."""

    def __init__(self, root: Path, compress: bool) -> None:
        self.root, self._is_packed = root, compress
        self._known_folders: set[Path] = set()

    # --- saving -----------------------------------------------------------------------------------

    def save(self, entries: Iterable[Entry]) -> dict[str, bytes]:
        """Save what is not there yet; return, by task id, the bytes that are stored now."""
        waiting = list(entries)
        with translated("save results", self.root), _Saving(self, len(waiting)) as saving:
            for entry in waiting:
                saving.draft(entry)
            saving.publish()
            return saving.stored

    def claim(self, entry: Entry, link: Path) -> tuple[Place, bool]:
        """Return where the result of this id lies or will lie, and whether nobody claimed the id before."""
        wanted = place_for(entry.result, self._is_packed)
        try:
            os.symlink(wanted.claim, link)  # noqa: PTH211  the tests listen to os, and it is faster
        except FileExistsError:
            return self._claimed(link, wanted), False
        return wanted, True

    def _claimed(self, link: Path, wanted: Place) -> Place:
        place = _read_claim(link)
        if place is None:
            raise BackendRefused(f"{link} was not written by Penstock: remove it, and the result can be saved")
        if place.kind_name != wanted.kind_name and not place.path(self.root, link.name).exists():
            raise BackendRefused(
                f"task id {link.name} was claimed by a result of kind {place.kind_name!r} that was never written, and "
                f"now comes with kind {wanted.kind_name!r}: ids belong to one kind; if this one is right, remove {link}"
            )
        return place

    def ensure_folder(self, folder: Path) -> set[Path]:
        """Create the folder if need be; return the folders whose names must be synced for that."""
        if folder in self._known_folders:
            return set()
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
        """Look again which folders there are: somebody may have removed some."""
        self._known_folders.clear()

    def _remove_left_behind(self, incoming: Path) -> None:
        oldest = time.time() - _LEFT_BEHIND_S
        for item in os.scandir(incoming):
            with contextlib.suppress(FileNotFoundError):  # another process cleans as well
                if item.stat(follow_symlinks=False).st_mtime < oldest:
                    Path(item.path).unlink()

    @cached_property
    def is_shared(self) -> bool:
        """Whether the group of the root may write to it: then results are for the group, else for us alone."""
        return self.root.is_dir() and bool(self.root.stat().st_mode & stat.S_IWGRP)

    # --- reading ----------------------------------------------------------------------------------

    def get(self, task_id: str) -> Result | None:
        """Return the result of the id: one symbolic link is read, and one file."""
        with translated("read results", self.root):
            place = _read_claim(claim_path(self.root, task_id))
            if place is None:
                return None
            found = read_valid(place.path(self.root, task_id), task_id)
            return None if found is None else found.result

    def scan(self, kind: str | None) -> Iterator[Result]:
        """Yield the results, the oldest day first, within a day as the file system lists them."""
        for day in self.days():
            yield from self.scan_day(day, kind)

    def days(self) -> list[str]:
        """Return the names of the folders of results, the oldest first."""
        with translated("list results", self.root):
            return sorted(name for name in _listing(self.root) if DAY.fullmatch(name))

    def scan_day(self, day: str, kind: str | None, takes: Callable[[str], bool] = lambda _: True) -> Iterator[Result]:
        """Yield the results of one folder, of the files that are taken by their names."""
        folder = self.root / day
        wanted = None if kind is None else kind_name(kind)
        for name in _lenient_listing(folder):
            if name.startswith(".") or not takes(name):
                continue
            parts = parts_of(name)
            if parts is None:
                log.warning("%s is no result: skipped", folder / name)
            elif wanted is None or parts[0] == wanted:
                found = _read_leniently(folder / name, parts[1])
                if found is not None:
                    yield found.result

    def set_aside(self, path: Path, task_id: str) -> Entry | None:
        """Give a file that holds no valid result another name; return the result if there is a valid one after all."""
        # One at a time: without the lock, a slow writer could put aside what a faster one has just made good.
        with (self.root / ".ids" / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = read_valid(path, task_id)
            if found is None:
                aside = path.with_name(f".bad-{secrets.token_hex(4)}-{path.name}"[:255])
                with contextlib.suppress(FileNotFoundError):
                    path.rename(aside)
                    log.warning("%s held no valid result and is now %s", path, aside)
            return found


class _Saving:
    """One call of save(): the drafts on their way, and the folders to sync."""

    def __init__(self, store: FSStore, count: int) -> None:
        self._store, self._root = store, store.root
        self._mode = 0o660 if store.is_shared else 0o600
        self._is_synced_at_once = is_worth_syncing_at_once(count)
        self._drafts: list[tuple[Entry, Path, str]] = []  # what, where to, and under which name until then
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

    def draft(self, entry: Entry) -> None:
        """Claim the id and write the bytes, unless a valid result is there already."""
        task_id = entry.result.task_id
        link = claim_path(self._root, task_id)
        bucket = link.parent
        self._folders |= self._store.ensure_folder(bucket)
        place, is_ours = self._store.claim(entry, link)
        path = place.path(self._root, task_id)
        day = path.parent
        self._folders |= self._store.ensure_folder(day) | {bucket, day}
        if not is_ours and (found := read_valid(path, task_id)) is not None:
            self.stored[task_id] = found.raw
            return
        draft = f"{self._root}/.incoming/{secrets.token_hex(12)}"
        self._drafts.append((entry, path, draft))
        self._write(draft, _packed(entry.raw) if place.ending == PACKED else entry.raw)

    def _write(self, draft: str, raw: bytes) -> None:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode)
        try:
            write_all(descriptor, raw)
            if not self._is_synced_at_once:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def publish(self) -> None:
        """Give the drafts, once they are on the disk, their names, and wait until those are on the disk as well."""
        if self._is_synced_at_once and self._drafts:
            sync_everything(self._root)
        for entry, path, draft in self._drafts:
            self.stored[entry.result.task_id] = self._link(draft, path, entry)
        if is_worth_syncing_at_once(len(self._folders)):
            sync_everything(self._root)
        else:
            for folder in self._folders:
                sync_folder(folder)

    def _link(self, draft: str, path: Path, entry: Entry) -> bytes:
        task_id = entry.result.task_id
        while True:
            try:
                os.link(draft, path)
                return entry.raw
            except FileExistsError:
                found = read_valid(path, task_id) or self._store.set_aside(path, task_id)
                if found is not None:
                    return found.raw


def write_all(descriptor: int, raw: bytes) -> None:
    """Write all bytes: the system may take fewer at a time."""
    rest = memoryview(raw)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def read_valid(path: Path, task_id: str) -> Entry | None:
    """Return the result in the file; None if there is none, with a warning if there is something else.

    Raises: OSError if the file cannot be read. It may well hold a result, which must not be taken for a torn one.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        raw = b""
    try:
        raw = _unpacked(raw) if raw.startswith(_GZIP_MAGIC) else raw
        result = decode_result(raw)
    except (DecodeError, zlib.error) as error:
        log.warning("%s holds no valid result, and is skipped: %s", path, error)
        return None
    if result.task_id != task_id:
        log.warning("%s holds the result of task %s, and is skipped", path, result.task_id)
        return None
    return Entry(result, raw)


def _read_claim(link: Path) -> Place | None:
    try:
        return place_of(os.readlink(link))  # noqa: PTH115
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: it is no symbolic link
            raise
        log.warning("%s is no claim, and is skipped", link)
        return None


def _listing(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as items:
            for item in items:
                yield item.name
    except FileNotFoundError:
        return


def _read_leniently(path: Path, task_id: str) -> Entry | None:
    try:
        return read_valid(path, task_id)
    except OSError as error:
        log.warning("%s cannot be read, and is skipped: %s", path, error)
        return None


def _lenient_listing(folder: Path) -> Iterator[str]:
    try:
        yield from _listing(folder)
    except OSError as error:
        log.warning("%s cannot be listed, and is skipped: %s", folder, error)


def _packed(raw: bytes) -> bytes:
    if len(raw) > _MAX_UNPACKED:
        raise BackendRefused(
            f"the result has {len(raw):,} bytes, a compressed one may have {_MAX_UNPACKED:,}: use compress=False, or "
            f"keep the data elsewhere and return a reference"
        )
    return gzip.compress(raw, compresslevel=6, mtime=0)


def _unpacked(packed: bytes) -> bytes:
    unpacker = zlib.decompressobj(_GZIP)
    raw = unpacker.decompress(packed, _MAX_UNPACKED + 1)
    if len(raw) > _MAX_UNPACKED:
        raise DecodeError(f"it unpacks to more than {_MAX_UNPACKED:,} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise DecodeError("it is not one whole gzip file")
    return raw
