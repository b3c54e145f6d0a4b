"""Avro payloads, plain and in single-object encoding, and the columns of an Avro schema."""

from __future__ import annotations

import io
import json
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal

import fastavro
import pytest

from penstock.errors import ConfigurationError
from penstock.spark.payload import PayloadFormat, decode, from_avro_schema, parse_ddl

_WRITER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["open", "paid"]}},
        {"name": "before", "type": ["null", "State"], "default": None},
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Item", "fields": [{"name": "sku", "type": "string"}]},
            },
        },
        {"name": "best", "type": ["null", "shop.Item"]},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "hour", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "either", "type": ["int", "double"]},
    ],
}
_TEXT = json.dumps(_WRITER)
_RECORD = {
    "id": -98, "total": Decimal("12.50"), "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "day": date(2026, 1, 2),
    "key": uuid.UUID(int=1), "state": "paid", "before": None, "items": [{"sku": "a"}], "best": {"sku": "b"}, "tags": {"x": 1},
    "hour": time(3, 4), "either": 0.5,
}  # fmt: skip


def _plain(record: dict[str, object], writer: dict[str, object] = _WRITER) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, writer, record)
    return out.getvalue()


def test_the_columns_of_an_avro_schema() -> None:
    assert from_avro_schema(_TEXT).equals(
        parse_ddl(
            "id bigint not null, total decimal(10,2) not null, at timestamp not null, day date, key string not null, state string not null,"
            "before string, items array<struct<sku:string not null>> not null, best struct<sku:string not null>, tags map<string,int> not null,"
            "hour string not null, either double not null"
        )
    )


def test_plain_and_single_object_records_give_the_same_values() -> None:
    fingerprint = bytes.fromhex(
        fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(_WRITER), "CRC-64-AVRO")
    )
    plain = _plain(_RECORD)
    fmt = PayloadFormat("avro", from_avro_schema(_TEXT), writer_schema=_TEXT, reason_column="r")
    decoded = decode([plain, b"\xc3\x01" + fingerprint + plain], fmt)
    expected = [*_RECORD.values()]
    expected[4] = str(expected[4])
    expected[9] = [("x", 1)]
    expected[10] = "03:04:00"
    for column, value in zip(decoded.columns, expected, strict=True):
        assert column.to_pylist() == [value, value]


def test_columns_may_be_a_part_of_the_record() -> None:
    decoded = decode(
        [_plain(_RECORD)], PayloadFormat("avro", parse_ddl("state string, absent int, id bigint"), writer_schema=_TEXT)
    )
    assert [column[0].as_py() for column in decoded.columns] == ["paid", None, -98]


def test_malformed_records_are_told_apart() -> None:
    fmt = PayloadFormat("avro", parse_ddl("id string"), writer_schema=_TEXT, reason_column="r")
    plain = _plain(_RECORD | {"id": 1})
    decoded = decode([plain + b"x", plain[:-1], b"\xc3\x01" + b"\x01" * 8 + plain, b"", None], fmt)
    assert decoded.reason is not None
    reasons = decoded.reason.to_pylist()
    assert reasons[0] == "not Avro: 1 bytes follow the record"
    assert reasons[1].startswith("not Avro: ")
    assert reasons[2] == "not Avro: written with another schema (fingerprint 0101010101010101)"
    assert reasons[3].startswith("not Avro: ")
    assert reasons[4] == "no payload"


def test_a_plain_record_may_begin_like_a_header() -> None:
    writer: dict[str, object] = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}],
    }
    payload = _plain({"a": -98, "b": "something long enough"}, writer)
    assert payload[:2] == b"\xc3\x01"
    decoded = decode([payload], PayloadFormat("avro", parse_ddl("a bigint"), writer_schema=json.dumps(writer)))
    assert decoded.columns[0].to_pylist() == [-98]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("{", "is not JSON"),
        ('"long"', "needs a record with fields"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "Other"}]}', "'Other' is not defined"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]}', "'R' is recursive"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": 5}]}', "5 is not a type"),
    ],
)
def test_a_schema_that_has_no_columns_is_refused(schema: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        from_avro_schema(schema)
