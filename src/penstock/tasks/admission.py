"""Lets tasks begin within the limits of their kind, over all workers of a queue."""

from __future__ import annotations

from penstock.keys import TaskKeys
from penstock.redis.client import StreamClient
from penstock.redis.retry import Repeat
from penstock.task import Task
from penstock.tasks.held_tasks import HeldTask
from penstock.tasks.lane_map import LaneMap
from penstock.tasks.limits import Limits, concurrency_scopes, rate_scopes

_ASKS_AGAIN_MS = 10_000  # a task that waits for a permit is woken when one is free; this is for when nobody wakes it


class Admission:
    """The limits of one queue, as one consumer meets them."""

    def __init__(self, client: StreamClient, keys: TaskKeys, lanes: LaneMap, group: str, consumer: str) -> None:
        self._client, self._keys, self._lanes, self._group, self._consumer = client, keys, lanes, group, consumer

    async def admit(self, held: HeldTask, limits: Limits, lease_ms: int) -> bool:
        """Tell whether a task may begin; if not, it was put aside and will come again."""
        lanes, books = await self._lanes.all(), self._lanes.books(held.lane)
        names = [other.lane.name for other in lanes]
        keys = [key for other in lanes for key in (other.stream, other.retries)]
        if held.lane.name not in names:
            names, keys = [*names, held.lane.name], [*keys, books.stream, books.retries]
        args: list[str | int] = [
            self._group, self._consumer, held.entry_id, held.lane.name, held.task.id, len(names), lease_ms,
            _ASKS_AGAIN_MS, *names,
        ]  # fmt: skip
        keys.append(books.attempts)
        for scope, most in concurrency_scopes(held.task, limits):
            keys += (self._keys.permits(scope), self._keys.queue_for(scope))
            args += ("c", most, 0)
        for scope, rate in rate_scopes(held.task, limits):
            keys += (self._keys.rate(scope), self._keys.reserved(scope))
            args += ("r", rate.count, round(rate.per_s * 1000))
        return int(await self._client.run("task_admit", keys, args, Repeat.IDEMPOTENT)) == 1

    async def give_back(self, task: Task, limits: Limits) -> bool:
        """Give the permits of a task back; tell whether another one may begin for that."""
        scopes = concurrency_scopes(task, limits)
        lanes = await self._lanes.all() if scopes else []
        is_woken = False
        for scope, _ in scopes:
            keys = [self._keys.permits(scope), self._keys.queue_for(scope), *(books.retries for books in lanes)]
            args = [task.id, *(books.lane.name for books in lanes)]
            is_woken = bool(await self._client.run("task_permit", keys, args, Repeat.IDEMPOTENT)) or is_woken
        return is_woken
