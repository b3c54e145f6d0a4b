"""The messages of a queue, texts or dicts in canonical JSON, and its statistics."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from penstock.errors import ConfigurationTypeError, DecodeError, EncodeError, text_of
from penstock.keys import is_utf8
from penstock.serializers import PayloadLimits

Message: TypeAlias = str | dict[str, object]
MessageData: TypeAlias = str | bytes  # a consumer gets str, or bytes if its client does not decode
GROUP = "queue"  # of the stream of every queue
TEXT_TYPE = "text/plain; charset=utf-8"
_MAX_KEY = 256  # characters; a longer key is replaced by its hash


class ClaimedMessage(msgspec.Struct, frozen=True):
    """A message that was delivered under a lease; settling or renewing it requires the token."""

    stored_message: MessageData
    lease_token: str
    message_id: str | None = None
    delivery_count: int = 1
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The number of messages of a queue in each state; None for a log that is disabled.

    `pending` were never handed out, `processing` are with a consumer, `retrying` wait for their next attempt.
    """

    pending: int
    processing: int
    retrying: int
    completed: int | None
    failed: int | None
    dead_letter: int | None


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import copied, or would copy in a dry run.

    Leases of `still_leased` messages have not expired; `without_lease` were taken by consumers that use none: neither
    are imported. Nor are dead letters and logs while there are any such messages, because consumers of the old queue
    still need their lists.
    """

    pending: int = 0
    processing: int = 0
    still_leased: int = 0
    without_lease: int = 0
    dead_letters: int = 0
    completed: int = 0
    failed: int = 0
    dedup_keys: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether everything was imported."""
        return not self.still_leased and not self.without_lease


# --- texts ------------------------------------------------------------------------------------------


def _encoder() -> Callable[[dict[str, object]], str]:
    # Sorted keys, so that equal dicts give the same text in every process and release.
    plain = json.JSONEncoder(sort_keys=True, allow_nan=False, check_circular=False)  # the depth is bounded anyway
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return plain.encode
    # encode() creates this encoder in each call, which takes longer than encoding a small dict.
    separators = plain.key_separator, plain.item_separator
    chunks = make(None, plain.default, json.encoder.encode_basestring_ascii, None, *separators, True, False, False)
    return lambda message: "".join(chunks(message, 0))


_dumps = _encoder()


def canonical(message: Message, limits: PayloadLimits | None = None) -> str:
    """Return the canonical text of a message; raise EncodeError if it cannot be encoded."""
    if isinstance(message, str):
        return message
    if not isinstance(message, dict):
        raise EncodeError(
            f"a message must be a str or a dict, not {type(message).__name__}: use json.dumps() for other values"
        )
    for name in message:
        if not isinstance(name, str):
            raise EncodeError(f"dict keys must be str: {name!r} has type {type(name).__name__}; use str({name!r})")
    try:
        text = _dumps(message)
        if limits is not None and len(text) > limits.max_payload_depth and limits.may_be_deep(text.encode()):
            limits.check_depth(json.loads(text), EncodeError)
    except EncodeError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise EncodeError(
            f"the dict cannot be encoded as JSON: {text_of(error)}; use only types that JSON supports"
        ) from error
    return text


def encode_text(text: str) -> bytes:
    """Return the bytes of a text."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise EncodeError(
            f"the message has a lone surrogate at position {error.start}, which UTF-8 cannot encode: use "
            "errors='replace'"
        ) from error


def decode_payload(raw: bytes | None, is_text: bool, limits: PayloadLimits | None = None) -> MessageData:
    """Return the payload of an entry, as str or bytes."""
    if raw is None:
        raise DecodeError("the entry has no field 'data'")
    if limits is not None:
        limits.check_size(len(raw), DecodeError)
    if not is_text:
        return raw
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(
            f"the payload is not UTF-8 at byte {error.start}; use a redis-py client with decode_responses=False "
            "to receive bytes"
        ) from error


def content_key(message: Message) -> str:
    """Return the SHA-256 of the message: the same for a dict and for its canonical JSON."""
    return hashlib.sha256(encode_text(canonical(message))).hexdigest()


def literal_key(message: Message) -> str:
    """Return the text of the message itself."""
    return canonical(message)


def checked_key(key: object) -> str:
    """Return a deduplication key as it is stored; raise ConfigurationTypeError if it is invalid."""
    if not isinstance(key, str):
        close = getattr(key, "close", None)
        if callable(close):
            close()  # a coroutine, which is never awaited
        raise ConfigurationTypeError(
            f"get_deduplication_key must return a str, not {type(key).__name__}: use a plain function that "
            "returns str(...)"
        )
    if not key:
        raise ConfigurationTypeError(
            "get_deduplication_key returned '', so all such messages would be duplicates of each other; return "
            "something that identifies the message"
        )
    if not is_utf8(key):
        raise ConfigurationTypeError(
            f"get_deduplication_key returned {key[:40]!r} with a lone surrogate, which UTF-8 cannot encode: "
            "return a string without one"
        )
    return shortened_key(key)


def shortened_key(key: str) -> str:
    """Return the key, or its hash where it is too long to be part of the name of a key in Redis."""
    return key if len(key) <= _MAX_KEY else f"sha256:{hashlib.sha256(encode_text(key)).hexdigest()}"
