"""What the manifest says: files, ranges of ids, and the commits that add and replace them. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from penstock import ids
from penstock.spark.archive.errors import ArchiveDamaged
from penstock.spark.archive.layout import check_path
from penstock.spark.reading.offsets import Position

VERSION = 1
Kind: TypeAlias = Literal["append", "compact"]


@dataclass(frozen=True)
class FileEntry:
    """One file of entries of one stream and one day, in the order of their ids."""

    path: str  # from the root on
    stream: str
    date: str
    first: str
    last: str
    rows: int
    bytes: int
    sha256: str  # of the bytes
    row_sum: str  # of the rows, however they are laid out


@dataclass(frozen=True)
class RangeEntry:
    """A range of ids that is archived: behind `after`, up to and with `upto`; `*_n` are their ranks where known."""

    stream: str
    after: str
    upto: str
    rows: int
    after_n: int | None = None
    upto_n: int | None = None
    lost: int | None = 0  # entries before it that were gone before they could be archived; None = unknown

    @property
    def end(self) -> Position:
        """Where it ends."""
        return Position(self.upto, self.upto_n)


@dataclass(frozen=True)
class Commit:
    """One step from a state of the archive to the next."""

    seq: int
    kind: Kind
    time_ms: int
    ranges: tuple[RangeEntry, ...] = ()
    add: tuple[FileEntry, ...] = ()
    remove: tuple[str, ...] = ()
    note: Mapping[str, Any] = field(default_factory=dict)
    prev: str = ""

    def dump(self) -> bytes:
        """Return the content of its file."""
        body = {"v": VERSION, **asdict(self)}
        return _text({**body, "check": _check(body)}).encode() + b"\n"

    @property
    def check(self) -> str:
        """The checksum, which the next commit repeats."""
        return _check({"v": VERSION, **asdict(self)})

    @classmethod
    def load(cls, content: bytes, name: str) -> Commit:
        """Read a file of the manifest; raise ArchiveDamaged for one that is not what was written."""
        try:
            body = json.loads(content)
            check = body.pop("check")
            if body.get("v") != VERSION:
                raise ArchiveDamaged(
                    f"manifest {name} has version {body.get('v')!r}, this Penstock reads {VERSION}: use a newer one"
                )
            if check != _check(body):
                raise ArchiveDamaged(f"manifest {name} was changed: its checksum does not fit its content")
            del body["v"]
            body["ranges"] = tuple(RangeEntry(**each) for each in body["ranges"])
            body["add"] = tuple(FileEntry(**each) for each in body["add"])
            body["remove"] = tuple(body["remove"])
            commit = cls(**body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArchiveDamaged(f"manifest {name} cannot be read: {error}") from error
        for path in (*(entry.path for entry in commit.add), *commit.remove):
            check_path(path)
        return commit


def _check(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(body).encode()).hexdigest()


def _text(body: Mapping[str, Any]) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@dataclass
class State:
    """What is archived after some commits."""

    seq: int = 0
    check: str = ""
    files: dict[str, FileEntry] = field(default_factory=dict)
    ranges: dict[str, list[RangeEntry]] = field(default_factory=dict)
    replaced: dict[str, int] = field(default_factory=dict)  # path -> when a commit replaced it

    def apply(self, commit: Commit) -> None:
        """Go one commit further."""
        for path in commit.remove:
            self.files.pop(path, None)
            self.replaced[path] = commit.time_ms
        for entry in commit.add:
            self.files[entry.path] = entry
            self.replaced.pop(entry.path, None)
        for each in commit.ranges:
            self.ranges.setdefault(each.stream, []).append(each)
        self.seq, self.check = commit.seq, commit.check

    @property
    def streams(self) -> list[str]:
        """The streams that are archived."""
        return sorted(self.ranges)

    def end(self, stream: str) -> Position | None:
        """Return up to where a stream is archived."""
        found = self.ranges.get(stream)
        return found[-1].end if found else None

    def files_of(self, stream: str) -> list[FileEntry]:
        """Return the files of a stream in the order of their ids."""
        return in_order(entry for entry in self.files.values() if entry.stream == stream)

    def range_of(self, stream: str, entry_id: str) -> RangeEntry | None:
        """Return the archived range that an id lies in."""
        here = ids.parse(entry_id)
        for each in self.ranges.get(stream, ()):
            if ids.parse(each.after) < here <= ids.parse(each.upto):
                return each
        return None


def in_order(files: Iterable[FileEntry]) -> list[FileEntry]:
    """Return files in the order of their ids."""
    return sorted(files, key=lambda entry: ids.parse(entry.first))
