"""The options of the source: names as users of Spark's Kafka source know them, checked before any task starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeAlias

from penstock import envelope, ids
from penstock.errors import ConfigurationError
from penstock.keys import StreamKeys, check_name
from penstock.spark.lake.files import Location
from penstock.spark.runtime.link import Link
from penstock.spark.runtime.option_values import Options
from penstock.spark.source.catalogue import StreamSelection
from penstock.sync.redis.client import StreamClient
from penstock.times import milliseconds_of

View: TypeAlias = Literal["entries", "dead_letters", "pending"]
ColumnNames: TypeAlias = Literal["redis", "kafka"]
PayloadForm: TypeAlias = Literal["raw", "json", "msgpack", "avro"]
Mode: TypeAlias = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]
EARLIEST, LATEST, GROUP = "earliest", "latest", "group"
# All names of an option, ours first.
MAX_ROWS = ("maxRowsPerTrigger", "maxOffsetsPerTrigger", "maxRecordsPerTrigger", "maxEntriesPerTrigger")
MIN_ROWS, GROUP_NAMES = ("minRowsPerTrigger", "minOffsetsPerTrigger"), ("group", "kafka.group.id")
_SPARKS_OWN = ("checkpointLocation", "queryName", "includeHeaders", "header")


@dataclass(frozen=True)
class Bound:
    """Where reading begins or ends: a word or an id for all streams, ids for some of them, or a time."""

    common: str | None = None
    by_stream: Mapping[str, str] | None = None
    ms: int | None = None
    ranks: Mapping[str, int] | None = None  # of ids after which nothing may be missing

    def of(self, stream: str) -> str:
        """Return the word or id for a stream."""
        return (self.by_stream or {}).get(stream) or self.common or EARLIEST


@dataclass(frozen=True)
class PayloadOptions:
    """How the payload becomes columns."""

    form: PayloadForm = "raw"
    field: str = "data"
    schema: str | None = None
    model: str | None = None
    json_schema: str | None = None
    avro_schema: str | None = None
    column: str | None = None
    mode: Mode = "PERMISSIVE"
    corrupt_column: str = "_corrupt_record"
    reason_column: str = "_corrupt_reason"
    sample_rows: int = 1_000


@dataclass(frozen=True)
class SourceOptions:
    """Everything that can be said about reading."""

    link: Link
    selection: StreamSelection
    view: View
    columns: ColumnNames
    payload: PayloadOptions
    starting: Bound | None
    ending: Bound | None
    group: str | None
    group_force: bool
    fail_on_data_loss: bool
    wait_for_streams: bool
    max_rows: int | None
    max_bytes: int | None
    min_rows: int | None
    max_trigger_delay: timedelta
    min_partitions: int | None
    max_rows_per_partition: int
    fetch_size: int
    batch_rows: int
    retry_timeout: timedelta
    filter_pushdown: bool
    archive: Location | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Read the options; raise ConfigurationError for what is unknown, wrong or contradictory."""
        options = Options(given)
        if options.text("provider") is not None:
            raise ConfigurationError(
                "Spark does not pass the options of CREATE TABLE to a Python source: read the streams in "
                "Python, or with CREATE TEMPORARY VIEW ... USING redis_streams OPTIONS (...)"
            )
        made = cls(
            link=Link.from_options(options),
            selection=StreamSelection.parse(
                options.text("streams", "stream", "subscribe", "path"), options.text("subscribePattern")
            ),
            view=options.choice("view", ("entries", "dead_letters", "pending"), "entries"),
            columns=options.choice("columns", ("redis", "kafka"), "redis"),
            payload=_payload(options),
            starting=_bound(options, "starting"),
            ending=_bound(options, "ending"),
            group=options.text(*GROUP_NAMES),
            group_force=options.flag("groupForce", default=False),
            fail_on_data_loss=options.flag("failOnDataLoss", default=True),
            wait_for_streams=options.flag("waitForStreams", default=False),
            max_rows=options.whole(*MAX_ROWS),
            max_bytes=options.whole("maxBytesPerTrigger"),
            min_rows=options.whole(*MIN_ROWS),
            max_trigger_delay=options.duration("maxTriggerDelay", timedelta(minutes=15)),
            min_partitions=options.whole("minPartitions"),
            max_rows_per_partition=options.whole("maxRowsPerPartition", "maxRecordsPerPartition") or 250_000,
            fetch_size=options.whole("fetchSize") or 1_000,
            batch_rows=options.whole("batchRows") or 10_000,
            retry_timeout=options.duration("retryTimeout", timedelta(seconds=60)),
            filter_pushdown=options.flag("filterPushdown", default=False),
            archive=_archive(options),
        )
        options.refuse_unknown(_SPARKS_OWN)
        made._check()
        return made

    def _check(self) -> None:
        if self.link.protection_file is not None and (self.view != "entries" or self.payload.field != envelope.DATA):
            raise ConfigurationError(
                "protectionFile applies to the field data of entries: remove view and payloadField"
            )
        if self.columns == "kafka" and self.view != "entries":
            raise ConfigurationError(f"columns=kafka applies to view=entries: remove it with view={self.view}")
        if self.group is not None:
            check_name("option group", self.group)
        if self.view == "pending":
            self._check_pending()
        if self.min_rows is not None and self.max_rows is not None and self.min_rows > self.max_rows:
            raise ConfigurationError(
                f"minRowsPerTrigger={self.min_rows} must not exceed maxRowsPerTrigger={self.max_rows}"
            )
        starts = (self.starting.common, *(self.starting.by_stream or {}).values()) if self.starting else ()
        if GROUP in starts and self.group is None:
            raise ConfigurationError(
                "startingOffsets=group starts at the position of a consumer group: set option group"
            )

    def _check_pending(self) -> None:
        if self.group is None:
            raise ConfigurationError("view=pending shows the pending messages of a consumer group: set option group")
        if self.starting or self.ending:
            raise ConfigurationError(
                "view=pending shows what is pending now: startingOffsets and similar options do not apply"
            )
        if self.archive is not None:
            raise ConfigurationError("view=pending shows what is in Redis now: remove option archive")
        if self.payload.form != "raw":
            raise ConfigurationError("view=pending has no payload: remove option payload")

    def stream_names(self, client: StreamClient) -> list[str]:
        """Return the names of the streams to read: those of the dead letters where these are wanted."""
        found = self.selection.find(client)
        # A pattern already matches the dead-letter streams themselves.
        if self.view != "dead_letters" or self.selection.is_pattern:
            return found
        return [StreamKeys(name).default_dead_letters() for name in found]

    @property
    def streaming_partitions(self) -> int:
        """How many partitions a micro-batch has at least: it must be the same wherever the batch is run again."""
        return self.min_partitions or 1

    def check_batch(self) -> None:
        """Raise ConfigurationError for options that only a streaming query can have."""
        for name, value in (
            ("maxRowsPerTrigger", self.max_rows),
            ("maxBytesPerTrigger", self.max_bytes),
            ("minRowsPerTrigger", self.min_rows),
        ):
            if value is not None:
                raise ConfigurationError(
                    f"option {name} applies only to streaming queries: use spark.readStream, not spark.read"
                )
        if self.starting is not None and self.starting.common == LATEST:
            raise ConfigurationError("startingOffsets=latest reads nothing in a batch query; use an id or a time")
        if self.ending is not None and self.ending.common == EARLIEST:
            raise ConfigurationError("endingOffsets=earliest reads nothing")

    def check_streaming(self) -> None:
        """Raise ConfigurationError for options that only a batch query can have."""
        if self.ending is not None:
            raise ConfigurationError(
                "endingOffsets and endingTimestamp apply only to batch queries, because a stream has no end"
            )
        if self.view == "pending":
            raise ConfigurationError("view=pending is a snapshot: use spark.read, not spark.readStream")
        if self.filter_pushdown:
            raise ConfigurationError("option filterPushdown applies only to batch queries")


