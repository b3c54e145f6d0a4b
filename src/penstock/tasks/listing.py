"""The tasks in a queue, for operators."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from penstock.delivery.group import PendingRecord, described
from penstock.errors import GroupLost
from penstock.redis.reading import PAGES, Question, pages, read_many, size_of
from penstock.redis.translate import checked
from penstock.serializers import PayloadLimits
from penstock.task import Task
from penstock.tasks.entries import TASK_ID, Malformed, TaskEntries, place_in_index
from penstock.tasks.lane_store import LaneRegistry, LaneStore
from penstock.tasks.lanes import reading_order
from penstock.tasks.listed import PendingTask


class TaskListing:
    """The open tasks of one queue: pages of its streams, compared with the index."""

    def __init__(self, lanes: LaneRegistry, limits: PayloadLimits) -> None:
        self._client, self._keys, self._lanes = lanes.client, lanes.keys, lanes
        self._entries = TaskEntries(lanes.keys, lanes.client.protection, limits)

    async def open_tasks(self, limit: int, offset: int) -> list[Task]:
        """Return open tasks from `offset` on."""
        found: list[Task] = []
        async for task in self._iterate():
            if len(found) >= offset + limit:
                break
            found.append(task)
        return found[offset : offset + limit]

    async def _iterate(self) -> AsyncIterator[Task]:
        by_lane = {store.lane: store for store in await self._lanes.listed()}
        for lane in reading_order(by_lane, 0):
            async for task in self._of_lane(by_lane[lane]):
                yield task
        async for task in self._scheduled():
            yield task

    async def _of_lane(self, store: LaneStore) -> AsyncIterator[Task]:
        async for rows in pages(self._client, store.stream):
            tasks = {
                entry_id.decode(): task for entry_id, task in ((row[0], self._read(row[1])) for row in rows) if task
            }
            names = [task.id for task in tasks.values()]
            known = await self._client.call(self._keys.index, "HMGET", self._keys.index, *names) if names else []
            for (entry_id, task), value in zip(tasks.items(), known, strict=True):
                if value is not None and place_in_index(value)[0] == entry_id:
                    yield task

    async def _scheduled(self) -> AsyncIterator[Task]:
        start, page = 0, PAGES.first
        while True:
            names = await self._client.call(self._keys.due, "ZRANGE", self._keys.due, start, start + page - 1)
            if not names:
                return
            stored = await self._client.call(self._keys.bodies, "HMGET", self._keys.bodies, *names)
            for name, packed in zip(names, stored, strict=True):
                fields = [b"data", packed.partition(b"\0")[2], TASK_ID.encode(), name] if packed else None
                task = self._read(fields) if fields is not None else None
                if task is not None:
                    yield task
            start, page = start + len(names), PAGES.after(len(names), sum(map(len, filter(None, stored))))

    async def in_hand(self, limit: int) -> list[PendingTask]:
        """Return tasks that were delivered and are not settled."""
        found: list[PendingTask] = []
        for store in await self._lanes.listed():
            left = limit - len(found)
            if left > 0:
                command = ("XPENDING", store.stream, store.commands.group, "-", "+", left)
                try:
                    rows = await self._client.call(store.stream, *command)
                except GroupLost:
                    continue  # nothing is pending; the next worker creates the group
                pending = await described(self._client, store.streams, store.commands.group, rows)
                start, page = 0, PAGES.first
                while start < len(pending):
                    some, size = await self._describe(store, pending[start : start + page])
                    found += some
                    start, page = start + page, PAGES.after(page, size)
        return found

    async def _describe(self, store: LaneStore, pending: Sequence[PendingRecord]) -> tuple[list[PendingTask], int]:
        # Also returns how many bytes were read.
        questions: list[Question] = [(store.stream, ("XRANGE", store.stream, it.id, it.id)) for it in pending]
        found, entries = list[PendingTask](), checked(await read_many(self._client, questions))
        for it, entry in zip(pending, entries, strict=True):
            task = self._read(entry[0][1], it.runs) if entry else None
            if task is not None:
                waits_ms = None if it.due_in_ms is None else max(0, it.due_in_ms)
                found.append(PendingTask(task, it.consumer, it.idle_ms, waits_ms))
        return found, sum(map(size_of, entries))

    def _read(self, fields: list[bytes], runs: int = 0) -> Task | None:
        try:
            return self._entries.read(fields, runs)
        except Malformed:
            return None
