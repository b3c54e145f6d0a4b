"""The tasks in a queue, for operators."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from penstock import envelope
from penstock.errors import GroupLost
from penstock.redis.packing import Command
from penstock.redis.reading import PAGES, pages, read_many, size_of
from penstock.redis.translate import checked
from penstock.serializers import PayloadLimits
from penstock.task import Task
from penstock.tasks.entries import TASK_ID, Malformed, TaskEntries
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
                if value is not None and envelope.text(value).split(" ", 1)[0] == entry_id:
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
                start, page = 0, PAGES.first
                while start < len(rows):
                    some, size = await self._describe(store, rows[start : start + page])
                    found += some
                    start, page = start + page, PAGES.after(page, size)
        return found

    async def _describe(
        self, store: LaneStore, pending: Sequence[tuple[bytes, bytes, int, int]]
    ) -> tuple[list[PendingTask], int]:
        # Also returns how many bytes were read.
        names, stream = [row[0] for row in pending], store.stream
        commands: list[Command] = [("TIME",), ("HMGET", store.attempts, *names), ("ZMSCORE", store.retries, *names)]
        commands += [("XRANGE", stream, name, name) for name in names]
        replies = await read_many(self._client, [(stream, command) for command in commands])
        (seconds, micros), begun, due, *entries = checked(replies)
        now_ms, found = int(seconds) * 1000 + int(micros) // 1000, list[PendingTask]()
        for row, runs, due_ms, entry in zip(pending, begun, due, entries, strict=True):
            count = number if (number := envelope.number(runs)) is not None else int(row[3])
            task = self._read(entry[0][1], count) if entry else None
            if task is not None:
                waits_ms = None if due_ms is None else max(0, int(float(due_ms)) - now_ms)
                found.append(PendingTask(task, envelope.text(row[1]), int(row[2]), waits_ms))
        return found, sum(map(size_of, entries))

    def _read(self, fields: list[bytes], runs: int = 0) -> Task | None:
        try:
            return self._entries.read(fields, runs)
        except Malformed:
            return None
