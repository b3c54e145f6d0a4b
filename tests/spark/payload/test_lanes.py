"""The quick and the careful way of decoding give the same values, for every document and schema."""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.spark.payload import PayloadFormat
from penstock.spark.payload.ddl import TIMESTAMP, TIMESTAMP_NTZ, list_of, map_of, parse_ddl
from penstock.spark.payload.decoding import _block, _columns, row_decoder

_NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=2)
_LEAVES = st.sampled_from(
    [pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(),
     TIMESTAMP, TIMESTAMP_NTZ, pa.decimal128(10, 2), pa.decimal128(38, 10), pa.decimal128(3, 0)]
)  # fmt: skip


def _fields(kinds: st.SearchStrategy[pa.DataType], least: int) -> st.SearchStrategy[list[pa.Field]]:
    field = st.builds(pa.field, _NAMES, kinds, st.sampled_from([True, True, True, False]))
    return st.lists(field, min_size=least, max_size=4, unique_by=lambda field: field.name)


_TYPES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda kind, nullable: list_of(kind, nullable=nullable), inner, st.booleans()),
        st.builds(lambda kind, nullable: map_of(pa.string(), kind, nullable=nullable), inner, st.booleans()),
        _fields(inner, 0).map(pa.struct),
    ),
    max_leaves=4,
)
_SCHEMAS = _fields(_TYPES, 1).map(pa.schema)

_MOMENT_TEXTS = st.one_of(
    st.datetimes(timezones=st.sampled_from([None, UTC, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=11))])).map(
        datetime.isoformat
    ),
    st.dates().map(date.isoformat),
    st.sampled_from(
        ["2026-01-02 03:04", "2026-01-02T03:04Z", "2026-01-02T03:04:05.9999999Z", "2026-01-02T03:04:05+0200", "2026-02-30", "2026-W01-1",
         "0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59.9999999Z", "2026-01-02T24:00:00Z", "2026-01-02t03:04:05z", "20260102"]
    ),
)  # fmt: skip
_NUMBER_TEXTS = st.one_of(
    st.integers().map(str),
    st.integers(-200, 200).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**9), max_value=10**9).map(str),
    st.sampled_from(
        ["1e400", "-1e400", "1e39", "-0", "-0.0", "1E5", "1e-400", "1.005", "99999999.995", "9223372036854775808", "-9223372036854775809",
         "18446744073709551616", "3.4028235e38", "3.4028236e38", "1e999999999", "127", "128", "1" * 400]
    ),
)  # fmt: skip
_TEXTS = st.one_of(
    st.text(max_size=5),
    _MOMENT_TEXTS,
    _NUMBER_TEXTS,
    st.binary(max_size=4).map(lambda raw: msgspec.json.encode(raw).decode().strip('"')),
    st.sampled_from(
        [
            "NaN",
            "Infinity",
            "-INF",
            "nan",
            "inf",
            "sNaN",
            "aGk",
            "aGl=",
            "_-==",
            "aG k=",
            " 1",
            "1_0",
            "",
            "true",
            "null",
        ]
    ),
)
_SCALARS = st.one_of(
    st.none().map(lambda _: "null"), st.booleans().map(json.dumps), _NUMBER_TEXTS, _TEXTS.map(json.dumps)
)


def _object(members: Sequence[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in members) + "}"  # names may appear twice


_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[" + ",".join(items) + "]"),
        st.lists(st.tuples(_NAMES, inner), max_size=3).map(_object),
    ),
    max_leaves=4,
)


def _values_for(kind: pa.DataType) -> st.SearchStrategy[str]:
    """JSON texts that often fit the type."""
    if pa.types.is_list(kind):
        fitting = st.lists(_values_for(kind.value_type), max_size=3).map(lambda items: "[" + ",".join(items) + "]")
    elif pa.types.is_map(kind):
        fitting = st.lists(st.tuples(_NAMES, _values_for(kind.item_type)), max_size=3).map(_object)
    elif pa.types.is_struct(kind):
        fitting = _documents_for(list(kind))
    elif pa.types.is_temporal(kind):
        fitting = st.one_of(_MOMENT_TEXTS.map(json.dumps), _NUMBER_TEXTS)
    elif pa.types.is_boolean(kind):
        fitting = st.booleans().map(json.dumps)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        fitting = _TEXTS.map(json.dumps)
    else:
        fitting = _NUMBER_TEXTS
    return st.one_of(fitting, fitting, fitting, st.just("null"), _VALUES)


def _documents_for(fields: list[pa.Field]) -> st.SearchStrategy[str]:
    present = [st.one_of(*[st.tuples(st.just(field.name), _values_for(field.type))] * 4, st.none()) for field in fields]
    return st.tuples(*present).map(lambda members: _object([member for member in members if member is not None]))


