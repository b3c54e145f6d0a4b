"""Checks and encodes messages, and lays them out for the publish script."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from penstock import envelope, ids
from penstock.errors import ConfigurationError, EncodeError
from penstock.keys import is_utf8
from penstock.number_checks import check_number
from penstock.protection import Protection
from penstock.serializers import Serializer, checked_serializer

Field: TypeAlias = bytes | str | int
_MAX_KEY = 512
_JSON = "application/json"


class Encoded(msgspec.Struct, gc=False, eq=False):
    """One encoded message; `more` are its fields other than payload and message id."""

    raw: bytes
    message_id: str
    more: tuple[Field, ...] = ()
    dedup_key: str | None = None
    window_ms: int = 0
    promise: Any = None  # of the answer, when the message was posted alone


class Encoder:
    """Encodes payloads into messages."""

    def __init__(self, serializer: Serializer | None, stream: str, protection: Protection | None) -> None:
        self._stream, self._protection = stream, protection
        self._serializer = checked_serializer(serializer)
        self._dumps: Callable[[object], object] = self._serializer.encode
        message_ids = ids.MessageIds()
        self._new_id, self._new_ids = message_ids.make, message_ids.make_many
        content_type: str | None = getattr(self._serializer, "content_type", None)
        # JSON is not recorded: readers assume it.
        is_told = content_type is not None and content_type != _JSON
        self._more: tuple[Field, ...] = (envelope.CONTENT_TYPE, str(content_type)) if is_told else ()

    def plain(self, data: object) -> Encoded:
        """Encode a message that has only a payload."""
        raw = self._dumps(data)
        if type(raw) is not bytes:
            raise self._not_bytes(raw)
        message = Encoded(raw, self._new_id(), self._more)
        return message if self._protection is None else self._protected(message, self._protection)

    def plain_many(self, items: Iterable[object]) -> list[Encoded]:
        """Encode messages that have only payloads."""
        payloads: list[Any] = [self._dumps(data) for data in items]
        new_ids, more = self._new_ids(len(payloads)), self._more
        messages = [Encoded(raw, new_id, more) for raw, new_id in zip(payloads, new_ids, strict=True)]
        for message in messages:
            if type(message.raw) is not bytes:
                raise self._not_bytes(message.raw)
        if self._protection is not None:
            for message in messages:
                self._protected(message, self._protection)
        return messages

    def _protected(self, message: Encoded, protection: Protection) -> Encoded:
        message.raw = protection.protect(message.raw, self._stream, message.message_id)
        return message

    def _not_bytes(self, raw: object) -> EncodeError:
        serializer = type(self._serializer).__name__
        return EncodeError(f"{serializer}.encode() must return bytes, not {type(raw).__name__}")

    def full(
        self,
        data: object,
        message_id: str | None,
        key: str | None,
        headers: Mapping[str, str] | None,
        dedup_key: str | None,
        dedup_window_ms: float,
        expires_in_ms: float | None,
    ) -> Encoded:
        """Encode a message with any of the options of push()."""
        more: list[Field] = list(self._more)
        if _checked("key", key) is not None:
            more += [envelope.KEY, str(key)]
        if headers:
            more += [envelope.HEADERS, envelope.encode_headers(headers)]
        if expires_in_ms is not None:
            check_number("expires_in_ms", expires_in_ms, is_whole=False)
            more += [envelope.EXPIRES_AT, int(time.time() * 1000 + expires_in_ms)]
        window_ms = 0
        if _checked("dedup_key", dedup_key) is not None:
            check_number("dedup_window_ms", dedup_window_ms, is_whole=False)
            window_ms = max(1, int(dedup_window_ms))
            more += [envelope.DEDUP_KEY, str(dedup_key)]
        message_id = _checked("message_id", message_id) or self._new_id()
        raw = self._dumps(data)
        if type(raw) is not bytes:
            raise self._not_bytes(raw)
        message = Encoded(raw, message_id, tuple(more), dedup_key, window_ms)
        return message if self._protection is None else self._protected(message, self._protection)


def layout(messages: Sequence[Encoded]) -> Sequence[Field]:
    """Return the arguments of the publish script that describe the messages, count and layout first."""
    if len(messages) == 1:
        # For speed, a single message is laid out without the lists of a batch.
        lone, more = messages[0], messages[0].more
        if not more and not lone.window_ms:
            return 1, "plain", lone.raw, lone.message_id
        named = envelope.DATA, lone.raw, envelope.MESSAGE_ID, lone.message_id
        return 1, "full", len(named) + len(more), lone.window_ms, *named, *more
    args: list[Field] = [len(messages), "plain"]
    for message in messages:
        if message.more or message.window_ms:
            break
        args.append(message.raw)
        args.append(message.message_id)
    else:
        return args
    args = [len(messages), "full"]
    for message in messages:
        fields = (envelope.DATA, message.raw, envelope.MESSAGE_ID, message.message_id, *message.more)
        args += (len(fields), message.window_ms, *fields)
    return args


def _checked(what: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{what} must be a non-empty string, not {value!r}")
    if len(value) > _MAX_KEY:
        raise ConfigurationError(f"{what} has {len(value)} characters, more than the limit of {_MAX_KEY}")
    if not is_utf8(value):
        raise ConfigurationError(f"{what} must not contain lone surrogates, which UTF-8 cannot encode: {value[:40]!r}")
    return value
