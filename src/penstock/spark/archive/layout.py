"""Where the parts of an archive lie.

<root>/stream=<safe name>/date=YYYY-MM-DD/<first id>_<last id>.parquet    the entries
<root>/_manifest/<number>.json                                          what is archived: one file a commit
<root>/_staging/<token>/                                                files that nothing refers to yet
<root>/_checkpoint/                                                     of the Spark query
<root>/_lock                                                            held by the run, as long as it lives
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from penstock.errors import ConfigurationError
from penstock.spark.archive.errors import ArchiveDamaged

DAY_MS = 86_400_000
LAST_MS = 253_402_300_799_999  # the end of the year 9999; an id may be any number, as one that somebody chose
_PATTERN = {*"*?[]{}\\"}
_LONGEST = 200  # most file systems end a name at 255 bytes
_KEPT = 160
_LONGEST_PART = 255
_FILE = re.compile(r"stream=[^/\\\0]+/date=\d{4}-\d{2}-\d{2}/[\w-]+\.parquet", re.ASCII)


@dataclass(frozen=True)
class Layout:
    """The paths of one archive."""

    root: Path

    @classmethod
    def of(cls, root: str | Path) -> Layout:
        """Take a path or a file: address; raise ConfigurationError for other stores."""
        text = str(root)
        scheme = urlsplit(text).scheme if "://" in text or text.startswith("file:") else ""
        if scheme and scheme != "file":
            raise ConfigurationError(
                f"archive {text!r}: an archive lies on a file system that the driver and all executors share, since "
                "its commits need atomic links; give a path, for example /mnt/archive"
            )
        if not text.strip():
            raise ConfigurationError("the archive has no path: give one, for example /mnt/archive")
        root = Path(unquote(urlsplit(text).path) if scheme else text).absolute()
        if _PATTERN & {*str(root)}:
            raise ConfigurationError(
                f"archive {text!r}: Spark takes a path with * ? [ ] {{ }} or \\ for a pattern; name another"
            )
        if any(len(part.encode("utf-8", "replace")) > _LONGEST_PART for part in root.parts):
            raise ConfigurationError(f"archive {text[:60]!r}...: a name in its path is too long")
        if "\0" in text:
            raise ConfigurationError(f"archive {text!r}: no path has a NUL")
        return cls(root)

    @property
    def manifest(self) -> Path:
        """The directory of the commits."""
        return self.root / "_manifest"

    @property
    def staging(self) -> Path:
        """The directory of what is being written."""
        return self.root / "_staging"

    @property
    def lock(self) -> Path:
        """The file that the run holds a lock on."""
        return self.root / "_lock"

    @property
    def checkpoint(self) -> Path:
        """The directory of Spark's checkpoint."""
        return self.root / "_checkpoint"


def safe_name(stream: str) -> str:
    """Return the name of a stream as a part of a path; different streams have different ones."""
    quoted = quote(stream, safe="")
    if quoted.startswith("."):
        quoted = f"%2E{quoted[1:]}"
    if len(quoted) > _LONGEST:
        return f"{quoted[:_KEPT]}~{hashlib.sha256(stream.encode()).hexdigest()[:16]}"
    return quoted


def date_of(ms: int) -> str:
    """Return the day of a time, in UTC; what lies beyond the calendar is put into its last day."""
    return datetime.fromtimestamp(min(ms, LAST_MS) // 1000, UTC).strftime("%Y-%m-%d")


def path_of(stream: str, date: str, first: str, last: str) -> str:
    """Return where a file lies, from the root on."""
    return f"stream={safe_name(stream)}/date={date}/{first}_{last}.parquet"


def check_path(path: object) -> None:
    """Raise ArchiveDamaged unless a path is one that path_of() makes: a manifest may have been written by anybody."""
    if not isinstance(path, str) or not _FILE.fullmatch(path):
        raise ArchiveDamaged(f"the manifest names {path!r}, which is no file of an archive: nothing of it is used")


def inside(root: Path, path: str) -> Path:
    """Return a file that a manifest names; raise ArchiveDamaged if it lies, or a link leads, outside the archive."""
    check_path(path)
    file = root / path
    for part in (file, file.parent, file.parent.parent):
        if part.is_symlink():
            raise ArchiveDamaged(
                f"{part} is a symbolic link, which leads out of the archive: nothing behind it is used"
            )
    return file
