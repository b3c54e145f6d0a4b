from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock import envelope

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


@given(st.lists(st.tuples(texts, st.binary()), max_size=8, unique_by=lambda pair: pair[0]))
def test_fields_are_found_by_name(pairs: list[tuple[str, bytes]]) -> None:
    flat = [part for name, value in pairs for part in (name.encode(), value)]
    assert envelope.as_mapping(flat) == dict(pairs)


def test_a_field_name_that_is_no_text_is_no_error() -> None:
    assert envelope.as_mapping([b"\xff", b"x", b"data", b"y"])["data"] == b"y"
