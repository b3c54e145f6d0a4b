"""Puts tasks into their lanes, each id once, however often it must be sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from penstock.errors import ConfigurationError
from penstock.keys import TaskKeys
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat
from penstock.task import Task
from penstock.tasks.entries import TaskEntries
from penstock.tasks.lanes import Lane

_STEP = 500  # tasks per script call


def when_due(delay: float | None, at: datetime | None) -> str:
    """Return when a task is due, as the script wants it: '' = now."""
    if delay is not None and at is not None:
        raise ConfigurationError("give delay or at, not both")
    if delay is not None:
        if not 0 <= delay < 10 * 365 * 86_400:
            raise ConfigurationError(f"delay={delay!r} must be a number of seconds, 0 to ten years")
        return f"+{round(delay * 1000)}" if delay else ""
    if at is None:
        return ""
    if at.tzinfo is None:
        raise ConfigurationError(f"at={at.isoformat()} has no time zone: write datetime(..., tzinfo=UTC)")
    ms = round(at.astimezone(UTC).timestamp() * 1000)
    return str(ms) if ms > time.time() * 1000 else ""


class TaskOutbox:
    """The way into one queue."""

    def __init__(self, client: StreamClient, keys: TaskKeys, group: str, encode: Callable[[Task], bytes]) -> None:
        """`encode` raises EncodeError for a task that no worker could read."""
        self._client, self._keys, self._group, self._encode = client, keys, group, encode
        self._entries = TaskEntries(keys, client.protection)

    async def add(self, tasks: Sequence[Task], due: str) -> list[str]:
        """Add tasks; return for each its id, or that of the open task with the same unique text."""
        # All of them before any is sent: a bad one loses nothing.
        bodies = [self._entries.close(self._encode(task), task) for task in tasks]
        answers: list[str] = []
        for start in range(0, len(tasks), _STEP):
            answers += await self._add_some(tasks[start : start + _STEP], bodies[start : start + _STEP], due)
        return answers

    async def _add_some(self, tasks: Sequence[Task], bodies: Sequence[bytes], due: str) -> list[str]:
        numbers: dict[Lane, int] = {}
        args: list[bytes | str | int] = []
        for task, body in zip(tasks, bodies, strict=True):
            lane = Lane.of(task)
            number = numbers.setdefault(lane, len(numbers) + 1)
            args += (number, due, task.id, task.unique or "", task.kind, body)
        keys = self._keys
        names = [
            keys.index, keys.done, keys.unique, keys.counts, keys.lanes, keys.due, keys.bodies,
            *(keys.tasks(lane.suffix).stream for lane in numbers),
        ]  # fmt: skip
        head: list[bytes | str | int] = [self._group, len(numbers), *(lane.name for lane in numbers)]
        # Idempotent: an id that is open or done is not added again.
        reply = await self._client.run("tasks/enqueue", names, [*head, *args], Repeat.IDEMPOTENT)
        return [answer.decode() for answer in reply]
