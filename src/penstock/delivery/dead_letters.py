"""Writes, reads, redrives and deletes dead letters."""

from __future__ import annotations

import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeAlias, TypeVar

from penstock import dead_letter_record, envelope
from penstock import ids as stream_ids
from penstock.dead_letter_record import Record
from penstock.delivery.decoding import Rejected
from penstock.delivery.janitor import trim_all
from penstock.errors import NOT_OF_ONE_MESSAGE, OutOfMemory, text_of
from penstock.events import Emit, EventName
from penstock.keys import check_dead_letters
from penstock.model import DeadLetter, StreamMessage
from penstock.number_checks import check_number
from penstock.policy import DelaysById, Reason
from penstock.redis.client import StreamClient, check_client
from penstock.redis.reading import newest_id, pages
from penstock.redis.retry import OPERATION_TTL_S, Repeat
from penstock.runtime.aio import comes_from_outside
from penstock.type_checks import check_list

Ids: TypeAlias = list[str]  # the class has a method of that name
Hook: TypeAlias = Callable[[StreamMessage, str], Awaitable[object]]
# Writes a record and settles its entry, whose fields it also gets, in one step; False = no longer ours.
Settle: TypeAlias = Callable[[Record, Sequence[bytes]], Awaitable[bool]]
Letter = TypeVar("Letter", bound="Redrivable")
_PAGE = 500  # ids that one command deletes


# --- writing --------------------------------------------------------------------------------------


