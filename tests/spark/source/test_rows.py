from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import dead_letter_record, envelope
from penstock.errors import ConfigurationError, DecodeError
from penstock.protection import Protection
from penstock.spark.format import columns as known
from penstock.spark.payload.decoding import PayloadFormat
from penstock.spark.runtime.link import Link
from penstock.spark.source.rows import Entry, RowBuilder

_TEXT, _BYTES = pa.string(), pa.binary()
ALL = pa.schema([(name, types[0]) for name, types in known.ENTRY.items()])


def test_a_dead_letter_has_every_part_of_its_record() -> None:
    fields = [word for n in range(3_000) for word in (b"f%d" % n, b"v")]
    try:
        raise ValueError("no price")
    except ValueError as error:
        record = dead_letter_record.record(fields, "orders", "1-0", "g", "w", "fatal", error, 2, 3)
    entry = [word if isinstance(word, bytes) else str(word).encode() for word in record]
    builder = RowBuilder(pa.schema([(name, types[0]) for name, types in known.DEAD_LETTER.items()]))
    [row] = builder.build([("orders_dlq", [(b"2-0", entry)])]).to_pylist()
    letter = dead_letter_record.parse("2-0", entry)
    shared = set(dead_letter_record.FIELDS) - {"dead_at"}
    assert {name: row[name] for name in shared} == {name: getattr(letter, name) for name in shared}
    assert "raise ValueError" in row["traceback"]
    assert row["cut"].startswith("1000 fields, ")


def test_names_of_fields_that_are_no_text_stay_different() -> None:
    builder = RowBuilder(pa.schema([("fields", pa.map_(pa.string(), pa.binary()))]))
    fields = [b"\xff", b"1", b"\\xff", b"2", b"\xff", b"3", b"back\\slash", b"4", b"a", b"5"]
    [row] = builder.build([("s", [(b"1-0", fields)])]).column(0).to_pylist()
    assert row == [("\\xff", b"3"), ("\\\\xff", b"2"), ("back\\slash", b"4"), ("a", b"5")]


@given(
    st.lists(
        st.lists(st.binary(max_size=4), min_size=2, max_size=8).filter(lambda f: len(f) % 2 == 0),
        min_size=1,
        max_size=4,
    )
)
def test_any_fields_become_maps_in_which_no_name_is_twice(entries: list[list[bytes]]) -> None:
    rows = RowBuilder(ALL).build([("s", [(b"1-0", fields) for fields in entries])]).to_pylist()
    for row, fields in zip(rows, entries, strict=True):
        assert {envelope.field_bytes(name): value for name, value in row["fields"]} == dict(
            zip(fields[::2], fields[1::2], strict=True)
        )
        assert len({name for name, _ in row["fields"]}) == len(row["fields"])


def test_headers_that_are_no_text_are_shown_raw() -> None:
    (row,) = RowBuilder(ALL).build([("s", [_entry("1-0", headers=b'{"a":"\xff"}')])]).to_pylist()
    assert row["headers"] == [("raw", '{"a":"\ufffd"}')]


@pytest.mark.parametrize("value", [b"9" * 20, "²".encode(), b"9" * 5_000, b"", b"-1", str(2**63).encode()])
def test_numbers_of_a_dead_letter_that_are_none_are_null(value: bytes) -> None:
    schema = pa.schema([(name, known.DEAD_LETTER[name][0]) for name in ("attempts", "redrives", "dead_at")])
    entry = _entry("9-0", dlq_attempts=value, redrives=value, dlq_time=value)
    (row,) = RowBuilder(schema).build([("orders_dlq", [entry])]).to_pylist()
    assert row == {"attempts": None, "redrives": None, "dead_at": None}


