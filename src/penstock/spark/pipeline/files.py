"""The folders in which batches are written, and small files, in any file system that Spark can use.

These are Hadoop's file systems or, with Spark Connect, which hides them, a disk that client, server and executors
share.

Each attempt to write a batch has its own folder: tasks of a killed driver may still write for a moment, and where
there is no lock, two drivers may run. One attempt becomes the batch; then the others are deleted.
"""

from __future__ import annotations

import hashlib
import posixpath
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from penstock.errors import ConfigurationError
from penstock.spark.lake.files import LocalStore, StoredFile, make_directory
from penstock.spark.runtime.master import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_ATTEMPT = "."  # between the name of a batch and that of an attempt
_ONE_STEP = ("file", "hdfs", "viewfs")  # elsewhere, renaming a folder copies its files
_COMPLETE = "_complete"


class Files:
    """The file operations that a commit of a batch needs.

    A rename publishes a folder. Where that is not one step, as in object stores, an empty file in the sibling folder
    `_complete` marks the folder as complete; without it, the folder was left by a driver that died.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._jvm: Any = spark._jvm  # noqa: SLF001 - PySpark shows Hadoop's file systems nowhere else
        self._conf: Any = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - likewise

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        system, target = self._at(path)
        return bool(system.exists(target))

    def why_unreachable(self, path: str) -> str | None:
        """Return in one line why the file system of a path cannot be used; None if it can."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        try:
            self.exists(path)
        except PySparkException as error:  # PySpark converts only some of Java's exceptions
            return " ".join(str(error).split())
        except Py4JJavaError as error:
            return " ".join(str(error.java_exception).split())
        return None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if it does not exist."""
        system, target = self._at(folder)
        if not system.exists(target):
            return []
        found = [str(status.getPath().getName()) for status in system.listStatus(target)]
        return [name for name in found if name != _COMPLETE]

    def parquet_schema(self, folder: str) -> StructType:
        """Return the columns of the Parquet files below a folder."""
        return self._spark.read.parquet(folder).schema

    def walk(self, folder: str) -> list[StoredFile]:
        """Return all files below a folder, with paths relative to it."""
        system, target = self._at(folder)
        root = system.makeQualified(target).toUri().getPath().rstrip("/") + "/"
        found, listed = [], system.listFiles(target, True)
        while listed.hasNext():
            status = listed.next()
            path = status.getPath().toUri().getPath().removeprefix(root)
            found.append(StoredFile(path, int(status.getLen()), int(status.getModificationTime())))
        return sorted(found, key=lambda file: file.path)

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its content, if it exists."""
        system, target = self._at(path)
        system.delete(target, True)

    def is_shown(self, folder: str) -> bool:
        """Return whether a folder is there, and complete."""
        return self.exists(folder if self._has_one_step(folder) else _complete(folder))

    def show(self, old: str, new: str) -> None:
        """Publish a complete folder: move it to where readers find it."""
        self.rename(old, new)
        if not self._has_one_step(new):
            self.touch(_complete(new))

    def touch(self, path: str) -> None:
        """Create an empty file."""
        system, target = self._at(path)
        system.create(target).close()

    def hide(self, folder: str) -> None:
        """Delete a published folder, or part of one."""
        if not self._has_one_step(folder):
            self.delete(_complete(folder))  # first: without it, the rest counts as incomplete
        self.delete(folder)

    def _has_one_step(self, path: str) -> bool:
        system, _ = self._at(path)
        return system.getUri().getScheme() in _ONE_STEP

    def rename(self, old: str, new: str) -> None:
        """Move a file or a folder to a path that does not exist; with one driver, nothing else creates it meanwhile."""
        system, target = self._at(new)
        _, source = self._at(old)
        system.mkdirs(target.getParent())
        if system.exists(target) or not system.rename(source, target):
            raise FileExistsError(f"cannot rename {old} to {new}")

    def qualified(self, path: str) -> str:
        """Return the path with its file system."""
        system, target = self._at(path)
        return str(system.makeQualified(target).toString())

    def local(self, path: str) -> Path | None:
        """Return a path that is on a disk of this machine; None if it is elsewhere, such as a plain path on YARN."""
        found = local_path(path)
        if found is None or path.startswith("file:"):
            return found
        return local_path(self.qualified(path))

    def create(self, folder: str) -> None:
        """Create a folder durably if it is on a disk of this machine; elsewhere do nothing."""
        local = self.local(folder)
        if local is not None:
            make_directory(local)

    def sync(self, folder: str) -> None:
        """Make a folder on a disk of this machine, with its files and its name, survive a crash of the machine."""
        local = self.local(folder)
        if local is not None:
            store = LocalStore(local.parent)
            store.sync(file.path for file in store.walk(local.name, has_drafts=True))  # Hadoop's checksums are drafts

    def _at(self, path: str) -> tuple[Any, Any]:
        target = self._jvm.org.apache.hadoop.fs.Path(path)
        return target.getFileSystem(self._conf), target


