"""Where the rows of a pipeline come from, and how their payloads are decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.dead_letter_limits import DeadLetterLimits
from penstock.errors import ConfigurationError
from penstock.keys import StreamKeys
from penstock.spark.pipeline.checks import check_choice, check_positive, check_text, take_texts
from penstock.spark.reading.columns import ENTRY
from penstock.spark.reading.options import SourceOptions

_GLOB = "*?["
FORMATS = ("json", "msgpack", "avro", "raw")
CORRUPT, WHY_CORRUPT = "_corrupt_record", "_corrupt_reason"
_OWN = {
    "url": "url", "streams": "streams", "payload": "format", "format": "format", "payloadschema": "schema",
    "payloadmodel": "model", "payloadcolumn": "payload_column", "startingoffsets": "starting", "group": "group",
    "maxrowspertrigger": "max_rows_per_batch",
}  # fmt: skip
_FIXED = ("mode", "view", "columnnameofcorruptrecord", "columnnameofcorruptreason", "filterpushdown")


@dataclass(frozen=True)
class Source:
    """The streams that a pipeline reads. `options` are further options of the format `redis_streams`.

    Each row has the `columns` of its entry and those of its payload. A payload that cannot be decoded, lacks a
    NOT NULL column of the schema, or for which one of the SQL conditions in `valid` is not true, goes to the
    dead letters of its stream.
    """

    url: str = field(repr=False)
    streams: tuple[str, ...]
    format: str = "json"
    schema: str | None = None
    model: str | None = None
    payload_column: str | None = None
    valid: tuple[str, ...] = ()
    columns: tuple[str, ...] = ("stream", "id", "timestamp", "key", "message_id", "headers", "data")
    starting: str = "earliest"
    max_rows_per_batch: int | None = None
    group: str | None = None
    dead_letter_limits: DeadLetterLimits = field(default_factory=DeadLetterLimits)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Raise ConfigurationError for anything that cannot work."""
        take_texts(self, "streams", "valid", "columns")
        check_text("url", self.url)
        if not self.streams:
            raise ConfigurationError("streams is empty: name at least one stream")
        if len(self.streams) > 1 and any(sign in name for name in self.streams for sign in _GLOB):
            raise ConfigurationError(f"streams = {list(self.streams)} must be names, or one glob pattern alone")
        check_choice("format", self.format, FORMATS)
        check_positive("max_rows_per_batch", self.max_rows_per_batch)
        if not isinstance(self.dead_letter_limits, DeadLetterLimits):
            raise ConfigurationError("dead_letter_limits must be DeadLetterLimits")
        if self.schema is not None and self.model is not None:
            raise ConfigurationError("give schema or model, not both")
        for name in self.columns:
            if name not in ENTRY:
                raise ConfigurationError(f"columns: {name!r} is none of an entry, which has {', '.join(ENTRY)}")
        self._check_options()
        self.parsed()
        self.required_columns()

    def _check_options(self) -> None:
        for name in self.options:
            if name.lower() in _OWN:
                raise ConfigurationError(f"options.{name}: write it as {_OWN[name.lower()]} = ... instead")
            if name.lower() in _FIXED:
                raise ConfigurationError(f"options.{name}: a pipeline chooses it itself; leave it out")

    def spark_options(self) -> dict[str, str]:
        """Return the options for Spark's reader."""
        made = {**self.options, "url": self.url, "streams": ",".join(self.streams), "startingOffsets": self.starting}
        given = {
            "payload": self.format, "payloadSchema": self.schema, "payloadModel": self.model, "group": self.group,
            "payloadColumn": self.payload_column, "maxRowsPerTrigger": self.max_rows_per_batch,
        }  # fmt: skip
        return {**made, **{name: str(value) for name, value in given.items() if value is not None}}

    def parsed(self) -> SourceOptions:
        """Return the options as the reader will see them; raise ConfigurationError if it would refuse them."""
        options = SourceOptions.parse(self.spark_options())
        options.check_streaming()
        return options

    def required_columns(self) -> list[str]:
        """Return the columns of the payload that must not be null, as SQL writes them."""
        schema = self._payload_schema()
        prefix = f"`{self.payload_column}`." if self.payload_column else ""
        return [f"{prefix}`{name}`" for name in (field.name for field in schema if not field.nullable)]

    def _payload_schema(self) -> pa.Schema:
        if self.schema is not None:
            from penstock.spark.payload.schema import parse_ddl

            return parse_ddl(self.schema)
        if self.model is not None:
            from penstock.spark.payload.model import from_model

            return from_model(self.model)
        return pa.schema([])

    def dead_letters_of(self, stream: str) -> str:
        """Return the dead-letter stream of a stream, as a user names both."""
        return StreamKeys(stream).default_dead_letters()
