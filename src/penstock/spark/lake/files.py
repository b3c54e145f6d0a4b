"""The files of a table, on a disk or in whatever store the library `deltalake` reaches (S3, HDFS and others).

Paths are relative to the folder of the table, with `/` between their parts.
"""

from __future__ import annotations

import errno
import os
import random
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

from penstock.errors import ConfigurationError, PenstockError
from penstock.redis.retry import pause_s
from penstock.runtime.threads import pause

FailPoint: TypeAlias = Callable[[str], None]  # called between the steps of a commit, with the name of the last one
_PATTERN = {*"*?[]{}\\"}
_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")
_LONGEST_PART = 255
_BLOCK = 1 << 20
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STACK = re.compile(r"\s+0: ")
_CAUSE = re.compile(r"\s*\n\s*↳\s*")
_NOT_PERMITTED = (errno.EACCES, errno.EPERM, errno.EROFS)
# The same, as object stores, HDFS and the library spell it.
_REFUSED = re.compile(
    r"[Ss]tatus [Cc]ode: 40[13]\b|AccessDenied|AccessControlException|The operation lacked|[Pp]ermission denied"
    r"|Read-only file system"
)


_FIRST_PAUSE_S = 0.1
_rng = random.Random()


class StoreFailed(PenstockError):
    """A store cannot be reached, or fails; a later attempt may succeed."""


class StoreRefused(PenstockError):
    """A store does not permit what it was asked for: nothing but other rights or keys will help."""


class LeadsOut(PenstockError):
    """A symbolic link below the folder of a table leads out of it."""


def no_fail_point(_: str) -> None:
    """Do nothing between two steps; tests fail there."""


def wait_for_others(failures: int) -> None:
    """Wait before a commit that other writers have got in the way of is made again: longer each time, by chance."""
    pause(pause_s(failures, _rng, _FIRST_PAUSE_S))


@dataclass(frozen=True)
class Location:
    """The path or address of a table, and its store's options. It is pickled into tasks; its text shows no secret."""

    uri: str  # an absolute path, or an address such as s3://bucket/folder
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, root: str | Path | Location, options: Mapping[str, str] | None = None, what: str = "table") -> Location:
        """Take a path or an address; `options` are those of the store, as deltalake names them.

        Raises: ConfigurationError for what can be no path.
        """
        if isinstance(root, Location):
            return root
        text = str(root)
        if not text.strip():
            raise ConfigurationError(f"the {what} has no path: use one such as /mnt/{what} or s3://bucket/{what}")
        if "\0" in text:
            raise ConfigurationError(f"{what} {text!r}: a path cannot contain NUL")
        if _PATTERN & {*text}:
            raise ConfigurationError(
                f"{what} {text!r}: Spark treats a path with * ? [ ] {{ }} or \\ as a pattern; choose another name"
            )
        given = tuple(sorted((options or {}).items()))
        scheme = urlsplit(text).scheme if "://" in text or text.startswith("file:") else ""
        if scheme not in ("", "file"):
            return cls(text.rstrip("/").replace("s3a://", "s3://", 1), given)
        path = Path(unquote(urlsplit(text).path) if scheme else text).absolute()
        if _ESCAPE.search(str(path)):
            raise ConfigurationError(
                f"{what} {text!r}: deltalake treats % and two digits in a path as an escaped character; choose "
                "another name"
            )
        if any(len(part.encode("utf-8", "replace")) > _LONGEST_PART for part in path.parts):
            raise ConfigurationError(f"{what} {text[:60]!r}...: a name in its path is too long")
        return cls(str(path), given)

    @property
    def local(self) -> Path | None:
        """The folder, if it is on a disk of this machine."""
        return None if "://" in self.uri else Path(self.uri)

    @property
    def store(self) -> Store:
        """What reads and writes its files."""
        local = self.local
        return RemoteStore(self) if local is None else LocalStore(local)

    def check_writable(self, what: str = "table") -> None:
        """Raise ConfigurationError if it is on a disk where nothing can be written; write nothing."""
        if self.local is not None:
            check_writable(self.local, what)

    def __str__(self) -> str:
        return self.uri


@dataclass(frozen=True)
class StoredFile:
    """A file below the folder of a table."""

    path: str
    size: int
    modified_ms: int


