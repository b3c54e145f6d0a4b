"""The options of the sink, checked once on the driver and carried to the tasks; and which column becomes what."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeAlias

from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType, VariantType

from penstock.errors import ConfigurationError
from penstock.keys import MAX_NAME, StreamKeys, check_name
from penstock.serializers import MsgpackSerializer
from penstock.spark.runtime.link import Link
from penstock.spark.runtime.option_values import Options

Form: TypeAlias = Literal["raw", "json", "msgpack"]
Semantics: TypeAlias = Literal["exactly-once", "at-least-once"]
WhenFull: TypeAlias = Literal["reject", "block", "drop_oldest"]

# What Spark itself puts among the options of a sink.
_OF_SPARK = ("checkpointLocation", "queryName", "outputMode", "mode", "numPartitions", "partitionOverwriteMode")
_MAX_BYTES = 512 * 1024 * 1024  # Redis takes no larger value (proto-max-bulk-len)
_MAX_CONTENT_TYPE = 256
# What each entry has of its own: the new entry gets new values, so those of the old one are not written.
_COORDINATES = ("id", "ms", "seq", "timestamp")
_ALIASES = {"data": ("data", "value"), "stream": ("stream", "topic")}


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
            raise ConfigurationError("the sink cannot sign or encrypt entries: remove protectionFile")
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
            raise ConfigurationError("option onFull needs maxLen, the limit to which it applies")
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
            f"option stream={stream!r}: it names one stream; to write to several, remove the option and add a "
            "column `stream`"
        )
    StreamKeys.of(stream)


def _semantics(options: Options, is_streaming: bool) -> Semantics:
    is_known = is_streaming or _is_given(options, "writeId")
    default: Semantics = "exactly-once" if is_known else "at-least-once"
    semantics: Semantics = options.choice("semantics", ("exactly-once", "at-least-once"), default)
    if semantics == "exactly-once" and not is_known:
        raise ConfigurationError(
            "option semantics=exactly-once: a repeated batch write cannot be distinguished from a new one; name the "
            "write, for example .option('writeId', 'orders-2026-11-15')"
        )
    return semantics


def _write_id(options: Options, is_streaming: bool) -> str | None:
    write_id = options.text("writeId")
    if write_id is None:
        if _is_given(options, "batchId"):
            raise ConfigurationError("option batchId needs writeId, under which it numbers the writes")
        return None
    if is_streaming:
        raise ConfigurationError(
            "option writeId applies only to batch writes: a streaming query is identified by its checkpoint"
        )
    return check_name("option writeId", write_id, MAX_NAME // 2)


@dataclass(frozen=True)
class Columns:
    """The columns by their part; `payload` are those that become one object."""

    stream: str | None
    data: str | None
    key: str | None
    headers: str | None
    message_id: str | None
    fields: str | None
    payload: tuple[str, ...]

    @classmethod
    def of(cls, schema: StructType, form: str | None, *, has_stream: bool) -> Columns:
        """Find the parts in a schema; `form` is None when the columns decide whether there is a payload to be made."""
        types = {field.name: field.dataType for field in schema.fields}
        stream = _one_of("stream", types, (StringType,))
        key = _typed("key", types, (StringType,))
        message_id = _typed("message_id", types, (StringType,))
        headers, fields = _map_of("headers", types, (StringType,)), _map_of("fields", types, (BinaryType, StringType))
        if stream is None and not has_stream:
            raise ConfigurationError(
                "no target stream: set option stream, or add a column `stream` with the name for each row"
            )
        rest = [name for name in types if name not in {stream, key, message_id, headers, fields}]
        is_object = form in ("json", "msgpack")
        data = None if is_object else _data(types, rest, form)
        is_object = is_object or (data is None and bool(rest) and not (fields and set(rest) <= set(_COORDINATES)))
        if is_object:
            _check_object(types, rest)
            return cls(stream, None, key, headers, message_id, fields, tuple(rest))
        if data is None and fields is None:
            raise ConfigurationError("the rows have no payload: add a column `data`, or columns that form one object")
        # Only with a column that certainly came from a stream: a user's table may well have an `id`.
        left_behind = {data, *_COORDINATES} if data in (None, "data") else {data}
        for name in rest:
            if name not in left_behind:
                raise ConfigurationError(
                    f"column {name!r} cannot be written next to {data or 'fields'!r}: drop it, or write all "
                    "columns as one object with option payload=json or msgpack"
                )
        return cls(stream, data, key, headers, message_id, fields, ())


def _data(types: dict[str, DataType], rest: list[str], form: str | None) -> str | None:
    found = [name for name in _ALIASES["data"] if name in types]
    if len(found) > 1:
        raise ConfigurationError(
            "the columns data and value mean the same: drop one of them, or set option payload=json"
        )
    if not found:
        if form == "raw":
            raise ConfigurationError("option payload=raw needs a column `data` (binary or string)")
        return None
    name = found[0]
    if isinstance(types[name], BinaryType | StringType):
        is_alone = set(rest) <= {name}
        if name == "value" and form is None and not is_alone:
            return None  # one column among others, in a table of the user's own
        return name
    if name == "value" and form is None:
        return None
    raise _wrong(name, types[name], "binary or string; with option payload=json it becomes part of an object")


def _check_object(types: dict[str, DataType], rest: list[str]) -> None:
    if not rest:
        raise ConfigurationError("option payload: no column is left to form the object")
    for name in rest:
        if isinstance(types[name], VariantType):
            raise _wrong(name, types[name], "a type that JSON supports; convert it to text with to_json()")


def _one_of(part: str, types: dict[str, DataType], wanted: tuple[type[DataType], ...]) -> str | None:
    found = [name for name in _ALIASES[part] if name in types]
    if len(found) > 1:
        raise ConfigurationError(f"the columns {' and '.join(found)} mean the same: drop one of them")
    return _typed(found[0], types, wanted) if found else None


def _typed(name: str, types: dict[str, DataType], wanted: tuple[type[DataType], ...]) -> str | None:
    if name not in types:
        return None
    if not isinstance(types[name], wanted):
        names = " or ".join(kind.typeName() for kind in wanted)
        raise _wrong(name, types[name], f"{names}, because it is not part of the payload; rename it if it should be")
    return name


def _map_of(name: str, types: dict[str, DataType], values: tuple[type[DataType], ...]) -> str | None:
    if name not in types:
        return None
    given = types[name]
    if isinstance(given, MapType) and isinstance(given.keyType, StringType) and isinstance(given.valueType, values):
        return name
    shown = " or ".join(f"map<string,{kind.typeName()}>" for kind in values)
    raise _wrong(name, given, f"{shown}; rename it if it should be part of the payload")


def _wrong(name: str, given: DataType, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"column {name!r} is {given.simpleString()}; it must be {wanted}")
