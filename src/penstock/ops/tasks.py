"""Task queues: their numbers, tasks by state, results."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from penstock import envelope, ids
from penstock.delivery.group import described, group_info
from penstock.errors import ConfigurationError, DecodeError, GroupLost, NotFound
from penstock.keys import TaskKeys
from penstock.number_checks import check_number
from penstock.ops.catalogue import Catalogue, checked_id, queue_name
from penstock.ops.entries import LONGEST_KIND, EntryRange, read_bodies, read_entries
from penstock.ops.model import Page, TaskInfo, TaskQueueInfo, TaskState
from penstock.ops.payloads import Row
from penstock.redis.client import StreamClient
from penstock.redis.reading import ask, escaped, scan
from penstock.redis.retry import Repeat
from penstock.task import Result, Status, Task, check_id, decode_result
from penstock.tasks.entries import KIND, TASK_ID, Malformed, TaskEntries, place_in_index, runs_before_move
from penstock.tasks.gauges import read_gauges
from penstock.tasks.lanes import DEFAULT, Lane, suffix_of
from penstock.tasks.listed import QueueGauges
from penstock.tasks.redis_queue import RedisTaskQueue

_MAX_AT_ONCE = 1_000  # tasks of one page
_MAX_SCANS = 1_000  # steps in which the beginning of an id is looked for


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

    async def page(self, *, limit: int = 100, cursor: str = "") -> Page[TaskQueueInfo]:
        """Return the numbers of task queues by name, page by page."""
        check_number("limit", limit)
        names = [name for name in await self.names() if name > cursor]
        found = await self.all(names[:limit])
        return Page(tuple(found), names[limit - 1] if len(names) > limit else "")

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
        cursor: str = "", max_value_bytes: int = 1 << 20,
    ) -> Page[TaskInfo]:  # fmt: skip
        """Return tasks in a state: queued, running, waiting, scheduled or done; those of one kind if it is given.

        Lane by lane and oldest first; of those that are done the newest first. Dead ones are dead letters. Of each task
        or result no more than `max_value_bytes` are read.
        """
        check_number("limit", limit)
        check_number("max_value_bytes", max_value_bytes)
        lanes, limit = await self._lanes(queue), min(limit, _MAX_AT_ONCE)
        if state is TaskState.SCHEDULED:
            return await self._scheduled(queue, kind, limit, cursor, max_value_bytes)
        if state is TaskState.DONE:
            return await self._done(queue, kind, limit, cursor, max_value_bytes)
        if state not in {TaskState.QUEUED, TaskState.RUNNING, TaskState.WAITING}:
            raise ConfigurationError(f"state={state.value!r} must be queued, running, waiting, scheduled or done")
        first, _, after = cursor.partition(" ")
        read, found = self._queued if state is TaskState.QUEUED else self._in_hand, list[TaskInfo]()
        for lane in lanes[bisect_left(lanes, first) :]:
            if len(found) >= limit:
                return Page(tuple(found), f"{lane} ")
            start = checked_id(after) if lane == first and after else ""
            of_lane, further = await read(queue, lane, state, limit - len(found), start, max_value_bytes)
            found += (task for task in of_lane if kind in {None, task.kind})
            if further:
                return Page(tuple(found), f"{lane} {further}")
        return Page(tuple(found))

    async def _queued(
        self, queue: str, lane: str, _: TaskState, limit: int, cursor: str, max_value_bytes: int
    ) -> tuple[list[TaskInfo], str]:
        stream = self._keys(queue).tasks(suffix_of(lane)).stream
        start = cursor or await self._last_delivered(stream, queue)
        wanted = EntryRange(ids.after(start), "+", limit, max_value_bytes)
        rows, further = await read_entries(self._client, stream, wanted)
        return [self._task(queue, lane, TaskState.QUEUED, row) for row in rows], further

    async def _last_delivered(self, stream: str, group: str) -> str:
        try:
            found = await group_info(self._client, stream, group)
        except GroupLost:  # there is no such stream
            return ids.ZERO
        return ids.ZERO if found is None else str(found["last-delivered-id"].decode())

    async def _in_hand(
        self, queue: str, lane: str, state: TaskState, limit: int, cursor: str, max_value_bytes: int
    ) -> tuple[list[TaskInfo], str]:
        streams = self._keys(queue).tasks(suffix_of(lane))
        stream, start = streams.stream, f"({cursor}" if cursor else "-"
        try:
            rows = await self._client.call(stream, "XPENDING", stream, queue, start, "+", limit)
        except GroupLost:
            return [], ""
        wanted = {
            it.id: it
            for it in await described(self._client, streams, queue, rows)
            if (it.due_at_ms is not None) == (state is TaskState.WAITING)
        }
        chosen = EntryRange("-", "+", limit, max_value_bytes, ids=list(wanted))
        entries, further = await read_entries(self._client, stream, chosen) if wanted else ([], "")
        found = []
        for entry in entries:
            it, task = wanted[entry[0].decode()], self._task(queue, lane, state, entry)
            found.append(
                replace(task, attempts=it.runs, consumer=it.consumer, idle_ms=it.idle_ms, due_at_ms=it.due_at_ms)
            )
        return found, further or (rows[-1][0].decode() if len(rows) == limit else "")

    async def _scheduled(
        self, queue: str, kind: str | None, limit: int, cursor: str, max_value_bytes: int
    ) -> Page[TaskInfo]:
        keys, start = self._keys(queue), envelope.number(cursor) or 0
        flat = await self._client.call(keys.due, "ZRANGE", keys.due, start, start + limit - 1, "WITHSCORES")
        names, scores = flat[::2], flat[1::2]
        places = await self._client.call(keys.index, "HMGET", keys.index, *names) if names else []
        bodies = await read_bodies(self._client, keys.bodies, names, max_value_bytes + LONGEST_KIND)
        found = []
        for name, score, place, (body, size) in zip(names, scores, places, bodies, strict=False):
            of_kind, _, packed = body.partition(b"\0")
            row = [name, b"data", packed, size - len(of_kind) - 1, *_whole(TASK_ID, name), *_whole(KIND, of_kind)]
            task = self._task(queue, place_in_index(place or b"")[1], TaskState.SCHEDULED, row)
            if kind in {None, task.kind}:
                found.append(replace(task, due_at_ms=int(float(score))))
        is_more = len(names) == limit or len(bodies) < len(names)
        return Page(tuple(found), str(start + len(bodies)) if is_more else "")

    async def _done(
        self, queue: str, kind: str | None, limit: int, cursor: str, max_value_bytes: int
    ) -> Page[TaskInfo]:
        results = self._keys(queue).results
        start = ids.before(cursor) if cursor else "+"
        wanted = EntryRange(start, "-", limit, max_value_bytes, newest_first=True)
        rows, further = await read_entries(self._client, results, wanted)
        found = [task for row in rows for task in _results(queue, row) if kind in {None, task.kind}]
        return Page(tuple(found), further)

    def _task(self, queue: str, lane: str, state: TaskState, row: Row) -> TaskInfo:
        fields = [part for at in range(1, len(row), 3) for part in (row[at], row[at + 1])]
        try:
            return _task_info(queue, lane, state, TaskEntries(self._keys(queue), self._client.protection).read(fields))
        except Malformed as error:
            found = TaskInfo(queue, error.task_id, state, error.kind, lane, error=str(error))
            missing = {row[at]: int(row[at + 2]) - len(row[at + 1]) for at in range(1, len(row), 3)}
            if missing.get(envelope.DATA.encode(), 0) <= 0:
                return found
            place, runs = Lane.parse(lane) or DEFAULT, runs_before_move(envelope.as_mapping(fields))
            return replace(
                found, error="", is_cut=True, attempts=runs or 0, priority=place.priority.value,
                requires=tuple(sorted(place.requires)),
            )  # fmt: skip

    async def begin_with(self, queue: str, text: str) -> tuple[list[str], bool]:
        """Return the ids of tasks that begin with a text, open or with a result, and whether all were looked at."""
        await self._lanes(queue)
        keys, found, is_complete = self._keys(queue), set[str](), True
        for key in (keys.index, keys.done):
            flat, is_all = await scan(self._client, "HSCAN", key, f"{escaped(text)}*", _MAX_SCANS)
            found |= {envelope.text(name) for name in flat[::2]}
            is_complete &= is_all
        return sorted(found), is_complete

    async def status(self, queue: str, task_id: str) -> TaskInfo:
        """Return where a task is; its state is UNKNOWN if the queue has no record of it, or no longer."""
        check_id("task_id", task_id)
        await self._lanes(queue)
        keys = self._keys(queue)
        known, due = await ask(
            self._client,
            [(keys.index, ("HGET", keys.index, task_id)), (keys.due, ("ZSCORE", keys.due, task_id))],
        )
        if known is None:
            return await self._ended(queue, task_id)
        entry_id, lane = place_in_index(known)
        if entry_id == "-":
            [body] = await ask(self._client, [(keys.bodies, ("HGET", keys.bodies, task_id))])
            packed = body.partition(b"\0")[2] if body else b""
            row = [b"", *_whole(envelope.DATA, packed), *_whole(TASK_ID, task_id.encode())]
            found = self._task(queue, lane, TaskState.SCHEDULED, row)
            return replace(found, due_at_ms=None if due is None else int(float(due)))
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
        if not isinstance(body, list) or not body:
            return _unknown(queue, task_id)
        fields = zip(body[0][1][::2], body[0][1][1::2], strict=True)
        found = self._task(queue, lane, state, [b"", *(part for each in fields for part in (*each, len(each[1])))])
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


def _results(queue: str, row: Row) -> list[TaskInfo]:
    """Return the results of one entry: several may be written together."""
    found, values = [], dict[str, str]()
    for at in range(1, len(row), 3):
        name, value, size = envelope.field_name(row[at]), row[at + 1], int(row[at + 2])
        if name != envelope.DATA:
            values[name] = envelope.text(value)
            continue
        task_id, kind, status = (values.get(each, "") for each in (TASK_ID, KIND, "status"))
        try:
            found.append(_result_info(queue, decode_result(value)))
        except DecodeError as error:
            if size > len(value):
                cut = TaskInfo(queue, task_id, TaskState.DONE, kind, attempts=None, status=status, is_cut=True)
                found.append(cut)
            else:
                found.append(TaskInfo(queue, task_id, TaskState.DONE, attempts=None, error=str(error)))
    return found


def _whole(name: str, value: bytes) -> tuple[bytes, bytes, int]:
    return name.encode(), value, len(value)
