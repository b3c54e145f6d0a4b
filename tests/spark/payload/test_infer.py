"""A sample of payloads gives the columns that hold them all."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigurationError
from penstock.spark.payload import PayloadFormat, decode, infer, parse_ddl


def _inferred(*documents: str) -> pa.Schema:
    return infer([document.encode() for document in documents], "json")


def test_types_are_merged_over_the_sample() -> None:
    schema = _inferred(
        '{"id": 1, "total": 2, "tags": ["a"], "item": {"sku": "x"}, "nothing": null, "empty": {}, "list": []}',
        '{"id": 2, "total": 2.5, "tags": [null], "item": {"qty": 1}, "at": "2026-01-01", "list": [null, {"a": 1}, {"b": 2}]}',
    )
    expected = (
        "id bigint, total double, tags array<string>, item struct<sku:string,qty:bigint>, nothing string, empty string,"
    )
    assert schema.equals(parse_ddl(expected + "list array<struct<a:bigint,b:bigint>>, at string"))


def test_types_that_conflict_become_string() -> None:
    schema = _inferred('{"a": 1, "b": {"x": 1}, "c": true}', '{"a": "x", "b": [1], "c": 1}')
    assert schema.equals(parse_ddl("a string, b string, c string"))


def test_numbers_beyond_64_bits_keep_their_digits() -> None:
    assert _inferred('{"a": 18446744073709551616, "b": 1}', f'{{"a": 1, "b": {"1" * 39}}}').equals(
        parse_ddl("a decimal(38,0), b string")
    )


def test_bad_samples_are_left_out() -> None:
    assert _inferred("", "x", "[1]", "null", '{"a": 1}', "{").equals(parse_ddl("a bigint"))


@pytest.mark.parametrize("samples", [[], [b"x"], [b"[]", b"5"], [b"{}"]])
def test_nothing_to_infer_from_is_an_error(samples: list[bytes]) -> None:
    with pytest.raises(ConfigurationError, match="cannot infer columns"):
        infer(samples, "json")


def test_msgpack_has_types_of_its_own() -> None:
    record = {"raw": b"x", "at": datetime(2026, 1, 1, tzinfo=UTC), "by_number": {1: 2}}
    assert infer([msgspec.msgpack.encode(record)], "msgpack").equals(
        parse_ddl("raw binary, at timestamp, by_number string")
    )


def test_avro_and_names_that_differ_in_case_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="writer's schema"):
        infer([b"x"], "avro")
    with pytest.raises(ConfigurationError, match="'a' and 'A'"):
        _inferred('{"a": 1, "A": 2}')


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**45), 10**45)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.dictionaries(st.sampled_from("xyz"), _JSON, min_size=1), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_every_sample_fits_what_was_inferred(documents: list[dict[str, object]]) -> None:
    samples = [json.dumps(document).encode() for document in documents]
    decoded = decode(samples, PayloadFormat("json", infer(samples, "json"), reason_column="r"))
    assert decoded.reason is not None
    assert decoded.reason.to_pylist() == [None] * len(samples)
