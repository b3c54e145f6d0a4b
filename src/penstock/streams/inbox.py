"""What a consumer has at hand: messages that wait for a worker, and those that are being handled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.model import StreamMessage
from penstock.runtime.aio import Turnstile, next_tick


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages for one call of a handler. Those handed out again must be recorded before they begin."""

    messages: list[StreamMessage]
    is_again: bool


class Inbox:
    """Messages between the reader and the workers.

    `held` has every message of this process that is not settled: the heartbeat renews exactly these.
    """

    def __init__(self, is_last_chance: Callable[[StreamMessage], bool]) -> None:
        self.held: dict[str, StreamMessage] = {}
        self._is_last_chance = is_last_chance
        self._fresh: deque[StreamMessage] = deque()
        self._again: deque[StreamMessage] = deque()
        self._arrivals = Turnstile()
        self._room = Turnstile()
        self._low = 0
        self._is_low = self._is_reader_waiting = False
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._fresh) + len(self._again)

    @property
    def waiting_again(self) -> int:
        """How many messages wait to be handled once more."""
        return len(self._again)

    def add_fresh(self, messages: Iterable[StreamMessage]) -> int:
        """Take in new messages; return how many were not held already."""
        return self._add(self._fresh, messages)

    def add_again(self, messages: Iterable[StreamMessage]) -> int:
        """Take in messages that were handed out before; return how many were not held already."""
        return self._add(self._again, messages)

    def _add(self, queue: deque[StreamMessage], messages: Iterable[StreamMessage]) -> int:
        held = self.held
        count = 0
        for message in messages:
            if message.id not in held:
                held[message.id] = message
                queue.append(message)
                count += 1
        if count:
            self._arrivals.call(count)
        return count

    def take_now(self, limit: int) -> Batch | None:
        """Return messages for one call, or None if there are none."""
        if self._again:
            taken = self._take_again(limit)
            return Batch(taken, is_again=True) if taken else None
        fresh = self._fresh
        taken = []
        try:
            while len(taken) < limit:
                taken.append(fresh.popleft())
        except IndexError:
            pass  # all of them, or another thread was faster
        if len(fresh) <= self._low and self._is_reader_waiting:
            self._is_reader_waiting, self._is_low = False, True
            self._room.call()
        return Batch(taken, is_again=False) if taken else None

    def _take_again(self, limit: int) -> list[StreamMessage]:
        taken: list[StreamMessage] = []
        try:
            while len(taken) < limit:
                message = self._again.popleft()
                is_alone = self._is_last_chance(message)
                if is_alone and taken:
                    self._again.appendleft(message)
                    break
                taken.append(message)
                if is_alone:
                    break
        except IndexError:
            pass
        return taken

    async def take(self, limit: int) -> Batch | None:
        """Wait for messages for one call; return None when the inbox is closed."""
        while not self._is_closed:
            batch = self.take_now(limit)
            if batch is not None:
                if self._is_low:
                    # A handler that never awaits would starve the reader, and the server would idle.
                    self._is_low = False
                    await next_tick()
                return batch
            await self._arrivals.wait_until(lambda: bool(self._is_closed or self._fresh or self._again))
        return None

    async def wait_for_room(self, low: int) -> None:
        """Wait until at most `low` new messages wait, or the inbox is closed."""
        self._low = low
        if len(self._fresh) > low and not self._is_closed:
            self._is_reader_waiting = True
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

    def settle(self, messages: Iterable[StreamMessage]) -> None:
        """Let go of messages about which everything is said."""
        for message in messages:
            self.held.pop(message.id, None)

    def empty(self) -> tuple[list[StreamMessage], list[StreamMessage]]:
        """Remove and return what waits: the new messages, and those handed out again."""
        fresh, again = list(self._fresh), list(self._again)
        self._fresh.clear()
        self._again.clear()
        return fresh, again