class LocalStore:
    """Files on a disk, which survive a crash of the machine once a method has returned.

    Anyone with access to the folder may put a link there: its target is neither read, written nor deleted, and methods
    raise LeadsOut.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def _at(self, path: str) -> Path:
        file = self.root
        for part in Path(path).parts:
            file /= part
            if part == ".." or file == Path(part) or file.is_symlink():  # an absolute path replaces what is before it
                raise LeadsOut(f"{file} is a symbolic link or outside of {self.root}, and is not used")
        return file

    def opened(self, path: str) -> Any:
        """Return what pyarrow reads a file from; raise FileNotFoundError if it does not exist."""
        return self._at(path)

    def read(self, path: str) -> bytes:
        """Return the content of a file; raise FileNotFoundError if it does not exist."""
        return self._at(path).read_bytes()

    def blocks(self, path: str) -> Iterator[bytes]:
        """Return the content of a file, a block at a time; raise FileNotFoundError if it does not exist."""
        with self._at(path).open("rb") as source:
            while block := source.read(_BLOCK):
                yield block

    def write(self, path: str, content: bytes) -> None:
        """Write a file in one step: under another name, which is changed when all of it is on the disk."""
        file = self._at(path)
        make_directory(file.parent)
        draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
        try:
            with draft.open("xb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
            draft.replace(file)
        finally:
            draft.unlink(missing_ok=True)
        sync(file.parent)

    def scratch(self, path: str) -> Path:
        """Return a path of this machine for a file that put() will move to `path`: next to it, so nothing is copied."""
        file = self._at(path)
        make_directory(file.parent)
        return file.with_name(f".{secrets.token_hex(8)}")

    def put(self, file: Path, path: str) -> None:
        """Give a file of scratch() its name."""
        sync(file)
        target = self._at(path)
        make_directory(target.parent)
        file.replace(target)
        sync(target.parent)

    def place(self, staged: str, path: str) -> None:
        """Give a file a second name; one that has the name already is replaced."""
        target = self._at(path)
        make_directory(target.parent)
        draft = target.with_name(f".{secrets.token_hex(8)}")
        os.link(self._at(staged), draft)
        draft.replace(target)
        draft.unlink(missing_ok=True)  # a rename onto another name of the same file does nothing
        sync(target.parent)

    def sync(self, paths: Iterable[str]) -> None:
        """Make files written by others, and the folders that they are in, survive a crash of the machine.

        Files that no longer exist are skipped, and so are paths that lead out: nobody reads or writes there.
        """
        folders = set[Path]()
        for path in paths:
            with suppress(FileNotFoundError, LeadsOut):
                file = self._at(path)
                sync(file)
                folders.update(folder for folder in file.parents if folder.is_relative_to(self.root))
        for folder in sorted(folders):
            sync(folder)

    def info(self, path: str) -> StoredFile:
        """Describe a file; raise FileNotFoundError if it does not exist."""
        return self._described(self._at(path))

    def _described(self, file: Path) -> StoredFile:
        found = file.stat()
        return StoredFile(file.relative_to(self.root).as_posix(), found.st_size, found.st_mtime_ns // 1_000_000)

    def walk(self, folder: str, *, has_drafts: bool = False) -> list[StoredFile]:
        """Return all files below a folder, in the order of their paths; none if there is no such folder.

        Links are left out, and files that are being written as well, unless they are asked for.
        """
        found = (file for file in self._at(folder).rglob("*") if has_drafts or not file.name.startswith("."))
        files = (file for file in found if file.is_file() and not file.is_symlink())
        return sorted(map(self._described, files), key=lambda file: file.path)

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""
        self._at(path).unlink(missing_ok=True)

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with all that is in it, if it exists."""
        shutil.rmtree(self._at(folder), ignore_errors=True)


def one_line(error: BaseException) -> str:
    """Return what the library says, without colours and the stack of Rust, its causes one after the other."""
    text = _COLOUR.sub("", str(error)).strip() or type(error).__name__
    return " ".join(_CAUSE.sub(": ", _STACK.split(text)[0]).split())


