"""Tasks that were popped and wait for a free hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from penstock.runtime.aio import Event, WaitQueue
from penstock.task import Task


class TaskInbox:
    """The tasks of one worker that nobody has begun."""

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()
        self._waiters = WaitQueue()
        self.is_closed = False
        self.hungry = Event()  # somebody took a task: there may be room

    def __len__(self) -> int:
        return len(self._tasks)

    def put(self, tasks: Iterable[Task]) -> None:
        """Take tasks in."""
        before = len(self._tasks)
        self._tasks.extend(tasks)
        self._waiters.call(len(self._tasks) - before)

    async def take(self) -> Task | None:
        """Return the next task, as soon as there is one; None = the inbox is closed."""
        while True:
            try:
                task = self._tasks.popleft()
            except IndexError:
                if self.is_closed:
                    return None
                await self._waiters.wait_until(lambda: bool(self._tasks) or self.is_closed)
                continue
            if not self.hungry.is_set():
                self.hungry.set()
            return task

    def take_now(self) -> Task | None:
        """Return the next task if there is one."""
        try:
            return self._tasks.popleft()
        except IndexError:
            return None

    def close(self) -> list[Task]:
        """Let nobody take anything any more; return what is left."""
        self.is_closed = True
        left = []
        while (task := self.take_now()) is not None:
            left.append(task)
        self._waiters.call(1_000_000)
        return left