class DeadLetterBackoff:
    """Entries that could not be dead-lettered: they stay pending, and are retried after a growing delay."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger, self._delays = logger, DelaysById()
        self.forget = self._delays.forget

    def delay_ms(self, error: Exception, source: str, entry_id: str) -> int:
        """Log the error, the first time with its traceback; return the delay in ms after which to retry the entry.

        Raises an error that concerns all entries, except that of a full server: it has no room for the record, and goes
        on with everything that needs none.
        """
        if isinstance(error, NOT_OF_ONE_MESSAGE) and not isinstance(error, OutOfMemory):
            raise error
        delay_ms, is_first = self._delays.next_ms(entry_id)
        self._logger.log(
            logging.ERROR if is_first else logging.WARNING,
            "%s: cannot dead-letter entry %s; it stays pending, retrying in %.1f s",
            source, entry_id, delay_ms / 1000, exc_info=error if is_first else None,
        )  # fmt: skip
        return delay_ms


def log_dead_letter(
    logger: logging.Logger, source: str, group: str, entry: Rejected, reason: Reason, what: str
) -> None:
    """Log that an entry was dead-lettered; `what` names it."""
    error = "" if entry.error is None else text_of(entry.error, repr)
    logger.log(
        logging.WARNING if reason is Reason.EXPIRED else logging.ERROR,
        "%s%s: %s was dead-lettered (%s) in attempt %d%s",
        source, group and f"/{group}", what, reason.value, entry.attempts, error and f": {error}",
        exc_info=entry.error,
        extra={"stream": source, "group": group, "id": entry.id, "attempt": entry.attempts, "reason": reason.value},
    )  # fmt: skip


class DeadLetterMover:
    """Moves entries of one stream to its dead letters, then calls the user's hook.

    Callers differ only in `settle`, the script that writes the record.
    """

    def __init__(
        self, client: StreamClient, source: str, group: str, dead_letters: str, logger: logging.Logger,
        emit: Emit = lambda *_, **__: None, hook: Hook | None = None,
    ) -> None:  # fmt: skip
        self._client, self._source, self._group, self._key = client, source, group, dead_letters
        self._logger, self._emit, self._hook = logger, emit, hook
        self._backoff = DeadLetterBackoff(logger)

    async def write(
        self, entry: Rejected, consumer: str, settle: Settle, message: StreamMessage | None = None
    ) -> Reason | None:
        """Move an entry to the dead letters in one step; return the recorded reason, None = it is no longer ours.

        Guarantees: if the record cannot be written, the entry stays where it is and the error is raised. If the server
        rejects a record because of its entry, it is written again without fields that Penstock does not know.
        """
        fields, reason = entry.fields, entry.reason
        if fields is None:
            rows = await self._client.call(self._source, "XRANGE", self._source, entry.id, entry.id)
            # Trimmed or deleted while a handler held it: there is no payload to record.
            fields, reason = (rows[0][1], reason) if rows else ([], Reason.MISSING)
        try:
            is_ours = await settle(self._record(entry, consumer, fields, reason, entry.error), fields)
        except NOT_OF_ONE_MESSAGE:
            raise
        except Exception as refusal:
            refusal.__cause__, reason = entry.error, Reason.REFUSED
            kept = dead_letter_record.own_fields(fields)
            is_ours = await settle(self._record(entry, consumer, kept, reason, refusal), fields)
        self._backoff.forget(entry.id)
        if not is_ours:
            return None
        await self._report(entry, reason, message)
        trimmed = await self._client.dead_letter_retention.after(self._key)
        if trimmed:
            self._emit(EventName.DEAD_LETTERS_TRIMMED, count=trimmed)
        return reason

    def refused(self, error: Exception, entry_id: str) -> int:
        """Return the delay in ms after which to retry an entry; raise an error that concerns all entries."""
        return self._backoff.delay_ms(error, self._source, entry_id)

    def _record(
        self, entry: Rejected, consumer: str, fields: Sequence[bytes], reason: Reason, error: BaseException | None
    ) -> Record:
        return dead_letter_record.record(
            fields, self._source, entry.id, self._group, consumer, reason, error, entry.attempts, entry.deliveries
        )

    async def _report(self, entry: Rejected, reason: Reason, message: StreamMessage | None) -> None:
        error = "" if entry.error is None else text_of(entry.error, repr)
        log_dead_letter(self._logger, self._source, self._group, entry, reason, f"message {entry.id}")
        self._emit(EventName.DEAD_LETTERED, id=entry.id, reason=reason.value, error=error)
        if self._hook is None or message is None:
            return
        try:
            await self._hook(message, reason.value)
        except BaseException as failure:
            if comes_from_outside(failure):
                raise
            self._logger.exception(
                "dlq_handler failed for message %s (%s); the dead letter is stored", entry.id, reason.value
            )


# --- reading, putting back, deleting --------------------------------------------------------------


class Redrivable(Protocol):
    """The fields that all dead letters have."""

    @property
    def reason(self) -> str:
        """Why it was dead-lettered."""

    @property
    def redrives(self) -> int:
        """How often it was redriven."""


class DeadLetterStream(ABC, Generic[Letter]):
    """One stream of dead letters, whose records are read by `parse`."""

    def __init__(self, client: StreamClient, key: str, parse: Callable[[str, Sequence[bytes]], Letter]) -> None:
        self._client, self._key, self._parse = client, key, parse

    async def count(self) -> int:
        """Return how many there are."""
        return int(await self._client.call(self._key, "XLEN", self._key))

    async def record(self, record_id: str) -> Letter | None:
        """Return the record of that id."""
        if not stream_ids.is_id(record_id):
            return None
        rows = await self._client.call(self._key, "XRANGE", self._key, record_id, record_id, "COUNT", 1)
        return self._parse(record_id, rows[0][1]) if rows and rows[0][0].decode() == record_id else None

    async def iterate(self, start: str = "-", end: str = "+") -> AsyncIterator[Letter]:
        """Yield the records from one id to another, oldest first."""
        async for rows in pages(self._client, self._key, start, end):
            for entry_id, fields in rows:
                yield self._parse(entry_id.decode(), fields)

    async def _of_ids(self, wanted: Sequence[str]) -> AsyncIterator[Letter]:
        for record_id in sorted({name for name in wanted if stream_ids.is_id(name)}, key=stream_ids.parse):
            letter = await self.record(record_id)
            if letter is not None:
                yield letter

    async def redrive(
        self,
        ids: Sequence[str] | None = None,
        *,
        reason: str | None = None,
        limit: int | None = None,
        max_redrives: int = 3,
    ) -> Ids:
        """Put dead letters back, all or the given ones; return the ids of the new entries, or of the tasks.

        Guarantees: each record moves in one step, and records in `origin` where it was first published. One that has
        already been redriven `max_redrives` times stays where it is.
        """
        check_number("max_redrives", max_redrives)
        if ids is not None:
            check_list("ids", ids, "write ['17-0'] for a single one")
        added: Ids = []
        operation = secrets.token_hex(8)
        # Skip records that are added meanwhile, else a message that fails again would be redriven again.
        letters = self.iterate(end=await newest_id(self._client, self._key)) if ids is None else self._of_ids(ids)
        async for letter in letters:
            if limit is not None and len(added) >= limit:
                break
            if (reason is None or letter.reason == reason) and letter.redrives < max_redrives:
                new_id = await self._put_back(letter, operation)
                if new_id is not None:
                    added.append(new_id)
        return added

    async def redrive_as(self, letter: Letter) -> str | None:
        """Put a record back with changed fields; return the id of the new entry or task, or None if it stays."""
        return await self._put_back(letter, secrets.token_hex(8))

    @abstractmethod
    async def _put_back(self, letter: Letter, operation: str) -> str | None:
        """Put a record back; return the id of the new entry or task, or None if it stays."""

    async def purge(self, ids: Sequence[str] | None = None) -> int:
        """Delete dead letters for good, all or the given ones; return how many."""
        if ids is None:
            return await trim_all(self._client, self._key)
        check_list("ids", ids, "write ['17-0'] for a single one")
        gone, wanted = 0, [*ids]
        for start in range(0, len(wanted), _PAGE):
            command = ("XDEL", self._key, *wanted[start : start + _PAGE])
            gone += int(await self._client.call(self._key, *command, repeat=Repeat.IDEMPOTENT))
        return gone


class DeadLetters(DeadLetterStream[DeadLetter]):
    """The dead letters of one stream."""

    def __init__(self, client: StreamClient, stream: str, dlq_stream: str | None = None) -> None:
        check_client(client)
        self._keys, self.stream = client.keys(stream), stream
        key = client.keys(dlq_stream).stream if dlq_stream else self._keys.default_dead_letters()
        check_dead_letters(self._keys.stream, key, "dlq_stream", is_cluster=client.is_cluster)
        super().__init__(client, key, dead_letter_record.parse)

    async def list(self, count: int = 100, start: str = "-", reason: str | None = None) -> list[DeadLetter]:
        """Return the oldest records, starting at an id; with `reason`, only those with that reason."""
        found: list[DeadLetter] = []
        async for letter in self.iterate(start):
            if len(found) >= count:
                break
            if reason is None or letter.reason == reason:
                found.append(letter)
        return found

    async def _put_back(self, letter: DeadLetter, operation: str) -> str | None:
        if letter.data is None:
            return None
        origin = f"{letter.source_stream}/{letter.source_id}"
        # Without the expiry, so that an expired message is handled.
        fields = dead_letter_record.redriven(letter.fields, letter.redrives, origin, without={envelope.EXPIRES_AT})
        keys = [self._key, self._keys.stream, self._keys.operation(operation)]
        args = [letter.id, OPERATION_TTL_S, *fields]
        reply = await self._client.run("streams/redrive", keys, args, Repeat.IDEMPOTENT)
        return reply.decode() if reply else None
