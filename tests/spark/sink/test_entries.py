"""Rows become entries in the protocol of Redis, and what cannot is refused by row and column."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import hiredis
import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import envelope
from penstock.errors import EncodeError, PayloadTooLarge
from penstock.spark.sink.entries import Packed, Packer, commands, counted
from penstock.spark.sink.options import Columns
from penstock.spark.sink.protocol import WaitingRows

NONE = Columns(None, None, None, None, None, None, ())
MAP = pa.map_(pa.string(), pa.binary())
TEXT_MAP = pa.map_(pa.string(), pa.string())


def packer(form: Any = "raw", content_type: str | None = None, max_bytes: int = 1000, **columns: Any) -> Packer:
    parts = {name: getattr(NONE, name) for name in NONE.__dataclass_fields__} | columns
    return Packer(Columns(**parts), form, content_type, max_bytes, is_by_column=bool(parts["stream"]))


def words(made: Packed, key: str = "s") -> list[list[bytes]]:
    """Returns the commands as the server reads them."""
    reader = hiredis.Reader()
    reader.feed(b"".join(commands(made, key).lines.to_pylist()))
    found = []
    while (command := reader.gets()) is not False:
        found.append(command)
    return found


def entries(chosen: Packer, **columns: Any) -> list[list[bytes]]:
    [made] = chosen.pack(pa.record_batch(columns), is_bare=False)
    assert all(command[:3] == [b"XADD", b"s", b"*"] for command in words(made))
    return [command[3:] for command in words(made)]


@given(st.dictionaries(st.binary(min_size=1, max_size=5), st.binary(max_size=5), min_size=1))
def test_names_of_fields_are_written_as_the_source_reads_them(fields: dict[bytes, bytes]) -> None:
    rows = pa.array([[(envelope.field_name(name), value) for name, value in fields.items()]], MAP)
    [found] = entries(packer(fields="fields"), fields=rows)
    assert dict(zip(found[::2], found[1::2], strict=True)) == fields


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=20))
def test_bytes_arrive_as_they_are(values: list[bytes]) -> None:
    found = entries(packer(data="data"), data=pa.array(values, pa.binary()))
    assert found == [[b"data", value] for value in values]


def test_text_is_written_in_utf8() -> None:
    assert entries(packer(data="value"), value=["ü", ""]) == [[b"data", "ü".encode()], [b"data", b""]]


def test_what_a_row_does_not_have_is_not_written() -> None:
    chosen = packer(data="data", key="key", message_id="message_id", headers="headers")
    found = entries(
        chosen,
        data=["a", "b", "c"],
        key=["k", None, None],
        message_id=[None, "m", None],
        headers=pa.array([[("x", "1")], [], None], TEXT_MAP),
    )
    assert found == [
        [b"data", b"a", b"key", b"k", b"headers", b'{"x":"1"}'],
        [b"data", b"b", b"message_id", b"m"],
        [b"data", b"c"],
    ]


def test_fields_are_written_as_they_are_and_columns_win() -> None:
    fields = pa.array([[("colour", b"\xff"), ("key", b"old")], [("key", b"kept")]], MAP)
    found = entries(packer(data="data", key="key", fields="fields"), data=["a", "b"], key=["k", None], fields=fields)
    assert found == [[b"data", b"a", b"key", b"k", b"colour", b"\xff"], [b"data", b"b", b"key", b"kept"]]


def test_fields_that_no_row_has_are_not_written() -> None:
    fields = pa.array([[("tenant", b"t")], [], None], MAP).slice(1)
    assert entries(packer(data="data", fields="fields"), data=[b"x", b"y"], fields=fields) == [
        [b"data", b"x"],
        [b"data", b"y"],
    ]


def test_fields_may_be_all_there_is() -> None:
    assert entries(packer(fields="fields"), fields=pa.array([[("a", b"1")]], MAP)) == [[b"a", b"1"]]


def test_the_content_type_is_written_beside_the_payload() -> None:
    chosen = packer(data="data", content_type="text/csv")
    assert entries(chosen, data=["a"]) == [[b"data", b"a", b"content_type", b"text/csv"]]


def test_the_script_gets_the_number_of_arguments_first() -> None:
    chosen = packer(data="data", key="key")
    [made] = chosen.pack(pa.record_batch({"data": ["a", "b"], "key": ["k", None]}), is_bare=False)
    assert [line.split(b"\r\n")[1] for line in counted(made).lines.to_pylist()] == [b"4", b"2"]
    assert counted(made).arguments.to_pylist() == [5, 3]


# --- objects --------------------------------------------------------------------------------------

TABLE = {
    "id": [1, None],
    "naïve name": ["ü", None],
    "at": pa.array([datetime(2026, 11, 15, 12, tzinfo=UTC)] * 2, pa.timestamp("us", "Europe/Berlin")),
    "day": [date(2026, 11, 15), None],
    "price": [Decimal("1.50"), None],
    "tags": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
    "inner": [{"x": [1, 2]}, None],
    "raw": [b"\x00\xff", None],
}


def test_a_row_becomes_a_json_object() -> None:
    (_, first), (_, second) = entries(packer("json", payload=tuple(TABLE)), **TABLE)
    assert json.loads(first) == {
        "id": 1, "naïve name": "ü", "at": "2026-11-15T12:00:00Z", "day": "2026-11-15", "price": 1.5,
        "tags": {"a": 1}, "inner": {"x": [1, 2]}, "raw": "AP8=",
    }  # fmt: skip
    assert b'"price":1.50' in first
    assert json.loads(second) == dict.fromkeys(TABLE) | {"at": "2026-11-15T12:00:00Z"}


def test_a_row_becomes_a_msgpack_object() -> None:
    (_, first), _ = entries(packer("msgpack", payload=("id", "raw")), **{name: TABLE[name] for name in ("id", "raw")})
    assert msgspec.msgpack.decode(first) == {"id": 1, "raw": b"\x00\xff"}


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "values", "says"),
    [
        ({"data": "data"}, {"data": ["a", None]}, "row 2 of the partition: column 'data' is null"),
        (
            {"data": "value", "key": "key", "message_id": "message_id"},
            {"value": ["a", None], "key": ["k", "k2"], "message_id": ["m", "m2"]},
            r"row 2 of the partition \(key 'k2', message id 'm2'\): column 'value' is null",
        ),
        ({"data": "data", "key": "key"}, {"data": ["a"], "key": [""]}, "column 'key' is empty"),
        ({"data": "data", "key": "key"}, {"data": ["a"], "key": ["k" * 513]}, "more than 512 characters"),
        (
            {"data": "data", "stream": "stream"},
            {"data": ["a"], "stream": pa.array([None], pa.string())},
            "needs a stream",
        ),
        ({"fields": "fields"}, {"fields": pa.array([[]], MAP)}, "row 1 .* 'fields' is empty"),
        ({"fields": "fields"}, {"fields": pa.array([[("a", None)]], MAP)}, "contains a null value"),
        (
            {"data": "data", "headers": "headers"},
            {"data": ["a"], "headers": pa.array([[("a", None)]], TEXT_MAP)},
            "'headers' contains a null",
        ),
    ],
)
def test_a_row_that_cannot_be_written_is_named(columns: Any, values: Any, says: str) -> None:
    with pytest.raises(EncodeError, match=says):
        entries(packer(**columns), **values)


def test_an_oversized_payload_is_named_without_being_shown() -> None:
    with pytest.raises(
        PayloadTooLarge, match=r"row 2 .*'data' has 1,001 bytes, more than maxPayloadBytes=1,000"
    ) as caught:
        entries(packer(data="data"), data=["a", "secret" + "x" * 995])
    assert "secret" not in str(caught.value)


def test_rows_are_counted_over_the_batches_of_the_partition() -> None:
    chosen = packer(data="data")
    list(chosen.pack(pa.record_batch({"data": ["a"] * 1200}), is_bare=True))
    with pytest.raises(EncodeError, match="row 1,202 "):
        list(chosen.pack(pa.record_batch({"data": ["a", None]}), is_bare=True))


def test_a_value_that_json_cannot_hold_is_named() -> None:
    columns = {"a": [1, 2], "m": pa.array([[(1, 1)], [(1, 2), (1, 3)]], pa.map_(pa.int64(), pa.int64()))}
    with pytest.raises(EncodeError, match="row 2 of the partition: column 'm' has a duplicate key"):
        entries(packer("json", payload=("a", "m")), **columns)


# --- chunks ---------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.binary(max_size=5), max_size=9), max_size=5), st.integers(1, 7), st.integers(1, 9))
def test_chunks_hold_all_rows_in_order_and_their_checksums_follow_each_other(
    pieces: list[list[bytes]], size: int, cut: int
) -> None:
    backlog = WaitingRows("s")
    chunks = []
    for piece in pieces:
        backlog.add(Packed(pa.array(piece, pa.binary()), 1, None))
        chunks += backlog.take(size, is_checked=True)
    chunks += backlog.take(size, is_last=True, is_checked=True)
    rows = [value for piece in pieces for value in piece]
    assert [value for chunk in chunks for value in chunk.lines.to_pylist()] == rows
    assert b"".join(bytes(chunk.body) for chunk in chunks) == b"".join(rows)
    position, checksum = 0, 0
    for chunk in chunks:
        assert (chunk.first, chunk.before, chunk.argument_count) == (position, checksum, chunk.rows)
        position, checksum = position + chunk.rows, chunk.after
        if chunk.rows > cut:
            left, right = chunk.split(cut)
            assert (right.first, right.before, right.after) == (chunk.first + cut, left.after, chunk.after)