@pytest.mark.parametrize("mode", ["sign", "encrypt"])
def test_protected_payloads_are_opened_and_others_are_malformed(tmp_path: Path, mode: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(f'mode = "{mode}"\n[keys]\na = "{b64encode(b"k" * 32).decode()}"\n')
    protect = Protection.from_file(file).protect
    page = [
        _entry("1-0", data=protect(b'{"n": 1}', "orders", "m-1"), message_id=b"m-1"),
        _entry("2-0", data=b'{"n": 2}', message_id=b"m-2"),
        _entry("3-0", data=protect(b'{"n": 3}', "others", "m-3"), message_id=b"m-3"),
        _entry("4-0", message_id=b"m-4", data=protect(b'{"n": 4}', "orders", "m-4")),
    ]
    schema = pa.schema([("id", _TEXT), ("data", _BYTES), ("n", pa.int64()), ("why", _TEXT)])
    payload = PayloadFormat("json", pa.schema([("n", pa.int64())]), reason_column="why")
    link = Link("redis://localhost", protection_file=str(file))
    rows = (
        RowBuilder(schema, payload, protected_by=link).build([("orders", page[:3]), ("orders", page[3:])]).to_pylist()
    )
    assert [row["n"] for row in rows] == [1, None, None, 4]
    assert [row["data"] for row in rows] == [b'{"n": 1}', None, None, b'{"n": 4}']
    assert [(row["why"] or "").partition(":")[0] for row in rows] == ["", "not_authentic", "not_authentic", ""]


def test_a_raw_payload_that_is_not_authentic_is_malformed_and_an_entry_without_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(f'mode = "sign"\n[keys]\na = "{b64encode(b"k" * 32).decode()}"\n')
    signed = Protection.from_file(file).protect(b"\xff", "orders", "m-1")
    page = [_entry("1-0", data=signed, message_id=b"m-1"), _entry("2-0", data=b"forged"), _entry("3-0", other=b"x")]
    schema = pa.schema([("data", _BYTES), ("why", _TEXT)])
    payload = PayloadFormat("raw", pa.schema([]), reason_column="why")
    builder = RowBuilder(schema, payload, protected_by=Link("redis://localhost", protection_file=str(file)))
    rows = builder.build([("orders", page)]).to_pylist()
    assert [row["data"] for row in rows] == [b"\xff", None, None]
    assert [(row["why"] or "").partition(":")[0] for row in rows] == ["", "not_authentic", ""]


def test_a_time_beyond_all_calendars_is_null() -> None:
    schema = pa.schema([("dead_at", known.DEAD_LETTER["dead_at"][0])])
    (row,) = RowBuilder(schema).build([("orders_dlq", [_entry("9-0", dlq_time=b"%d" % (2**63 - 1))])]).to_pylist()
    assert row == {"dead_at": None}


@pytest.mark.parametrize("ms", [253_402_300_800_000, 10**18, 2**63, 2**64 - 1])
def test_an_entry_with_an_id_beyond_all_calendars_has_no_time(ms: int) -> None:
    schema = pa.schema([("id", _TEXT), ("timestamp", known.ENTRY["timestamp"][0])])
    entries = [_entry(f"{ms}-5", data=b""), _entry("1700000000123-0", data=b"")]
    far, near = RowBuilder(schema).build([("s", entries)]).to_pylist()
    assert far == {"id": f"{ms}-5", "timestamp": None}
    assert near["timestamp"].year == 2023


def _entry(entry_id: str, **fields: bytes) -> Entry:
    return entry_id.encode(), [part for name, value in fields.items() for part in (name.encode(), value)]


def test_all_columns_of_an_entry() -> None:
    entry = _entry("1700000000123-7", data=b"\xff1", key=b"k", headers=b'{"a":"b"}', message_id=b"m")
    (row,) = RowBuilder(ALL).build([("orders", [entry])]).to_pylist()
    assert row == {
        "stream": "orders", "id": "1700000000123-7", "ms": 1700000000123, "seq": 7,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC), "data": b"\xff1", "key": "k",
        "headers": [("a", "b")], "message_id": "m",
        "fields": [("data", b"\xff1"), ("key", b"k"), ("headers", b'{"a":"b"}'), ("message_id", b"m")],
    }  # fmt: skip


