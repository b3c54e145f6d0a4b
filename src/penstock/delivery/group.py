"""ConsumerGroup: creates and monitors a consumer group, and does its chores."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock import ids
from penstock.delivery.janitor import certain_lag, count_after, trim_finished
from penstock.envelope import number, text
from penstock.errors import GroupLost
from penstock.events import Emit, EventName
from penstock.keys import StreamKeys, check_dead_letters, check_name
from penstock.model import ConsumerInfo, Health, Lag, PendingEntry, StreamStats
from penstock.redis.aio import Reply
from penstock.redis.client import StreamClient, check_client
from penstock.redis.packing import Command
from penstock.redis.reading import ask
from penstock.redis.retry import Repeat
from penstock.redis.translate import checked

_RESTORED = "restored"  # holds what was pending in a destroyed group until a consumer takes it over
PendingRow = tuple[bytes, bytes, int, int]  # of XPENDING: id, consumer, idle time in ms, deliveries


class PendingRecord(NamedTuple):
    """A pending entry, and what is recorded about it."""

    id: str
    consumer: str
    idle_ms: int
    deliveries: int
    attempts: int | None  # None = there is no record
    due_at_ms: int | None  # None = it does not wait for its next run
    due_in_ms: int | None

    @property
    def runs(self) -> int:
        """How many runs have begun, as far as is known."""
        return self.deliveries if self.attempts is None else self.attempts


async def described(
    client: StreamClient, keys: StreamKeys, group: str, rows: Sequence[PendingRow]
) -> list[PendingRecord]:
    """Describe pending entries."""
    if not rows:
        return []
    names = [row[0] for row in rows]
    commands: list[Command] = [("TIME",), ("ZMSCORE", keys.retries(group), *names)]
    commands.append(("HMGET", keys.attempts(group), *names))
    (seconds, micros), due, begun = checked(await ask(client, [(keys.stream, command) for command in commands]))
    now_ms, found = int(seconds) * 1000 + int(micros) // 1000, list[PendingRecord]()
    for row, score, runs in zip(rows, due, begun, strict=True):
        due_at_ms = None if score is None else int(float(score))
        due_in_ms = None if due_at_ms is None else due_at_ms - now_ms
        counts = (int(row[2]), int(row[3]), number(runs), due_at_ms, due_in_ms)
        found.append(PendingRecord(row[0].decode(), text(row[1]), *counts))
    return found


async def group_info(client: StreamClient, stream: str, group: str) -> dict[str, Any] | None:
    """Return what the server knows about a group by name; None = there is none. Raises GroupLost without a stream."""
    groups = map(_pairs, await client.call(stream, "XINFO", "GROUPS", stream))
    return next((info for info in groups if info["name"] == group.encode()), None)


def consumers_in(reply: Reply) -> list[ConsumerInfo]:
    """Read a reply of XINFO CONSUMERS."""
    found = map(_pairs, reply)
    return [ConsumerInfo(text(info["name"]), int(info["pending"]), int(info["idle"])) for info in found]


class ConsumerGroup:
    """One consumer group of one stream."""

    def __init__(self, client: StreamClient, stream: str, group: str) -> None:
        check_client(client)
        self._client = client
        self.stream = stream
        self.group = check_name("group", group)
        self._keys = client.keys(stream)
        self.is_known = False  # created, or seen, by this object

    # --- life ---------------------------------------------------------------------------------------

    async def ensure(self, dlq_stream: str | None = None, dlq_group: str | None = None) -> None:
        """Create the group unless it exists, at its last known position or else at the beginning of the stream."""
        if self.is_known:
            return
        if dlq_stream:
            dead_letters = self._client.keys(dlq_stream).stream
            check_dead_letters(self._keys.stream, dead_letters, "dlq_stream", is_cluster=self._client.is_cluster)
        await self.restore()
        if dlq_stream and dlq_group:
            await ConsumerGroup(self._client, dlq_stream, dlq_group).restore()
        self.is_known = True

    def reset(self) -> None:
        """Forget that the group exists, so that the next ensure() checks again."""
        self.is_known = False

    async def restore(self, consumer: str = _RESTORED) -> str | None:
        """Create the group if it does not exist; return the id after which it reads, or None if it existed.

        What was pending when the position was last recorded becomes pending again, with the given consumer.
        """
        names = self._keys
        keys = [names.stream, names.position(self.group), names.retries(self.group), names.attempts(self.group)]
        position: bytes = await self._client.run("streams/restore", keys, [self.group, consumer], Repeat.IDEMPOTENT)
        return position.decode() or None

    # --- numbers ------------------------------------------------------------------------------------

    async def _info(self) -> dict[str, Any]:
        found = await group_info(self._client, self._keys.stream, self.group)
        if found is None:
            raise GroupLost(f"stream {self.stream!r} has no group {self.group!r}; create it with ensure()")
        return found

    async def lag(self) -> Lag:
        """Return how many entries the group has not received yet, and the age of the oldest.

        Counts them, since the server's own number is wrong or missing after trimming and deleting. For a backlog that
        is too large to count, some hundreds of megabytes, returns an upper bound, marked as not exact.
        """
        return await self._lag(await self._info())

    async def has_work(self) -> bool:
        """Return whether anything is unread or pending; unlike lag(), this counts nothing."""
        info = await self._info()
        after = info["last-delivered-id"].decode()
        return info["pending"] > 0 or bool((await count_after(self._client, self._keys.stream, after, 1)).first)

    async def _lag(self, info: dict[str, Any]) -> Lag:
        after, reported = info["last-delivered-id"].decode(), info.get("lag")
        counted = await count_after(self._client, self._keys.stream, after, 1)
        known = counted.length if after == ids.ZERO else certain_lag(counted.length, info.get("entries-read"), reported)
        if known is None:
            await counted.count(self._client)
        return counted.lag(known, reported, counted.now_ms)

    async def stats(self, dlq_stream: str | None = None) -> StreamStats:
        """Return statistics of the stream and the group."""
        stream = self._keys.stream
        info = await self._info()
        lag = await self._lag(info)
        pending = await self._client.call(stream, "XPENDING", stream, self.group, "-", "+", 1)
        dead_letters = self._client.keys(dlq_stream).stream if dlq_stream else self._keys.default_dead_letters()
        return StreamStats(
            stream=self.stream,
            group=self.group,
            stream_length=await self._client.call(stream, "XLEN", stream),
            group_pel_size=int(info["pending"]),
            lag=lag.count,
            last_delivered_id=info["last-delivered-id"].decode(),
            consumers=await self.consumers(),
            dlq_length=await self._client.call(dead_letters, "XLEN", dead_letters),
            lag_age_s=lag.age_s,
            oldest_pending_ms=int(pending[0][2]) if pending else 0,
            retries_waiting=await self._client.call(stream, "ZCARD", self._keys.retries(self.group)),
            is_lag_exact=lag.is_exact,
        )

    async def consumers(self) -> list[ConsumerInfo]:
        """Return the consumers that the server knows."""
        stream = self._keys.stream
        return consumers_in(await self._client.call(stream, "XINFO", "CONSUMERS", stream, self.group))

    async def pending_details(self, count: int = 100) -> list[PendingEntry]:
        """Return the oldest pending messages; `retry_at_ms` is when a failed one is retried."""
        stream = self._keys.stream
        rows = await self._client.call(stream, "XPENDING", stream, self.group, "-", "+", count)
        found = await described(self._client, self._keys, self.group, rows)
        return [PendingEntry(it.id, it.consumer, it.idle_ms, it.deliveries, it.due_at_ms) for it in found]

    async def health_check(
        self, max_lag: int = 10_000, max_idle_ms: int = 60_000, dlq_stream: str | None = None
    ) -> Health:
        """Return `healthy`, `issues` and `stats`.

        Ignores idle consumers that hold no messages: they have nothing to do, or will be removed.
        """
        try:
            stats = await self.stats(dlq_stream)
        except GroupLost as error:
            return {"healthy": False, "issues": [str(error)], "stats": None}
        issues = []
        if stats.lag > max_lag:
            issues.append(f"lag {stats.lag} exceeds {max_lag}: the oldest unread entry is {stats.lag_age_s:.0f} s old")
        issues += [
            f"consumer {consumer.name} holds {consumer.pending} messages and has been idle for {consumer.idle_ms} ms"
            for consumer in stats.consumers
            if consumer.pending and consumer.idle_ms > max_idle_ms
        ]
        return {"healthy": not issues, "issues": issues, "stats": stats}

    # --- chores --------------------------------------------------------------------------------------

    async def remove_dead_consumers(self, idle_ms: int, except_for: str = "") -> list[str]:
        """Remove consumers that hold no messages and have been idle for `idle_ms`; return their names."""
        args: list[str | int] = [self.group, except_for, idle_ms]
        reply: Reply = await self._client.run("streams/remove_consumers", [self._keys.stream], args, Repeat.IDEMPOTENT)
        return [text(name) for name in reply]

    async def trim(self, keep: int) -> int:
        """Trim entries that every group has finished, but keep the newest `keep`; return how many were trimmed."""
        return await trim_finished(self._client, self._keys.stream, keep)


async def recreate(group: ConsumerGroup, consumer: str, logger: logging.Logger, emit: Emit) -> None:
    """Create a group again, which a command has missed, and report it."""
    position = await group.restore(consumer)
    if position is not None:  # else another consumer did
        logger.error("group %s of stream %s no longer existed; recreated it at %s", group.group, group.stream, position)
        emit(EventName.GROUP_LOST, position=position)


def _pairs(flat: list[Any]) -> dict[str, Any]:
    return {flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}
