"""The archive as a Delta table: its files, the ranges of ids that they cover, and the commits that change both.

<root>/_delta_log/                       what is archived: the log of the table
<root>/stream=<name>/day=YYYY-MM-DD/<first>_<last>_<sha256>_<token>.parquet
                                         the entries; the name says what is in the file, and no two attempts share one
<root>/_ranges/<version>.json            the archived ranges of ids, as of a commit
<root>/_staging/<token>/                 files that are not part of the table yet
<root>/_checkpoint/, <root>/_lock        of the run, where the archive is on a disk

Which ranges a commit archives is said in that commit itself. Log entries do not stay for ever, so every now and then
the ranges of all commits are written into one file, and only then is the log shortened.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock import ids
from penstock.errors import ConfigurationError, PenstockError
from penstock.spark.archive.state import (
    DAY_MS,
    FILE,
    SCHEMA,
    ArchiveConflict,
    ArchiveDamaged,
    ArchiveMissing,
    FileEntry,
    RangeEntry,
    State,
    check_path,
    safe_name,
)
from penstock.spark.lake.delta import CommitConflict, DeltaLog, Info, LogDamaged
from penstock.spark.lake.files import FailPoint, Location, StoredFile, no_fail_point

STAGING = "_staging"
# In the log, with a number: of two runs that append at the same time, or of two compactions, one is refused.
APP, COMPACTION = "penstock-archive", "penstock-compaction"
_INFO = "penstock"
_RANGES = "_ranges"
_KEPT_RANGES = 2
_MAINTAIN_EVERY = 20  # commits
_DELETES_AT_ONCE = 16
_MOST_SHOWN = 200  # characters of what is no range
_TABLE_SCHEMA = pa.schema([*SCHEMA, pa.field("day", pa.date32())])
CONFIGURATION = {
    # The run shortens the log itself, after it has written down the ranges.
    "delta.enableExpiredLogCleanup": "false",
    # Opening a table lists its log: what is kept of it decides how long that takes.
    "delta.logRetentionDuration": "interval 15 minutes",
    "delta.deletedFileRetentionDuration": "interval 1 day",
}


@dataclass(frozen=True)
class _Noted:
    """The ranges of all commits up to one, as they are written down."""

    table: str
    ranges: list[RangeEntry]


_in_use: set[tuple[Location, str]] = set()  # staging folders of commits that this process is making


def load_state(root: str | Path | Location, options: Mapping[str, str] | None = None) -> State:
    """Return what is archived at a path or address; raise ArchiveMissing if there is no archive."""
    return ArchiveTable.of(root, options).load()


class ArchiveTable:
    """The table of one archive."""

    def __init__(self, location: Location) -> None:
        self.location, self.store = location, location.store
        self._log: DeltaLog | None = None
        self._deleted: set[str] = set()  # files that the log still names

    @classmethod
    def of(cls, root: str | Path | Location, options: Mapping[str, str] | None = None) -> ArchiveTable:
        """Return the table at a path or address; there may be none yet."""
        return cls(Location.of(root, options, "archive"))

    def exists(self) -> bool:
        """Return whether anything was ever archived there."""
        if self._log is None:
            try:
                self._log = DeltaLog.open(self.location)
            except LogDamaged as error:
                raise ArchiveDamaged(f"{error}; run `penstock archive verify`") from error
        return self._log is not None

    @property
    def log(self) -> DeltaLog:
        """The log of the table; raise ArchiveMissing if there is no archive."""
        if not self.exists():
            hint = " (it has the format of an older Penstock: run `penstock archive import`)" if self.is_old() else ""
            raise ArchiveMissing(f"there is no archive at {self.location}{hint}: run `penstock archive run` first")
        assert self._log is not None
        return self._log

    def is_old(self) -> bool:
        """Return whether there is an archive of the format before Delta tables."""
        return self.location.local is not None and (self.location.local / "_manifest").is_dir()

    # --- what is archived ---

    def load(self) -> State:
        """Return what is archived; raise ArchiveMissing if there is no archive, ArchiveDamaged if it is not whole."""
        state = State()
        self.follow(state)
        return state

    def follow(self, state: State) -> bool:
        """Bring a state up to date; return whether anything was new."""
        log = self.log
        try:
            log.refresh()
        except LogDamaged as error:
            raise ArchiveDamaged(f"{error}; run `penstock archive verify`") from error
        if log.version == state.version:
            return False
        files = [FileEntry.of(file) for file in log.files()]
        try:
            self._follow_ranges(state)
        except (ArchiveDamaged, LogDamaged) as error:
            if not log.refresh():
                raise ArchiveDamaged(f"{error}") from error
            return self.follow(state)  # the log was shortened twice since it was looked at
        state.files = {entry.path: entry for entry in files}
        state.version = log.version
        return True

    def _follow_ranges(self, state: State) -> None:
        ranges, after = state.ranges, state.version
        try:
            found = list(self.log.infos(after)) if after >= 0 else None
        except FileNotFoundError:  # the log was shortened meanwhile
            found = None
        if found is None:
            ranges, found = self._all_ranges()
        said = [_said(info) for _, info in found]  # all of them, before any is taken over
        state.ranges = ranges
        for each in said:
            state.cover(each)

    def _all_ranges(self) -> tuple[dict[str, list[RangeEntry]], list[tuple[int, Info]]]:
        """Return the ranges as they were last written down, and what the commits since then say."""
        numbers = self._noted_versions()
        while True:
            try:
                after, ranges = self._noted(numbers)
                return ranges, list(self.log.infos(after))
            except FileNotFoundError as error:
                before, numbers = numbers, self._noted_versions()
                if numbers == before:
                    raise ArchiveDamaged(
                        f"{self.location}: the log does not list what each commit archived ({error} is missing); "
                        "run `penstock archive verify`"
                    ) from None
                # else a run has written them down again meanwhile, and deleted older commits

    def _noted(self, numbers: Sequence[int]) -> tuple[int, dict[str, list[RangeEntry]]]:
        """Return the ranges as they were last written down, up to the known version, and the version."""
        for number in reversed(numbers):
            if number <= self.log.version:
                noted = _checked(self.store.read(_ranges_path(number)), msgspec.json.decode, _Noted)
                if noted.table != self.log.identity:
                    continue  # it was left by a table that was here before
                found: dict[str, list[RangeEntry]] = {}
                for entry in noted.ranges:
                    found.setdefault(entry.stream, []).append(entry)
                return number, found
        return -1, {}

    def _noted_versions(self) -> list[int]:
        names = (Path(file.path).stem for file in self.store.walk(_RANGES))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    # --- commits ---

    def create(self) -> None:
        """Make the table, if there is none."""
        if not self.exists():
            self._log = DeltaLog.create(self.location, _TABLE_SCHEMA, ("stream", "day"), CONFIGURATION)

    def append(self, state: State, ranges: Sequence[RangeEntry], files: Mapping[FileEntry, str]) -> None:
        """Commit ranges and the files that hold them, with the statistics of each; bring the state up to date.

        Raises: ArchiveConflict if another run has appended since the state was loaded; nothing is committed then.
        """
        log = self.log
        info = {_INFO: {"ranges": [asdict(each) for each in ranges]}}
        try:
            log.commit([entry.data_file(stats) for entry, stats in files.items()], app=_next(log, APP), info=info)
        except CommitConflict:
            # Without its cause, which is transient: this run must not restart and take the other's place.
            raise ArchiveConflict(
                f"another run has archived to {self.location} at the same time: stop one of them"
            ) from None
        self._apply(state, files, (), ranges)

    def last_append(self) -> int | None:
        """Return the number of the last batch that a run has committed, as it is known here."""
        return self.log.last(APP)

    def replace(self, state: State, new: Mapping[FileEntry, str], old: Sequence[FileEntry]) -> None:
        """Let files take the place of others that hold the same rows; bring the state up to date.

        Raises: ArchiveConflict if another compaction has replaced one of them.
        """
        self.follow(state)
        others = f"another compaction of {self.location} replaced the same files: run only one at a time"
        if any(entry.path not in state.files for entry in old):
            raise ArchiveConflict(others)
        add, remove = [e.data_file(stats) for e, stats in new.items()], [e.data_file() for e in old]
        try:
            self.log.commit(add, remove, app=_next(self.log, COMPACTION), has_new_rows=False)
        except CommitConflict as error:
            raise ArchiveConflict(others) from error
        self._apply(state, new, old, ())

    def _apply(
        self, state: State, new: Iterable[FileEntry], old: Iterable[FileEntry], ranges: Iterable[RangeEntry]
    ) -> None:
        if self.log.version != state.version + 1:
            self.follow(state)  # another writer has committed as well
            return
        for entry in old:
            state.files.pop(entry.path, None)
        state.files.update({entry.path: entry for entry in new})
        state.cover(ranges)
        state.version = self.log.version

    def since_noted(self, state: State) -> int:
        """Return how many commits there are since the ranges were written down."""
        noted = self._noted_versions()
        return state.version - (noted[-1] if noted else 0)

    def maintain(self, state: State, step: FailPoint = no_fail_point) -> None:
        """Write down the ranges and shorten the log, if there are enough new commits to pay for it.

        In this order: a commit that is deleted has its ranges elsewhere by then, and who opens the table by the
        checkpoint before this one still finds it and the commits after it.
        """
        if self.since_noted(state) < _MAINTAIN_EVERY:
            return
        noted = self._noted_versions()
        ranges = [asdict(each) for known in state.ranges.values() for each in known]
        content = json.dumps({"table": self.log.identity, "ranges": ranges})
        self.store.write(_ranges_path(state.version), content.encode())
        step("ranges noted")
        self.log.clean_log()
        step("shortened")
        self.log.checkpoint()
        step("checkpointed")
        for number in noted[: 1 - _KEPT_RANGES]:
            self.store.delete(_ranges_path(number))

    def vacuum(self, state: State, grace_s: float) -> int:
        """Delete the files that were replaced longer ago than the grace; return how many there were.

        The library would delete what the log still names, the files of a whole day, each time, and commit twice.
        """
        self.follow(state)
        replaced = {path for path in self.log.removed(grace_s) if FILE.fullmatch(path)}
        left = replaced - self._deleted
        for path in left:
            self.check(path)
        folders = {path.rpartition("/")[0] for path in left}
        found = left & {file.path for folder in folders for file in self.store.walk(folder)}
        with ThreadPoolExecutor(_DELETES_AT_ONCE) as pool:
            list(pool.map(self.store.delete, found))
        self._deleted = replaced
        return len(found)

    def unknown_files(self, stored: Sequence[StoredFile], state: State) -> list[StoredFile]:
        """Return files among those of the table that are not part of it, were not lately, and are not about to be."""
        staged = {"/".join(file.path.split("/")[2:]) for file in stored if file.path.startswith(f"{STAGING}/")}
        known = {*state.files, *staged, *self.log.removed()}
        return [file for file in stored if file.path.startswith("stream=") and file.path not in known]

    def is_forgotten(self, file: StoredFile, state: State) -> bool:
        """Return whether an unknown file was replaced so long ago that the log lost it: its ids are archived."""
        match = FILE.fullmatch(file.path)
        if match is None or file.modified_ms > time.time_ns() // 1_000_000 - DAY_MS:
            return False
        stream = next((name for name in state.ranges if file.path.startswith(f"stream={safe_name(name)}/")), None)
        return stream is not None and all(state.range_of(stream, match[end]) for end in ("first", "last"))

    def sweep(self, state: State) -> int:
        """Delete the files that the log has forgotten; return how many there were."""
        stored = self.store.walk("")
        self.follow(state)  # after that: what was placed before is committed, or staged
        found = [file.path for file in self.unknown_files(stored, state) if self.is_forgotten(file, state)]
        for path in found:
            self.check(path)
            self.store.delete(path)
        return len(found)

    # --- files before they are committed ---

    @contextmanager
    def staging(self, kind: str, state: State) -> Iterator[str]:
        """Give a folder for files of one commit; after an error they are taken back, also from the table."""
        folder = f"{STAGING}/{kind}-{secrets.token_hex(8)}"
        mine = (self.location, folder)
        _in_use.add(mine)
        try:
            yield folder
        except Exception as error:
            # If it is unknown whether the store has the commit, the run of the next day deletes the files.
            if self.location.local is not None or isinstance(error, ArchiveConflict):
                self._abandon(folder, state)
            raise
        else:
            self.store.delete_folder(folder)
        finally:
            _in_use.discard(mine)

    def place(self, staging: str, entries: Iterable[FileEntry], step: FailPoint = no_fail_point) -> None:
        """Give staged files their names in the table. They stay staged, so that a kill leaves a list of them."""
        for entry in entries:
            self.check(entry.path)
            self.store.place(f"{staging}/{entry.path}", entry.path)
            step("placed")

    def take_back(self, staging: str, state: State) -> None:
        """Delete staged files, and their names in the table unless they were committed, now or once."""
        committed = {*state.files, *(self.log.removed() if self.exists() else ())}
        for file in self.store.walk(staging):
            path = file.path.removeprefix(f"{staging}/")
            if path not in committed and FILE.fullmatch(path):
                self.check(path)
                self.store.delete(path)
        self.store.delete_folder(staging)

    def _abandon(self, staging: str, state: State) -> None:
        """Take back what an error has made useless; where even that fails, the next run does it."""
        with suppress(PenstockError, OSError):
            if self.exists():
                self.follow(state)  # it may have been committed in spite of the error
            self.take_back(staging, state)

    def left_behind(self, kind: str) -> list[str]:
        """Return the staging folders of runs that were killed; the caller holds the lock of their kind.

        In a store without locks another process may still be running: only what is a day old counts there.
        """
        until_ms = time.time_ns() // 1_000_000 - (DAY_MS if self.location.local is None else 0)
        found: dict[str, int] = {}
        for file in self.store.walk(STAGING, has_drafts=True):
            folder = "/".join(file.path.split("/")[:2])
            if folder.startswith(f"{STAGING}/{kind}-") and (self.location, folder) not in _in_use:
                found[folder] = max(found.get(folder, 0), file.modified_ms)
        return [folder for folder, newest_ms in found.items() if newest_ms <= until_ms]

    def check(self, path: str) -> None:
        """Raise ArchiveDamaged if a path, or a link on its way, leads out of the archive."""
        check_path(path)
        if self.location.local is None:
            return
        file = self.location.local / path
        for part in (file, file.parent, file.parent.parent):
            if part.is_symlink():
                raise _linked(part)


def _linked(path: Path) -> ArchiveDamaged:
    return ArchiveDamaged(f"{path} is a symbolic link that points outside of the archive, and was not read")


def _next(log: DeltaLog, app: str) -> tuple[str, int]:
    return app, (log.last(app) or 0) + 1


def _ranges_path(version: int) -> str:
    return f"{_RANGES}/{version:020d}.json"


def _said(info: Info) -> list[RangeEntry]:
    found = info.get(_INFO)
    return _checked(found.get("ranges", []), msgspec.convert, list[RangeEntry]) if isinstance(found, dict) else []


def _checked(content: Any, read: Callable[..., Any], kind: Any) -> Any:
    # Anyone with access to the folder may have written anything.
    try:
        found = read(content, type=kind)
        for entry in found.ranges if isinstance(found, _Noted) else found:
            ids.parse(entry.after), ids.parse(entry.upto)
    except (msgspec.MsgspecError, ConfigurationError, ValueError, RecursionError) as error:
        text = repr(content)
        shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
        raise ArchiveDamaged(f"the table lists {shown} as archived, which is not a range of ids: {error}") from error
    return found