def test_an_entry_of_a_foreign_producer_has_nulls() -> None:
    (row,) = RowBuilder(ALL).build([("s", [_entry("1-1", sensor=b"7", data=b"x")])]).to_pylist()
    assert (row["data"], row["key"], row["message_id"], row["headers"]) == (b"x", None, None, [])
    (row,) = RowBuilder(ALL).build([("s", [_entry("1-1", sensor=b"7")])]).to_pylist()
    assert row["data"] is None
    assert row["fields"] == [("sensor", b"7")]


def test_the_schema_is_the_projection() -> None:
    schema = pa.schema([("seq", pa.int64()), ("data", _TEXT), ("id", _TEXT)])
    batch = RowBuilder(schema).build([("a", [_entry("5-3", data=b"x")]), ("b", [_entry("6-4", data=b"y")])])
    assert batch.schema == schema
    assert batch.to_pylist() == [{"seq": 3, "data": "x", "id": "5-3"}, {"seq": 4, "data": "y", "id": "6-4"}]


def test_bytes_that_are_no_text_are_replaced_where_text_is_wanted() -> None:
    (row,) = RowBuilder(pa.schema([("data", _TEXT)])).build([("s", [_entry("1-0", data=b"a\xffb")])]).to_pylist()
    assert row == {"data": "a\ufffdb"}


def test_of_fields_with_one_name_the_last_one_counts() -> None:
    entry = (b"1-0", [b"a", b"1", b"data", b"x", b"a", b"2"])
    (row,) = RowBuilder(pa.schema([("fields", pa.map_(_TEXT, _BYTES))])).build([("s", [entry])]).to_pylist()
    assert dict(row["fields"]) == {"a": b"2", "data": b"x"}


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)), min_size=1, max_size=30))
def test_any_id_is_taken_apart_rightly(pairs: list[tuple[int, int]]) -> None:
    schema = pa.schema([("ms", pa.int64()), ("seq", pa.int64())])
    batch = RowBuilder(schema).build([("s", [_entry(f"{ms}-{seq}", data=b"") for ms, seq in pairs])])
    assert [(row["ms"], row["seq"]) for row in batch.to_pylist()] == pairs


@given(st.lists(st.tuples(st.integers(10**12, 10**13 - 1), st.integers(0, 10**6)), min_size=1, max_size=30))
def test_ids_of_our_times_are_taken_apart_rightly(pairs: list[tuple[int, int]]) -> None:
    schema = pa.schema([("ms", pa.int64()), ("seq", pa.int64())])
    batch = RowBuilder(schema).build([("s", [_entry(f"{ms}-{seq}", data=b"") for ms, seq in pairs])])
    assert [(row["ms"], row["seq"]) for row in batch.to_pylist()] == pairs


def test_a_dead_letter_has_its_story_in_columns() -> None:
    schema = pa.schema(
        [(name, known.DEAD_LETTER[name][0]) for name in ("reason", "source_id", "attempts", "dead_at", "data")]
    )
    entry = _entry("9-0", data=b"x", dlq_reason=b"fatal", dlq_id=b"5-0", dlq_attempts=b"3", dlq_time=b"1700000000123")
    (row,) = RowBuilder(schema).build([("orders_dlq", [entry])]).to_pylist()
    assert row == {
        "reason": "fatal", "source_id": "5-0", "attempts": 3,
        "dead_at": datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC), "data": b"x",
    }  # fmt: skip


