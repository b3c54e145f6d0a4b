"""Payloads survive the way into bytes and back, or fail with an error that says where and why."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
import pickle
import tracemalloc
import uuid
from collections import OrderedDict
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import msgpack  # type: ignore[import-untyped]
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import plugins
from penstock.errors import ConfigurationError, DecodeError, EncodeError, PayloadTooLarge
from penstock.serializers import (
    JsonSerializer,
    MsgpackSerializer,
    PickleSerializer,
    Serializer,
    load_serializer,
)

JSON = JsonSerializer()
MSGPACK = MsgpackSerializer()

texts = st.text() | st.text(alphabet='[]{}"\\\x80a')
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=25,
)
msgpack_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text() | st.integers(0, 100), inner, max_size=5),
    max_leaves=25,
)


def nested_list(depth: int) -> list[Any]:
    data: list[Any] = []
    for _ in range(depth - 1):
        data = [data]
    return data


@dataclasses.dataclass
class Order:
    number: int
    price: Any = None


class Parcel(msgspec.Struct):
    weight: Any


class Colour(enum.Enum):
    RED = "red"


class Tagged(str):
    __slots__ = ()


class Metres(float):
    pass


class Count(int):
    pass


# --- JSON -----------------------------------------------------------------------------------------


@given(json_values)
def test_json_brings_back_what_it_was_given(data: Any) -> None:
    assert JSON.decode(JSON.encode(data)) == data


@given(json_values)
def test_json_writes_what_the_standard_library_reads(data: Any) -> None:
    assert json.loads(JSON.encode(data)) == data


@given(json_values)
def test_json_reads_what_the_standard_library_writes(data: Any) -> None:
    assert JSON.decode(json.dumps(data).encode()) == data
    assert JSON.decode(json.dumps(data, ensure_ascii=False).encode("utf-8", "surrogatepass")) == data


def test_json_keeps_text_beyond_ascii_as_it_is() -> None:
    assert JSON.encode({"name": "Zoë 🌊"}) == '{"name":"Zoë 🌊"}'.encode()


@pytest.mark.parametrize(
    "data",
    [
        {"n": 2**64},
        {"n": -(2**63) - 1},
        {"n": 10**300},
        {"s": "lone \ud800 surrogate"},
        {"s": "\\\udc80"},
    ],
)
def test_json_carries_what_only_the_standard_library_can(data: Any) -> None:
    assert JSON.decode(JSON.encode(data)) == data


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({None: 1, True: 2}, b'{"null":1,"true":2}'),
        ({1: "a", 2.5: "b"}, b'{"1":"a","2.5":"b"}'),
        ((1, (2, 3)), b"[1,[2,3]]"),
        ({"when": datetime(2030, 1, 2, tzinfo=UTC)}, b'{"when":"2030-01-02T00:00:00Z"}'),
        ({None: {"when": datetime(2030, 1, 2)}}, b'{"null":{"when":"2030-01-02T00:00:00"}}'),  # noqa: DTZ001
        ({"id": uuid.UUID(int=1), "d": Decimal("1.10")}, b'{"id":"00000000-0000-0000-0000-000000000001","d":"1.10"}'),
        ({"order": Order(1), "parcel": Parcel(2)}, b'{"order":{"number":1,"price":null},"parcel":{"weight":2}}'),
        ({"c": Colour.RED, "set": {1}}, b'{"c":"red","set":[1]}'),
        ({"tag": Tagged("x"), "m": Metres(1.5), "n": Count(3)}, b'{"tag":"x","m":1.5,"n":3}'),
        (OrderedDict(b=1, a=2), b'{"b":1,"a":2}'),
        ({uuid.UUID(int=1): None}, b'{"00000000-0000-0000-0000-000000000001":null}'),
    ],
)
def test_json_writes_common_python_types(data: Any, text: bytes) -> None:
    assert JSON.encode(data) == text


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, Metres("nan")])
@pytest.mark.parametrize(
    ("wrap", "place"),
    [
        (lambda bad: bad, "the payload itself"),
        (lambda bad: {"order": {"items": [1, 2, {"price": bad}]}}, r"order\.items\[2\]\.price"),
        (lambda bad: [None, {"a": bad}], r"\[1\]\.a"),
        (lambda bad: {"order": Order(1, price=bad)}, r"order\.price"),
        (lambda bad: {"parcel": Parcel(weight=(1, bad))}, r"parcel\.weight\[1\]"),
        (lambda bad: {uuid.UUID(int=1): {"x": bad}}, r"\[UUID\('0.*\]\.x"),
        (lambda bad: {"n": 10**30, "x": bad}, "x"),
        (lambda bad: {None: 1, "x": bad}, "x"),
    ],
)
def test_json_refuses_nan_and_infinity_and_names_the_place(bad: float, wrap: Any, place: str) -> None:
    with pytest.raises(
        EncodeError, match=rf"as JSON: {place} is of type .*(float|Metres): JSON cannot represent (nan|-?inf)"
    ):
        JSON.encode(wrap(bad))


@pytest.mark.parametrize(
    "data", [{"a": None, "x": 1.5}, {"a": "null", "x": 1.7e308}, [None, -1.7e308], {"a": None, "b": b"\xcb\x7f"}]
)
def test_json_does_not_mistake_none_and_great_numbers_for_nan(data: Any) -> None:
    assert json.loads(JSON.encode(data)) is not None


@given(st.floats(allow_nan=False, allow_infinity=False), st.datetimes(timezones=st.just(UTC)))
def test_json_never_takes_a_finite_number_for_nan(number: float, when: datetime) -> None:
    assert JSON.decode(JSON.encode([None, number, when]))[:2] == [None, number]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (object(), r"the payload itself is of type object"),
        ({"order": {"items": [1, 2, {"price": object()}]}}, r"order\.items\[2\]\.price is of type object"),
        ({"order": Order(1, price=[object()])}, r"order\.price\[0\] is of type object"),
        ({"strange key!": [1j]}, r"\['strange key!'\]\[0\] is of type complex"),
        ({"a": {(1, 2): 3}}, r"a key of a is of type tuple"),
        ({(1, 2): 3}, r"a key of the payload is of type tuple"),
        ([range(3)], r"\[0\] is of type range"),
        ({"n": 10**5_000}, r"n is of type int: .*4300"),
        ({"kind": Order}, r"kind is of type type"),
    ],
)
def test_json_names_what_it_cannot_encode_and_where(data: Any, message: str) -> None:
    with pytest.raises(EncodeError, match=message):
        JSON.encode(data)


def test_json_says_what_to_do_about_a_value_it_cannot_encode() -> None:
    with pytest.raises(EncodeError, match="convert it to a type that JSON supports"):
        JSON.encode({"a": object()})


def test_json_understands_nan_of_other_producers() -> None:
    data = JSON.decode(b'{"a": NaN, "b": [Infinity, -Infinity]}')
    assert math.isnan(data["a"])
    assert data["b"] == [math.inf, -math.inf]


def test_json_understands_a_byte_order_mark_and_utf_16() -> None:
    assert JSON.decode(b'\xef\xbb\xbf{"a":1}') == {"a": 1}
    assert JSON.decode('{"a":"é"}'.encode("utf-16")) == {"a": "é"}


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b'{"a":1', b"[1,]", b"{'a':1}", b'"\xff"', b"1 2", b"01", b"nul", b'{"a" 1}', b"9" * 5_000, b"\x00"],
)
def test_json_refuses_malformed_text(raw: bytes) -> None:
    with pytest.raises(DecodeError, match="the payload is not valid JSON"):
        JSON.decode(raw)


@given(st.binary(max_size=60))
def test_json_decoding_fails_only_with_its_own_error(raw: bytes) -> None:
    try:
        JSON.decode(raw)
    except DecodeError:
        return


# --- limits, alike for JSON and msgpack -----------------------------------------------------------

both = pytest.mark.parametrize("kind", [JsonSerializer, MsgpackSerializer])
Kind = type[JsonSerializer] | type[MsgpackSerializer]


@both
def test_a_payload_beyond_max_bytes_is_refused_on_the_way_in(kind: Kind) -> None:
    serializer = kind(max_bytes=50)
    assert serializer.decode(serializer.encode("x" * 48)) == "x" * 48
    with pytest.raises(PayloadTooLarge, match=r"max_bytes=50: .* send a reference"):
        serializer.encode("x" * 60)


@both
def test_a_payload_beyond_max_bytes_is_refused_on_the_way_out(kind: Kind) -> None:
    raw = kind().encode("x" * 60)
    with pytest.raises(DecodeError, match="max_bytes=50"):
        kind(max_bytes=50).decode(raw)


@both
@pytest.mark.parametrize("depth", [1, 2, 7, 100])
def test_the_depth_limit_is_exact(kind: Kind, depth: int) -> None:
    serializer, generous = kind(max_depth=depth), kind(max_depth=500)
    assert serializer.decode(serializer.encode(nested_list(depth))) == nested_list(depth)
    too_deep = nested_list(depth + 1)
    with pytest.raises(EncodeError, match=f"deeper than max_depth={depth}"):
        serializer.encode(too_deep)
    with pytest.raises(DecodeError, match=f"deeper than max_depth={depth}"):
        serializer.decode(generous.encode(too_deep))


@both
def test_a_wide_payload_is_not_deep(kind: Kind) -> None:
    serializer = kind(max_depth=3)
    data = [{"a": [1], "b": "x"} for _ in range(1_000)]
    assert serializer.decode(serializer.encode(data)) == data


@both
@pytest.mark.parametrize("text", ["[" * 500, '["]' * 200, "\\[" * 300, "{\x80\x91" * 300, "]" * 500 + "[" * 500])
def test_brackets_inside_texts_are_no_depth(kind: Kind, text: str) -> None:
    serializer = kind(max_depth=2)
    assert serializer.decode(serializer.encode({"a": [text]})) == {"a": [text]}


@pytest.mark.parametrize("text", ["]", "}", '\\"]', "\\\\"])
def test_brackets_inside_texts_do_not_hide_depth(text: str) -> None:
    opening, closing = f'["{text}",' * 50, ',"["]' * 50
    raw = f"{opening}1{closing}".encode()
    assert JsonSerializer(max_depth=50).decode(raw) == json.loads(raw)
    with pytest.raises(DecodeError, match="deeper"):
        JsonSerializer(max_depth=49).decode(raw)


@given(json_values, st.integers(1, 6))
def test_the_depth_of_any_json_is_judged_rightly(data: Any, limit: int) -> None:
    def depth(node: Any) -> int:
        children = node.values() if isinstance(node, dict) else node
        return 1 + max(map(depth, children), default=0) if isinstance(node, dict | list) else 0

    for kind in (JsonSerializer, MsgpackSerializer):
        try:
            raw = kind().encode(data)
        except EncodeError:  # an integer or text that msgpack does not have
            continue
        serializer = kind(max_depth=limit)
        if depth(data) <= limit:
            assert serializer.decode(raw) == data
            assert serializer.encode(data) == raw
        else:
            with pytest.raises(DecodeError):
                serializer.decode(raw)
            with pytest.raises(EncodeError):
                serializer.encode(data)


@both
def test_a_payload_that_contains_itself_is_refused(kind: Kind) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(EncodeError, match="contains itself"):
        kind().encode(loop)


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (JsonSerializer, b"[" * 500_000),
        (JsonSerializer, b"[" * 400_000 + b"]" * 400_000),
        (JsonSerializer, b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        (MsgpackSerializer, b"\x91" * 500_000 + b"\x01"),
        (MsgpackSerializer, b"\x81\x01" * 400_000),
    ],
)
def test_a_nesting_bomb_is_refused(kind: Kind, raw: bytes) -> None:
    with pytest.raises(DecodeError, match="max_depth"):
        kind().decode(raw)


@both
def test_an_error_shows_only_the_beginning_of_the_payload(kind: Kind) -> None:
    raw = b"\xc1" + b"secret" * 1_000
    with pytest.raises(DecodeError, match="6001 bytes") as caught:
        kind().decode(raw)
    assert len(str(caught.value)) < 400
    assert str(caught.value).count("secret") <= 10


@both
@pytest.mark.parametrize("options", [{"max_bytes": 0}, {"max_bytes": "1"}, {"max_depth": 0}, {"max_depth": True}])
def test_senseless_limits_are_refused(kind: Kind, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"must be (positive|a whole number)"):
        kind(**options)


# --- msgpack --------------------------------------------------------------------------------------


@given(msgpack_values)
def test_msgpack_brings_back_what_it_was_given(data: Any) -> None:
    assert MSGPACK.decode(MSGPACK.encode(data)) == data


@given(msgpack_values)
def test_msgpack_writes_what_the_msgpack_package_reads(data: Any) -> None:
    assert msgpack.unpackb(MSGPACK.encode(data), raw=False, strict_map_key=False) == data


@given(msgpack_values)
def test_msgpack_reads_what_the_msgpack_package_writes(data: Any) -> None:
    assert MSGPACK.decode(msgpack.packb(data, use_bin_type=True)) == data


def test_msgpack_carries_nan() -> None:
    assert math.isnan(MSGPACK.decode(MSGPACK.encode(math.nan)))


def test_msgpack_takes_subclasses_of_str_int_and_float() -> None:
    assert MSGPACK.decode(MSGPACK.encode([Tagged("x"), Count(3), Metres(1.5)])) == ["x", 3, 1.5]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"a": [1, object()]}, r"as msgpack: a\[1\] is of type object"),
        ({"n": 2**64}, r"n is of type int: .*2\*\*64"),
        ({"s": "\ud800"}, r"s is of type str: .*surrogates"),
        ({"a": {1j: 1}}, r"a key of a is of type complex"),
    ],
)
def test_msgpack_names_what_it_cannot_encode_and_where(data: Any, message: str) -> None:
    with pytest.raises(EncodeError, match=message):
        MSGPACK.encode(data)


@pytest.mark.parametrize(
    "raw",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdd\x0f\xff\xff\xff\x01",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\xdd\x00\xff\xff\xff" * 50,
        b"\xdc\xff\xff" * 90,
    ],
)
def test_a_declared_length_far_above_the_data_costs_no_memory(raw: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="not valid msgpack"):
            MSGPACK.decode(raw)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=60))
def test_msgpack_decoding_fails_only_with_its_own_error(raw: bytes) -> None:
    try:
        MSGPACK.decode(raw)
    except DecodeError:
        return


# --- pickle ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"allow_pickle": False}, {"allow_pickle": 1}])
def test_pickle_must_be_allowed_explicitly(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"allow_pickle=True.*runs whatever code"):
        PickleSerializer(**options)


def test_pickle_carries_any_object() -> None:
    serializer = PickleSerializer(allow_pickle=True)
    data = {"order": Order(1, price=Decimal("1.1")), "c": 1j}
    assert serializer.decode(serializer.encode(data)) == data


def test_pickle_names_what_it_cannot_encode() -> None:
    with pytest.raises(EncodeError, match="cannot pickle this function"):
        PickleSerializer(allow_pickle=True).encode(lambda: None)


class Explodes:
    def __reduce__(self) -> Any:
        return os.fspath, (1,)


@pytest.mark.parametrize("raw", [b"", b"junk", b"\x80\x05cno_such_module\nX\n.", pickle.dumps([1])[:-3]])
def test_pickle_refuses_malformed_bytes(raw: bytes) -> None:
    with pytest.raises(DecodeError, match="not valid pickle"):
        PickleSerializer(allow_pickle=True).decode(raw)


def test_pickle_turns_any_failure_of_the_payload_into_a_decode_error() -> None:
    with pytest.raises(DecodeError, match="TypeError"):
        PickleSerializer(allow_pickle=True).decode(pickle.dumps(Explodes()))


def test_pickle_is_limited_in_size() -> None:
    serializer = PickleSerializer(allow_pickle=True, max_bytes=50)
    with pytest.raises(PayloadTooLarge, match="max_bytes=50"):
        serializer.encode("x" * 100)
    with pytest.raises(DecodeError, match="max_bytes=50"):
        serializer.decode(pickle.dumps("x" * 100))


# --- the protocol and plug-ins --------------------------------------------------------------------


class OwnSerializer:
    def encode(self, data: dict[str, int]) -> bytes:
        return repr(data).encode()

    def decode(self, raw: bytes) -> dict[str, int]:
        return {"length": len(raw)}


def broken_factory() -> Serializer:
    raise RuntimeError("no licence")


def test_the_built_in_and_users_own_serializers_follow_the_protocol() -> None:
    own: Serializer = OwnSerializer()
    for serializer in (JSON, MSGPACK, PickleSerializer(allow_pickle=True), own):
        assert isinstance(serializer, Serializer)
    assert not isinstance(object(), Serializer)


def test_each_built_in_serializer_tells_its_content_type() -> None:
    assert JSON.content_type == "application/json"
    assert MSGPACK.content_type == "application/msgpack"
    assert PickleSerializer.content_type == "application/x-python-pickle"


@pytest.fixture
def offered_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = [
        ("own", f"{__name__}:OwnSerializer"),
        ("missing", "no_such_package:Thing"),
        ("broken", f"{__name__}:broken_factory"),
        ("useless", "builtins:dict"),
        ("twice", "a:b"),
        ("twice", "c:d"),
        ("msgpack", "no_such_package:Msgpack"),
    ]
    points = EntryPoints(EntryPoint(name, value, plugins.SERIALIZERS.group) for name, value in offered)
    monkeypatch.setattr(plugins, "entry_points", lambda group: points.select(group=group))


@pytest.mark.usefixtures("offered_plugins")
def test_a_plug_in_is_found_by_its_name_beside_broken_ones() -> None:
    assert isinstance(load_serializer("own"), OwnSerializer)


@pytest.mark.usefixtures("offered_plugins")
def test_a_plug_in_cannot_take_the_place_of_a_built_in_serializer() -> None:
    assert isinstance(load_serializer("json"), JsonSerializer)
    with pytest.raises(ConfigurationError, match="several packages provide the serializer 'msgpack': no_such_package"):
        load_serializer("msgpack")


def test_built_in_serializers_take_options() -> None:
    assert isinstance(load_serializer("pickle", allow_pickle=True), PickleSerializer)
    with pytest.raises(PayloadTooLarge):
        load_serializer("msgpack", max_bytes=1).encode("xyz")


def test_pickle_by_name_still_needs_its_permission() -> None:
    with pytest.raises(ConfigurationError, match="allow_pickle=True"):
        load_serializer("pickle")


@pytest.mark.usefixtures("offered_plugins")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jsn", "unknown serializer 'jsn'; did you mean 'json'. available: .*msgpack"),
        ("xyz", "unknown serializer 'xyz'; available:"),
        ("missing", r"'missing' \(no_such_package:Thing\) cannot be imported: ModuleNotFoundError"),
        ("broken", "'broken' cannot be created .*RuntimeError: no licence"),
        ("useless", "'useless' is a dict without encode"),
        ("twice", "several packages provide the serializer 'twice': a:b, c:d"),
    ],
)
def test_a_serializer_that_cannot_be_had_is_a_configuration_error(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_serializer(name)


def test_unknown_options_are_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be created with \['speed'\]"):
        load_serializer("json", speed="high")
