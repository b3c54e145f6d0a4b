"""Where the rows of a pipeline go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.errors import ConfigurationError
from penstock.keys import StreamKeys, check_name
from penstock.spark.pipeline.checks import check_choice, check_positive, check_text, take_texts

_COMPRESSIONS = ("snappy", "zstd", "gzip", "lz4", "none")
_LIBRARIES = ("auto", "python", "spark")
_JDBC_OWN = ("url", "dbtable", "table", "query", "truncate")


@dataclass(frozen=True)
class Parquet:
    """Parquet files, one folder for each batch, in sub-folders by `partition_by`."""

    path: str
    partition_by: tuple[str, ...] = ()
    compression: str = "zstd"
    name: str = "parquet"

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        check_text("path", self.path)
        take_texts(self, "partition_by")
        check_choice("compression", self.compression, _COMPRESSIONS)


@dataclass(frozen=True)
class Delta:
    """A table of Delta Lake, in folders by `partition_by`; it is made if there is none.

    `library` is `python` (the package deltalake commits), `spark` (the jars of the session do), or `auto`: the jars if
    the session has them. `options` are those of the store, for deltalake: keys, region, endpoint.
    """

    path: str
    partition_by: tuple[str, ...] = ()
    library: str = "auto"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    name: str = "delta"

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        check_text("path", self.path)
        take_texts(self, "partition_by")
        check_choice("library", self.library, _LIBRARIES)
        if self.library == "spark" and self.options:
            raise ConfigurationError("options are for library = 'python': Spark's jars are set up by spark.hadoop.*")


@dataclass(frozen=True)
class Iceberg:
    """A table of Iceberg, partitioned by the values of `partition_by`; it is made if there is none.

    `table` is `namespace.name` in the catalogue that the properties in `catalog` describe to PyIceberg, and that the
    session knows as `spark_catalog`. `library` is `python` (PyIceberg commits), `spark` (the jars of the session do) or
    `auto`: the jars if the session has them and the catalogue.
    """

    table: str
    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)
    partition_by: tuple[str, ...] = ()
    spark_catalog: str | None = None
    library: str = "auto"
    name: str = "iceberg"

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        check_text("table", self.table)
        take_texts(self, "partition_by")
        check_choice("library", self.library, _LIBRARIES)
        if len(self.table.split(".")) < 2 or not all(self.table.split(".")):
            raise ConfigurationError(f"table = {self.table!r} must be namespace.name, such as 'shop.orders'")
        if self.spark_catalog is not None:
            check_name("spark_catalog", self.spark_catalog)
            if "." in self.spark_catalog:
                raise ConfigurationError(f"spark_catalog = {self.spark_catalog!r} must be a name without a dot")
        elif self.library == "spark":
            raise ConfigurationError(
                "library = 'spark' needs spark_catalog, the name of the catalogue in the session: "
                "spark_catalog = 'lake' for spark.sql.catalog.lake"
            )
        if not self.catalog and (self.spark_catalog is None or self.library == "python"):
            raise ConfigurationError(
                "catalog is empty: say where the catalogue is, such as catalog = {type = 'sql', uri = 'sqlite:///...', "
                "warehouse = 'file:///...'}"
            )


@dataclass(frozen=True)
class RedisStreams:
    """Streams again. Without `stream` each row names its own in a column `stream`; `url` is the source's by default."""

    stream: str | None = None
    url: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    name: str = "redis_streams"

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        if self.stream is not None:
            StreamKeys.of(self.stream)
        for option in self.options:
            if option.lower() in ("url", "stream", "streams", "writeid", "batchid", "semantics"):
                raise ConfigurationError(f"options.{option}: a pipeline chooses it itself; leave it out")


@dataclass(frozen=True)
class Postgres:
    """A table of PostgreSQL. With `key` a row replaces the one that has the same values in these columns."""

    dsn: str = field(repr=False)
    table: str
    key: tuple[str, ...] = ()
    create: bool = False
    name: str = "postgres"

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        check_text("dsn", self.dsn)
        check_text("table", self.table)
        take_texts(self, "key")
        if any(not part for part in self.table.split(".")):
            raise ConfigurationError(f"table = {self.table!r} must be a name, or schema.name")


@dataclass(frozen=True)
class Jdbc:
    """A table of any database for which the session has a JDBC driver.

    With `key` a row replaces those that have the same values in these columns. `options` are those of Spark's JDBC
    writer, such as `user`, `password` and `driver`.
    """

    url: str = field(repr=False)
    table: str
    key: tuple[str, ...] = ()
    create: bool = False
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    name: str = "jdbc"

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        check_text("url", self.url)
        check_text("table", self.table)
        take_texts(self, "key")
        if not self.url.startswith("jdbc:"):
            raise ConfigurationError("url must begin with jdbc:, such as jdbc:mysql://host/database")
        for option in self.options:
            if option.lower() in _JDBC_OWN:
                raise ConfigurationError(f"options.{option}: a pipeline chooses it itself; leave it out")


@dataclass(frozen=True)
class Results:
    """Results, as workers leave them: one for each row, known by the value in the column `id`.

    `backend` is fs, postgres, s3 or the name of a plug-in, made with `options`. `columns` are the data of the result,
    all but `id` by default. `finished_at` names the column with its time, which is the present one by default.
    """

    id: str
    result_kind: str
    backend: str = "fs"
    columns: tuple[str, ...] = ()
    finished_at: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    name: str = "results"

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        check_text("id", self.id)
        take_texts(self, "columns")
        check_name("result_kind", self.result_kind)
        check_text("backend", self.backend)


@dataclass(frozen=True)
class Console:
    """Shows the first `rows` of each batch."""

    rows: int = 20
    name: str = "console"

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        check_positive("rows", self.rows)


Sink: TypeAlias = Parquet | Delta | Iceberg | RedisStreams | Postgres | Jdbc | Results | Console
SINKS: dict[str, type[Sink]] = {
    "parquet": Parquet, "delta": Delta, "iceberg": Iceberg, "redis_streams": RedisStreams, "postgres": Postgres,
    "jdbc": Jdbc, "results": Results, "console": Console,
}  # fmt: skip
