"""Pending messages: who holds what, since when; claimed, made due again, or given up by an operator."""

from __future__ import annotations

from collections.abc import Sequence

from penstock import dead_letter_record
from penstock.delivery.group import PendingRow, described
from penstock.delivery.group_commands import MAX_IDS, GroupCommands
from penstock.errors import ConfigurationError
from penstock.ids import after
from penstock.keys import check_name
from penstock.number_checks import check_number
from penstock.ops.catalogue import Catalogue, checked_id
from penstock.ops.model import Page, Pending
from penstock.policy import Reason
from penstock.redis.aio import Reply
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat

_STEP = 500  # entries of one command: a filter by the server would look at all of them at once
_MAX_STEPS = 20


class PendingMessages:
    """What was handed out and is not settled."""

    def __init__(self, client: StreamClient, catalogue: Catalogue) -> None:
        self._client, self._catalogue = client, catalogue

    async def page(
        self,
        stream: str,
        group: str,
        *,
        consumer: str | None = None,
        min_idle_ms: int = 0,
        is_waiting: bool | None = None,
        limit: int = 100,
        cursor: str = "",
    ) -> Page[Pending]:
        """Return pending messages, oldest first; `is_waiting` selects those that wait for a retry, or do not."""
        check_number("limit", limit)
        start, found = after(cursor) if cursor else "-", list[Pending]()
        for _ in range(_MAX_STEPS):
            rows = await self._rows(stream, group, start, min(_STEP, limit), consumer)
            old_enough = [row for row in rows if int(row[2]) >= min_idle_ms]
            for entry in await self._described(stream, group, old_enough):
                if is_waiting is None or is_waiting == (entry.due_in_ms is not None):
                    found.append(entry)
                    if len(found) == limit:
                        is_last = entry.id.encode() == rows[-1][0] and len(rows) < min(_STEP, limit)
                        return Page(tuple(found), "" if is_last else entry.id)
            if len(rows) < min(_STEP, limit):
                return Page(tuple(found))
            start = f"({rows[-1][0].decode()}"
        return Page(tuple(found), start[1:])

    async def _rows(self, stream: str, group: str, start: str, count: int, consumer: str | None) -> list[PendingRow]:
        key = self._catalogue.keys(stream).stream
        of = (check_name("consumer", consumer),) if consumer is not None else ()
        async with self._catalogue.group_must_exist(stream, group):
            rows: list[PendingRow] = await self._client.call(key, "XPENDING", key, group, start, "+", count, *of)
        return rows

    async def _described(self, stream: str, group: str, rows: Sequence[PendingRow]) -> list[Pending]:
        return [
            Pending(stream, group, it.id, it.consumer, it.idle_ms, it.deliveries, it.attempts, it.due_in_ms)
            for it in await described(self._client, self._catalogue.keys(stream), group, rows)
        ]

    # --- changes ------------------------------------------------------------------------------------

    async def claim(
        self, stream: str, group: str, ids: Sequence[str], consumer: str, *, min_idle_ms: int = 0
    ) -> list[str]:
        """Hand messages that have been idle for `min_idle_ms` to a consumer; return their ids.

        The consumer finds them when its lease on them runs out. retry() hands them out at once. A message whose entry
        is gone stays where it is: it becomes a dead letter when it is recovered.
        """
        check_name("consumer", consumer)
        key, left, claimed = self._catalogue.keys(stream).stream, list(map(checked_id, ids)), list[str]()
        while left:
            args: list[str | int] = [group, consumer, min_idle_ms, *left[:MAX_IDS]]
            async with self._catalogue.group_must_exist(stream, group):
                reply: Reply = await self._client.run("ops/claim", [key], args, Repeat.IDEMPOTENT)
            claimed += [entry_id.decode() for entry_id in reply[0]]
            left = left[int(reply[1]) :]
        return claimed

    async def retry(self, stream: str, group: str, ids: Sequence[str], *, min_idle_ms: int = 0) -> list[str]:
        """Make messages due at once, for whichever consumer comes next; return the ids of those that are.

        A consumer that still works on one loses it, and its acknowledgement is refused: choose `min_idle_ms` above the
        lease to leave alone what is being worked on.
        """
        keys, due = self._catalogue.keys(stream), list[str]()
        for start in range(0, len(ids), MAX_IDS):
            args: list[str | int] = [group, min_idle_ms, *map(checked_id, ids[start : start + MAX_IDS])]
            names = [keys.stream, keys.retries(group)]
            async with self._catalogue.group_must_exist(stream, group):
                reply: Reply = await self._client.run("ops/retry", names, args, Repeat.IDEMPOTENT)
            due += [entry_id.decode() for entry_id in reply]
        return due

    async def dead_letter(
        self, stream: str, group: str, ids: Sequence[str], *, dead_letters: str, note: str = "by an operator"
    ) -> list[str]:
        """Move pending messages of a stream or a message queue to its dead letters; return the ids of those that went.

        Each moves in one step, and the acknowledgement of a consumer that still works on it is refused.
        """
        keys, target = self._catalogue.keys(stream), self._catalogue.keys(dead_letters).stream
        if target == keys.stream:
            raise ConfigurationError(f"dead_letters={dead_letters!r} is the stream itself: name another stream")
        gone: list[str] = []
        for entry_id in map(checked_id, ids):
            async with self._catalogue.group_must_exist(stream, group):
                rows = await self._client.call(keys.stream, "XPENDING", keys.stream, group, entry_id, entry_id, 1)
            if not rows:
                continue
            [entry] = await self._described(stream, group, rows)
            found = await self._client.call(keys.stream, "XRANGE", keys.stream, entry_id, entry_id)
            fields, reason = (found[0][1], Reason.OPERATOR) if found else ([], Reason.MISSING)
            record = dead_letter_record.record(
                fields, keys.stream, entry_id, group, entry.consumer, reason, None, entry.attempts or 0,
                entry.deliveries, error_text=note,
            )  # fmt: skip
            commands = GroupCommands(self._client, keys, group, entry.consumer, target)
            if await commands.dead_letter(entry_id, record, fields):
                gone.append(entry_id)
        return gone
