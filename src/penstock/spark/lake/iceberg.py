"""Iceberg tables through PyIceberg, without a jar: rows enter a table together with the number of their batch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.errors import PenstockError
from penstock.spark.lake.files import wait_for_others
from penstock.spark.lake.partitions import BUCKET, Partition, Partitions
from penstock.spark.runtime.versions import required

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = "penstock"  # what a catalogue is called unless `name` says otherwise: one in a database is known by it
_PROPERTY = "penstock.batch"
_SQLITE = "sqlite:///"
_ATTEMPTS = 5
# PyIceberg's, and SQLAlchemy's for catalogues in a database.
_RACES = ("CommitFailedException", "NamespaceAlreadyExistsError", "TableAlreadyExistsError", "IntegrityError")
_CATALOGUE_TABLE = "iceberg_tables"
_NUMBER, _THERE = "_penstock_number", "_penstock_there"


class IcebergMissing(PenstockError):
    """The library of Iceberg is not installed."""


class IcebergBusy(PenstockError):
    """Others change a table so often that nothing can be added to it."""


def library() -> Any:
    """Return the catalogues of PyIceberg."""
    return required("pyiceberg.catalog", IcebergMissing, "the sink iceberg", "'penstock[iceberg]'")


@dataclass(frozen=True)
class BatchNote:
    """A batch of a sink. A property of the table holds the last one; the summary of each snapshot names its own."""

    query: str
    sink: str
    number: int

    @property
    def name(self) -> str:
        """The name of the property."""
        return f"{_PROPERTY}.{self.query}.{self.sink}"

    @property
    def value(self) -> str:
        """Its value."""
        return str(self.number)

    def is_in(self, properties: Mapping[str, str]) -> bool:
        """Return whether the batch, or a later one, is in the table that has these properties."""
        last = properties.get(self.name)
        return last is not None and int(last) >= self.number

    @property
    def wap_id(self) -> str:
        """What Iceberg's Java library publishes once, however often it is asked to."""
        return f"penstock.{self.query}.{self.sink}.{self.value}"

    @property
    def summary(self) -> dict[str, str]:
        """What the snapshot says of itself."""
        return {
            "penstock.query": self.query,
            "penstock.sink": self.sink,
            "penstock.batch": self.value,
            "wap.id": self.wap_id,
        }


@dataclass(frozen=True)
class Described:
    """A table: the types of its columns in Iceberg's words, and what it is partitioned by, as it is declared."""

    columns: Mapping[str, str]
    partitions: Sequence[str]

    def misfits(self, table: str, wanted: Mapping[str, str], partitions: Partitions, *, may_add: bool) -> Iterator[str]:
        """Yield what keeps rows with the wanted columns out of the table."""
        for name, kind in wanted.items():
            if name not in self.columns:
                if not may_add:
                    yield f"table {table!r} has no column {name!r}; available: {', '.join(self.columns)}"
            elif _plain(self.columns[name]) != _plain(kind):
                yield f"table {table!r}: column {name!r} is {kind} in the rows and {self.columns[name]} in the table"
        if list(self.partitions) != [str(partition) for partition in partitions.each]:
            yield f"table {table!r} is partitioned by {list(self.partitions)}, which differs from partition_by"


def partition_text(column: str, transform: str) -> str:
    """Return one of the partitions of a table as it is declared, from what Iceberg calls it: `bucket[16]` of one."""
    name, _, number = transform.rstrip("]").partition("[")
    return str(Partition(column, name, int(number) if number else None))


def _plain(kind: str) -> str:
    """Leave out the ids of nested fields and whether they are required: neither keeps a file out."""
    return re.sub(r"\d+: |(?:required|optional) ", "", kind)


@dataclass(frozen=True)
class Merge:
    """How rows replace others: by these columns, if their order is not less; `deleted` is 1 in those that delete."""

    key: tuple[str, ...]
    order: str | None
    deleted: str


