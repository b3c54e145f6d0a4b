"""Where the rows of a pipeline go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from penstock.errors import ConfigurationError
from penstock.keys import StreamKeys, check_name
from penstock.settings.binding import Checked
from penstock.spark.lake.partitions import Partitions
from penstock.spark.pipeline.steps import Positive, Text

_JDBC_OWN = ("url", "dbtable", "table", "query", "truncate")
Library: TypeAlias = Literal["auto", "python", "spark"]


@dataclass(frozen=True, kw_only=True)
class CommonSinkOptions(Checked):
    """What all sinks have in common: the step whose rows they get, by default the last, and a condition on the rows."""

    from_: str | None = None
    where: Text | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        super().__post_init__()
        Partitions.of(getattr(self, "partition_by", ()))  # not all sinks have it


@dataclass(frozen=True, kw_only=True)
class KeyedOptions(CommonSinkOptions):
    """The options of sinks whose tables can hold one row per key; without `key`, they append.

    A row replaces an older row with the same values in the columns of `key`. The newer row has the greater `order_by`,
    or comes from the entry with the greater id, which the table stores in `order_column`. A row for which the condition
    `delete_when` is true deletes an older one.
    """

    key: tuple[str, ...] = ()
    order_by: Text | None = None
    order_column: Text = "penstock_order"
    delete_when: Text | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        super().__post_init__()
        for name, value in (("order_by", self.order_by), ("delete_when", self.delete_when)):
            if value is not None and not self.key:
                raise ConfigurationError(f"{name} needs key, the columns that identify the row to replace")


@dataclass(frozen=True)
class Parquet(CommonSinkOptions):
    """Parquet files, one folder per batch, with subfolders by `partition_by`.

    Tables are partitioned by columns, or by `day(at)`, `hour(at)`, `bucket(16, id)` and `truncate(4, name)` of them.
    With `evolve`, a sink adds columns that its table does not have; they are null in older rows.
    """

    path: Text
    partition_by: tuple[str, ...] = ()
    compression: Literal["snappy", "zstd", "gzip", "lz4", "none"] = "zstd"
    evolve: bool = False
    name: Text = "parquet"


@dataclass(frozen=True)
class Delta(KeyedOptions):
    """A Delta Lake table, in folders by `partition_by`; it is created if it does not exist.

    `library` is `python` (the package deltalake commits), `spark` (the jars of the session commit), or `auto`: the
    jars if the session has them. `options` are the storage options for deltalake: keys, region, endpoint.
    `partition_by` and `evolve` work as for Parquet.
    """

    path: Text
    partition_by: tuple[str, ...] = ()
    library: Library = "auto"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    evolve: bool = False
    name: Text = "delta"

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        super().__post_init__()
        if self.library == "spark" and self.options:
            raise ConfigurationError(
                "options apply only to library = 'python'; configure Spark's jars with spark.hadoop.* settings"
            )


@dataclass(frozen=True)
class Iceberg(KeyedOptions):
    """An Iceberg table, partitioned by `partition_by`; it is created if it does not exist.

    `table` is `namespace.name` in the catalogue that `catalog` describes to PyIceberg, and that the session calls
    `spark_catalog`. `library` is `python` (PyIceberg commits), `spark` (the jars of the session commit) or `auto`: the
    jars if the session has them and the catalogue. `partition_by` and `evolve` work as for Parquet.
    """

    table: Text
    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)
    partition_by: tuple[str, ...] = ()
    spark_catalog: str | None = None
    library: Library = "auto"
    evolve: bool = False
    name: Text = "iceberg"

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        super().__post_init__()
        if len(self.table.split(".")) < 2 or not all(self.table.split(".")):
            raise ConfigurationError(f"table={self.table!r} must be namespace.name, such as 'shop.orders'")
        if self.spark_catalog is not None:
            check_name("spark_catalog", self.spark_catalog)
            if "." in self.spark_catalog:
                raise ConfigurationError(f"spark_catalog={self.spark_catalog!r} must be a name without a dot")
        elif self.library == "spark":
            raise ConfigurationError(
                "library = 'spark' needs spark_catalog, the name of the catalogue in the Spark session, such as "
                "spark_catalog = 'lake' for spark.sql.catalog.lake"
            )
        if not self.catalog and (self.spark_catalog is None or self.library == "python"):
            raise ConfigurationError(
                "catalog is empty: describe the catalogue, for example catalog = {type = 'sql', uri = "
                "'sqlite:///...', warehouse = 'file:///...'}"
            )


@dataclass(frozen=True)
class RedisStreams(CommonSinkOptions):
    """Redis streams. Without `stream`, the column `stream` names the stream; `url` defaults to the source's."""

    stream: str | None = None
    url: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    name: Text = "redis_streams"

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        super().__post_init__()
        if self.stream is not None:
            StreamKeys.of(self.stream)
        for option in self.options:
            if option.lower() in ("url", "stream", "streams", "writeid", "batchid", "semantics"):
                raise ConfigurationError(f"options.{option} is set by the pipeline: remove it")


@dataclass(frozen=True)
class Postgres(KeyedOptions):
    """A PostgreSQL table; with `create`, it is created if it does not exist."""

    dsn: Text = field(repr=False)
    table: Text
    create: bool = False
    name: Text = "postgres"

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        super().__post_init__()
        if any(not part for part in self.table.split(".")):
            raise ConfigurationError(f"table={self.table!r} must be a name, or schema.name")


@dataclass(frozen=True)
class Jdbc(KeyedOptions):
    """A table in any database for which the session has a JDBC driver.

    `options` are those of Spark's JDBC writer, such as `user`, `password` and `driver`.
    """

    url: Text = field(repr=False)
    table: Text
    create: bool = False
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    name: Text = "jdbc"

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        super().__post_init__()
        if not self.url.startswith("jdbc:"):
            raise ConfigurationError("url must start with jdbc:, such as jdbc:mysql://host/database")
        for option in self.options:
            if option.lower() in _JDBC_OWN:
                raise ConfigurationError(f"options.{option} is set by the pipeline: remove it")


@dataclass(frozen=True)
class Results(CommonSinkOptions):
    """Results like those of workers: one per row, with the id from the column `id`.

    `backend` is fs, postgres, s3 or the name of a plug-in, and gets `options`. `columns` are the data of the result, by
    default all except `id`. `finished_at` names the column with the time of the result, by default the current time.
    """

    id: Text
    result_kind: str
    backend: Text = "fs"
    columns: tuple[str, ...] = ()
    finished_at: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    name: Text = "results"

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        super().__post_init__()
        check_name("result_kind", self.result_kind)


@dataclass(frozen=True)
class Console(CommonSinkOptions):
    """Shows the first `rows` of each batch."""

    rows: Positive = 20
    name: Text = "console"


Sink: TypeAlias = Parquet | Delta | Iceberg | RedisStreams | Postgres | Jdbc | Results | Console
SINKS: dict[str, type[Sink]] = {
    "parquet": Parquet, "delta": Delta, "iceberg": Iceberg, "redis_streams": RedisStreams, "postgres": Postgres,
    "jdbc": Jdbc, "results": Results, "console": Console,
}  # fmt: skip