def _archive(options: Options) -> Location | None:
    root, given = options.text("archive"), options.starting_with("archive.")
    if root is None and given:
        raise ConfigurationError("options archive.* configure the store of an archive: set option archive as well")
    return None if root is None else Location.of(root, given, "archive")


def _payload(options: Options) -> PayloadOptions:
    made = PayloadOptions(
        form=options.choice("payload", ("raw", "json", "msgpack", "avro"), "raw", "format"),
        field=options.text("payloadField") or "data",
        schema=options.text("payloadSchema"),
        model=options.text("payloadModel"),
        json_schema=options.text("payloadJsonSchema"),
        avro_schema=options.text("avroSchema"),
        column=options.text("payloadColumn"),
        mode=options.choice("mode", ("PERMISSIVE", "DROPMALFORMED", "FAILFAST"), "PERMISSIVE"),
        corrupt_column=options.text("columnNameOfCorruptRecord") or "_corrupt_record",
        reason_column=options.text("columnNameOfCorruptReason") or "_corrupt_reason",
        sample_rows=options.whole("sampleRows") or 1_000,
    )
    given = [name for name in ("schema", "model", "json_schema") if getattr(made, name) is not None]
    if len(given) > 1:
        raise ConfigurationError("set only one of payloadSchema, payloadModel and payloadJsonSchema")
    if made.form == "raw" and (given or made.column or made.avro_schema):
        raise ConfigurationError("these options need payload=json, msgpack or avro; by default the payload is raw")
    return made


