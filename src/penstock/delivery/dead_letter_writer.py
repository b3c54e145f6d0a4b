"""Writes dead letters: the complete record first, the user's hook afterwards."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from penstock import dead_letter_record, envelope
from penstock.delivery.group_commands import GroupCommands
from penstock.delivery.tally import Tally
from penstock.errors import NOT_OF_ONE_MESSAGE, text_of
from penstock.events import EventName
from penstock.model import StreamMessage
from penstock.policy import Reason
from penstock.runtime.aio import comes_from_outside

logger = logging.getLogger("penstock.streams")
_FIRST_DELAY_MS, _LONGEST_DELAY_MS = 1_000, 60_000
_MOST_UNBURIED = 10_000

Emit = Callable[..., None]
Answer = TypeVar("Answer")


def dedup_key_of(fields: list[bytes]) -> str | None:
    """Return the key under which the entry was published, if it has one."""
    raw = envelope.as_mapping(fields).get(envelope.DEDUP_KEY)
    return envelope.text(raw) or None


class DeadLetterBackoff:
    """Entries that the dead letters do not take: they stay pending, and are tried again after a delay that grows."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._tries: dict[str, int] = {}

    def note(self, source: str, entry_id: str) -> int:
        """Log the refusal that is being handled, the first time with its traceback; return the delay in ms."""
        if len(self._tries) >= _MOST_UNBURIED:
            self._tries.clear()  # others may have settled them since
        tries = self._tries[entry_id] = self._tries.get(entry_id, 0) + 1
        delay_ms = min(_FIRST_DELAY_MS << min(tries - 1, 10), _LONGEST_DELAY_MS)
        self._logger.log(
            logging.ERROR if tries == 1 else logging.WARNING,
            "%s: entry %s cannot be dead-lettered; it stays pending and is tried again in %.1f s",
            source, entry_id, delay_ms / 1000, exc_info=tries == 1,
        )  # fmt: skip
        return delay_ms

    def forget(self, entry_id: str) -> None:
        """Take note that the entry is settled."""
        if self._tries:
            self._tries.pop(entry_id, None)


async def reduced_if_refused(
    write: Callable[[list[bytes], Reason, BaseException | None], Awaitable[Answer]],
    fields: list[bytes], reason: Reason, error: BaseException | None,
) -> Answer:  # fmt: skip
    """Write a dead letter; one that the server refuses for an error of its own, without the fields of others."""
    try:
        return await write(fields, reason, error)
    except NOT_OF_ONE_MESSAGE:
        raise
    except Exception as refusal:
        refusal.__cause__ = error
        return await write(dead_letter_record.own_fields(fields), Reason.REFUSED, refusal)


async def write_dead_letter(
    commands: GroupCommands, entry_id: str, fields: list[bytes], reason: Reason, error: BaseException | None,
    attempts: int, deliveries: int, *, is_deleted: bool = False,
) -> Reason | None:  # fmt: skip
    """Move an entry to the dead letters; return the reason that was written down, None = it was not ours any more."""

    async def write(kept: list[bytes], reason: Reason, error: BaseException | None) -> Reason | None:
        record = dead_letter_record.record(
            kept, commands.keys.stream, entry_id, commands.group, commands.consumer, reason, error, attempts, deliveries
        )
        return (
            reason
            if await commands.dead_letter(entry_id, record, dedup_key_of(fields), is_deleted=is_deleted)
            else None
        )

    written = await reduced_if_refused(write, fields, reason, error)
    if written is not None:
        logger.log(
            logging.WARNING if reason is Reason.EXPIRED else logging.ERROR,
            "%s/%s: message %s was dead-lettered (%s) in attempt %d%s",
            commands.keys.stream, commands.group, entry_id, written.value, attempts,
            "" if error is None else f": {text_of(error, repr)}", exc_info=error,
            extra={
                "stream": commands.keys.stream, "group": commands.group, "id": entry_id, "attempt": attempts,
                "reason": written.value,
            },
        )  # fmt: skip
    return written


class DeadLetterWriter:
    """Moves messages of one consumer to the dead letters."""

    def __init__(self, commands: GroupCommands, tally: Tally, emit: Emit, hook: Callable[..., Any] | None) -> None:
        self._commands, self._tally, self._emit, self._hook = commands, tally, emit, hook

    async def dead_letter(
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
            fields = await self._commands.fetch(message.id)
        if fields is None:
            # Trimmed or deleted while a handler held it: the record tells that, for there is no payload to keep.
            fields, reason = [], Reason.MISSING
        written = await write_dead_letter(
            self._commands, message.id, fields, reason, error, message.attempts, message.delivery_count
        )
        if written is None:
            return False
        self._tally.count(dead=1)
        self._emit(EventName.DEAD_LETTERED, id=message.id, reason=written.value, error=_shown(error))
        await self._tell(message, written)
        trimmed = await self._commands.limit_dead_letters()
        if trimmed:
            self._emit(EventName.DEAD_LETTERS_TRIMMED, count=trimmed)
        return True

    async def _tell(self, message: StreamMessage, reason: Reason) -> None:
        if self._hook is None:
            return
        try:
            await self._hook(message, reason.value)
        except BaseException as failure:
            if comes_from_outside(failure):
                raise
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
