"""Payloads become columns; what does not fit is reported, dropped or raised, as the mode says."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime
from decimal import Decimal

import msgspec
import pyarrow as pa
import pytest

from penstock.errors import ConfigurationError, DecodeError
from penstock.spark.payload import MalformedPayload, PayloadFormat, decode, parse_ddl

_ORDER = parse_ddl(
    "user_id bigint NOT NULL, total decimal(10,2), items array<struct<sku:string,qty:int>>, tags map<string,string>, at timestamp"
)


def _values(payloads: list[bytes | None], fmt: PayloadFormat) -> list[list[object]]:
    return [column.to_pylist() for column in decode(payloads, fmt).columns]


def _json(ddl: str, *documents: str) -> list[list[object]]:
    return _values([document.encode() for document in documents], PayloadFormat("json", parse_ddl(ddl)))


def _reason(ddl: str, payload: str | bytes | None) -> str | None:
    raw = payload.encode() if isinstance(payload, str) else payload
    decoded = decode([raw], PayloadFormat("json", parse_ddl(ddl), reason_column="why"))
    assert decoded.reason is not None
    reason = decoded.reason[0].as_py()
    assert reason is None or isinstance(reason, str)
    return reason


def test_fields_become_columns_of_the_declared_types_in_the_declared_order() -> None:
    payload = (
        b'{"at": "2026-01-02T03:04:05.678+01:00", "more": [1], "user_id": 7, "total": 12.5,'
        b' "items": [{"sku": "a", "qty": 2, "x": 0}, null, {}], "tags": {"k": "v", "n": 1}}'
    )
    decoded = decode([payload], PayloadFormat("json", _ORDER))
    assert [column.type for column in decoded.columns] == _ORDER.types
    assert [column[0].as_py() for column in decoded.columns] == [
        7,
        Decimal("12.50"),
        [{"sku": "a", "qty": 2}, None, {"sku": None, "qty": None}],
        [("k", "v"), ("n", "1")],
        datetime(2026, 1, 2, 2, 4, 5, 678000, tzinfo=UTC),
    ]
    assert (decoded.corrupt, decoded.reason, decoded.kept) == (None, None, None)


def test_no_payloads_give_empty_columns() -> None:
    decoded = decode([], PayloadFormat("json", _ORDER, corrupt_column="c", reason_column="r"))
    assert [len(column) for column in decoded.columns] == [0] * 5
    assert decoded.corrupt == decoded.reason == pa.array([], pa.string())


def test_permissive_gives_nulls_and_keeps_payload_and_reason() -> None:
    payloads = [b'{"user_id": 1}', b'{"user_id": 2, "total": "x"}', None, b'{"user_id": "\xff"}', b'{"user_id": 5}']
    decoded = decode(payloads, PayloadFormat("json", _ORDER, corrupt_column="c", reason_column="r"))
    assert decoded.columns[0].to_pylist() == [1, None, None, None, 5]
    assert decoded.corrupt is not None
    assert decoded.corrupt.to_pylist() == [None, '{"user_id": 2, "total": "x"}', None, '{"user_id": "\\xff"}', None]
    assert decoded.reason is not None
    assert decoded.reason.to_pylist() == [
        None,
        "field total: expected decimal(10,2), got 'x'",
        "no payload",
        "not JSON: a text is not UTF-8",
        None,
    ]


def test_dropmalformed_leaves_rows_out_and_says_which_are_left() -> None:
    payloads = [b"x", b'{"user_id": 1}', None, b'{"user_id": 2}']
    decoded = decode(payloads, PayloadFormat("json", _ORDER, "DROPMALFORMED", corrupt_column="c"))
    assert decoded.columns[0].to_pylist() == [1, 2]
    assert decoded.kept == pa.array([1, 3])
    assert decoded.corrupt == pa.array([None, None], pa.string())
    assert decode(payloads[1:2], PayloadFormat("json", _ORDER, "DROPMALFORMED")).kept is None


def test_failfast_raises_for_the_first_malformed_payload() -> None:
    # The decimal of row 1 is found to be too long later than the text of row 2 is found to be no JSON.
    payloads = [b'{"user_id": 1}', b'{"user_id": 1, "total": 123456789.5}', b"x"]
    with pytest.raises(MalformedPayload) as caught:
        decode(payloads, PayloadFormat("json", _ORDER, "FAILFAST"))
    error = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, DecodeError)
    assert (error.row, error.reason) == (1, "field total: expected decimal(10,2), got 123456789.5")
    assert str(error) == "payload 1 is malformed: field total: expected decimal(10,2), got 123456789.5"


def test_a_format_travels_to_other_processes() -> None:
    fmt = PayloadFormat("json", _ORDER, "DROPMALFORMED", corrupt_column="c", reason_column="r")
    assert pickle.loads(pickle.dumps(fmt)) == fmt


@pytest.mark.parametrize(
    ("form", "schema", "more", "text"),
    [
        ("xml", _ORDER, {}, "payload form='xml' must be one of json, msgpack, avro"),
        ("json", _ORDER, {"mode": "permissive"}, "must be one of PERMISSIVE"),
        ("json", pa.schema([("a", pa.uint8())]), {}, "column a: Spark has no type"),
        ("json", pa.schema([("a", pa.int8()), ("A", pa.int8())]), {}, "'a' and 'A' have the same name"),
        ("json", parse_ddl("a int"), {"corrupt_column": "c", "reason_column": "c"}, "'c' and 'c' have the same name"),
        ("json", parse_ddl("a int"), {"corrupt_column": "A"}, "'a' and 'A' have the same name"),
        ("json", parse_ddl("a map<date,int>"), {}, "keys of a map"),
        ("avro", _ORDER, {}, "need the writer's schema"),
        ("avro", _ORDER, {"writer_schema": "{}"}, "cannot read the Avro schema"),
    ],
)
def test_a_format_that_cannot_work_is_refused_at_once(
    form: str, schema: pa.Schema, more: dict[str, str], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        PayloadFormat(form, schema, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ("", "not JSON: input data was truncated"),
        ("{}", "field id: missing"),
        ('{"id": null}', "field id: expected bigint, got null"),
        ('{"id": 1}{"id": 2}', "not JSON: trailing characters (byte 10)"),
        ('{"id": 1}\n{"id": 2}', "not JSON: trailing characters (byte 11)"),
        ("[1]", "not an object: got array"),
        ("null", "not an object: got null"),
        ('{"id": 1', "not JSON: input data was truncated"),
        ('{"id": NaN}', "not JSON: invalid character (byte 7)"),
        ('{"id": "1"}', "field id: expected bigint, got '1'"),
        ('{"id": 1.0}', "field id: expected bigint, got 1.0"),
        ('{"id": 9223372036854775808}', "field id: expected bigint, got 9223372036854775808"),
        ('{"id": 1, "x": {"y": [1, "2"]}}', "field x.y[1]: expected smallint, got '2'"),
        ('{"id": 1, "x": {"y": 5}}', "field x.y: expected array, got int"),
        ('{"id": 1, "x": {"z": {"k": true}}}', "field x.z[...]: expected double, got true"),
        ('{"id": {"a": "' + "b" * 50 + '"}}', 'field id: expected bigint, got {"a":"' + "b" * 34 + "..."),
        ('{"id": 1, "z": ' + "[" * 100_000 + "]" * 100_000 + "}", "not JSON: nested too deeply"),
    ],
)
def test_a_reason_is_short_and_names_the_field(payload: str, reason: str) -> None:
    assert _reason("id bigint NOT NULL, x struct<y:array<smallint>, z:map<string,double>>", payload) == reason


def test_a_string_column_takes_any_value_as_spark_does() -> None:
    documents = ['{"a": "x"}', '{"a": 1.50}', '{"a": true}', '{"a": {"b" : [1e3, null, "c"]}}', '{"a": null}', "{}"]
    assert _json("a string", *documents) == [["x", "1.50", "true", '{"b":[1e3,null,"c"]}', None, None]]


def test_decimals_are_exact_and_rounded_half_up() -> None:
    documents = [
        '{"a": 0.1}',
        '{"a": "1.005"}',
        '{"a": -1.005}',
        '{"a": 99999999.99}',
        '{"a": 7}',
        '{"a": 99999999.995}',
        '{"a": "NaN"}',
    ]
    expected = [Decimal("0.10"), Decimal("1.01"), Decimal("-1.01"), Decimal("99999999.99"), Decimal("7.00"), None, None]
    assert _json("a decimal(10,2)", *documents) == [expected]
    assert _json("a decimal(38,18)", '{"a": 12345678901234567890.123456789012345678}') == [
        [Decimal("12345678901234567890.123456789012345678")]
    ]


def test_moments_without_an_offset_are_utc_and_numbers_are_seconds() -> None:
    documents = [
        '{"a": "2026-01-02 03:04:05"}',
        '{"a": "2026-01-02"}',
        '{"a": 1767323045}',
        '{"a": 1767323045.5}',
        '{"a": 1767323045000}',
    ]
    moment = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001
    expected = [moment, datetime(2026, 1, 2), moment, moment.replace(microsecond=500_000), None]  # noqa: DTZ001
    assert _json("a timestamp_ntz", *documents) == [expected]
    assert _json("a timestamp", *documents) == [[at and at.replace(tzinfo=UTC) for at in expected]]


def test_a_moment_with_an_offset_is_no_timestamp_ntz() -> None:
    assert (
        _reason("a timestamp_ntz", '{"a": "2026-01-02T03:04:05Z"}')
        == "field a: expected timestamp_ntz, got '2026-01-02T03:04:05Z'"
    )


def test_dates_bytes_and_numbers_that_are_none() -> None:
    assert _json("a date", '{"a": "2026-01-02"}', '{"a": "2026-02-30"}') == [[date(2026, 1, 2), None]]
    assert _json("a binary", '{"a": "aGk="}', '{"a": "?"}') == [[b"hi", None]]
    assert _json("a double", '{"a": "Infinity"}', '{"a": 1e400}', '{"a": 1}') == [[float("inf"), None, 1.0]]
    assert _json("a float", '{"a": 1e39}', '{"a": "-INF"}') == [[None, float("-inf")]]


def test_of_a_name_that_appears_twice_the_last_value_counts() -> None:
    assert _json("a int", '{"a": 1, "a": 2}', '{"a": "x", "a": 3}', '{"a": 4, "a": "x"}') == [[2, 3, None]]


def test_documents_never_slip_into_other_rows() -> None:
    payloads = ['{"a": 1} {"a":', "2}", '{"a": 3}', "", '{"a": 4}\n', '\n{\n"a": 5}', '{"a": 6}{"a": 7}', " "]
    assert _json("a int", *payloads) == [[None, None, 3, None, 4, 5, None, None]]


def test_one_malformed_payload_among_many_costs_the_others_nothing() -> None:
    payloads: list[bytes | None] = [b'{"a": %d}' % number for number in range(10_000)]
    payloads[7_777] = b"{"
    decoded = decode(payloads, PayloadFormat("json", parse_ddl("a int"), reason_column="r"))
    assert decoded.columns[0].null_count == 1
    assert decoded.columns[0][9_999].as_py() == 9_999
    assert decoded.reason is not None
    assert decoded.reason[7_777].as_py() == "not JSON: input data was truncated"


def test_msgpack_keeps_its_own_types() -> None:
    record = {"id": 1, "raw": b"\xff", "at": datetime(2026, 1, 2, tzinfo=UTC), "by_number": {1: 2.5}, "text": b"hi"}
    fmt = PayloadFormat(
        "msgpack",
        parse_ddl("id int, raw binary, at timestamp, by_number map<int,double>, text string"),
        reason_column="r",
    )
    assert _values([msgspec.msgpack.encode(record)], fmt) == [
        [1],
        [b"\xff"],
        [datetime(2026, 1, 2, tzinfo=UTC)],
        [[(1, 2.5)]],
        ["hi"],
    ]
    decoded = decode([b"\xc1", msgspec.msgpack.encode([1]), msgspec.msgpack.encode({"id": 1}) + b"x", b""], fmt)
    assert decoded.reason is not None
    assert decoded.reason.to_pylist() == [
        "not MessagePack: invalid opcode '\\xc1' (byte 0)",
        "not an object: got array",
        "not MessagePack: trailing characters (byte 5)",
        "not MessagePack: input data was truncated",
    ]
