"""Administration of a queue: statistics, samples, dead letters, purging."""

from __future__ import annotations

import secrets
from typing import Any

from penstock import envelope, ids
from penstock.delivery.dead_letters import DeadLetters
from penstock.delivery.janitor import count_after
from penstock.errors import ConfigurationError, DecodeError
from penstock.keys import QueueKeys
from penstock.protection import payload_of
from penstock.queue.model import GROUP, MessageData, QueueStats, decode_payload
from penstock.redis.aio import Reply
from penstock.redis.client import StreamClient
from penstock.redis.reading import ScriptCall, newest_id, pages
from penstock.redis.retry import OPERATION_TTL_S, Repeat

_SOURCES = ("pending", "processing", "retrying", "completed", "failed", "dead_letter")
_TARGETS = ("pending", "completed", "failed", "dead_letter")
_STEP = 500


class Administration:
    """One queue as an operator sees it."""

    def __init__(self, client: StreamClient, key: QueueKeys, dead_letters: str | None, is_text: bool) -> None:
        self._client, self._key, self._is_text = client, key, is_text
        self._keys = client.keys(key.pending)
        self._dead_letters = dead_letters or key.dead_letter
        names = {"completed": key.completed, "failed": key.failed, "dead_letter": self._dead_letters}
        self._logs = {source: client.keys(name).stream for source, name in names.items()}

    @property
    def stats_call(self) -> ScriptCall:
        """Keys and arguments of the script `queue/stats`, whose reply stats_of() reads."""
        return [self._keys.stream, self._keys.retries(GROUP), *self._logs.values()], [GROUP]

    async def stats(self) -> QueueStats:
        """Return the number of messages in each state, at one moment."""
        reply = await self._client.run("queue/stats", *self.stats_call, Repeat.READ)
        if reply[0] >= 0:
            return stats_of(reply)
        return stats_of(reply, (await count_after(self._client, self._keys.stream, reply[-1].decode())).most)

    async def peek(self, count: int, source: str) -> list[MessageData]:
        """Return the oldest messages in a state, or the newest records of a log."""
        if source not in _SOURCES:
            raise ConfigurationError(f"source={source!r} must be one of {', '.join(_SOURCES)}")
        rows = await (self._of_log(count, source) if source in self._logs else self._oldest(count, source))
        return [self._decoded(fields) for _, fields in rows]

    async def _of_log(self, count: int, source: str) -> list[Any]:
        newest_first = source != "dead_letter"
        ends = ("+", "-") if newest_first else ("-", "+")
        read = pages(self._client, self._logs[source], *ends, most=count, newest_first=newest_first)
        return [row async for page in read for row in page]

    async def _oldest(self, count: int, source: str) -> list[Any]:
        # Page by page: a script that searched for all of them at once would block the server.
        is_unread = source == "pending"
        name, start = ("queue/unread", "") if is_unread else ("queue/handed_out", "-")
        keys = [self._keys.stream] if is_unread else [self._keys.stream, self._keys.retries(GROUP)]
        rows: list[Any] = []
        while True:
            args: list[str | int] = [GROUP, count - len(rows), int(source == "retrying"), start]
            page, further = await self._client.run(name, keys, args, Repeat.READ)
            rows += page
            if not further or len(rows) >= count:
                return rows
            start = further.decode()

    def _decoded(self, fields: list[bytes]) -> MessageData:
        by_name = envelope.as_mapping(fields)
        try:
            return decode_payload(payload_of(by_name, self._keys.stream, self._client.protection) or b"", self._is_text)
        except DecodeError:
            return by_name.get(envelope.DATA, b"")  # shown undecoded: one message must not make peek() fail

    async def redrive(self, limit: int | None) -> list[str]:
        """Put dead letters back into the queue; return the ids of the new entries."""
        return await DeadLetters(self._client, self._key.pending, self._dead_letters).redrive(limit=limit)

    async def purge(self, target: str, until: str | None = None) -> int:
        """Delete all messages in a state for good; return how many.

        Pending messages that arrive meanwhile, or after the id `until`, are kept.
        """
        if target not in _TARGETS:
            what = "messages in processing cannot be purged; " if target == "processing" else ""
            raise ConfigurationError(f"target={target!r}: {what}use one of {', '.join(_TARGETS)}")
        if target != "pending":
            log = self._logs[target]
            keys = [log, self._keys.operation(secrets.token_hex(8))]
            args: list[str | int] = [OPERATION_TTL_S, "XTRIM", "MAXLEN", 0]
            return int(await self._client.run("queue/once", keys, args, Repeat.IDEMPOTENT))
        total, last = 0, until if until is not None else await newest_id(self._client, self._keys.stream)
        while (dropped := await drop_unread(self._client, self._key.pending, _STEP, until=last)) is not None:
            total += len(dropped)
        return total


def stats_of(reply: Reply, unread: int = 0) -> QueueStats:
    """Return the numbers that the script has counted; `unread` if it could not count that one."""
    counted, taken, waiting, completed, failed, dead, _ = reply
    return QueueStats(unread if counted < 0 else counted, taken - waiting, waiting, completed, failed, dead)


async def drop_unread(
    client: StreamClient, queue: str, count: int, at_least: int = 0, until: str = ids.LAST
) -> list[str] | None:
    """Drop the oldest messages that were never delivered, with their deduplication keys; None = there are none.

    Drops nothing newer than the id `until`, and nothing from a queue of fewer than `at_least` messages. An empty list
    means that another client has already made room: the caller should check again.
    """
    keys = client.keys(queue)
    oldest, _ = await client.run("queue/unread", [keys.stream], [GROUP, count, 1, ""], Repeat.READ)
    oldest = [row for row in oldest if ids.parse(row[0].decode()) <= ids.parse(until)]
    if not oldest:
        has_room = at_least and await client.call(keys.stream, "XLEN", keys.stream) < at_least
        return [] if has_room else None
    markers = [keys.dedup(envelope.text(key)) for _, key in oldest if key]
    args: list[bytes | str | int] = [GROUP, at_least, OPERATION_TTL_S]
    for entry_id, key in oldest:
        args += (entry_id, int(bool(key)))
    operation = keys.operation(secrets.token_hex(8))
    dropped: bytes = await client.run("queue/drop", [keys.stream, operation, *markers], args, Repeat.IDEMPOTENT)
    return dropped.decode().split()
