"""DeadLetters: what could not be handled, and the way back."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from typing import TypeAlias

from penstock import dead_letter_record, envelope
from penstock import ids as stream_ids
from penstock.errors import ConfigurationError
from penstock.keys import check_dead_letters
from penstock.model import DeadLetter
from penstock.redis.client import StreamClient
from penstock.redis.reading import pages
from penstock.redis.retry import OPERATION_TTL_S, Repeat

Ids: TypeAlias = list[str]  # the class has a method of that name


class DeadLetters:
    """The dead letters of one stream."""

    def __init__(self, client: StreamClient, stream: str, dlq_stream: str | None = None) -> None:
        self._client, self.stream = client, stream
        keys = client.keys(stream)
        self._keys, self._stream = keys, keys.stream
        self._key = client.keys(dlq_stream).stream if dlq_stream else keys.default_dead_letters()
        check_dead_letters(self._stream, self._key, "dlq_stream", is_cluster=client.is_cluster)

    async def count(self) -> int:
        """Return how many there are."""
        return int(await self._client.call(self._key, "XLEN", self._key))

    async def list(self, count: int = 100, start: str = "-", reason: str | None = None) -> list[DeadLetter]:
        """Return the oldest records from an id on, those with the reason if one is given."""
        found: list[DeadLetter] = []
        async for letter in self._iterate(start):
            if len(found) >= count:
                break
            if reason is None or letter.reason == reason:
                found.append(letter)
        return found

    async def _iterate(self, start: str = "-", end: str = "+") -> AsyncIterator[DeadLetter]:
        async for rows in pages(self._client, self._key, start, end):
            for entry_id, fields in rows:
                yield dead_letter_record.parse(entry_id.decode(), fields)

    async def _newest(self) -> str:
        rows = await self._client.call(self._key, "XREVRANGE", self._key, "+", "-", "COUNT", 1)
        return rows[0][0].decode() if rows else stream_ids.ZERO

    async def _of_ids(self, wanted: Sequence[str]) -> AsyncIterator[DeadLetter]:
        for record_id in sorted({name for name in wanted if stream_ids.is_id(name)}, key=stream_ids.parse):
            rows = await self._client.call(self._key, "XRANGE", self._key, record_id, record_id, "COUNT", 1)
            if rows and rows[0][0].decode() == record_id:
                yield dead_letter_record.parse(record_id, rows[0][1])

    async def redrive(
        self,
        ids: Sequence[str] | None = None,
        *,
        reason: str | None = None,
        limit: int | None = None,
        max_redrives: int = 3,
    ) -> Ids:
        """Put dead letters back into their stream, all or the given ones; return the ids of the new entries.

        Guarantees: each record moves in one step, and keeps in `origin` where it was first published. A message that
        was redriven `max_redrives` times already stays where it is: it would only come back.
        """
        if max_redrives <= 0:
            raise ConfigurationError(f"max_redrives={max_redrives} must be positive")
        added: Ids = []
        operation = self._keys.operation(secrets.token_hex(8))
        # Those that come meanwhile are left: what was put back and died again would be put back once more.
        letters = self._iterate(end=await self._newest()) if ids is None else self._of_ids(ids)
        async for letter in letters:
            if limit is not None and len(added) >= limit:
                break
            is_chosen = (reason is None or letter.reason == reason) and letter.data is not None
            if is_chosen and letter.redrives < max_redrives:
                new_id = await self._put_back(letter, operation)
                if new_id is not None:
                    added.append(new_id)
        return added

    async def _put_back(self, letter: DeadLetter, operation: str) -> str | None:
        origin = f"{letter.source_stream}/{letter.source_id}"
        # Without the expiry: whoever redrives an expired message wants it handled.
        fields = dead_letter_record.redriven(letter.fields, letter.redrives, origin, without={envelope.EXPIRES_AT})
        keys = [self._key, self._stream, operation]
        args = [letter.id, OPERATION_TTL_S, *fields]
        reply = await self._client.run("streams/redrive", keys, args, Repeat.IDEMPOTENT)
        return reply.decode() if reply else None

    async def purge(self, ids: Sequence[str] | None = None) -> int:
        """Delete dead letters for good, all or the given ones; return how many."""
        if ids is None:
            return int(await self._client.call(self._key, "XTRIM", self._key, "MAXLEN", 0, repeat=Repeat.IDEMPOTENT))
        if not ids:
            return 0
        return int(await self._client.call(self._key, "XDEL", self._key, *ids, repeat=Repeat.IDEMPOTENT))
