"""The chores that one consumer of the group does for all; counting and trimming entries.

Entries are counted and trimmed in small steps, so that the server is never blocked for long.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock import ids
from penstock.config import ConsumerConfig
from penstock.errors import ConnectionLost, OutOfMemory
from penstock.events import Emit, EventName
from penstock.keys import StreamKeys
from penstock.redis.client import StreamClient
from penstock.redis.reading import newest_id
from penstock.redis.retry import Repeat

if TYPE_CHECKING:
    from penstock.delivery.group import ConsumerGroup

_STEP = 2_000  # entries per script call, or fewer large ones
_MAX_STEPS = 256
_SHORT = 10_000  # needed entries that are counted; a longer backlog is not
_ALL = 1 << 53


async def is_elected(client: StreamClient, key: str, consumer: str, interval_ms: int) -> bool:
    """Return whether this consumer does the chores of the interval: the first one that asks does."""
    try:
        return await client.call(key, "SET", key, consumer, "NX", "PX", interval_ms, repeat=Repeat.ONCE) is not None
    except (OutOfMemory, ConnectionLost):
        return True  # better twice than never: trimming frees memory, and the lost reply may have been positive


class Janitor:
    """Does each chore once per interval, in the first consumer of the group that asks."""

    def __init__(
        self,
        client: StreamClient,
        group: ConsumerGroup,
        keys: StreamKeys,
        config: ConsumerConfig,
        consumer: str,
        dead_letters: str,
        emit: Emit,
    ) -> None:
        self._client, self._group, self._keys, self._config = client, group, keys, config
        self._consumer, self._dead_letters, self._emit = consumer, dead_letters, emit
        self._next_s = time.monotonic() + config.retention_interval_ms / 1000

    async def run_due(self) -> None:
        """Do the chores if they are due and no other consumer has done them."""
        interval_ms = self._config.retention_interval_ms
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + interval_ms / 1000
        key = self._keys.chore("upkeep", self._config.group)
        if not await is_elected(self._client, key, self._consumer, max(1, interval_ms - interval_ms // 10)):
            return
        removed = await self._group.remove_dead_consumers(self._config.consumer_ttl_ms, except_for=self._consumer)
        if removed:
            self._emit(EventName.CONSUMER_REMOVED, names=removed)
        trimmed = await self._group.trim(self._config.max_stream_size)
        if trimmed:
            self._emit(EventName.TRIMMED, count=trimmed)
        # Remove records that are too old even if no new ones are written.
        old = await self._client.dead_letter_retention.apply(self._dead_letters)
        if old:
            self._emit(EventName.DEAD_LETTERS_TRIMMED, count=old)


# --- counting and trimming ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RangeCount:
    """The outcome of counting the entries of a range."""

    count: int
    first: str  # id of the first of them, or ''
    length: int  # of the whole stream
    now_ms: int
    is_all: bool  # the range has ended; else there are more
    most: int  # upper bound of the entries in the range


async def _step(client: StreamClient, stream: str, start: str, end: str, most: int = _STEP) -> tuple[RangeCount, str]:
    # Returns what one call counted, and where to continue; '' = the range has ended.
    reply = await client.run("streams/count_range", [stream], [start, end, most], Repeat.READ)
    count, first, further, length, now_ms = reply
    most = int(length if further else count)
    return RangeCount(int(count), first.decode(), int(length), int(now_ms), not further, most), further.decode()


async def count_range(
    client: StreamClient, stream: str, start: str, end: str, most: int | None = None, steps: int | None = None
) -> RangeCount:
    """Count the entries of a range, up to `most` of them, in at most `steps` steps."""
    total, first, taken = 0, "", 0
    while True:
        taken += 1
        step, start = await _step(client, stream, start, end, _STEP if most is None else min(_STEP, most - total))
        total, first = total + step.count, first or step.first
        if step.is_all or total == most or taken == steps:
            return replace(step, count=total, first=first, most=total if step.is_all else step.length)


async def count_after(client: StreamClient, stream: str, last_delivered: str, most: int | None = None) -> RangeCount:
    """Count the entries after an id, up to `most`, as long as that does not take the server too long.

    Without `most`, entries before and after the id are counted in turn: if finished entries are trimmed, there are
    fewer before it.
    """
    if last_delivered == ids.LAST:
        return await count_range(client, stream, ids.LAST, ids.ZERO)  # no id is greater
    start, before = ids.after(last_delivered), "-"
    if most is not None:
        return await count_range(client, stream, start, "+", most, _MAX_STEPS)
    total, first, counted, steps = 0, "", 0, 0
    while True:
        behind, start = await _step(client, stream, start, "+")
        total, first = total + behind.count, first or behind.first
        steps += 2
        if behind.is_all or steps > _MAX_STEPS:
            return replace(behind, count=total, first=first, most=total if behind.is_all else behind.length - counted)
        ahead, before = await _step(client, stream, before, last_delivered)
        counted += ahead.count
        if ahead.is_all:
            return replace(ahead, count=ahead.length - counted, first=first, most=ahead.length - counted)


async def trim_finished(client: StreamClient, stream: str, keep: int) -> int:
    """Trim entries that every group has finished, except for the newest `keep`; return how many were trimmed."""
    trimmed, is_all = 0, False
    while not is_all:
        excess, is_all = await _excess(client, stream, keep)
        while excess > 0:
            step = int(await client.run("streams/trim", [stream], [excess], Repeat.ONCE))
            if not step:
                return trimmed
            trimmed += step
            excess -= step
    return trimmed


async def trim_all(client: StreamClient, stream: str) -> int:
    """Delete everything that is in a stream now, whether a group needs it or not; return how much that was."""
    last, trimmed, step = await newest_id(client, stream), 0, 1
    while step:
        step = int(await client.run("streams/trim", [stream], [_ALL, last], Repeat.IDEMPOTENT))
        trimmed += step
    return trimmed + int(await client.call(stream, "XDEL", stream, last, repeat=Repeat.IDEMPOTENT))


async def _excess(client: StreamClient, stream: str, keep: int) -> tuple[int, bool]:
    # Returns how many finished entries to trim, and whether that is all of them: a long history is counted in parts.
    if keep == 0:
        return _ALL, True
    if await client.call(stream, "XLEN", stream) <= keep:
        return 0, True
    needed = await count_range(client, stream, "needed", "+", _SHORT)
    if needed.is_all:
        return needed.length - needed.count - keep, True
    # A long backlog: counting the finished entries, as far as needed, is faster.
    finished = await count_range(client, stream, "-", "needed", keep + _SHORT)
    return finished.count - keep, finished.is_all
