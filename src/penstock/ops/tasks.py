"""Task queues: their numbers, tasks by state, results."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from penstock import envelope, ids
from penstock.errors import ConfigurationError, DecodeError, GroupLost, NotFound
from penstock.keys import TaskKeys
from penstock.number_checks import check_number
from penstock.ops.catalogue import Catalogue, checked_id, queue_name
from penstock.ops.entries import EntryRange, read_entries
from penstock.ops.model import Page, TaskInfo, TaskQueueInfo, TaskState
from penstock.ops.payloads import Row
from penstock.redis.client import StreamClient
from penstock.redis.reading import ask
from penstock.redis.retry import Repeat
from penstock.task import Result, Status, Task, check_id, decode_result
from penstock.tasks.entries import TASK_ID, Malformed, TaskEntries
from penstock.tasks.gauges import read_gauges
from penstock.tasks.lanes import suffix_of
from penstock.tasks.listed import QueueGauges
from penstock.tasks.redis_queue import RedisTaskQueue

_LARGEST = 1 << 20  # bytes of a task that is shown


class TaskQueues:
    """The task queues of one server."""

    def __init__(self, client: StreamClient, catalogue: Catalogue) -> None:
        self._client, self._catalogue = client, catalogue

    async def names(self) -> list[str]:
        """Return the names of the task queues, sorted."""
        return sorted({queue_name(root) for root in await self._catalogue.task_queues()})

    async def all(self, names: Sequence[str] | None = None) -> list[TaskQueueInfo]:
        """Return the numbers of all task queues, or of those with these names; one that is gone is left out."""
        keys = [(name, self._keys(name)) for name in (await self.names() if names is None else names)]
        present = await ask(self._client, [(each.lanes, ("EXISTS", each.lanes)) for _, each in keys])
        there = [each for each, reply in zip(keys, present, strict=True) if reply == 1]
        return [_queue_info(found) for found in await read_gauges(self._client, there)]

    async def info(self, queue: str) -> TaskQueueInfo:
        """Return the numbers of one queue; raise NotFound if there is none."""
        await self._lanes(queue)
        [found] = await read_gauges(self._client, [(queue, self._keys(queue))])
        return _queue_info(found)

    def _keys(self, queue: str) -> TaskKeys:
        return TaskKeys.of(queue, self._client.prefix, self._client.is_cluster)

    async def _lanes(self, queue: str) -> list[str]:
        return await lanes_of(self._client, self._keys(queue), queue)

    # --- tasks --------------------------------------------------------------------------------------

    async def tasks(
        self, queue: str, state: TaskState = TaskState.QUEUED, *, kind: str | None = None, limit: int = 50,
        cursor: str = "",
    ) -> Page[TaskInfo]:  # fmt: skip
        """Return tasks in a state: queued, running, waiting, scheduled or done; those of one kind if it is given.

        Lane by lane and oldest first; of those that are done the newest first. Dead ones are dead letters.
        """
        check_number("limit", limit)
        lanes = await self._lanes(queue)
        if state is TaskState.SCHEDULED:
            return await self._scheduled(queue, kind, limit, cursor)
        if state is TaskState.DONE:
            return await self._done(queue, kind, limit, cursor)
        if state not in {TaskState.QUEUED, TaskState.RUNNING, TaskState.WAITING}:
            raise ConfigurationError(f"state={state.value!r} must be queued, running, waiting, scheduled or done")
        first, _, after = cursor.partition(" ")
        read, found = self._queued if state is TaskState.QUEUED else self._in_hand, list[TaskInfo]()
        for lane in lanes[bisect_left(lanes, first) :]:
            if len(found) >= limit:
                return Page(tuple(found), f"{lane} ")
            start = checked_id(after) if lane == first and after else ""
            of_lane, further = await read(queue, lane, state, limit - len(found), start)
            found += (task for task in of_lane if kind in {None, task.kind})
            if further:
                return Page(tuple(found), f"{lane} {further}")
        return Page(tuple(found))

    async def _queued(self, queue: str, lane: str, _: TaskState, limit: int, cursor: str) -> tuple[list[TaskInfo], str]:
        stream = self._keys(queue).tasks(suffix_of(lane)).stream
        start = cursor or await self._last_delivered(stream, queue)
        rows, further = await read_entries(self._client, stream, EntryRange(ids.after(start), "+", limit, _LARGEST))
        found = [self._task(queue, lane, TaskState.QUEUED, _flat(row)) for row in rows]
        return [task for task in found if task is not None], further

    async def _last_delivered(self, stream: str, group: str) -> str:
        groups = await self._client.call(stream, "XINFO", "GROUPS", stream) if await self._exists(stream) else []
        told = [{row[i]: row[i + 1] for i in range(0, len(row), 2)} for row in groups]
        found = [row[b"last-delivered-id"].decode() for row in told if envelope.text(row[b"name"]) == group]
        return found[0] if found else ids.ZERO

    async def _exists(self, key: str) -> bool:
        return bool(await self._client.call(key, "EXISTS", key))

    async def _in_hand(
        self, queue: str, lane: str, state: TaskState, limit: int, cursor: str
    ) -> tuple[list[TaskInfo], str]:
        streams = self._keys(queue).tasks(suffix_of(lane))
        stream, start = streams.stream, f"({cursor}" if cursor else "-"
        try:
            rows = await self._client.call(stream, "XPENDING", stream, queue, start, "+", limit)
        except GroupLost:
            return [], ""
        if not rows:
            return [], ""
        names = [row[0] for row in rows]
        due, begun = await ask(
            self._client,
            [
                (stream, ("ZMSCORE", streams.retries(queue), *names)),
                (stream, ("HMGET", streams.attempts(queue), *names)),
            ],
        )
        wanted = [
            (row, score, envelope.number(runs))
            for row, score, runs in zip(rows, due, begun, strict=True)
            if (score is not None) == (state is TaskState.WAITING)
        ]
        bodies = await ask(self._client, [(stream, ("XRANGE", stream, row[0], row[0])) for row, _, _ in wanted])
        found = []
        for (row, score, runs), body in zip(wanted, bodies, strict=True):
            task = self._task(queue, lane, state, body[0][1]) if body else None
            if task is not None:
                due_at_ms = None if score is None else int(float(score))
                attempts = int(row[3]) if runs is None else runs
                consumer = envelope.text(row[1])
                found.append(
                    replace(task, attempts=attempts, consumer=consumer, idle_ms=int(row[2]), due_at_ms=due_at_ms)
                )
        return found, rows[-1][0].decode() if len(rows) == limit else ""

    async def _scheduled(self, queue: str, kind: str | None, limit: int, cursor: str) -> Page[TaskInfo]:
        keys, start = self._keys(queue), envelope.number(cursor) or 0
        flat = await self._client.call(keys.due, "ZRANGE", keys.due, start, start + limit - 1, "WITHSCORES")
        names, scores = flat[::2], flat[1::2]
        bodies = await self._client.call(keys.bodies, "HMGET", keys.bodies, *names) if names else []
        found = []
        for name, score, body in zip(names, scores, bodies, strict=True):
            packed = body.partition(b"\0")[2] if body else b""
            task = self._task(queue, "", TaskState.SCHEDULED, [b"data", packed, TASK_ID.encode(), name])
            if task is not None and kind in {None, task.kind}:
                found.append(replace(task, due_at_ms=int(float(score))))
        return Page(tuple(found), str(start + limit) if len(names) == limit else "")

    async def _done(self, queue: str, kind: str | None, limit: int, cursor: str) -> Page[TaskInfo]:
        results = self._keys(queue).results
        start = ids.before(cursor) if cursor else "+"
        wanted = EntryRange(start, "-", limit, _LARGEST, newest_first=True)
        rows, further = await read_entries(self._client, results, wanted)
        found = [task for row in rows for task in _results(queue, _flat(row)) if kind in {None, task.kind}]
        return Page(tuple(found), further)

    def _task(self, queue: str, lane: str, state: TaskState, fields: Sequence[bytes]) -> TaskInfo | None:
        entries = TaskEntries(self._keys(queue), self._client.protection)
        try:
            return _task_info(queue, lane, state, entries.read(list(fields)))
        except Malformed as error:
            return TaskInfo(queue, error.task_id, state, error.kind, lane, error=str(error))

    async def status(self, queue: str, task_id: str) -> TaskInfo:
        """Return where a task is; its state is UNKNOWN if the queue has never heard of it, or not any more."""
        check_id("task_id", task_id)
        await self._lanes(queue)
        keys = self._keys(queue)
        known, due = await ask(
            self._client,
            [(keys.index, ("HGET", keys.index, task_id)), (keys.due, ("ZSCORE", keys.due, task_id))],
        )
        if known is None:
            return await self._ended(queue, task_id)
        entry_id, lane, *_ = envelope.text(known).split(" ", 2)
        if entry_id == "-":
            [body] = await ask(self._client, [(keys.bodies, ("HGET", keys.bodies, task_id))])
            packed = body.partition(b"\0")[2] if body else b""
            found = self._task(queue, lane, TaskState.SCHEDULED, [b"data", packed, TASK_ID.encode(), task_id.encode()])
            return (
                replace(found, due_at_ms=None if due is None else int(float(due)))
                if found
                else _unknown(queue, task_id)
            )
        return await self._open(queue, task_id, entry_id, lane)

    async def _open(self, queue: str, task_id: str, entry_id: str, lane: str) -> TaskInfo:
        streams = self._keys(queue).tasks(suffix_of(lane))
        stream = streams.stream
        body, pending, due, runs = await ask(
            self._client,
            [
                (stream, ("XRANGE", stream, entry_id, entry_id)),
                (stream, ("XPENDING", stream, queue, entry_id, entry_id, 1)),
                (stream, ("ZSCORE", streams.retries(queue), entry_id)),
                (stream, ("HGET", streams.attempts(queue), entry_id)),
            ],
        )
        is_pending = isinstance(pending, list) and bool(pending)
        state = TaskState.QUEUED if not is_pending else TaskState.RUNNING if due is None else TaskState.WAITING
        found = self._task(queue, lane, state, body[0][1]) if isinstance(body, list) and body else None
        if found is None:
            return _unknown(queue, task_id)
        if not is_pending:
            return found
        attempts = envelope.number(runs)
        return replace(
            found, attempts=int(pending[0][3]) if attempts is None else attempts, consumer=envelope.text(pending[0][1]),
            idle_ms=int(pending[0][2]), due_at_ms=None if due is None else int(float(due)),
        )  # fmt: skip

    async def _ended(self, queue: str, task_id: str) -> TaskInfo:
        result = await RedisTaskQueue(self._client, queue).get_result(task_id)
        return _unknown(queue, task_id) if result is None else _result_info(queue, result)

    async def result(self, queue: str, task_id: str) -> Result | None:
        """Return the result of a task if there is one."""
        await self._lanes(queue)
        return await RedisTaskQueue(self._client, queue).get_result(task_id)

    async def cancel(self, queue: str, task_id: str) -> str:
        """Remove a task that is not running from the queue; return 'cancelled', or why not: 'running' or 'gone'.

        Its result gets the status `skip`, so that callers stop waiting and the task is not added again.
        """
        for _ in range(10):  # between the look and the script a task may move to another lane
            found = await self.status(queue, task_id)
            if found.state is TaskState.RUNNING:
                return "running"
            if found.state in {TaskState.DONE, TaskState.UNKNOWN}:
                return "gone"
            keys = self._keys(queue)
            streams = keys.tasks(suffix_of(found.lane))
            names = [
                keys.index, keys.unique, keys.counts, keys.due, keys.bodies, streams.stream, streams.retries(queue),
                streams.attempts(queue),
            ]  # fmt: skip
            args = [queue, task_id, found.lane, found.kind]
            answer: bytes = await self._client.run("tasks/cancel", names, args, Repeat.IDEMPOTENT)
            if answer == b"cancelled":
                result = Result(task_id=task_id, kind=found.kind or "unknown", status=Status.SKIP, error="cancelled")
                await RedisTaskQueue(self._client, queue).push_result(result)
            if answer != b"moved":
                return answer.decode()
        return "running"


async def lanes_of(client: StreamClient, keys: TaskKeys, queue: str) -> list[str]:
    """Return the names of the lanes of a queue, sorted; raise NotFound if there is no such queue."""
    names = sorted(envelope.text(name) for name in await client.call(keys.lanes, "SMEMBERS", keys.lanes))
    if not names:
        raise NotFound(f"task queue {queue!r} does not exist; list queues with `penstock queue ls`")
    return names


def _queue_info(found: QueueGauges) -> TaskQueueInfo:
    running, waiting = sum(lane.in_hand for lane in found.lanes), sum(lane.waiting for lane in found.lanes)
    return TaskQueueInfo(
        name=found.name,
        open=found.open,
        queued=max(0, found.open - found.scheduled - running - waiting),
        running=running,
        waiting=waiting,
        scheduled=found.scheduled,
        dead=found.dead_letters,
        results=found.results,
        longest_idle_s=max((lane.idle_max_s for lane in found.lanes), default=0.0),
        lanes=len(found.lanes),
        open_by_kind=found.open_by_kind,
        done_by_kind=found.acked,
        dead_by_kind=found.dead,
        dead_trimmed=found.dead_trimmed,
    )


def _unknown(queue: str, task_id: str) -> TaskInfo:
    return TaskInfo(queue, task_id, TaskState.UNKNOWN)


def _task_info(queue: str, lane: str, state: TaskState, task: Task) -> TaskInfo:
    return TaskInfo(
        queue, task.id, state, task.kind, lane, task.attempts, created_at=task.created_at,
        priority=task.priority.value, requires=tuple(sorted(task.requires)), payload=task.payload,
    )  # fmt: skip


def _result_info(queue: str, result: Result) -> TaskInfo:
    return TaskInfo(
        queue, result.task_id, TaskState.DONE, result.kind, attempts=result.attempts, status=result.status.value,
        error=result.error or "", result=result.data,
    )  # fmt: skip


def _results(queue: str, fields: Sequence[bytes]) -> list[TaskInfo]:
    """Return the results of one entry: several may be written together."""
    found, task_id = [], ""
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        if name == TASK_ID.encode():
            task_id = envelope.text(value)
        elif name == envelope.DATA.encode():
            try:
                found.append(_result_info(queue, decode_result(value)))
            except DecodeError as error:
                found.append(TaskInfo(queue, task_id, TaskState.DONE, error=str(error)))
    return found


def _flat(row: Row) -> list[bytes]:
    """Return the fields of a row as an entry has them."""
    return [part for at in range(1, len(row), 3) for part in (row[at], row[at + 1])]
