"""A table of Iceberg in its catalogue, through PyIceberg: made, compared, and given files together with their batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.errors import PenstockError
from penstock.spark.pipeline.sinks import Iceberg
from penstock.spark.pipeline.writing.iceberg_fit import Described, misfits
from penstock.spark.pipeline.writing.iceberg_note import BatchNote
from penstock.spark.pipeline.writing.parquet import unwritable

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = "penstock"  # what a catalogue is called unless `name` says otherwise: one in a database is known by it
_SQLITE = "sqlite:///"
_ATTEMPTS = 5
_CATALOGUE_TABLE = "iceberg_tables"


class IcebergMissing(PenstockError):
    """The library of Iceberg is not installed."""


class IcebergBusy(PenstockError):
    """Others change a table so often that nothing can be added to it."""


class _BatchThere(Exception):
    """Another driver has added the batch in the meantime."""


class IcebergTable:
    """The table of a sink; nothing is asked for before it is needed."""

    def __init__(self, sink: Iceberg) -> None:
        self._sink = sink
        self._table: Any = None

    # --- before anything runs ---

    def problems(self, schema: pa.Schema) -> Iterator[str]:
        """Yield what would keep rows of this schema from being added; write nothing."""
        library()
        faults = [*self._unwritable()]
        yield from faults
        if faults or not self._has_catalogue():
            return
        try:
            # A catalogue in a database that is new to it would make its tables.
            catalogue = self._catalogue(init_catalog_tables="false")
            if catalogue.table_exists(self._sink.table):
                yield from self._misfits(catalogue.load_table(self._sink.table), schema)
        except Exception as error:  # of whatever library reaches the catalogue: there is no common class
            if _CATALOGUE_TABLE not in str(error):  # which a new catalogue does not have yet
                yield f"the catalogue cannot be used: {type(error).__name__}: {_line(error)}"

    def _unwritable(self) -> Iterator[str]:
        if file := self._sqlite_file():
            yield from unwritable(str(file.parent))
        if warehouse := self._sink.catalog.get("warehouse"):
            yield from unwritable(warehouse)

    def _sqlite_file(self) -> Path | None:
        uri = self._sink.catalog.get("uri", "")
        place = uri.removeprefix(_SQLITE).partition("?")[0]
        return Path(place) if uri.startswith(_SQLITE) and place else None

    def _has_catalogue(self) -> bool:
        file = self._sqlite_file()  # which SQLite would make to look at it
        return file is None or file.exists()

    def _misfits(self, table: Any, schema: pa.Schema) -> Iterator[str]:
        from pyiceberg.schema import assign_fresh_schema_ids

        made = assign_fresh_schema_ids(_schema(schema))
        wanted = {field.name: str(field.field_type) for field in made.fields}
        found = {field.name: str(field.field_type) for field in table.schema().fields}
        partitions = [field.name for field in table.spec().fields]
        yield from misfits(self._sink, wanted, Described(found, partitions))

    # --- a batch ---

    def open(self, schema: pa.Schema) -> None:
        """Load the table as it is now; make it if there is none."""
        catalogue = self._catalogue()
        name = self._sink.table
        if not catalogue.table_exists(name):
            self._create(catalogue, schema)
        self._table = catalogue.load_table(name)

    def _create(self, catalogue: Any, schema: pa.Schema) -> None:
        from pyiceberg.exceptions import TableAlreadyExistsError

        catalogue.create_namespace_if_not_exists(self._sink.table.rpartition(".")[0])
        try:
            # One commit: a table is never seen without its partitions.
            with (
                catalogue.create_table_transaction(self._sink.table, schema) as transaction,
                transaction.update_spec() as spec,
            ):
                for column in self._sink.partition_by:
                    spec.add_identity(column)
        except TableAlreadyExistsError:
            return  # another sink was faster

    def has(self, note: BatchNote) -> bool:
        """Tell whether the batch, or a later one, is in the table."""
        return note.is_in(self._table.properties)

    @property
    def location(self) -> str:
        """Where the files of the table are, as the catalogue says it."""
        return str(self._table.location())

    def add(self, paths: Sequence[str], note: BatchNote) -> bool:
        """Add the files of a batch, and note the batch, in one commit; tell whether it was new.

        A commit holds only if nobody else has committed since the table was loaded. So another driver that writes the
        same batch at the same time is seen, here or there.
        """
        from pyiceberg.exceptions import CommitFailedException

        failed: BaseException | None = None
        for _ in range(_ATTEMPTS):
            if self.has(note):
                return False
            try:
                self._commit(paths, note)
            except _BatchThere:
                return False
            except CommitFailedException as error:
                failed = error
                self._table = self._catalogue().load_table(self._sink.table)
            else:
                return True
        raise IcebergBusy(
            f"table {self._sink.table!r}: others changed it {_ATTEMPTS} times while batch {note.value} was added. "
            "Start the pipeline again when they are done"
        ) from failed

    def _commit(self, paths: Sequence[str], note: BatchNote) -> None:
        table, refresh = self._table, self._table.refresh

        def refreshed() -> Any:
            refresh()
            if note.is_in(table.properties):
                raise _BatchThere
            return table

        table.refresh = refreshed  # which PyIceberg calls before it repeats a commit by itself
        with table.transaction() as transaction:
            transaction.set_properties({note.name: note.value})
            # Files of a new batch lie in a folder of their own: none is in the table already.
            transaction.add_files(list(paths), snapshot_properties=note.summary, check_duplicate_files=False)

    def _catalogue(self, **more: str) -> Any:
        given = {**self._sink.catalog, **more}
        return library().load_catalog(given.pop("name", _NAME), **given)


def library() -> Any:
    """Return the catalogues of PyIceberg."""
    try:
        import pyiceberg.catalog
    except ImportError as error:
        raise IcebergMissing(
            f"the sink iceberg needs pyiceberg, which cannot be imported ({error}): pip install 'penstock[iceberg]'"
        ) from error
    return pyiceberg.catalog


def _schema(schema: pa.Schema) -> Any:
    # Only a schema with ids can be compared, and Arrow's has none.
    from pyiceberg.catalog import Catalog

    return Catalog._convert_schema_if_needed(schema)  # noqa: SLF001 - PyIceberg shows it nowhere else


def for_hadoop(path: str) -> str:
    """Return a path of a catalogue as Hadoop's file systems call it."""
    parts = urlsplit(path)
    return path.replace("s3://", "s3a://", 1) if parts.scheme == "s3" else path


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
