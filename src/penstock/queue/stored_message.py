"""A message as redis-message-queue stores it: an envelope with an id and the payload, or the bare payload."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from penstock import envelope
from penstock.queue.payload import TEXT_TYPE

_MARK = b"\x1eRMQ1:"


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """What a value of one of its lists holds."""

    payload: bytes
    message_id: str | None

    @classmethod
    def of(cls, stored: bytes) -> StoredMessage:
        """Read a value; what is no envelope is a payload."""
        if stored.startswith(_MARK):
            try:
                found = json.loads(stored[len(_MARK) :])
                payload, message_id = found["payload"], found["id"]
            except (ValueError, TypeError, KeyError, RecursionError):
                return cls(stored, None)
            if isinstance(payload, str) and isinstance(message_id, str):
                return cls(payload.encode(errors="surrogatepass"), message_id)
        return cls(stored, None)

    @property
    def default_key(self) -> str:
        """The deduplication key that both libraries give the message unless they are told another one."""
        return hashlib.sha256(self.payload).hexdigest()

    def fields(self) -> list[bytes | str]:
        """Return the fields of its entry in a stream."""
        fields: list[bytes | str] = [envelope.DATA, self.payload]
        if self.message_id:
            fields += [envelope.MESSAGE_ID, self.message_id.encode(errors="replace")]
        if _is_text(self.payload):
            fields += [envelope.CONTENT_TYPE, TEXT_TYPE]
        return fields


def _is_text(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