class TestPayload:
    _SCHEMA = pa.schema([("id", _TEXT), ("n", pa.int64()), ("_corrupt_record", _TEXT), ("_corrupt_reason", _TEXT)])

    def _format(self, mode: str = "PERMISSIVE") -> PayloadFormat:
        return PayloadFormat("json", pa.schema([("n", pa.int64())]), mode, "_corrupt_record", "_corrupt_reason")  # type: ignore[arg-type]

    def test_good_and_bad_rows(self) -> None:
        entries = [_entry("1-0", data=b'{"n":1}'), _entry("2-0", data=b"{"), _entry("3-0", other=b"")]
        rows = RowBuilder(self._SCHEMA, self._format()).build([("s", entries)]).to_pylist()
        assert [(row["id"], row["n"], row["_corrupt_record"]) for row in rows] == [
            ("1-0", 1, None),
            ("2-0", None, "{"),
            ("3-0", None, None),
        ]
        assert [bool(row["_corrupt_reason"]) for row in rows] == [False, True, True]

    def test_dropped_rows_are_gone_from_every_column(self) -> None:
        schema = pa.schema([("id", _TEXT), ("n", pa.int64())])
        payload = PayloadFormat("json", pa.schema([("n", pa.int64())]), "DROPMALFORMED")
        batch = RowBuilder(schema, payload).build([("s", [_entry("1-0", data=b"{"), _entry("2-0", data=b'{"n":2}')])])
        assert batch.to_pylist() == [{"id": "2-0", "n": 2}]

    def test_a_failure_names_the_entry(self) -> None:
        schema = pa.schema([("n", pa.int64())])
        payload = PayloadFormat("json", schema, "FAILFAST")
        with pytest.raises(DecodeError, match="entry 2-0 of stream 'b'"):
            RowBuilder(schema, payload).build(
                [("a", [_entry("1-0", data=b'{"n":1}')]), ("b", [_entry("2-0", data=b"{")])]
            )

    def test_the_payload_as_one_column(self) -> None:
        inner = pa.struct([("id", pa.int64())])
        schema = pa.schema([("id", _TEXT), ("order", inner)])
        payload = PayloadFormat("json", pa.schema([("id", pa.int64())]))
        batch = RowBuilder(schema, payload, payload_column="order").build([("s", [_entry("1-0", data=b'{"id":7}')])])
        assert batch.to_pylist() == [{"id": "1-0", "order": {"id": 7}}]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (pa.schema([]), "no column"),
        (pa.schema([("nme", _TEXT)]), "unknown column 'nme'"),
        (pa.schema([("id", pa.int64())]), "column 'id' cannot be int64; it is string"),
        (pa.schema([("fields", pa.map_(_TEXT, pa.int64()))]), "it is map<string,binary> or map<string,string>"),
    ],
)
def test_a_wrong_schema_is_refused(schema: pa.Schema, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        known.check(schema, known.ENTRY, ())


def test_entries_with_the_columns_of_the_kafka_source() -> None:
    schema = pa.schema([(name, types[0]) for name, types in known.KAFKA.items()])
    first = [b"data", b"a", b"key", b"k", b"headers", b'{"h": "1"}']
    rows = RowBuilder(schema).build([("orders", [(b"1700000000000-0", first), (b"1700000000000-1", [b"data", b"b"])])])
    one, two = rows.to_pylist()
    offset = 1_700_000_000_000 << 20
    assert one == {
        "key": b"k",
        "value": b"a",
        "topic": "orders",
        "partition": 0,
        "offset": offset,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "timestampType": 1,
        "headers": [{"key": "h", "value": b"1"}],
    }
    assert (two["key"], two["value"], two["offset"], two["headers"]) == (None, b"b", offset + 1, [])


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), min_size=1, unique=True))
def test_offsets_order_as_ids_do_and_are_null_where_they_do_not_fit(numbers: list[tuple[int, int]]) -> None:
    entries = [(f"{ms}-{seq}".encode(), [b"data", b""]) for ms, seq in sorted(numbers)]
    found = RowBuilder(pa.schema([("offset", pa.int64())])).build([("s", entries)]).column(0).to_pylist()
    assert [offset is None for offset in found] == [ms >= 2**43 or seq >= 2**20 for ms, seq in sorted(numbers)]
    fitting = [offset for offset in found if offset is not None]
    assert fitting == sorted(set(fitting))
