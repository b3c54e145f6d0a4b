"""DeadLetters: what could not be handled, and the way back."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from typing import TypeAlias

from penstock import dead_letter_record, envelope
from penstock.errors import ConfigurationError
from penstock.keys import check_dead_letters
from penstock.model import DeadLetter
from penstock.redis.client import StreamClient
from penstock.redis.retry import OPERATION_TTL_S, Repeat

_PAGE = 500
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

    async def _iterate(self, start: str = "-") -> AsyncIterator[DeadLetter]:
        while True:
            rows = await self._client.call(self._key, "XRANGE", self._key, start, "+", "COUNT", _PAGE)
            for entry_id, fields in rows:
                yield dead_letter_record.parse(entry_id.decode(), fields)
            if len(rows) < _PAGE:
                return
            start = "(" + rows[-1][0].decode()

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
        wanted = set(ids) if ids is not None else None
        chosen: list[DeadLetter] = []
        async for letter in self._iterate():
            is_wanted = wanted is None or letter.id in wanted
            if is_wanted and (reason is None or letter.reason == reason) and letter.data is not None:
                chosen.append(letter)
        added: Ids = []
        operation = self._keys.operation(secrets.token_hex(8))
        for letter in chosen:
            if limit is not None and len(added) >= limit:
                break
            if letter.redrives < max_redrives:
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
        reply = await self._client.run("redrive", keys, args, Repeat.IDEMPOTENT)
        return reply.decode() if reply else None

    async def purge(self, ids: Sequence[str] | None = None) -> int:
        """Delete dead letters for good, all or the given ones; return how many."""
        if ids is None:
            return int(await self._client.call(self._key, "XTRIM", self._key, "MAXLEN", 0, repeat=Repeat.IDEMPOTENT))
        if not ids:
            return 0
        return int(await self._client.call(self._key, "XDEL", self._key, *ids, repeat=Repeat.IDEMPOTENT))
