"""Copies an archive of the format before Delta tables into a table, once: `penstock archive import`.

Such an archive is a folder with files named `stream=<name>/date=<day>/<first>_<last>.parquet` and a manifest: one file
for each commit in `_manifest`, with a checksum over its content. The files have the columns that they have today.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock import ids
from penstock.errors import ConfigurationError
from penstock.spark.archive.file_reader import batches_of
from penstock.spark.archive.file_writer import FileWriter, StagedFile
from penstock.spark.archive.lock import ArchiveLock
from penstock.spark.archive.state import ArchiveConflict, ArchiveDamaged, ArchiveMissing, RangeEntry
from penstock.spark.archive.table import ArchiveTable
from penstock.spark.lake.files import Location, make_directory

_VERSION = 1


def import_archive(
    old: str | Path,
    root: str | Path | Location,
    *,
    storage_options: Mapping[str, str] | None = None,
    tell: Callable[[str, int], None] = lambda *_: None,
) -> int:
    """Copy an archive of the old format; return how many entries were copied. `tell` gets each stream and its rows.

    Guarantees: a stream is in the new archive as a whole or not at all; one that is already there is left alone, so a
    copy that was interrupted can be repeated. The old archive is not changed.

    Raises: ArchiveMissing, ArchiveDamaged, and ArchiveConflict for a stream that the new archive has with other ids.
    """
    old_root = Location.of(old, what="archive").local
    if old_root is None or not (old_root / "_manifest").is_dir():
        raise ArchiveMissing(f"there is no archive of the old format at {old}: the folder _manifest is missing")
    table = ArchiveTable.of(root, storage_options)
    if table.location.local == old_root:
        raise ConfigurationError("--archive must differ from --from: the old archive is not changed")
    files, ranges = _state(old_root / "_manifest")
    table.location.check_writable("archive")
    if table.location.local is not None:
        make_directory(table.location.local)
    with ArchiveLock.held(table.location, "run"):
        table.create()
        state = table.load()
        for staging in table.left_behind("import"):
            table.take_back(staging, state)
        copied = 0
        for stream in sorted(ranges):
            if stream in state.ranges:
                _check_same(stream, state.ranges[stream], ranges[stream])
                continue
            entries = [each for each in files.values() if each["stream"] == stream]
            with table.staging("import", state) as staging:
                staged = [_copied(table, staging, old_root, each) for each in sorted(entries, key=_first)]
                table.place(staging, (made.entry for made in staged))
                table.append(state, ranges[stream], {made.entry: made.stats for made in staged})
            rows = sum(made.entry.rows for made in staged)
            tell(stream, rows)
            copied += rows
    return copied


def _state(manifest: Path) -> tuple[dict[str, dict[str, Any]], dict[str, list[RangeEntry]]]:
    """Return the files and the ranges after all commits."""
    files: dict[str, dict[str, Any]] = {}
    ranges: dict[str, list[RangeEntry]] = {}
    for commit in _commits(manifest):
        for path in commit["remove"]:
            files.pop(path, None)
        files.update({entry["path"]: entry for entry in commit["add"]})
        for each in commit["ranges"]:
            ranges.setdefault(each["stream"], []).append(RangeEntry(**each))
    return files, ranges


def _commits(manifest: Path) -> Iterator[dict[str, Any]]:
    numbered = sorted(file for file in manifest.glob("*.json") if file.stem.isdigit())
    for number, file in enumerate(numbered, 1):
        body: dict[str, Any] = json.loads(file.read_bytes())
        check = body.pop("check", None)
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        if body.get("v") != _VERSION or body.get("seq") != number or hashlib.sha256(text.encode()).hexdigest() != check:
            raise ArchiveDamaged(f"{file} was changed, or an earlier commit is missing; stopped copying")
        yield body


def _first(entry: Mapping[str, Any]) -> tuple[int, int]:
    return ids.parse(entry["first"])


def _copied(table: ArchiveTable, staging: str, root: Path, entry: Mapping[str, Any]) -> StagedFile:
    """Copy one file, after its bytes were compared with the manifest."""
    file = root / entry["path"]
    if not file.resolve().is_relative_to(root.resolve()):
        raise ArchiveDamaged(f"{file} points outside of the archive and was not read")
    try:
        with file.open("rb") as source:
            if hashlib.file_digest(source, "sha256").hexdigest() != entry["sha256"]:
                raise ArchiveDamaged(f"{file} is damaged: its checksum does not match")
        writer = FileWriter(table.store, staging, entry["stream"])
        try:
            for batch in batches_of(file):
                writer.add(batch)
        except BaseException:
            writer.abandon()
            raise
    except (OSError, pa.ArrowException) as error:
        raise ArchiveDamaged(f"cannot read {file}: {error}") from error
    made = writer.close()
    if (made.entry.rows, made.entry.first, made.entry.last) != (entry["rows"], entry["first"], entry["last"]):
        raise ArchiveDamaged(f"{file} does not contain the {entry['rows']:,} entries that its manifest lists")
    return made


def _check_same(stream: str, new: Sequence[RangeEntry], old: Sequence[RangeEntry]) -> None:
    """Raise ArchiveConflict unless the new archive has all that the old one has of a stream."""
    for each in old:
        after, upto = ids.parse(each.after), ids.parse(each.upto)
        if not any(ids.parse(there.after) <= after and upto <= ids.parse(there.upto) for there in new):
            raise ArchiveConflict(
                f"stream {stream!r} is already in the new archive, but without the ids after {each.after} up to "
                f"{each.upto} of the old one: import into a new archive, before archiving anything else to it"
            )
