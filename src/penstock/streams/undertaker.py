"""Writes dead letters: the complete record first, the user's hook afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from penstock import dead_letter_record, envelope
from penstock.errors import text_of
from penstock.events import EventName
from penstock.model import StreamMessage
from penstock.policy import Reason
from penstock.streams.ledger import Ledger
from penstock.streams.tally import Tally

logger = logging.getLogger("penstock.streams")

Emit = Callable[..., None]


def dedup_key_of(fields: list[bytes]) -> str | None:
    """Return the key under which the entry was published, if it has one."""
    raw = envelope.as_mapping(fields).get(envelope.DEDUP_KEY)
    return envelope.text(raw) or None


class Undertaker:
    """Moves messages of one consumer to the dead letters."""

    def __init__(self, ledger: Ledger, tally: Tally, emit: Emit, hook: Callable[..., Any] | None) -> None:
        self._ledger, self._tally, self._emit, self._hook = ledger, tally, emit, hook

    async def bury(
        self,
        message: StreamMessage,
        reason: Reason,
        error: BaseException | None,
        fields: list[bytes] | None = None,
    ) -> bool:
        """Move a message to the dead letters in one step, then call the hook; False = it was not ours any more.

        Guarantees: when the record cannot be written, the message stays pending and the error is raised.
        """
        if fields is None:
            fields = await self._ledger.fetch(message.id)
        if fields is None:
            # Trimmed or deleted while a handler held it: the record tells that, for there is no payload to keep.
            fields, reason = [], Reason.MISSING
        ledger = self._ledger
        record = dead_letter_record.record(
            fields, ledger.keys.stream, message.id, ledger.group, ledger.consumer, reason, error,
            message.attempts, message.delivery_count,
        )  # fmt: skip
        if not await ledger.bury(message.id, record, dedup_key_of(fields)):
            return False
        self._tally.count(dead=1)
        self._emit(EventName.DEAD_LETTERED, id=message.id, reason=reason.value, error=_shown(error))
        await self._tell(message, reason)
        return True

    async def _tell(self, message: StreamMessage, reason: Reason) -> None:
        if self._hook is None:
            return
        try:
            await self._hook(message, reason.value)
        except Exception:
            logger.exception("the dlq_handler failed for %s (%s); the dead letter is stored", message.id, reason.value)


def _shown(error: BaseException | None) -> str:
    return "" if error is None else text_of(error, repr)


def undecoded(entry_id: str, stream: str, fields: list[bytes], deliveries: int, attempts: int) -> StreamMessage:
    """Return an entry that could not be decoded as a message whose data are the raw bytes."""
    by_name = envelope.as_mapping(fields)
    return StreamMessage(
        id=entry_id,
        data=by_name.get(envelope.DATA, b""),
        delivery_count=deliveries,
        attempts=attempts,
        stream=stream,
        fields=by_name,
    )
