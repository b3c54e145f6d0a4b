from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import envelope
from penstock.errors import ConfigurationError, DecodeError

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=50)


@given(st.dictionaries(texts, texts, max_size=10))
def test_headers_come_back_as_they_were(headers: dict[str, str]) -> None:
    assert envelope.decode_headers(envelope.encode_headers(headers)) == headers


@given(st.binary(max_size=100))
def test_foreign_headers_never_raise(raw: bytes) -> None:
    found = envelope.decode_headers(raw)
    assert all(isinstance(name, str) and isinstance(value, str) for name, value in found.items())


def test_headers_that_are_no_texts_are_shown_raw() -> None:
    assert envelope.decode_headers(None) == envelope.decode_headers(b"") == {}
    assert envelope.decode_headers(b'{"a":1}') == {"raw": '{"a":1}'}
    assert envelope.decode_headers(b"\xff") == {"raw": "\ufffd"}
    assert envelope.decode_headers(b'{"a":"\xff"}') == {"raw": '{"a":"\ufffd"}'}
    assert envelope.decode_headers(b'{"\xff":"a"}') == {"raw": '{"\ufffd":"a"}'}
    assert "raw" in envelope.decode_headers(b'{"a":' * 100_000)


def test_headers_have_a_limit() -> None:
    with pytest.raises(ConfigurationError, match="move large values into the payload"):
        envelope.encode_headers({"a": "b" * envelope.MAX_HEADERS})
    found = envelope.decode_headers(b'{"a":"%s"}' % (b"b" * envelope.MAX_HEADERS))
    assert (list(found), len(found["raw"])) == (["raw"], 2_000)


plain_names = texts.filter(lambda name: "\\x" not in name)  # the others are shown with escapes


@given(st.lists(st.tuples(plain_names, st.binary()), max_size=8, unique_by=lambda pair: pair[0]))
def test_fields_are_found_by_name(pairs: list[tuple[str, bytes]]) -> None:
    flat = [part for name, value in pairs for part in (name.encode(), value)]
    assert envelope.as_mapping(flat) == dict(pairs)


def test_a_field_name_that_is_no_text_is_no_error() -> None:
    assert envelope.as_mapping([b"\xff", b"x", b"data", b"y"]) == {"\\xff": b"x", "data": b"y"}


names = st.one_of(
    st.binary(max_size=8),
    st.lists(st.sampled_from([b"\\", b"x", b"f", b"\xff", b"\\xff", "ü".encode()]), max_size=8).map(b"".join),
)


@given(names)
def test_every_name_of_a_field_comes_back(raw: bytes) -> None:
    assert envelope.field_bytes(envelope.field_name(raw)) == raw


@given(names, names)
def test_names_that_differ_stay_different(one: bytes, other: bytes) -> None:
    assert (envelope.field_name(one) == envelope.field_name(other)) == (one == other)


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b"plain", "plain"),
        (b"back\\slash", "back\\slash"),
        ("ü".encode(), "ü"),
        (b"\xff", "\\xff"),
        (b"\\xff", "\\\\xff"),
        (b"a\\b\xff", "a\\\\b\\xff"),
    ],
)
def test_a_name_is_itself_unless_it_could_be_taken_for_another(raw: bytes, name: str) -> None:
    assert envelope.field_name(raw) == name


@given(st.lists(st.tuples(names, st.binary(max_size=3)), max_size=8, unique_by=lambda pair: pair[0]))
def test_fields_come_back_as_they_were(pairs: list[tuple[bytes, bytes]]) -> None:
    flat = [part for pair in pairs for part in pair]
    assert envelope.as_fields(envelope.as_mapping(flat)) == flat


def test_of_fields_with_one_name_the_last_one_counts() -> None:
    assert envelope.as_mapping([b"data", b"1", b"data", b"2"]) == {"data": b"2"}


# --- numbers --------------------------------------------------------------------------------------


@given(st.integers(0, 2**63 - 1))
def test_a_number_of_63_bits_is_one(value: int) -> None:
    assert envelope.number(str(value)) == envelope.number(str(value).encode()) == value


@given(st.one_of(st.text(max_size=30), st.binary(max_size=30)))
def test_anything_else_is_none(raw: str | bytes) -> None:
    text = raw.decode("latin-1") if isinstance(raw, bytes) else raw
    is_number = re.fullmatch("[0-9]{1,19}", text) is not None and int(text) < 2**63
    assert envelope.number(raw) == (int(text) if is_number else None)


@pytest.mark.parametrize("raw", ["²", "٣", "9" * 20, str(2**63), "9" * 5_000, "-1", "+1", "1_0", " 1", "", None])
def test_what_only_looks_like_a_number_is_none(raw: str | None) -> None:
    assert envelope.number(raw) is None


@given(st.binary(max_size=30))
def test_an_expiry_is_a_number_or_a_decode_error(raw: bytes) -> None:
    when_ms, entry = envelope.number(raw), {"expires_at": raw}
    if when_ms is None:
        with pytest.raises(DecodeError):
            envelope.is_expired(entry, 0.0)
    else:
        assert envelope.is_expired(entry, when_ms / 1000 + 1)
        assert not envelope.is_expired(entry, when_ms / 1000 - 1)


def test_an_entry_expires_at_its_time_and_without_one_never() -> None:
    assert [envelope.is_expired({"expires_at": b"1000"}, now_s) for now_s in (0.999, 1.0)] == [False, True]
    assert not envelope.is_expired({}, 1e12)


@given(st.binary(max_size=40), st.integers(0, 10))
def test_a_text_is_never_longer_than_wanted(raw: bytes, most: int) -> None:
    assert envelope.text(raw, most) == envelope.text(raw)[:most]
