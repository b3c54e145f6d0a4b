"""Which columns a table has of its payload, without Spark."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

import pyarrow as pa
import pytest
import redis

from penstock.errors import ConfigurationError
from penstock.protection import Protection
from penstock.spark.format import columns as known
from penstock.spark.format.columns import payload_columns, payload_ddl
from penstock.spark.source.options import SourceOptions

_JSON_SCHEMA = {"type": "object", "properties": {"total": {"type": "number"}, "note": {"type": "string"}}}


def _options(url: str = "redis://localhost:1", **given: str) -> SourceOptions:
    return SourceOptions.parse({"url": url, "streams": "orders", "payload": "json"} | given)


@pytest.mark.parametrize(
    "given",
    [
        {"payloadSchema": "total double, note string"},
        {"payloadJsonSchema": json.dumps(_JSON_SCHEMA)},
    ],
)
def test_the_columns_are_those_of_the_schema_and_two_for_what_cannot_be_decoded(given: dict[str, str]) -> None:
    made = payload_ddl(_options(**given), known.ENTRY)
    assert made == "`total` double, `note` string, `_corrupt_record` string, `_corrupt_reason` string"


def test_the_columns_are_told_from_a_sample(redis_url: str, raw: redis.Redis) -> None:
    for number in range(5):
        raw.xadd("orders", {"data": json.dumps({"order": number, "total": number / 2})})
    assert payload_ddl(_options(redis_url, mode="FAILFAST"), known.ENTRY) == "`order` bigint, `total` double"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.toml"
    file.write_text(f'mode = "sign"\n[keys]\na = "{b64encode(b"k" * 32).decode()}"\n')
    return file


def test_a_sample_is_opened_with_the_keys(redis_url: str, raw: redis.Redis, keys: Path) -> None:
    protect = Protection.from_file(keys).protect
    raw.xadd("orders", {"data": protect(b'{"order": 1}', "orders", "m-1"), "message_id": "m-1"})
    raw.xadd("orders", {"data": b'{"forged": 1}'})
    options = _options(redis_url, mode="FAILFAST", protectionFile=str(keys))
    assert payload_ddl(options, known.ENTRY) == "`order` bigint"


def test_with_keys_a_raw_payload_may_be_refused(keys: Path) -> None:
    assert payload_ddl(_options(payload="raw"), known.ENTRY) == ""
    assert payload_ddl(_options(payload="raw", protectionFile=str(keys)), known.ENTRY) == "`_corrupt_reason` string"


def test_nothing_can_be_told_from_an_empty_stream(redis_url: str) -> None:
    with pytest.raises(ConfigurationError, match="option payloadSchema"):
        payload_ddl(_options(redis_url), known.ENTRY)


def test_the_payload_as_one_column() -> None:
    made = payload_ddl(_options(payloadSchema="id bigint", payloadColumn="order", mode="FAILFAST"), known.ENTRY)
    assert made == "`order` struct<`id`:bigint>"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"payloadSchema": "id bigint"}, "payloadColumn='payload'"),
        ({"payloadSchema": "a bigint", "payloadColumn": "key"}, "choose another name"),
        ({"payloadSchema": "_corrupt_record bigint"}, "two columns"),
        ({"payloadJsonSchema": "{"}, "option payloadJsonSchema"),
    ],
)
def test_names_that_would_clash_are_told(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        payload_ddl(_options(**given), known.ENTRY)


def test_a_column_that_must_not_be_null_cannot_be_had_where_bad_payloads_are_null() -> None:
    schema = pa.schema([pa.field("total", pa.float64(), nullable=False)])
    with pytest.raises(ConfigurationError, match="NOT NULL"):
        payload_columns(_options(), known.ENTRY, schema)
    assert payload_columns(_options(mode="FAILFAST"), known.ENTRY, schema).names == ("total",)


def test_a_table_without_columns_of_the_payload_decodes_nothing() -> None:
    assert payload_columns(_options(), known.ENTRY, pa.schema([("id", pa.string())])).format is None
