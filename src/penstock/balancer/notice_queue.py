"""A bounded queue of notices for the application, which never drops notices about lost streams."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator

from penstock.balancer.messages import Notice, StreamExpired
from penstock.runtime.aio import Flag


class NoticeQueue:
    """Holds notices until the application reads them with `async for`.

    Producers of new work wait for room first, which creates back-pressure. If there is no room, hints about streams
    without an owner are refused. Notices about lost streams are always accepted; there are never more than streams.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: deque[Notice] = deque()
        self._waiting_ids: set[str] = set()
        self._arrived, self._has_room = Flag(), Flag()
        self._is_closed = False

    @property
    def room(self) -> int:
        """How many more notices about new work fit."""
        return max(0, self._size - len(self._waiting))

    def put(self, notice: Notice) -> None:
        """Add a notice, even if there is no room."""
        if not self._is_closed:
            self._waiting.append(notice)
            self._arrived.set()

    def offer(self, hint: StreamExpired) -> bool:
        """Add a hint if there is room, unless the same one is already waiting; return whether it is waiting now."""
        entry_id = hint.payload.id_in_lbs
        if entry_id in self._waiting_ids:
            return True
        if not self.room or self._is_closed:
            return False
        self._waiting_ids.add(entry_id)
        self.put(hint)
        return True

    async def wait_for_room(self, timeout_s: float) -> bool:
        """Wait until there is room; return False after the timeout."""
        if not self.room:
            self._has_room.clear()
            if not self.room:
                await self._has_room.wait(timeout_s)
        return bool(self.room)

    def __aiter__(self) -> AsyncIterator[Notice]:
        return self

    async def __anext__(self) -> Notice:
        while True:
            try:
                notice = self._waiting.popleft()  # without a check before: another thread may take the last one
            except IndexError:
                if self._is_closed:
                    raise StopAsyncIteration from None
                self._arrived.clear()
                if not self._waiting and not self._is_closed:
                    await self._arrived.wait()
                continue
            if isinstance(notice, StreamExpired):
                self._waiting_ids.discard(notice.payload.id_in_lbs)
            self._has_room.set()
            return notice

    def close(self, last: Notice) -> None:
        """Add the last notice."""
        if not self._is_closed:
            self.put(last)
            self._is_closed = True
            self._arrived.set()
            self._has_room.set()
