"""The record of a dead letter: written, cut where there is no room, read again, put back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import dead_letter_record as records
from penstock import envelope
from penstock.errors import DecodeError


def made(fields: list[bytes], error: BaseException | None = None) -> list[bytes]:
    record = records.record(fields, "orders", "1-0", "workers", "w-1", "fatal", error, 2, 3)
    return [part if isinstance(part, bytes) else str(part).encode() for part in record]


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_a_record_is_read_as_it_was_written() -> None:
    letter = records.parse("9-0", made([b"data", b"x", b"message_id", b"m-1"], raised(ValueError("no"))))
    assert (letter.id, letter.reason, letter.source_stream, letter.source_id) == ("9-0", "fatal", "orders", "1-0")
    assert (letter.group, letter.consumer, letter.error, letter.error_text) == ("workers", "w-1", "ValueError", "no")
    assert (letter.attempts, letter.deliveries, letter.message_id, letter.data) == (2, 3, "m-1", b"x")
    assert letter.dead_at_ms > 1_700_000_000_000
    assert letter.traceback.endswith("ValueError: no\n")
    assert letter.cut == ""


@given(st.lists(st.binary(max_size=20), max_size=40).filter(lambda parts: len(parts) % 2 == 0))
def test_any_entry_can_be_recorded_read_and_put_back(fields: list[bytes]) -> None:
    letter = records.parse("9-0", made(fields))
    again = records.redriven(letter.fields, letter.redrives, "orders/1-0", without=())
    kept = {name: value for name, value in envelope.as_mapping(fields).items() if not name.startswith("dlq_")}
    assert envelope.as_mapping([*map(_bytes, again)]) == {"origin": b"orders/1-0", **kept, "redrives": b"1"}


def _bytes(part: bytes | str | int) -> bytes:
    return part if isinstance(part, bytes) else str(part).encode()


@given(st.dictionaries(st.sampled_from(["reason", "attempts", "dead_at", "error"]), st.binary(max_size=30)))
def test_a_record_that_somebody_else_wrote_never_raises(told: dict[str, bytes]) -> None:
    flat = [part for name, value in told.items() for part in (records.FIELDS[name].encode(), value)]
    letter = records.parse("9-0", flat)
    assert letter.attempts == (envelope.number(told.get("attempts")) or 0)


# --- what there is no room for ----------------------------------------------------------------------


def wide(count: int) -> list[bytes]:
    return [part for n in range(count) for part in (b"f%d" % n, b"v")]


def test_an_entry_that_fits_is_kept_as_it_is() -> None:
    fields = [*wide(1_000), *wide(1_000)]
    assert records.kept_fields(fields) == (fields, "")


def test_what_is_known_is_kept_first() -> None:
    kept, cut = records.kept_fields([*wide(5_000), b"data", b"x", b"message_id", b"m"])
    assert kept[:4] == [b"data", b"x", b"message_id", b"m"]
    assert kept[4:] == wide(2_000)
    assert re.fullmatch("3000 fields, [0-9]+ bytes", cut)


def test_a_payload_is_kept_however_large_it_is() -> None:
    large = b"x" * (records.MAX_BYTES + 1)
    kept, cut = records.kept_fields([b"big", large, b"small", b"y", b"data", large])
    assert kept == [b"data", large, b"small", b"y"]
    assert cut == f"1 fields, {len(large) + 3} bytes"


def test_of_fields_with_one_name_the_last_one_is_kept() -> None:
    kept, cut = records.kept_fields([*([b"a", b"1"] * 5_000), b"a", b"2"])
    assert kept == [b"a", b"2"]
    assert cut == "5000 fields, 10000 bytes"


def test_what_was_cut_once_is_not_cut_again_when_it_is_put_back_and_given_up_once_more() -> None:
    letter = records.parse("9-0", made([*wide(5_000), b"data", b"x"]))
    again = [*map(_bytes, records.redriven(letter.fields, 0, "orders/1-0", without=()))]
    twice = records.parse("9-1", made(again))
    assert twice.cut == letter.cut
    assert {name for name in twice.fields if name.startswith("f")} == {f"f{n}" for n in range(2_000)}


# --- tracebacks -------------------------------------------------------------------------------------


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [Mute(), ValueError("\ud800"), ExceptionGroup("both", [Mute(), OSError()])])
def test_any_error_has_a_traceback_that_can_be_stored(error: Exception) -> None:
    found = records.traceback_of(raised(error))
    assert "in raised" in found
    found.encode()


def test_of_a_long_traceback_the_end_is_kept() -> None:
    found = records.traceback_of(raised(ValueError("x" * 50_000 + "the end")))
    assert len(found) == records.MAX_TRACEBACK
    assert found.endswith("the end\n")


def test_a_recursion_has_a_traceback() -> None:
    def deeper() -> None:
        deeper()

    with pytest.raises(RecursionError) as caught:
        deeper()
    assert "deeper" in records.traceback_of(caught.value)


@pytest.mark.parametrize("error", [None, ValueError("never raised"), raised(DecodeError("no JSON"))])
def test_where_no_code_failed_there_is_none(error: BaseException | None) -> None:
    assert records.traceback_of(error) == ""
