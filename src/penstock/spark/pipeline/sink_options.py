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
    """What all sinks can have: the step whose rows they get, the last one by default, and which of these rows."""

    from_: str | None = None
    where: Text | None = None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        super().__post_init__()
        Partitions.of(getattr(self, "partition_by", ()))  # which not all sinks have


@dataclass(frozen=True, kw_only=True)
class KeyedOptions(CommonSinkOptions):
    """What sinks can have whose tables hold one row for each key: without `key` they append.

    A row replaces an older one that has the same values in the columns of `key`. The newer row has the greater
    `order_by`, or comes from the entry with the greater id, which the table keeps in `order_column`. A row for which
    the condition `delete_when` is true deletes an older one.
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
    """Parquet files, one folder for each batch, in sub-folders by `partition_by`.

    What a table is partitioned by are columns, or `day(at)`, `hour(at)`, `bucket(16, id)` and `truncate(4, name)` of
    them. With `evolve` a table may get columns that it does not have yet; they are null in older rows.
    """

    path: Text
    partition_by: tuple[str, ...] = ()
    compression: Literal["snappy", "zstd", "gzip", "lz4", "none"] = "zstd"
    evolve: bool = False
    name: Text = "parquet"


@dataclass(frozen=True)
class Delta(KeyedOptions):
    """A table of Delta Lake, in folders by `partition_by`; it is made if there is none.

    `library` is `python` (the package deltalake commits), `spark` (the jars of the session do), or `auto`: the jars if
    the session has them. `options` are those of the store, for deltalake: keys, region, endpoint. `partition_by` and
    `evolve` are those of Parquet.
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
    """A table of Iceberg, partitioned by `partition_by`; it is made if there is none.

    `table` is `namespace.name` in the catalogue that the properties in `catalog` describe to PyIceberg, and that the
    session knows as `spark_catalog`. `library` is `python` (PyIceberg commits), `spark` (the jars of the session do) or
    `auto`: the jars if the session has them and the catalogue. `partition_by` and `evolve` are those of Parquet.
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
    """Streams again. Without `stream` each row names its own in a column `stream`; `url` is the source's by default."""

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
    """A table of PostgreSQL; with `create` it is made if there is none."""

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
    """A table of any database for which the session has a JDBC driver.

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
    """Results, as workers leave them: one for each row, known by the value in the column `id`.

    `backend` is fs, postgres, s3 or the name of a plug-in, made with `options`. `columns` are the data of the result,
    all but `id` by default. `finished_at` names the column with its time, which is the present one by default.
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
