"""Schedules: when their next tasks are due; they are paused, resumed and run."""

from __future__ import annotations

import time

from penstock import envelope
from penstock.errors import DecodeError, NotFound
from penstock.keys import TaskKeys
from penstock.ops.entries import LONGEST_KIND, read_bodies
from penstock.ops.model import ScheduleInfo, TaskState
from penstock.ops.tasks import TaskQueues, lanes_of
from penstock.redis.client import StreamClient
from penstock.redis.reading import scan
from penstock.redis.retry import Repeat
from penstock.task import Task
from penstock.tasks.redis_queue import RedisTaskQueue

_CRON = "cron."
_MAX_SCANS = 100  # steps through the scheduled tasks when searching for schedules
_MAX_KINDS = 1_000  # schedules whose tasks are looked at
_NO_TASK = (1 << 62, "")  # after all others


class Schedules:
    """The schedules of the task queues of one server, derived from their next tasks; workers' code has the rules."""

    def __init__(self, client: StreamClient, tasks: TaskQueues) -> None:
        self._client, self._tasks = client, tasks

    def _keys(self, queue: str) -> TaskKeys:
        return TaskKeys.of(queue, self._client.prefix, self._client.is_cluster)

    async def of(self, queue: str) -> list[ScheduleInfo]:
        """Return the schedules whose next task is on the queue, and those that are paused, by time.

        Workers add the next task of a schedule ahead of its time, also while the schedule is paused. The kinds of the
        first thousand are known. Raises NotFound if there is no such queue.
        """
        keys = self._keys(queue)
        await lanes_of(self._client, keys, queue)
        flat = await self._client.call(keys.paused, "HGETALL", keys.paused)
        paused = {envelope.text(flat[at]): envelope.number(flat[at + 1]) or 0 for at in range(0, len(flat), 2)}
        due = await self._next_tasks(queue)
        by_time = sorted(due.items(), key=lambda each: each[1])
        kinds = await self._kinds(keys, {name: task_id for name, (_, task_id) in by_time[:_MAX_KINDS]})
        found = [
            ScheduleInfo(queue, name, task_id, at_ms, kinds.get(name, ""), name in paused, paused.get(name))
            for name, (at_ms, task_id) in by_time
        ]
        gone = sorted(paused.keys() - due.keys())
        return found + [ScheduleInfo(queue, name, "", None, "", True, paused[name]) for name in gone]

    async def _next_tasks(self, queue: str) -> dict[str, tuple[int, str]]:
        """Return when the next task of each schedule is due, and its id."""
        found = dict[str, tuple[int, str]]()
        flat, _ = await scan(self._client, "ZSCAN", self._keys(queue).due, f"{_CRON}*", _MAX_SCANS)
        for raw, score in zip(flat[::2], flat[1::2], strict=True):
            task_id = envelope.text(raw)
            name = task_id.removeprefix(_CRON).rpartition(".")[0]
            if name:
                found[name] = min(found.get(name, _NO_TASK), (int(float(score)), task_id))
        return found

    async def _kinds(self, keys: TaskKeys, task_ids: dict[str, str]) -> dict[str, str]:
        names, kinds = list(task_ids), dict[str, str]()
        while left := names[len(kinds) :]:
            bodies = await read_bodies(self._client, keys.bodies, [task_ids[name] for name in left], LONGEST_KIND)
            of_kind = (envelope.text(body.partition(b"\0")[0]) for body, _ in bodies)
            kinds |= dict(zip(left, of_kind, strict=False))
        return kinds

    async def _one(self, queue: str, name: str) -> ScheduleInfo:
        for schedule in await self.of(queue):
            if schedule.name == name:
                return schedule
        raise NotFound(f"queue {queue!r} has no schedule {name!r}; workers create schedules when they start")

    async def pause(self, queue: str, name: str) -> bool:
        """Have all workers skip the times of a schedule until it is resumed; return False if it was paused before.

        What it has put onto the queue already runs. Raises NotFound if no such schedule is known.
        """
        await self._one(queue, name)
        key, now_ms = self._keys(queue).paused, time.time_ns() // 1_000_000
        return bool(await self._client.call(key, "HSETNX", key, name, now_ms, repeat=Repeat.IDEMPOTENT))

    async def resume(self, queue: str, name: str) -> bool:
        """Let the next times of a schedule count again; return False if it was not paused."""
        await self._one(queue, name)
        key = self._keys(queue).paused
        return bool(await self._client.call(key, "HDEL", key, name, repeat=Repeat.IDEMPOTENT))

    async def run(self, queue: str, name: str) -> str:
        """Add the task of a schedule now, paused or not, in addition to the next one; return its id."""
        schedule = await self._one(queue, name)
        info = await self._tasks.status(queue, schedule.next_task_id) if schedule.next_task_id else None
        if info is None or info.state is TaskState.UNKNOWN:
            raise NotFound(
                f"schedule {name!r} of queue {queue!r} has no next task to copy: start a worker that declares it"
            )
        if info.error:
            raise DecodeError(f"the next task of schedule {name!r} of queue {queue!r} cannot be copied: {info.error}")
        task = Task(
            kind=info.kind,
            payload=info.payload or {},
            requires=frozenset(info.requires),
            priority=info.priority,  # type: ignore[arg-type]
        )
        return await RedisTaskQueue(self._client, queue).enqueue(task)