class IcebergTable:
    """A table in a catalogue, which PyIceberg reaches by its properties; nothing is asked for before it is needed."""

    def __init__(self, name: str, catalogue: Mapping[str, str], partitions: Partitions) -> None:
        self._name, self._properties, self._partitions = name, catalogue, partitions
        self._table: Any = None

    # --- before anything runs ---

    def paths(self) -> Iterator[str]:
        """Yield where the catalogue and its tables are, as far as the properties say."""
        if file := self._sqlite_file():
            yield str(file.parent)
        if warehouse := self._properties.get("warehouse"):
            yield warehouse

    def problems(self, schema: pa.Schema, *, is_keyed: bool, may_add: bool) -> Iterator[str]:
        """Yield what would keep rows of this schema from being added; write nothing."""
        library()
        yield from self._unknown_transforms(is_keyed=is_keyed)
        if not self._has_catalogue():
            return
        try:
            # A catalogue in a database that is new to it would make its tables.
            catalogue = self._catalogue(init_catalog_tables="false")
            if catalogue.table_exists(self._name):
                found = _described(catalogue.load_table(self._name))
                yield from found.misfits(self._name, _types(schema), self._partitions, may_add=may_add)
        except Exception as error:  # of whatever library reaches the catalogue: there is no common class
            if _CATALOGUE_TABLE not in str(error):  # which a new catalogue does not have yet
                yield f"cannot use the catalogue: {type(error).__name__}: {' '.join(str(error).split())}"

    def _unknown_transforms(self, *, is_keyed: bool) -> Iterator[str]:
        from importlib.util import find_spec

        made = self._partitions.made
        if is_keyed and made and find_spec("pyiceberg_core") is None:
            yield f"partition_by: {made[0]} in a table with a key needs pyiceberg-core: pip install pyiceberg-core"
        if not is_keyed and any(partition.transform == BUCKET for partition in made):
            yield "partition_by: PyIceberg cannot add files to buckets: use Iceberg's jars (library = 'spark')"

    def _sqlite_file(self) -> Path | None:
        uri = self._properties.get("uri", "")
        path = uri.removeprefix(_SQLITE).partition("?")[0]
        return Path(path) if uri.startswith(_SQLITE) and path else None

    def _has_catalogue(self) -> bool:
        file = self._sqlite_file()  # which SQLite would make to look at it
        return file is None or file.exists()

    # --- a batch ---

    def open(self, schema: pa.Schema, *, may_add: bool = False) -> None:
        """Load the table as it is now; make it if there is none, and add columns that it lacks if that is allowed."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._open(schema, may_add=may_add)
            except Exception as error:  # of whatever library reaches the catalogue: there is no common class
                if attempt == _ATTEMPTS or not _is_race(error):
                    raise
                wait_for_others(attempt)
            else:
                return

    def _open(self, schema: pa.Schema, *, may_add: bool) -> None:
        catalogue = self._catalogue()
        if not catalogue.table_exists(self._name):
            self._create(catalogue, schema)
        self._load()
        missing = set(schema.names) - {field.name for field in self._table.schema().fields}
        if missing and may_add:
            import pyarrow as pa

            # Of the columns that it has, one of the rows may be narrower.
            with self._table.update_schema() as update:
                update.union_by_name(pa.schema([field for field in schema if field.name in missing]))
            self._load()

    def _create(self, catalogue: Any, schema: pa.Schema) -> None:
        catalogue.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        # One commit: a table is never seen without its partitions.
        with (
            catalogue.create_table_transaction(self._name, schema) as transaction,
            transaction.update_spec() as spec,
        ):
            for each in self._partitions.each:
                argument = "" if each.number is None else f"[{each.number}]"
                spec.add_field(each.column, f"{each.transform}{argument}", each.name)

    def _load(self) -> None:
        self._table = _unrepeated(self._catalogue().load_table(self._name))

    def is_there(self) -> bool:
        """Load the table as it is now; return False if there is none."""
        if not self._catalogue().table_exists(self._name):
            return False
        self._load()
        return True

    def has(self, note: BatchNote) -> bool:
        """Return whether the batch, or a later one, is in the table."""
        return note.is_in(self._table.properties)

    @property
    def location(self) -> str:
        """Where the files of the table are, as the catalogue says it."""
        return str(self._table.location())

    def add(self, paths: Sequence[str], note: BatchNote) -> bool:
        """Add the files of a batch, and note the batch, in one commit; return whether it was new."""

        def added(transaction: Any) -> None:
            # Files of a new batch are in a folder of their own: none is in the table already.
            transaction.add_files(list(paths), snapshot_properties=note.summary, check_duplicate_files=False)

        return self._committed(note, added)

    def merge(self, rows: pa.Table, how: Merge, note: BatchNote) -> bool:
        """Replace rows by their key, and note the batch, in one commit; return whether it was new."""

        def merged(transaction: Any) -> None:
            from pyiceberg.expressions import AlwaysFalse
            from pyiceberg.table.upsert_util import create_match_filter

            there = self._there(rows, how)
            newer = _not_older(rows, there, how)
            kept = newer
            if how.deleted in rows.column_names:
                import pyarrow.compute as pc

                kept = newer.filter(pc.equal(newer[how.deleted], 0)).drop_columns([how.deleted])
            keys = list(how.key)
            found = (
                newer.select(keys).join(there.select(keys), keys=keys, join_type="left semi") if len(there) else None
            )
            replaced = create_match_filter(found, keys) if found is not None and len(found) else AlwaysFalse()
            if len(kept):
                transaction.overwrite(kept, overwrite_filter=replaced, snapshot_properties=note.summary)
            elif replaced != AlwaysFalse():
                transaction.delete(replaced, snapshot_properties=note.summary)

        return self._committed(note, merged)

    def _there(self, rows: pa.Table, how: Merge) -> pa.Table:
        """Return the keys of the rows that are in the table, each with its greatest order."""
        from pyiceberg.table.upsert_util import create_match_filter

        keys = list(how.key)
        columns = [*keys, *([how.order] if how.order is not None and how.order not in keys else [])]
        if not len(rows):
            return rows.select(columns)
        scan = self._table.scan(row_filter=create_match_filter(rows, keys), selected_fields=tuple(columns))
        found = scan.to_arrow().select(columns).cast(rows.select(columns).schema)
        if how.order is None or how.order in keys:
            return found.group_by(keys).aggregate([])
        made = found.group_by(keys).aggregate([(how.order, "max")])
        return made.rename_columns([*keys, how.order])

    def _committed(self, note: BatchNote, change: Any) -> bool:
        """Commit a change together with the note; return False if the table has the batch.

        A commit succeeds only if no other has been made since the table was loaded. So another driver that writes the
        same batch at the same time is seen, here or there.
        """
        from pyiceberg.exceptions import CommitFailedException

        failed: BaseException | None = None
        for attempt in range(1, _ATTEMPTS + 1):
            if self.has(note):
                return False
            try:
                with self._table.transaction() as transaction:
                    transaction.set_properties({note.name: note.value})
                    change(transaction)
            except CommitFailedException as error:
                failed = error
                wait_for_others(attempt)
                self._load()
            else:
                return True
        raise IcebergBusy(
            f"table {self._name!r}: other writers changed it {_ATTEMPTS} times while batch {note.value} was "
            "being added. Run the pipeline again when they are done"
        ) from failed

    def _catalogue(self, **more: str) -> Any:
        given = {**self._properties, **more}
        return library().load_catalog(given.pop("name", _NAME), **given)


def _is_race(error: Exception) -> bool:
    """Return whether another writer has created or changed the same thing at the same moment."""
    return type(error).__name__ in _RACES or "already exists" in str(error)


def _unrepeated(table: Any) -> Any:
    """Return a table whose commits fail if another writer has committed: PyIceberg would repeat them by itself."""
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table import Table

    class Unrepeated(Table):
        def refresh(self) -> Table:  # what it does first to repeat a commit
            raise CommitFailedException(f"{self.name()} has changed")

    return Unrepeated(table.name(), table.metadata, table.metadata_location, table.io, table.catalog, table.config)


def _not_older(rows: pa.Table, there: pa.Table, how: Merge) -> pa.Table:
    """Return the rows that are not older than what the table has of their key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if how.order is None or how.order in how.key or not len(there):
        return rows
    keys = list(how.key)
    numbered = rows.select([*keys, how.order]).append_column(_NUMBER, pa.array(range(len(rows)), pa.int64()))
    joined = numbered.join(there.rename_columns([*keys, _THERE]), keys=keys, join_type="left outer")
    is_newer = pc.fill_null(pc.greater_equal(joined[how.order], joined[_THERE]), fill_value=False)
    return rows.take(joined.filter(pc.or_(pc.is_null(joined[_THERE]), is_newer))[_NUMBER])


def _described(table: Any) -> Described:
    names = {field.field_id: field.name for field in table.schema().fields}
    partitions = [
        partition_text(names.get(field.source_id, field.name), str(field.transform)) for field in table.spec().fields
    ]
    return Described({field.name: str(field.field_type) for field in table.schema().fields}, partitions)


def _types(schema: pa.Schema) -> dict[str, str]:
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import assign_fresh_schema_ids

    # Only a schema with ids can be compared, and Arrow's has none.
    made = assign_fresh_schema_ids(Catalog._convert_schema_if_needed(schema))  # noqa: SLF001 - shown nowhere else
    return {field.name: str(field.field_type) for field in made.fields}


def for_hadoop(path: str) -> str:
    """Return a path of a catalogue as Hadoop's file systems call it."""
    parts = urlsplit(path)
    return path.replace("s3://", "s3a://", 1) if parts.scheme == "s3" else path
