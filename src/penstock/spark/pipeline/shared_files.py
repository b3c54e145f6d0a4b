"""Folders and small files where Spark shows none of its own: on a disk that client, server and executors share."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigurationError
from penstock.spark.pipeline.files import FileInfo, Files, local_path
from penstock.spark.runtime.master import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SharedFiles(Files):
    """What the commit of a batch needs, of the file system of this process. A rename is one step here."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def exists(self, path: str) -> bool:
        """Tell whether there is something at the path."""
        return _at(path).exists()

    def why_unreachable(self, path: str) -> str | None:
        """Return in one line why a path cannot be used; None if it can."""
        try:
            _at(path)
        except ConfigurationError as error:
            return str(error)
        return None

    def names(self, folder: str) -> list[str]:
        """Return what is in a folder; nothing if there is none."""
        place = _at(folder)
        return sorted(file.name for file in place.iterdir()) if place.is_dir() else []

    def walk(self, folder: str) -> list[FileInfo]:
        """Return all files below a folder, with paths relative to it."""
        root = _at(folder)
        found = []
        for file in root.rglob("*"):
            if file.is_file() and not file.name.startswith("."):  # Hadoop's checksums
                status = file.stat()
                found.append(FileInfo(str(file.relative_to(root)), status.st_size, int(status.st_mtime * 1000)))
        return sorted(found, key=lambda file: file.path)

    def delete(self, path: str) -> None:
        """Delete a file or a folder with all that is in it, if it is there."""
        place = _at(path)
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)

    def touch(self, path: str) -> None:
        """Make an empty file."""
        _at(path).touch()

    def rename(self, old: str, new: str) -> None:
        """Move a file or a folder to a place where nothing is."""
        place = _at(new)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            raise FileExistsError(f"{old} could not be renamed to {new}")
        _at(old).rename(place)

    def qualified(self, path: str) -> str:
        """Return the path with its file system."""
        return _at(path).absolute().as_uri()

    def local(self, path: str) -> Path | None:
        """Return a path that is on a disk of this machine."""
        return local_path(path)

    def _has_one_step(self, path: str) -> bool:  # noqa: ARG002 - it is so everywhere
        return True


def files_of(spark: SparkSession) -> Files:
    """Return the files of a session: those of Hadoop, or of this process where Spark Connect hides them."""
    return SharedFiles(spark) if is_connect(spark) else Files(spark)


def _at(path: str) -> Path:
    place = local_path(path)
    if place is None:
        raise ConfigurationError(
            f"through Spark Connect a pipeline keeps its files on a disk that client, server and executors share: "
            f"{path} is none"
        )
    return place
