"""How payloads become bytes and back: JSON (the default), msgpack, pickle, or a serializer of the user's own."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from penstock.encode_errors import find_unencodable, type_name
from penstock.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DecodeError,
    EncodeError,
    PayloadTooLarge,
    cut,
    summary_of,
)
from penstock.number_checks import check_number
from penstock.plugins import SERIALIZERS

DEFAULT_MAX_BYTES = 1_048_576
DEFAULT_MAX_DEPTH = 256
_Error = TypeVar("_Error", bound=Exception)
_REFUSALS = (msgspec.MsgspecError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError, MemoryError)


@dataclass(frozen=True, slots=True)
class PayloadLimits:
    """How large and how deeply nested a payload may be, for parts that encode it themselves: queues and tasks."""

    max_payload_bytes: int = DEFAULT_MAX_BYTES
    max_payload_depth: int = DEFAULT_MAX_DEPTH

    def __post_init__(self) -> None:
        """Raise ConfigurationError for what is no limit."""
        check_number("max_payload_bytes", self.max_payload_bytes)
        check_number("max_payload_depth", self.max_payload_depth)

    def check_size(self, size: int, kind: type[Exception]) -> None:
        """Raise an error of that kind if there are too many bytes."""
        if size > self.max_payload_bytes:
            raise _too_large(kind, size, "max_payload_bytes", self.max_payload_bytes)

    def may_be_deep(self, raw: bytes) -> bool:
        """Return whether bytes of JSON or msgpack have enough starts of containers to be nested too deeply."""
        if len(raw) <= self.max_payload_depth:
            return False
        if raw[:1] == b"{":
            return raw.count(b"{") + raw.count(b"[") > self.max_payload_depth
        return len(raw.translate(None, _NO_CONTAINER_HEADER)) > self.max_payload_depth

    def check_depth(self, data: object, kind: type[Exception]) -> None:
        """Raise an error of that kind if plain data are nested too deeply."""
        if _is_deeper(data, self.max_payload_depth):
            raise kind(
                f"the payload is nested deeper than max_payload_depth={self.max_payload_depth}: flatten it, or "
                "raise max_payload_depth in producers and consumers"
            )


@runtime_checkable
class Serializer(Protocol):
    """Turns payloads into bytes and back.

    An optional attribute `content_type` (str) is stored with the payload, so that other readers know its format;
    without it, or with `application/json`, nothing is stored.
    """

    # `Any`, so that a serializer can declare one payload type: `encode(self, data: Order) -> bytes`.
    def encode(self, data: Any) -> bytes:
        """Return the bytes of a payload, or raise EncodeError."""

    def decode(self, raw: bytes) -> Any:
        """Return the payload of the bytes, or raise DecodeError."""


class _LimitedSerializer:
    """What JSON and msgpack share: msgspec encodes and decodes, and size and depth are limited in both directions."""

    _form = ""
    _bytes_per_level = 1

    def __init__(self, max_bytes: int, max_depth: int) -> None:
        check_number("max_bytes", max_bytes)
        check_number("max_depth", max_depth)
        self._max_bytes, self._max_depth = max_bytes, max_depth
        self._harmless_bytes = min(max_bytes, max_depth * self._bytes_per_level)  # fewer cannot be too deep
        self._dumps: Callable[[Any], bytes]
        self._loads: Callable[[bytes], Any]

    def encode(self, data: Any) -> bytes:
        """Return the bytes of the payload."""
        try:
            raw = self._dumps(data)
        except _REFUSALS as error:
            raw = self._encode_slowly(data, error)
        if len(raw) > self._harmless_bytes:
            self._check_size(raw)
        return raw

    def decode(self, raw: bytes) -> Any:
        """Return the payload of the bytes."""
        is_harmless = len(raw) <= self._harmless_bytes
        if not is_harmless and len(raw) > self._max_bytes:
            raise _too_large(DecodeError, len(raw), "max_bytes", self._max_bytes)
        try:
            data = self._loads(raw)
        except _REFUSALS as error:
            data = self._decode_slowly(raw, error)
        if is_harmless:
            return data
        if self._may_be_deep(raw) and _is_deeper(data, self._max_depth):
            raise self._too_deep(DecodeError)
        return data

    def _encode_slowly(self, data: Any, error: Exception) -> bytes:
        if isinstance(error, RecursionError):
            raise self._too_deep(EncodeError) from error
        try:
            return self._second_dumps(data)
        except _REFUSALS as refusal:
            why = (
                find_unencodable(data, self._attempt, _REFUSALS)
                or f"a value in this {type_name(data)} is not supported: {refusal}"
            )
            why = f"{cut(why, 500)}; convert it to a type that {self._form} supports"
            raise EncodeError(f"cannot encode the payload as {self._form}: {why}") from refusal

    def _decode_slowly(self, raw: bytes, error: Exception) -> Any:
        if isinstance(error, RecursionError):
            raise self._too_deep(DecodeError) from error
        try:
            return self._second_loads(raw)
        except _REFUSALS as refusal:
            raise _bad_payload(self._form, refusal, raw) from refusal

    def _second_dumps(self, data: Any) -> bytes:
        return self._dumps(data)

    def _second_loads(self, raw: bytes) -> Any:
        return self._loads(raw)

    def _attempt(self, value: object) -> None:
        self._dumps(value)

    def _check_size(self, raw: bytes) -> None:
        if len(raw) > self._max_bytes:
            raise _too_large(PayloadTooLarge, len(raw), "max_bytes", self._max_bytes)
        if self._may_be_deep(raw):
            try:
                self.decode(raw)
            except DecodeError as error:
                raise self._too_deep(EncodeError) from error

    def _may_be_deep(self, raw: bytes) -> bool:
        raise NotImplementedError

    def _too_deep(self, kind: type[_Error]) -> _Error:
        return kind(
            f"the {self._form} payload is nested deeper than max_depth={self._max_depth}, or contains itself: "
            "flatten it, or raise max_depth in producers and consumers"
        )


class JsonSerializer(_LimitedSerializer):
    """JSON in UTF-8, at msgspec's speed and with the semantics of Python's `json`.

    Besides what `json` supports, it writes datetimes, UUIDs, Decimals, enums and bytes (base64) as strings,
    sets as arrays, dataclasses and Structs as objects; they come back as those plain types.

    Raises: EncodeError for values that JSON cannot represent, such as NaN and infinity, with their path in the payload;
    PayloadTooLarge beyond `max_bytes`; DecodeError for anything that `json` would refuse or that is larger or
    deeper than allowed. NaN and Infinity written by other producers are accepted.
    """

    content_type = "application/json"
    _form = "JSON"
    _bytes_per_level = 2

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES, max_depth: int = DEFAULT_MAX_DEPTH) -> None:
        super().__init__(max_bytes, max_depth)
        self._dumps = msgspec.json.Encoder(enc_hook=_base_value).encode
        self._loads = msgspec.json.Decoder().decode
        self._plain_dumps = json.JSONEncoder(
            ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=msgspec.to_builtins
        ).encode

    def encode(self, data: Any) -> bytes:
        """Return the payload as JSON in UTF-8."""
        try:  # not super().encode(), which costs as much as all the checks
            raw = self._dumps(data)
        except _REFUSALS as error:
            raw = self._encode_slowly(data, error)
        if len(raw) > self._harmless_bytes:
            self._check_size(raw)
        # msgspec writes NaN and infinity as null, so only a text with a null needs a check of the payload.
        # rfind() takes half the time of `in`.
        if (
            raw.rfind(b"null") >= 0
            and _may_hold_nan(data)
            and (refused := find_unencodable(data, _refuse_nan, _REFUSALS))
        ):
            raise EncodeError(f"cannot encode the payload as JSON: {refused}")
        return raw

    def _second_dumps(self, data: Any) -> bytes:
        # A lone surrogate has no UTF-8 form; `backslashreplace` writes the escape that JSON defines for it.
        return self._plain_dumps(data).encode("utf-8", "backslashreplace")

    def _second_loads(self, raw: bytes) -> Any:
        return json.loads(raw)

    def _attempt(self, value: object) -> None:
        _refuse_nan(value)
        try:
            self._dumps(value)
        except _REFUSALS:
            self._second_dumps(value)

    def _may_be_deep(self, raw: bytes) -> bool:
        if raw.count(b"{") + raw.count(b"[") <= self._max_depth:
            return False
        # Keep only the brackets, then remove the innermost pairs once per level. Strings vanish as pairs of
        # quotes unless they contain brackets or escapes; then only walking through the data answers it.
        shape = raw.translate(_ONE_BRACKET, _NO_SHAPE).replace(b'""', b"")
        if b'"' in shape or b"\\" in shape:
            return True
        for _ in range(self._max_depth):
            shape = shape.replace(b"[]", b"")
            if not shape:
                return False
        return True


class MsgpackSerializer(_LimitedSerializer):
    """MessagePack, byte-compatible with the `msgpack` package (`use_bin_type=True`, `raw=False`).

    Raises: EncodeError for values that msgpack cannot represent, with their path in the payload; PayloadTooLarge beyond
    `max_bytes`; DecodeError for malformed bytes or a payload larger or deeper than allowed. A header that
    declares more elements than there are bytes costs no memory.
    """

    content_type = "application/msgpack"
    _form = "msgpack"

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES, max_depth: int = DEFAULT_MAX_DEPTH) -> None:
        super().__init__(max_bytes, max_depth)
        self._dumps = msgspec.msgpack.Encoder(enc_hook=_base_value).encode
        self._loads = msgspec.msgpack.Decoder().decode

    def _may_be_deep(self, raw: bytes) -> bool:
        # Each level starts with a container header; the same bytes inside strings only cause a closer check.
        return len(raw.translate(None, _NO_CONTAINER_HEADER)) > self._max_depth


class PickleSerializer:
    """Pickle, for any Python object between processes that trust each other completely.

    It needs `allow_pickle=True`, because anyone who can write to the stream can run code in every consumer.
    """

    content_type = "application/x-python-pickle"

    def __init__(self, allow_pickle: bool = False, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        if allow_pickle is not True:
            raise ConfigurationError(
                "PickleSerializer needs allow_pickle=True: decoding a pickle runs whatever code its author "
                "chose, so anyone who can write to the stream controls every consumer. Use JsonSerializer or "
                "MsgpackSerializer unless you trust every producer and everyone who can reach the Redis server"
            )
        check_number("max_bytes", max_bytes)
        self._max_bytes = max_bytes

    def encode(self, data: Any) -> bytes:
        """Return the pickle of the payload."""
        try:
            raw = pickle.dumps(data, protocol=5)
        except Exception as error:
            raise EncodeError(f"cannot pickle this {type_name(data)}: {cut(error)}; send plain data instead") from error
        if len(raw) > self._max_bytes:
            raise _too_large(PayloadTooLarge, len(raw), "max_bytes", self._max_bytes)
        return raw

    def decode(self, raw: bytes) -> Any:
        """Return the payload of the pickle; this runs whatever code the pickle names."""
        if len(raw) > self._max_bytes:
            raise _too_large(DecodeError, len(raw), "max_bytes", self._max_bytes)
        try:
            return pickle.loads(raw)  # noqa: S301  chosen twice by the user, see the constructor
        except Exception as error:
            raise _bad_payload("pickle", cut(summary_of(error)), raw) from error


def fast_decoder(serializer: Serializer) -> tuple[Callable[[bytes], Any], int]:
    """Return a faster decode() and the largest size it may be used for; if it fails, decode() decides."""
    if type(serializer) is JsonSerializer or type(serializer) is MsgpackSerializer:  # a subclass may do more
        return serializer._loads, serializer._harmless_bytes  # noqa: SLF001
    return serializer.decode, -1


def checked_serializer(serializer: Serializer | None) -> Serializer:
    """Return the serializer, by default that of JSON; raise ConfigurationError for a class or a name."""
    given: object = JsonSerializer() if serializer is None else serializer
    if isinstance(given, type) or not isinstance(given, Serializer):
        raise ConfigurationTypeError(
            f"serializer={given!r} must be an object with encode() and decode(): JsonSerializer()"
        )
    return given


def load_serializer(name: str, **options: object) -> Serializer:
    """Return the serializer of that name: json, msgpack, pickle, or one that an installed package offers.

    Packages offer a class or factory, called with the options, under the entry point group
    `penstock.serializers`. Only the requested one is imported.

    Raises: ConfigurationError for an unknown name, and for a plug-in that cannot be imported or made.
    """
    serializer = SERIALIZERS.make(name, options)
    if not isinstance(serializer, Serializer):
        raise ConfigurationError(f"serializer {name!r} is a {type_name(serializer)} without encode() or decode()")
    return serializer


_ONE_BRACKET = bytes.maketrans(b"{}", b"[]")
_NO_SHAPE = bytes(set(range(256)) - set(b'[]{}"\\'))
_NO_CONTAINER_HEADER = bytes(set(range(256)) - {*range(0x80, 0xA0), *range(0xDC, 0xE0)})


def _base_value(value: object) -> object:
    """Return an instance of a subclass as a plain str, int or float, since msgspec does not accept subclasses."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    raise TypeError(f"Encoding objects of type {type_name(value)} is unsupported")


