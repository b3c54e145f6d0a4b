"""Signed and encrypted payloads: whoever has the key opens them, at their place and nowhere else."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigurationError, NotAuthentic
from penstock.protection import Mode, Protection, is_protected

OLD, NEW = b"o" * 32, b"n" * 32
MODES: list[Mode] = ["sign", "encrypt"]
PLACE = ("orders", "0190")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param


@given(st.binary(max_size=200), st.text(max_size=20), st.text(max_size=20), st.sampled_from(MODES))
def test_what_is_protected_opens_at_its_place(raw: bytes, stream: str, message_id: str, mode: Mode) -> None:
    protection = Protection(mode, {"a": NEW})
    closed = protection.protect(raw, stream, message_id)
    assert is_protected(closed)
    assert protection.open(closed, stream, message_id) == raw


def test_an_encrypted_payload_does_not_show_what_is_in_it() -> None:
    protection = Protection("encrypt", {"a": NEW})
    closed = [protection.protect(b"card 4711", *PLACE) for _ in range(2)]
    assert closed[0] != closed[1]
    assert b"4711" not in closed[0]


def test_a_repeatable_payload_is_the_same_each_time_and_no_other_payload_has_its_nonce(mode: Mode) -> None:
    protection = Protection(mode, {"a": NEW})
    payloads = [(raw, *place) for raw in (b"1", b"2") for place in (PLACE, ("orders", "0191"))]
    closed = [protection.protect(*each, is_repeatable=True) for each in payloads]
    assert closed == [protection.protect(*each, is_repeatable=True) for each in payloads]
    assert len({raw[6:18] for raw in closed}) == 4
    assert [protection.open(raw, *each[1:]) for raw, each in zip(closed, payloads, strict=True)] == [
        each[0] for each in payloads
    ]


@pytest.mark.parametrize("place", [("orders2", "0190"), ("orders", "0191"), ("orders0", "190"), ("", "orders0190")])
def test_a_payload_of_another_place_is_refused(mode: Mode, place: tuple[str, str]) -> None:
    protection = Protection(mode, {"a": NEW})
    with pytest.raises(NotAuthentic, match="another stream or message id"):
        protection.open(protection.protect(b"{}", *PLACE), *place)


@given(st.data(), st.sampled_from(MODES))
def test_a_payload_that_was_changed_anywhere_is_refused(data: st.DataObject, mode: Mode) -> None:
    protection = Protection(mode, {"a": NEW})
    closed = bytearray(protection.protect(b"payload", *PLACE))
    closed[data.draw(st.integers(0, len(closed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(NotAuthentic):
        protection.open(bytes(closed), *PLACE)


@given(st.binary(max_size=80), st.sampled_from(MODES), st.booleans())
def test_bytes_of_a_stranger_are_refused_and_nothing_else_is_raised(raw: bytes, mode: Mode, is_marked: bool) -> None:
    with pytest.raises(NotAuthentic):
        Protection(mode, {"a": NEW}).open(b"\xc1PS" + raw if is_marked else raw, *PLACE)


@pytest.mark.parametrize("length", range(60))
def test_a_payload_that_was_cut_is_refused(mode: Mode, length: int) -> None:
    protection = Protection(mode, {"a": NEW})
    with pytest.raises(NotAuthentic):
        protection.open(protection.protect(b"x" * 60, *PLACE)[:length], *PLACE)


def test_keys_are_rotated_without_a_pause(mode: Mode) -> None:
    before = Protection(mode, {"1": OLD})
    both = Protection(mode, {"1": OLD, "2": NEW}, current="1")
    after = Protection(mode, {"1": OLD, "2": NEW})
    only_new = Protection(mode, {"2": NEW})
    for writer in (before, both, after):
        for reader in (both, after):
            assert reader.open(writer.protect(b"{}", *PLACE), *PLACE) == b"{}"
    with pytest.raises(NotAuthentic, match="which this reader does not have"):
        only_new.open(before.protect(b"{}", *PLACE), *PLACE)
    with pytest.raises(NotAuthentic, match="a different key under the id '1'"):
        Protection(mode, {"1": NEW}).open(before.protect(b"{}", *PLACE), *PLACE)


def test_plain_payloads_pass_while_they_are_accepted(mode: Mode) -> None:
    assert Protection(mode, {"a": NEW}, accept_plain=True).open(b"{}", *PLACE) == b"{}"
    with pytest.raises(NotAuthentic, match="is not protected"):
        Protection(mode, {"a": NEW}).open(b"{}", *PLACE)


def test_a_signed_payload_is_not_taken_for_an_encrypted_one() -> None:
    signed = Protection("sign", {"a": NEW}).protect(b"{}", *PLACE)
    with pytest.raises(NotAuthentic, match="not encrypted"):
        Protection("encrypt", {"a": NEW}, accept_plain=True).open(signed, *PLACE)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mode": "rot13", "keys": {"a": NEW}}, "must be 'sign' or 'encrypt'"),
        ({"mode": "sign", "keys": {}}, "at least one key"),
        ({"mode": "sign", "keys": {"a": NEW}, "current": "b"}, "not one of the key ids"),
        ({"mode": "sign", "keys": {"": NEW}}, "must be ASCII"),
        ({"mode": "sign", "keys": {"a": "text"}}, "must be bytes"),
        ({"mode": "sign", "keys": {"a": b"short"}}, "at least 32"),
        ({"mode": "encrypt", "keys": {"a": b"x" * 33}}, "AES-256 needs 32"),
    ],
)
def test_keys_that_cannot_work_are_refused(options: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Protection(**options)  # type: ignore[arg-type]


def test_keys_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(
        f'mode = "sign"\ncurrent = "1"\n[keys]\n1 = "{b64encode(OLD).decode()}"\n2 = "{b64encode(NEW).decode()}"\n'
    )
    protection = Protection.from_file(file)
    assert Protection("sign", {"1": OLD}).open(protection.protect(b"{}", *PLACE), *PLACE) == b"{}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "cannot read the keys in"),
        ("mode = ", "cannot read the keys in"),
        ('mode = "sign"', "at least one key"),
        ('mode = "sign"\nkey = "a"', "unknown key"),
        ('mode = "sign"\nkeys = "a"', "must be a table"),
        ('mode = "sign"\n[keys]\na = "no base64"', "in base64"),
        ('[keys]\na = "' + b64encode(NEW).decode() + '"', "must be 'sign' or 'encrypt'"),
    ],
)
def test_a_file_that_cannot_work_is_refused_by_name(tmp_path: Path, text: str | None, why: str) -> None:
    file = tmp_path / "keys.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=why):
        Protection.from_file(file)


def test_keys_are_not_shown() -> None:
    assert "nnnn" not in repr(Protection("sign", {"a": NEW}))
