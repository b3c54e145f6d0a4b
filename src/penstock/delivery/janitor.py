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
from penstock.model import Lag
from penstock.redis.aio import Reply
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

    count: int = 0
    first: str = ""  # id of the first of them
    further: str = ""  # where to continue; '' = the range has ended
    length: int = 0  # of the whole stream
    now_ms: int = 0

    @classmethod
    def of(cls, reply: Reply) -> RangeCount:
        """Return what one call of `streams/count_range` counted."""
        count, first, further, length, now_ms = reply
        return cls(int(count), first.decode(), further.decode(), int(length), int(now_ms))


async def _step(client: StreamClient, stream: str, start: str, end: str, most: int = _STEP) -> RangeCount:
    return RangeCount.of(await client.run("streams/count_range", [stream], [start, end, most], Repeat.READ))


async def _count_range(client: StreamClient, stream: str, start: str, end: str, most: int) -> RangeCount:
    # Counts up to `most` entries.
    total = 0
    while True:
        step = await _step(client, stream, start, end, min(_STEP, most - total))
        total, start = total + step.count, step.further
        if not step.further or total == most:
            return replace(step, count=total)


class Unread:
    """The entries after a position and those up to it, counted in turn until one of the two is complete.

    If finished entries are trimmed, there are fewer up to it.
    """

    def __init__(self, key: str, position: str) -> None:
        self.key, self.position = key, position
        self.after = "" if position == ids.LAST else ids.after(position)  # where to continue; '' = the end is reached
        self.before = "-"
        self.behind = self.ahead = self.length = self.now_ms = 0
        self.first = ""  # unread entry

    async def count(self, client: StreamClient, most: int | None = None) -> None:
        """Count on, as long as that does not take the server too long, or only the next `most` entries."""
        steps = 0
        while not self.is_exact and steps < _MAX_STEPS:
            steps += 2
            self.add_behind(await _step(client, self.key, self.after, "+", most or _STEP))
            if most is not None:
                return
            if self.after:
                self.add_ahead(await _step(client, self.key, self.before, self.position))

    def add_behind(self, step: RangeCount) -> None:
        """Add what was counted from `after` on."""
        self.behind, self.after, self.length = self.behind + step.count, step.further, step.length
        self.first, self.now_ms = self.first or step.first, step.now_ms

    def add_ahead(self, step: RangeCount) -> None:
        """Add what was counted from `before` up to the position."""
        self.ahead, self.before, self.length = self.ahead + step.count, step.further, step.length

    @property
    def is_exact(self) -> bool:
        """Whether all of them are counted."""
        return not (self.after and self.before)

    @property
    def most(self) -> int:
        """The unread entries, or more as long as not all were counted."""
        return self.length - self.ahead if self.after else self.behind

    def lag(self, known: int | None, reported: int | None, now_ms: int) -> Lag:
        """Return the lag, if `known` is what is certain without counting, and `reported` the server's own number."""
        age_s = age_of(self.first, now_ms)
        if self.is_exact:
            return Lag(self.most, age_s)
        if known is not None:
            return Lag(known, age_s)
        # The server counts what was removed unread as well, so that its number is a bound, too.
        most = self.most if reported is None else min(reported, self.most)
        return Lag(max(self.behind, most), age_s, is_exact=False)


def age_of(entry_id: str, now_ms: int) -> float:
    """Return how many seconds ago an entry was added; 0 for no entry."""
    return max(0, now_ms - ids.parse(entry_id)[0]) / 1000 if entry_id else 0.0


def certain_lag(length: int, entries_read: int | None, lag: int | None) -> int | None:
    """Return the server's own lag if it is certain."""
    # What was read and what was not are all that was ever added: if all of it is there, the counters missed nothing.
    return lag if entries_read is not None and lag is not None and entries_read + lag == length else None


async def count_after(client: StreamClient, stream: str, position: str, most: int | None = None) -> Unread:
    """Count the entries after an id, as long as that does not take the server too long, or only up to `most`."""
    unread = Unread(stream, position)
    await unread.count(client, most)
    return unread


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
    needed = await _count_range(client, stream, "needed", "+", _SHORT)
    if not needed.further:
        return needed.length - needed.count - keep, True
    # A long backlog: counting the finished entries, as far as needed, is faster.
    finished = await _count_range(client, stream, "-", "needed", keep + _SHORT)
    return finished.count - keep, not finished.further