def _bound(options: Options, side: Literal["starting", "ending"]) -> Bound | None:
    offsets, timestamp = options.text(f"{side}Offsets"), options.text(f"{side}Timestamp")
    if offsets is not None and timestamp is not None:
        raise ConfigurationError(f"set either {side}Offsets or {side}Timestamp, not both")
    if timestamp is not None:
        return Bound(ms=milliseconds(f"option {side}Timestamp", timestamp))
    if offsets is None:
        return None
    if offsets.strip().startswith("{"):
        return _by_stream(f"{side}Offsets", offsets)
    return Bound(common=_start_or_end(f"{side}Offsets", offsets))


def _by_stream(name: str, text: str) -> Bound:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"option {name} is not valid JSON: {error}") from None
    if not document:
        raise ConfigurationError(f"option {name} names no stream")
    bounds, ranks = {}, {}
    for stream, given in document.items():
        if isinstance(given, dict):  # a position as this source writes it: nothing after it may be missing
            bounds[stream] = "(" + _start_or_end(f"{name} of {stream!r}", str(given.get("id"))).removeprefix("(")
            if isinstance(given.get("n"), int):
                ranks[stream] = given["n"]
        else:
            bounds[stream] = _start_or_end(f"{name} of {stream!r}", str(given))
    return Bound(by_stream=bounds, ranks=ranks or None)


def _start_or_end(name: str, text: str) -> str:
    text = text.strip()
    if text.lower() in (EARLIEST, LATEST, GROUP):
        return text.lower()
    try:
        ms, seq = ids.parse(text.removeprefix("("))
    except ValueError:
        raise ConfigurationError(
            f"option {name}={text!r} must be earliest, latest, group or an id such as 1700000000000-0"
        ) from None
    return f"({ms}-{seq}" if text.startswith("(") else f"{ms}-{seq}"


def milliseconds(name: str, text: str) -> int:
    """Return a time that was given as a text, in milliseconds since 1970."""
    found = milliseconds_of(text)
    if found is None:
        raise ConfigurationError(
            f"{name}={text!r} must be milliseconds since 1970 or a time such as 2026-11-15T12:00:00Z"
        )
    return found
