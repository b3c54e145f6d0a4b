"""The options of the sink, checked once on the driver and carried to the tasks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeAlias

from pyspark.sql.types import StructType

from penstock.errors import ConfigurationError
from penstock.keys import MAX_NAME, StreamKeys, check_name
from penstock.serializers import MsgpackSerializer
from penstock.spark.link import Link
from penstock.spark.option_values import Options
from penstock.spark.sink.columns import Columns
from penstock.spark.sink.payloads import Form

Semantics: TypeAlias = Literal["exactly-once", "at-least-once"]
WhenFull: TypeAlias = Literal["reject", "block", "drop_oldest"]

# What Spark itself puts among the options of a sink.
_OF_SPARK = ("checkpointLocation", "queryName", "outputMode", "mode", "numPartitions", "partitionOverwriteMode")
_MAX_BYTES = 512 * 1024 * 1024  # Redis takes no larger value (proto-max-bulk-len)
_MAX_CONTENT_TYPE = 256


@dataclass(frozen=True)
class SinkOptions:
    """How rows are written. It is pickled into tasks."""

    link: Link
    columns: Columns
    stream: str | None
    form: Form
    content_type: str | None
    semantics: Semantics
    write_id: str | None
    batch_id: int
    max_len: int
    on_full: WhenFull
    block_timeout_s: float
    batch_size: int
    in_flight: int
    retry_timeout_s: float
    remember_s: int
    max_bytes: int

    @classmethod
    def from_options(cls, options: Options, schema: StructType, *, is_streaming: bool) -> SinkOptions:
        """Read the options; raise ConfigurationError for what is missing, unknown, or contradicts the columns."""
        link = Link.from_options(options)
        if link.protection_file is not None:
            raise ConfigurationError("the sink does not protect what it writes: leave protectionFile out")
        # Last among the names: `.save("orders")` and `.start("orders")` come as `path`.
        stream = options.text("stream", "streams", "topic", "path")
        if stream is not None:
            _check_stream(stream)
        forms: tuple[Form, ...] = ("raw", "json", "msgpack")
        wanted = options.choice("payload", forms, "raw") if _is_given(options, "payload") else None
        columns = Columns.of(schema, wanted, has_stream=stream is not None)
        form: Form = wanted or ("json" if columns.payload else "raw")
        content_type = options.text("contentType") or (MsgpackSerializer.content_type if form == "msgpack" else None)
        if content_type is not None:
            check_name("option contentType", content_type, _MAX_CONTENT_TYPE)
        on_full: WhenFull = options.choice("onFull", ("reject", "block", "drop_oldest"), "reject")
        max_len = options.whole("maxLen")
        if max_len is None and _is_given(options, "onFull"):
            raise ConfigurationError("option onFull says what happens at maxLen entries: give maxLen too")
        made = cls(
            link=link,
            columns=columns,
            stream=stream,
            form=form,
            content_type=content_type,
            write_id=_write_id(options, is_streaming),
            batch_id=options.whole("batchId", least=0) or 0,
            semantics=_semantics(options, is_streaming),
            max_len=max_len or 0,
            on_full=on_full,
            block_timeout_s=options.duration("blockTimeout", timedelta(seconds=30)).total_seconds(),
            batch_size=options.whole("batchSize") or 500,
            in_flight=options.whole("inFlight") or 2,
            retry_timeout_s=options.duration("retryTimeout", timedelta(seconds=60)).total_seconds(),
            remember_s=max(60, int(options.duration("rememberFor", timedelta(days=7)).total_seconds())),
            max_bytes=min(options.whole("maxPayloadBytes") or _MAX_BYTES, _MAX_BYTES),
        )
        options.refuse_unknown(_OF_SPARK)
        return made


def _is_given(options: Options, name: str) -> bool:
    return options.text(name) is not None


def _check_stream(stream: str) -> None:
    if "," in stream:
        raise ConfigurationError(
            f"option stream={stream!r}: rows go to one stream; for several, give no option and a column `stream`"
        )
    StreamKeys.of(stream)


def _semantics(options: Options, is_streaming: bool) -> Semantics:
    is_known = is_streaming or _is_given(options, "writeId")
    default: Semantics = "exactly-once" if is_known else "at-least-once"
    semantics: Semantics = options.choice("semantics", ("exactly-once", "at-least-once"), default)
    if semantics == "exactly-once" and not is_known:
        raise ConfigurationError(
            "option semantics=exactly-once: nothing tells a batch write that is run again from a new one; give it a "
            "name of your choice, for example .option('writeId', 'orders-2026-11-15')"
        )
    return semantics


def _write_id(options: Options, is_streaming: bool) -> str | None:
    write_id = options.text("writeId")
    if write_id is None:
        if _is_given(options, "batchId"):
            raise ConfigurationError("option batchId numbers the writes under one writeId: give writeId too")
        return None
    if is_streaming:
        raise ConfigurationError("option writeId is for batch writes: a streaming query is known by its checkpoint")
    return check_name("option writeId", write_id, MAX_NAME // 2)
