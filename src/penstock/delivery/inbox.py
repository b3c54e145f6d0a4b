"""What a consumer has at hand: messages that wait for a worker, and those that are being handled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

import msgspec

from penstock.delivery.in_flight import InFlight, Row
from penstock.model import StreamMessage
from penstock.runtime.aio import WaitQueue, next_tick

T = TypeVar("T")


class Batch(msgspec.Struct, gc=False, eq=False):
    """Messages for one call of a handler. Those handed out again must be recorded before they begin."""

    messages: list[StreamMessage]
    is_again: bool = False
    is_last_chance: bool = False
    is_suspect: bool = False  # its last holder died, perhaps of it


class Inbox:
    """Messages between the reader and the workers."""

    def __init__(
        self, decode: Callable[[list[Row]], list[StreamMessage]], is_last_chance: Callable[[StreamMessage], bool]
    ) -> None:
        self.held = InFlight()
        self._decode, self._is_last_chance = decode, is_last_chance
        self._again: deque[StreamMessage] = deque()
        self._again_taken = WaitQueue()
        self.suspects: set[str] = set()  # those whose last holder died
        self._arrivals = WaitQueue()
        self._room = WaitQueue()
        self._low = 0
        self.is_read_under_way = False
        self._is_closed = False

    def __len__(self) -> int:
        return self.held.waiting + len(self._again)

    @property
    def waiting_again(self) -> int:
        """How many messages wait to be handled once more."""
        return len(self._again)

    def add_fresh(self, rows: list[Row]) -> int:
        """Take in new entries; return how many were not held already."""
        count = self.held.add_fresh(rows)
        self._arrivals.call(count)
        return count

    def add_again(self, messages: Iterable[StreamMessage]) -> int:
        """Take in messages that were handed out before; return how many were not held already."""
        added = self.held.add_all(messages)
        self._again.extend(added)
        self._arrivals.call(len(added))
        return len(added)

    def take_now(self, limit: int) -> Batch | None:
        """Return messages for one call, or None if there are none."""
        if self._again:
            return self._take_again(limit)
        while self.held.waiting:
            taken = self.held.take_fresh(limit, self._decode)
            if taken:
                return Batch(taken)
        return None

    def _take_again(self, limit: int) -> Batch | None:
        taken: list[StreamMessage] = []
        try:
            while len(taken) < limit:
                message = self._again.popleft()
                self._again_taken.call()
                if self._is_last_chance(message):
                    if not taken:
                        return Batch([message], is_again=True, is_last_chance=True, is_suspect=self._suspected(message))
                    self._again.appendleft(message)
                    self._arrivals.call()  # a worker that looked meanwhile has not seen it
                    break
                self._suspected(message)
                taken.append(message)
        except IndexError:
            pass
        return Batch(taken, is_again=True) if taken else None

    def _suspected(self, message: StreamMessage) -> bool:
        is_suspect = message.id in self.suspects
        self.suspects.discard(message.id)
        return is_suspect

    async def wait_for_few_again(self, few: int) -> None:
        """Wait until fewer than that wait to be handled once more, or the inbox is closed."""
        await self._again_taken.wait_until(lambda: self._is_closed or len(self._again) < few)

    async def take(self, limit: int) -> Batch | None:
        """Wait for messages for one call; return None when the inbox is closed."""
        # A handler that never awaits would starve the reader, and the server would idle: before the last messages are
        # decoded and handled, the reader has its turn.
        while not self._is_closed:
            if self.held.waiting > limit and self._has_room():
                self._room.call()
                await next_tick()  # before anything is taken, so that messages begin in their order
            batch = self.take_now(limit)
            if self._has_room():
                self._room.call()  # also when nothing is left to hand out, for all of it was rejected
            if batch is not None:
                return batch
            await self._arrivals.wait_until(lambda: bool(self._is_closed or self.held.waiting or self._again))
        return None

    def _has_room(self) -> bool:
        # For a read that is not under way yet.
        return not self.is_read_under_way and self.held.waiting <= self._low

    async def wait_for_room(self, low: int) -> None:
        """Wait until at most `low` new messages wait, or the inbox is closed."""
        self._low = low
        if self.held.waiting > low and not self._is_closed:
            await self._room.wait_until(lambda: self._is_closed or self.held.waiting <= low)

    def close(self) -> None:
        """Let workers and reader end."""
        self._is_closed = True
        for waiters in (self._arrivals, self._room, self._again_taken):
            waiters.call(1_000_000)

    def reopen(self) -> None:
        """Take messages again."""
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether nothing is handed out any more."""
        return self._is_closed

    def empty(self) -> tuple[list[str], list[StreamMessage]]:
        """Let no worker take what waits: return the ids of the new messages, and the messages handed out again."""
        fresh, again = self.held.call_off(), _drained(self._again)
        self.suspects.clear()
        return fresh, again


def _drained(queue: deque[T]) -> list[T]:
    # One by one: a worker thread that was about to take one when the inbox was closed still does.
    drained: list[T] = []
    with suppress(IndexError):
        while True:
            drained.append(queue.popleft())
    return drained