def _complete(folder: str) -> str:
    parent, _, name = folder.rstrip("/").rpartition("/")
    return joined(parent, _COMPLETE, name)


def local_path(path: str) -> Path | None:
    """Return a path that is on a disk of this machine; None if it is elsewhere.

    As in Hadoop, the path is literal: % does not escape, and ? does not begin a query.
    """
    if path.startswith("file:"):
        rest = path.removeprefix("file:")
        return Path("/" + rest[2:].partition("/")[2] if rest.startswith("//") else rest)
    return None if "://" in path else Path(path)


def normalised(path: str) -> str:
    """Return a path in the one spelling of its folder."""
    local = local_path(path)
    if local is not None:
        return posixpath.abspath(local)
    scheme, _, rest = path.partition("://")
    return f"{'s3' if scheme == 's3a' else scheme}://{posixpath.normpath(rest)}"


def joined(folder: str, *names: str) -> str:
    """Return a path below a folder."""
    return "/".join([folder.rstrip("/"), *names])


class SharedFiles(Files):
    """The same operations on the file system of this process, where a rename is one step."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        return _at(path).exists()

    def why_unreachable(self, path: str) -> str | None:
        """Return in one line why a path cannot be used; None if it can."""
        try:
            _at(path)
        except ConfigurationError as error:
            return str(error)
        return None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if it does not exist."""
        target = _at(folder)
        return sorted(file.name for file in target.iterdir()) if target.is_dir() else []

    def walk(self, folder: str) -> list[StoredFile]:
        """Return all files below a folder, with paths relative to it."""
        return LocalStore(_at(folder)).walk("")

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its content, if it exists."""
        target = _at(path)
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)

    def touch(self, path: str) -> None:
        """Create an empty file."""
        _at(path).touch()

    def rename(self, old: str, new: str) -> None:
        """Move a file or a folder to a path that does not exist."""
        target = _at(new)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            raise FileExistsError(f"cannot rename {old} to {new}")
        _at(old).rename(target)

    def qualified(self, path: str) -> str:
        """Return the path with its file system."""
        return _at(path).absolute().as_uri()

    def local(self, path: str) -> Path | None:
        """Return a path that is on a disk of this machine."""
        return local_path(path)

    def _has_one_step(self, path: str) -> bool:  # noqa: ARG002 - true for every path
        return True


def files_of(spark: SparkSession) -> Files:
    """Return the file operations of a session: Hadoop's or, with Spark Connect, those of this process."""
    return SharedFiles(spark) if is_connect(spark) else Files(spark)


def _at(path: str) -> Path:
    target = local_path(path)
    if target is None:
        raise ConfigurationError(
            "with Spark Connect a pipeline keeps its files on a disk that client, server and executors share, "
            f"which {path} is not"
        )
    return target


@dataclass(frozen=True)
class BatchKey:
    """The query, which changes with the checkpoint, and the number of the batch, which a repetition keeps."""

    query: str
    number: int

    @property
    def folder(self) -> str:
        """A name for folders; names sort by batch."""
        return f"{self.query.replace('-', '')[:16]}-{self.number:09d}"

    def folder_of(self, sink: str) -> str:
        """A name for the folder with the files of a sink in a table, which other sinks of the pipeline may share."""
        return f"batch-{self.folder}-{digest(sink)}"


def digest(*texts: str) -> str:
    """Return a short name for texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def attempt_of(key: BatchKey) -> str:
    """Return the name of a new attempt."""
    return f"{key.folder}{_ATTEMPT}{uuid4().hex[:8]}"


def keep_attempt(files: Files, folder: str, attempt: str) -> None:
    """Delete the other attempts of a batch of a sink that is in the table: their files can no longer be added."""
    for name in files.names(folder):
        if name != attempt:
            files.delete(joined(folder, name))


def tidy(files: Files, folder: str, key: BatchKey) -> None:
    """Delete the remaining attempts of a batch that has been published."""
    for name in files.names(folder):
        if name.startswith(f"{key.folder}{_ATTEMPT}"):
            files.delete(joined(folder, name))
