"""Delta Lake tables through the library `deltalake`, without a jar: somebody else writes the files, this commits them.

A commit may carry the number of a batch (`txn` in the log of the table): of two writers that commit the same batch one
is refused, and `last()` says which batches are in the table, however long ago they were committed.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.spark.lake.files import Location

if TYPE_CHECKING:
    from typing import Self

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STACK = re.compile(r"\s+0: ")
_HOUR_S = 3_600
Info = Mapping[str, Any]  # what a commit says beside its files; values are those of JSON


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
    stats: str = "{}"  # only to be committed: see lake/statistics.py
    modified_ms: int = 0


def library() -> Any:
    """Return the module `deltalake`; raise DeltaMissing if it is not installed."""
    try:
        import deltalake
    except ImportError as error:
        raise DeltaMissing(
            f"deltalake is needed and cannot be imported ({error}): pip install 'penstock[delta]'"
        ) from error
    return deltalake


class DeltaLog:
    """A Delta table, at the version at which it was opened, refreshed or committed to last."""

    def __init__(self, location: Location, table: Any) -> None:
        self.location, self._table = location, table

    @classmethod
    def open(cls, location: Location) -> Self | None:
        """Open a table; return None if there is none. Raise LogDamaged if its log cannot be read."""
        with _translated(location):
            if not library().DeltaTable.is_deltatable(location.uri, _options(location)):
                return None
            return cls(location, library().DeltaTable(location.uri, storage_options=_options(location)))

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
            table = library().DeltaTable.create(
                location.uri,
                schema=library().Schema.from_arrow(schema),
                mode="ignore",
                partition_by=list(partition_by),
                configuration=configuration,
                storage_options=_options(location),
            )
        made = cls(location, table)
        made._make_durable(0)
        return made

    @property
    def table(self) -> Any:
        """The table as the library has it."""
        return self._table

    @property
    def identity(self) -> str:
        """What tells this table from one that was made in the same place later."""
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

        `has_new_rows=False` says that the rows are those of the removed files, so that whoever follows the table gets
        none twice. Commits that remove files must have an `app`: the library does not refuse two that remove the same.
        With `keeps_log=False` the library makes checkpoints and shortens the log as the table is configured.

        Raises: CommitConflict if another writer has committed for `app` since the table was refreshed.
        """
        from deltalake.exceptions import CommitFailedError
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
        known = self.version
        with _translated(self.location):
            try:
                self._table.create_write_transaction(
                    actions,
                    mode="append",
                    schema=self._table.schema(),
                    partition_by=self._table.metadata().partition_columns,
                    commit_properties=properties,
                    post_commithook_properties=_keeping_log() if keeps_log else None,
                )
            except CommitFailedError as error:
                raise CommitConflict(f"the table at {self.location}: {one_line(error)}") from error
        self.refresh()
        self._make_durable(known + 1)
        return self.version

    def _make_durable(self, first: int) -> None:
        """Let the commits from one on survive a crash of the machine: the library leaves that to others."""
        self._sync(*(f"{version:020d}.json" for version in range(first, self.version + 1)))

    def _sync(self, *names: str) -> None:
        self.location.store.sync(f"_delta_log/{name}" for name in names)

    def has(self, batch: tuple[str, int]) -> bool:
        """Return whether the table, as it is known here, has a batch of an application, or a later one."""
        last = self.last(batch[0])
        return last is not None and last >= batch[1]

    @property
    def partition_by(self) -> list[str]:
        """The columns that the table is partitioned by."""
        return list(self._table.metadata().partition_columns)

    def add_columns(self, schema: pa.Schema) -> None:
        """Add the columns that the table lacks; they are null in the rows that it has."""
        wanted = library().Schema.from_arrow(schema)
        there = {field.name for field in self._table.schema().fields}
        missing = [field for field in wanted.fields if field.name not in there]
        if missing:
            with _translated(self.location):
                self._table.alter.add_columns(missing)

    def merge(self, rows: pa.Table, key: Sequence[str], *, is_newer: str, deleted: str, app: tuple[str, int]) -> None:
        """Replace rows by their key, and add those whose key is new, in one step.

        `is_newer` says in SQL whether the row `s` may replace the row `t` of the table. A row that has 1 in the column
        `deleted`, which is none of the table, deletes it instead.

        Raises: CommitConflict if another writer has committed the batch `app`, or has changed the same files.
        """
        from deltalake.exceptions import CommitFailedError
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
        try:
            merger.execute()
        except CommitFailedError as error:
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
        """Return what each commit behind a version says of itself, up to the version that is known here.

        Raises: FileNotFoundError if the log does not go back that far.
        """
        store = self.location.store
        for version in range(after + 1, self.version + 1):
            yield version, _info(store.read(f"_delta_log/{version:020d}.json"))

    def checkpoint(self) -> None:
        """Write the state of the table into one file, from which it is opened then."""
        with _translated(self.location):
            self._table.create_checkpoint()
        self._sync(f"{self.version:020d}.checkpoint.parquet", "_last_checkpoint")

    def clean_log(self) -> None:
        """Delete the commits before the last checkpoint that are older than `delta.logRetentionDuration`."""
        with _translated(self.location):
            self._table.cleanup_metadata()

    def vacuum(self, older_than_s: float, *, everything: bool = False, dry_run: bool = False) -> list[str]:
        """Delete files that were removed from the table that long ago, in whole hours; return their paths.

        With `everything` also those that the log does not know: they must not be somebody's who is about to commit.
        """
        known = self.version
        with _translated(self.location):
            found = self._table.vacuum(
                retention_hours=math.ceil(older_than_s / _HOUR_S),
                dry_run=dry_run,
                enforce_retention_duration=False,
                full=everything,
                post_commithook_properties=_keeping_log(),
            )
        self.refresh()  # it notes in the log what it has deleted
        self._make_durable(known + 1)
        return list(found)

    def removed(self) -> set[str]:
        """Return the files that were removed from the table and are still known to its log."""
        return set(self.vacuum(0, dry_run=True))


def one_line(error: BaseException) -> str:
    """Return what the library says, without the colours and the stack of Rust below it."""
    text = _COLOUR.sub("", str(error)).strip() or type(error).__name__
    return " ".join(_STACK.split(text)[0].split())


def _keeping_log() -> Any:
    """Return what keeps the library from making checkpoints and shortening the log by itself."""
    from deltalake.transaction import PostCommitHookProperties

    return PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def _options(location: Location) -> dict[str, str]:
    return dict(location.options)


def _texts(column: Any) -> list[str | None]:
    return [None if value is None else str(value) for value in column.to_pylist()]


def _info(content: bytes) -> Info:
    for line in content.splitlines():
        action = json.loads(line)
        if "commitInfo" in action:
            found: Info = action["commitInfo"]
            return found
    return {}


@contextmanager
def _translated(location: Location) -> Iterator[None]:
    """Raise LogDamaged for what the library raises."""
    library()
    from deltalake.exceptions import DeltaError

    try:
        yield
    except DeltaError as error:
        raise LogDamaged(f"the table at {location}: {one_line(error)}") from error
