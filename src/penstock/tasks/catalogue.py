"""Lists what is in a queue, for operators: pages of the streams, compared with the index of open tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock import envelope
from penstock.errors import GroupLost
from penstock.keys import TaskKeys
from penstock.redis.client import StreamClient
from penstock.serializers import PayloadLimits
from penstock.task import Task
from penstock.tasks.entries import TASK_ID, Malformed, TaskEntries
from penstock.tasks.lane_books import LaneBooks
from penstock.tasks.lane_map import LaneMap
from penstock.tasks.lanes import reading_order
from penstock.tasks.listed import InHand

_FIRST_PAGE, _PAGE = 16, 500


class Catalogue:
    """The open tasks of one queue."""

    def __init__(self, client: StreamClient, keys: TaskKeys, lanes: LaneMap, limits: PayloadLimits) -> None:
        self._client, self._keys, self._lanes = client, keys, lanes
        self._entries = TaskEntries(keys, client.protection, limits)

    async def open_tasks(self, limit: int, offset: int) -> list[Task]:
        """Return open tasks, without the first so many."""
        found: list[Task] = []
        async for task in self._iterate():
            if len(found) >= offset + limit:
                break
            found.append(task)
        return found[offset : offset + limit]

    async def _iterate(self) -> AsyncIterator[Task]:
        by_lane = {books.lane: books for books in await self._lanes.listed()}
        for lane in reading_order(by_lane, 0):
            async for task in self._of_lane(by_lane[lane]):
                yield task
        async for task in self._scheduled():
            yield task

    async def _of_lane(self, books: LaneBooks) -> AsyncIterator[Task]:
        start, page = "-", _FIRST_PAGE  # most want to see a few, and tasks may be large
        while True:
            rows = await self._client.call(books.stream, "XRANGE", books.stream, start, "+", "COUNT", page)
            tasks = {
                entry_id.decode(): task for entry_id, task in ((row[0], self._read(row[1])) for row in rows) if task
            }
            names = [task.id for task in tasks.values()]
            known = await self._client.call(self._keys.index, "HMGET", self._keys.index, *names) if names else []
            for (entry_id, task), value in zip(tasks.items(), known, strict=True):
                if value is not None and envelope.text(value).split(" ", 1)[0] == entry_id:
                    yield task
            if len(rows) < page:
                return
            start, page = "(" + rows[-1][0].decode(), min(2 * page, _PAGE)

    async def _scheduled(self) -> AsyncIterator[Task]:
        start = 0
        while True:
            names = await self._client.call(self._keys.due, "ZRANGE", self._keys.due, start, start + _PAGE - 1)
            if not names:
                return
            stored = await self._client.call(self._keys.bodies, "HMGET", self._keys.bodies, *names)
            for name, packed in zip(names, stored, strict=True):
                fields = [b"data", packed.partition(b"\0")[2], TASK_ID.encode(), name] if packed else None
                task = self._read(fields) if fields is not None else None
                if task is not None:
                    yield task
            start += _PAGE

    async def in_hand(self, limit: int) -> list[InHand]:
        """Return tasks that were handed out and are not settled."""
        found: list[InHand] = []
        for books in await self._lanes.listed():
            left = limit - len(found)
            if left > 0:
                command = ("XPENDING", books.stream, books.ledger.group, "-", "+", left)
                try:
                    rows = await self._client.call(books.stream, *command)
                except GroupLost:
                    continue  # nothing is in hand; the next worker makes the group
                found += [hand for hand in [await self._look(books, row) for row in rows] if hand is not None]
        return found

    async def _look(self, books: LaneBooks, row: list[bytes]) -> InHand | None:
        entry_id, consumer, idle_ms, deliveries = row[0].decode(), row[1].decode(), int(row[2]), int(row[3])
        fields = await books.ledger.fetch(entry_id)
        begun = await self._client.call(books.attempts, "HGET", books.attempts, entry_id)
        due = await self._client.call(books.retries, "ZSCORE", books.retries, entry_id)
        runs = number if (number := envelope.number(begun)) is not None else deliveries
        task = self._read(fields, runs if due is not None else max(0, runs - 1)) if fields is not None else None
        if task is None:
            return None
        if due is None:
            return InHand(task, consumer, idle_ms)
        seconds, micros = await self._client.call(books.stream, "TIME")
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        return InHand(task, consumer, idle_ms, max(0, int(float(due)) - now_ms))

    def _read(self, fields: list[bytes], runs: int = 0) -> Task | None:
        try:
            return self._entries.read(fields, runs)
        except Malformed:
            return None
