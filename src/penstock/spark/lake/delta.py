"""Delta Lake tables through the library `deltalake`, without a jar: others write the files, this module commits them.

A commit may carry the number of a batch (`txn` in the log of the table): of two writers that commit the same batch one
is refused, and `last()` says which batches are in the table, however long ago they were committed. Files are committed
with statistics from their footers: readers skip files by them.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.spark.lake.files import Location, make_directory, one_line, translated, wait_for_others
from penstock.spark.runtime.versions import required

if TYPE_CHECKING:
    from typing import Self

    import pyarrow.parquet as pq

ATTEMPTS = 5  # of a change that others may get in the way of
_HOUR_S = 3_600
Info = Mapping[str, Any]  # metadata of a commit; values are those of JSON
_MOST_COLUMNS = 32  # as delta.dataSkippingNumIndexedCols has it
_LONGEST_TEXT = 32
_LAST_CHARACTER = "\U0010ffff"
_MS = timedelta(milliseconds=1)


class DeltaMissing(PenstockError):
    """The library of Delta Lake is not installed."""


class CommitConflict(PenstockError):
    """Another writer has committed the same batch."""


class LogDamaged(PenstockError):
    """The log of a table cannot be read."""


@dataclass(frozen=True)
class DataFile:
    """A file of a table."""

    path: str  # below the folder of the table, as it is in the store
    size: int
    partition: Mapping[str, str | None] = field(default_factory=dict)
    rows: int | None = None  # None: unknown
    stats: str = "{}"  # only to be committed: see statistics()
    modified_ms: int = 0


def library() -> Any:
    """Return the module `deltalake`; raise DeltaMissing if it is not installed."""
    return required("deltalake", DeltaMissing, "a Delta Lake table", "'penstock[delta]'")


class DeltaLog:
    """A Delta table, at the version at which it was opened, refreshed or committed to last."""

    def __init__(self, location: Location, table: Any) -> None:
        self.location, self._table = location, table
        self._durable = self.version - 1  # others may have been killed before they synced the last commit

    @classmethod
    def open(cls, location: Location) -> Self | None:
        """Open a table; return None if there is none. Raise LogDamaged if its log cannot be read."""
        with _translated(location):
            if not library().DeltaTable.is_deltatable(location.uri, dict(location.options)):
                return None
            return cls(location, library().DeltaTable(location.uri, storage_options=dict(location.options)))

    @classmethod
    def create(
        cls,
        location: Location,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        configuration: Mapping[str, str] | None = None,
    ) -> Self:
        """Open a table, and make it if there is none."""
        with _translated(location):
            from deltalake.transaction import CommitProperties

            if location.local is not None:
                make_directory(location.local)
            try:
                table = library().DeltaTable.create(
                    location.uri,
                    schema=library().Schema.from_arrow(schema),
                    mode="ignore",
                    partition_by=list(partition_by),
                    configuration=configuration,
                    storage_options=dict(location.options),
                    # A retry would replace a table that another writer has created meanwhile.
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
            except _conflict():  # another writer was faster
                table = library().DeltaTable(location.uri, storage_options=dict(location.options))
        made = cls(location, table)
        made.make_durable()
        return made

    @property
    def table(self) -> Any:
        """The table as the library has it."""
        return self._table

    @property
    def identity(self) -> str:
        """What distinguishes this table from one created later at the same path."""
        return str(self._table.metadata().id)

    @property
    def version(self) -> int:
        """The number of the last commit that is known here."""
        return int(self._table.version())

    def last(self, app: str) -> int | None:
        """Return the number of the last batch that an application has committed."""
        found = self._table.transaction_version(app)
        return None if found is None else int(found)

    def refresh(self) -> bool:
        """Take in what others have committed; return whether there was anything."""
        known = self.version
        with _translated(self.location):
            self._table.update_incremental()
        return self.version != known

    def commit(
        self,
        add: Sequence[DataFile],
        remove: Sequence[DataFile] = (),
        *,
        app: tuple[str, int] | None = None,
        info: Info | None = None,
        has_new_rows: bool = True,
        keeps_log: bool = True,
    ) -> int:
        """Add and remove files in one step; return the version of the table after that.

        `has_new_rows=False` says that the rows are those of the removed files, so that followers of the table get
        none twice. Commits that remove files must have an `app`: the library does not refuse two that remove the same.
        With `keeps_log=False` the library makes checkpoints and shortens the log as the table is configured.

        Raises: CommitConflict if another writer has committed for `app`, or has changed columns or settings, since the
        table was refreshed.
        """
        from deltalake.transaction import AddAction, CommitProperties, RemoveAction

        delta, now_ms = library(), time.time_ns() // 1_000_000
        actions: list[Any] = [
            AddAction(file.path, file.size, dict(file.partition), file.modified_ms or now_ms, has_new_rows, file.stats)
            for file in add
        ]
        actions += [RemoveAction(file.path, has_new_rows, now_ms, file.size, dict(file.partition)) for file in remove]
        properties = CommitProperties(
            custom_metadata=None if info is None else dict(info),
            app_transactions=None if app is None else [delta.Transaction(*app)],
        )
        with self._made_durable(), _translated(self.location):
            try:
                self._table.create_write_transaction(
                    actions,
                    mode="append",
                    schema=self._table.schema(),
                    partition_by=self._table.metadata().partition_columns,
                    commit_properties=properties,
                    post_commithook_properties=_keeping_log() if keeps_log else None,
                )
            except _conflict() as error:
                if not self._has_all(add):
                    raise CommitConflict(f"the table at {self.location}: {one_line(error)}") from error
        return self.version

    def _has_all(self, files: Sequence[DataFile]) -> bool:
        """Return whether the table has these new files: a store that lost a reply calls our own commit a conflict."""
        self.refresh()
        return bool(files) and {file.path for file in files} <= {file.path for file in self.files()}

    def make_durable(self) -> None:
        """Sync the commits that are known here, with the files that they add, if the table is on a disk.

        The library syncs nothing, and a writer may have been killed between its commit and this. So commits of others
        are synced as well: the last one at the time the table was opened, and all later ones.
        """
        if self.location.local is None:
            return
        store, paths = self.location.store, []
        for version in range(self._durable + 1, self.version + 1):
            commit = _commit_path(version)
            with suppress(FileNotFoundError):  # the log was shortened
                paths += [*_added(store.read(commit)), commit, *_checkpoint_paths(version)]
        store.sync(paths)
        self._durable = self.version

    @contextmanager
    def _made_durable(self) -> Iterator[None]:
        """Take in a change of the table, and sync it."""
        yield
        self.refresh()
        self.make_durable()

    def has(self, batch: tuple[str, int]) -> bool:
        """Return whether the table, as it is known here, has a batch of an application, or a later one."""
        last = self.last(batch[0])
        return last is not None and last >= batch[1]

    @property
    def partition_by(self) -> list[str]:
        """The columns that the table is partitioned by."""
        return list(self._table.metadata().partition_columns)

    def add_columns(self, schema: pa.Schema, attempts: int = ATTEMPTS) -> None:
        """Add the columns that the table lacks; they are null in the rows that it has."""
        wanted = library().Schema.from_arrow(schema)
        there = {field.name for field in self._table.schema().fields}
        missing = [field for field in wanted.fields if field.name not in there]
        if not missing:
            return
        with self._made_durable(), _translated(self.location):
            try:
                self._table.alter.add_columns(missing)
            except _conflict():  # another writer has changed the table, and may have added them
                if attempts == 1:
                    raise
                wait_for_others(ATTEMPTS + 1 - attempts)
                self.refresh()
                self.add_columns(schema, attempts - 1)

    def merge(self, rows: pa.Table, key: Sequence[str], *, is_newer: str, deleted: str, app: tuple[str, int]) -> None:
        """Replace rows by their key, and add those whose key is new, in one step.

        `is_newer` says in SQL whether the row `s` may replace the row `t` of the table. A row that has 1 in the column
        `deleted`, which is none of the table, deletes it instead.

        Raises: CommitConflict if another writer has committed the batch `app`, or has changed the same files.
        """
        from deltalake.transaction import CommitProperties

        values = {name: f's."{name}"' for name in rows.column_names if name != deleted}
        updates = {f'"{name}"': value for name, value in values.items()}
        has_deletes = deleted in rows.column_names
        merger = self._table.merge(
            rows,
            " AND ".join(f't."{name}" = s."{name}"' for name in key),
            source_alias="s",
            target_alias="t",
            commit_properties=CommitProperties(app_transactions=[library().Transaction(*app)]),
        )
        if has_deletes:
            merger = merger.when_matched_delete(f's."{deleted}" = 1 AND {is_newer}')
        merger = merger.when_matched_update(updates, is_newer)
        merger = merger.when_not_matched_insert(updates, f's."{deleted}" = 0' if has_deletes else None)
        with self._made_durable():
            try:
                merger.execute()
            except _conflict() as error:
                raise CommitConflict(f"the table at {self.location}: {one_line(error)}") from error

    def files(self) -> list[DataFile]:
        """Return the files that the table consists of."""
        found = pa.table(self._table.get_add_actions(flatten=True))
        columns = self._table.metadata().partition_columns
        values = [_texts(found.column(f"partition.{name}")) for name in columns]
        partitions: Iterable[tuple[str | None, ...]] = zip(*values, strict=True) if values else [()] * found.num_rows
        rows = found.column("num_records").to_pylist() if "num_records" in found.column_names else [None] * len(found)
        paths, sizes = found.column("path").to_pylist(), found.column("size_bytes").to_pylist()
        return [
            DataFile(unquote(path), size, dict(zip(columns, partition, strict=True)), count)
            for path, size, partition, count in zip(paths, sizes, partitions, rows, strict=True)
        ]

    def infos(self, after: int) -> Iterator[tuple[int, Info]]:
        """Return the information in each commit after a version, up to the version that is known here.

        Raises: FileNotFoundError if the log does not go back that far, LogDamaged if it cannot be read.
        """
        store = self.location.store
        for version in range(after + 1, self.version + 1):
            name = _commit_path(version)
            try:
                yield version, _info(store.read(name))
            except (ValueError, TypeError, RecursionError) as error:
                raise LogDamaged(f"the table at {self.location}: {name} cannot be read ({error})") from error

    def checkpoint(self) -> None:
        """Write the state of the table into one file, from which it is opened then."""
        with _translated(self.location):
            self._table.create_checkpoint()
        self.location.store.sync(_checkpoint_paths(self.version))

    def clean_log(self) -> None:
        """Delete the commits before the last checkpoint that are older than `delta.logRetentionDuration`."""
        with _translated(self.location):
            self._table.cleanup_metadata()

    def removed(self, older_than_s: float = 0.0) -> set[str]:
        """Return the files that were removed from the table that long ago, in whole hours, and that its log knows."""
        with _translated(self.location):
            found = self._table.vacuum(
                math.ceil(older_than_s / _HOUR_S), dry_run=True, enforce_retention_duration=False
            )
        return set(found)


def _conflict() -> type[Exception]:
    """Return what the library raises if another writer has changed the table at the same moment."""
    from deltalake.exceptions import CommitFailedError

    found: type[Exception] = CommitFailedError
    return found


def _keeping_log() -> Any:
    """Return what keeps the library from making checkpoints and shortening the log by itself."""
    from deltalake.transaction import PostCommitHookProperties

    return PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def _texts(column: Any) -> list[str | None]:
    return [None if value is None else str(value) for value in column.to_pylist()]


def _commit_path(version: int) -> str:
    return f"_delta_log/{version:020d}.json"


def _checkpoint_paths(version: int) -> list[str]:
    return [f"_delta_log/{version:020d}.checkpoint.parquet", "_delta_log/_last_checkpoint"]


def _added(content: bytes) -> Iterator[str]:
    """Yield the paths of the files that a commit adds, for readers of rows and of changes."""
    for line in content.splitlines():
        action = json.loads(line)
        for kind in action.keys() & {"add", "cdc"}:
            yield unquote(action[kind]["path"])


def _info(content: bytes) -> Info:
    for line in content.splitlines():
        action = json.loads(line)
        if "commitInfo" in action:
            found = action["commitInfo"]
            return found if isinstance(found, Mapping) else {}
    return {}


@contextmanager
def _translated(location: Location) -> Iterator[None]:
    """Raise LogDamaged for what the library says of a table; translated() does it for what it says of the store."""
    library()
    from deltalake.exceptions import DeltaError

    try:
        with translated(location):
            yield
    except DeltaError as error:
        raise LogDamaged(f"the table at {location}: {one_line(error)}") from error


def statistics(footer: pq.FileMetaData, without: Collection[str] = ()) -> str:
    """Return rows, least and greatest values, and nulls of the plain columns, in JSON; `without` some columns."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number in range(footer.num_columns):
        column = footer.schema.column(number)
        if "." in column.path or column.name in without or len(nulls) >= _MOST_COLUMNS:
            continue
        found = [footer.row_group(group).column(number).statistics for group in range(footer.num_row_groups)]
        if not found or not all(each is not None and each.has_null_count for each in found):
            continue
        nulls[column.name] = sum(each.null_count for each in found)
        bounded = [each for each in found if each.num_values]  # others are all null
        if bounded and all(each.has_min_max for each in bounded):
            zone = "Z" if json.loads(column.logical_type.to_json()).get("isAdjustedToUTC") else ""
            # A table may hold times outside the years 1 to 9999, which Python cannot represent.
            with suppress(OverflowError, ValueError):
                low, high = min(each.min for each in bounded), max(each.max for each in bounded)
                bounds = _at_least(low, zone), _at_most(high, zone)
                if None not in bounds:
                    least[column.name], greatest[column.name] = bounds
    found_all = {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return json.dumps(found_all, separators=(",", ":"), ensure_ascii=False)


def _at_least(value: object, zone: str) -> object:
    """Return a value as the log has it, rounded down where it cannot be exact; None if the log cannot hold it."""
    if isinstance(value, datetime):
        return _time(value - timedelta(microseconds=value.microsecond % 1000), zone)
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    return _plain(value)


def _at_most(value: object, zone: str) -> object:
    """Return a value as the log has it, rounded up where it cannot be exact; None if the log cannot hold it."""
    if isinstance(value, datetime):
        rest = value.microsecond % 1000
        return _time(value - timedelta(microseconds=rest) + _MS if rest else value, zone)
    if isinstance(value, str):
        if len(value) <= _LONGEST_TEXT:
            return value
        return None if value[_LONGEST_TEXT] == _LAST_CHARACTER else value[:_LONGEST_TEXT] + _LAST_CHARACTER
    return _plain(value)


def _plain(value: object) -> object:
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else None  # a float would not be exact
    return None


def _time(value: datetime, zone: str) -> str:
    return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone
