"""What a consumer has at hand: messages that wait for a worker, and those that are being handled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from penstock.model import StreamMessage
from penstock.runtime.aio import Turnstile, next_tick

T = TypeVar("T")
Row: TypeAlias = tuple[bytes, list[bytes]]  # id and fields of an entry, as the server sends them
_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages for one call of a handler. Those handed out again must be recorded before they begin."""

    messages: list[StreamMessage]
    is_again: bool = False
    is_last_chance: bool = False


class Inbox:
    """Messages between the reader and the workers.

    `held` has every message of this process that is not settled: the heartbeat renews exactly these. New messages wait
    as the entries that the server sent and are decoded when a worker takes them: a thousand decoded payloads that lie
    about would cost the garbage collector as much as decoding them.
    """

    def __init__(
        self, decode: Callable[[list[Row]], list[StreamMessage]], is_last_chance: Callable[[StreamMessage], bool]
    ) -> None:
        self.held: dict[str, StreamMessage | None] = {}  # None = not decoded yet
        self._decode, self._is_last_chance = decode, is_last_chance
        self._fresh: deque[Row] = deque()
        self._lost: set[str] = set()
        self._again: deque[StreamMessage] = deque()
        self._arrivals = Turnstile()
        self._room = Turnstile()
        self._low = 0
        self.is_read_under_way = False
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._fresh) + len(self._again)

    @property
    def waiting_again(self) -> int:
        """How many messages wait to be handled once more."""
        return len(self._again)

    def add_fresh(self, rows: Iterable[Row]) -> int:
        """Take in new entries; return how many were not held already."""
        held, fresh, count = self.held, self._fresh, 0
        for row in rows:
            entry_id = row[0].decode()
            if entry_id not in held:
                held[entry_id] = None
                fresh.append(row)
                count += 1  # not by how much `held` grew: other threads let go of messages meanwhile
        self._arrivals.call(count)
        return count

    def add_again(self, messages: Iterable[StreamMessage]) -> int:
        """Take in messages that were handed out before; return how many were not held already."""
        count = 0
        for message in messages:
            if message.id not in self.held:
                self.held[message.id] = message
                self._again.append(message)
                count += 1
        self._arrivals.call(count)
        return count

    def take_now(self, limit: int) -> Batch | None:
        """Return messages for one call, or None if there are none."""
        if self._again:
            return self._take_again(limit)
        while self._fresh:
            taken = self._take_fresh(limit)
            if taken:
                return Batch(taken)
        return None

    def _take_fresh(self, limit: int) -> list[StreamMessage]:
        rows: list[Row] = []
        add, next_row = rows.append, self._fresh.popleft
        with suppress(IndexError):  # all of them, or another thread was faster
            for _ in range(limit):
                add(next_row())
        if self._lost:
            rows = [row for row in rows if not self._is_lost(row)]
        messages, held = self._decode(rows), self.held
        for message in messages:
            held[message.id] = message
        return messages

    def _is_lost(self, row: Row) -> bool:
        entry_id = row[0].decode()
        is_lost = entry_id in self._lost
        self._lost.discard(entry_id)
        return is_lost

    def _take_again(self, limit: int) -> Batch | None:
        taken: list[StreamMessage] = []
        try:
            while len(taken) < limit:
                message = self._again.popleft()
                if self._is_last_chance(message):
                    if not taken:
                        return Batch([message], is_again=True, is_last_chance=True)
                    self._again.appendleft(message)
                    break
                taken.append(message)
        except IndexError:
            pass
        return Batch(taken, is_again=True) if taken else None

    async def take(self, limit: int) -> Batch | None:
        """Wait for messages for one call; return None when the inbox is closed."""
        while not self._is_closed:
            if self._fresh and self._has_room():
                # The reader was called and had no turn yet: a handler that never awaits would starve it, and the server
                # would idle. Before anything is taken, so that messages begin in their order.
                await next_tick()
            batch = self.take_now(limit)
            if self._has_room():
                self._room.call()  # also when nothing is left to hand out, for all of it was rejected
            if batch is not None:
                return batch
            await self._arrivals.wait_until(lambda: bool(self._is_closed or self._fresh or self._again))
        return None

    def _has_room(self) -> bool:
        # For a read that is not under way yet.
        return not self.is_read_under_way and len(self._fresh) <= self._low

    async def wait_for_room(self, low: int) -> None:
        """Wait until at most `low` new messages wait, or the inbox is closed."""
        self._low = low
        if len(self._fresh) > low and not self._is_closed:
            await self._room.wait_until(lambda: self._is_closed or len(self._fresh) <= low)

    def close(self) -> None:
        """Let workers and reader end."""
        self._is_closed = True
        self._arrivals.call(1_000_000)
        self._room.call(1_000_000)

    def reopen(self) -> None:
        """Take messages again."""
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether nothing is handed out any more."""
        return self._is_closed

    def lose_waiting(self, ids: Iterable[str]) -> None:
        """Let go of messages that belong to another consumer now, before any worker took them."""
        for entry_id in ids:
            if self.held.pop(entry_id, _NOTHING) is None:
                self._lost.add(entry_id)

    def settle(self, messages: Iterable[StreamMessage]) -> None:
        """Let go of messages about which everything is said."""
        for message in messages:
            self.held.pop(message.id, None)

    def empty(self) -> tuple[list[str], list[StreamMessage]]:
        """Remove and return what waits: the ids of the new messages, and the messages handed out again."""
        fresh = [row[0].decode() for row in _drained(self._fresh)]
        again = _drained(self._again)
        self._lost.clear()
        return fresh, again


def _drained(queue: deque[T]) -> list[T]:
    # One by one: a worker thread that was about to take one when the inbox was closed still does.
    drained: list[T] = []
    with suppress(IndexError):
        while True:
            drained.append(queue.popleft())
    return drained
