"""Decodes entries into messages, or rejects them with a reason."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock import envelope
from penstock.delivery.group_commands import Redelivery
from penstock.errors import DecodeError
from penstock.model import StreamMessage
from penstock.policy import Reason, unreadable
from penstock.protection import Protection, payload_of
from penstock.serializers import Serializer, checked_serializer, fast_decoder

_MAX_NAMES, _LONGEST = 20, 100  # that an error shows


@dataclass(frozen=True, slots=True)
class Rejected:
    """An entry that no handler gets, or gets again; `fields` is None if they are to be read from the stream."""

    id: str
    reason: Reason
    error: BaseException | None
    deliveries: int
    attempts: int
    fields: Sequence[bytes] | None = None

    def as_message(self, stream: str) -> StreamMessage:
        """Return a message whose data is the raw payload."""
        by_name = envelope.as_mapping(self.fields or ())
        data = by_name.get(envelope.DATA, b"")
        return StreamMessage(self.id, data, self.deliveries, self.attempts, stream=stream, fields=by_name)


@dataclass(slots=True)
class DecodedMessages:
    """Decoded messages, and those that are to be dead-lettered instead."""

    messages: list[StreamMessage] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)


class Decoder:
    """Turns entries into messages."""

    def __init__(self, stream: str, serializer: Serializer | None, key: str, protection: Protection | None) -> None:
        self.stream, self._key, self._protection = stream, key, protection
        self._serializer = checked_serializer(serializer)
        self._quick_decode, self._harmless_bytes = fast_decoder(self._serializer)
        self._content_type = getattr(self._serializer, "content_type", None)

    def fresh(self, rows: Sequence[tuple[bytes, list[bytes]]]) -> DecodedMessages:
        """Decode entries that were delivered for the first time."""
        # The hot path: an entry with `data` and at most a message id is decoded without building a mapping.
        found = DecodedMessages()
        if self._protection is not None:
            for entry_id, fields in rows:
                self._decode(found, entry_id.decode(), fields, 1, 1)
            return found
        quick, harmless, decode = self._quick_decode, self._harmless_bytes, self._serializer.decode
        stream, no_headers, add = self.stream, envelope.NO_HEADERS, found.messages.append
        for entry_id, fields in rows:
            size = len(fields)
            if size == 4 and fields[2] == b"message_id" and fields[0] == b"data":
                message_id: str | None = fields[3].decode("utf-8", "replace")
            elif size == 2 and fields[0] == b"data":
                message_id = None
            else:
                self._decode(found, entry_id.decode(), fields, 1, 1)
                continue
            raw = fields[1]
            is_harmless = len(raw) <= harmless
            try:
                data = quick(raw) if is_harmless else decode(raw)
            except Exception as error:
                if is_harmless:
                    self._decode(found, entry_id.decode(), fields, 1, 1)
                else:
                    found.rejected.append(Rejected(entry_id.decode(), Reason.DECODE_ERROR, error, 1, 1, fields))
                continue
            add(StreamMessage(entry_id.decode(), data, 1, 1, None, no_headers, message_id, stream))
        return found

    def again(self, claims: Sequence[Redelivery]) -> DecodedMessages:
        """Decode entries that are delivered again; their counts do not include the coming run."""
        found = DecodedMessages()
        for claim in claims:
            self._decode(found, claim.id, claim.fields, claim.deliveries, claim.attempts)
        return found

    def _decode(
        self, found: DecodedMessages, entry_id: str, fields: list[bytes], deliveries: int, attempts: int
    ) -> None:
        by_name = envelope.as_mapping(fields)
        try:
            if envelope.is_expired(by_name, time.time()):
                found.rejected.append(Rejected(entry_id, Reason.EXPIRED, None, deliveries, attempts, fields))
                return
            raw = payload_of(by_name, self._key, self._protection)
            if raw is None:
                raise DecodeError(f"the entry has no field 'data'; its fields are {_shown(by_name)}")
            self._check_content_type(by_name.get(envelope.CONTENT_TYPE))
            message = StreamMessage(
                id=entry_id,
                data=self._serializer.decode(raw),
                delivery_count=deliveries,
                attempts=attempts,
                key=_text(by_name.get(envelope.KEY)),
                headers=envelope.decode_headers(by_name.get(envelope.HEADERS)),
                message_id=_text(by_name.get(envelope.MESSAGE_ID)),
                stream=self.stream,
                fields=by_name,
            )
        except Exception as error:
            found.rejected.append(Rejected(entry_id, unreadable(error), error, deliveries, attempts, fields))
            return
        found.messages.append(message)

    def _check_content_type(self, raw: bytes | None) -> None:
        said = _text(raw)
        if said is not None and self._content_type is not None and said != self._content_type:
            raise DecodeError(
                f"the entry has content type {said[:_LONGEST]!r}, but this consumer decodes "
                f"{self._content_type!r}: use the same serializer in producer and consumer"
            )


def _shown(by_name: Mapping[str, bytes]) -> str:
    names = [name[:_LONGEST] for name in sorted(by_name)[:_MAX_NAMES]]
    return ", ".join(names + ["..."] * (len(by_name) > _MAX_NAMES)) or "nothing"


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else envelope.text(raw)