_CASES = _SCHEMAS.flatmap(
    lambda schema: st.tuples(st.just(schema), st.lists(_documents_for(list(schema)), min_size=1, max_size=4))
)


def _same(left: pa.Array, right: pa.Array) -> bool:
    # As bytes: NaN equals NaN, and 0.0 is not -0.0.
    batches = [pa.record_batch([column], names=["c"]).serialize().to_pybytes() for column in (left, right)]
    return batches[0] == batches[1]


def _compare(form: str, schema: pa.Schema, payloads: list[bytes], writer_schema: str | None = None) -> None:
    fmt = PayloadFormat(form, schema, writer_schema=writer_schema)  # type: ignore[arg-type]
    decoder = row_decoder(form, schema, writer_schema)
    for payload in payloads:  # one by one, so that one that Arrow refuses does not send the others the careful way
        mixed, mixed_reasons = _block([payload], fmt)
        rows, reasons = decoder.careful_rows([payload])
        careful = _columns(rows, decoder, schema)
        assert mixed_reasons == reasons
        for left, right in zip(mixed, careful, strict=True):
            assert _same(left, right), (payload, schema, left, right)


@given(_CASES)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@example(
    (
        parse_ddl("a decimal(3,0)"),
        ['{"a": 999.5}', '{"a": "1_0"}', '{"a": "NaN"}', '{"a": 1e2}', '{"a": 1e3}', '{"a": true}'],
    )
)
@example(
    (parse_ddl("a timestamp"), ['{"a": "0001-01-01T00:00:00+05:00"}', '{"a": 1700000000.1234567}', '{"a": 1e300}'])
)
@example((parse_ddl("a decimal(3,0)"), ['{"a": 1000, "a": 0}', '{"a": "x", "a": 0}', '{"a": 0, "a": "x"}']))
@example((parse_ddl("a map<string,decimal(3,0)>"), ['{"a": {"a": 1000, "a": 0}}']))
def test_json_gives_the_same_either_way(case: tuple[pa.Schema, list[str]]) -> None:
    schema, documents = case
    _compare("json", schema, [document.encode() for document in documents])


_MSGPACK_VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.integers(-200, 200), st.floats(), st.floats(width=32), _TEXTS,
        st.binary(max_size=4), st.datetimes(timezones=st.just(UTC)), st.builds(msgspec.msgpack.Ext, st.integers(1, 5), st.binary(max_size=2)),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_NAMES, inner, max_size=3)),
    max_leaves=4,
)  # fmt: skip


@given(
    _SCHEMAS.flatmap(
        lambda schema: st.tuples(
            st.just(schema),
            st.lists(
                st.fixed_dictionaries({}, optional=dict.fromkeys(schema.names, _MSGPACK_VALUES)), min_size=1, max_size=3
            ),
        )
    )
)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_msgpack_gives_the_same_either_way(case: tuple[pa.Schema, list[object]]) -> None:
    schema, documents = case
    _compare("msgpack", schema, [msgspec.msgpack.encode(document) for document in documents])


@given(_LEAVES, _MSGPACK_VALUES)
@settings(max_examples=300, deadline=None)
def test_one_msgpack_value_gives_the_same_either_way(kind: pa.DataType, value: object) -> None:
    _compare("msgpack", pa.schema([("a", kind)]), [msgspec.msgpack.encode({"a": value})])


@given(_LEAVES.flatmap(lambda kind: st.tuples(st.just(kind), _values_for(kind))))
@settings(max_examples=400, deadline=None)
def test_one_json_value_gives_the_same_either_way(case: tuple[pa.DataType, str]) -> None:
    kind, text = case
    _compare("json", pa.schema([("a", kind)]), [f'{{"a": {text}}}'.encode()])


@given(st.binary(max_size=30) | st.text('{}[]":,ab1 \n\\', max_size=20).map(str.encode))
@settings(max_examples=100, deadline=None)
@pytest.mark.parametrize("form", ["json", "msgpack", "avro"])
def test_bytes_at_random_never_raise_and_give_the_same_either_way(form: str, payload: bytes) -> None:
    writer = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "long", "string"]}]}'
    _compare(form, parse_ddl("a bigint, b string"), [payload], writer if form == "avro" else None)


def test_a_decimal_of_an_avro_payload_gives_the_same_either_way() -> None:
    import fastavro

    writer = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 4}}],
    }
    for amount in ("1.2345", "1.2300", "99999999.9999"):
        payload = _avro(fastavro, writer, {"a": Decimal(amount)})
        _compare("avro", parse_ddl("a decimal(10,2)"), [payload], json.dumps(writer))


def _avro(fastavro: object, writer: dict[str, object], record: dict[str, object]) -> bytes:
    import io

    out = io.BytesIO()
    fastavro.schemaless_writer(out, writer, record)  # type: ignore[attr-defined]
    return out.getvalue()
