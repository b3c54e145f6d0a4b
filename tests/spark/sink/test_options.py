"""The options and columns of the sink: what they mean, and what is refused before any task begins."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
)

from penstock.errors import ConfigurationError
from penstock.spark.runtime.option_values import Options
from penstock.spark.sink.options import SinkOptions
from penstock.spark.sink.writer import checked_options

URL = "redis://localhost:6379"
TYPES: dict[str, DataType] = {
    "binary": BinaryType(), "string": StringType(), "int": IntegerType(), "bigint": LongType(), "double": DoubleType(),
    "timestamp": TimestampType(), "variant": VariantType(),
}  # fmt: skip
TYPES |= {f"map<string,{name}>": MapType(StringType(), kind) for name, kind in TYPES.items()}


def parsed(ddl: str) -> StructType:
    """Reads a schema; Spark's own way to do that needs Java."""
    schema = StructType()
    for column in ddl.split(", "):
        name, kind = column.split(" ")
        schema.add(name, TYPES[kind])
    return schema


def read(schema: str = "data binary", *, is_streaming: bool = True, **given: Any) -> SinkOptions:
    texts = {"url": URL, "stream": "s", **{name: str(value) for name, value in given.items()}}
    return SinkOptions.from_options(
        Options({name: value for name, value in texts.items() if value != "None"}),
        parsed(schema),
        is_streaming=is_streaming,
    )


def test_defaults() -> None:
    found = read()
    assert (found.stream, found.form, found.semantics) == ("s", "raw", "exactly-once")
    assert (found.max_len, found.on_full, found.batch_size, found.in_flight) == (0, "reject", 500, 2)
    assert (found.retry_timeout_s, found.block_timeout_s, found.remember_s) == (60, 30, 7 * 86_400)
    assert found.content_type is None


@pytest.mark.parametrize("name", ["stream", "streams", "topic", "path"])
def test_the_stream_has_aliases(name: str) -> None:
    assert read(**{"stream": None, name: "orders"}).stream == "orders"


def test_what_spark_adds_is_no_unknown_option() -> None:
    read(checkpointLocation="/tmp/c", queryName="q")


def test_a_misspelt_option_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigurationError, match=r"batchsiz.*did you mean batchSize"):
        read(batchSiz=3)


def test_a_batch_write_without_a_name_is_at_least_once_and_cannot_be_more() -> None:
    assert read(is_streaming=False).semantics == "at-least-once"
    assert read(is_streaming=False, writeId="w").semantics == "exactly-once"
    with pytest.raises(ConfigurationError, match="writeId"):
        read(is_streaming=False, semantics="exactly-once")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"stream": None}, "option stream"),
        ({"stream": "a,b"}, "column `stream`"),
        ({"stream": "{a"}, "braces"),
        ({"semantics": "maybe"}, "exactly-once, at-least-once"),
        ({"writeId": "w"}, "checkpoint"),
        ({"batchId": 3}, "needs writeId"),
        ({"onFull": "block"}, "maxLen"),
        ({"maxLen": 0}, "at least 1"),
        ({"blockTimeout": "soon"}, "must be a duration"),
        ({"url": None}, "url is missing"),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        read(**given)


@pytest.mark.parametrize("is_streaming", [True, False])
def test_a_stream_cannot_be_overwritten(is_streaming: Any) -> None:
    with pytest.raises(ConfigurationError, match="append-only"):
        checked_options({"url": URL, "stream": "s"}, parsed("data binary"), overwrite=True, is_streaming=is_streaming)


# --- columns --------------------------------------------------------------------------------------


def test_data_is_the_payload_and_value_stands_for_it() -> None:
    assert read("data binary").columns.data == "data"
    assert read("value string, key string").columns.data == "value"


def test_a_table_without_data_becomes_one_object_per_row() -> None:
    found = read("id bigint, name string, key string, headers map<string,string>")
    assert found.form == "json"
    assert found.columns.payload == ("id", "name")
    assert (found.columns.key, found.columns.headers) == ("key", "headers")


def test_value_among_other_columns_is_one_of_them() -> None:
    assert read("sensor string, value string").columns.payload == ("sensor", "value")
    assert read("value double").columns.payload == ("value",)


def test_an_explicit_form_takes_all_columns_that_are_not_metadata() -> None:
    found = read("data string, id string, key string", payload="msgpack")
    assert found.columns.payload == ("data", "id")
    assert found.content_type == "application/msgpack"


def test_all_columns_of_a_stream_can_be_written_as_they_were_read() -> None:
    columns = "stream string, id string, ms bigint, seq bigint, timestamp timestamp, data binary, key string"
    found = read(f"{columns}, headers map<string,string>, message_id string, fields map<string,binary>").columns
    assert (found.data, found.fields, found.payload) == ("data", "fields", ())


def test_fields_alone_are_an_entry() -> None:
    found = read("id string, fields map<string,binary>").columns
    assert (found.data, found.fields, found.payload) == (None, "fields", ())


def test_the_stream_may_be_a_column() -> None:
    assert read("topic string, value string", stream=None).columns.stream == "topic"


@pytest.mark.parametrize(
    ("schema", "given", "says"),
    [
        ("data int", {}, "'data' is int; it must be binary or string"),
        ("data binary, user string", {}, "'user' cannot be written next to 'data'"),
        ("data binary, value binary", {}, "data and value mean the same"),
        ("stream string, topic string, data binary", {"stream": None}, "stream and topic mean the same"),
        ("data binary, key int", {}, "'key' is int; it must be string"),
        ("data binary, message_id binary", {}, "'message_id' is binary"),
        ("data binary, headers string", {}, "map<string,string>"),
        ("data binary, fields map<string,int>", {}, "map<string,binary> or map<string,string>"),
        ("a variant", {}, "'a' is variant"),
        ("key string", {}, "no payload"),
        ("key string", {"payload": "json"}, "no column"),
        ("a int", {"payload": "raw"}, "needs a column `data`"),
    ],
)
def test_columns_that_fit_nowhere_are_refused(schema: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        read(schema, **given)