@contextmanager
def translated(location: Location) -> Iterator[None]:
    """Raise StoreFailed or StoreRefused for what the library says of a store.

    A file that does not exist stays FileNotFoundError.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        is_refused = error.errno in _NOT_PERMITTED or _REFUSED.search(str(error))
        # The line of the `raise` is part of Spark's error, where the name of a class says whether it is transient.
        kind = StoreRefused if is_refused else StoreFailed
        raise kind(f"{location} cannot be used: {one_line(error)}") from error


class RemoteStore:
    """Files in an object store or in HDFS, through the same library that commits to the table."""

    def __init__(self, location: Location) -> None:
        from deltalake.exceptions import DeltaError
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        self._location = location
        try:
            with translated(location):
                self._handler = DeltaStorageHandler(location.uri, dict(location.options))
        except DeltaError as error:
            why = one_line(error).partition(" Known schemes:")[0]
            raise ConfigurationError(
                f"{location} cannot hold a table ({why}): use a path, s3://, gs://, abfss:// or hdfs://"
            ) from None
        self._files = PyFileSystem(self._handler)

    def opened(self, path: str) -> Any:
        """Return what pyarrow reads a file from."""
        self.info(path)  # the library says only when bytes are read that there is none
        with translated(self._location):
            return self._files.open_input_file(path)

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        with translated(self._location), self.opened(path) as source:
            return bytes(source.read())

    def blocks(self, path: str) -> Iterator[bytes]:
        """Return the content of a file, a block at a time."""
        with self.opened(path) as source:
            while block := self._read(source):
                yield block

    def _read(self, source: Any) -> bytes:
        with translated(self._location):
            return bytes(source.read(_BLOCK))

    def write(self, path: str, content: bytes) -> None:
        """Write a file: a store shows an object when all of it was sent."""
        self._send(path, [content])

    def scratch(self, path: str) -> Path:
        """Return a path in the folder for temporary files of this machine."""
        del path
        descriptor, name = tempfile.mkstemp(prefix="penstock-", suffix=".parquet")
        os.close(descriptor)
        return Path(name)

    def put(self, file: Path, path: str) -> None:
        """Send a file, and delete it here."""
        with file.open("rb") as source:
            self._send(path, iter(lambda: source.read(_BLOCK), b""))
        file.unlink()

    def _send(self, path: str, blocks: Iterable[bytes]) -> None:
        # Not through pyarrow, which would hand buffers to a library that takes bytes. Nothing is shown before close().
        with translated(self._location):
            out: Any = self._handler._handler.open_output_stream(path)  # noqa: SLF001 - shown in no other way
            for block in blocks:
                out.write(block)
            out.close()

    def place(self, staged: str, path: str) -> None:
        """Copy a file within the store."""
        with translated(self._location):
            self._handler._handler.copy_file(staged, path)  # noqa: SLF001 - its wrapper names the words wrong

    def sync(self, paths: Iterable[str]) -> None:
        """Do nothing: a store keeps what it has accepted."""

    def info(self, path: str) -> StoredFile:
        """Describe a file."""
        from pyarrow.fs import FileType

        with translated(self._location):
            [found] = self._files.get_file_info([path])
        if found.type != FileType.File:
            raise FileNotFoundError(path)
        return _described(path, found)

    def walk(self, folder: str, *, has_drafts: bool = False) -> list[StoredFile]:
        """Return all files below a folder; drafts, which HDFS shows, only if they are asked for."""
        from pyarrow.fs import FileSelector, FileType

        with translated(self._location):
            found = self._files.get_file_info(FileSelector(folder, allow_not_found=True, recursive=True))
        found = [each for each in found if has_drafts or not each.base_name.startswith(".")]
        return sorted(
            (_described(each.path, each) for each in found if each.type == FileType.File), key=lambda file: file.path
        )

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""
        with suppress(FileNotFoundError), translated(self._location):
            self._files.delete_file(path)

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with all that is in it, if it exists."""
        for file in self.walk(folder, has_drafts=True):
            self.delete(file.path)


Store: TypeAlias = LocalStore | RemoteStore  # of one table


def _described(path: str, found: Any) -> StoredFile:
    modified_ns = found.mtime_ns or 0
    return StoredFile(path, int(found.size or 0), modified_ns // 1_000_000)


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, survive a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(folder: Path) -> None:
    """Make a folder and its parents, durably."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync(each.parent)


def why_unwritable(folder: Path) -> str | None:
    """Return why no file can be made in a folder, or in the nearest that exists above it; None if one can."""
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
    except OSError as error:  # a name that is too long
        return error.strerror
    if not folder.is_dir():
        return f"{folder} is not a directory"
    try:
        Path(tempfile.mkdtemp(prefix=".penstock-", dir=folder)).rmdir()  # permissions alone say nothing about root
    except OSError as error:
        return f"cannot write to {folder} ({error.strerror or error}); check its owner and permissions"
    return None


def check_writable(folder: Path, what: str) -> None:
    """Raise ConfigurationError unless files can be made in a folder, or in the nearest that exists above it."""
    if why := why_unwritable(folder):
        raise ConfigurationError(f"{what} {folder}: {why}")