def _is_deeper(data: Any, limit: int) -> bool:
    """Return whether decoded data is nested deeper than the limit."""
    level = [data] if isinstance(data, dict | list) else []
    for _ in range(limit):
        if not level:
            break
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
    return bool(level)


def _may_hold_nan(data: object) -> bool:
    """Return False if no float can be NaN or infinite, and True if each must be checked; at msgspec's speed."""
    try:
        raw = msgspec.msgpack.encode(data, enc_hook=_base_value)
    except _REFUSALS:
        return True
    # In msgpack a float is 0xCB and eight bytes, which begin with 0x7F or 0xFF for NaN and infinity.
    return b"\xcb\x7f" in raw or b"\xcb\xff" in raw


def _refuse_nan(value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"JSON cannot represent {float(value)!r}; use None, a string or MsgpackSerializer")


def _too_large(kind: type[_Error], size: int, name: str, most: int) -> _Error:
    return kind(
        f"the payload has {size} bytes, more than {name}={most}: store it elsewhere and send a reference, or "
        f"raise {name} in producers and consumers"
    )


def _bad_payload(form: str, reason: object, raw: bytes) -> DecodeError:
    return DecodeError(f"the payload is not valid {form}: {cut(reason)} ({len(raw)} bytes, starting with {raw[:60]!r})")
