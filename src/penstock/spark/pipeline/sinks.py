"""Where the rows of a pipeline go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.errors import ConfigurationError
from penstock.keys import StreamKeys
from penstock.spark.pipeline.checks import check_choice, check_positive, check_text

_COMPRESSIONS = ("snappy", "zstd", "gzip", "lz4", "none")


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
        check_choice("compression", self.compression, _COMPRESSIONS)


@dataclass(frozen=True)
class Delta:
    """A table of Delta Lake, in folders by `partition_by`; it is made if there is none."""

    path: str
    partition_by: tuple[str, ...] = ()
    name: str = "delta"

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        check_text("path", self.path)


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
        if any(not part for part in self.table.split(".")):
            raise ConfigurationError(f"table = {self.table!r} must be a name, or schema.name")


@dataclass(frozen=True)
class Console:
    """Shows the first `rows` of each batch."""

    rows: int = 20
    name: str = "console"

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        check_positive("rows", self.rows)


Sink: TypeAlias = Parquet | Delta | RedisStreams | Postgres | Console
SINKS: dict[str, type[Sink]] = {
    "parquet": Parquet, "delta": Delta, "redis_streams": RedisStreams, "postgres": Postgres, "console": Console,
}  # fmt: skip
